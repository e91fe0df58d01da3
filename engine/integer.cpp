// Integer arithmetic, logic and bit operations (PTX ISA, sections 9.7.1, 9.7.2 and 9.7.8). Arithmetic wraps.
#include <algorithm>
#include <type_traits>

#include "decoder.h"
#include "lanes.h"

namespace kernrec {
namespace {

template <class T>
using Unsigned = std::make_unsigned_t<T>;

template <class T>
constexpr bool kSigned = std::is_signed_v<T>;

// Type of a product of `mul.wide`, with the signedness of T.
template <class T>
using Wider = std::conditional_t<sizeof(T) == 4, std::conditional_t<kSigned<T>, int64_t, uint64_t>,
                                 std::conditional_t<kSigned<T>, int32_t, uint32_t>>;

// Wrap arithmetic without undefined behavior.
template <class T>
T wrap(uint64_t value) {
    return static_cast<T>(static_cast<Unsigned<T>>(value));
}

constexpr auto kAdd = [](auto a, auto b) {
    using U = Unsigned<decltype(a)>;
    return decltype(a)(U(U(a) + U(b)));
};
constexpr auto kSub = [](auto a, auto b) {
    using U = Unsigned<decltype(a)>;
    return decltype(a)(U(U(a) - U(b)));
};
constexpr auto kMin = [](auto a, auto b) { return a < b ? a : b; };
constexpr auto kMax = [](auto a, auto b) { return a > b ? a : b; };
constexpr auto kNeg = [](auto a) { return wrap<decltype(a)>(0 - uint64_t(a)); };
constexpr auto kAbs = [](auto a) { return a < decltype(a)(0) ? kNeg(a) : a; };
constexpr auto kLow = [](auto a, auto b) {
    using T = decltype(a);
    if constexpr (sizeof(T) == 4) return T(uint32_t(a) * uint32_t(b));
    else return wrap<T>(uint64_t(a) * uint64_t(b));
};

uint64_t high64(uint64_t a, uint64_t b) {
    const uint64_t low = 0xFFFFFFFF, a0 = a & low, a1 = a >> 32, b0 = b & low, b1 = b >> 32;
    const uint64_t middle = a1 * b0 + (a0 * b0 >> 32), other = a0 * b1 + (middle & low);
    return a1 * b1 + (middle >> 32) + (other >> 32);
}

constexpr auto kHigh = [](auto a, auto b) {
    using T = decltype(a);
    if constexpr (sizeof(T) == 8) {
        uint64_t high = high64(uint64_t(a), uint64_t(b));
        if constexpr (kSigned<T>) high -= (a < 0 ? uint64_t(b) : 0) + (b < 0 ? uint64_t(a) : 0);
        return T(high);
    } else {
        using Wide = std::conditional_t<kSigned<T>, int64_t, uint64_t>;
        return T(Wide(a) * Wide(b) >> 8 * sizeof(T));
    }
};
constexpr auto kLow24 = [](auto a, auto b) {
    using T = decltype(a);
    const T x = T(T(Unsigned<T>(a) << 8) >> 8), y = T(T(Unsigned<T>(b) << 8) >> 8);
    return wrap<T>(uint64_t(x) * uint64_t(y));
};
constexpr auto kWide = [](auto a, auto b) { return Wider<decltype(a)>(a) * Wider<decltype(a)>(b); };

constexpr auto kMad = [](auto a, auto b, auto c) { return kAdd(kLow(a, b), c); };
constexpr auto kMadHigh = [](auto a, auto b, auto c) { return kAdd(kHigh(a, b), c); };
constexpr auto kMad24 = [](auto a, auto b, auto c) { return kAdd(kLow24(a, b), c); };
constexpr auto kMadWide = [](auto a, auto b, auto c) { return kAdd(kWide(a, b), c); };

// Divide with truncation. A zero divisor returns all ones, like the hardware.
constexpr auto kDiv = [](auto a, auto b) {
    using T = decltype(a);
    if (b == 0) return T(~T(0));
    if constexpr (kSigned<T>)
        if (b == -1) return kNeg(a);
    return T(a / b);
};
constexpr auto kRem = [](auto a, auto b) {
    using T = decltype(a);
    if (b == 0) return a;
    if constexpr (kSigned<T>)
        if (b == -1) return T(0);
    return T(a % b);
};
constexpr auto kSad = [](auto a, auto b, auto c) { return kAdd(c, a < b ? kSub(b, a) : kSub(a, b)); };
constexpr auto kCnot = [](auto a) { return decltype(a)(a == 0); };

int32_t saturated(int64_t value) { return int32_t(std::clamp<int64_t>(value, INT32_MIN, INT32_MAX)); }
constexpr auto kAddSat = [](int32_t a, int32_t b) { return saturated(int64_t(a) + b); };
constexpr auto kSubSat = [](int32_t a, int32_t b) { return saturated(int64_t(a) - b); };

template <const auto& op, class T>
struct Halves {
    template <class... S>
    uint32_t operator()(S... sources) const {
        const T low = op(T(uint16_t(sources))...), high = op(T(uint16_t(sources >> 16))...);
        return uint32_t(uint16_t(low)) | uint32_t(uint16_t(high)) << 16;
    }
};

template <const auto& op, int sources>
Run of_type(const std::string& type) {
    if (type == "u16x2") return lanewise<kOp<Halves<op, uint16_t>>, uint32_t, sources>();
    if (type == "s16x2") return lanewise<kOp<Halves<op, int16_t>>, uint32_t, sources>();
    return for_any_integer(type, [](auto t) { return lanewise<op, decltype(t), sources>(); });
}

void expect_operands(const Source& ins, size_t count) {
    if (ins.operands.size() != count) refuse(std::to_string(ins.operands.size()) + " operands");
}

void same_type(Decoder& decoder, const Source& ins, Run run, const std::string& type) {
    decoder.emit_typed(run, std::vector<std::string_view>(ins.operands.size(), type));
}

void wide(Decoder& decoder, const Source& ins, bool plus) {
    const std::string& type = ins.type();
    const Run run = for_integer<uint32_t, int32_t, uint16_t, int16_t>(type, [&](auto t) -> Run {
        using T = decltype(t);
        using W = Wider<T>;
        return plus ? Lanewise<kMadWide, W, T, T, W>::run : Lanewise<kWide, W, T, T>::run;
    });
    const std::string result = type.substr(0, 1) + (type.substr(1) == "32" ? "64" : "32");
    std::vector<std::string_view> types{result, type, type};
    if (plus) types.emplace_back(result);
    decoder.emit_typed(run, types);
}

constexpr auto kBrev = [](auto a) {
    decltype(a) result = 0;
    for (uint32_t bit = 0; bit < 8 * sizeof a; bit++) result = decltype(a)(result << 1 | (a >> bit & 1));
    return result;
};

Run brev_run(const std::string& type) {
    return for_integer<uint32_t, uint64_t>(type, [](auto t) { return lanewise<kBrev, decltype(t), 1>(); });
}

// Instructions whose operands all have the type of the instruction.
struct Family {
    Run (*run)(const std::string& type);
    size_t sources;
    bool of_bits = false;  // the types are .b32 and .b64
};
const std::map<std::string, Family> kFamilies = {
    {"add", {of_type<kAdd, 2>, 2}},         {"sub", {of_type<kSub, 2>, 2}},     {"min", {of_type<kMin, 2>, 2}},
    {"max", {of_type<kMax, 2>, 2}},         {"neg", {of_type<kNeg, 1>, 1}},     {"abs", {of_type<kAbs, 1>, 1}},
    {"div", {of_type<kDiv, 2>, 2}},         {"rem", {of_type<kRem, 2>, 2}},     {"sad", {of_type<kSad, 3>, 3}},
    {"mul", {of_type<kLow, 2>, 2}},         {"mul.hi", {of_type<kHigh, 2>, 2}}, {"mad", {of_type<kMad, 3>, 3}},
    {"mad.hi", {of_type<kMadHigh, 3>, 3}},  {"mul24", {of_type<kLow24, 2>, 2}}, {"mad24", {of_type<kMad24, 3>, 3}},
    {"cnot", {of_type<kCnot, 1>, 1, true}}, {"brev", {brev_run, 1, true}}};

const Registration kInteger({"mul24", "mad24", "rem", "sad", "cnot", "brev"}, integer_arithmetic);

const Registration kLogic({"and", "or", "xor", "not"}, [](Decoder& decoder, const Source& ins) {
    const std::string &opcode = ins.opcode, &type = ins.type();
    const bool flags = type == "pred";
    expect_operands(ins, opcode == "not" ? 2 : 3);
    if (!flags && type.find('f') != std::string::npos) refuse("the type ." + type);
    const std::string as = "u" + std::to_string(width_of(type));
    Run run;
    if (opcode == "and") run = flags ? flagwise<kAnd> : of_type<kAnd, 2>(as);
    else if (opcode == "or") run = flags ? flagwise<kOr> : of_type<kOr, 2>(as);
    else if (opcode == "xor") run = flags ? flagwise<kXor> : of_type<kXor, 2>(as);
    else run = flags ? flagwise<kNot> : of_type<kNot, 1>(as);
    same_type(decoder, ins, run, type);
});

// dp4a, dp2a: multiply `count` parts of a by bytes of b, from byte `from`, and add the products to c.
template <class A, class B, int count, int from>
struct Dot {
    template <class C>
    C operator()(uint32_t a, uint32_t b, C c) const {
        uint32_t total = uint32_t(c);
        for (int i = 0; i < count; i++) {
            const int64_t part = A(a >> (32 / count) * i), octet = B(b >> 8 * (from + i));
            total += uint32_t(part * octet);
        }
        return C(total);
    }
};

const Registration kDot({"dp4a", "dp2a"}, [](Decoder& decoder, const Source& ins) {
    expect_operands(ins, 4);
    if (ins.modifiers.size() < 2) refuse();
    const std::string &second = ins.type(), &first = ins.modifiers[ins.modifiers.size() - 2];
    const bool a = first == "s32", b = second == "s32";
    if ((!a && first != "u32") || (!b && second != "u32")) refuse();
    const auto run_of = [&](auto a_signed, auto b_signed) -> Run {
        using A4 = std::conditional_t<a_signed, int8_t, uint8_t>;
        using A2 = std::conditional_t<a_signed, int16_t, uint16_t>;
        using B = std::conditional_t<b_signed, int8_t, uint8_t>;
        using C = std::conditional_t<a_signed || b_signed, int32_t, uint32_t>;
        if (ins.opcode == "dp4a") return Lanewise<kOp<Dot<A4, B, 4, 0>>, C, uint32_t, uint32_t, C>::run;
        return ins.has("hi") ? Lanewise<kOp<Dot<A2, B, 2, 2>>, C, uint32_t, uint32_t, C>::run
                             : Lanewise<kOp<Dot<A2, B, 2, 0>>, C, uint32_t, uint32_t, C>::run;
    };
    const Run run = by_flags(run_of, a, b);
    same_type(decoder, ins, run, "b32");
});

// Arithmetic with a carry flag, which is 0 or 1 in each lane.
template <bool subtract, bool carried>
struct CarryResult {
    template <class U>
    U operator()(U a, U b, uint32_t carry) const {
        const U more = carried ? U(carry) : 0;
        return subtract ? U(a - b - more) : U(a + b + more);
    }
};
template <bool subtract, bool carried>
struct CarryFlag {
    template <class U>
    uint32_t operator()(U a, U b, uint32_t carry) const {
        const U first = subtract ? a - b : a + b, more = carried ? U(carry) : 0;
        return subtract ? a < b || U(first - more) > first : first < a || U(first + more) < first;
    }
};

const Registration kCarrying({"addc", "subc", "madc"}, carrying);

constexpr auto kShl = [](auto a, uint32_t b) {
    using T = decltype(a);
    return b >= 8 * sizeof(T) ? T(0) : T(Unsigned<T>(a) << b);
};
constexpr auto kShr = [](auto a, uint32_t b) {
    using T = decltype(a);
    if (b >= 8 * sizeof(T)) return a < T(0) ? T(~T(0)) : T(0);
    return T(a >> b);
};

const Registration kShift({"shl", "shr"}, [](Decoder& decoder, const Source& ins) {
    const std::string& type = ins.type();
    const std::string as = type[0] == 'b' ? "u" + type.substr(1) : type;
    const Run run = for_integer<uint32_t, int32_t, uint64_t, int64_t, uint16_t, int16_t>(as, [&](auto t) -> Run {
        using T = decltype(t);
        return ins.opcode == "shl" ? Lanewise<kShl, T, T, uint32_t>::run : Lanewise<kShr, T, T, uint32_t>::run;
    });
    decoder.emit_typed(run, {type, type, "u32"});
});

template <bool left, bool wrap>
struct Funnel {
    uint32_t operator()(uint32_t a, uint32_t b, uint32_t c) const {
        const uint32_t amount = wrap ? c & 31 : std::min(c, 32u);
        const uint64_t both = uint64_t(b) << 32 | a;
        return uint32_t(left ? (both << amount) >> 32 : both >> amount);
    }
};
const Registration kFunnel({"shf"}, [](Decoder& decoder, const Source& ins) {
    const auto run_of = [](auto left, auto wraps) { return lanewise<kOp<Funnel<left, wraps>>, uint32_t, 3>(); };
    decoder.emit_typed(by_flags(run_of, ins.has("l"), ins.has("wrap")), {"u32", "u32", "u32", "u32"});
});

constexpr auto kPopc = [](auto a) { return uint32_t(__builtin_popcountll(a)); };
constexpr auto kClz = [](auto a) {
    const uint32_t bits = 8 * sizeof a;
    return a ? __builtin_clzll(a) - (64 - bits) : bits;
};
template <bool amount>
struct Bfind {
    template <class T>
    uint32_t operator()(T a) const {
        const Unsigned<T> value = Unsigned<T>(a < T(0) ? T(~a) : a);
        if (value == 0) return ~0u;
        const uint32_t position = 63 - __builtin_clzll(value);
        return amount ? 8 * sizeof(T) - 1 - position : position;
    }
};

const Registration kCount({"popc", "clz", "bfind"}, [](Decoder& decoder, const Source& ins) {
    const std::string& type = ins.type();
    const uint32_t width = width_of(type);
    if (width != 32 && width != 64) refuse("the type ." + type);
    Run run;
    if (ins.opcode == "bfind")
        run = for_integer<uint32_t, int32_t, uint64_t, int64_t>(type, [&](auto t) -> Run {
            using T = decltype(t);
            return ins.has("shiftamt") ? Lanewise<kOp<Bfind<true>>, uint32_t, T>::run
                                       : Lanewise<kOp<Bfind<false>>, uint32_t, T>::run;
        });
    else if (ins.opcode == "popc")
        run = width == 32 ? Lanewise<kPopc, uint32_t, uint32_t>::run : Lanewise<kPopc, uint32_t, uint64_t>::run;
    else run = width == 32 ? Lanewise<kClz, uint32_t, uint32_t>::run : Lanewise<kClz, uint32_t, uint64_t>::run;
    decoder.emit_typed(run, {"u32", type});
});

uint64_t ones(uint32_t count) { return count >= 64 ? ~0ull : (1ull << count) - 1; }

constexpr auto kBfe = [](auto a, uint32_t b, uint32_t c) {
    using T = decltype(a);
    constexpr uint32_t bits = 8 * sizeof(T);
    const uint32_t start = b & 0xFF, length = c & 0xFF;
    const uint64_t value = Unsigned<T>(a);
    uint64_t field = (start < bits ? value >> start : 0) & ones(std::min(length, bits));
    if constexpr (kSigned<T>) {
        const uint32_t last = std::min(start + length - 1, bits - 1);
        const uint32_t inside = std::min(start < bits ? bits - start : 0, std::min(length, bits));
        if (length > 0 && (value >> last & 1)) field |= ~ones(inside);
    }
    return T(field);
};
constexpr auto kBfi = [](auto a, auto b, uint32_t c, uint32_t d) {
    constexpr uint32_t bits = 8 * sizeof a;
    const uint32_t start = std::min(c & 0xFF, 64u), length = std::min(d & 0xFF, 64u);
    const uint32_t shift = std::min(start, 63u);
    const uint64_t mask = start >= bits ? 0 : ones(length) << shift;
    return decltype(a)((uint64_t(b) & ~mask) | ((uint64_t(a) << shift) & mask));
};

const Registration kFields({"bfe", "bfi"}, [](Decoder& decoder, const Source& ins) {
    const std::string& type = ins.type();
    if (ins.opcode == "bfe") {
        const Run run = for_integer<uint32_t, int32_t, uint64_t, int64_t>(
            type, [](auto t) -> Run { return Lanewise<kBfe, decltype(t), decltype(t), uint32_t, uint32_t>::run; });
        return decoder.emit_typed(run, {type, type, "u32", "u32"});
    }
    const uint32_t width = width_of(type);
    if (width < 32) refuse("the type ." + type);
    decoder.emit_typed(width == 32 ? Lanewise<kBfi, uint32_t, uint32_t, uint32_t, uint32_t, uint32_t>::run
                                   : Lanewise<kBfi, uint64_t, uint64_t, uint64_t, uint32_t, uint32_t>::run,
                       {type, type, type, "u32", "u32"});
});

// Logic with three operands: bit i of the table `mode` is the result if (a, b, c) are the bits of i.
void lop3(Batch& batch, const Instruction& ins) {
    uint32_t* d = batch.row<uint32_t>(ins.d);
    const uint32_t *a = batch.row<uint32_t>(ins.a), *b = batch.row<uint32_t>(ins.b), *c = batch.row<uint32_t>(ins.c);
    each_warp(batch, ins, [&](uint32_t, uint32_t first, uint32_t mask) {
        uint32_t result[kWarp] = {};
        for (uint32_t i = 0; i < 8; i++) {
            if (!(ins.mode >> i & 1)) continue;
            const uint32_t x = i & 4 ? 0 : ~0u, y = i & 2 ? 0 : ~0u, z = i & 1 ? 0 : ~0u;
            for (uint32_t lane = 0; lane < kWarp; lane++)
                result[lane] |= (a[first + lane] ^ x) & (b[first + lane] ^ y) & (c[first + lane] ^ z);
        }
        put(d + first, result, mask);
    });
}

const Registration kLop3({"lop3"}, [](Decoder& decoder, const Source& ins) {
    expect_operands(ins, 5);
    if (ins.modifiers.size() > 1 || ins.operands[4].kind != OperandKind::kInteger) refuse();
    const Row a = decoder.read(ins.operands[1], "b32"), b = decoder.read(ins.operands[2], "b32");
    const Row c = decoder.read(ins.operands[3], "b32"), d = decoder.write(ins.operands[0], "b32");
    decoder.emit(lop3, d, a, b, c).mode = uint32_t(ins.operands[4].value) & 255;
});

constexpr auto kPrmt = [](uint32_t a, uint32_t b, uint32_t c) {
    const uint64_t both = a | uint64_t(b) << 32;
    uint32_t result = 0;
    for (uint32_t i = 0; i < 4; i++) {
        const uint32_t selector = c >> 4 * i & 15;
        uint32_t octet = uint32_t(both >> (selector & 7) * 8) & 0xFF;
        if (selector & 8) octet = octet & 0x80 ? 0xFF : 0;
        result |= octet << 8 * i;
    }
    return result;
};
const Registration kPermute({"prmt"}, [](Decoder& decoder, const Source& ins) {
    if (ins.modifiers.size() > 1) refuse("a special mode of prmt");
    decoder.emit_typed(lanewise<kPrmt, uint32_t, 3>(), {"u32", "u32", "u32", "u32"});
});

uint32_t amount(uint32_t count, bool wraps) { return wraps ? count & 31 : std::min(count, 32u); }

template <bool wraps>
struct Szext {
    template <class T>
    T operator()(T a, uint32_t b) const {
        const uint32_t unused = 64 - amount(b, wraps);
        if (unused >= 64) return 0;
        if constexpr (kSigned<T>) return T(int64_t(uint64_t(int64_t(a)) << unused) >> unused);
        else return T(uint64_t(a) << unused >> unused);
    }
};
template <bool wraps>
struct Bmsk {
    uint32_t operator()(uint32_t a, uint32_t b) const {
        const uint32_t start = amount(a, wraps), end = std::min(start + amount(b, wraps), 32u);
        return uint32_t(ones(end) & ~ones(start));
    }
};
const Registration kWidths({"szext", "bmsk"}, [](Decoder& decoder, const Source& ins) {
    if (ins.modifiers.size() != 2) refuse();
    const std::string type = ins.opcode == "bmsk" ? "u32" : ins.type();
    const auto run_of = [&](auto wraps) -> Run {
        if (ins.opcode == "bmsk") return lanewise<kOp<Bmsk<wraps>>, uint32_t, 2>();
        if (type == "u32") return lanewise<kOp<Szext<wraps>>, uint32_t, 2>();
        if (type == "s32") return Lanewise<kOp<Szext<wraps>>, int32_t, int32_t, uint32_t>::run;
        refuse("the type ." + type);
    };
    decoder.emit_typed(by_flags(run_of, ins.modifiers[0] == "wrap"), {type, type, "u32"});
});

template <class T, bool adds>
struct Differences {
    uint32_t operator()(uint32_t a, uint32_t b, uint32_t c) const {
        uint32_t result = adds ? c : 0;
        for (uint32_t i = 0; i < 4; i++) {
            const int32_t x = T(a >> 8 * i), y = T(b >> 8 * i);
            const uint32_t apart = uint8_t(x < y ? y - x : x - y);
            result += adds ? apart : apart << 8 * i;
        }
        return result;
    }
};
const Registration kDifferences({"vabsdiff4"}, [](Decoder& decoder, const Source& ins) {
    if (ins.modifiers.size() < 3 || ins.modifiers[1] != ins.modifiers[2]) refuse();
    const bool adds = ins.modifiers.size() == 4 && ins.modifiers[3] == "add";
    if (ins.modifiers.size() > 3 && !adds) refuse();
    const bool is_signed = ins.modifiers[1] == "s32";
    if (!is_signed && ins.modifiers[1] != "u32") refuse();
    const auto run_of = [](auto has_sign, auto sums) {
        return lanewise<kOp<Differences<std::conditional_t<has_sign, int8_t, uint8_t>, sums>>, uint32_t, 3>();
    };
    decoder.emit_typed(by_flags(run_of, is_signed, adds), {"b32", "b32", "b32", "b32"});
});

}  // namespace

bool is_integer_type(const std::string& type) { return type[0] == 'u' || type[0] == 's'; }

void integer_arithmetic(Decoder& decoder, const Source& ins) {
    const std::string &opcode = ins.opcode, &type = ins.type();
    const bool multiplies = opcode.rfind("mul", 0) == 0 || opcode.rfind("mad", 0) == 0;
    const auto family = kFamilies.find(opcode + (ins.has("hi") ? ".hi" : ""));
    if (family == kFamilies.end()) refuse();
    const auto& [run, sources, of_bits] = family->second;
    expect_operands(ins, sources + 1);
    if (ins.has("sat")) {
        if (type != "s32" || ins.modifiers.size() != 2 || (opcode != "add" && opcode != "sub")) refuse();
        return same_type(decoder, ins,
                         opcode == "add" ? lanewise<kAddSat, int32_t, 2>() : lanewise<kSubSat, int32_t, 2>(), type);
    }
    if (ins.has("wide") && (opcode == "mul" || opcode == "mad")) return wide(decoder, ins, sources == 3);
    if (ins.modifiers.size() > 1 && opcode != "div" && !multiplies) refuse();
    same_type(decoder, ins, run(of_bits && type[0] == 'b' ? "u" + type.substr(1) : type), type);
}

void carrying(Decoder& decoder, const Source& ins) {
    const std::string& type = ins.type();
    const std::string operation = ins.opcode.substr(0, 3);
    const bool carried = ins.opcode.back() == 'c', sets = ins.has("cc"), multiplies = operation == "mad";
    const bool subtract = operation == "sub", is_wide = type == "u64" || type == "s64";
    if (!is_wide && type != "u32" && type != "s32") refuse();
    expect_operands(ins, multiplies ? 4 : 3);
    Row a = decoder.read(ins.operands[1], type), b = decoder.read(ins.operands[2], type);
    if (multiplies) {
        const Row c = decoder.read(ins.operands[3], type), product = decoder.scratch(width_of(type));
        decoder.emit(ins.has("hi") ? of_type<kHigh, 2>(type) : of_type<kLow, 2>(type), product, a, b);
        a = product;
        b = c;
    }
    const auto runs_of = [](auto of_64_bits, auto subtracts, auto has_carry) {
        using U = std::conditional_t<of_64_bits, uint64_t, uint32_t>;
        return std::pair<Run, Run>{Lanewise<kOp<CarryResult<subtracts, has_carry>>, U, U, U, uint32_t>::run,
                                   Lanewise<kOp<CarryFlag<subtracts, has_carry>>, uint32_t, U, U, uint32_t>::run};
    };
    const auto [result, flag] = by_flags(runs_of, is_wide, subtract, carried);
    const Row carry = decoder.carry(0), next = decoder.carry(1), d = decoder.write(ins.operands[0], type);
    if (sets) decoder.emit(flag, next, a, b, carry);
    decoder.emit(result, d, a, b, carry);
    if (sets) decoder.emit(copy_run(32), carry, next);
}

}  // namespace kernrec
