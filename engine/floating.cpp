// Floating-point arithmetic and conversions (PTX ISA, sections 9.7.3, 9.7.4 and 9.7.9).
//
// `add`, `sub`, `mul`, `fma`, `div.rn`, `sqrt.rn` and `rcp.rn` round once, as IEEE 754 requires. Sums of bfloat16
// consider their error in double, so they are rounded only once. The `approx` instructions return the rounded double
// result, which is more accurate than the hardware's tables.
#include <cfenv>
#include <cmath>
#include <limits>

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
auto value(T number) {
    return Format<T>::value(number);
}
template <class T, class V>
T rounded(V value) {
    return Format<T>::of(value);
}

Bfloat bfloat_sum(double a, double b) {
    double total, lost;
    two_sum(a, b, total, lost);
    return {exact_to_bf16(total, lost)};
}

// Flip the sign of a value if another value is negative; NaN does not change.
constexpr auto kFlipSign = [](auto number, auto by) {
    using T = decltype(number);
    // Test the sign bit directly, because GCC 12 does not vectorize std::signbit for AVX2.
    using Bits = std::conditional_t<sizeof(T) == 2, uint16_t, std::conditional_t<sizeof(T) == 4, uint32_t, uint64_t>>;
    constexpr Bits kSign = Bits(1) << (8 * sizeof(T) - 1);
    if (std::isnan(value(number))) return number;
    return bit_cast<T>(Bits(bit_cast<Bits>(number) ^ (bit_cast<Bits>(by) & kSign)));
};
constexpr auto kNeg = [](auto a) {
    using T = decltype(a);
    if constexpr (std::is_floating_point_v<T>) return -a;
    else return T{uint16_t(a.bits ^ 0x8000)};
};
constexpr auto kAbs = [](auto a) {
    using T = decltype(a);
    if constexpr (std::is_floating_point_v<T>) return std::fabs(a);
    else return T{uint16_t(a.bits & 0x7FFF)};
};
constexpr auto kAdd = [](auto a, auto b) {
    using T = decltype(a);
    if constexpr (std::is_same_v<T, Bfloat>) return bfloat_sum(value(a), value(b));
    else return rounded<T>(value(a) + value(b));
};
constexpr auto kSub = [](auto a, auto b) {
    using T = decltype(a);
    if constexpr (std::is_same_v<T, Bfloat>) return kAdd(a, kNeg(b));
    else return rounded<T>(value(a) - value(b));
};
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
        if constexpr (std::is_same_v<T, Bfloat>) return bfloat_sum(product, added);
        else return rounded<T>(product + added);
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

