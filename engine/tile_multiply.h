// Arithmetic of tensor cores: decode fragments to float64, multiply tiles, round sums into registers.
//
// Decoded numbers of A are in blocks of 8 rows x `width` columns, like the registers of a fragment. The block of rows 8
// i and columns `width` j has number j (m / 8) + i. Numbers of B are row by row, 8 per row. Sums are row by row.
#pragma once

#include <cstdint>

#include "number_formats.h"

namespace kernrec {

constexpr int kMostTileNumbers = 16 * 256;  // for A: m16n8k256 of bits
constexpr int kMostTileSums = 32 * 8;

struct TileA {
    const double* numbers;
    int m;
    int k;
    int width;
};

// Product of fragments, D = A B + C, on 32-bit registers.
struct FragmentProduct {
    NumberType a, b, c, d;
    int m, k;
    bool saturates;
    bool counts_xor;  // of bits
    const uint32_t* const* registers_a;
    const uint32_t* const* registers_b;
    const uint32_t* const* registers_c;
    uint32_t* const* registers_d;
};
void multiply_fragments(const FragmentProduct& product);

// sums (m x 8) = A B. Products of types other than f64 are exact; `_f64` rounds each addition once.
void multiply_tile(const TileA& a, const double* b, double* sums);
void multiply_tile_f64(const TileA& a, const double* b, double* sums);

// Decode the registers of a fragment of A.
void decode_a(NumberType type, int registers, const uint32_t* const* fragment, double* numbers);

// Numbers of 4 to 8 bits in separate bytes, or in pairs if `packed`. An e2m1 in its own byte is in bits 2 to 5.
struct SmallFloats {
    NumberType type;
    bool packed;
};
void decode_small_a(const SmallFloats& codes, int registers, const uint32_t* const* fragment, double* numbers);
void decode_small_b(const SmallFloats& codes, int registers, const uint32_t* const* fragment, double* numbers);

// Decode contiguous elements in memory.
void decode_bytes(NumberType type, const uint8_t* bytes, int count, double* numbers);

// Add the fragment of C to sums, and write sums as the fragment of D.
void add_c(NumberType type, int m, const uint32_t* const* fragment, double* sums);
void write_d(NumberType type, int m, bool saturates, const double* sums, uint32_t* const* fragment);

// Round a sum to the bits of an f16, f32 or s32 cell.
uint32_t rounded_sum(NumberType type, bool saturates, double sum);

}  // namespace kernrec
