// Stream-K (Osama et al., arXiv 2301.03598): of the tiles of a product, the first `shared` have the trips of their
// reductions shared evenly among all clusters, so that all end at the same time. A cluster takes its range of these
// trips, which may begin or end within a tile, and then every so many-th of the other tiles, whole.
//
// Who has the first trips of a tile owns it. Who has later ones leaves its sums in global memory, where the owner adds
// them to its own, in the order of the ranges. A cluster begins with its range, so what it leaves is there long before
// the owner, who computes its part of that tile last, asks for it. Ranges go to the clusters backwards: an owner waits
// for clusters with lower numbers alone, which began no later than it did, however many run at the same time.
//
// After wgmma.cuh and packet.cuh.

// The grid, read anew: what follows from it takes no registers while products are summed up.
struct Grid {
    unsigned block, blocks;

    __device__ __forceinline__ Grid() {
        asm volatile("mov.u32 %0, %%ctaid.x; mov.u32 %1, %%nctaid.x;" : "=r"(block), "=r"(blocks));
    }
};

// The trips of all shared tiles, `even` for each cluster and `rest` more, spread among them.
struct Ranges {
    unsigned even, rest, clusters;

    __device__ __forceinline__ Ranges(unsigned trips, unsigned clusters)
        : even(trips / clusters), rest(trips - even * clusters), clusters(clusters) {}

    // The first trip of a range, counted over all shared tiles; of the one after the last: how many there are.
    __device__ __forceinline__ unsigned begin(unsigned number) const {
        return number * even + number * rest / clusters;
    }
};

// What a cluster computes, piece by piece: `trips` trips of a tile, from `first` on.
struct Pieces {
    unsigned tile = 0, first = 0, trips = 0;

    // place, end: its range of the trips of tiles, counted over all of them; whole: the first of its other tiles.
    __device__ __forceinline__ Pieces(unsigned place, unsigned end, unsigned whole)
        : place_(place), end_(end), whole_(whole) {}

    // Goes on to the next piece, if there is one, of tiles of `depth` trips; of its other tiles, which end before
    // `tiles`, to the `clusters`-th after the last.
    __device__ __forceinline__ bool next(unsigned depth, unsigned clusters, unsigned tiles) {
        if (place_ < end_) {
            tile = place_ / depth;
            first = place_ - tile * depth;
            trips = min(depth - first, end_ - place_);
            place_ += trips;
            return true;
        }
        tile = whole_;
        first = 0;
        trips = depth;
        whole_ += clusters;
        return tile < tiles;
    }

private:
    unsigned place_, end_, whole_;
};

// Leaves the sums of a warp at `place`, four of each lane, then four more of each, and says so in `flag`.
template <unsigned N>
__device__ __forceinline__ void leave(const float (&sums)[N][4], float* place, unsigned* flag) {
    place += threadIdx.x % 32 * 4;
#pragma unroll
    for (unsigned j = 0; j < N; ++j) store_floats<4>(place + j * 128, sums[j], true);
    __syncwarp();  // the release is of all lanes' stores
    asm volatile("{ .reg .pred first; setp.eq.u32 first, %1, 0; @first st.release.gpu.global.u32 [%0], 1; }" ::"l"(flag),
                 "r"(threadIdx.x % 32)
                 : "memory");
}

// Adds what the same warp of another block leaves at `place`, once `flag` says so.
template <unsigned N>
__device__ __forceinline__ void add_left(float (&sums)[N][4], const float* place, const unsigned* flag) {
    asm volatile(
        "{ .reg .pred absent; .reg .u32 left;\n"
        "AWAIT: ld.acquire.gpu.global.u32 left, [%0];\n"
        "setp.eq.u32 absent, left, 0;\n"
        "@absent bra AWAIT; }" ::"l"(flag)
        : "memory");
    place += threadIdx.x % 32 * 4;
#pragma unroll
    for (unsigned j = 0; j < N; ++j) {
        float more[4];
        asm volatile("ld.global.v4.f32 {%0, %1, %2, %3}, [%4];"
                     : "=f"(more[0]), "=f"(more[1]), "=f"(more[2]), "=f"(more[3])
                     : "l"(place + j * 128)
                     : "memory");
#pragma unroll
        for (unsigned e = 0; e < 4; ++e) sums[j][e] += more[e];
        if (j % 8 == 7) asm volatile("fence.acq_rel.cta;" ::: "memory");  // else all are loaded first, and registers spill
    }
}