template <const auto& op, class T, class Word>
struct Pairs {
    static T part(Word word, uint32_t half) {
        using Bits = std::conditional_t<sizeof(T) == 2, uint16_t, uint32_t>;
        return bit_cast<T>(Bits(word >> half * 8 * sizeof(T)));
    }
    template <class... S>
    Word operator()(S... words) const {
        using Bits = std::conditional_t<sizeof(T) == 2, uint16_t, uint32_t>;
        const T low = op(part(words, 0)...), high = op(part(words, 1)...);
        return Word(bit_cast<Bits>(low)) | Word(bit_cast<Bits>(high)) << 8 * sizeof(T);
    }
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

// Directed rounding: compute in the CPU's rounding mode. `code`: index of the opcode + 8 * index of the direction.
constexpr const char* kDirectedOpcodes[] = {"add", "sub", "mul", "div", "rcp", "sqrt", "fma"};
constexpr std::pair<const char*, int> kDirections[] = {{"rz", FE_TOWARDZERO}, {"rm", FE_DOWNWARD}, {"rp", FE_UPWARD}};
constexpr auto kDirected = [](auto a, auto b, auto c, uint32_t code) {
    using T = decltype(a);
    volatile T x = a, y = b, z = c, result;
    const int before = std::fegetround();
    std::fesetround(kDirections[code / 8].second);
    switch (code % 8) {
        case 0: result = x + y; break;
        case 1: result = x - y; break;
        case 2: result = x * y; break;
        case 3: result = x / y; break;
        case 4: result = T(1) / x; break;
        case 5: result = std::sqrt(T(x)); break;
        default: result = std::fma(T(x), T(y), T(z));
    }
    std::fesetround(before);
    return T(result);
};
constexpr auto kDirectedFtz = [](float a, float b, float c, uint32_t code) {
    return flushed(kDirected(flushed(a), flushed(b), flushed(c), code));
};

uint32_t directed_code(const std::string& opcode, const std::string& mode) {
    uint32_t code = 0;
    while (code < std::size(kDirectedOpcodes) && opcode != kDirectedOpcodes[code]) code++;
    if (code == std::size(kDirectedOpcodes)) refuse("rounding ." + mode);
    while (mode != kDirections[code / 8].first) code += 8;
    return code;
}

template <const auto& op>
Run of_type_or_f64(const std::string& type, bool ftz) {
    if (type == "f64" && ftz) return lanewise<kOp<Ftz<op, true>>, double, 1>();
    return of_wide_type<op, 1>(type, ftz);
}

template <bool least, bool with_nan>
Run extreme_run(const std::string& type, bool ftz) {
    return of_type<kOp<Extreme<least, with_nan>>, 2>(type, ftz);
}

const std::map<std::string, Run (*)(const std::string& type, bool ftz)> kRuns = {{"fma", of_type<kFma, 3>},
                                                                                 {"add", of_type<kAdd, 2>},
                                                                                 {"sub", of_type<kSub, 2>},
                                                                                 {"mul", of_type<kMul, 2>},
                                                                                 {"div", of_wide_type<kDiv, 2>},
                                                                                 {"min", extreme_run<true, false>},
                                                                                 {"min.NaN", extreme_run<true, true>},
                                                                                 {"max", extreme_run<false, false>},
                                                                                 {"max.NaN", extreme_run<false, true>},
                                                                                 {"neg", of_type<kNeg, 1>},
                                                                                 {"abs", of_type<kAbs, 1>},
                                                                                 {"sqrt", of_wide_type<kSqrt, 1>},
                                                                                 {"rcp", of_type_or_f64<kRcp>},
                                                                                 {"rsqrt", of_type_or_f64<kRsqrt>},
                                                                                 {"sin", of_wide_type<kSin, 1>},
                                                                                 {"cos", of_wide_type<kCos, 1>},
                                                                                 {"ex2", of_type<kEx2, 1>},
                                                                                 {"lg2", of_wide_type<kLg2, 1>},
                                                                                 {"tanh", of_type<kTanh, 1>}};

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
        else if (mark == "NaN" && extreme) nan = true;
        else if (mark == "relu") relu = true;
        else if (mark == "abs" && extreme) magnitudes = true;
        else if (mark == "xorsign" && extreme) signs = true;
        else if (mark != "rn" && mark != "approx" && mark != "full") refuse("." + mark);
    }
    Run run;
    Row code;
    if (mode == "rn") {
        run = kRuns.at(opcode + (nan ? ".NaN" : ""))(type, ftz);
    } else {
        if (type != "f32" && (type != "f64" || ftz)) refuse("rounding ." + mode + " of ." + type);
        code = decoder.constant(32, directed_code(opcode, mode));
        run = type == "f64" ? Lanewise<kDirected, double, double, double, double, uint32_t>::run
              : ftz         ? Lanewise<kDirectedFtz, float, float, float, float, uint32_t>::run
                            : Lanewise<kDirected, float, float, float, float, uint32_t>::run;
    }
    Row rows[3];
    for (size_t i = 0; i < sources; i++) {
        if (half.empty() || i + 1 == sources) {
            rows[i] = decoder.read(ins.operands[i + 1], type);
            continue;
        }
        const Row narrow = decoder.read(ins.operands[i + 1], half);
        rows[i] = decoder.scratch(32);
        decoder.emit(half == "f16" ? Lanewise<kToF32, float, Half>::run : Lanewise<kToF32, float, Bfloat>::run, rows[i],
                     narrow);
    }
    const Row d = decoder.write(ins.operands[0], type);
    // A destination may also be a source, so compute intermediate results in a scratch register.
    const bool several = extreme && (sources == 3 || magnitudes);
    const Row first = sat || relu || several ? decoder.scratch(width_of(type)) : d;
    if (code) {
        decoder.emit(run, first, rows[0], rows[sources > 1], rows[sources > 2 ? 2 : 0], code);
    } else if (!several) {
        decoder.emit(run, first, rows[0], rows[1], rows[2]);
    } else {
        Row values[3];
        for (size_t i = 0; i < sources; i++) {
            values[i] = magnitudes ? decoder.scratch(width_of(type)) : rows[i];
            if (magnitudes) decoder.emit(of_type<kAbs, 1>(type, false), values[i], rows[i]);
        }
        decoder.emit(run, first, values[0], values[1]);
        if (sources == 3) decoder.emit(run, first, first, values[2]);
        for (size_t i = 0; i < sources && signs; i++)
            decoder.emit(of_type<kFlipSign, 2>(type, false), first, first, rows[i]);
        if (!sat && !relu) decoder.emit(copy_run(d.width), d, first);
    }
    if (sat) decoder.emit(of_type<kSat, 1>(type, false), relu ? first : d, first);
    if (relu) decoder.emit(of_type<kRelu, 1>(type, false), d, first);
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

constexpr auto kCopysign = [](auto a, auto b) { return std::copysign(b, a); };
const Registration kSigns({"copysign"}, [](Decoder& decoder, const Source& ins) {
    const std::string& type = ins.type();
    decoder.emit_typed(of_wide_type<kCopysign, 2>(type, false), {type, type, type});
});

