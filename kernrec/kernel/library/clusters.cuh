// Clusters of CLUSTER thread blocks whose warps compute tiles of C one after the other: barriers of other blocks, copies
// to all of them, and which tile is where (sm_90). After tma.cuh.

// The barrier at this place in a block of the cluster.
__device__ __forceinline__ unsigned barrier_of(unsigned barrier, unsigned block) {
#if CLUSTER > 1
    unsigned there;
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(barrier), "r"(block));
    return there;
#else
    return barrier;
#endif
}

// Arrives at the barrier at this place in a block of the cluster.
__device__ __forceinline__ void barrier_arrive(unsigned barrier, unsigned block) {
#if CLUSTER > 1
    asm volatile("mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%0];" ::"r"(barrier_of(barrier, block))
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

// Starts the copy of a box to shared memory, whose bytes arrive on `barrier`; in all blocks of the cluster if `SHARED`.
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
