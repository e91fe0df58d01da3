// C[m,n] = activation(A[m,k] B[n,k]^T + bias[n]) on Hopper's tensor cores: f16 and bf16, and e4m3 with scales (see
// matmul_mma_8bit). Sums are f32.
//
// A block has a warpgroup that loads and one or two that multiply, 64 rows of C each. The loader keeps STAGES tiles of A
// and B on their way, whole boxes of 128 bytes along the reduction that a tensor map describes; each stage has a
// barrier on which its bytes arrive (`full`) and one on which its readers do (`empty`). The others wait for a stage,
// multiply it by wgmma.mma_async, both operands from shared memory, and give it back when the next one is under way.
// What lies past an edge of A or B arrives as zeros.
//
// A block computes several tiles of C one after the other: while the last sums of a tile are stored, the first stages
// of the next one arrive. With CLUSTER 2, two blocks compute tiles one above the other; each loads half of their common
// tile of B for both.
//
// Split-K: blockIdx.y takes an equal share of the reduction and writes a partial C in f32, of e4m3 scaled;
// matmul_wgmma_reduce adds the partials in a fixed order. Stream-K (stream_k.cuh): clusters share the reductions of some
// tiles evenly; a warp hands its sums to the same warp of another block. matmul_wgmma_clear takes back all flags.

#define WARP_M 16
#define WARP_N BLOCK_N
#define B_ROWS BLOCK_N
#include "matmul_tma.cuh"
#include "wgmma.cuh"
#include "stream_k.cuh"

constexpr unsigned CLEAR_THREADS = 128;
constexpr unsigned MULTIPLIERS = BLOCK_M / 64;  // warpgroups that multiply
constexpr unsigned BARRIERS = STAGES * SLOT;    // offset of the barriers: those of all stages, `full` first

static_assert(BLOCK_N % (8 * CLUSTER) == 0, "eights of rows of B, which the swizzle permutes");

#if DTYPE_F8E4M3
#define WGMMA(n) "wgmma.mma_async.sync.aligned.m64n" n "k32.f32.e4m3.e4m3 "
#define WGMMA_END ", p, 1, 1; }"
#else
#define WGMMA(n) "wgmma.mma_async.sync.aligned.m64n" n "k16.f32." ELEMENT "." ELEMENT " "
#define WGMMA_END ", p, 1, 1, 0, 0; }"
#endif

// d = a b, or d + a b if `add`, for a step of the reduction.
__device__ __forceinline__ void multiply_group(float (&d)[BLOCK_N / 8][4], unsigned long long a, unsigned long long b,
                                               unsigned add) {
#if BLOCK_N == 64
    asm volatile("{ .reg .pred p; setp.ne.u32 p, %34, 0;\n" WGMMA("64") "{" PLACES_32 "}, %32, %33" WGMMA_END
                 : SUMS_32
                 : "l"(a), "l"(b), "r"(add));
#elif BLOCK_N == 128
    asm volatile("{ .reg .pred p; setp.ne.u32 p, %66, 0;\n" WGMMA("128") "{" PLACES_64 "}, %64, %65" WGMMA_END
                 : SUMS_64
                 : "l"(a), "l"(b), "r"(add));
#else
    asm volatile("{ .reg .pred p; setp.ne.u32 p, %130, 0;\n" WGMMA("256") "{" PLACES_128 "}, %128, %129" WGMMA_END
                 : SUMS_128
                 : "l"(a), "l"(b), "r"(add));
#endif
}

// Grid: x = clusters of CLUSTER blocks; each takes every so many-th of `tiles`, of which one is CLUSTER * BLOCK_M rows;
// y = shares of the reduction, which is of `k_tiles`. a_scale, b_scale, bias: null for none. partial: null without
// split-K and Stream-K; flags: null without Stream-K, which shares the first `shared_tiles`. Tensor maps have boxes of
// DEPTH by BLOCK_M and by BLOCK_N / CLUSTER.
extern "C" __global__ void __launch_bounds__(GROUP * (MULTIPLIERS + 1), 1)
#if CLUSTER > 1
    __cluster_dims__(CLUSTER, 1, 1)
