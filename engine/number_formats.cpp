// Number formats of PTX, and conversions between them: see the header.
#include "number_formats.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <iterator>
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

bool is_float(NumberType type) { return type >= NumberType::kF16; }

bool has_eight_bits(NumberType type) { return type == NumberType::kE4m3 || type == NumberType::kE5m2; }

bool is_signed(NumberType type) { return number_name(type)[0] == 's'; }

uint64_t low_bits(uint64_t bits, int count) { return count == 64 ? bits : bits & ((uint64_t(1) << count) - 1); }

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

__int128 integer_value(NumberType type, uint64_t bits) {
    const int unused = 64 - number_bits(type);
    return is_signed(type) ? __int128(int64_t(bits << unused) >> unused) : __int128(bits << unused >> unused);
}

ExactNumber exact(NumberType type, uint64_t bits) {
    const __int128 value = integer_value(type, bits);
    return {value < 0, uint64_t(value < 0 ? -value : value), 0};
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
    const auto scaled = static_cast<unsigned __int128>(number.significand) << 64 >> std::clamp(shift, 0, 64);
    const uint64_t kept = uint64_t(scaled >> 64) << std::max(-shift, 0), half = uint64_t(1) << 63;
    const uint64_t rest = shift > 64 ? 1 : uint64_t(scaled);  // far below the last place, any nonzero rest rounds alike
    const bool away = rounds_away(rounding, number.negative, kept & 1, rest > half, rest == half, rest != 0);
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
    const int count = number_bits(to), magnitude = is_signed(to) ? count - 1 : count;  // bits
    const double limit = std::ldexp(1.0, magnitude), least = is_signed(to) ? -limit : 0;
    if (std::isnan(value)) return 0;
    if (value >= limit) return low_bits(~uint64_t(0), magnitude);
    value = std::max(value, least);
    return low_bits(is_signed(to) ? uint64_t(int64_t(value)) : uint64_t(value), count);
}

uint64_t integer_to_integer(const Conversion& conversion, uint64_t bits) {
    const int count = number_bits(conversion.to);
    const __int128 value = integer_value(conversion.from, bits);
    const __int128 least = is_signed(conversion.to) ? -(__int128(1) << (count - 1)) : 0;
    const __int128 most = least + (__int128(1) << count) - 1;
    return low_bits(uint64_t(conversion.saturates ? std::clamp(value, least, most) : value), count);
}

// Round a number that is not NaN. Infinity becomes the largest finite number as in `round_to_format`.
uint64_t encoded(double value, const FloatFormat& format, Rounding rounding, bool saturates) {
    if (!std::isinf(value)) return round_to_format(exact(value), format, rounding, saturates);
    const uint64_t code = format.infinity && !saturates ? format.infinity : format.largest;
    return (uint64_t(value < 0) << format.sign_shift() | code) << format.padding_bits;
}

uint64_t canonical_nan(const FloatFormat& format) {
    return format.nan << format.padding_bits | ((uint64_t(1) << format.padding_bits) - 1);
}

// Convert a NaN to another format. The result is quiet and keeps the sign and the highest payload bits. Exceptions:
// bf16 and tf32 results are the canonical NaN, and 8-bit results are the canonical NaN with the sign.
uint64_t converted_nan(const Conversion& conversion, double value, uint64_t bits) {
    const NumberType to = conversion.to;
    if (to == conversion.from && to != NumberType::kBf16) return bits;
    if (conversion.from == NumberType::kE5m2) return (bits & 0xFF) << 8;  // e5m2 is the upper byte of f16
    const FloatFormat& format = float_format(to);
    const uint64_t wide = bit_cast<uint64_t>(value), sign = (wide >> 63) << format.sign_shift();
    if (has_eight_bits(to)) return sign | format.nan;
    if (to == NumberType::kBf16 || to == NumberType::kTf32) return canonical_nan(format);
    const uint64_t payload = (wide & 0xFFFFFFFFFFFFF) >> (52 - format.mantissa_bits);
    const uint64_t quiet = uint64_t(1) << (format.mantissa_bits - 1);
    return sign | format.infinity | quiet | payload;
}

}  // namespace

NumberType number_type(const std::string& name) {
    const bool is_bits = name == "b8" || name == "b16" || name == "b32" || name == "b64";
    for (size_t i = 0; i < std::size(kNumbers); ++i)
        if ((is_bits ? "u" + name.substr(1) : name) == kNumbers[i].name) return NumberType(i);
    refuse("type ." + name);
}

double to_double(NumberType type, uint64_t bits) {
    if (!is_float(type)) return double(integer_value(type, bits));
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
    if (std::isnan(value)) return canonical_nan(format);
    if (type == NumberType::kF32) return bit_cast<uint32_t>(float(value));
    return encoded(value, format, Rounding::kNearestEven, false);
}

const float* small_values(NumberType type) {
    static const auto tables = [] {
        std::array<std::array<float, 256>, std::size(kNumbers)> values{};
        for (size_t i = 0; i < values.size(); ++i)
            for (size_t code = 0; kNumbers[i].bits <= 8 && code < size_t(1) << kNumbers[i].bits; ++code)
                values[i][code] = float(to_double(NumberType(i), code));
        return values;
    }();
    return tables[size_t(type)].data();
}

const std::map<std::string, Rounding> kRoundings = {{"rn", Rounding::kNearestEven},
                                                    {"rna", Rounding::kNearestAway},
                                                    {"rz", Rounding::kZero},
                                                    {"rm", Rounding::kDown},
                                                    {"rp", Rounding::kUp}};

Conversion conversion_form(const Modifiers& modifiers) {
    Conversion form{};
    std::string from = modifiers.back(), to = modifiers[modifiers.size() - 2];
    const auto is_pair = [](std::string& name) {
        const bool pair = name.size() > 2 && name.compare(name.size() - 2, 2, "x2") == 0;
        if (pair) name.resize(name.size() - 2);
        return pair;
    };
    const bool pair_to = is_pair(to), pair_from = is_pair(from);
    form.to = number_type(to);
    form.from = number_type(from);
    form.is_pair = pair_to;
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
    const auto is_plain = [](NumberType type) { return type >= NumberType::kS8 && type <= NumberType::kF64; };
    const bool to_halves =
        (form.to == NumberType::kF16 || form.to == NumberType::kBf16) && form.from == NumberType::kF32;
    if (!is_plain(form.to) || !is_plain(form.from) || satfinite || pair_from || (pair_to && !to_halves) ||
        form.from == NumberType::kTf32 || (form.to == NumberType::kTf32 && form.from != NumberType::kF32))
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
    const bool eight = has_eight_bits(to) || has_eight_bits(from);
    if (conversion.relu && (value < 0 || (eight && value == 0))) value = 0.0;
    if (std::isnan(value)) return converted_nan(conversion, value, bits);
    const Rounding rounding = conversion.to_integral ? Rounding::kNearestEven : conversion.rounding;
    const uint64_t result = encoded(value, format, rounding, has_eight_bits(to));
    const bool subnormal = to == NumberType::kF32 && (result & 0x7F800000) == 0;
    return conversion.flushes && subnormal ? result & 0x80000000 : result;
}

}  // namespace kernrec
