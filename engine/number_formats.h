// Number formats of PTX, and conversions between them.
//
// Sources: PTX ISA, sections "Fundamental Types", "Alternate Floating-Point Data Formats" and "cvt". A number is passed
// as the bits of its register, in the low part of a `uint64_t`.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "program.h"

namespace kernrec {

enum class NumberType : uint8_t {
    kB1,
    kS4,
    kU4,
    kS8,
    kU8,
    kS16,
    kU16,
    kS32,
    kU32,
    kS64,
    kU64,  // integers
    kF16,
    kBf16,
    kTf32,
    kF32,
    kF64,  // floating point
    kE4m3,
    kE5m2,
    kE2m3,
    kE3m2,
    kE2m1,
    kUe8m0,
    kUe4m3,  // 8 bits and less
};

enum class Rounding : uint8_t {
    kNearestEven,  // .rn
    kNearestAway,  // .rna: ties away from zero
    kZero,  // .rz
    kDown,  // .rm
    kUp,  // .rp
};

template <class To, class From>
To bit_cast(const From& from) {
    static_assert(sizeof(To) == sizeof(From), "both types have the same size");
    To to;
    std::memcpy(&to, &from, sizeof to);
    return to;
}

// Name and bits of each type. A tf32 number takes a 32-bit register.
struct NumberName {
    const char* name;
    int bits;
};
inline constexpr NumberName kNumbers[] = {
    {"b1", 1},   {"s4", 4},   {"u4", 4},   {"s8", 8},   {"u8", 8},    {"s16", 16},  {"u16", 16}, {"s32", 32},
    {"u32", 32}, {"s64", 64}, {"u64", 64}, {"f16", 16}, {"bf16", 16}, {"tf32", 32}, {"f32", 32}, {"f64", 64},
    {"e4m3", 8}, {"e5m2", 8}, {"e2m3", 6}, {"e3m2", 6}, {"e2m1", 4},  {"ue8m0", 8}, {"ue4m3", 8}};
constexpr int number_bits(NumberType type) { return kNumbers[size_t(type)].bits; }
constexpr const char* number_name(NumberType type) { return kNumbers[size_t(type)].name; }

// Return the type of a PTX name, or throw Unsupported. Bit types (b8 to b64) are unsigned integers.
NumberType number_type(const std::string& name);

// Return the exact value of a code of any type with at most 32 bits, or of f64.
double to_double(NumberType type, uint64_t bits);

// Return the code of a number rounded to nearest, ties to even; NaN becomes the canonical NaN.
uint64_t from_double(NumberType type, double value);

inline float f16_to_f32(uint16_t bits) {
    // Scale by 2^112, because f32 has a larger exponent bias. This is exact even for subnormal numbers.
    const uint32_t magnitude = uint32_t(bits & 0x7FFF) << 13;
    const float scaled = bit_cast<float>(magnitude) * 0x1p112f;
    const uint32_t is_special = ((bits & 0x7C00u) + 0x400) >> 15;  // compilers do not vectorize a comparison here
    return bit_cast<float>(bit_cast<uint32_t>(scaled) | is_special * 0x7F800000 | uint32_t(bits & 0x8000) << 16);
}

inline float bf16_to_f32(uint16_t bits) { return bit_cast<float>(uint32_t(bits) << 16); }

inline uint16_t f64_to_f16(double value) { return uint16_t(from_double(NumberType::kF16, value)); }

// Return a table of the values of all codes of a type with at most 8 bits.
const float* small_values(NumberType type);

// Parsed `cvt` instruction.
struct Conversion {
    NumberType to;
    NumberType from;
    Rounding rounding = Rounding::kNearestEven;
    bool to_integral = false;  // .rni, .rzi, .rmi, .rpi: round to an integer
    bool flushes = false;  // .ftz: flush subnormal f32 to zeros of the same sign
    bool saturates = false;  // .sat: to the range of an integer, or to [0, 1]
    bool relu = false;  // .relu: negative numbers become zero
    int sources = 1;  // source registers: two for a pair of f32
    bool is_pair = false;  // to a packed pair, from two registers or the halves of one
};

// Parse the modifiers of `cvt`: rounding and flags, result type, source type.
Conversion conversion_form(const Modifiers& modifiers);

// Convert one number (PTX ISA, section "cvt"). Ignore bits above the number.
uint64_t convert(const Conversion& conversion, uint64_t bits);

}  // namespace kernrec
