// Integer arithmetic, logic and bit operations (PTX ISA, sections 9.7.1, 9.7.2 and 9.7.8). Arithmetic wraps.
#include <algorithm>
#include <array>
#include <limits>
#include <type_traits>

#include "decoder.h"
#include "lanes.h"

namespace kernrec {
namespace {

template <class T>
using Unsigned = std::make_unsigned_t<T>;

template <class T>
constexpr bool kSigned = std::is_signed_v<T>;

// Wrap arithmetic without undefined behavior.
template <class T>
T wrap(uint64_t value) {
    return static_cast<T>(static_cast<Unsigned<T>>(value));
}

template <class T>
struct Add {
    static T apply(T a, T b) { return T(Unsigned<T>(Unsigned<T>(a) + Unsigned<T>(b))); }
};
template <class T>
struct Sub {
    static T apply(T a, T b) { return T(Unsigned<T>(Unsigned<T>(a) - Unsigned<T>(b))); }
};
template <class T>
struct Min {
    static T apply(T a, T b) { return a < b ? a : b; }
};
template <class T>
struct Max {
    static T apply(T a, T b) { return a > b ? a : b; }
};
template <class T>
struct Neg {
    static T apply(T a) { return wrap<T>(0 - uint64_t(a)); }
};
template <class T>
struct Abs {
    static T apply(T a) { return a < T(0) ? Neg<T>::apply(a) : a; }
};
template <class T>
struct Low {
    static T apply(T a, T b) { return wrap<T>(uint64_t(a) * uint64_t(b)); }
};
template <>
struct Low<int32_t> {
    static int32_t apply(int32_t a, int32_t b) { return int32_t(uint32_t(a) * uint32_t(b)); }
};
template <>
struct Low<uint32_t> {
    static uint32_t apply(uint32_t a, uint32_t b) { return a * b; }
};

uint64_t high64(uint64_t a, uint64_t b) {
    const uint64_t low = 0xFFFFFFFF, a0 = a & low, a1 = a >> 32, b0 = b & low, b1 = b >> 32;
    const uint64_t middle = a1 * b0 + (a0 * b0 >> 32), other = a0 * b1 + (middle & low);
    return a1 * b1 + (middle >> 32) + (other >> 32);
}

template <class T>
struct High {
    static T apply(T a, T b) {
        if constexpr (sizeof(T) == 8) {
            uint64_t high = high64(uint64_t(a), uint64_t(b));
            if constexpr (kSigned<T>) high -= (a < 0 ? uint64_t(b) : 0) + (b < 0 ? uint64_t(a) : 0);
            return T(high);
        } else {
            using Wide = std::conditional_t<kSigned<T>, int64_t, uint64_t>;
            return T(Wide(a) * Wide(b) >> 8 * sizeof(T));
        }
    }
};
template <class T>
struct Low24 {
    static T apply(T a, T b) {
        const T x = T(T(Unsigned<T>(a) << 8) >> 8), y = T(T(Unsigned<T>(b) << 8) >> 8);
        return wrap<T>(uint64_t(x) * uint64_t(y));
    }
};

template <template <class> class Part, class T>
struct Mad {
    static T apply(T a, T b, T c) { return Add<T>::apply(Part<T>::apply(a, b), c); }
};

template <class T, class Wide>
struct MulWide {
    static Wide apply(T a, T b) { return Wide(a) * Wide(b); }
};
template <class T, class Wide>
struct MadWide {
    static Wide apply(T a, T b, Wide c) { return Add<Wide>::apply(Wide(a) * Wide(b), c); }
};

// Divide with truncation. A zero divisor returns all ones, like the hardware.
template <class T>
struct Div {
    static T apply(T a, T b) {
        if (b == 0) return T(~T(0));
        if constexpr (kSigned<T>)
            if (b == -1) return Neg<T>::apply(a);
        return T(a / b);
    }
};
template <class T>
struct Rem {
    static T apply(T a, T b) {
        if (b == 0) return a;
        if constexpr (kSigned<T>)
            if (b == -1) return 0;
        return T(a % b);
    }
};
template <class T>
struct Sad {
    static T apply(T a, T b, T c) { return Add<T>::apply(c, a < b ? Sub<T>::apply(b, a) : Sub<T>::apply(a, b)); }
};
template <class T>
struct Cnot {
    static T apply(T a) { return a == 0; }
};

struct AddSat {
    static int32_t apply(int32_t a, int32_t b) {
        return int32_t(std::clamp<int64_t>(int64_t(a) + b, INT32_MIN, INT32_MAX));
    }
};
struct SubSat {
    static int32_t apply(int32_t a, int32_t b) {
        return int32_t(std::clamp<int64_t>(int64_t(a) - b, INT32_MIN, INT32_MAX));
    }
};

// Apply an operation to both halves of 32 bits.
template <class Op, class T>
struct Halves {
    template <class... S>
    static uint32_t apply(S... sources) {
        const T low = Op::apply(T(uint16_t(sources))...), high = Op::apply(T(uint16_t(sources >> 16))...);
        return uint32_t(uint16_t(low)) | uint32_t(uint16_t(high)) << 16;
    }
};

template <class Op, class T>
Run unary() {
    return Lanewise<Op, T, T>::run;
}
template <class Op, class T>
Run binary() {
    return Lanewise<Op, T, T, T>::run;
}
template <class Op, class T>
Run ternary() {
    return Lanewise<Op, T, T, T, T>::run;
}

enum class Arity { kOne, kTwo, kThree };

template <Arity arity, class Op, class T>
Run with_arity() {
    if constexpr (arity == Arity::kOne) return unary<Op, T>();
    else if constexpr (arity == Arity::kTwo) return binary<Op, T>();
    else return ternary<Op, T>();
}

// Return the operation on integers of a PTX type.
template <template <class> class Op, Arity arity>
Run of_type(const std::string& type) {
    if (type == "u32") return with_arity<arity, Op<uint32_t>, uint32_t>();
    if (type == "s32") return with_arity<arity, Op<int32_t>, int32_t>();
    if (type == "u64") return with_arity<arity, Op<uint64_t>, uint64_t>();
    if (type == "s64") return with_arity<arity, Op<int64_t>, int64_t>();
    if (type == "u16") return with_arity<arity, Op<uint16_t>, uint16_t>();
    if (type == "s16") return with_arity<arity, Op<int16_t>, int16_t>();
    if (type == "u8") return with_arity<arity, Op<uint8_t>, uint8_t>();
    if (type == "s8") return with_arity<arity, Op<int8_t>, int8_t>();
    if (type == "u16x2") return with_arity<arity, Halves<Op<uint16_t>, uint16_t>, uint32_t>();
    if (type == "s16x2") return with_arity<arity, Halves<Op<int16_t>, int16_t>, uint32_t>();
    refuse("the type ." + type);
}

template <class T>
using MadLow = Mad<Low, T>;
template <class T>
using MadHigh = Mad<High, T>;
template <class T>
using Mad24 = Mad<Low24, T>;

// Emit an operation whose operands all have one type.
void same_type(Decoder& decoder, const Source& ins, Run run, const std::string& type) {
    const size_t sources = ins.operands.size() - 1;
    Row rows[4];
    for (size_t i = 0; i < sources && i < 4; i++) rows[i] = decoder.read(ins.operands[i + 1], type);
    const Row d = decoder.write(ins.operands[0], type);
    Instruction& made = decoder.emit(run);
    made.d = d;
    made.a = rows[0];
    made.b = rows[1];
    made.c = rows[2];
    made.e = rows[3];
}

void expect_operands(const Source& ins, size_t count) {
    if (ins.operands.size() != count) refuse(std::to_string(ins.operands.size()) + " operands");
}

// Return `mad.wide` or `mul.wide` of numbers of type T with a result of type Wide.
template <class T, class Wide>
Run wide_run(bool plus) {
    return plus ? Lanewise<MadWide<T, Wide>, Wide, T, T, Wide>::run : Lanewise<MulWide<T, Wide>, Wide, T, T>::run;
}

void wide(Decoder& decoder, const Source& ins, bool plus) {
    const std::string& type = ins.type();
    Run run = nullptr;
    if (type == "u32") run = wide_run<uint32_t, uint64_t>(plus);
    if (type == "s32") run = wide_run<int32_t, int64_t>(plus);
    if (type == "u16") run = wide_run<uint16_t, uint32_t>(plus);
    if (type == "s16") run = wide_run<int16_t, int32_t>(plus);
    if (!run) refuse("the type ." + type);
    const std::string result = type.substr(0, 1) + (type.substr(1) == "32" ? "64" : "32");
    const Row a = decoder.read(ins.operands[1], type), b = decoder.read(ins.operands[2], type);
    const Row c = plus ? decoder.read(ins.operands[3], result) : Row{};
    const Row d = decoder.write(ins.operands[0], result);
    Instruction& made = decoder.emit(run);
    made.d = d;
    made.a = a;
    made.b = b;
    made.c = c;
}

void multiply(Decoder& decoder, const Source& ins) {
    const std::string& type = ins.type();
    const bool plus = ins.opcode.rfind("mad", 0) == 0, is_short = ins.opcode.size() > 3;
    expect_operands(ins, plus ? 4 : 3);
    if (ins.has("sat") || (is_short && ins.has("hi"))) refuse();
    if (ins.has("wide") && !is_short) return wide(decoder, ins, plus);
    Run run;
    if (is_short) run = plus ? of_type<Mad24, Arity::kThree>(type) : of_type<Low24, Arity::kTwo>(type);
    else if (ins.has("hi")) run = plus ? of_type<MadHigh, Arity::kThree>(type) : of_type<High, Arity::kTwo>(type);
    else run = plus ? of_type<MadLow, Arity::kThree>(type) : of_type<Low, Arity::kTwo>(type);
    same_type(decoder, ins, run, type);
}
const Registration kMul24({"mul24", "mad24"}, multiply);

}  // namespace

bool is_integer_type(const std::string& type) { return type[0] == 'u' || type[0] == 's'; }

// add sub min max neg abs div mul mad for integers.
void integer_arithmetic(Decoder& decoder, const Source& ins) {
    const std::string &opcode = ins.opcode, &type = ins.type();
    if (opcode == "mul" || opcode == "mad") return multiply(decoder, ins);
    expect_operands(ins, opcode == "neg" || opcode == "abs" ? 2 : 3);
    Run run = nullptr;
    if (ins.has("sat")) {
        if (type != "s32" || ins.modifiers.size() != 2) refuse();
        if (opcode == "add") run = binary<AddSat, int32_t>();
        if (opcode == "sub") run = binary<SubSat, int32_t>();
        if (!run) refuse();
    } else {
        if (ins.modifiers.size() > 1 && opcode != "div") refuse();
        if (opcode == "add") run = of_type<Add, Arity::kTwo>(type);
        else if (opcode == "sub") run = of_type<Sub, Arity::kTwo>(type);
        else if (opcode == "min") run = of_type<Min, Arity::kTwo>(type);
        else if (opcode == "max") run = of_type<Max, Arity::kTwo>(type);
        else if (opcode == "neg") run = of_type<Neg, Arity::kOne>(type);
        else if (opcode == "abs") run = of_type<Abs, Arity::kOne>(type);
        else if (opcode == "div") run = of_type<Div, Arity::kTwo>(type);
        else refuse();
    }
    same_type(decoder, ins, run, type);
}

namespace {

template <class T>
struct Brev {
    static T apply(T a) {
        T result = 0;
        for (uint32_t bit = 0; bit < 8 * sizeof(T); bit++) result = T(result << 1 | (a >> bit & 1));
        return result;
    }
};

const Registration kSameType({"rem", "sad", "cnot", "brev"}, [](Decoder& decoder, const Source& ins) {
    const std::string& opcode = ins.opcode;
    const std::string& type = ins.type();
    const std::string as = type[0] == 'b' ? "u" + type.substr(1) : type;
    expect_operands(ins, opcode == "rem" ? 3 : opcode == "sad" ? 4 : 2);
    Run run;
    if (opcode == "rem") run = of_type<Rem, Arity::kTwo>(type);
    else if (opcode == "sad") run = of_type<Sad, Arity::kThree>(type);
    else if (opcode == "cnot") run = of_type<Cnot, Arity::kOne>(as);
    else if (as == "u32") run = unary<Brev<uint32_t>, uint32_t>();
    else if (as == "u64") run = unary<Brev<uint64_t>, uint64_t>();
    else refuse("the type ." + type);
    same_type(decoder, ins, run, type);
});

template <class T>
struct And {
    static T apply(T a, T b) { return a & b; }
};
template <class T>
struct Or {
    static T apply(T a, T b) { return a | b; }
};
template <class T>
struct Xor {
    static T apply(T a, T b) { return a ^ b; }
};
template <class T>
struct Not {
    static T apply(T a, T = 0) { return T(~a); }
};

const Registration kLogic({"and", "or", "xor", "not"}, [](Decoder& decoder, const Source& ins) {
    const std::string &opcode = ins.opcode, &type = ins.type();
    expect_operands(ins, opcode == "not" ? 2 : 3);
    if (type == "pred") {
        const Run run = opcode == "and"   ? flagwise<And<uint32_t>>
                        : opcode == "or"  ? flagwise<Or<uint32_t>>
                        : opcode == "xor" ? flagwise<Xor<uint32_t>>
                                          : flagwise<Not<uint32_t>>;
        return same_type(decoder, ins, run, type);
    }
    if (type.find('f') != std::string::npos) refuse("the type ." + type);
    const std::string as = "u" + std::to_string(width_of(type));
    Run run;
    if (opcode == "and") run = of_type<And, Arity::kTwo>(as);
    else if (opcode == "or") run = of_type<Or, Arity::kTwo>(as);
    else if (opcode == "xor") run = of_type<Xor, Arity::kTwo>(as);
    else run = of_type<Not, Arity::kOne>(as);
    same_type(decoder, ins, run, type);
});

// dp4a, dp2a: multiply parts of a with octets of b starting at `from`, and add them to c.
template <class A, class B, class C, int count, int from>
struct Dot {
    static C apply(uint32_t a, uint32_t b, C c) {
        uint32_t total = uint32_t(c);
        for (int i = 0; i < count; i++) {
            const int64_t part = A(a >> (32 / count) * i), octet = B(b >> 8 * (from + i));
            total += uint32_t(part * octet);
        }
        return C(total);
    }
};

template <class A4, class A2, class B, class C>
Run dot(const Source& ins) {
    if (ins.opcode == "dp4a") return Lanewise<Dot<A4, B, C, 4, 0>, C, uint32_t, uint32_t, C>::run;
    return ins.has("hi") ? Lanewise<Dot<A2, B, C, 2, 2>, C, uint32_t, uint32_t, C>::run
                         : Lanewise<Dot<A2, B, C, 2, 0>, C, uint32_t, uint32_t, C>::run;
}

const Registration kDot({"dp4a", "dp2a"}, [](Decoder& decoder, const Source& ins) {
    expect_operands(ins, 4);
    if (ins.modifiers.size() < 2) refuse();
    const std::string &second = ins.type(), &first = ins.modifiers[ins.modifiers.size() - 2];
    const bool a = first == "s32", b = second == "s32";
    if ((!a && first != "u32") || (!b && second != "u32")) refuse();
    const Run run =
        a ? (b ? dot<int8_t, int16_t, int8_t, int32_t>(ins) : dot<int8_t, int16_t, uint8_t, int32_t>(ins))
          : (b ? dot<uint8_t, uint16_t, int8_t, int32_t>(ins) : dot<uint8_t, uint16_t, uint8_t, uint32_t>(ins));
    same_type(decoder, ins, run, "b32");
});

// Carry: a separate row holds each lane's flag. A second row receives the new carry, which is computed first.
template <class U, bool subtract, bool carried>
struct Carrying {
    static U result(U a, U b, uint32_t carry) {
        return subtract ? U(a - b - (carried ? U(carry) : 0)) : U(a + b + (carried ? U(carry) : 0));
    }
    static uint32_t flag(U a, U b, uint32_t carry) {
        if (subtract) {
            const U left = a - b;
            return a < b || (carried && U(left - U(carry)) > left);
        }
        const U total = a + b;
        return total < a || (carried && U(total + U(carry)) < total);
    }
};
template <class Law, class U>
struct CarryResult {
    static U apply(U a, U b, uint32_t carry) { return Law::result(a, b, carry); }
};
template <class Law, class U>
struct CarryFlag {
    static uint32_t apply(U a, U b, uint32_t carry) { return Law::flag(a, b, carry); }
};
template <class T>
struct Copy {
    static T apply(T a) { return a; }
};

template <class U, bool subtract, bool carried>
std::pair<Run, Run> carry_runs() {
    using Law = Carrying<U, subtract, carried>;
    return {Lanewise<CarryResult<Law, U>, U, U, U, uint32_t>::run,
            Lanewise<CarryFlag<Law, U>, uint32_t, U, U, uint32_t>::run};
}

}  // namespace

// addc subc madc, and add sub mad with .cc.
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
        const Run run = ins.has("hi") ? of_type<High, Arity::kTwo>(type) : of_type<Low, Arity::kTwo>(type);
        Instruction& made = decoder.emit(run);
        made.d = product;
        made.a = a;
        made.b = b;
        a = product;
        b = c;
    }
    const std::pair<Run, Run> runs =
        is_wide ? (subtract ? (carried ? carry_runs<uint64_t, true, true>() : carry_runs<uint64_t, true, false>())
                            : (carried ? carry_runs<uint64_t, false, true>() : carry_runs<uint64_t, false, false>()))
                : (subtract ? (carried ? carry_runs<uint32_t, true, true>() : carry_runs<uint32_t, true, false>())
                            : (carried ? carry_runs<uint32_t, false, true>() : carry_runs<uint32_t, false, false>()));
    const Row carry = decoder.carry(0), next = decoder.carry(1), d = decoder.write(ins.operands[0], type);
    auto emit = [&](Run run, Row to) {
        Instruction& made = decoder.emit(run);
        made.d = to;
        made.a = a;
        made.b = b;
        made.c = carry;
    };
    if (sets) emit(runs.second, next);
    emit(runs.first, d);
    if (sets) {
        Instruction& copy = decoder.emit(Lanewise<Copy<uint32_t>, uint32_t, uint32_t>::run);
        copy.d = carry;
        copy.a = next;
    }
}

