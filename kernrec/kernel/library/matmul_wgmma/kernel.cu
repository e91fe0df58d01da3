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

#define THROUGH_REGISTERS 0
#define FRAGMENTS 1
#define VECTOR 8
#define WARP_M 16
#define WARP_N BLOCK_N

#if DTYPE_F8E4M3
#define DTYPE_TF32 1  // of the headers: without the product and the stores of 16-bit numbers
#if BLOCK_K != 128
#error "a row of a tile is 128 bytes"
#endif
#undef BLOCK_K
#define BLOCK_K 64  // in pairs, as to the headers an element is one
constexpr unsigned DEPTH = 128;  // numbers in a row of a tile
#else
constexpr unsigned DEPTH = BLOCK_K;
#endif

#include "mma.cuh"
#include "epilogue.cuh"

using Scalar = Element;
using ATile = Tile<BLOCK_M, BLOCK_K, true>;
using BTile = Tile<BLOCK_N, BLOCK_K, true>;

constexpr unsigned UNIT = VECTOR;
constexpr unsigned MMA_K = STEP_K;

#if DTYPE_F8E4M3
__device__ void multiply_add(float (&)[4], const unsigned (&)[2][2], const unsigned (&)[2]);  // not used
#endif
#include "matmul_tiles.cuh"
#if DTYPE_F8E4M3
#include "scaled.cuh"
#endif

constexpr unsigned GROUP = 128;                 // threads of a warpgroup
constexpr unsigned MULTIPLIERS = BLOCK_M / 64;  // warpgroups that multiply
constexpr unsigned ROW_BYTES = 128;             // of a tile: the span of the swizzle
constexpr unsigned STEP_BYTES = 32;             // of it that one wgmma takes
constexpr unsigned BARRIERS = STAGES * SLOT;    // offset of the barriers: those of all stages, `full` first

static_assert(ATile::ROW_BYTES == ROW_BYTES && BLOCK_N % (8 * CLUSTER) == 0, "whole rows of the swizzle");

struct alignas(64) TensorMap {
    unsigned char bytes[128];
};

__device__ __forceinline__ void barrier_start(unsigned barrier, unsigned arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}

// Waits for the phase of this parity to complete.
__device__ __forceinline__ void barrier_wait(unsigned barrier, unsigned parity) {
    asm volatile(
        "{ .reg .pred done;\n"
        "WAIT: mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
        "@!done bra WAIT; }" ::"r"(barrier),
        "r"(parity)
        : "memory");
}

// Arrives, and says how many bytes will.
__device__ __forceinline__ void barrier_expect(unsigned barrier, unsigned bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}

// Arrives at the barrier at this place in a block of the cluster.
__device__ __forceinline__ void barrier_arrive(unsigned barrier, unsigned block) {
#if CLUSTER > 1
    asm volatile(
        "{ .reg .b32 there; mapa.shared::cluster.u32 there, %0, %1;\n"
        "mbarrier.arrive.release.cluster.shared::cluster.b64 _, [there]; }" ::"r"(barrier),
        "r"(block)
        : "memory");
#else
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
#endif
}

// All threads of the cluster, and what they did before.
__device__ __forceinline__ void cluster_sync() {
#if CLUSTER > 1
    asm volatile("barrier.cluster.arrive.release.aligned; barrier.cluster.wait.acquire.aligned;" ::: "memory");
#else
    __syncthreads();
#endif
}

// Starts the copy of a box to shared memory, whose bytes arrive on `barrier`; in all blocks of the cluster if `shared`.
template <bool SHARED>
__device__ __forceinline__ void copy_box(unsigned target, const TensorMap& map, unsigned barrier, unsigned depth,
                                         unsigned row, unsigned matrix) {
    if constexpr (SHARED)
        asm volatile(
            "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster "
            "[%0], [%1, {%2, %3, %4}], [%5], %6;" ::"r"(target),
            "l"(&map), "r"(depth), "r"(row), "r"(matrix), "r"(barrier), "h"((unsigned short)((1 << CLUSTER) - 1))
            : "memory");
    else
        asm volatile(
            "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
            "[%0], [%1, {%2, %3, %4}], [%5];" ::"r"(target),
            "l"(&map), "r"(depth), "r"(row), "r"(matrix), "r"(barrier)
            : "memory");
}

