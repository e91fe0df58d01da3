// Floating-point arithmetic and conversions (PTX ISA, sections 9.7.3, 9.7.4 and 9.7.9).
//
// `add`, `sub`, `mul`, `fma`, `div.rn`, `sqrt.rn` and `rcp.rn` round once, as IEEE 754 requires. `fma` of bfloat16
// considers the error of the sum in double, so it is rounded only once. The `approx` instructions return the rounded
// double result, which is more accurate than the hardware's tables.
#include <array>
#include <cfenv>
#include <cmath>
#include <limits>
#include <set>

#include "dispatch.h"

namespace kernrec {

namespace {

struct Half {
    uint16_t bits;
};
struct Bfloat {
    uint16_t bits;
};

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
    static constexpr uint64_t exponent = sizeof(T) == 4 ? 0x7F800000 : 0x7FF0000000000000;  // bits of the exponent
    static T value(T bits) { return bits; }
    static T of(double value) { return T(value); }
};
template <>
struct Format<Half> {
    static constexpr uint64_t exponent = 0x7C00;
    static float value(Half half) { return f16_to_f32(half.bits); }
    static Half of(float value) { return {f32_to_f16(value)}; }
    static Half of(double value) { return {f64_to_f16(value)}; }
};
template <>
struct Format<Bfloat> {
    static constexpr uint64_t exponent = 0x7F80;
    static double value(Bfloat number) { return bf16_to_f32(number.bits); }
    static Bfloat of(double value) { return {exact_to_bf16(value)}; }
};

template <class T>
auto value(T number) {
    return Format<T>::value(number);
}
template <class T, class V>
T rounded(V value) {
    return Format<T>::of(value);
}

template <class T>
constexpr Bits<T> kSign = Bits<T>(1) << (8 * sizeof(T) - 1);

// Flip the sign of a value if another value is negative; NaN does not change.
constexpr auto kFlipSign = [](auto number, auto by) {
    using T = decltype(number);
    // Test the sign bit directly, because GCC 12 does not vectorize std::signbit for AVX2.
    return std::isnan(value(number))
               ? number
               : bit_cast<T>(Bits<T>(bit_cast<Bits<T>>(number) ^ (bit_cast<Bits<T>>(by) & kSign<T>)));
};
constexpr auto kNeg = [](auto a) {
    using T = decltype(a);
    return bit_cast<T>(Bits<T>(bit_cast<Bits<T>>(a) ^ kSign<T>));
};
constexpr auto kAbs = [](auto a) {
    using T = decltype(a);
    return bit_cast<T>(Bits<T>(bit_cast<Bits<T>>(a) & ~kSign<T>));
};
// If a sum of two bfloat16 is inexact in double, the smaller number is too small to change the rounded result.
constexpr auto kAdd = [](auto a, auto b) { return rounded<decltype(a)>(value(a) + value(b)); };
constexpr auto kSub = [](auto a, auto b) { return rounded<decltype(a)>(value(a) - value(b)); };
constexpr auto kMul = [](auto a, auto b) { return rounded<decltype(a)>(value(a) * value(b)); };
constexpr auto kDiv = [](auto a, auto b) { return rounded<decltype(a)>(value(a) / value(b)); };
// The smaller or larger number; if `with_nan`, NaN if one of the numbers is NaN.
template <bool least, bool with_nan>
struct Extreme {
    template <class T>
    T operator()(T a, T b) const {
        const auto x = value(a), y = value(b);
        return rounded<T>(std::isnan(with_nan ? x : y) || (least ? x < y : x > y) ? x : y);
    }
};
constexpr Extreme<true, false> kMin;
constexpr Extreme<true, true> kMinNan;
constexpr Extreme<false, false> kMax;
constexpr Extreme<false, true> kMaxNan;
constexpr auto kCopysign = [](auto a, auto b) { return std::copysign(b, a); };
constexpr auto kSqrt = [](auto a) { return rounded<decltype(a)>(std::sqrt(value(a))); };
constexpr auto kRcp = [](auto a) { return rounded<decltype(a)>(decltype(value(a))(1) / value(a)); };
constexpr auto kRsqrt = [](auto a) { return rounded<decltype(a)>(1.0 / std::sqrt(double(value(a)))); };
constexpr auto kSin = [](auto a) { return rounded<decltype(a)>(std::sin(double(value(a)))); };
constexpr auto kCos = [](auto a) { return rounded<decltype(a)>(std::cos(double(value(a)))); };
constexpr auto kEx2 = [](auto a) { return rounded<decltype(a)>(std::exp2(double(value(a)))); };
constexpr auto kLg2 = [](auto a) { return rounded<decltype(a)>(std::log2(double(value(a)))); };
constexpr auto kTanh = [](auto a) { return rounded<decltype(a)>(std::tanh(double(value(a)))); };

constexpr auto kFma = [](auto a, auto b, auto c) {
    using T = decltype(a);
    if constexpr (std::is_floating_point_v<T>) {
        return std::fma(a, b, c);
    } else {
        const double product = double(value(a)) * double(value(b)), added = value(c);
        const double total = product + added, back = total - product;
        const double lost = (product - (total - back)) + (added - back);  // error of the sum (Knuth's two-sum)
        if constexpr (std::is_same_v<T, Bfloat>) return Bfloat{exact_to_bf16(total, lost)};
        else return rounded<T>(total);
    }
};

// Replace a subnormal number by a zero with the same sign. Only subnormals and zeros have no exponent bits.
template <class T>
T flushed(T number) {
    const Bits<T> bits = bit_cast<Bits<T>>(number);
    return bits & Format<T>::exponent ? number : bit_cast<T>(Bits<T>(bits & kSign<T>));
}

constexpr auto kToF32 = [](auto number) { return float(value(number)); };
constexpr auto kToF16 = [](float value) { return Half{f32_to_f16(value)}; };

// If `flushes` (`.ftz`), flush subnormal sources and results to zeros of the same sign.
template <const auto& op, bool flushes>
struct Ftz {
    template <class... S>
    auto operator()(S... sources) const {
        if constexpr (flushes) return flushed(op(flushed(sources)...));
        else return op(sources...);
    }
};

constexpr auto kSat = [](auto a) {
    const auto number = value(a);
    using V = decltype(value(a));
    return rounded<decltype(a)>(std::isnan(number) || number < 0 ? V(0) : number > 1 ? V(1) : number);
};
constexpr auto kRelu = [](auto a) {
    const auto number = value(a);
    return std::isnan(number) ? a : rounded<decltype(a)>(number > 0 ? number : decltype(value(a))(0));
};

template <const auto& op, int sources>
Run of_wide_type(const std::string& type, bool ftz) {
    if (type == "f32" && ftz) return lanewise<kOp<Ftz<op, true>>, float, sources>();
    if (type == "f32") return lanewise<op, float, sources>();
    if (type == "f64" && !ftz) return lanewise<op, double, sources>();
    refuse("the type ." + type);
}

template <const auto& op, int sources>
Run of_type(const std::string& type, bool ftz) {
    const auto narrow = [&](auto flushes) -> Run {
        using Law = Ftz<op, flushes>;
        if (type == "f16") return lanewise<kOp<Law>, Half, sources>();
        if (type == "f16x2") return lanewise<kOp<Pairs<kOp<Law>, Half, uint32_t>>, uint32_t, sources>();
        if (type == "bf16") return lanewise<kOp<Law>, Bfloat, sources>();
        if (type == "bf16x2") return lanewise<kOp<Pairs<kOp<Law>, Bfloat, uint32_t>>, uint32_t, sources>();
        return nullptr;
    };
    if (const Run run = by_flags(narrow, ftz)) return run;
    if (type == "f32x2" && !ftz) return lanewise<kOp<Pairs<op, float, uint64_t>>, uint64_t, sources>();
    return of_wide_type<op, sources>(type, ftz);
}

// Operation with directed rounding, and the CPU's rounding mode for it. The operands and results are in the arena, so
// compilers cannot move the arithmetic across the calls that set the mode.
struct Directed {
    Run run;
    int mode;
};
void directed(Batch& batch, const Instruction& ins) {
    const auto& [run, mode] = form_of<Directed>(ins);
    const int before = std::fegetround();
    std::fesetround(mode);
    run(batch, ins);
    std::fesetround(before);
}
const std::map<std::string, int> kDirections = {
    {"rn", FE_TONEAREST}, {"rz", FE_TOWARDZERO}, {"rm", FE_DOWNWARD}, {"rp", FE_UPWARD}};
const std::set<std::string> kDirected = {"add", "sub", "mul", "div", "rcp", "sqrt", "fma"};

using RunOf = Run (*)(const std::string& type, bool ftz);
template <const auto& op>
Run of_type_or_f64(const std::string& type, bool ftz) {
    if (type == "f64" && ftz) return lanewise<kOp<Ftz<op, true>>, double, 1>();
    return of_wide_type<op, 1>(type, ftz);
}

// Operation of an opcode for a type, and its number of sources.
struct Family {
    RunOf run;
    size_t sources;
};
const std::map<std::string, Family> kFamilies = {
    {"fma", {of_type<kFma, 3>, 3}},        {"add", {of_type<kAdd, 2>, 2}},
    {"sub", {of_type<kSub, 2>, 2}},        {"mul", {of_type<kMul, 2>, 2}},
    {"div", {of_wide_type<kDiv, 2>, 2}},   {"min", {of_type<kMin, 2>, 2}},
    {"min.NaN", {of_type<kMinNan, 2>, 2}}, {"max", {of_type<kMax, 2>, 2}},
    {"max.NaN", {of_type<kMaxNan, 2>, 2}}, {"neg", {of_type<kNeg, 1>, 1}},
    {"abs", {of_type<kAbs, 1>, 1}},        {"sqrt", {of_wide_type<kSqrt, 1>, 1}},
    {"rcp", {of_type_or_f64<kRcp>, 1}},    {"rsqrt", {of_type_or_f64<kRsqrt>, 1}},
    {"sin", {of_wide_type<kSin, 1>, 1}},   {"cos", {of_wide_type<kCos, 1>, 1}},
    {"ex2", {of_type<kEx2, 1>, 1}},        {"lg2", {of_wide_type<kLg2, 1>, 1}},
    {"tanh", {of_type<kTanh, 1>, 1}},      {"copysign", {of_wide_type<kCopysign, 2>, 2}}};

void floating(Decoder& decoder, const Source& ins) {
    const std::string opcode = ins.opcode == "mad" ? "fma" : ins.opcode;
    const bool extreme = opcode == "min" || opcode == "max";
    std::vector<std::string> marks = ins.modifiers;
    std::string type = marks.back(), half;
    marks.pop_back();
    if ((type == "f16" || type == "bf16") && !marks.empty() && marks.back() == "f32" &&
        (opcode == "add" || opcode == "sub" || opcode == "fma")) {
        half = std::exchange(type, "f32");
        marks.pop_back();
    }
    std::string mode;
    bool ftz = false, sat = false, nan = false, relu = false, magnitudes = false, signs = false;
    for (const std::string& mark : marks) {
        if (kDirections.count(mark) && mode.empty()) mode = mark;
        else if (mark == "ftz") ftz = true;
        else if (mark == "sat") sat = true;
        else if (mark == "NaN" && extreme) nan = true;
        else if (mark == "relu") relu = true;
        else if (mark == "abs" && extreme) magnitudes = true;
        else if (mark == "xorsign" && extreme) signs = true;
        else if (mark != "approx" && mark != "full") refuse("." + mark);
    }
    if (signs && !magnitudes) refuse(".xorsign without .abs");
    if (opcode == "copysign" && !marks.empty()) refuse("." + marks[0]);
    if (mode.empty()) mode = "rn";
    const Family& family = kFamilies.at(opcode + (nan ? ".NaN" : ""));
    const size_t sources = extreme && type == "f32" && ins.operands.size() == 4 ? 3 : family.sources;
    const bool is_directed = mode != "rn";
    if (is_directed && type != "f32" && (type != "f64" || ftz)) refuse("rounding ." + mode + " of ." + type);
    if (is_directed && !kDirected.count(opcode)) refuse("rounding ." + mode);
    const Run run = family.run(type, ftz);
    std::array<Row, 3> rows;
    for (size_t i = 0; i < sources; i++) {
        const bool is_narrow = !half.empty() && i + 1 < sources;
        rows[i] = decoder.read(ins.operands[i + 1], is_narrow ? half : type);
        if (!is_narrow) continue;
        const Row narrow = std::exchange(rows[i], decoder.scratch(32));
        decoder.emit(half == "f16" ? Lanewise<kToF32, float, Half>::run : Lanewise<kToF32, float, Bfloat>::run, rows[i],
                     narrow);
    }
    const Row d = decoder.write(ins.operands[0], type);
    // A destination may also be a source, so compute intermediate results in a scratch register.
    const bool several = extreme && (sources == 3 || magnitudes);
    const Row first = sat || relu || several ? decoder.scratch(width_of(type)) : d;
    const std::array<Row, 3> given = rows;
    for (size_t i = 0; i < sources && magnitudes; i++) {
        rows[i] = decoder.scratch(width_of(type));
        decoder.emit(of_type<kAbs, 1>(type, false), rows[i], given[i]);
    }
    Instruction& made = decoder.emit(is_directed ? directed : run, first, rows[0], rows[1], rows[2]);
    if (is_directed) made.form = std::make_shared<const Directed>(Directed{run, kDirections.at(mode)});
    if (extreme && sources == 3) decoder.emit(run, first, first, rows[2]);
    for (size_t i = 0; i < sources && signs; i++)
        decoder.emit(of_type<kFlipSign, 2>(type, false), first, first, given[i]);
    if (several && !sat && !relu) decoder.emit(copy_run(d.width), d, first);
    if (sat) decoder.emit(of_type<kSat, 1>(type, false), relu ? first : d, first);
    if (relu) decoder.emit(of_type<kRelu, 1>(type, false), d, first);
}

const Registration kArithmetic({"add", "sub", "min", "max", "neg", "abs", "mul", "mad", "div", "fma"},
                               [](Decoder& decoder, const Source& ins) {
                                   const std::string& opcode = ins.opcode;
                                   if (ins.has("cc") && (opcode == "add" || opcode == "sub" || opcode == "mad"))
                                       return carrying(decoder, ins);
                                   is_integer_type(ins.type()) && opcode != "fma" ? integer_arithmetic(decoder, ins)
                                                                                  : floating(decoder, ins);
                               });

const Registration kFunctions({"sqrt", "rcp", "rsqrt", "sin", "cos", "ex2", "lg2", "tanh", "copysign"}, floating);

constexpr auto kIsFinite = [](auto a) { return std::isfinite(a); };
constexpr auto kIsInfinite = [](auto a) { return std::isinf(a); };
constexpr auto kIsNumber = [](auto a) { return !std::isnan(a); };
constexpr auto kIsNan = [](auto a) { return std::isnan(a); };
constexpr auto kIsNormal = [](auto a) { return std::isnormal(a); };
constexpr auto kIsSubnormal = [](auto a) { return a != 0 && std::fabs(a) < std::numeric_limits<decltype(a)>::min(); };
template <const auto& test>
Run test_run(const std::string& type) {
    if (type == "f32") return Compare<test, float>::run;
    if (type == "f64") return Compare<test, double>::run;
    refuse("the type ." + type);
}
const std::map<std::string, Run (*)(const std::string& type)> kTests = {
    {"finite", test_run<kIsFinite>},  {"infinite", test_run<kIsInfinite>}, {"number", test_run<kIsNumber>},
    {"notanumber", test_run<kIsNan>}, {"normal", test_run<kIsNormal>},     {"subnormal", test_run<kIsSubnormal>}};
const Registration kTestNumbers({"testp"}, [](Decoder& decoder, const Source& ins) {
    const auto test = kTests.find(ins.modifiers[0]);
    if (test == kTests.end() || ins.modifiers.size() != 2) refuse("." + ins.modifiers[0]);
    decoder.emit_typed(test->second(ins.type()), {"pred", ins.type()});
});

// Conversions: frequent ones as vector code, all others lane by lane.

template <class T>
constexpr auto kToInteger = [](float value) {  // toward 0, clamped; NaN becomes 0
    const double whole = std::trunc(double(value));
    if (std::isnan(whole)) return T(0);
    if (whole >= double(std::numeric_limits<T>::max())) return std::numeric_limits<T>::max();
    if (whole <= double(std::numeric_limits<T>::min())) return std::numeric_limits<T>::min();
    return T(whole);
};

// Return vector code for a frequent conversion, or null.
Run fast_conversion(const Conversion& form) {
    const NumberType to = form.to, from = form.from;
    if (form.flushes || form.saturates || form.relu || form.is_pair) return nullptr;
    if (from < NumberType::kF16 && to < NumberType::kF16)
        return cast_run(number_bits(from), number_bits(to), number_name(from)[0] == 's');
    if (form.to_integral && form.rounding == Rounding::kZero && from == NumberType::kF32) {
        if (to == NumberType::kS32) return Lanewise<kToInteger<int32_t>, int32_t, float>::run;
        if (to == NumberType::kU32) return Lanewise<kToInteger<uint32_t>, uint32_t, float>::run;
    }
    if (form.rounding != Rounding::kNearestEven || form.to_integral) return nullptr;
    if (to == NumberType::kF32 && from >= NumberType::kS32 && from <= NumberType::kU64)
        return for_integer<int32_t, uint32_t, int64_t, uint64_t>(
            number_name(from), [](auto f) -> Run { return Lanewise<kSame, float, decltype(f)>::run; });
    if (to == NumberType::kF32 && from == NumberType::kF64) return Lanewise<kSame, float, double>::run;
    if (to == NumberType::kF64 && from == NumberType::kF32) return Lanewise<kSame, double, float>::run;
    if (to == NumberType::kF16 && from == NumberType::kF32) return Lanewise<kToF16, Half, float>::run;
    if (to == NumberType::kF32 && from == NumberType::kF16) return Lanewise<kToF32, float, Half>::run;
    return nullptr;
}

template <class D, class S>
void convert_lanes(Batch& batch, const Instruction& ins) {
    const auto& form = form_of<Conversion>(ins);
    D* d = batch.row<D>(ins.d);
    const S *a = batch.row<S>(ins.a), *b = ins.b ? batch.row<S>(ins.b) : nullptr;
    each_lane(batch, ins, [&](uint32_t lane) {
        uint64_t result = convert(form, b ? b[lane] : a[lane]);
        if (form.is_pair) {
            const uint64_t high = b ? a[lane] : uint64_t(a[lane]) >> number_bits(form.from);
            result |= convert(form, high) << number_bits(form.to);
        }
        d[lane] = D(result);
    });
}

Run convert_run(uint32_t to, uint32_t from) {
    return for_width(to, [&](auto d) {
        return for_width(from, [&](auto s) -> Run { return convert_lanes<decltype(d), decltype(s)>; });
    });
}

const Registration kConvert({"cvt"}, [](Decoder& decoder, const Source& ins) {
    const Conversion form = conversion_form(ins.modifiers);
    const auto register_type = [](NumberType type, bool is_pair) {
        return is_pair ? "b" + std::to_string(2 * number_bits(type)) : number_name(type);
    };
    const std::string source = register_type(form.from, form.is_pair && form.sources == 1);
    const Row a = decoder.read(ins.operands[1], source);
    const Row b = form.sources == 2 ? decoder.read(ins.operands[2], source) : Row{};
    const Row d = decoder.write(ins.operands[0], register_type(form.to, form.is_pair));
    const Run fast = fast_conversion(form);
    Instruction& made = emit_form(decoder, fast ? fast : convert_run(d.width, a.width), form);
    std::tie(made.d, made.a, made.b) = std::tie(d, a, b);
});

}  // namespace
}  // namespace kernrec
