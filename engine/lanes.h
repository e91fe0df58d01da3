// Applies scalar functions to the lanes that run an instruction.
#pragma once

#include <cstdint>
#include <tuple>
#include <type_traits>
#include <utility>

#include "batch.h"
#include "instruction_sets.h"

namespace kernrec {

// Bit of each lane in a mask; a table lets compilers vectorize comparisons.
struct LaneBits {
    uint32_t bit[kWarp];
    constexpr LaneBits() : bit() {
        for (uint32_t lane = 0; lane < kWarp; lane++) bit[lane] = 1u << lane;
    }
};
inline constexpr LaneBits kLanes;

KERNREC_INLINE void put_bits(uint32_t& to, uint32_t bits, uint32_t mask) { to = (to & ~mask) | (bits & mask); }

// Predicate of all lanes as a source. It reads like a pointer to values.
struct FlagLanes {
    const uint32_t* masks;
    FlagLanes operator+(uint32_t first) const { return {masks + first / kWarp}; }
    bool operator[](uint32_t lane) const { return (*masks & kLanes.bit[lane]) != 0; }
};

template <class S>
KERNREC_INLINE auto source_row(Batch& batch, const Row& row) {
    if constexpr (std::is_same_v<S, bool>) return FlagLanes{batch.flags(row)};
    else return static_cast<const S*>(batch.row<S>(row));
}

// Compute d = op(a, b, c, e). `S` contains the types of the sources. Predicates have type bool, with lanes as bits.
template <const auto& op, class D, class... S>
struct Lanewise {
    static void run(Batch& batch, const Instruction& ins) { kAvx2 ? avx2(batch, ins) : plain(batch, ins); }

  private:
    static constexpr bool kIsPredicate = std::is_same_v<D, bool>;
    static constexpr bool kHasPredicates = kIsPredicate || (std::is_same_v<S, bool> || ...);
    static constexpr std::index_sequence_for<S...> kSources{};
    static void plain(Batch& batch, const Instruction& ins) { each(batch, ins, kSources); }
    KERNREC_AVX2 static void avx2(Batch& batch, const Instruction& ins) { each(batch, ins, kSources); }
    template <size_t... I>
    KERNREC_INLINE static void each(Batch& batch, const Instruction& ins, std::index_sequence<I...>) {
        const Row rows[] = {ins.a, ins.b, ins.c, ins.e};
        const std::tuple sources{source_row<S>(batch, rows[I])...};
        auto* const d = batch.row<std::conditional_t<kIsPredicate, uint32_t, D>>(ins.d);
        if constexpr (!kHasPredicates)
            if (batch.all_full && !ins.guard) {
                const uint32_t lanes = batch.lanes;
#pragma GCC ivdep
                for (uint32_t lane = 0; lane < lanes; lane++) d[lane] = op(std::get<I>(sources)[lane]...);
                return;
            }
        for (uint32_t i = 0; i < batch.running; i++) {
            const uint32_t mask = batch.mask(i, ins), warp = batch.warps()[i], first = warp * kWarp;
            if (!mask) continue;
            const std::tuple here{std::get<I>(sources) + first...};
            if constexpr (kIsPredicate) {
                uint32_t bits = 0;
                for (uint32_t lane = 0; lane < kWarp; lane++)
                    bits |= op(std::get<I>(here)[lane]...) ? kLanes.bit[lane] : 0;
                put_bits(d[warp], bits, mask);
            } else {
                D* const to = d + first;
#pragma GCC ivdep
                for (uint32_t lane = 0; lane < kWarp; lane++) {
                    const D result = op(std::get<I>(here)[lane]...);
                    to[lane] = kLanes.bit[lane] & mask ? result : to[lane];
                }
            }
        }
    }
};
template <const auto& op, class... S>
using Compare = Lanewise<op, bool, S...>;

// Modes of `shfl.sync` (PTX ISA, section "shfl.sync").
enum class Shuffle : uint32_t { kUp, kDown, kButterfly, kIndex };
constexpr const char* kShuffles[] = {"up", "down", "bfly", "idx"};

// Return the lane from which `lane` receives its value, and whether this source is inside the segment. A lane with a
// source outside of the segment keeps its value. `range` is operand c of `shfl`: the clamp and the segment mask.
KERNREC_INLINE std::pair<uint32_t, bool> shuffle_source(Shuffle mode, uint32_t lane, uint32_t operand, uint32_t range) {
    const int32_t own = int32_t(lane), delta = int32_t(operand & 31), clamp = int32_t(range & 31);
    const int32_t segment = int32_t(range >> 8 & 31), top = (own & segment) | (clamp & ~segment);
    const int32_t from = mode == Shuffle::kUp          ? own - delta
                         : mode == Shuffle::kDown      ? own + delta
                         : mode == Shuffle::kButterfly ? own ^ delta
                                                       : (own & segment) | (delta & ~segment);
    const bool inside = mode == Shuffle::kUp ? from >= top : from <= top;
    return {inside ? uint32_t(from) : lane, inside};
}

// A constant object of type Op, because templates take operations by reference.
template <class Op>
inline constexpr Op kOp{};

inline constexpr auto kSame = [](auto a) { return a; };
inline constexpr auto kAnd = [](auto a, auto b) { return a & b; };
inline constexpr auto kOr = [](auto a, auto b) { return a | b; };
inline constexpr auto kXor = [](auto a, auto b) { return a ^ b; };
inline constexpr auto kNot = [](auto a) {
    if constexpr (std::is_same_v<decltype(a), bool>) return !a;
    else return decltype(a)(~a);
};

// Return `Lanewise` for an operation whose result and sources have one type.
template <const auto& op, class T, int sources>
Run lanewise() {
    if constexpr (sources == 1) return Lanewise<op, T, T>::run;
    else if constexpr (sources == 2) return Lanewise<op, T, T, T>::run;
    else return Lanewise<op, T, T, T, T>::run;
}

// Call a function with flags as compile-time constants.
template <class Call>
auto by_flags(Call call) {
    return call();
}
template <class Call, class... More>
auto by_flags(Call call, bool flag, More... more) {
    if (flag) return by_flags([&](auto... rest) { return call(std::true_type{}, rest...); }, more...);
    return by_flags([&](auto... rest) { return call(std::false_type{}, rest...); }, more...);
}

// Call a function with a value of an unsigned integer type. width: size of the type in bits.
template <class Call>
auto for_width(uint32_t width, Call call) {
    switch (width) {
        case 8: return call(uint8_t{});
        case 16: return call(uint16_t{});
        case 32: return call(uint32_t{});
        default: return call(uint64_t{});
    }
}

// Call a function with (value, mask) for each distinct value that the lanes of a mask have. values: of a warp's lanes.
template <class Each>
void each_distinct(const uint32_t* values, uint32_t mask, Each each) {
    while (mask) {
        const uint32_t value = values[__builtin_ctz(mask)];
        uint32_t same = 0;
        for (const uint32_t lane : LanesOf(mask)) same |= uint32_t(values[lane] == value) << lane;
        each(value, same);
        mask &= ~same;
    }
}

// Call a function once per warp with (warp, first lane, mask). Return the number of warps.
template <class Each>
inline uint64_t each_warp(Batch& batch, const Instruction& ins, Each each) {
    uint64_t warps = 0;
    for (uint32_t i = 0; i < batch.running; i++)
        if (const uint32_t mask = batch.mask(i, ins)) {
            each(batch.warps()[i], batch.warps()[i] * kWarp, mask);
            warps++;
        }
    return warps;
}

}  // namespace kernrec