// A tile in shared memory as wgmma takes it: rows of 128 swizzled bytes along the reduction, 8 rows 1024 bytes apart.
__device__ __forceinline__ unsigned long long described(unsigned tile) {
    return (1ull << 62) | (1024ull >> 4 << 32) | (1ull << 16) | (tile >> 4);
}

#define REGISTERS_32                                                                                                   \
    "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, "   \
    "%24, %25, %26, %27, %28, %29, %30, %31"
#define REGISTERS_64                                                                                                   \
    REGISTERS_32 ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, "    \
    "%51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define REGISTERS_128                                                                                                  \
    REGISTERS_64 ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, %80, %81, %82, "    \
    "%83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, %96, %97, %98, %99, %100, %101, %102, %103, "     \
    "%104, %105, %106, %107, %108, %109, %110, %111, %112, %113, %114, %115, %116, %117, %118, %119, %120, %121, "      \
    "%122, %123, %124, %125, %126, %127"
#define SUMS_4(j) "+f"(d[j][0]), "+f"(d[j][1]), "+f"(d[j][2]), "+f"(d[j][3])
#define SUMS_32(j) \
    SUMS_4(j), SUMS_4(j + 1), SUMS_4(j + 2), SUMS_4(j + 3), SUMS_4(j + 4), SUMS_4(j + 5), SUMS_4(j + 6), SUMS_4(j + 7)

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
    asm volatile("{ .reg .pred p; setp.ne.u32 p, %34, 0;\n" WGMMA("64") REGISTERS_32 "}, %32, %33" WGMMA_END
                 : SUMS_32(0)
                 : "l"(a), "l"(b), "r"(add));
#elif BLOCK_N == 128
    asm volatile("{ .reg .pred p; setp.ne.u32 p, %66, 0;\n" WGMMA("128") REGISTERS_64 "}, %64, %65" WGMMA_END
                 : SUMS_32(0), SUMS_32(8)
                 : "l"(a), "l"(b), "r"(add));
#else
    asm volatile("{ .reg .pred p; setp.ne.u32 p, %130, 0;\n" WGMMA("256") REGISTERS_128 "}, %128, %129" WGMMA_END
                 : SUMS_32(0), SUMS_32(8), SUMS_32(16), SUMS_32(24)
                 : "l"(a), "l"(b), "r"(add));
#endif
}

// Waits until all but the PENDING newest groups of products are done.
template <unsigned PENDING>
__device__ __forceinline__ void wait_for_products(float (&d)[BLOCK_N / 8][4]) {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory");
    if constexpr (PENDING == 0)
#pragma unroll
        for (unsigned j = 0; j < BLOCK_N / 8; ++j)
#pragma unroll
            for (unsigned e = 0; e < 4; ++e) asm volatile("" : "+f"(d[j][e])::"memory");  // not read any earlier
}

// The stage in use, and how often all were.
struct Stage {
    unsigned number = 0, parity = 0;

    __device__ __forceinline__ void next() {
        number = number + 1 == STAGES ? 0 : number + 1;
        parity ^= number == 0;
    }
};

// Tile `tile` of the tiles of all matrices, walked in bands of `raster` tile rows, down the rows of a band first.
struct Place {
    unsigned matrix, row, column;

    __device__ __forceinline__ Place(unsigned tile, unsigned tiles_m, unsigned tiles_n, unsigned raster,
                                     unsigned rank) {
        matrix = tile / (tiles_m * tiles_n);
        tile -= matrix * (tiles_m * tiles_n);
        const unsigned band_tiles = raster * tiles_n;
        const unsigned band = tile / band_tiles;
        const unsigned in_band = tile - band * band_tiles;
        const unsigned band_rows = min(raster, tiles_m - band * raster);
        const unsigned tile_n = in_band / band_rows;
        row = ((band * raster + in_band - tile_n * band_rows) * CLUSTER + rank) * BLOCK_M;
        column = tile_n * BLOCK_N;
    }
};

// Grid: x = clusters of CLUSTER blocks; each takes every so many-th of `tiles`, of which one is CLUSTER * BLOCK_M rows.
// a_scale, b_scale, bias: null for none. Tensor maps have boxes of DEPTH by BLOCK_M and by BLOCK_N / CLUSTER.
extern "C" __global__ void __launch_bounds__(GROUP * (MULTIPLIERS + 1), 1)
#if CLUSTER > 1
    __cluster_dims__(CLUSTER, 1, 1)
