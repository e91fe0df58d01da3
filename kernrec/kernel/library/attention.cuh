// What attention kernels share: where their rows lie, which keys a block meets, and the second pass of a split over
// keys. Scores are kept in units of log2: exp(x) is ex2 of a score that the scale and log2(e) have been folded into.
//
// A row is one query of one head. A block owns `tile_queries` queries of `packed` heads that share keys and values:
// one head, or, packed, a whole group, whose keys and values are then read once for all of its heads. Row r of a block
// is query r / packed of head r % packed.
//
// The order of tokens and heads in memory is a run-time matter: `pitch` rows of head_dim elements lie between two
// tokens of a head, `head` rows between two heads of a token (layout bhsd: 1 and tokens, bshd: heads and 1).
//
// A tensor holds at most 2^31 elements: offsets of elements fit 32 unsigned bits.

constexpr float LOG2_E = 1.4426950408889634f;
// What a score that must not count is set to, and where a running maximum starts: its ex2 is zero next to that of any
// real score, and differences stay finite. A power of two: scaled, less itself scaled, is exactly zero.
constexpr float MASKED = -0x1p100f;
constexpr unsigned COMBINE_THREADS = 256;

__device__ __forceinline__ float ex2(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// One problem, and how a config shares it out; the parameters of every kernel.
struct Attention {
    unsigned queries, keys, head_dim, heads, kv_heads, group;
    unsigned q_pitch, q_head, kv_pitch, kv_head;
    unsigned packed, tile_queries, splits;
    unsigned older;  // keys that the first query meets besides its own; keys or more: every query meets all

    // The row of q and o at which row `row` of the block's tile lies; `inside`: whether there is one.
    __device__ __forceinline__ unsigned row(unsigned tile, unsigned row, bool& inside) const {
        const unsigned in_tile = row / packed, head = blockIdx.y * packed + row - in_tile * packed;
        const unsigned query = tile * tile_queries + in_tile;
        inside = in_tile < tile_queries && query < queries;
        return batch() * heads * queries + head * q_head + query * q_pitch;
    }

    // The first row of the keys and values of this block's heads.
    __device__ __forceinline__ unsigned kv_row() const {
        return batch() * kv_heads * keys + blockIdx.y * packed / group * kv_head;
    }

    // Keys that row `row` of a tile meets.
    __device__ __forceinline__ unsigned visible(unsigned tile, unsigned row) const {
        return min(keys, tile * tile_queries + row / packed + 1 + older);
    }

    // The longest tiles of causal attention come first: they end last.
    __device__ __forceinline__ unsigned tile() const { return gridDim.x - 1 - blockIdx.x; }
    __device__ __forceinline__ unsigned batch() const { return blockIdx.z / splits; }
    __device__ __forceinline__ unsigned split() const { return blockIdx.z % splits; }
};

// The tiles of keys that a block walks.
struct KeyTiles {
    unsigned first, trips;
    unsigned end;       // keys before it are loaded
    unsigned unmasked;  // keys before it are met by every row

    __device__ __forceinline__ KeyTiles(const Attention& a, unsigned tile, unsigned block_k) {
        const unsigned before = tile * a.tile_queries;
        const unsigned last = min(a.keys, min(before + a.tile_queries, a.queries) + a.older);
        unmasked = min(a.keys, before + 1 + a.older);
        const unsigned tiles = (last + block_k - 1) / block_k, split = a.split();
        const unsigned share = tiles / a.splits, longer_shares = tiles % a.splits;
        trips = share + (split < longer_shares);
        first = (split * share + min(split, longer_shares)) * block_k;
        end = min(a.keys, first + trips * block_k);
    }
};

// o = sum over splits of partial, each weighted by how its greatest score compares with the greatest of all, over the
// sum of weights so weighted; in the order of the splits. partial: f32, `elements` a split, laid out as o; stats: for
// each row of a split its greatest score and its sum of weights. N elements of a row a thread; `write(at, value,
// inside)` stores them.
template <unsigned N, class Write>
__device__ __forceinline__ void combine(const float* partial, const float* stats, unsigned elements, unsigned head_dim,
                                        unsigned splits, const Write& write) {
    const unsigned at = (blockIdx.x * COMBINE_THREADS + threadIdx.x) * N;
    const bool inside = at < elements;
    const unsigned rows = elements / head_dim;
    const unsigned from = min(at, elements - N);  // past the end the last are read again, and not stored
    partial += from;
    stats += 2 * (from / head_dim);
    float sum[N] = {}, weight = 0, greatest = MASKED;
#pragma unroll 1
    for (unsigned split = 0; split < splits; ++split) {
        float value[N], its_greatest, its_weight;
        asm volatile("ld.global.v2.f32 {%0, %1}, [%2];" : "=f"(its_greatest), "=f"(its_weight) : "l"(stats));
        if constexpr (N == 4)
            asm volatile("ld.global.v4.f32 {%0, %1, %2, %3}, [%4];"
                         : "=f"(value[0]), "=f"(value[1]), "=f"(value[2]), "=f"(value[3])
                         : "l"(partial));
        else
            asm volatile("ld.global.f32 %0, [%1];" : "=f"(value[0]) : "l"(partial));
        const float together = fmaxf(greatest, its_greatest);
        const float old_scale = ex2(greatest - together), scale = ex2(its_greatest - together);
        greatest = together;
        weight = weight * old_scale + its_weight * scale;
#pragma unroll
        for (unsigned i = 0; i < N; ++i) sum[i] = sum[i] * old_scale + value[i] * scale;
        partial += elements;
        stats += 2 * rows;
    }
    const float over = 1 / weight;
#pragma unroll
    for (unsigned i = 0; i < N; ++i) sum[i] *= over;
    write(at, sum, inside);
}
