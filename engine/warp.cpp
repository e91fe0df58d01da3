// Warp-level instructions: shfl vote match redux activemask elect (PTX ISA, sections 9.7.9 and 9.7.13).
#include <cmath>

#include "decoder.h"
#include "lanes.h"
#include "number_formats.h"
#include "reductions.h"

namespace kernrec {
namespace {

// Group the active lanes of each warp by member mask, and call each(warp, first lane, mask) for each group.
template <class Each>
void each_group(Batch& batch, const Instruction& ins, Each each) {
    const uint32_t* members = ins.b ? batch.row<uint32_t>(ins.b) : nullptr;
    each_warp(batch, ins, [&](uint32_t warp, uint32_t first, uint32_t mask) {
        if (!members) return each(warp, first, mask);
        each_distinct(members + first, mask, [&](uint32_t, uint32_t group) { each(warp, first, group); });
    });
}

template <size_t count>
uint32_t modifier_index(const Source& ins, const char* const (&names)[count]) {
    for (uint32_t i = 0; i < count; i++)
        if (ins.has(names[i])) return i;
    refuse();
}

// Return the row of the member mask, or no row for an immediate mask, which is the same for all lanes.
Row members_of(Decoder& decoder, const Source& ins) {
    const bool varies = ins.operands.size() > 2 && ins.operands[2].kind == OperandKind::kRegister;
    return varies ? decoder.read(ins.operands[2], "b32") : Row{};
}

void shuffle(Batch& batch, const Instruction& ins) {
    uint32_t* d = batch.row<uint32_t>(ins.d);
    const uint32_t *source = batch.row<uint32_t>(ins.a), *b = batch.row<uint32_t>(ins.b),
                   *c = batch.row<uint32_t>(ins.c);
    uint32_t* flags = ins.e ? batch.flags(ins.e) : nullptr;
    each_warp(batch, ins, [&](uint32_t warp, uint32_t first, uint32_t mask) {
        uint32_t result[kWarp], inside_mask = 0;
        for (uint32_t lane = 0; lane < kWarp; lane++) {
            const auto [from, inside] = shuffle_source(Shuffle(ins.mode), lane, b[first + lane], c[first + lane]);
            result[lane] = source[first + from];
            inside_mask |= uint32_t(inside) << lane;
        }
        for (const uint32_t lane : LanesOf(mask)) d[first + lane] = result[lane];
        if (flags) put_bits(flags[warp], inside_mask, mask);
    });
}

const Registration kShuffle({"shfl"}, [](Decoder& decoder, const Source& ins) {
    if (ins.modifiers[0] != "sync") refuse();
    const uint32_t mode = modifier_index(ins, kShuffles);
    const Operand& target = ins.operands[0];
    const bool is_pair = target.kind == OperandKind::kPair;
    const Row a = decoder.read(ins.operands[1], "b32"), b = decoder.read(ins.operands[2], "u32");
    const Row c = decoder.read(ins.operands[3], "u32"), d = decoder.write(is_pair ? target.items[0] : target, "b32");
    const Row flag =
        is_pair && target.items[1].kind != OperandKind::kNone ? decoder.write(target.items[1], "pred") : Row{};
    decoder.emit(shuffle, d, a, b, c, flag).mode = mode;
});

enum class Vote : uint32_t { kAll, kAny, kUniform, kBallot };

void vote(Batch& batch, const Instruction& ins) {
    const uint32_t* flags = batch.flags(ins.a);
    each_group(batch, ins, [&](uint32_t warp, uint32_t first, uint32_t mask) {
        const uint32_t yes = mask & (ins.unit ? ~flags[warp] : flags[warp]);
        if (Vote(ins.mode) == Vote::kBallot) {
            uint32_t* d = batch.row<uint32_t>(ins.d) + first;
            for (uint32_t lane = 0; lane < kWarp; lane++) d[lane] = kLanes.bit[lane] & mask ? yes : d[lane];
            return;
        }
        const bool all = yes == mask, any = yes != 0;
        const bool holds = Vote(ins.mode) == Vote::kAll ? all : Vote(ins.mode) == Vote::kAny ? any : all || !any;
        put_bits(batch.flags(ins.d)[warp], holds ? ~0u : 0, mask);
    });
}

const Registration kVote({"vote"}, [](Decoder& decoder, const Source& ins) {
    if (ins.modifiers.size() != 3 || ins.modifiers[0] != "sync") refuse();
    const uint32_t mode = modifier_index(ins, {"all", "any", "uni", "ballot"});
    const auto [flag, negated] = decoder.flag(ins.operands[1]);
    const Row members = members_of(decoder, ins), d = decoder.write(ins.operands[0], mode == 3 ? "b32" : "pred");
    Instruction& made = decoder.emit(vote, d, flag, members);
    made.unit = negated;
    made.mode = mode;
});

void active_mask(Batch& batch, const Instruction& ins) {
    uint32_t* d = batch.row<uint32_t>(ins.d);
    each_warp(batch, ins, [&](uint32_t, uint32_t first, uint32_t mask) {
        for (const uint32_t lane : LanesOf(mask)) d[first + lane] = mask;
    });
}

const Registration kActive({"activemask"},
                           [](Decoder& decoder, const Source&) { decoder.emit_typed(active_mask, {"b32"}); });

template <class T>
void match(Batch& batch, const Instruction& ins) {
    const T* source = batch.row<T>(ins.a);
    uint32_t* d = batch.row<uint32_t>(ins.d);
    each_group(batch, ins, [&](uint32_t warp, uint32_t first, uint32_t mask) {
        uint32_t agree = 0;
        for (const uint32_t lane : LanesOf(mask)) {
            uint32_t matches = 0;
            for (uint32_t other = 0; other < kWarp; other++)
                matches |= uint32_t(source[first + other] == source[first + lane]) << other;
            matches &= mask;
            if (matches == mask) agree |= 1u << lane;
            d[first + lane] = ins.mode && matches != mask ? 0 : matches;
        }
        if (ins.e) put_bits(batch.flags(ins.e)[warp], agree, mask);
    });
}

const Registration kMatch({"match"}, [](Decoder& decoder, const Source& ins) {
    const bool all = ins.modifiers[0] == "all";
    if (!all && ins.modifiers[0] != "any") refuse();
    const Operand& target = ins.operands[0];
    const bool is_pair = target.kind == OperandKind::kPair;
    const uint32_t width = width_of(ins.type());
    if (width < 32 || ins.type()[0] == 'f') refuse("the type ." + ins.type());
    const Row a = decoder.read(ins.operands[1], ins.type()), members = members_of(decoder, ins);
    const Row d = decoder.write(is_pair ? target.items[0] : target, "b32");
    const Row flag = is_pair && all ? decoder.write(target.items[1], "pred") : Row{};
    decoder.emit(width == 32 ? match<uint32_t> : match<uint64_t>, d, a, members, {}, flag).mode = all;
});

void reduce_group(Batch& batch, const Instruction& ins) {
    const uint32_t* source = batch.row<uint32_t>(ins.a);
    uint32_t* d = batch.row<uint32_t>(ins.d);
    const auto type = NumberType(ins.unit);
    const bool is_float = type == NumberType::kF32, absolute = ins.modes[0], with_nan = ins.modes[1];
    each_group(batch, ins, [&](uint32_t, uint32_t first, uint32_t mask) {
        const auto value = [&](uint32_t lane) { return source[first + lane] & (absolute ? 0x7FFFFFFF : ~0u); };
        const auto is_nan = [](uint32_t bits) { return std::isnan(bit_cast<float>(bits)); };
        uint32_t result = value(uint32_t(__builtin_ctz(mask)));
        bool any_nan = is_nan(result);
        for (const uint32_t lane : LanesOf(mask & (mask - 1))) {
            any_nan |= is_nan(value(lane));
            result = uint32_t(reduce(Reduction(ins.mode), type, result, value(lane)));
        }
        if (is_float && ((with_nan && any_nan) || is_nan(result))) result = 0x7FFFFFFF;
        for (const uint32_t lane : LanesOf(mask)) d[first + lane] = result;
    });
}

const Registration kRedux({"redux"}, [](Decoder& decoder, const Source& ins) {
    if (ins.modifiers[0] != "sync") refuse();
    const std::string& type = ins.type();
    Reduction mode = Reduction::kNone;
    for (const std::string& mark : ins.modifiers)
        if (mode == Reduction::kNone) mode = reduction_of(mark);
    if (mode == Reduction::kNone || mode == Reduction::kInc || mode == Reduction::kDec) refuse();
    const bool is_float = type == "f32" && (mode == Reduction::kMin || mode == Reduction::kMax);
    if (!is_float && (ins.modifiers.size() != 3 || (type != "u32" && type != "s32" && type != "b32"))) refuse();
    if (is_float)
        for (size_t i = 2; i + 1 < ins.modifiers.size(); i++)
            if (ins.modifiers[i] != "abs" && ins.modifiers[i] != "NaN") refuse();
    const Row a = decoder.read(ins.operands[1], type), members = members_of(decoder, ins);
    const Row d = decoder.write(ins.operands[0], type);
    Instruction& made = decoder.emit(reduce_group, d, a, members);
    made.unit = uint32_t(number_type(type));
    made.mode = uint32_t(mode);
    made.modes = {ins.has("abs"), ins.has("NaN")};
});

}  // namespace
}  // namespace kernrec
