// Compare, select and move instructions: setp set selp slct mov cvta (PTX ISA, sections 9.7.6 and 9.7.9).
#include <array>
#include <cmath>

#include "decoder.h"
#include "lanes.h"
#include "number_formats.h"

namespace kernrec {

namespace {

enum class Test { kEq, kNe, kLt, kLe, kGt, kGe, kEqu, kNeu, kLtu, kLeu, kGtu, kGeu, kNum, kNan };

// Return whether a test holds for two numbers, which `Read` converts from registers.
template <Test test, class Read>
struct Holds {
    template <class S>
    bool operator()(S first, S second) const {
        const auto a = Read::read(first), b = Read::read(second);
        // An unordered comparison is the negation of the opposite ordered one, so it is true if an operand is NaN.
        if constexpr (test == Test::kEq) return a == b;
        else if constexpr (test == Test::kNe)
            return std::is_floating_point_v<decltype(+a)> ? (a < b) | (a > b) : a != b;
        else if constexpr (test == Test::kLt) return a < b;
        else if constexpr (test == Test::kLe) return a <= b;
        else if constexpr (test == Test::kGt) return a > b;
        else if constexpr (test == Test::kGe) return a >= b;
        else if constexpr (test == Test::kEqu) return !((a < b) | (a > b));
        else if constexpr (test == Test::kNeu) return a != b;
        else if constexpr (test == Test::kLtu) return !(a >= b);
        else if constexpr (test == Test::kLeu) return !(a > b);
        else if constexpr (test == Test::kGtu) return !(a <= b);
        else if constexpr (test == Test::kGeu) return !(a < b);
        else if constexpr (test == Test::kNum) return (a == a) & (b == b);
        else return (a != a) | (b != b);
    }
};

struct ReadPlain {
    template <class T>
    static T read(T value) {
        return value;
    }
};
struct FlushF32 {
    static float read(float value) { return std::fabs(value) < 0x1p-126f ? std::copysign(0.0f, value) : value; }
};
template <uint32_t shift>
struct ReadF16 {
    static float read(uint32_t bits) { return f16_to_f32(uint16_t(bits >> shift)); }
};
template <uint32_t shift>
struct ReadBf16 {
    static float read(uint32_t bits) { return bf16_to_f32(uint16_t(bits >> shift)); }
};

template <class T, class Read, size_t... test>
std::array<Run, sizeof...(test)> test_runs(std::index_sequence<test...>) {
    return {Compare<kOp<Holds<Test(test), Read>>, T, T>::run...};
}

template <class T, class Read = ReadPlain>
Run test_run(const std::string& name) {
    static const std::map<std::string, Test> tests = {
        {"eq", Test::kEq},   {"ne", Test::kNe},   {"lt", Test::kLt},   {"le", Test::kLe},   {"gt", Test::kGt},
        {"ge", Test::kGe},   {"lo", Test::kLt},   {"ls", Test::kLe},   {"hi", Test::kGt},   {"hs", Test::kGe},
        {"equ", Test::kEqu}, {"neu", Test::kNeu}, {"ltu", Test::kLtu}, {"leu", Test::kLeu}, {"gtu", Test::kGtu},
        {"geu", Test::kGeu}, {"num", Test::kNum}, {"nan", Test::kNan},
    };
    const auto found = tests.find(name);
    if (found == tests.end()) refuse("." + name);
    return test_runs<T, Read>(std::make_index_sequence<size_t(Test::kNan) + 1>{})[size_t(found->second)];
}

// `upper`: compare the upper halves of packed types.
Run comparison(const std::string& name, const std::string& type, bool ftz, bool upper) {
    if (type == "f32") return ftz ? test_run<float, FlushF32>(name) : test_run<float>(name);
    if (ftz) refuse(".ftz of ." + type);
    if (type == "f64") return test_run<double>(name);
    if (type == "f16") return test_run<uint16_t, ReadF16<0>>(name);
    if (type == "bf16") return test_run<uint16_t, ReadBf16<0>>(name);
    if (type == "f16x2") return upper ? test_run<uint32_t, ReadF16<16>>(name) : test_run<uint32_t, ReadF16<0>>(name);
    if (type == "bf16x2") return upper ? test_run<uint32_t, ReadBf16<16>>(name) : test_run<uint32_t, ReadBf16<0>>(name);
    return for_integer<int32_t, uint32_t, int64_t, uint64_t, int16_t, uint16_t>(
        type[0] == 'b' ? "u" + type.substr(1) : type, [&](auto t) { return test_run<decltype(t)>(name); });
}

constexpr auto kFirst = [](uint32_t a, uint32_t) { return a; };

Row compared(Decoder& decoder, const Source& ins, const std::string& name, const std::string& type, bool ftz,
             bool upper) {
    const Row a = decoder.read(ins.operands[1], type), b = decoder.read(ins.operands[2], type);
    const Row result = decoder.scratch(1);
    decoder.emit(comparison(name, type, ftz, upper), result, a, b);
    return result;
}

const Registration kSetp({"setp"}, [](Decoder& decoder, const Source& ins) {
    if (ins.modifiers.size() < 2 || ins.operands.size() < 3) refuse();
    const std::string &name = ins.modifiers[0], &type = ins.type();
    std::string combine;
    for (size_t i = 1; i + 1 < ins.modifiers.size(); i++) {
        const std::string& mark = ins.modifiers[i];
        if (mark == "and" || mark == "or" || mark == "xor") combine = mark;
        else if (mark != "ftz") refuse("." + mark);
    }
    const bool ftz = ins.has("ftz"), packed = type.find("x2") != std::string::npos;
    const bool is_pair = ins.operands[0].kind == OperandKind::kPair;
    for (size_t which = 0; which < (is_pair ? 2u : 1u); which++) {
        const Operand& target = is_pair ? ins.operands[0].items[which] : ins.operands[0];
        if (target.kind == OperandKind::kNone) continue;
        const Row d = decoder.write(target, "pred");
        // The second result is the complement, or for a packed type the result of the upper half.
        if (combine.empty() && (which == 0 || packed)) {
            const Row a = decoder.read(ins.operands[1], type), b = decoder.read(ins.operands[2], type);
            decoder.emit(comparison(name, type, ftz, which == 1), d, a, b);
            continue;
        }
        Row first = compared(decoder, ins, name, type, ftz, packed && which == 1);
        if (which == 1 && !packed) decoder.emit(flagwise<kNot>, first, first);
        if (combine.empty()) {
            decoder.emit(flagwise<kFirst>, d, first);
            continue;
        }
        if (ins.operands.size() != 4) refuse();
        auto [third, negated] = decoder.flag(ins.operands[3]);
        if (negated) {
            const Row other = decoder.scratch(1);
            decoder.emit(flagwise<kNot>, other, third);
            third = other;
        }
        decoder.emit(combine == "and"  ? flagwise<kAnd>
                     : combine == "or" ? flagwise<kOr>
                                       : flagwise<kXor>,
                     d, first, third);
    }
});

// d = flag ? a : b, on bits.
template <class T>
void select_lanes(Batch& batch, const Instruction& ins) {
    T* d = batch.row<T>(ins.d);
    const T *a = batch.row<T>(ins.a), *b = batch.row<T>(ins.b);
    const uint32_t* flags = batch.flags(ins.c);
    each_warp(batch, ins, [&](uint32_t warp, uint32_t first, uint32_t mask) {
        const uint32_t flag = ins.mode ? ~flags[warp] : flags[warp];
        T result[kWarp];
#pragma GCC ivdep
        for (uint32_t lane = 0; lane < kWarp; lane++)
            result[lane] = kLanes.bit[lane] & flag ? a[first + lane] : b[first + lane];
        put(d + first, result, mask);
    });
}

Run select_run(uint32_t width) {
    if (width == 1) refuse("a selection of predicates");
    return for_width(width, [](auto t) -> Run { return select_lanes<decltype(t)>; });
}

const Registration kSelp({"selp"}, [](Decoder& decoder, const Source& ins) {
    if (ins.operands.size() != 4) refuse();
    const std::string& type = ins.type();
    const Row a = decoder.read(ins.operands[1], type), b = decoder.read(ins.operands[2], type);
    const auto [flag, negated] = decoder.flag(ins.operands[3]);
    const Row d = decoder.write(ins.operands[0], type);
    decoder.emit(select_run(width_of(type)), d, a, b, flag).mode = negated;
});

constexpr auto kNotNegative = [](auto c) { return c >= decltype(c)(0); };

const Registration kSlct({"slct"}, [](Decoder& decoder, const Source& ins) {
    if (ins.modifiers.size() < 2 || ins.operands.size() != 4) refuse();
    const std::string &chooser = ins.type(), &type = ins.modifiers[ins.modifiers.size() - 2];
    if (ins.modifiers.size() > 2 || (chooser != "s32" && chooser != "f32")) refuse();
    const Row c = decoder.read(ins.operands[3], chooser), flag = decoder.scratch(1);
    decoder.emit(chooser == "s32" ? Compare<kNotNegative, int32_t>::run : Compare<kNotNegative, float>::run, flag, c);
    const Row a = decoder.read(ins.operands[1], type), b = decoder.read(ins.operands[2], type);
    const Row d = decoder.write(ins.operands[0], type);
    decoder.emit(select_run(width_of(type)), d, a, b, flag);
});

// Return the bits that `set` stores for true.
uint64_t true_bits(const std::string& type) {
    if (type.rfind("bf16", 0) == 0) return 0x3F80;
    if (type.rfind("f16", 0) == 0) return 0x3C00;
    if (type == "f32") return 0x3F800000;
    if (type == "f64") return 0x3FF0000000000000;
    const uint32_t width = type.find("x2") == std::string::npos ? width_of(type) : 16;
    return width == 64 ? ~0ull : (1ull << width) - 1;
}

void set_halves(Decoder& decoder, const Source& ins, const std::string& name, const std::string& type,
                const std::string& result) {
    if (width_of(result) != 32 || result == "f32") refuse("the type ." + result);
    const bool is_packed = result.find("x2") != std::string::npos;
    Row halves[2];
    for (const bool upper : {false, true}) {
        const Row flag = compared(decoder, ins, name, type, ins.has("ftz"), upper);
        const uint64_t yes = is_packed ? true_bits(result) : 0xFFFF;
        halves[upper] = decoder.scratch(32);
        decoder.emit(select_run(32), halves[upper], decoder.constant(32, upper ? yes << 16 : yes),
                     decoder.constant(32, 0), flag);
    }
    decoder.emit(lanewise<kOr, uint32_t, 2>(), decoder.write(ins.operands[0], result), halves[0], halves[1]);
}

const Registration kSet({"set"}, [](Decoder& decoder, const Source& ins) {
    if (ins.modifiers.size() < 3 || ins.operands.size() != 3) refuse();
    const std::string &name = ins.modifiers[0], &type = ins.type(), &result = ins.modifiers[ins.modifiers.size() - 2];
    for (size_t i = 1; i + 2 < ins.modifiers.size(); i++)
        if (ins.modifiers[i] != "ftz") refuse("." + ins.modifiers[i]);
    if (type.find("x2") != std::string::npos) return set_halves(decoder, ins, name, type, result);
    if (result.find("x2") != std::string::npos) refuse("a packed type");
    const Row flag = compared(decoder, ins, name, type, ins.has("ftz"), false);
    const uint32_t width = width_of(result);
    const Row d = decoder.write(ins.operands[0], result);
    decoder.emit(select_run(width), d, decoder.constant(width, true_bits(result)), decoder.constant(width, 0), flag);
});

// d = parts of a register, or a register from parts.
template <class Whole, class Part>
struct Pack {
    static void run(Batch& batch, const Instruction& ins) {
        Whole* d = batch.row<Whole>(ins.d);
        const size_t count = ins.list.size();
        const Part* parts[8];
        for (size_t i = 0; i < count; i++) parts[i] = batch.row<Part>(ins.list[i]);
        each_warp(batch, ins, [&](uint32_t, uint32_t first, uint32_t mask) {
            Whole result[kWarp];
            for (uint32_t lane = 0; lane < kWarp; lane++) {
                Whole value = 0;
                for (size_t i = 0; i < count; i++) value |= Whole(parts[i][first + lane]) << 8 * sizeof(Part) * i;
                result[lane] = value;
            }
            put(d + first, result, mask);
        });
    }
};

constexpr auto kShiftRight = [](auto whole, uint32_t by) { return decltype(whole)(whole >> by); };
template <class Whole, class Part>
using Unpack = Lanewise<kShiftRight, Part, Whole, uint32_t>;

template <template <class, class> class Move>
Run run_of_widths(uint32_t whole, uint32_t part) {
    if (whole == 64 && part == 64) return Move<uint64_t, uint64_t>::run;
    if (whole == 64 && part == 32) return Move<uint64_t, uint32_t>::run;
    if (whole == 64 && part == 16) return Move<uint64_t, uint16_t>::run;
    if (whole == 64 && part == 8) return Move<uint64_t, uint8_t>::run;
    if (whole == 32 && part == 32) return Move<uint32_t, uint32_t>::run;
    if (whole == 32 && part == 16) return Move<uint32_t, uint16_t>::run;
    if (whole == 32 && part == 8) return Move<uint32_t, uint8_t>::run;
    if (whole == 16 && part == 8) return Move<uint16_t, uint8_t>::run;
    refuse("a vector of " + std::to_string(part) + " bits");
}

const Registration kMov({"mov"}, [](Decoder& decoder, const Source& ins) {
    if (ins.operands.size() != 2 || ins.modifiers.size() != 1) refuse();
    const std::string& type = ins.type();
    const uint32_t width = type == "b128" ? 128 : width_of(type);
    const Operand &target = ins.operands[0], &source = ins.operands[1];
    if (width == 128) refuse("the type .b128");
    const auto parts_of = [&](const Operand& vector) {
        if (vector.items.empty() || vector.items.size() > 8) refuse("a vector of other length");
        return width / uint32_t(vector.items.size());
    };
    if (source.kind == OperandKind::kVector) {
        const uint32_t part = parts_of(source);
        const Run run = run_of_widths<Pack>(width, part);
        std::vector<Row> parts;
        for (const Operand& item : source.items) parts.push_back(decoder.read(item, "b" + std::to_string(part)));
        const Row d = decoder.write(target, type);
        decoder.emit(run, d).list = std::move(parts);
        return;
    }
    if (target.kind == OperandKind::kVector) {
        const uint32_t part = parts_of(target);
        const Run run = run_of_widths<Unpack>(width, part);
        const Row a = decoder.read(source, type);
        for (size_t i = 0; i < target.items.size(); i++) {
            if (target.items[i].kind == OperandKind::kNone) continue;
            const Row d = decoder.write(target.items[i], "b" + std::to_string(part));
            decoder.emit(run, d, a, decoder.constant(32, part * uint32_t(i)));
        }
        return;
    }
    decoder.emit_typed(copy_run(width), {type, type});
});

constexpr auto kPlus = [](uint64_t a, uint64_t b) { return a + b; };

const Registration kCvta({"cvta"}, [](Decoder& decoder, const Source& ins) {
    static const std::map<std::string, uint64_t> windows = {
        {"global", 0}, {"shared", 1}, {"local", 2}, {"const", 3}, {"param", 4}};
    if (ins.operands.size() != 2) refuse();
    const std::string& type = ins.type();
    uint64_t window = ~0ull;
    for (const std::string& mark : ins.modifiers)
        if (const auto found = windows.find(mark); found != windows.end()) window = found->second;
    if (window == ~0ull) refuse("the state space");
    const Row a = decoder.read(ins.operands[1], type), d = decoder.write(ins.operands[0], type);
    if (window && type != "u64") refuse("a 32-bit generic address");
    const uint64_t base = window << kWindowShift;
    if (!window) decoder.emit(copy_run(d.width), d, a);
    else decoder.emit(lanewise<kPlus, uint64_t, 2>(), d, a, decoder.constant(64, ins.has("to") ? 0 - base : base));
});

const Registration kCreatepolicy({"createpolicy"}, [](Decoder& decoder, const Source& ins) {
    if (ins.modifiers.empty() || ins.modifiers[0] != "fractional") refuse("a policy for a range of addresses");
    if (ins.operands.empty()) refuse();
    const Row d = decoder.write(ins.operands[0], "b64");
    decoder.emit(copy_run(64), d, decoder.constant(64, 0));
});

}  // namespace

Run copy_run(uint32_t width) { return width == 1 ? flagwise<kFirst> : cast_run(width, width, false); }

}  // namespace kernrec
