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

// What a cluster computes of `tiles` tiles of `depth` trips, of which the first `shared` are shared; in a grid of several
// rows (split-K) a cluster computes the share of its row of one tile. All of it is computed anew where it is asked for:
// the sums need the registers.
struct Share {
    unsigned cluster, clusters, range, before, others;
    Ranges ranges;

    __device__ __forceinline__ Share(unsigned depth, unsigned shared, unsigned tiles) : Share(Grid(), depth, shared, tiles) {}

    // The trips of its range, counted over all tiles.
    __device__ __forceinline__ unsigned begin() const { return before + ranges.begin(range); }
    __device__ __forceinline__ unsigned end() const { return before + ranges.begin(range + 1); }

private:
    // Read at this place, not earlier.
    struct Grid {
        unsigned block, blocks, row, rows;

        __device__ __forceinline__ Grid() {
            asm volatile("mov.u32 %0, %%ctaid.x; mov.u32 %1, %%nctaid.x; mov.u32 %2, %%ctaid.y; mov.u32 %3, %%nctaid.y;"
                         : "=r"(block), "=r"(blocks), "=r"(row), "=r"(rows));
        }
    };

    __device__ __forceinline__ Share(const Grid& grid, unsigned depth, unsigned shared, unsigned tiles)
        : cluster(grid.block / CLUSTER),
          clusters(grid.blocks / CLUSTER),
          range(grid.rows > 1 ? grid.row : clusters - 1 - cluster),
          before(grid.rows > 1 ? cluster * depth : 0),
          others(grid.rows > 1 ? tiles : shared),
          ranges(grid.rows > 1 ? depth : shared * depth, grid.rows > 1 ? grid.rows : clusters) {}
};

// The pieces of that: `trips` trips of a tile, from `first` on. First those of its range, then every so many-th of the
// tiles that are not shared, whole.
struct Pieces {
    unsigned tile = 0, first = 0, trips = 0;

    __device__ __forceinline__ Pieces(const Share& share) : place_(share.begin()) {}

    // Goes on to the next piece, if there is one.
    __device__ __forceinline__ bool next(unsigned depth, unsigned shared, unsigned tiles) {
        const Share share(depth, shared, tiles);
        const unsigned end = share.end();
        if (place_ < end) {
            tile = place_ / depth;
            first = place_ - tile * depth;
            trips = min(depth - first, end - place_);
            place_ += trips;
            return true;
        }
        tile = share.others + share.cluster + (place_ - end) * share.clusters;
        first = 0;
        trips = depth;
        ++place_;
        return tile < tiles;
    }

private:
    unsigned place_;  // the next trip of the range, and beyond its end, how many whole tiles are done
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
