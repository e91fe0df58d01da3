// Arithmetic of tensor cores: decode fragments to float64, multiply tiles, round sums into registers.
//
// PTX does not specify the order and precision of sums. Here the products of one element of D are added along K in
// float64, one after another. Then C is added, and the sum is rounded once to the type of D. Integers are exact and
// wrap, or saturate with `.satfinite`. NaN results are canonical (0x7FFFFFFF, 0x7FFF).
//
// Fragments (PTX ISA, "Matrix Fragments for mma"): let g = lane / 4, t = lane % 4, and p be the elements per register.
// Register r of a lane contains, for e = 0 .. p - 1:
//   A (m x k): row g + 8 (r % (m / 8)), column 4 p (r / (m / 8)) + p t + e
//   B (k x 8): row 4 p r + p t + e, column g
//   C, D (m x 8): row g + 8 (r / 2), column 2 t + r % 2; two f16 per register: row g + 8 r, column 2 t + e
//
// Decoded numbers of A are stored in blocks of 8 rows x `width` columns. Block j (m / 8) + i starts at row 8 i and
// column `width` j. B and the sums are stored in tiles of eight columns, each row by row.
#pragma once

#include <cstdint>

#include "number_formats.h"

namespace kernrec {

constexpr bool is_narrow(NumberType type) {
    return type == NumberType::kE2m1 || type == NumberType::kE2m3 || type == NumberType::kE3m2;
}

// Return the bits that a number takes in a register. Narrow numbers take a byte, or half of one if they are `packed`.
constexpr int element_bits(NumberType type, bool packed = false) {
    return is_narrow(type) && !packed ? 8 : number_bits(type);
}

constexpr int register_bits(NumberType type) { return number_bits(type) == 64 ? 64 : 32; }

// D (m x n) = A (m x k) B (k x n) + C.
struct MatrixMultiply {
    int m, n, k;
    NumberType a, b, c, d;
    bool saturates = false;  // .satfinite of integers
    bool counts_xor = false;  // for bits: count differing bits instead of common ones
    bool packed = false;  // two 4-bit numbers per byte instead of one
    int factors = 0;  // scale factors along K; 0 for no block scaling
    NumberType scale = NumberType::kUe8m0;
    int sign = 1;  // of the products
};

// Scale factors of A or B: a register, its first byte, and which threads of each group of four threads have factors.
struct ScaleFactors {
    const uint32_t* factors = nullptr;
    uint32_t byte = 0;
    uint32_t thread = 0;
};

// Registers of a warp: the bytes of its 32 lanes in each.
using Registers = uint8_t* const*;

// Decode `count` numbers that take `bits` bits each.
void decode(NumberType type, int bits, const uint8_t* codes, int count, double* numbers);
// Decode registers of A, or of B before `transpose`.
void decode_registers(NumberType type, int bits, Registers registers, int count, double* numbers);
// Transpose eight rows of `width` numbers.
void transpose(const double* rows, int width, double* columns);

struct TileA {
    const double* numbers;
    int m;
    int k;
    int width;
};
// Return the product of A and a tile of B in `sums` (m x 8). Products of types other than f64 are exact. For f64, the
// sums must be `fused`: each addition rounds once, on any machine.
void multiply_tile(const TileA& a, const double* b, bool fused, double* sums);

// Multiply decoded numbers, and write D. `c` is null if there is no C.
void multiply_tiles(const MatrixMultiply& form, const TileA& a, const double* b, Registers c, Registers d);
// Multiply fragments. `scales` are the factors of A and B.
void multiply_fragments(const MatrixMultiply& form, Registers a, Registers b, Registers c, Registers d,
                        const ScaleFactors* scales);

// Round a sum to the bits of an f16, f32, f64 or s32 number.
uint64_t rounded_sum(NumberType type, bool saturates, double sum);

}  // namespace kernrec