namespace {

const Registration kCarrying({"addc", "subc", "madc"}, carrying);

// Bits

template <class T>
struct Shl {
    static T apply(T a, uint32_t b) { return b >= 8 * sizeof(T) ? T(0) : T(Unsigned<T>(a) << b); }
};
template <class T>
struct Shr {
    static T apply(T a, uint32_t b) {
        if (b >= 8 * sizeof(T)) return a < T(0) ? T(~T(0)) : T(0);
        return T(a >> b);
    }
};

template <template <class> class Op>
Run shift(const std::string& type) {
    if (type == "u32" || type == "b32") return Lanewise<Op<uint32_t>, uint32_t, uint32_t, uint32_t>::run;
    if (type == "s32") return Lanewise<Op<int32_t>, int32_t, int32_t, uint32_t>::run;
    if (type == "u64" || type == "b64") return Lanewise<Op<uint64_t>, uint64_t, uint64_t, uint32_t>::run;
    if (type == "s64") return Lanewise<Op<int64_t>, int64_t, int64_t, uint32_t>::run;
    if (type == "u16" || type == "b16") return Lanewise<Op<uint16_t>, uint16_t, uint16_t, uint32_t>::run;
    if (type == "s16") return Lanewise<Op<int16_t>, int16_t, int16_t, uint32_t>::run;
    refuse("the type ." + type);
}

// Emit an operation with separate types for the result and each source.
void typed(Decoder& decoder, const Source& ins, Run run, std::initializer_list<std::string> types) {
    expect_operands(ins, types.size());
    auto type = types.begin();
    const std::string result = *type++;
    Row rows[4];
    for (size_t i = 0; type != types.end(); i++) rows[i] = decoder.read(ins.operands[i + 1], *type++);
    const Row d = decoder.write(ins.operands[0], result);
    Instruction& made = decoder.emit(run);
    made.d = d;
    made.a = rows[0];
    made.b = rows[1];
    made.c = rows[2];
    made.e = rows[3];
}

const Registration kShift({"shl", "shr"}, [](Decoder& decoder, const Source& ins) {
    const std::string& type = ins.type();
    typed(decoder, ins, ins.opcode == "shl" ? shift<Shl>(type) : shift<Shr>(type), {type, type, "u32"});
});

template <bool left, bool wrap>
struct Funnel {
    static uint32_t apply(uint32_t a, uint32_t b, uint32_t c) {
        const uint32_t amount = wrap ? c & 31 : std::min(c, 32u);
        const uint64_t both = uint64_t(b) << 32 | a;
        return uint32_t(left ? (both << amount) >> 32 : both >> amount);
    }
};
const Registration kFunnel({"shf"}, [](Decoder& decoder, const Source& ins) {
    const bool left = ins.has("l"), wraps = ins.has("wrap");
    const Run run =
        left ? (wraps ? ternary<Funnel<true, true>, uint32_t>() : ternary<Funnel<true, false>, uint32_t>())
             : (wraps ? ternary<Funnel<false, true>, uint32_t>() : ternary<Funnel<false, false>, uint32_t>());
    typed(decoder, ins, run, {"u32", "u32", "u32", "u32"});
});

template <class T>
struct Popc {
    static uint32_t apply(T a) { return __builtin_popcountll(a); }
};
template <class T>
struct Clz {
    static uint32_t apply(T a) { return a ? __builtin_clzll(a) - (64 - 8 * sizeof(T)) : 8 * sizeof(T); }
};
template <class T, bool amount>
struct Bfind {
    static uint32_t apply(T a) {
        const Unsigned<T> value = Unsigned<T>(a < T(0) ? T(~a) : a);
        if (value == 0) return ~0u;
        const uint32_t position = 63 - __builtin_clzll(value);
        return amount ? 8 * sizeof(T) - 1 - position : position;
    }
};

template <bool amount>
Run bfind(const std::string& type) {
    if (type == "u32") return Lanewise<Bfind<uint32_t, amount>, uint32_t, uint32_t>::run;
    if (type == "s32") return Lanewise<Bfind<int32_t, amount>, uint32_t, int32_t>::run;
    if (type == "u64") return Lanewise<Bfind<uint64_t, amount>, uint32_t, uint64_t>::run;
    if (type == "s64") return Lanewise<Bfind<int64_t, amount>, uint32_t, int64_t>::run;
    refuse("the type ." + type);
}

const Registration kCount({"popc", "clz", "bfind"}, [](Decoder& decoder, const Source& ins) {
    const std::string& type = ins.type();
    if (ins.opcode == "bfind")
        return typed(decoder, ins, ins.has("shiftamt") ? bfind<true>(type) : bfind<false>(type), {"u32", type});
    const uint32_t width = width_of(type);
    if (width != 32 && width != 64) refuse("the type ." + type);
    const bool popc = ins.opcode == "popc";
    const Run run = width == 32 ? (popc ? Lanewise<Popc<uint32_t>, uint32_t, uint32_t>::run
                                        : Lanewise<Clz<uint32_t>, uint32_t, uint32_t>::run)
                                : (popc ? Lanewise<Popc<uint64_t>, uint32_t, uint64_t>::run
                                        : Lanewise<Clz<uint64_t>, uint32_t, uint64_t>::run);
    typed(decoder, ins, run, {"u32", type});
});

uint64_t ones(uint32_t count) { return count >= 64 ? ~0ull : (1ull << count) - 1; }

template <class T>
struct Bfe {
    static T apply(T a, uint32_t b, uint32_t c) {
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
    }
};
template <class T>
struct Bfi {
    static T apply(T a, T b, uint32_t c, uint32_t d) {
        constexpr uint32_t bits = 8 * sizeof(T);
        const uint32_t start = std::min(c & 0xFF, 64u), length = std::min(d & 0xFF, 64u);
        const uint32_t shift = std::min(start, 63u);
        const uint64_t mask = start >= bits ? 0 : ones(length) << shift;
        return T((uint64_t(b) & ~mask) | ((uint64_t(a) << shift) & mask));
    }
};

const Registration kFields({"bfe", "bfi"}, [](Decoder& decoder, const Source& ins) {
    const std::string& type = ins.type();
    if (ins.opcode == "bfe") {
        Run run = nullptr;
        if (type == "u32") run = Lanewise<Bfe<uint32_t>, uint32_t, uint32_t, uint32_t, uint32_t>::run;
        if (type == "s32") run = Lanewise<Bfe<int32_t>, int32_t, int32_t, uint32_t, uint32_t>::run;
        if (type == "u64") run = Lanewise<Bfe<uint64_t>, uint64_t, uint64_t, uint32_t, uint32_t>::run;
        if (type == "s64") run = Lanewise<Bfe<int64_t>, int64_t, int64_t, uint32_t, uint32_t>::run;
        if (!run) refuse("the type ." + type);
        return typed(decoder, ins, run, {type, type, "u32", "u32"});
    }
    const uint32_t width = width_of(type);
    if (width < 32) refuse("the type ." + type);
    typed(decoder, ins,
          width == 32 ? Lanewise<Bfi<uint32_t>, uint32_t, uint32_t, uint32_t, uint32_t, uint32_t>::run
                      : Lanewise<Bfi<uint64_t>, uint64_t, uint64_t, uint64_t, uint32_t, uint32_t>::run,
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
    Instruction& made = decoder.emit(lop3);
    made.d = d;
    made.a = a;
    made.b = b;
    made.c = c;
    made.mode = uint32_t(ins.operands[4].value) & 255;
});

struct Prmt {
    static uint32_t apply(uint32_t a, uint32_t b, uint32_t c) {
        const uint64_t both = a | uint64_t(b) << 32;
        uint32_t result = 0;
        for (uint32_t i = 0; i < 4; i++) {
            const uint32_t selector = c >> 4 * i & 15;
            uint32_t octet = uint32_t(both >> (selector & 7) * 8) & 0xFF;
            if (selector & 8) octet = octet & 0x80 ? 0xFF : 0;
            result |= octet << 8 * i;
        }
        return result;
    }
};
const Registration kPrmt({"prmt"}, [](Decoder& decoder, const Source& ins) {
    if (ins.modifiers.size() > 1) refuse("a special mode of prmt");
    typed(decoder, ins, ternary<Prmt, uint32_t>(), {"u32", "u32", "u32", "u32"});
});

uint32_t amount(uint32_t count, bool wraps) { return wraps ? count & 31 : std::min(count, 32u); }

template <class T, bool wraps>
struct Szext {
    static T apply(T a, uint32_t b) {
        const uint32_t unused = 64 - amount(b, wraps);
        if (unused >= 64) return 0;
        if constexpr (kSigned<T>) return T(int64_t(uint64_t(int64_t(a)) << unused) >> unused);
        else return T(uint64_t(a) << unused >> unused);
    }
};
template <bool wraps>
struct Bmsk {
    static uint32_t apply(uint32_t a, uint32_t b) {
        const uint32_t start = amount(a, wraps), end = std::min(start + amount(b, wraps), 32u);
        return uint32_t(ones(end) & ~ones(start));
    }
};
const Registration kWidths({"szext", "bmsk"}, [](Decoder& decoder, const Source& ins) {
    if (ins.modifiers.size() != 2) refuse();
    const bool wraps = ins.modifiers[0] == "wrap";
    const std::string& type = ins.type();
    if (ins.opcode == "bmsk")
        return typed(decoder, ins, wraps ? binary<Bmsk<true>, uint32_t>() : binary<Bmsk<false>, uint32_t>(),
                     {"u32", "u32", "u32"});
    Run run = nullptr;
    if (type == "u32")
        run = wraps ? Lanewise<Szext<uint32_t, true>, uint32_t, uint32_t, uint32_t>::run
                    : Lanewise<Szext<uint32_t, false>, uint32_t, uint32_t, uint32_t>::run;
    if (type == "s32")
        run = wraps ? Lanewise<Szext<int32_t, true>, int32_t, int32_t, uint32_t>::run
                    : Lanewise<Szext<int32_t, false>, int32_t, int32_t, uint32_t>::run;
    if (!run) refuse("the type ." + type);
    typed(decoder, ins, run, {type, type, "u32"});
});

template <class T, bool adds>
struct Differences {
    static uint32_t apply(uint32_t a, uint32_t b, uint32_t c) {
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
    const Run run = is_signed ? (adds ? ternary<Differences<int8_t, true>, uint32_t>()
                                      : ternary<Differences<int8_t, false>, uint32_t>())
                              : (adds ? ternary<Differences<uint8_t, true>, uint32_t>()
                                      : ternary<Differences<uint8_t, false>, uint32_t>());
    typed(decoder, ins, run, {"b32", "b32", "b32", "b32"});
});

}  // namespace
}  // namespace kernrec