constexpr const char* kTests[] = {"finite", "infinite", "number", "notanumber", "normal", "subnormal"};
constexpr auto kTest = [](auto a, uint32_t test) {
    const bool small = std::fabs(a) < std::numeric_limits<decltype(a)>::min();
    switch (test) {
        case 0: return std::isfinite(a);
        case 1: return std::isinf(a);
        case 2: return !std::isnan(a);
        case 3: return std::isnan(a);
        case 4: return std::isfinite(a) && !small;
        default: return a != 0 && small;
    }
};
const Registration kTestNumbers({"testp"}, [](Decoder& decoder, const Source& ins) {
    const std::string& type = ins.type();
    if ((type != "f32" && type != "f64") || ins.modifiers.size() != 2 || ins.operands.size() != 2) refuse();
    uint32_t test = 0;
    while (test < std::size(kTests) && ins.modifiers[0] != kTests[test]) test++;
    if (test == std::size(kTests)) refuse("." + ins.modifiers[0]);
    const Row a = decoder.read(ins.operands[1], type), d = decoder.write(ins.operands[0], "pred");
    decoder.emit(type == "f32" ? Compare<kTest, float, uint32_t>::run : Compare<kTest, double, uint32_t>::run, d, a,
                 decoder.constant(32, test));
});

// Conversions: frequent ones as vector code, all others lane by lane.

template <class T>
struct ToInteger {  // toward 0, clamped; NaN becomes 0
    T operator()(float value) const {
        const double whole = std::trunc(double(value));
        if (std::isnan(whole)) return 0;
        if (whole >= double(std::numeric_limits<T>::max())) return std::numeric_limits<T>::max();
        if (whole <= double(std::numeric_limits<T>::min())) return std::numeric_limits<T>::min();
        return T(whole);
    }
};

Run fast_conversion(const std::string& to, const std::string& from, const std::vector<std::string>& marks) {
    const bool from_integer = is_integer_type(from), to_integer = is_integer_type(to);
    if (from_integer && to_integer && marks.empty()) return cast_run(width_of(from), width_of(to), from[0] == 's');
    const bool nearest = marks.size() == 1 && marks[0] == "rn", to_f32 = to == "f32";
    if (nearest && (to_f32 || to == "f64") && from_integer && width_of(from) >= 32)
        return for_integer<int32_t, uint32_t, int64_t, uint64_t>(from, [&](auto f) -> Run {
            return to_f32 ? Lanewise<kSame, float, decltype(f)>::run : Lanewise<kSame, double, decltype(f)>::run;
        });
    if (nearest && to_f32 && from == "f64") return Lanewise<kSame, float, double>::run;
    if (nearest && to == "f16" && from == "f32") return Lanewise<kToF16, Half, float>::run;
    if (marks.empty() && to_f32 && from == "f16") return Lanewise<kToF32, float, Half>::run;
    if (marks.empty() && to == "f64" && from == "f32") return Lanewise<kSame, double, float>::run;
    if (marks.size() == 1 && marks[0] == "rzi" && from == "f32") {
        if (to == "s32") return Lanewise<kOp<ToInteger<int32_t>>, int32_t, float>::run;
        if (to == "u32") return Lanewise<kOp<ToInteger<uint32_t>>, uint32_t, float>::run;
    }
    return nullptr;
}

template <class D, class S>
void convert_lanes(Batch& batch, const Instruction& ins) {
    const auto& form = form_of<Conversion>(ins);
    D* d = batch.row<D>(ins.d);
    const S *a = batch.row<S>(ins.a), *b = ins.b ? batch.row<S>(ins.b) : nullptr;
    each_warp(batch, ins, [&](uint32_t, uint32_t first, uint32_t mask) {
        for (const uint32_t bit : LanesOf(mask)) {
            const uint32_t lane = first + bit;
            if (form.sources == 2) d[lane] = D(convert_pair(form, uint32_t(a[lane]), uint32_t(b[lane])));
            else if (form.packed) d[lane] = D(convert_packed(form, uint32_t(a[lane])));
            else d[lane] = D(convert(form, a[lane]));
        }
    });
}

Run convert_run(uint32_t to, uint32_t from) {
    return for_width(to, [&](auto d) {
        return for_width(from, [&](auto s) -> Run { return convert_lanes<decltype(d), decltype(s)>; });
    });
}

const Registration kConvert({"cvt"}, [](Decoder& decoder, const Source& ins) {
    if (ins.modifiers.size() < 2) refuse();
    std::vector<std::string> marks(ins.modifiers.begin(), ins.modifiers.end() - 2);
    const std::string &from = ins.type(), &to = ins.modifiers[ins.modifiers.size() - 2];
    const bool eight = to == "e4m3x2" || to == "e5m2x2" || from == "e4m3x2" || from == "e5m2x2";
    if (!eight && ins.operands.size() == 2)
        if (const Run run = fast_conversion(to, from, marks)) return decoder.emit_typed(run, {to, from});
    const Conversion form = conversion_form(ins.modifiers);
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
    Instruction& made = emit_form(decoder, convert_run(d.width, a.width), form);
    std::tie(made.d, made.a, made.b) = std::tie(d, a, b);
});

}  // namespace
}  // namespace kernrec