#endif
        matmul_wgmma(const __grid_constant__ TensorMap a, const __grid_constant__ TensorMap b,
                     const float* __restrict__ a_scale, const float* __restrict__ b_scale,
                     const void* __restrict__ bias, void* __restrict__ c, unsigned m, unsigned n, unsigned each_scale,
                     unsigned output, unsigned activation, unsigned tiles_m, unsigned tiles_n, unsigned raster,
                     unsigned tiles, unsigned k_tiles) {
    extern __shared__ __align__(1024) unsigned char stages[];
    const unsigned slots = static_cast<unsigned>(__cvta_generic_to_shared(stages));
    const auto full = [&](unsigned stage) { return slots + BARRIERS + stage * 8; };
    const auto empty = [&](unsigned stage) { return slots + BARRIERS + (STAGES + stage) * 8; };
    const unsigned rank = blockIdx.x % CLUSTER, cluster = blockIdx.x / CLUSTER, clusters = gridDim.x / CLUSTER;
    const unsigned warp = threadIdx.x / 32;

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
            for (unsigned tile = cluster; tile < tiles; tile += clusters) {
                const Place place(tile, tiles_m, tiles_n, raster, rank);
#pragma unroll 1
                for (unsigned trip = 0; trip < k_tiles; ++trip) {
                    barrier_wait(empty(stage.number), stage.parity ^ 1);
                    if (threadIdx.x % 32 == 0) {
                        const unsigned slot = slots + stage.number * SLOT, arrived = full(stage.number);
                        barrier_expect(arrived, SLOT);
                        copy_box<false>(slot, a, arrived, trip * DEPTH, place.row, place.matrix);
                        copy_box<(CLUSTER > 1)>(slot + ATile::BYTES + rank * PART * ROW_BYTES, b, arrived, trip * DEPTH,
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
        for (unsigned tile = cluster; tile < tiles; tile += clusters) {
            const Place place(tile, tiles_m, tiles_n, raster, rank);
            Sums sums;
#pragma unroll
            for (unsigned j = 0; j < BLOCK_N / 8; ++j)
#pragma unroll
                for (unsigned e = 0; e < 4; ++e) sums[0][j][e] = 0.0f;
            unsigned before = 0;
#pragma unroll 1
            for (unsigned trip = 0; trip < k_tiles; ++trip) {
                barrier_wait(full(stage.number), stage.parity);
                const unsigned slot = slots + stage.number * SLOT;
                const unsigned long long a_tile = described(slot + warp / 4 * 64 * ROW_BYTES);
                const unsigned long long b_tile = described(slot + ATile::BYTES);
                asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#pragma unroll
                for (unsigned step = 0; step < ROW_BYTES / STEP_BYTES; ++step)
                    multiply_group(sums[0], a_tile + step * (STEP_BYTES / 16), b_tile + step * (STEP_BYTES / 16), 1);
                asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
                wait_for_products<1>(sums[0]);
                if (trip) release(before);
                before = stage.number;
                stage.next();
            }
            wait_for_products<0>(sums[0]);
            release(before);

            const unsigned row = place.row + warp * 16 + threadIdx.x % 32 / 4;
            const unsigned lane_column = place.column + threadIdx.x % 4 * 2;
#if DTYPE_F8E4M3
            const Scales of_rows(a_scale + place.matrix * (each_scale ? m : 1), each_scale, m);
            const Scales of_columns(b_scale + place.matrix * (each_scale ? n : 1), each_scale, n);
            scale(sums, of_rows, of_columns, row, lane_column);
            const size_t skipped = place.matrix * (size_t(m) * n) * (output == F32 ? 4 : 2);
            store_scaled(sums, static_cast<const float*>(bias), activation, static_cast<char*>(c) + skipped, output,
                         row, place.column, lane_column, m, n);
#else
            finish(sums, static_cast<const Element*>(bias), activation, lane_column, n);
            Element* target = static_cast<Element*>(c) + place.matrix * (size_t(m) * n);
            store_rounded(sums, Matrix<Element>{target, row, m, n}, place.column);
#endif
        }
    }
    cluster_sync();  // no block is gone while another still writes to its shared memory
}
