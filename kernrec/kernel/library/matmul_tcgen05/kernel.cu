// C[m,n] = activation(A[m,k] B[n,k]^T + bias[n]) on the tensor cores of data-center Blackwell: f16 and bf16, and e4m3
// with scales (see matmul_mma_8bit). Sums are f32.
//
// A block has a warp that loads, a warp of which one thread multiplies, a warp that allocates tensor memory, and four
// that store. The loader keeps STAGES tiles of A and B on their way, whole boxes of 128 bytes along the reduction that a
// tensor map describes. Each stage has a barrier on which its bytes arrive (`full`) and one on which the products that
// read it do (`empty`). tcgen05.mma takes both operands from shared memory and sums up 128 rows in tensor memory: row r
// is lane r, a column of C a column of it. There are sums of two tiles: while one is stored, the next is multiplied.
// `ready` says that the sums of a tile are complete, `drained` that they are in registers. What lies past an edge of A
// or B arrives as zeros.
//
// With CLUSTER 2, two blocks are a pair that multiplies 256 rows: each loads its rows of A and half of the columns of B,
// on barriers of the first block, of which a thread multiplies for both.
//
// A warp reads the sums of its 32 lanes, 64 columns at a time, as the fragments of mma.sync (shape 16x256b): what stores
// those of the other products stores these.

#define WARP_M 32
#define WARP_N 64
#define B_ROWS (BLOCK_N / CLUSTER)
#include "matmul_tma.cuh"

constexpr unsigned LOADER = 0, MULTIPLIER = 1, ALLOCATOR = 2;  // warps
constexpr unsigned STORERS = 4;                                // the first of those that store
constexpr unsigned TILES = 2;                                  // whose sums tensor memory holds
constexpr unsigned STEP_BYTES = 32;                            // of it that one product takes
constexpr unsigned BARRIERS = STAGES * SLOT;                   // offset of the barriers, behind the tiles

static_assert(BLOCK_M == 128, "a row for each lane");
static_assert(BLOCK_N % (16 * CLUSTER) == 0 && TILES * BLOCK_N <= 512, "columns of tensor memory");

#if CLUSTER > 1
#define PAIR "2"
#else
#define PAIR "1"
#endif
#if DTYPE_F8E4M3
#define KIND "f8f6f4"
constexpr unsigned OPERAND = 0;  // e4m3
#else
#define KIND "f16"
#if DTYPE_BF16
constexpr unsigned OPERAND = 1;
#else
constexpr unsigned OPERAND = 0;
#endif
#endif

// What tcgen05.mma computes: sums in f32, types of A and B, extents.
constexpr unsigned PRODUCT =
    (1 << 4) | (OPERAND << 7) | (OPERAND << 10) | (BLOCK_N / 8 << 17) | (BLOCK_M * CLUSTER / 16 << 24);

// A tile in shared memory as tcgen05.mma takes it: rows of 128 swizzled bytes along the reduction, 8 rows 1024 bytes
// apart.
__device__ __forceinline__ unsigned long long described(unsigned tile) {
    return (2ull << 61) | (1ull << 46) | (1024ull >> 4 << 32) | (1ull << 16) | (tile >> 4);
}

// sums = a b, or sums + a b if `add`, for a step of the reduction; `sums` is an address of tensor memory.
__device__ __forceinline__ void multiply_pair(unsigned sums, unsigned long long a, unsigned long long b, unsigned add) {
    asm volatile(
        "{ .reg .pred p; setp.ne.u32 p, %4, 0;\n"
        "tcgen05.mma.cta_group::" PAIR ".kind::" KIND " [%0], %1, %2, %3, p; }" ::"r"(sums),
        "l"(a), "l"(b), "r"(PRODUCT), "r"(add)
        : "memory");
}

// All products that this thread started arrive at the barrier when they are done, in both blocks of a pair.
__device__ __forceinline__ void commit_products(unsigned barrier) {
#if CLUSTER > 1
    asm volatile(
        "tcgen05.commit.cta_group::2.mbarrier::arrive::one.shared::cluster.multicast::cluster.b64 [%0], %1;" ::"r"(
            barrier),
        "h"((unsigned short)3)
        : "memory");
#else
    asm volatile("tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%0];" ::"r"(barrier)
                 : "memory");
#endif
}

// Starts the copy of a box to shared memory, whose bytes arrive on `barrier`, which may be the other block's.
__device__ __forceinline__ void copy_part(unsigned target, const TensorMap& map, unsigned barrier, unsigned depth,
                                          unsigned row, unsigned matrix) {
#if CLUSTER > 1
    asm volatile(
        "cp.async.bulk.tensor.3d.cta_group::2.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
        "[%0], [%1, {%2, %3, %4}], [%5];" ::"r"(target),
        "l"(&map), "r"(depth), "r"(row), "r"(matrix), "r"(barrier)
        : "memory");
#else
    copy_box<false>(target, map, barrier, depth, row, matrix);
#endif
}

