// Number formats of PTX, and conversions between them: see the header.
#include "number_formats.h"

#include <array>
#include <cmath>
#include <limits>
#include <map>
#include <utility>

namespace kernrec {
namespace {

// Binary floating-point format with a sign bit above exponent and mantissa.
struct FloatFormat {
    int exponent_bits;
    int mantissa_bits;
    int bias;
    uint64_t largest;  // code of the largest finite number
    uint64_t infinity;  // code of infinity; 0 if there is none
    uint64_t nan;  // code of the canonical NaN; 0 if there is none
    int padding_bits = 0;  // unused bits below the mantissa (tf32 in a 32-bit register)

    constexpr int sign_shift() const { return exponent_bits + mantissa_bits; }
};

// Floating-point formats from kF16 on, in the order of NumberType. PTX ISA, section "Alternate Floating-Point Data
// Formats": e4m3 has NaN and no infinity; e2m3, e3m2 and e2m1 have neither. The canonical NaN of bf16 is 0x7FFF and
// that of tf32 0x7FFFFFFF (PTX ISA, section "cvt").
constexpr FloatFormat kFormats[] = {
    {5, 10, 15, 0x7BFF, 0x7C00, 0x7FFF},
    {8, 7, 127, 0x7F7F, 0x7F80, 0x7FFF},
    {8, 10, 127, 0x3FBFF, 0x3FC00, 0x3FFFF, 13},
    {8, 23, 127, 0x7F7FFFFF, 0x7F800000, 0x7FFFFFFF},
    {11, 52, 1023, 0x7FEFFFFFFFFFFFFF, 0x7FF0000000000000, 0x7FF8000000000000},
    {4, 3, 7, 0x7E, 0, 0x7F},
    {5, 2, 15, 0x7B, 0x7C, 0x7F},
    {2, 3, 1, 0x1F, 0, 0},
    {3, 2, 3, 0x1F, 0, 0},
    {2, 1, 1, 0x7, 0, 0},
};

constexpr std::pair<const char*, NumberType> kNames[] = {
    {"b1", NumberType::kB1},     {"s4", NumberType::kS4},       {"u4", NumberType::kU4},
    {"s8", NumberType::kS8},     {"u8", NumberType::kU8},       {"s16", NumberType::kS16},
    {"u16", NumberType::kU16},   {"s32", NumberType::kS32},     {"u32", NumberType::kU32},
    {"s64", NumberType::kS64},   {"u64", NumberType::kU64},     {"b8", NumberType::kU8},
    {"b16", NumberType::kU16},   {"b32", NumberType::kU32},     {"b64", NumberType::kU64},
    {"f16", NumberType::kF16},   {"bf16", NumberType::kBf16},   {"tf32", NumberType::kTf32},
    {"f32", NumberType::kF32},   {"f64", NumberType::kF64},     {"e4m3", NumberType::kE4m3},
    {"e5m2", NumberType::kE5m2}, {"e2m3", NumberType::kE2m3},   {"e3m2", NumberType::kE3m2},
    {"e2m1", NumberType::kE2m1}, {"ue8m0", NumberType::kUe8m0}, {"ue4m3", NumberType::kUe4m3}};

bool is_float(NumberType type) { return type >= NumberType::kF16; }

bool has_eight_bits(NumberType type) { return type == NumberType::kE4m3 || type == NumberType::kE5m2; }

bool is_signed(NumberType type) {
    return type == NumberType::kS4 || type == NumberType::kS8 || type == NumberType::kS16 || type == NumberType::kS32 ||
           type == NumberType::kS64;
}

uint64_t low_bits(uint64_t bits, int count) { return count == 64 ? bits : bits & ((uint64_t(1) << count) - 1); }

int64_t sign_extended(uint64_t bits, int count) { return int64_t(bits << (64 - count)) >> (64 - count); }

// Finite number: (-1)^negative * significand * 2^exponent.
struct ExactNumber {
    bool negative;
    uint64_t significand;
    int exponent;
};

ExactNumber exact(double value) {
    const uint64_t bits = bit_cast<uint64_t>(value);
    const int exponent = int(bits >> 52 & 0x7FF);
    const uint64_t mantissa = bits & 0xFFFFFFFFFFFFF;
    return {bits >> 63 != 0, exponent ? mantissa | uint64_t(1) << 52 : mantissa, (exponent ? exponent : 1) - 1075};
}

ExactNumber exact(NumberType type, uint64_t bits) {
    const int count = number_bits(type);
    if (!is_signed(type)) return {false, low_bits(bits, count), 0};
    const int64_t value = sign_extended(bits, count);
    return {value < 0, value < 0 ? 0 - uint64_t(value) : uint64_t(value), 0};
}

bool rounds_away(Rounding rounding, bool negative, bool odd, bool above_half, bool half, bool inexact) {
    switch (rounding) {
        case Rounding::kNearestEven: return above_half || (half && odd);
        case Rounding::kNearestAway: return above_half || half;
        case Rounding::kZero: return false;
        case Rounding::kDown: return inexact && negative;
        case Rounding::kUp: return inexact && !negative;
    }
    return false;
}

const FloatFormat& float_format(NumberType type) {
    const bool has_format = type >= NumberType::kF16 && type <= NumberType::kE2m1;
    return kFormats[size_t(has_format ? type : NumberType::kF32) - size_t(NumberType::kF16)];
}

// Round an exact number once. Numbers beyond the largest finite number become infinity. With `saturates`, and in
// formats without infinity, they become the largest finite number.
uint64_t round_to_format(const ExactNumber& number, const FloatFormat& format, Rounding rounding, bool saturates) {
    const uint64_t sign = uint64_t(number.negative) << format.sign_shift();
    if (!number.significand) return sign << format.padding_bits;
    const int exponent = number.exponent + 63 - __builtin_clzll(number.significand);
    const int lowest_exponent = 1 - format.bias;
    const int leading = exponent > lowest_exponent ? exponent : lowest_exponent;
    const int shift = leading - format.mantissa_bits - number.exponent;  // bits beyond the format
    uint64_t kept = 0, rest = 0, half = 0;
    if (shift <= 0) {
        kept = number.significand << -shift;
    } else if (shift < 64) {
        kept = number.significand >> shift;
        rest = low_bits(number.significand, shift);
        half = uint64_t(1) << (shift - 1);
    } else {
        rest = shift == 64 ? number.significand : 1;
        half = shift == 64 ? uint64_t(1) << 63 : 2;
    }
    const bool away = rounds_away(rounding, number.negative, kept & 1, rest > half, half && rest == half, rest != 0);
    uint64_t code = (uint64_t(leading - lowest_exponent) << format.mantissa_bits) + kept + away;
    if (code > format.largest || exponent > format.bias + 1) {
        const bool to_infinity = rounding == Rounding::kNearestEven || rounding == Rounding::kNearestAway ||
                                 rounding == (number.negative ? Rounding::kDown : Rounding::kUp);
        code = format.infinity && !saturates && to_infinity ? format.infinity : format.largest;
    }
    return (sign | code) << format.padding_bits;
}

double rounded_to_integral(double value, Rounding rounding) {
    switch (rounding) {
        case Rounding::kZero: return std::trunc(value);
        case Rounding::kDown: return std::floor(value);
        case Rounding::kUp: return std::ceil(value);
        case Rounding::kNearestAway: return std::round(value);
        case Rounding::kNearestEven: break;
    }
    // Round ties to even, independent of the process's rounding mode.
    const double below = std::floor(value), fraction = value - below;
    const bool up = fraction > 0.5 || (fraction == 0.5 && std::fmod(below, 2.0) != 0.0);
    return std::copysign(up ? below + 1 : below, value);
}

double flushed(double value) { return std::fabs(value) < 0x1p-126 ? std::copysign(0.0, value) : value; }

// Convert a float to an integer: clamp, and convert NaN to 0 (PTX ISA, section "cvt").
uint64_t float_to_integer(double value, NumberType to) {
    const int count = number_bits(to);
    if (std::isnan(value)) return 0;
    const bool negative_range = is_signed(to);
    const double limit = std::ldexp(1.0, negative_range ? count - 1 : count);
    if (value >= limit) return low_bits(~uint64_t(0), negative_range ? count - 1 : count);
    if (negative_range) {
        if (value <= -limit) return uint64_t(1) << (count - 1);
        return low_bits(uint64_t(int64_t(value)), count);
    }
    return value <= 0 ? 0 : low_bits(uint64_t(value), count);
}

uint64_t integer_to_integer(const Conversion& conversion, uint64_t bits) {
    const int count = number_bits(conversion.to), source = number_bits(conversion.from);
    const ExactNumber number = exact(conversion.from, bits);
    if (!conversion.saturates) {
        const uint64_t value =
            is_signed(conversion.from) ? uint64_t(sign_extended(bits, source)) : low_bits(bits, source);
        return low_bits(value, count);
    }
    if (number.negative) {
        if (!is_signed(conversion.to)) return 0;
        const uint64_t most = uint64_t(1) << (count - 1);
        return low_bits(0 - (number.significand < most ? number.significand : most), count);
    }
    const uint64_t most = low_bits(~uint64_t(0), is_signed(conversion.to) ? count - 1 : count);
    return number.significand < most ? number.significand : most;
}

// Convert a NaN to another format. It keeps its sign and highest payload bits, and becomes quiet. bf16, tf32 and 8-bit
// formats use the canonical NaN.
uint64_t converted_nan(const Conversion& conversion, double value, uint64_t bits) {
    const NumberType to = conversion.to;
    if (to == conversion.from && to != NumberType::kBf16) return bits;
    const FloatFormat& format = float_format(to);
    if (to != NumberType::kF16 && to != NumberType::kF32 && to != NumberType::kF64) {
        const uint64_t padding = (uint64_t(1) << format.padding_bits) - 1;
        return format.nan << format.padding_bits | padding;
    }
    const uint64_t wide = bit_cast<uint64_t>(value);
    const uint64_t payload = (wide & 0xFFFFFFFFFFFFF) >> (52 - format.mantissa_bits);
    const uint64_t quiet = uint64_t(1) << (format.mantissa_bits - 1);
    return (wide >> 63) << format.sign_shift() | format.infinity | quiet | payload;
}

// Convert to e4m3 or e5m2: saturate at the largest finite number, and keep the sign of NaN (PTX ISA, section
// "cvt", `.satfinite`).
uint32_t to_eight_bits(NumberType to, double value, bool relu) {
    const FloatFormat& format = float_format(to);
    const uint32_t sign = uint32_t(std::signbit(value)) << 7;
    if (std::isnan(value)) return sign | uint32_t(format.nan);
    if (relu && value <= 0) return 0;
    if (std::isinf(value)) return sign | uint32_t(format.largest);
    return uint32_t(round_to_format(exact(value), format, Rounding::kNearestEven, true));
}

}  // namespace

NumberType number_type(const std::string& name) {
    for (const auto& [text, type] : kNames)
        if (name == text) return type;
    refuse("type ." + name);
}

const char* number_name(NumberType type) {
    for (const auto& [text, other] : kNames)
        if (type == other) return text;
    return "";
}

double to_double(NumberType type, uint64_t bits) {
    switch (type) {
        case NumberType::kF64: return bit_cast<double>(bits);
        case NumberType::kF32: return bit_cast<float>(uint32_t(bits));
        case NumberType::kTf32: return bit_cast<float>(uint32_t(bits) & 0xFFFFE000u);
        case NumberType::kF16: return f16_to_f32(uint16_t(bits));
        case NumberType::kBf16: return bf16_to_f32(uint16_t(bits));
        case NumberType::kUe8m0:
            return (bits & 0xFF) == 0xFF ? std::numeric_limits<double>::quiet_NaN()
                                         : std::ldexp(1.0, int(bits & 0xFF) - 127);
        case NumberType::kUe4m3: return to_double(NumberType::kE4m3, bits & 0x7F);
        default: break;
    }
    const FloatFormat& format = float_format(type);
    const uint64_t magnitude = low_bits(bits, format.sign_shift());
    const double sign = bits >> format.sign_shift() & 1 ? -1.0 : 1.0;
    if (format.infinity && magnitude == format.infinity) return sign * std::numeric_limits<double>::infinity();
    if (format.nan && magnitude > format.largest) return std::copysign(std::numeric_limits<double>::quiet_NaN(), sign);
    const int exponent = int(magnitude >> format.mantissa_bits);
    const uint64_t mantissa = low_bits(magnitude, format.mantissa_bits);
    const uint64_t significand = exponent ? mantissa | uint64_t(1) << format.mantissa_bits : mantissa;
    return sign * std::ldexp(double(significand), (exponent ? exponent : 1) - format.bias - format.mantissa_bits);
}

uint64_t from_double(NumberType type, double value) {
    if (type == NumberType::kF64) return bit_cast<uint64_t>(value);
    const FloatFormat& format = float_format(type);
    if (std::isnan(value)) return format.nan << format.padding_bits | ((uint64_t(1) << format.padding_bits) - 1);
    if (type == NumberType::kF32) return bit_cast<uint32_t>(float(value));
    if (std::isinf(value)) {
        const uint64_t code = format.infinity ? format.infinity : format.largest;
        return (uint64_t(value < 0) << format.sign_shift() | code) << format.padding_bits;
    }
    return round_to_format(exact(value), format, Rounding::kNearestEven, false);
}

const float* small_float_values(NumberType type) {
    struct Tables {
        std::array<std::array<float, 256>, 5> values;  // of e4m3, e5m2, e2m3, e3m2 and e2m1
        Tables() : values() {
            for (size_t i = 0; i < values.size(); ++i) {
                const auto type = NumberType(size_t(NumberType::kE4m3) + i);
                for (size_t code = 0; code < size_t(1) << number_bits(type); ++code)
                    values[i][code] = float(to_double(type, code));
            }
        }
    };
    static const Tables tables;
    return tables.values[size_t(type) - size_t(NumberType::kE4m3)].data();
}

Conversion conversion_form(const Modifiers& modifiers) {
    static const std::map<std::string, Rounding> kRoundings = {{"rn", Rounding::kNearestEven},
                                                               {"rna", Rounding::kNearestAway},
                                                               {"rz", Rounding::kZero},
                                                               {"rm", Rounding::kDown},
                                                               {"rp", Rounding::kUp}};
    if (modifiers.size() < 2) refuse();
    Conversion form{};
    std::string to = modifiers[modifiers.size() - 2], from = modifiers.back();
    const auto is_pair = [](std::string& name) {
        const bool pair = name.size() > 2 && name.compare(name.size() - 2, 2, "x2") == 0;
        if (pair) name.resize(name.size() - 2);
        return pair;
    };
    const bool pair_to = is_pair(to), pair_from = is_pair(from);
    form.to = number_type(to);
    form.from = number_type(from);
    form.packed = pair_from;
    form.sources = pair_to && !pair_from ? 2 : 1;
    bool satfinite = false, rounds = false;
    for (size_t i = 0; i + 2 < modifiers.size(); ++i) {
        const std::string& mark = modifiers[i];
        const bool integral = mark.size() == 3 && mark.back() == 'i';
        const auto rounding = kRoundings.find(integral ? mark.substr(0, 2) : mark);
        if (mark == "ftz") form.flushes = true;
        else if (mark == "sat") form.saturates = true;
        else if (mark == "relu") form.relu = true;
        else if (mark == "satfinite") satfinite = true;
        else if (rounding == kRoundings.end()) refuse();
        else form.rounding = rounding->second, form.to_integral = integral, rounds = true;
    }
    const bool eight_to = has_eight_bits(form.to), eight_from = has_eight_bits(form.from);
    if (eight_to || eight_from) {
        const bool nearest =
            form.rounding == Rounding::kNearestEven && !form.to_integral && !form.flushes && !form.saturates;
        const bool narrows = eight_to && pair_to && satfinite &&
                             (pair_from ? form.from == NumberType::kF16 : form.from == NumberType::kF32);
        const bool widens = eight_from && pair_from && pair_to && form.to == NumberType::kF16 && !satfinite;
        if (!nearest || !(narrows || widens)) refuse();
        return form;
    }
    const bool pair_of_halves = pair_to && (form.to == NumberType::kF16 || form.to == NumberType::kBf16);
    if (satfinite || pair_from || form.from == NumberType::kTf32 ||
        (pair_to && !(pair_of_halves && form.from == NumberType::kF32)) ||
        (form.to == NumberType::kTf32 && form.from != NumberType::kF32) || number_bits(form.to) < 8 ||
        number_bits(form.from) < 8 || form.to > NumberType::kF64 || form.from > NumberType::kF64)
        refuse();
    if (is_float(form.from) && !is_float(form.to) && !(rounds && form.to_integral)) refuse("no rounding");
    return form;
}

uint64_t convert(const Conversion& conversion, uint64_t bits) {
    const NumberType to = conversion.to, from = conversion.from;
    const FloatFormat& format = float_format(to);
    if (!is_float(from)) {
        if (!is_float(to)) return integer_to_integer(conversion, bits);
        ExactNumber number = exact(from, bits);
        if (number.negative && (conversion.saturates || conversion.relu)) number = {false, 0, 0};
        if (conversion.saturates && number.significand) number.significand = 1;
        return round_to_format(number, format, conversion.rounding, false);
    }
    double value = to_double(from, bits);
    if (conversion.flushes && from == NumberType::kF32) value = flushed(value);
    if (conversion.to_integral) value = rounded_to_integral(value, conversion.rounding);
    if (!is_float(to)) return float_to_integer(value, to);
    if (conversion.saturates) value = std::isnan(value) || value < 0 ? 0.0 : value > 1 ? 1.0 : value;
    if (conversion.relu && value < 0) value = 0.0;
    if (std::isnan(value)) return converted_nan(conversion, value, bits);
    const Rounding rounding = conversion.to_integral ? Rounding::kNearestEven : conversion.rounding;
    uint64_t result;
    if (std::isinf(value))
        result = (uint64_t(value < 0) << format.sign_shift() | format.infinity) << format.padding_bits;
    else result = round_to_format(exact(value), format, rounding, false);
    if (conversion.flushes && to == NumberType::kF32 && (result & 0x7F800000) == 0) result &= 0x80000000;
    return result;
}

uint32_t convert_pair(const Conversion& conversion, uint32_t high, uint32_t low) {
    if (!has_eight_bits(conversion.to))
        return uint32_t(convert(conversion, high)) << 16 | uint32_t(convert(conversion, low));
    return to_eight_bits(conversion.to, bit_cast<float>(high), conversion.relu) << 8 |
           to_eight_bits(conversion.to, bit_cast<float>(low), conversion.relu);
}

uint32_t convert_packed(const Conversion& conversion, uint32_t pair) {
    if (has_eight_bits(conversion.to))
        return to_eight_bits(conversion.to, f16_to_f32(uint16_t(pair >> 16)), conversion.relu) << 8 |
               to_eight_bits(conversion.to, f16_to_f32(uint16_t(pair)), conversion.relu);
    uint32_t result = 0;
    for (int shift : {8, 0}) {
        const uint32_t code = pair >> shift & 0xFF;
        const double value = to_double(conversion.from, code);
        uint32_t half = code << 8;  // e5m2 is the upper byte of f16
        if (conversion.relu && value <= 0) half = 0;
        else if (conversion.from == NumberType::kE4m3)
            half = uint32_t(convert({conversion.to, NumberType::kF64}, bit_cast<uint64_t>(value)));
        result = result << 16 | half;
    }
    return result;
}

}  // namespace kernrec
