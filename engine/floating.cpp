// Floating-point arithmetic and conversions (PTX ISA, sections 9.7.3, 9.7.4 and 9.7.9).
//
// `add`, `sub`, `mul`, `div.rn`, `sqrt.rn` and `rcp.rn` round once, as IEEE 754 requires. `fma` of f32 adds the exact
// product in double. If the rounded sum is a tie of f32, the rounding error decides. bfloat16 rounds once, because its
// sums keep their rounding error. The `approx` instructions return the rounded double result, which is more accurate
// than the hardware's tables.
#include <cfenv>
#include <cmath>
#include <limits>

#include "decoder.h"
#include "lanes.h"
#include "number_formats.h"

namespace kernrec {

bool is_integer_type(const std::string& type);
void integer_arithmetic(Decoder& decoder, const Source& ins);
void carrying(Decoder& decoder, const Source& ins);

namespace {

struct Half {
    uint16_t bits;
};
struct Bfloat {
    uint16_t bits;
};

// Convert f32 to f16 with ties to even.
uint16_t f32_to_f16(float value) {
    uint32_t bits = bit_cast<uint32_t>(value);
    const uint32_t sign = bits >> 16 & 0x8000;
    bits &= 0x7FFFFFFF;
    if (bits > 0x7F800000) return uint16_t(sign | 0x7E00 | (bits >> 13 & 0x3FF));  // quiet NaN with its payload
    if (bits >= 0x477FF000) return uint16_t(sign | 0x7C00);  // 65520 or more: infinity
    if (bits < 0x38800000) {  // subnormal: the addition rounds
        const float scaled = bit_cast<float>(bits) + 0.5f;
        return uint16_t(sign | (bit_cast<uint32_t>(scaled) - 0x3F000000));
    }
    return uint16_t(sign | ((bits - 0x38000000 + 0xFFF + (bits >> 13 & 1)) >> 13));
}

void two_sum(double a, double b, double& total, double& lost) {
    total = a + b;
    const double back = total - a;
    lost = (a - (total - back)) + (b - back);
}

// Round `exact + lost` to odd in f32: toward 0, with the last bit set if inexact (Boldo and Melquiond, 2005).
float odd_f32(double exact, double lost) {
    if (std::isfinite(exact) && lost != 0) {
        const bool toward = (lost < 0) != std::signbit(exact);
        exact = bit_cast<double>((bit_cast<int64_t>(exact) - int64_t(toward)) | 1);
    }
    const float near = float(exact);
    const double back = near;
    if (!std::isfinite(exact) || back == exact) return near;
    return bit_cast<float>((bit_cast<int32_t>(near) - int32_t(std::fabs(back) > std::fabs(exact))) | 1);
}

uint16_t exact_to_bf16(double exact, double lost = 0) {
    const float odd = odd_f32(exact, lost);
    if (std::isnan(odd)) return 0x7FFF;
    const uint32_t bits = bit_cast<uint32_t>(odd);
    return uint16_t((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
}

template <class T>
struct Format {  // of f32 and f64
    using Value = T;
    static T value(T bits) { return bits; }
    static T of(double value) { return T(value); }
};
template <>
struct Format<Half> {
    using Value = float;
    static float value(Half half) { return f16_to_f32(half.bits); }
    static Half of(float value) { return {f32_to_f16(value)}; }
    static Half of(double value) { return {f64_to_f16(value)}; }
};
template <>
struct Format<Bfloat> {
    using Value = double;
    static double value(Bfloat number) { return bf16_to_f32(number.bits); }
    static Bfloat of(double value) { return {exact_to_bf16(value)}; }
};

template <class T>
using Value = typename Format<T>::Value;

template <class V>
V least_of(V a, V b) {
    return std::isnan(b) ? a : a < b ? a : b;
}
template <class V>
V most_of(V a, V b) {
    return std::isnan(b) ? a : a > b ? a : b;
}

template <class T>
struct Add {
    static T apply(T a, T b) { return Format<T>::of(Format<T>::value(a) + Format<T>::value(b)); }
};
template <>
struct Add<Bfloat> {
    static Bfloat apply(Bfloat a, Bfloat b) {
        double total, lost;
        two_sum(bf16_to_f32(a.bits), bf16_to_f32(b.bits), total, lost);
        return {exact_to_bf16(total, lost)};
    }
};
template <class T>
struct Sub {
    static T apply(T a, T b) { return Format<T>::of(Format<T>::value(a) - Format<T>::value(b)); }
};
template <>
struct Sub<Bfloat> {
    static Bfloat apply(Bfloat a, Bfloat b) { return Add<Bfloat>::apply(a, {uint16_t(b.bits ^ 0x8000)}); }
};
template <class T>
struct Mul {
    static T apply(T a, T b) { return Format<T>::of(Format<T>::value(a) * Format<T>::value(b)); }
};
template <class T>
struct Div {
    static T apply(T a, T b) { return Format<T>::of(Format<T>::value(a) / Format<T>::value(b)); }
};
template <class T>
struct Min {
    static T apply(T a, T b) { return Format<T>::of(least_of(Format<T>::value(a), Format<T>::value(b))); }
};
template <class T>
struct Max {
    static T apply(T a, T b) { return Format<T>::of(most_of(Format<T>::value(a), Format<T>::value(b))); }
};
template <class T>
struct MinNan {
    static T apply(T a, T b) {
        const Value<T> x = Format<T>::value(a), y = Format<T>::value(b);
        return Format<T>::of(std::isnan(x) ? x : x < y ? x : y);
    }
};
template <class T>
struct MaxNan {
    static T apply(T a, T b) {
        const Value<T> x = Format<T>::value(a), y = Format<T>::value(b);
        return Format<T>::of(std::isnan(x) ? x : x > y ? x : y);
    }
};
template <class T>
struct Neg {
    static T apply(T a) {
        if constexpr (std::is_floating_point_v<T>) return -a;
        else return {uint16_t(a.bits ^ 0x8000)};
    }
};
template <class T>
struct Same {
    static T apply(T a) { return a; }
};
template <class T>
struct Abs {
    static T apply(T a) {
        if constexpr (std::is_floating_point_v<T>) return std::fabs(a);
        else return {uint16_t(a.bits & 0x7FFF)};
    }
};
// Flip the sign of a value if another value is negative; NaN does not change.
template <class T>
struct FlipSign {
    static T apply(T value, T by) {
        // Test the sign bit directly, because GCC 12 does not vectorize std::signbit for AVX2.
        using Bits =
            std::conditional_t<sizeof(T) == 2, uint16_t, std::conditional_t<sizeof(T) == 4, uint32_t, uint64_t>>;
        constexpr Bits kSign = Bits(1) << (8 * sizeof(T) - 1);
        if (std::isnan(Format<T>::value(value))) return value;
        return bit_cast<T>(Bits(bit_cast<Bits>(value) ^ (bit_cast<Bits>(by) & kSign)));
    }
};
template <class T>
struct Sqrt {
    static T apply(T a) { return Format<T>::of(std::sqrt(Format<T>::value(a))); }
};
template <class T>
struct Rcp {
    static T apply(T a) { return Format<T>::of(Value<T>(1) / Format<T>::value(a)); }
};
template <class T>
struct Rsqrt {
    static T apply(T a) { return Format<T>::of(1.0 / std::sqrt(double(Format<T>::value(a)))); }
};
template <class T>
struct Sin {
    static T apply(T a) { return Format<T>::of(std::sin(double(Format<T>::value(a)))); }
};
template <class T>
struct Cos {
    static T apply(T a) { return Format<T>::of(std::cos(double(Format<T>::value(a)))); }
};
template <class T>
struct Ex2 {
    static T apply(T a) { return Format<T>::of(std::exp2(double(Format<T>::value(a)))); }
};
template <class T>
struct Lg2 {
    static T apply(T a) { return Format<T>::of(std::log2(double(Format<T>::value(a)))); }
};
template <class T>
struct Tanh {
    static T apply(T a) { return Format<T>::of(std::tanh(double(Format<T>::value(a)))); }
};

template <class T>
struct Fma {
    static T apply(T a, T b, T c) {
        return Format<T>::of(double(Format<T>::value(a)) * double(Format<T>::value(b)) + double(Format<T>::value(c)));
    }
};
template <>
struct Fma<double> {
    static double apply(double a, double b, double c) { return std::fma(a, b, c); }
};
template <>
struct Fma<Bfloat> {
    static Bfloat apply(Bfloat a, Bfloat b, Bfloat c) {
        double total, lost;
        two_sum(double(bf16_to_f32(a.bits)) * bf16_to_f32(b.bits), bf16_to_f32(c.bits), total, lost);
        return {exact_to_bf16(total, lost)};
    }
};
constexpr uint64_t kF32Tail = (1ull << 29) - 1, kF32Tie = 1ull << 28;  // mantissa bits of a double that a float lacks
template <>
struct Fma<float> {
    static float apply(float a, float b, float c) {
        const double product = double(a) * double(b);
        double total = product + double(c);
        if ((bit_cast<uint64_t>(total) & kF32Tail) == kF32Tie) total = decided(product, c, total);
        return float(total);
    }
    // If the rounded sum is a tie of f32, the rounding error decides.
    static double decided(double product, double c, double total) {
        double sum, lost;
        two_sum(product, c, sum, lost);
        if (lost != 0 && lost == lost) total = std::nextafter(total, lost > 0 ? HUGE_VAL : -HUGE_VAL);
        return total;
    }
};

template <class T>
T flushed(T value) {
    if constexpr (std::is_floating_point_v<T>) {
        return std::fabs(value) < std::numeric_limits<T>::min() ? std::copysign(T(0), value) : value;
    } else if constexpr (std::is_same_v<T, Half>) {
        return (value.bits & 0x7C00) ? value : Half{uint16_t(value.bits & 0x8000)};
    } else {
        return (value.bits & 0x7F80) ? value : Bfloat{uint16_t(value.bits & 0x8000)};
    }
}

// Flush subnormal sources and results to zeros of the same sign (`.ftz`).
template <class Op>
struct Ftz {
    template <class... S>
    static auto apply(S... sources) {
        return flushed(Op::apply(flushed(sources)...));
    }
};

template <class T>
struct Sat {
    static T apply(T a) {
        const Value<T> value = Format<T>::value(a);
        return Format<T>::of(std::isnan(value) ? Value<T>(0)
                             : value < 0       ? Value<T>(0)
                             : value > 1       ? Value<T>(1)
                                               : value);
    }
};
template <class T>
struct Relu {
    static T apply(T a) {
        const Value<T> value = Format<T>::value(a);
        return std::isnan(value) ? a : Format<T>::of(value > 0 ? value : Value<T>(0));
    }
};

// Apply an operation to two numbers in one register.
template <class Op, class T, class Word>
struct Pairs {
    static T part(Word word, uint32_t half) {
        using Bits = std::conditional_t<sizeof(T) == 2, uint16_t, uint32_t>;
        return bit_cast<T>(Bits(word >> half * 8 * sizeof(T)));
    }
    template <class... S>
    static Word apply(S... words) {
        using Bits = std::conditional_t<sizeof(T) == 2, uint16_t, uint32_t>;
        const T low = Op::apply(part(words, 0)...), high = Op::apply(part(words, 1)...);
        return Word(bit_cast<Bits>(low)) | Word(bit_cast<Bits>(high)) << 8 * sizeof(T);
    }
};

template <class Op, class T, int sources>
Run lanewise() {
    if constexpr (sources == 1) return Lanewise<Op, T, T>::run;
    else if constexpr (sources == 2) return Lanewise<Op, T, T, T>::run;
    else return Lanewise<Op, T, T, T, T>::run;
}

// Fused multiply-add of f32; scalar code handles the rare ties.
template <bool ftz>
struct FmaLanes {
    KERNREC_INLINE static void warp(float* d, const float* a, const float* b, const float* c) {
        double products[kWarp], totals[kWarp];
        uint32_t ties = 0;
#pragma GCC ivdep
        for (uint32_t lane = 0; lane < kWarp; lane++) {
            const float x = ftz ? flushed(a[lane]) : a[lane], y = ftz ? flushed(b[lane]) : b[lane];
            const float z = ftz ? flushed(c[lane]) : c[lane];
            products[lane] = double(x) * double(y);
            totals[lane] = products[lane] + double(z);
        }
        for (uint32_t lane = 0; lane < kWarp; lane++)
            ties |= (bit_cast<uint64_t>(totals[lane]) & kF32Tail) == kF32Tie ? 1u : 0u;
        if (ties)
            for (uint32_t lane = 0; lane < kWarp; lane++)
                if ((bit_cast<uint64_t>(totals[lane]) & kF32Tail) == kF32Tie)
                    totals[lane] = Fma<float>::decided(products[lane], ftz ? flushed(c[lane]) : c[lane], totals[lane]);
        for (uint32_t lane = 0; lane < kWarp; lane++)
            d[lane] = ftz ? flushed(float(totals[lane])) : float(totals[lane]);
    }
    KERNREC_INLINE static void each(Batch& batch, const Instruction& ins) {
        float* d = batch.row<float>(ins.d);
        const float *a = batch.row<float>(ins.a), *b = batch.row<float>(ins.b), *c = batch.row<float>(ins.c);
        for (uint32_t i = 0; i < batch.running; i++) {
            const uint32_t mask = batch.mask(i, ins), first = batch.warps()[i] * kWarp;
            if (!mask) continue;
            float result[kWarp];
            warp(result, a + first, b + first, c + first);
            if (mask == ~0u) std::memcpy(d + first, result, sizeof result);
            else put(d + first, result, mask);
        }
    }
    static void plain(Batch& batch, const Instruction& ins) { each(batch, ins); }
    KERNREC_AVX2 static void avx2(Batch& batch, const Instruction& ins) { each(batch, ins); }
    static void run(Batch& batch, const Instruction& ins) { kAvx2 ? avx2(batch, ins) : plain(batch, ins); }
};

// Return the operation on f32 or f64.
template <template <class> class Op, int sources>
Run of_wide_type(const std::string& type, bool ftz) {
    if (type == "f32") return ftz ? lanewise<Ftz<Op<float>>, float, sources>() : lanewise<Op<float>, float, sources>();
    if (type == "f64" && !ftz) return lanewise<Op<double>, double, sources>();
    refuse("the type ." + type);
}

// Return the operation on any floating-point type.
template <template <class> class Op, int sources>
Run of_type(const std::string& type, bool ftz) {
    if (type == "f16") return ftz ? lanewise<Ftz<Op<Half>>, Half, sources>() : lanewise<Op<Half>, Half, sources>();
    if (type == "f16x2")
        return ftz ? lanewise<Pairs<Ftz<Op<Half>>, Half, uint32_t>, uint32_t, sources>()
                   : lanewise<Pairs<Op<Half>, Half, uint32_t>, uint32_t, sources>();
    if (type == "bf16")
        return ftz ? lanewise<Ftz<Op<Bfloat>>, Bfloat, sources>() : lanewise<Op<Bfloat>, Bfloat, sources>();
    if (type == "bf16x2")
        return ftz ? lanewise<Pairs<Ftz<Op<Bfloat>>, Bfloat, uint32_t>, uint32_t, sources>()
                   : lanewise<Pairs<Op<Bfloat>, Bfloat, uint32_t>, uint32_t, sources>();
    if (type == "f32x2" && !ftz) return lanewise<Pairs<Op<float>, float, uint64_t>, uint64_t, sources>();
    return of_wide_type<Op, sources>(type, ftz);
}

// Compute with directed rounding, by setting the CPU's rounding mode.
template <class T>
T directed(uint32_t operation, int direction, T a, T b, T c) {
    volatile T x = a, y = b, z = c, result;
    const int before = std::fegetround();
    std::fesetround(direction);
    switch (operation) {
        case 0: result = x + y; break;
        case 1: result = x - y; break;
        case 2: result = x * y; break;
        case 3: result = x / y; break;
        case 4: result = T(1) / x; break;
        case 5: result = std::sqrt(T(x)); break;
        default: result = std::fma(T(x), T(y), T(z));
    }
    std::fesetround(before);
    return result;
}

template <class T, uint32_t operation, int direction, bool ftz>
struct Directed {
    static T apply(T a, T b = 0, T c = 0) {
        if (ftz) return flushed(directed<T>(operation, direction, flushed(a), flushed(b), flushed(c)));
        return directed<T>(operation, direction, a, b, c);
    }
};

template <class T, uint32_t operation, int sources>
Run directed_run(const std::string& mode, bool ftz) {
    if (mode == "rz")
        return ftz ? lanewise<Directed<T, operation, FE_TOWARDZERO, true>, T, sources>()
                   : lanewise<Directed<T, operation, FE_TOWARDZERO, false>, T, sources>();
    if (mode == "rm")
        return ftz ? lanewise<Directed<T, operation, FE_DOWNWARD, true>, T, sources>()
                   : lanewise<Directed<T, operation, FE_DOWNWARD, false>, T, sources>();
    return ftz ? lanewise<Directed<T, operation, FE_UPWARD, true>, T, sources>()
               : lanewise<Directed<T, operation, FE_UPWARD, false>, T, sources>();
}

template <class T>
Run directed_by_opcode(const std::string& opcode, const std::string& mode, bool ftz) {
    if (opcode == "add") return directed_run<T, 0, 2>(mode, ftz);
    if (opcode == "sub") return directed_run<T, 1, 2>(mode, ftz);
    if (opcode == "mul") return directed_run<T, 2, 2>(mode, ftz);
    if (opcode == "div") return directed_run<T, 3, 2>(mode, ftz);
    if (opcode == "rcp") return directed_run<T, 4, 1>(mode, ftz);
    if (opcode == "sqrt") return directed_run<T, 5, 1>(mode, ftz);
    if (opcode == "fma") return directed_run<T, 6, 3>(mode, ftz);
    refuse("rounding ." + mode);
}

struct Widen {
    static float apply(Half half) { return f16_to_f32(half.bits); }
};
struct WidenBfloat {
    static float apply(Bfloat number) { return bf16_to_f32(number.bits); }
};

Run plain_run(const std::string& opcode, const std::string& type, bool ftz, bool nan) {
    if (opcode == "fma" && type == "f32") return ftz ? FmaLanes<true>::run : FmaLanes<false>::run;
    if (opcode == "fma") return of_type<Fma, 3>(type, ftz);
    if (opcode == "add") return of_type<Add, 2>(type, ftz);
    if (opcode == "sub") return of_type<Sub, 2>(type, ftz);
    if (opcode == "mul") return of_type<Mul, 2>(type, ftz);
    if (opcode == "div") return of_wide_type<Div, 2>(type, ftz);
    if (opcode == "min") return nan ? of_type<MinNan, 2>(type, ftz) : of_type<Min, 2>(type, ftz);
    if (opcode == "max") return nan ? of_type<MaxNan, 2>(type, ftz) : of_type<Max, 2>(type, ftz);
    if (opcode == "neg") return of_type<Neg, 1>(type, ftz);
    if (opcode == "abs") return of_type<Abs, 1>(type, ftz);
    if (opcode == "sqrt") return of_wide_type<Sqrt, 1>(type, ftz);
    if (type == "f64" && ftz && opcode == "rcp") return lanewise<Ftz<Rcp<double>>, double, 1>();
    if (type == "f64" && ftz && opcode == "rsqrt") return lanewise<Ftz<Rsqrt<double>>, double, 1>();
    if (opcode == "rcp") return of_wide_type<Rcp, 1>(type, ftz);
    if (opcode == "rsqrt") return of_wide_type<Rsqrt, 1>(type, ftz);
    if (opcode == "sin") return of_wide_type<Sin, 1>(type, ftz);
    if (opcode == "cos") return of_wide_type<Cos, 1>(type, ftz);
    if (opcode == "ex2") return of_type<Ex2, 1>(type, ftz);
    if (opcode == "lg2") return of_wide_type<Lg2, 1>(type, ftz);
    if (opcode == "tanh") return of_type<Tanh, 1>(type, ftz);
    refuse();
}

bool is_float_type(const std::string& type) {
    for (const char* name : {"f16", "f16x2", "bf16", "bf16x2", "f32", "f32x2", "f64"})
        if (type == name) return true;
    return false;
}

void floating(Decoder& decoder, const Source& ins, const std::string& opcode, size_t sources) {
    std::vector<std::string> marks = ins.modifiers;
    std::string type = marks.back(), half;
    marks.pop_back();
    if ((type == "f16" || type == "bf16") && !marks.empty() && marks.back() == "f32" &&
        (opcode == "add" || opcode == "sub" || opcode == "fma")) {
        half = type;
        type = "f32";
        marks.pop_back();
    }
    if (!is_float_type(type)) refuse("the type ." + type);
    if (ins.operands.size() != sources + 1) refuse(std::to_string(ins.operands.size() - 1) + " sources");
    std::string mode = "rn";
    bool ftz = false, sat = false, nan = false, relu = false, magnitudes = false, signs = false;
    const bool extreme = opcode == "min" || opcode == "max";
    for (const std::string& mark : marks) {
        if (mark == "rz" || mark == "rm" || mark == "rp") mode = mark;
        else if (mark == "ftz") ftz = true;
        else if (mark == "sat") sat = true;
        else if (mark == "NaN") nan = true;
        else if (mark == "relu") relu = true;
        else if (mark == "abs" && extreme) magnitudes = true;
        else if (mark == "xorsign" && extreme) signs = true;
        else if (mark != "rn" && mark != "approx" && mark != "full") refuse("." + mark);
    }
    Run run;
    if (mode == "rn") run = plain_run(opcode, type, ftz, nan);
    else if (type == "f32") run = directed_by_opcode<float>(opcode, mode, ftz);
    else if (type == "f64" && !ftz) run = directed_by_opcode<double>(opcode, mode, false);
    else refuse("rounding ." + mode + " of ." + type);
    Row rows[3];
    for (size_t i = 0; i < sources; i++) {
        if (half.empty() || i + 1 == sources) {
            rows[i] = decoder.read(ins.operands[i + 1], type);
            continue;
        }
        const Row narrow = decoder.read(ins.operands[i + 1], half);
        rows[i] = decoder.scratch(32);
        Instruction& made =
            decoder.emit(half == "f16" ? Lanewise<Widen, float, Half>::run : Lanewise<WidenBfloat, float, Bfloat>::run);
        made.a = narrow;
        made.d = rows[i];
    }
    const Row d = decoder.write(ins.operands[0], type);
    // A destination may also be a source, so compute intermediate results in a scratch register.
    const bool several = extreme && (sources == 3 || magnitudes);
    const Row first = sat || relu || several ? decoder.scratch(width_of(type)) : d;
    const auto emit = [&](Run of, Row to, Row a, Row b = {}, Row c = {}) {
        Instruction& made = decoder.emit(of);
        made.d = to;
        made.a = a;
        made.b = b;
        made.c = c;
    };
    if (!several) {
        emit(run, first, rows[0], rows[1], rows[2]);
    } else {
        Row values[3];
        for (size_t i = 0; i < sources; i++) {
            values[i] = magnitudes ? decoder.scratch(width_of(type)) : rows[i];
            if (magnitudes) emit(of_type<Abs, 1>(type, false), values[i], rows[i]);
        }
        emit(run, first, values[0], values[1]);
        if (sources == 3) emit(run, first, first, values[2]);
        for (size_t i = 0; i < sources && signs; i++) emit(of_type<FlipSign, 2>(type, false), first, first, rows[i]);
        if (!sat && !relu) emit(of_type<Same, 1>(type, false), d, first);
    }
    if (sat) {
        Instruction& after = decoder.emit(of_type<Sat, 1>(type, false));
        after.a = first;
        after.d = relu ? first : d;
    }
    if (relu) {
        Instruction& after = decoder.emit(of_type<Relu, 1>(type, false));
        after.a = first;
        after.d = d;
    }
}

const Registration kArithmetic(
    {"add", "sub", "min", "max", "neg", "abs", "mul", "mad", "div", "fma"}, [](Decoder& decoder, const Source& ins) {
        const std::string &opcode = ins.opcode, &type = ins.type();
        if (ins.has("cc") && (opcode == "add" || opcode == "sub" || opcode == "mad")) return carrying(decoder, ins);
        if (is_integer_type(type) && opcode != "fma") return integer_arithmetic(decoder, ins);
        if (opcode == "mad" || opcode == "fma") return floating(decoder, ins, "fma", 3);
        const bool three = (opcode == "min" || opcode == "max") && type == "f32" && ins.operands.size() == 4;
        floating(decoder, ins, opcode, opcode == "neg" || opcode == "abs" ? 1 : three ? 3 : 2);
    });

const Registration kFunctions({"sqrt", "rcp", "rsqrt", "sin", "cos", "ex2", "lg2", "tanh"},
                              [](Decoder& decoder, const Source& ins) { floating(decoder, ins, ins.opcode, 1); });

template <class T>
struct Copysign {
    static T apply(T a, T b) { return std::copysign(b, a); }
};
const Registration kCopysign({"copysign"}, [](Decoder& decoder, const Source& ins) {
    const std::string& type = ins.type();
    if ((type != "f32" && type != "f64") || ins.operands.size() != 3) refuse();
    const Row a = decoder.read(ins.operands[1], type), b = decoder.read(ins.operands[2], type);
    const Row d = decoder.write(ins.operands[0], type);
    Instruction& made =
        decoder.emit(type == "f32" ? lanewise<Copysign<float>, float, 2>() : lanewise<Copysign<double>, double, 2>());
    made.d = d;
    made.a = a;
    made.b = b;
});

template <class T, int test>
struct Test {
    static bool apply(T a) {
        const bool normal = std::isfinite(a) && !(std::fabs(a) < std::numeric_limits<T>::min());
        switch (test) {
            case 0: return std::isfinite(a);
            case 1: return std::isinf(a);
            case 2: return !std::isnan(a);
            case 3: return std::isnan(a);
            case 4: return normal;
            default: return a != 0 && std::fabs(a) < std::numeric_limits<T>::min();
        }
    }
};
template <class T>
Run test_run(const std::string& name) {
    if (name == "finite") return Compare<Test<T, 0>, T>::run;
    if (name == "infinite") return Compare<Test<T, 1>, T>::run;
    if (name == "number") return Compare<Test<T, 2>, T>::run;
    if (name == "notanumber") return Compare<Test<T, 3>, T>::run;
    if (name == "normal") return Compare<Test<T, 4>, T>::run;
    if (name == "subnormal") return Compare<Test<T, 5>, T>::run;
    refuse("." + name);
}
const Registration kTest({"testp"}, [](Decoder& decoder, const Source& ins) {
    const std::string& type = ins.type();
    if ((type != "f32" && type != "f64") || ins.modifiers.size() != 2 || ins.operands.size() != 2) refuse();
    const Row a = decoder.read(ins.operands[1], type), d = decoder.write(ins.operands[0], "pred");
    Instruction& made =
        decoder.emit(type == "f32" ? test_run<float>(ins.modifiers[0]) : test_run<double>(ins.modifiers[0]));
    made.d = d;
    made.a = a;
});

// Conversions: frequent ones as vector code, all others lane by lane.

template <class From, class To>
struct Cast {
    static To apply(From value) { return static_cast<To>(value); }
};
struct ToF32 {
    static float apply(Half half) { return f16_to_f32(half.bits); }
};
struct ToF16 {
    static Half apply(float value) { return {f32_to_f16(value)}; }
};
template <class T>
struct ToInteger {  // toward 0, clamped; NaN becomes 0
    static T apply(float value) {
        const double whole = std::trunc(double(value));
        if (std::isnan(whole)) return 0;
        if (whole >= double(std::numeric_limits<T>::max())) return std::numeric_limits<T>::max();
        if (whole <= double(std::numeric_limits<T>::min())) return std::numeric_limits<T>::min();
        return T(whole);
    }
};

template <class From>
Run integer_cast(const std::string& to) {
    const bool is_signed = to[0] == 's';
    switch (width_of(to)) {
        case 8: return Lanewise<Cast<From, uint8_t>, uint8_t, From>::run;
        case 16: return Lanewise<Cast<From, uint16_t>, uint16_t, From>::run;
        case 32: return Lanewise<Cast<From, uint32_t>, uint32_t, From>::run;
        default: (void)is_signed; return Lanewise<Cast<From, uint64_t>, uint64_t, From>::run;
    }
}

Run fast_conversion(const std::string& to, const std::string& from, const std::vector<std::string>& marks) {
    const bool from_integer = is_integer_type(from), to_integer = is_integer_type(to);
    if (from_integer && to_integer && marks.empty()) {
        if (from == "u8") return integer_cast<uint8_t>(to);
        if (from == "s8") return integer_cast<int8_t>(to);
        if (from == "u16") return integer_cast<uint16_t>(to);
        if (from == "s16") return integer_cast<int16_t>(to);
        if (from == "u32") return integer_cast<uint32_t>(to);
        if (from == "s32") return integer_cast<int32_t>(to);
        if (from == "u64") return integer_cast<uint64_t>(to);
        if (from == "s64") return integer_cast<int64_t>(to);
    }
    const bool nearest = marks.size() == 1 && marks[0] == "rn";
    if (nearest && to == "f32") {
        if (from == "s32") return Lanewise<Cast<int32_t, float>, float, int32_t>::run;
        if (from == "u32") return Lanewise<Cast<uint32_t, float>, float, uint32_t>::run;
        if (from == "s64") return Lanewise<Cast<int64_t, float>, float, int64_t>::run;
        if (from == "u64") return Lanewise<Cast<uint64_t, float>, float, uint64_t>::run;
        if (from == "f64") return Lanewise<Cast<double, float>, float, double>::run;
    }
    if (nearest && to == "f64") {
        if (from == "s32") return Lanewise<Cast<int32_t, double>, double, int32_t>::run;
        if (from == "u32") return Lanewise<Cast<uint32_t, double>, double, uint32_t>::run;
        if (from == "s64") return Lanewise<Cast<int64_t, double>, double, int64_t>::run;
        if (from == "u64") return Lanewise<Cast<uint64_t, double>, double, uint64_t>::run;
    }
    if (nearest && to == "f16" && from == "f32") return Lanewise<ToF16, Half, float>::run;
    if (marks.empty() && to == "f32" && from == "f16") return Lanewise<ToF32, float, Half>::run;
    if (marks.empty() && to == "f64" && from == "f32") return Lanewise<Cast<float, double>, double, float>::run;
    if (marks.size() == 1 && marks[0] == "rzi" && from == "f32") {
        if (to == "s32") return Lanewise<ToInteger<int32_t>, int32_t, float>::run;
        if (to == "u32") return Lanewise<ToInteger<uint32_t>, uint32_t, float>::run;
    }
    return nullptr;
}

template <class D, class S>
void convert_lanes(Batch& batch, const Instruction& ins) {
    Conversion form;
    form.to = NumberType(ins.modes[0]);
    form.from = NumberType(ins.modes[1]);
    form.rounding = Rounding(ins.modes[2]);
    form.to_integral = ins.modes[3];
    form.flushes = ins.modes[4];
    form.saturates = ins.modes[5];
    form.relu = ins.modes[6];
    form.sources = int(ins.modes[7]);
    form.packed = ins.modes[8];
    D* d = batch.row<D>(ins.d);
    const S *a = batch.row<S>(ins.a), *b = ins.b ? batch.row<S>(ins.b) : nullptr;
    each_warp(batch, ins, [&](uint32_t, uint32_t first, uint32_t mask) {
        for (uint32_t rest = mask; rest; rest &= rest - 1) {
            const uint32_t lane = first + __builtin_ctz(rest);
            if (form.sources == 2) d[lane] = D(convert_pair(form, uint32_t(a[lane]), uint32_t(b[lane])));
            else if (form.packed) d[lane] = D(convert_packed(form, uint32_t(a[lane])));
            else d[lane] = D(convert(form, a[lane]));
        }
    });
}

template <class D>
Run convert_to(uint32_t from) {
    switch (from) {
        case 8: return convert_lanes<D, uint8_t>;
        case 16: return convert_lanes<D, uint16_t>;
        case 32: return convert_lanes<D, uint32_t>;
        default: return convert_lanes<D, uint64_t>;
    }
}

Run convert_run(uint32_t to, uint32_t from) {
    switch (to) {
        case 8: return convert_to<uint8_t>(from);
        case 16: return convert_to<uint16_t>(from);
        case 32: return convert_to<uint32_t>(from);
        default: return convert_to<uint64_t>(from);
    }
}

const Registration kConvert({"cvt"}, [](Decoder& decoder, const Source& ins) {
    if (ins.modifiers.size() < 2) refuse();
    std::vector<std::string> marks(ins.modifiers.begin(), ins.modifiers.end() - 2);
    const std::string &from = ins.type(), &to = ins.modifiers[ins.modifiers.size() - 2];
    const bool eight = to == "e4m3x2" || to == "e5m2x2" || from == "e4m3x2" || from == "e5m2x2";
    const bool integers = is_integer_type(from) && is_integer_type(to);
    if (!eight && integers && width_of(to) == width_of(from) && !ins.has("sat")) {
        const Row a = decoder.read(ins.operands[1], to), d = decoder.write(ins.operands[0], to);
        Instruction& made = decoder.emit(integer_cast<uint64_t>(to));
        switch (width_of(to)) {
            case 8: made.run = Lanewise<Cast<uint8_t, uint8_t>, uint8_t, uint8_t>::run; break;
            case 16: made.run = Lanewise<Cast<uint16_t, uint16_t>, uint16_t, uint16_t>::run; break;
            case 32: made.run = Lanewise<Cast<uint32_t, uint32_t>, uint32_t, uint32_t>::run; break;
            default: break;
        }
        made.a = a;
        made.d = d;
        return;
    }
    if (!eight && ins.operands.size() == 2)
        if (const Run run = fast_conversion(to, from, marks)) {
            const Row a = decoder.read(ins.operands[1], from), d = decoder.write(ins.operands[0], to);
            Instruction& made = decoder.emit(run);
            made.a = a;
            made.d = d;
            return;
        }
    Conversion form;
    try {
        form = conversion_form(ins.modifiers);
    } catch (const UnsupportedForm& error) {
        refuse(error.what());
    }
    auto register_type = [](const std::string& type, bool paired) -> std::string {
        if (type == "e4m3x2" || type == "e5m2x2") return "b16";
        if (type == "f16x2" || type == "bf16x2") return "b32";
        return paired ? "f32" : type;
    };
    if (int(ins.operands.size()) != form.sources + 1) refuse(std::to_string(ins.operands.size() - 1) + " sources");
    const std::string result = register_type(to, false), source = register_type(from, form.sources == 2);
    const Row a = decoder.read(ins.operands[1], source);
    const Row b = form.sources == 2 ? decoder.read(ins.operands[2], source) : Row{};
    const Row d = decoder.write(ins.operands[0], result);
    Instruction& made = decoder.emit(convert_run(d.width, a.width));
    made.a = a;
    made.b = b;
    made.d = d;
    made.modes = {uint32_t(form.to), uint32_t(form.from), uint32_t(form.rounding), form.to_integral, form.flushes,
                  form.saturates,    form.relu,           uint32_t(form.sources),  form.packed};
});

}  // namespace
}  // namespace kernrec
