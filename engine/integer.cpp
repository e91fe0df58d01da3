// Integer arithmetic, logic and bit operations (PTX ISA, sections 9.7.1, 9.7.2 and 9.7.8). Arithmetic wraps.
#include <algorithm>
#include <set>
#include <type_traits>

#include "dispatch.h"

namespace kernrec {
namespace {

template <class T>
using Unsigned = std::make_unsigned_t<T>;

template <class T>
constexpr bool kSigned = std::is_signed_v<T>;

// Type of a product, with the signedness of T.
template <class T>
using Wider = std::conditional_t<sizeof(T) == 8, std::conditional_t<kSigned<T>, __int128, unsigned __int128>,
                                 std::conditional_t<sizeof(T) == 4, std::conditional_t<kSigned<T>, int64_t, uint64_t>,
                                                    std::conditional_t<kSigned<T>, int32_t, uint32_t>>>;

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

constexpr auto kHigh = [](auto a, auto b) {
    using T = decltype(a);
    return T(Wider<T>(a) * Wider<T>(b) >> 8 * sizeof(T));
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

constexpr auto kBrev = [](auto a) {
    decltype(a) result = 0;
    for (uint32_t bit = 0; bit < 8 * sizeof a; bit++) result = decltype(a)(result << 1 | (a >> bit & 1));
    return result;
};

// dp4a, dp2a: multiply `count` parts of a by bytes of b, from byte `from`, and add the products to c. The type of b
// gives the signedness of its bytes.
template <class A, int count, int from>
struct Dot {
    template <class B>
    uint32_t operator()(uint32_t a, B b, uint32_t c) const {
        using Octet = std::conditional_t<kSigned<B>, int8_t, uint8_t>;
        for (int i = 0; i < count; i++) {
            const int64_t part = A(a >> (32 / count) * i), octet = Octet(b >> 8 * (from + i));
            c += uint32_t(part * octet);
        }
        return c;
    }
};

constexpr auto kShl = [](auto a, uint32_t b) {
    using T = decltype(a);
    return b >= 8 * sizeof(T) ? T(0) : T(Unsigned<T>(a) << b);
};
constexpr auto kShr = [](auto a, uint32_t b) {
    using T = decltype(a);
    if (b >= 8 * sizeof(T)) return a < T(0) ? T(~T(0)) : T(0);
    return T(a >> b);
};

// Return the number of bits to shift: `count` modulo 32 if it wraps, or else at most 32.
uint32_t amount(uint32_t count, bool wraps) { return wraps ? count & 31 : std::min(count, 32u); }

template <bool left, bool wrap>
struct Funnel {
    uint32_t operator()(uint32_t a, uint32_t b, uint32_t c) const {
        const uint64_t both = uint64_t(b) << 32 | a, by = amount(c, wrap);
        return uint32_t(left ? (both << by) >> 32 : both >> by);
    }
};

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

// Type of an operand: the type of the instruction, the type twice as wide, or u32.
enum Kind : uint8_t { kT, kWider, kU32 };
template <class T, Kind kind>
using TypeOf = std::conditional_t<kind == kT, T, std::conditional_t<kind == kWider, Wider<T>, uint32_t>>;

// Operation of an instruction for a type, and the kinds of the operands.
struct Form {
    Run (*run)(const std::string& type);
    std::vector<Kind> kinds;
};

template <class... T>
struct Types {};
constexpr Types<uint32_t, int32_t> kWords;
constexpr Types<uint32_t, int32_t, uint64_t, int64_t> kLongWords;
constexpr Types<uint32_t, int32_t, uint16_t, int16_t> kShortWords;
constexpr Types<uint32_t, int32_t, uint64_t, int64_t, uint16_t, int16_t> kAllWords;

template <const auto& op, Kind... kinds, class... T>
Form form(Types<T...>) {
    const auto run = [](const std::string& type) {
        return for_integer<T...>(type, [](auto t) -> Run { return Lanewise<op, TypeOf<decltype(t), kinds>...>::run; });
    };
    return {run, {kinds...}};
}

template <const auto& op, int sources>
Run of_type(const std::string& type) {
    if (type == "u16x2") return lanewise<kOp<Pairs<op, uint16_t, uint32_t>>, uint32_t, sources>();
    if (type == "s16x2") return lanewise<kOp<Pairs<op, int16_t, uint32_t>>, uint32_t, sources>();
    return for_any_integer(type, [](auto t) { return lanewise<op, decltype(t), sources>(); });
}
template <const auto& op, int sources>
Form plain() {
    return {of_type<op, sources>, std::vector<Kind>(sources + 1, kT)};
}
template <const auto& op, int sources>
Form logic() {
    const auto run = [](const std::string& type) {
        return type == "pred" ? lanewise<op, bool, sources>() : of_type<op, sources>(type);
    };
    return {run, std::vector<Kind>(sources + 1, kT)};
}

// Instructions by name, without `.lo` and the type.
const std::map<std::string, Form> kForms = {
    {"add", plain<kAdd, 2>()},
    {"sub", plain<kSub, 2>()},
    {"add.sat", form<kAddSat, kT, kT, kT>(Types<int32_t>())},
    {"sub.sat", form<kSubSat, kT, kT, kT>(Types<int32_t>())},
    {"min", plain<kMin, 2>()},
    {"max", plain<kMax, 2>()},
    {"neg", plain<kNeg, 1>()},
    {"abs", plain<kAbs, 1>()},
    {"div", plain<kDiv, 2>()},
    {"rem", plain<kRem, 2>()},
    {"sad", plain<kSad, 3>()},
    {"mul", plain<kLow, 2>()},
    {"mul.hi", plain<kHigh, 2>()},
    {"mul.wide", form<kWide, kWider, kT, kT>(kShortWords)},
    {"mul24", plain<kLow24, 2>()},
    {"mad", plain<kMad, 3>()},
    {"mad.hi", plain<kMadHigh, 3>()},
    {"mad.wide", form<kMadWide, kWider, kT, kT, kWider>(kShortWords)},
    {"mad24", plain<kMad24, 3>()},
    {"cnot", plain<kCnot, 1>()},
    {"brev", form<kBrev, kT, kT>(Types<uint32_t, uint64_t>())},
    {"and", logic<kAnd, 2>()},
    {"or", logic<kOr, 2>()},
    {"xor", logic<kXor, 2>()},
    {"not", logic<kNot, 1>()},
    {"shl", form<kShl, kT, kT, kU32>(kAllWords)},
    {"shr", form<kShr, kT, kT, kU32>(kAllWords)},
    {"shf.l.clamp", form<kOp<Funnel<true, false>>, kU32, kU32, kU32, kU32>(kWords)},
    {"shf.r.clamp", form<kOp<Funnel<false, false>>, kU32, kU32, kU32, kU32>(kWords)},
    {"shf.l.wrap", form<kOp<Funnel<true, true>>, kU32, kU32, kU32, kU32>(kWords)},
    {"shf.r.wrap", form<kOp<Funnel<false, true>>, kU32, kU32, kU32, kU32>(kWords)},
    {"prmt", form<kPrmt, kU32, kU32, kU32, kU32>(kWords)},
    {"popc", form<kPopc, kU32, kT>(Types<uint32_t, uint64_t>())},
    {"clz", form<kClz, kU32, kT>(Types<uint32_t, uint64_t>())},
    {"bfind", form<kOp<Bfind<false>>, kU32, kT>(kLongWords)},
    {"bfind.shiftamt", form<kOp<Bfind<true>>, kU32, kT>(kLongWords)},
    {"bfe", form<kBfe, kT, kT, kU32, kU32>(kLongWords)},
    {"bfi", form<kBfi, kT, kT, kT, kU32, kU32>(kLongWords)},
    {"szext.clamp", form<kOp<Szext<false>>, kT, kT, kU32>(kWords)},
    {"szext.wrap", form<kOp<Szext<true>>, kT, kT, kU32>(kWords)},
    {"bmsk.clamp", form<kOp<Bmsk<false>>, kU32, kU32, kU32>(kWords)},
    {"bmsk.wrap", form<kOp<Bmsk<true>>, kU32, kU32, kU32>(kWords)},
    {"dp4a.s32", form<kOp<Dot<int8_t, 4, 0>>, kU32, kU32, kT, kU32>(kWords)},
    {"dp4a.u32", form<kOp<Dot<uint8_t, 4, 0>>, kU32, kU32, kT, kU32>(kWords)},
    {"dp2a.s32", form<kOp<Dot<int16_t, 2, 0>>, kU32, kU32, kT, kU32>(kWords)},
    {"dp2a.u32", form<kOp<Dot<uint16_t, 2, 0>>, kU32, kU32, kT, kU32>(kWords)},
    {"dp2a.hi.s32", form<kOp<Dot<int16_t, 2, 2>>, kU32, kU32, kT, kU32>(kWords)},
    {"dp2a.hi.u32", form<kOp<Dot<uint16_t, 2, 2>>, kU32, kU32, kT, kU32>(kWords)}};

const Registration kInteger({"mul24", "mad24", "rem", "sad",   "cnot", "brev", "and",  "or",
                             "xor",   "not",   "shl", "shr",   "shf",  "prmt", "popc", "clz",
                             "bfind", "bfe",   "bfi", "szext", "bmsk", "dp4a", "dp2a"},
                            integer_arithmetic);

// Logic with three operands: bit i of the table is the result if (a, b, c) are the bits of i.
constexpr auto kTableLogic = [](uint32_t a, uint32_t b, uint32_t c, uint32_t table) {
    uint32_t result = 0;
    for (uint32_t i = 0; i < 8; i++)
        result |= (0 - (table >> i & 1)) & (i & 4 ? a : ~a) & (i & 2 ? b : ~b) & (i & 1 ? c : ~c);
    return result;
};

const Registration kLop3({"lop3"}, [](Decoder& decoder, const Source& ins) {
    if (ins.modifiers.size() > 1) refuse();
    const Row a = decoder.read(ins.operands[1], "b32"), b = decoder.read(ins.operands[2], "b32");
    const Row c = decoder.read(ins.operands[3], "b32"), d = decoder.write(ins.operands[0], "b32");
    const Row table = decoder.constant(32, uint32_t(literal(ins.operands[4])));
    decoder.emit(Lanewise<kTableLogic, uint32_t, uint32_t, uint32_t, uint32_t, uint32_t>::run, d, a, b, c, table);
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
    if (ins.modifiers[1] != ins.modifiers[2]) refuse();
    const bool adds = ins.modifiers.size() == 4 && ins.modifiers[3] == "add";
    if (ins.modifiers.size() > 3 && !adds) refuse();
    const bool is_signed = ins.modifiers[1] == "s32";
    if (!is_signed && ins.modifiers[1] != "u32") refuse();
    const auto run_of = [](auto has_sign, auto sums) {
        return lanewise<kOp<Differences<std::conditional_t<has_sign, int8_t, uint8_t>, sums>>, uint32_t, 3>();
    };
    decoder.emit_typed(by_flags(run_of, is_signed, adds), {"b32", "b32", "b32", "b32"});
});

// Arithmetic with a carry flag, which is 0 or 1 in each lane. Return the result, or the new flag if `is_flag`.
template <bool subtract, bool carried, bool is_flag>
struct Carry {
    template <class U>
    auto operator()(U a, U b, uint32_t carry) const {
        const U more = carried ? U(carry) : 0, first = subtract ? a - b : a + b;
        const U result = subtract ? first - more : first + more;
        if constexpr (is_flag) return uint32_t(subtract ? a < b || result > first : first < a || result < first);
        else return result;
    }
};

const Registration kCarrying({"addc", "subc", "madc"}, carrying);

}  // namespace

bool is_integer_type(const std::string& type) { return type[0] == 'u' || type[0] == 's'; }

void integer_arithmetic(Decoder& decoder, const Source& ins) {
    static const std::set<std::string> kWithLow = {"mul", "mad", "mul24", "mad24", "dp2a"};
    static const std::set<std::string> kOfNumbers = {"rem",   "sad",   "bfe",  "bfind", "mul24",
                                                     "mad24", "szext", "dp4a", "dp2a"};
    std::string name = ins.opcode;
    for (size_t i = 0; i + 1 < ins.modifiers.size(); i++)
        if (ins.modifiers[i] != "lo" || !kWithLow.count(ins.opcode)) name += "." + ins.modifiers[i];
    const auto form = kForms.find(name);
    if (form == kForms.end() || (ins.type()[0] == 'b' && kOfNumbers.count(ins.opcode))) refuse();
    const std::string &type = ins.type(), wider = type.substr(0, 1) + (type.find("16") == 1 ? "32" : "64");
    std::vector<std::string_view> types;
    for (const Kind kind : form->second.kinds)
        types.push_back(kind == kT ? std::string_view(type) : kind == kWider ? std::string_view(wider) : "u32");
    decoder.emit_typed(form->second.run(type), types);
}

void carrying(Decoder& decoder, const Source& ins) {
    const std::string& type = ins.type();
    const std::string operation = ins.opcode.substr(0, 3);
    const bool carried = ins.opcode.back() == 'c', sets = ins.has("cc"), multiplies = operation == "mad";
    const bool subtract = operation == "sub", is_wide = type == "u64" || type == "s64";
    if (!is_wide && type != "u32" && type != "s32") refuse();
    Row a = decoder.read(ins.operands[1], type), b = decoder.read(ins.operands[2], type);
    if (multiplies) {
        const Row c = decoder.read(ins.operands[3], type), product = decoder.scratch(width_of(type));
        decoder.emit(ins.has("hi") ? of_type<kHigh, 2>(type) : of_type<kLow, 2>(type), product, a, b);
        a = product;
        b = c;
    }
    const auto runs_of = [](auto of_64_bits, auto subtracts, auto has_carry) {
        using U = std::conditional_t<of_64_bits, uint64_t, uint32_t>;
        return std::pair<Run, Run>{Lanewise<kOp<Carry<subtracts, has_carry, false>>, U, U, U, uint32_t>::run,
                                   Lanewise<kOp<Carry<subtracts, has_carry, true>>, uint32_t, U, U, uint32_t>::run};
    };
    const auto [result, flag] = by_flags(runs_of, is_wide, subtract, carried);
    const Row carry = decoder.carry(0), next = decoder.carry(1), d = decoder.write(ins.operands[0], type);
    if (sets) decoder.emit(flag, next, a, b, carry);
    decoder.emit(result, d, a, b, carry);
    if (sets) decoder.emit(copy_run(32), carry, next);
}

}  // namespace kernrec