__device__ __forceinline__ void fence_before_sync() {
    asm volatile("tcgen05.fence::before_thread_sync;" ::: "memory");
}

__device__ __forceinline__ void fence_after_sync() { asm volatile("tcgen05.fence::after_thread_sync;" ::: "memory"); }

#define WORD(i) "=f"(sum[(i) / 4][(i) % 4])
#define WORDS_8(i) \
    WORD(i), WORD(i + 1), WORD(i + 2), WORD(i + 3), WORD(i + 4), WORD(i + 5), WORD(i + 6), WORD(i + 7)

// Starts to read 16 lanes and 64 columns of tensor memory.
__device__ __forceinline__ void read_sums(float (&sum)[WARP_N / 8][4], unsigned address) {
    asm volatile(
        "tcgen05.ld.sync.aligned.16x256b.x8.b32 {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, [%32];"
        : WORDS_8(0), WORDS_8(8), WORDS_8(16), WORDS_8(24)
        : "r"(address)
        : "memory");
}

// Waits for what was read.
__device__ __forceinline__ void wait_for_sums(Sums& sums) {
    asm volatile("tcgen05.wait::ld.sync.aligned;" ::: "memory");
#pragma unroll
    for (unsigned i = 0; i < WARP_M / 16; ++i)
#pragma unroll
        for (unsigned j = 0; j < WARP_N / 8; ++j)
#pragma unroll
            for (unsigned e = 0; e < 4; ++e) asm volatile("" : "+f"(sums[i][j][e])::"memory");  // not used any earlier
}

// Grid: x = clusters of CLUSTER blocks; each takes every so many-th of `tiles`, of which one is CLUSTER * BLOCK_M rows.
// a_scale, b_scale, bias: null for none. Tensor maps have boxes of DEPTH by BLOCK_M and by BLOCK_N / CLUSTER.
extern "C" __global__ void __launch_bounds__(256, 1)
#if CLUSTER > 1
    __cluster_dims__(CLUSTER, 1, 1)
