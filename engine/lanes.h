// Applies scalar functions to the lanes that run an instruction.
#pragma once

#include <cstdint>
#include <utility>

#include "batch.h"

namespace kernrec {

// Bit of each lane in a mask; a table lets compilers vectorize comparisons.
struct LaneBits {
    uint32_t bit[kWarp];
    constexpr LaneBits() : bit() {
        for (uint32_t lane = 0; lane < kWarp; lane++) bit[lane] = 1u << lane;
    }
};
inline constexpr LaneBits kLanes;

template <class T>
inline void put(T* to, const T* from, uint32_t mask) {
    for (uint32_t lane = 0; lane < kWarp; lane++) to[lane] = kLanes.bit[lane] & mask ? from[lane] : to[lane];
}

template <class... S, size_t... I>
std::tuple<const S*...> source_rows(Batch& batch, const Instruction& ins, std::index_sequence<I...>) {
    const Row rows[] = {ins.a, ins.b, ins.c, ins.e};
    return {batch.row<S>(rows[I])...};
}

// d = Op(a, b, c, e), with one source per type.
template <class Op, class D, class... S>
struct Lanewise {
    template <size_t... I>
    [[gnu::noinline]] static void loop(D* d, const std::tuple<const S*...>& sources, uint32_t count, std::index_sequence<I...>) {
#pragma GCC ivdep
        for (uint32_t lane = 0; lane < count; lane++) d[lane] = Op::apply(std::get<I>(sources)[lane]...);
    }

    static void run(Batch& batch, const Instruction& ins) {
        const auto sources = source_rows<S...>(batch, ins, std::index_sequence_for<S...>{});
        constexpr auto each = std::index_sequence_for<S...>{};
        D* d = batch.row<D>(ins.d);
        if (batch.all_full && !ins.guard) return loop(d, sources, batch.lanes, each);
        for (uint32_t i = 0; i < batch.running; i++) {
            const uint32_t mask = batch.mask(i, ins), first = batch.warps()[i] * kWarp;
            const auto here = std::apply([&](auto*... row) { return std::tuple<const S*...>{row + first...}; }, sources);
            if (mask == ~0u) {
                loop(d + first, here, kWarp, each);
            } else if (mask) {
                D result[kWarp];
                loop(result, here, kWarp, each);
                put(d + first, result, mask);
            }
        }
    }
};

// Predicate d = Op(a, b, ...), with lanes as bits.
template <class Op, class... S>
struct Compare {
    template <size_t... I>
    static uint32_t bits(const std::tuple<const S*...>& sources, std::index_sequence<I...>) {
        uint32_t bits = 0;
#pragma GCC ivdep
        for (uint32_t lane = 0; lane < kWarp; lane++)
            bits |= Op::apply(std::get<I>(sources)[lane]...) ? kLanes.bit[lane] : 0;
        return bits;
    }

    static void run(Batch& batch, const Instruction& ins) {
        const auto sources = source_rows<S...>(batch, ins, std::index_sequence_for<S...>{});
        uint32_t* d = batch.flags(ins.d);
        for (uint32_t i = 0; i < batch.running; i++) {
            const uint32_t mask = batch.mask(i, ins), warp = batch.warps()[i], first = warp * kWarp;
            if (!mask) continue;
            const auto here = std::apply([&](auto*... row) { return std::tuple<const S*...>{row + first...}; }, sources);
            const uint32_t result = bits(here, std::index_sequence_for<S...>{});
            d[warp] = (d[warp] & ~mask) | (result & mask);
        }
    }
};

// d = Op(a, b) on masks.
template <class Op>
void flagwise(Batch& batch, const Instruction& ins) {
    uint32_t* d = batch.flags(ins.d);
    const uint32_t* a = batch.flags(ins.a);
    const uint32_t* b = batch.flags(ins.b ? ins.b : ins.a);
    for (uint32_t i = 0; i < batch.running; i++) {
        const uint32_t mask = batch.mask(i, ins), warp = batch.warps()[i];
        d[warp] = (d[warp] & ~mask) | (Op::apply(a[warp], b[warp]) & mask);
    }
}

// Call a function once per warp with (warp, first lane, mask).
template <class Each>
inline void each_warp(Batch& batch, const Instruction& ins, Each each) {
    for (uint32_t i = 0; i < batch.running; i++)
        if (const uint32_t mask = batch.mask(i, ins)) each(batch.warps()[i], batch.warps()[i] * kWarp, mask);
}

}  // namespace kernrec
