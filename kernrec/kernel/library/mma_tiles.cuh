// The body of a product on tensor cores: a block's tiles of A and B go through shared memory, its warps multiply them,
// and what they have summed up is stored.
//
// Defined before the include: the tunables, THROUGH_REGISTERS (1: tiles come through registers, 0: by cp.async), MMA_K
// (reduction of one step), ATile and BTile (see mma.cuh), and `multiply_add` of one mma tile.

constexpr unsigned WARPS_N = BLOCK_N / WARP_N;
constexpr unsigned THREADS = 32 * WARPS_N * (BLOCK_M / WARP_M);
constexpr unsigned SLOT = ATile::BYTES + BTile::BYTES;

static_assert(BLOCK_M % WARP_M == 0 && BLOCK_N % WARP_N == 0, "warps tile the block");
static_assert(WARP_M % 16 == 0 && WARP_N % 32 == 0, "whole mma tiles, four of them beside each other");
static_assert(BLOCK_K / MMA_K % 2 == 0, "fragments alternate");
static_assert(!THROUGH_REGISTERS || (STAGES == 2 && FRAGMENTS == 1), "through registers, more stages gain nothing");

// What a warp has summed up: the sums[i][j] of a lane lie in rows i * 16 + {0, 8} and columns j * 8 + {0, 1}, counted
// from row lane / 4 and column lane % 4 * 2.
using Sums = float[WARP_M / 16][WARP_N / 8][4];

// The operands of one step of the reduction, for a warp.
struct Fragments {
    unsigned a[WARP_M / 16][2][2], b[WARP_N / 16][2][2];

    __device__ __forceinline__ void read(unsigned slot, unsigned a_place, unsigned b_place, unsigned k) {
#pragma unroll
        for (unsigned i = 0; i < WARP_M / 16; ++i) ATile::read(a[i], slot, a_place, i * 16, k);
#pragma unroll
        for (unsigned j = 0; j < WARP_N / 16; ++j) BTile::read(b[j], slot + ATile::BYTES, b_place, j * 16, k);
    }

    __device__ __forceinline__ void multiply(Sums& sums) const {
#pragma unroll
        for (unsigned i = 0; i < WARP_M / 16; ++i)
#pragma unroll
            for (unsigned j = 0; j < WARP_N / 8; ++j) multiply_add(sums[i][j], a[i], b[j / 2][j % 2]);
    }
};

// sums += the tiles of A times the tiles of B, for the warp's part. `fetch(slot)` starts the loads of the next tiles
// towards `slot` in shared memory; `settle(slot)` writes them there where they come through registers.
template <class Fetch, class Settle>
__device__ __forceinline__ void multiply_tiles(Sums& sums, unsigned slots, unsigned trips, unsigned a_place,
                                               unsigned b_place, const Fetch& fetch, const Settle& settle) {
#if THROUGH_REGISTERS
    Fragments fragments;
    fetch(slots);
    settle(slots);
    __syncthreads();
    unsigned read = 0;
#pragma unroll 1
    for (unsigned trip = 0; trip < trips; ++trip) {
        fetch(slots);
#pragma unroll
        for (unsigned step = 0; step < BLOCK_K; step += MMA_K) {
            fragments.read(slots + read, a_place, b_place, step);
            fragments.multiply(sums);
        }
        read = SLOT - read;
        settle(slots + read);
        __syncthreads();
    }
#else
    const auto next = [](unsigned slot) { return slot == (STAGES - 1) * SLOT ? 0 : slot + SLOT; };
    const auto previous = [](unsigned slot) { return slot == 0 ? (STAGES - 1) * SLOT : slot - SLOT; };
#pragma unroll
    for (unsigned stage = 0; stage + 1 < STAGES; ++stage) fetch(slots + stage * SLOT);
    unsigned read = 0;
#if FRAGMENTS == 2
    Fragments fragments[2];
    wait_for_copies<STAGES - 2>();
    __syncthreads();
    fragments[0].read(slots, a_place, b_place, 0);
#pragma unroll 1
    for (unsigned trip = 0; trip < trips; ++trip) {
        fetch(slots + previous(read));
#pragma unroll
        for (unsigned step = 0; step < BLOCK_K; step += MMA_K) {
            if (step + MMA_K == BLOCK_K) {
                wait_for_copies<STAGES - 2>();
                __syncthreads();  // the next tile has landed for all, and all have read this one
                read = next(read);
            }
            fragments[(step / MMA_K + 1) % 2].read(slots + read, a_place, b_place, (step + MMA_K) % BLOCK_K);
            fragments[step / MMA_K % 2].multiply(sums);
        }
    }
#else
    Fragments fragments;
#pragma unroll 1
    for (unsigned trip = 0; trip < trips; ++trip) {
        wait_for_copies<STAGES - 2>();
        __syncthreads();  // the tile of this trip has landed for all, and all have done with the slot written next
        fetch(slots + previous(read));
#pragma unroll
        for (unsigned step = 0; step < BLOCK_K; step += MMA_K) {
            fragments.read(slots + read, a_place, b_place, step);
            fragments.multiply(sums);
        }
        read = next(read);
    }
#endif
    wait_for_copies<0>();
#endif
}