#endif
        matmul_wgmma(const __grid_constant__ TensorMap a, const __grid_constant__ TensorMap b,
                     const float* __restrict__ a_scale, const float* __restrict__ b_scale,
                     const void* __restrict__ bias, void* __restrict__ c, float* __restrict__ partial,
                     unsigned* __restrict__ flags, unsigned m, unsigned n, unsigned each_scale, unsigned output,
                     unsigned activation, unsigned tiles_m, unsigned tiles_n, unsigned raster, unsigned tiles,
                     unsigned k_tiles, unsigned shared_tiles) {
    extern __shared__ __align__(1024) unsigned char stages[];
    const unsigned slots = static_cast<unsigned>(__cvta_generic_to_shared(stages));
    const auto full = [&](unsigned stage) { return slots + BARRIERS + stage * 8; };
    const auto empty = [&](unsigned stage) { return slots + BARRIERS + (STAGES + stage) * 8; };
    const unsigned rank = blockIdx.x % CLUSTER;
    const unsigned warp = threadIdx.x / 32;
    Pieces piece(Share(k_tiles, shared_tiles, tiles));

    if (threadIdx.x == 0) {
        for (unsigned stage = 0; stage < STAGES; ++stage) {
            barrier_start(full(stage), 1);
            barrier_start(empty(stage), CLUSTER * MULTIPLIERS * (GROUP / 32));
        }
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    cluster_sync();

    Stage stage;
    if (threadIdx.x >= MULTIPLIERS * GROUP) {
#if BLOCK_M == 128
        asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
#endif
        if (warp == MULTIPLIERS * GROUP / 32) {
            constexpr unsigned PART = BLOCK_N / CLUSTER;
#pragma unroll 1
            while (piece.next(k_tiles, shared_tiles, tiles)) {
                const Place place(piece.tile, tiles_m, tiles_n, raster, rank);
#pragma unroll 1
                for (unsigned trip = 0; trip < piece.trips; ++trip) {
                    barrier_wait(empty(stage.number), stage.parity ^ 1);
                    if (threadIdx.x % 32 == 0) {
                        const unsigned slot = slots + stage.number * SLOT, landed = full(stage.number);
                        const unsigned depth = (piece.first + trip) * DEPTH;
                        barrier_expect(landed, SLOT);
                        copy_box<false>(slot, a, landed, depth, place.row, place.matrix);
                        copy_box<(CLUSTER > 1)>(slot + ATile::BYTES + rank * PART * ROW_BYTES, b, landed, depth,
                                                place.column + rank * PART, place.matrix);
                    }
                    __syncwarp();
                    stage.next();
                }
            }
        }
    } else {
#if BLOCK_M == 128
        asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
#endif
        // A warp has done with the stage: all blocks that load it are told.
        const auto release = [&](unsigned number) {
            if (threadIdx.x % 32 < CLUSTER) barrier_arrive(empty(number), threadIdx.x % 32);
        };
#pragma unroll 1
        while (piece.next(k_tiles, shared_tiles, tiles)) {
            const Place place(piece.tile, tiles_m, tiles_n, raster, rank);
            Sums sums;
#pragma unroll
            for (unsigned j = 0; j < BLOCK_N / 8; ++j)
#pragma unroll
                for (unsigned e = 0; e < 4; ++e) sums[0][j][e] = 0.0f;
            unsigned before = 0;
#pragma unroll 1
            for (unsigned trip = 0; trip < piece.trips; ++trip) {
                barrier_wait(full(stage.number), stage.parity);
                const unsigned slot = slots + stage.number * SLOT;
                const unsigned long long a_tile = described<ROW_BYTES>(slot + warp / 4 * 64 * ROW_BYTES);
                const unsigned long long b_tile = described<ROW_BYTES>(slot + ATile::BYTES);
                products_fence();
#pragma unroll
                for (unsigned step = 0; step < ROW_BYTES / STEP_BYTES; ++step)
                    multiply_group(sums[0], a_tile + step * (STEP_BYTES / 16), b_tile + step * (STEP_BYTES / 16), 1);
                commit_products();
                wait_for_products<1>();
                if (trip) release(before);
                before = stage.number;
                stage.next();
            }
            wait_for_products<0>();
            hold(sums[0]);
            release(before);

            if (flags) {
                const Share mine(k_tiles, shared_tiles, tiles);
                // Of a range: where this warp, or the same one of another block, leaves its sums.
                const auto left = [&](unsigned number) { return (number * CLUSTER + rank) * (BLOCK_M / 16) + warp; };
                if (piece.first) {
                    leave(sums[0], partial + left(mine.range) * (16 * BLOCK_N), flags + left(mine.range));
                    continue;
                }
                for (unsigned other = mine.range + 1, summed = piece.trips; summed < k_tiles; ++other) {
                    add_left(sums[0], partial + left(other) * (16 * BLOCK_N), flags + left(other));
                    summed = mine.ranges.begin(other + 1) - piece.tile * k_tiles;
                }
            }

            const unsigned row = place.row + warp * 16 + threadIdx.x % 32 / 4;
            const unsigned lane_column = place.column + threadIdx.x % 4 * 2;
#if DTYPE_F8E4M3
            const Scales of_rows(a_scale + place.matrix * (each_scale ? m : 1), each_scale, m);
            const Scales of_columns(b_scale + place.matrix * (each_scale ? n : 1), each_scale, n);
            scale(sums, of_rows, of_columns, row, lane_column);
#endif
            const size_t elements = size_t(m) * n;
            if (partial && !flags) {
                const size_t skipped = (blockIdx.y * (tiles / (tiles_m * tiles_n)) + place.matrix) * elements;
                store_sums(sums, Matrix<float>{partial + skipped, row, m, n}, lane_column);
            } else {
                const size_t skipped = place.matrix * elements;
#if DTYPE_F8E4M3
                char* target = static_cast<char*>(c) + skipped * (output == F32 ? 4 : 2);
                store_scaled(sums, static_cast<const float*>(bias), activation, target, output, row, place.column,
                             lane_column, m, n);
#else
                finish(sums, static_cast<const Element*>(bias), activation, lane_column, n);
                Element* target = static_cast<Element*>(c) + skipped;
                store_rounded(sums, Matrix<Element>{target, row, m, n}, place.column);
#endif
            }
        }
    }
    cluster_sync();  // no block is gone while another still writes to its shared memory
}

// Grid: x = REDUCE_THREADS * 4 elements of C each.
extern "C" __global__ void __launch_bounds__(REDUCE_THREADS)
    matmul_wgmma_reduce(const float* __restrict__ partial, const void* __restrict__ bias, void* __restrict__ c,
                        unsigned output, unsigned activation, unsigned elements, unsigned columns, unsigned splits) {
    const unsigned first = (blockIdx.x * REDUCE_THREADS + threadIdx.x) * 4;
    const bool inside = first < elements;
#if DTYPE_F8E4M3
    const float* added = static_cast<const float*>(bias);
    store_result<4>(c, output, first, added_up<4>(partial, added, activation, first, elements, columns, splits), inside);
#else
    const Element* added = static_cast<const Element*>(bias);
    const Floats<4> sum = added_up<4>(partial, added, activation, first, elements, columns, splits);
    const Packet<8> words{pack(sum.value[0], sum.value[1]), pack(sum.value[2], sum.value[3])};
    store_packet(static_cast<Element*>(c) + first, words, inside);
#endif
}

// Grid: x = CLEAR_THREADS flags each.
extern "C" __global__ void __launch_bounds__(CLEAR_THREADS) matmul_wgmma_clear(unsigned* __restrict__ flags) {
    flags[blockIdx.x * CLEAR_THREADS + threadIdx.x] = 0;
}