#endif
        matmul_tcgen05(const __grid_constant__ TensorMap a, const __grid_constant__ TensorMap b,
                       const float* __restrict__ a_scale, const float* __restrict__ b_scale,
                       const void* __restrict__ bias, void* __restrict__ c, unsigned m, unsigned n, unsigned each_scale,
                       unsigned output, unsigned activation, unsigned tiles_m, unsigned tiles_n, unsigned raster,
                       unsigned tiles, unsigned k_tiles) {
    extern __shared__ __align__(1024) unsigned char stages[];
    const unsigned slots = static_cast<unsigned>(__cvta_generic_to_shared(stages));
    const auto full = [&](unsigned stage) { return slots + BARRIERS + stage * 8; };
    const auto empty = [&](unsigned stage) { return slots + BARRIERS + (STAGES + stage) * 8; };
    const auto ready = [&](unsigned tile) { return slots + BARRIERS + (2 * STAGES + tile) * 8; };
    const auto drained = [&](unsigned tile) { return slots + BARRIERS + (2 * STAGES + TILES + tile) * 8; };
    const unsigned memory_at = slots + BARRIERS + (2 * STAGES + 2 * TILES) * 8;
    const unsigned rank = blockIdx.x % CLUSTER, cluster = blockIdx.x / CLUSTER, clusters = gridDim.x / CLUSTER;
    const unsigned warp = threadIdx.x / 32;

    if (threadIdx.x == 0) {
        for (unsigned stage = 0; stage < STAGES; ++stage) {
            barrier_start(full(stage), 1);
            barrier_start(empty(stage), 1);
        }
        for (unsigned tile = 0; tile < TILES; ++tile) {
            barrier_start(ready(tile), 1);
            barrier_start(drained(tile), CLUSTER * (BLOCK_M / 32));
        }
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    if (warp == ALLOCATOR) {
        asm volatile("tcgen05.alloc.cta_group::" PAIR ".sync.aligned.shared::cta.b32 [%0], %1;" ::"r"(memory_at),
                     "n"(TILES * BLOCK_N)
                     : "memory");
        asm volatile("tcgen05.relinquish_alloc_permit.cta_group::" PAIR ".sync.aligned;" ::: "memory");
    }
    fence_before_sync();
    cluster_sync();
    fence_after_sync();
    unsigned memory;
    asm volatile("ld.shared.b32 %0, [%1];" : "=r"(memory) : "r"(memory_at) : "memory");

    Stage stage;
    if (warp == LOADER) {
        constexpr unsigned PART = BLOCK_N / CLUSTER;
#pragma unroll 1
        for (unsigned tile = cluster; tile < tiles; tile += clusters) {
            const Place place(tile, tiles_m, tiles_n, raster, rank);
#pragma unroll 1
            for (unsigned trip = 0; trip < k_tiles; ++trip) {
                barrier_wait(empty(stage.number), stage.parity ^ 1);
                if (threadIdx.x == 0) {
                    const unsigned slot = slots + stage.number * SLOT;
                    const unsigned arrived = barrier_of(full(stage.number), 0);
                    if (rank == 0) barrier_expect(full(stage.number), CLUSTER * SLOT);
                    copy_part(slot, a, arrived, trip * DEPTH, place.row, place.matrix);
                    copy_part(slot + ATile::BYTES, b, arrived, trip * DEPTH, place.column + rank * PART, place.matrix);
                }
                __syncwarp();
                stage.next();
            }
        }
    } else if (warp == MULTIPLIER) {
        if (rank == 0) {
            unsigned number = 0, parity = 0;  // of the sums in use
#pragma unroll 1
            for (unsigned tile = cluster; tile < tiles; tile += clusters) {
                barrier_wait(drained(number), parity ^ 1);
                fence_after_sync();
#pragma unroll 1
                for (unsigned trip = 0; trip < k_tiles; ++trip) {
                    barrier_wait(full(stage.number), stage.parity);
                    fence_after_sync();
                    if (threadIdx.x % 32 == 0) {
                        const unsigned slot = slots + stage.number * SLOT;
                        const unsigned long long a_tile = described(slot), b_tile = described(slot + ATile::BYTES);
#pragma unroll
                        for (unsigned step = 0; step < ROW_BYTES / STEP_BYTES; ++step)
                            multiply_pair(memory + number * BLOCK_N, a_tile + step * (STEP_BYTES / 16),
                                          b_tile + step * (STEP_BYTES / 16), trip + step);
                        commit_products(empty(stage.number));
                        if (trip + 1 == k_tiles) commit_products(ready(number));
                    }
                    __syncwarp();
                    stage.next();
                }
                number ^= 1;
                parity ^= number == 0;
            }
        }
    } else if (warp >= STORERS) {
        const unsigned first_lane = (warp - STORERS) * 32;
        unsigned number = 0, parity = 0;
#pragma unroll 1
        for (unsigned tile = cluster; tile < tiles; tile += clusters) {
            const Place place(tile, tiles_m, tiles_n, raster, rank);
            const unsigned row = place.row + first_lane + threadIdx.x % 32 / 4;
            barrier_wait(ready(number), parity);
            fence_after_sync();
#pragma unroll 1
            for (unsigned part = 0; part < BLOCK_N; part += WARP_N) {
                const unsigned address = memory + number * BLOCK_N + part + (first_lane << 16);
                Sums sums;
                read_sums(sums[0], address);
                read_sums(sums[1], address + (16 << 16));
                wait_for_sums(sums);
                if (part + WARP_N == BLOCK_N) {
                    fence_before_sync();
                    __syncwarp();
                    if (threadIdx.x % 32 == 0) barrier_arrive(drained(number), 0);
                }
                const unsigned column = place.column + part, lane_column = column + threadIdx.x % 4 * 2;
#if DTYPE_F8E4M3
                const Scales of_rows(a_scale + place.matrix * (each_scale ? m : 1), each_scale, m);
                const Scales of_columns(b_scale + place.matrix * (each_scale ? n : 1), each_scale, n);
                scale(sums, of_rows, of_columns, row, lane_column);
                const size_t skipped = place.matrix * (size_t(m) * n) * (output == F32 ? 4 : 2);
                store_scaled(sums, static_cast<const float*>(bias), activation, static_cast<char*>(c) + skipped, output,
                             row, column, lane_column, m, n);
#else
                finish(sums, static_cast<const Element*>(bias), activation, lane_column, n);
                Element* target = static_cast<Element*>(c) + place.matrix * (size_t(m) * n);
                store_rounded(sums, Matrix<Element>{target, row, m, n}, column);
#endif
            }
            number ^= 1;
            parity ^= number == 0;
        }
    }
    fence_before_sync();
    cluster_sync();  // no sums are in use, and no block is gone while the other still uses its shared memory
    if (warp == ALLOCATOR) {
        fence_after_sync();
        asm volatile("tcgen05.dealloc.cta_group::" PAIR ".sync.aligned.b32 %0, %1;" ::"r"(memory), "n"(TILES * BLOCK_N)
                     : "memory");
    }
}