// Stores the sums as they are. `target.at(column, next)` is the address of element `column` + `next` of row
// `target.row`, which begins as the lane's first, and `target.holds(column)` whether it is one of the result; `column`
// is the lane's first.
template <class Target>
__device__ __forceinline__ void store_sums(const Sums& sums, Target target, unsigned column) {
#pragma unroll
    for (unsigned i = 0; i < WARP_M / 8; ++i, target.row += 8) {
#pragma unroll
        for (unsigned j = 0; j < WARP_N / 8; ++j) {
            const float* sum = sums[i / 2][j] + i % 2 * 2;
            const unsigned at = column + j * 8;
#if VECTOR == 1
            store_floats<1>(target.at(at), sum, target.holds(at));
            store_floats<1>(target.at(at, 1), sum + 1, target.holds(at + 1));
#else
            store_floats<2>(target.at(at), sum, target.holds(at));
#endif
        }
    }
}

// Two numbers in a word, the first in its lower half, each rounded to nearest: to f16, or bf16 where DTYPE_BF16.
struct PackElements {
    __device__ __forceinline__ unsigned operator()(float first, float second) const { return pack(first, second); }
};

// Stores the sums rounded to 16 bits, as `store_sums` does; `column` is the warp's first.
template <class Target, class Pack = PackElements>
__device__ __forceinline__ void store_rounded(const Sums& sums, Target target, unsigned column,
                                              const Pack& packed = Pack()) {
#pragma unroll
    for (unsigned i = 0; i < WARP_M / 8; ++i, target.row += 8) {
#pragma unroll
        for (unsigned j = 0; j < WARP_N / 8; j += 4) {
            unsigned words[4];
#pragma unroll
            for (unsigned w = 0; w < 4; ++w) {
                const float* sum = sums[i / 2][j + w] + i % 2 * 2;
                words[w] = packed(sum[0], sum[1]);
            }
#if VECTOR == 8
            transpose_quad(words);
            const unsigned at = column + j * 8 + threadIdx.x % 4 * 8;
            store_packet(target.at(at), Packet<16>{words[0], words[1], words[2], words[3]}, target.holds(at));
#else
#pragma unroll
            for (unsigned w = 0; w < 4; ++w) {
                const unsigned at = column + (j + w) * 8 + threadIdx.x % 4 * 2;
#if VECTOR == 2
                store_packet(target.at(at), Packet<4>{words[w]}, target.holds(at));
#else
                store_half(target.at(at), Element(words[w]), target.holds(at));
                store_half(target.at(at, 1), Element(words[w] >> 16), target.holds(at + 1));
#endif
            }
#endif
        }
    }
}
