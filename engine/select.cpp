// Compare, select and move instructions: setp set selp slct mov cvta (PTX ISA, sections 9.7.6 and 9.7.9).
#include <cmath>

#include "decoder.h"
#include "lanes.h"
#include "number_formats.h"

namespace kernrec {

namespace {

// Bits of a test: the relations of two numbers for which it holds. Numbers are unordered if one of them is NaN.
constexpr uint32_t kLess = 1, kEqual = 2, kGreater = 4, kUnordered = 8, kAnyRelation = 15;

// Return whether a test holds for two numbers, which `read` converts from registers.
template <uint32_t test, const auto& read>
struct Holds {
    template <class S>
    bool operator()(S first, S second) const {
        const auto a = read(first), b = read(second);
        // Negate the opposite test if the numbers may be unordered, because a comparison with NaN is false.
        if constexpr ((test & kUnordered) != 0) return !Holds<kAnyRelation - test, kSame>()(a, b);
        else return ((test & kLess) && a < b) | ((test & kEqual) && a == b) | ((test & kGreater) && a > b);
    }
};

constexpr auto kFlushF32 = [](float value) {
    return std::fabs(value) < 0x1p-126f ? std::copysign(0.0f, value) : value;
};
template <uint32_t shift>
constexpr auto kF16At = [](uint32_t bits) { return f16_to_f32(uint16_t(bits >> shift)); };
template <uint32_t shift>
constexpr auto kBf16At = [](uint32_t bits) { return bf16_to_f32(uint16_t(bits >> shift)); };

template <class T, const auto& read, size_t... test>
Run test_run(size_t chosen, std::index_sequence<test...>) {
    const Run runs[] = {Compare<kOp<Holds<test, read>>, T, T>::run...};
    return runs[chosen];
}

template <class T, const auto& read = kSame>
Run test_run(const std::string& name) {
    static const std::map<std::string, uint32_t> tests = {
        {"eq", 2}, {"ne", 5},   {"lt", 1},   {"le", 3},  {"gt", 4},   {"ge", 6},   {"lo", 1},   {"ls", 3},  {"hi", 4},
        {"hs", 6}, {"equ", 10}, {"neu", 13}, {"ltu", 9}, {"leu", 11}, {"gtu", 12}, {"geu", 14}, {"num", 7}, {"nan", 8}};
    const auto found = tests.find(name);
    if (found == tests.end()) refuse("." + name);
    return test_run<T, read>(found->second, std::make_index_sequence<kAnyRelation + 1>{});
}

// `upper`: compare the upper halves of packed types.
Run comparison(const std::string& name, const std::string& type, bool ftz, bool upper) {
    if (type == "f32") return ftz ? test_run<float, kFlushF32>(name) : test_run<float>(name);
    if (ftz) refuse(".ftz of ." + type);
    if (type == "f64") return test_run<double>(name);
    if (type == "f16") return test_run<uint16_t, kF16At<0>>(name);
    if (type == "bf16") return test_run<uint16_t, kBf16At<0>>(name);
    if (type == "f16x2") return upper ? test_run<uint32_t, kF16At<16>>(name) : test_run<uint32_t, kF16At<0>>(name);
    if (type == "bf16x2") return upper ? test_run<uint32_t, kBf16At<16>>(name) : test_run<uint32_t, kBf16At<0>>(name);
    return for_integer<int32_t, uint32_t, int64_t, uint64_t, int16_t, uint16_t>(
        type, [&](auto t) { return test_run<decltype(t)>(name); });
}

// Emit the comparison of an instruction with a result in `flag`.
void compare(Decoder& decoder, const Source& ins, const std::string& name, bool upper, Row flag) {
    const std::string& type = ins.type();
    const Row a = decoder.read(ins.operands[1], type), b = decoder.read(ins.operands[2], type);
    decoder.emit(comparison(name, type, ins.has("ftz"), upper), flag, a, b);
}

const Registration kSetp({"setp"}, [](Decoder& decoder, const Source& ins) {
    const std::string &name = ins.modifiers[0], &type = ins.type();
    std::string combine;
    for (size_t i = 1; i + 1 < ins.modifiers.size(); i++) {
        const std::string& mark = ins.modifiers[i];
        if (mark == "and" || mark == "or" || mark == "xor") combine = mark;
        else if (mark != "ftz") refuse("." + mark);
    }
    const bool packed = type.find("x2") != std::string::npos, is_pair = ins.operands[0].kind == OperandKind::kPair;
    for (size_t which = 0; which < (is_pair ? 2u : 1u); which++) {
        const Operand& target = is_pair ? ins.operands[0].items[which] : ins.operands[0];
        if (target.kind == OperandKind::kNone) continue;
        const Row d = decoder.write(target, "pred");
        // The second result is the complement, or for a packed type the result of the upper half.
        const bool inverts = which == 1 && !packed;
        const Row test = combine.empty() && !inverts ? d : decoder.scratch(1);
        compare(decoder, ins, name, packed && which == 1, test);
        if (inverts) decoder.emit(lanewise<kNot, bool, 1>(), combine.empty() ? d : test, test);
        if (combine.empty()) continue;
        auto [third, negated] = decoder.flag(ins.operands[3]);
        if (negated) {
            const Row other = decoder.scratch(1);
            decoder.emit(lanewise<kNot, bool, 1>(), other, third);
            third = other;
        }
        decoder.emit(combine == "and"  ? lanewise<kAnd, bool, 2>()
                     : combine == "or" ? lanewise<kOr, bool, 2>()
                                       : lanewise<kXor, bool, 2>(),
                     d, test, third);
    }
});

constexpr auto kSelect = [](auto a, auto b, bool flag) { return flag ? a : b; };

Run select_run(uint32_t width) {
    if (width == 1) refuse("a selection of predicates");
    return for_width(width, [](auto t) -> Run {
        using T = decltype(t);
        return Lanewise<kSelect, T, T, T, bool>::run;
    });
}

const Registration kSelp({"selp"}, [](Decoder& decoder, const Source& ins) {
    const std::string& type = ins.type();
    const Row a = decoder.read(ins.operands[1], type), b = decoder.read(ins.operands[2], type);
    const auto [flag, negated] = decoder.flag(ins.operands[3]);
    const Row d = decoder.write(ins.operands[0], type);
    decoder.emit(select_run(width_of(type)), d, negated ? b : a, negated ? a : b, flag);
});

constexpr auto kNotNegative = [](auto c) { return c >= decltype(c)(0); };

const Registration kSlct({"slct"}, [](Decoder& decoder, const Source& ins) {
    const std::string &chooser = ins.type(), &type = ins.type(1);
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
    return type.find("x2") == std::string::npos ? ~0ull : 0xFFFF;
}

const Registration kSet({"set"}, [](Decoder& decoder, const Source& ins) {
    if (ins.operands.size() != 3) refuse();
    const std::string &name = ins.modifiers[0], &type = ins.type(), &result = ins.type(1);
    for (size_t i = 1; i + 2 < ins.modifiers.size(); i++)
        if (ins.modifiers[i] != "ftz") refuse("." + ins.modifiers[i]);
    const bool packed = type.find("x2") != std::string::npos, packs = result.find("x2") != std::string::npos;
    const uint32_t width = width_of(result);
    if (packed && (width != 32 || result == "f32")) refuse("the type ." + result);
    if (packs && !packed) refuse("a packed type");
    const uint64_t yes = packed && !packs ? 0xFFFF : true_bits(result);
    Row halves[2];
    for (const bool upper : {false, true}) {
        if (upper && !packed) break;
        const Row flag = decoder.scratch(1);
        compare(decoder, ins, name, upper, flag);
        halves[upper] = packed ? decoder.scratch(32) : decoder.write(ins.operands[0], result);
        const Row yes_row = decoder.constant(width, upper ? yes << 16 : yes), no_row = decoder.constant(width, 0);
        decoder.emit(select_run(width), halves[upper], yes_row, no_row, flag);
    }
    if (packed)
        decoder.emit(lanewise<kOr, uint32_t, 2>(), decoder.write(ins.operands[0], result), halves[0], halves[1]);
});

// Insert a part into a register, or extract it.
constexpr auto kInsert = [](auto whole, auto part, uint32_t by) {
    return decltype(whole)(whole | decltype(whole)(part) << by);
};
template <class Whole, class Part>
using Insert = Lanewise<kInsert, Whole, Whole, Part, uint32_t>;
constexpr auto kShiftRight = [](auto whole, uint32_t by) { return decltype(whole)(whole >> by); };
template <class Whole, class Part>
using Extract = Lanewise<kShiftRight, Part, Whole, uint32_t>;

template <template <class, class> class Move>
Run run_of_widths(uint32_t whole, uint32_t part) {
    if (part % 8 || part > whole) refuse("a vector of " + std::to_string(part) + " bits");
    return for_width(whole, [&](auto w) {
        return for_width(part, [](auto p) -> Run { return Move<decltype(w), decltype(p)>::run; });
    });
}

const Registration kMov({"mov"}, [](Decoder& decoder, const Source& ins) {
    if (ins.modifiers.size() != 1) refuse();
    const std::string& type = ins.type();
    const uint32_t width = type == "b128" ? 128 : width_of(type);
    const Operand &target = ins.operands[0], &source = ins.operands[1];
    if (width == 128) refuse("the type .b128");
    const auto parts_of = [&](const Operand& vector) {
        if (vector.items.empty() || width % vector.items.size()) refuse("a vector of other length");
        return width / uint32_t(vector.items.size());
    };
    if (source.kind == OperandKind::kVector) {
        const uint32_t part = parts_of(source);
        const Run run = run_of_widths<Insert>(width, part);
        Row whole = decoder.constant(width, 0);
        for (size_t i = 0; i < source.items.size(); i++) {
            const Row from = decoder.read(source.items[i], "b" + std::to_string(part));
            const bool is_last = i + 1 == source.items.size();
            const Row to = is_last ? decoder.write(target, type) : decoder.scratch(width);
            decoder.emit(run, to, whole, from, decoder.constant(32, part * uint32_t(i)));
            whole = to;
        }
        return;
    }
    if (target.kind == OperandKind::kVector) {
        const uint32_t part = parts_of(target);
        const Run run = run_of_widths<Extract>(width, part);
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
    if (ins.modifiers[0] != "fractional") refuse("a policy for a range of addresses");
    const Row d = decoder.write(ins.operands[0], "b64");
    decoder.emit(copy_run(64), d, decoder.constant(64, 0));
});

}  // namespace

Run copy_run(uint32_t width) { return width == 1 ? lanewise<kSame, bool, 1>() : cast_run(width, width, false); }

}  // namespace kernrec
