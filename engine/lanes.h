// Applies scalar functions to the lanes that run an instruction.
#pragma once

#include <cstdint>
#include <cstring>
#include <tuple>
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

template <class T>
KERNREC_INLINE void put(T* to, const T* from, uint32_t mask) {
    for (uint32_t lane = 0; lane < kWarp; lane++) to[lane] = kLanes.bit[lane] & mask ? from[lane] : to[lane];
}

template <class... S, size_t... I>
KERNREC_INLINE std::tuple<const S*...> source_rows(Batch& batch, const Instruction& ins, std::index_sequence<I...>) {
    const Row rows[] = {ins.a, ins.b, ins.c, ins.e};
    return {batch.row<S>(rows[I])...};
}

// d = Op(a, b, c, e), with one source per type.
template <class Op, class D, class... S>
struct Lanewise {
    template <size_t... I>
    KERNREC_INLINE static void each(Batch& batch, const Instruction& ins, std::index_sequence<I...> all) {
        const std::tuple<const S*...> sources = source_rows<S...>(batch, ins, all);
        D* d = batch.row<D>(ins.d);
        if (batch.all_full && !ins.guard) {
            const uint32_t lanes = batch.lanes;
#pragma GCC ivdep
            for (uint32_t lane = 0; lane < lanes; lane++) d[lane] = Op::apply(std::get<I>(sources)[lane]...);
            return;
        }
        for (uint32_t i = 0; i < batch.running; i++) {
            const uint32_t mask = batch.mask(i, ins), first = batch.warps()[i] * kWarp;
            if (!mask) continue;
            D* to = d + first;
            const std::tuple<const S*...> here{std::get<I>(sources) + first...};
            D result[kWarp];
#pragma GCC ivdep
            for (uint32_t lane = 0; lane < kWarp; lane++) result[lane] = Op::apply(std::get<I>(here)[lane]...);
            if (mask == ~0u) std::memcpy(to, result, sizeof result);
            else put(to, result, mask);
        }
    }
    static void plain(Batch& batch, const Instruction& ins) { each(batch, ins, std::index_sequence_for<S...>{}); }
    KERNREC_AVX2 static void avx2(Batch& batch, const Instruction& ins) {
        each(batch, ins, std::index_sequence_for<S...>{});
    }
    static void run(Batch& batch, const Instruction& ins) { kAvx2 ? avx2(batch, ins) : plain(batch, ins); }
};

// Predicate d = Op(a, b, ...), with lanes as bits.
template <class Op, class... S>
struct Compare {
    template <size_t... I>
    KERNREC_INLINE static void each(Batch& batch, const Instruction& ins, std::index_sequence<I...> all) {
        const std::tuple<const S*...> sources = source_rows<S...>(batch, ins, all);
        uint32_t* d = batch.flags(ins.d);
        for (uint32_t i = 0; i < batch.running; i++) {
            const uint32_t mask = batch.mask(i, ins), warp = batch.warps()[i], first = warp * kWarp;
            if (!mask) continue;
            const std::tuple<const S*...> here{std::get<I>(sources) + first...};
            uint32_t bits = 0;
            for (uint32_t lane = 0; lane < kWarp; lane++)
                bits |= Op::apply(std::get<I>(here)[lane]...) ? kLanes.bit[lane] : 0;
            d[warp] = (d[warp] & ~mask) | (bits & mask);
        }
    }
    static void plain(Batch& batch, const Instruction& ins) { each(batch, ins, std::index_sequence_for<S...>{}); }
    KERNREC_AVX2 static void avx2(Batch& batch, const Instruction& ins) {
        each(batch, ins, std::index_sequence_for<S...>{});
    }
    static void run(Batch& batch, const Instruction& ins) { kAvx2 ? avx2(batch, ins) : plain(batch, ins); }
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
