// o = softmax(q k^T / sqrt(head_dim)) v on the FMA pipes: f32, f16 or bf16 in memory, f32 in between. Online softmax
// as in FlashAttention-2 (Dao, arXiv 2307.08691), for GPUs and types without a tensor core that would do.
//
// A block owns BLOCK_Q rows and walks the keys in tiles of BLOCK_K. LANES neighbouring threads share ROWS of the
// rows, so that all of a row stays in one warp: a thread forms ROWS x COLUMNS scores from rows of q and of k in
// shared memory, the lanes combine maximum and sum by shuffles and put the weights into shared memory, and then each
// multiplies them into its columns of the values.
//
// Tiles are loaded half a trip ahead, through registers: values while scores are formed, the next keys while weights
// are multiplied. Pitches in shared memory are chosen so that the lanes of a warp, four rows and eight columns, cover
// different banks.
//
// HEAD is head_dim rounded up: columns past head_dim are zeros that no load reads, and are not stored. Masks cost only
// the tiles that the diagonal or the last key falls into; other edges cost what full tiles cost. So a block executes
// prologue + trips * body + masked trips * mask instructions, for any trips.

#include "attention.cuh"

#if DTYPE_F32
using Element = float;
#else
using Element = unsigned short;  // the bits of one f16 or bf16
#endif

constexpr unsigned LANES = 8;
constexpr unsigned GROUPS = THREADS / LANES;  // of threads that share rows
constexpr unsigned BLOCK_Q = GROUPS * ROWS;
constexpr unsigned BLOCK_K = LANES * COLUMNS;
constexpr unsigned PACKET = 4;  // elements
constexpr unsigned WORDS = PACKET * sizeof(Element) / 4;
constexpr unsigned STEP = LANES * PACKET;  // columns between two packets of a thread
constexpr unsigned PACKETS = HEAD / STEP;
constexpr unsigned PITCH = HEAD + 4;             // of rows of q and k, floats
constexpr unsigned WEIGHT_PITCH = BLOCK_K + 8;
constexpr unsigned LOADS = BLOCK_K / GROUPS;     // rows of a tile that a thread loads

static_assert(HEAD % STEP == 0 && BLOCK_K % GROUPS == 0 && THREADS % 32 == 0, "threads share rows and tiles evenly");

// PACKET elements on their way from global memory, as they lie there; zeros past `columns` of them.
struct Packet {
    unsigned word[WORDS];

    __device__ __forceinline__ void load(const Element* source, int columns) {
#if VECTOR == 4 && DTYPE_F32
        asm volatile(
            "{ .reg .pred p; setp.gt.s32 p, %5, 0;\n"
            "  mov.b32 %0, 0; mov.b32 %1, 0; mov.b32 %2, 0; mov.b32 %3, 0;\n"
            "  @p ld.global.nc.v4.b32 {%0, %1, %2, %3}, [%4]; }"
            : "=&r"(word[0]), "=&r"(word[1]), "=&r"(word[2]), "=&r"(word[3])
            : "l"(source), "r"(columns));
#elif VECTOR == 4
        asm volatile(
            "{ .reg .pred p; setp.gt.s32 p, %3, 0; mov.b32 %0, 0; mov.b32 %1, 0;\n"
            "  @p ld.global.nc.v2.b32 {%0, %1}, [%2]; }"
            : "=&r"(word[0]), "=&r"(word[1])
            : "l"(source), "r"(columns));
#elif DTYPE_F32
#pragma unroll
        for (int i = 0; i < int(PACKET); ++i)
            asm volatile("{ .reg .pred p; setp.gt.s32 p, %2, %3; mov.b32 %0, 0; @p ld.global.nc.b32 %0, [%1]; }"
                         : "=&r"(word[i])
                         : "l"(source + i), "r"(columns), "r"(i));
#else
#pragma unroll
        for (int i = 0; i < int(PACKET); i += 2)
            asm volatile(
                "{ .reg .pred p, q; .reg .b16 a, b; setp.gt.s32 p, %2, %3; setp.gt.s32 q, %2, %4;\n"
                "  mov.b16 a, 0; mov.b16 b, 0; @p ld.global.nc.b16 a, [%1]; @q ld.global.nc.b16 b, [%1 + 2];\n"
                "  mov.b32 %0, {a, b}; }"
                : "=&r"(word[i / 2])
                : "l"(source + i), "r"(columns), "r"(i), "r"(i + 1));
#endif
    }

    __device__ __forceinline__ float4 values() const {
#if DTYPE_F32
        return make_float4(__uint_as_float(word[0]), __uint_as_float(word[1]), __uint_as_float(word[2]),
                           __uint_as_float(word[3]));
#elif DTYPE_BF16
        return make_float4(__uint_as_float(word[0] << 16), __uint_as_float(word[0] & 0xffff0000u),
                           __uint_as_float(word[1] << 16), __uint_as_float(word[1] & 0xffff0000u));
#else
        float4 value;
        asm("{ .reg .b16 a, b; mov.b32 {a, b}, %2; cvt.f32.f16 %0, a; cvt.f32.f16 %1, b; }"
            : "=f"(value.x), "=f"(value.y)
            : "r"(word[0]));
        asm("{ .reg .b16 a, b; mov.b32 {a, b}, %2; cvt.f32.f16 %0, a; cvt.f32.f16 %1, b; }"
            : "=f"(value.z), "=f"(value.w)
            : "r"(word[1]));
        return value;
#endif
    }
};

// Stores N of a packet's floats: one where N is 1, under a predicate, no branch.
template <unsigned N>
__device__ __forceinline__ void store(float* target, const float* value, bool inside) {
    if constexpr (N == 4)
        asm volatile(
            "{ .reg .pred p; setp.ne.u32 p, %5, 0; @p st.global.v4.f32 [%0], {%1, %2, %3, %4}; }" ::"l"(target),
            "f"(value[0]), "f"(value[1]), "f"(value[2]), "f"(value[3]), "r"(unsigned(inside))
            : "memory");
    else
        asm volatile("{ .reg .pred p; setp.ne.u32 p, %2, 0; @p st.global.f32 [%0], %1; }" ::"l"(target), "f"(value[0]),
                     "r"(unsigned(inside))
                     : "memory");
}

#if !DTYPE_F32
// The bits of a value rounded to nearest even, in the lower half of a word.
__device__ __forceinline__ unsigned encode(float value) {
#if DTYPE_F16
    unsigned word;
    asm("{ .reg .b16 half; cvt.rn.f16.f32 half, %1; cvt.u32.u16 %0, half; }" : "=r"(word) : "f"(value));
    return word;
#else
    const unsigned bits = __float_as_uint(value);
    return value != value ? 0x7fff : (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
#endif
}

template <unsigned N>
__device__ __forceinline__ void store(Element* target, const float* value, bool inside) {
    if constexpr (N == 4)
        asm volatile("{ .reg .pred p; setp.ne.u32 p, %3, 0; @p st.global.v2.b32 [%0], {%1, %2}; }" ::"l"(target),
                     "r"(encode(value[0]) | encode(value[1]) << 16), "r"(encode(value[2]) | encode(value[3]) << 16),
                     "r"(unsigned(inside))
                     : "memory");
    else
        asm volatile("{ .reg .pred p; setp.ne.u32 p, %2, 0; @p st.global.b16 [%0], %1; }" ::"l"(target),
                     "h"(Element(encode(value[0]))), "r"(unsigned(inside))
                     : "memory");
}
#endif

// A whole packet, of which `columns` elements lie before the end of the row.
template <class T>
__device__ __forceinline__ void store_packet(T* target, const float* value, int columns) {
#pragma unroll
    for (int i = 0; i < int(PACKET); i += VECTOR) store<VECTOR>(target + i, value + i, i < columns);
}

// One thread's share in loading the tiles of k or of v: packet threadIdx.x % LANES of every STEP columns.
struct Loader {
    const Element* source;
    unsigned pitch;
    int left, columns;  // rows from the thread's first to the end, columns from its first to the end of the row
    Packet packet[LOADS][PACKETS];

    __device__ __forceinline__ Loader(const Element* tensor, const Attention& a, const KeyTiles& tiles) {
        const unsigned row = threadIdx.x / LANES, column = threadIdx.x % LANES * PACKET;
        pitch = a.kv_pitch * a.head_dim;
        left = int(tiles.end - tiles.first - row);
        columns = int(a.head_dim - column);
        source = tensor + ((a.kv_row() + (tiles.first + row) * a.kv_pitch) * a.head_dim + column);
    }

    __device__ __forceinline__ void fetch() {
#pragma unroll
        for (unsigned i = 0; i < LOADS; ++i) {
            const int inside = int(i * GROUPS) < left ? columns : 0;
#pragma unroll
            for (unsigned p = 0; p < PACKETS; ++p) packet[i][p].load(source + p * STEP, inside - int(p * STEP));
            asm("mad.wide.u32 %0, %1, %2, %0;" : "+l"(source) : "r"(pitch), "n"(GROUPS * sizeof(Element)));
        }
        left -= BLOCK_K;
    }

    // Writes the fetched tile to rows of `row_pitch` floats.
    __device__ __forceinline__ void settle(float* tile, unsigned row_pitch) const {
        tile += threadIdx.x / LANES * row_pitch + threadIdx.x % LANES * PACKET;
#pragma unroll
        for (unsigned i = 0; i < LOADS; ++i)
#pragma unroll
            for (unsigned p = 0; p < PACKETS; ++p)
                *reinterpret_cast<float4*>(tile + i * GROUPS * row_pitch + p * STEP) = packet[i][p].values();
    }
};

// A value combined over the lanes that share rows.
template <class Combine>
__device__ __forceinline__ float over_lanes(float value, const Combine& combine) {
#pragma unroll
    for (unsigned distance = LANES / 2; distance; distance /= 2)
        value = combine(value, __shfl_xor_sync(0xffffffff, value, distance));
    return value;
}

// Grid: x = tiles of queries, y = heads or packed groups of them, z = sequences and, within each, splits of the keys.
extern "C" __global__ void __launch_bounds__(THREADS, 1)
    attention_simt(const Element* __restrict__ q, const Element* __restrict__ k, const Element* __restrict__ v,
                   Element* __restrict__ o, float* __restrict__ partial, float* __restrict__ stats,
                   const unsigned queries, const unsigned keys, const unsigned head_dim, const unsigned heads,
                   const unsigned kv_heads, const unsigned group, const unsigned q_pitch, const unsigned q_head,
                   const unsigned kv_pitch, const unsigned kv_head, const unsigned packed, const unsigned tile_queries,
                   const unsigned splits, const unsigned older) {
    extern __shared__ __align__(128) float q_tile[];  // [BLOCK_Q][PITCH]
    float* const k_tile = q_tile + BLOCK_Q * PITCH;   // [BLOCK_K][PITCH]
    float* const v_tile = k_tile + BLOCK_K * PITCH;   // [BLOCK_K][HEAD]
    float* const weights = v_tile + BLOCK_K * HEAD;   // [BLOCK_Q][WEIGHT_PITCH]
    const Attention a = {queries, keys,     head_dim, heads,  kv_heads,     group,  q_pitch,
                         q_head,  kv_pitch, kv_head,  packed, tile_queries, splits, older};
    const unsigned tile = a.tile();
    const KeyTiles tiles(a, tile, BLOCK_K);
    Loader keys_loader(k, a, tiles), values_loader(v, a, tiles);

    // Rows GROUPS * i + own of the tile are this thread's, and of k and v the columns from `column` on in every STEP.
    const unsigned own = threadIdx.x / LANES, lane = threadIdx.x % LANES, column = lane * PACKET;
    const float scale = LOG2_E * rsqrtf(float(head_dim));
    keys_loader.fetch();
    unsigned start[ROWS];
    bool inside[ROWS];
    int met[ROWS];  // keys from the tile's first on that a row meets, counted from this lane's first
#pragma unroll
    for (unsigned i = 0; i < ROWS; ++i) {
        const unsigned row = i * GROUPS + own;
        start[i] = a.row(tile, row, inside[i]);
        met[i] = int(a.visible(tile, row) - tiles.first - lane);
#pragma unroll
        for (unsigned p = 0; p < PACKETS; ++p) {
            Packet packet;
            const unsigned from = p * STEP + column;
            packet.load(q + (start[i] * head_dim + from), inside[i] ? int(head_dim - from) : 0);
            float4 value = packet.values();
            value.x *= scale, value.y *= scale, value.z *= scale, value.w *= scale;
            *reinterpret_cast<float4*>(q_tile + row * PITCH + from) = value;
        }
    }
    keys_loader.settle(k_tile, PITCH);
    __syncthreads();

    float greatest[ROWS], sum[ROWS] = {}, result[ROWS][PACKETS][PACKET] = {};
#pragma unroll
    for (unsigned i = 0; i < ROWS; ++i) greatest[i] = MASKED;
    int unmasked = int(tiles.unmasked - tiles.first);

#pragma unroll 1
    for (unsigned trip = 0; trip < tiles.trips; ++trip) {
        values_loader.fetch();
        float score[ROWS][COLUMNS] = {};
#pragma unroll 4
        for (unsigned d = 0; d < HEAD; d += PACKET) {
            float4 of_q[ROWS];
#pragma unroll
            for (unsigned i = 0; i < ROWS; ++i)
                of_q[i] = *reinterpret_cast<const float4*>(q_tile + (i * GROUPS + own) * PITCH + d);
#pragma unroll
            for (unsigned j = 0; j < COLUMNS; ++j) {
                const float4 of_k = *reinterpret_cast<const float4*>(k_tile + (j * LANES + lane) * PITCH + d);
#pragma unroll
                for (unsigned i = 0; i < ROWS; ++i) {
                    score[i][j] = fmaf(of_q[i].x, of_k.x, score[i][j]);
                    score[i][j] = fmaf(of_q[i].y, of_k.y, score[i][j]);
                    score[i][j] = fmaf(of_q[i].z, of_k.z, score[i][j]);
                    score[i][j] = fmaf(of_q[i].w, of_k.w, score[i][j]);
                }
            }
        }

        if (unmasked < int(BLOCK_K)) {
#pragma unroll
            for (unsigned i = 0; i < ROWS; ++i)
#pragma unroll
                for (unsigned j = 0; j < COLUMNS; ++j)
                    score[i][j] = int(j * LANES) < met[i] ? score[i][j] : MASKED;
        }
        unmasked -= BLOCK_K;

#pragma unroll
        for (unsigned i = 0; i < ROWS; ++i) {
            float most = greatest[i];
#pragma unroll
            for (unsigned j = 0; j < COLUMNS; ++j) most = fmaxf(most, score[i][j]);
            most = over_lanes(most, [](float x, float y) { return fmaxf(x, y); });
            const float rescale = ex2(greatest[i] - most);
            greatest[i] = most;
            sum[i] *= rescale;
#pragma unroll
            for (unsigned j = 0; j < COLUMNS; ++j) {
                const float weight = ex2(score[i][j] - most);
                sum[i] += weight;
                weights[(i * GROUPS + own) * WEIGHT_PITCH + j * LANES + lane] = weight;
            }
#pragma unroll
            for (unsigned p = 0; p < PACKETS; ++p)
#pragma unroll
                for (unsigned e = 0; e < PACKET; ++e) result[i][p][e] *= rescale;
            met[i] -= BLOCK_K;
        }

        values_loader.settle(v_tile, HEAD);
        __syncthreads();  // values and weights are there for all, and all have done with the keys
        keys_loader.fetch();
#pragma unroll 2
        for (unsigned key = 0; key < BLOCK_K; key += 4) {
            float4 weight[ROWS];
#pragma unroll
            for (unsigned i = 0; i < ROWS; ++i)
                weight[i] = *reinterpret_cast<const float4*>(weights + (i * GROUPS + own) * WEIGHT_PITCH + key);
#pragma unroll
            for (unsigned n = 0; n < 4; ++n)
#pragma unroll
                for (unsigned p = 0; p < PACKETS; ++p) {
                    const float* const of_v = v_tile + (key + n) * HEAD + p * STEP + column;
                    const float4 value = *reinterpret_cast<const float4*>(of_v);
#pragma unroll
                    for (unsigned i = 0; i < ROWS; ++i) {
                        const float4& four = weight[i];
                        const float by = n == 0 ? four.x : n == 1 ? four.y : n == 2 ? four.z : four.w;
                        result[i][p][0] = fmaf(by, value.x, result[i][p][0]);
                        result[i][p][1] = fmaf(by, value.y, result[i][p][1]);
                        result[i][p][2] = fmaf(by, value.z, result[i][p][2]);
                        result[i][p][3] = fmaf(by, value.w, result[i][p][3]);
                    }
                }
        }
        keys_loader.settle(k_tile, PITCH);
        __syncthreads();  // the next keys are there for all, and all have done with values and weights
    }

#pragma unroll
    for (unsigned i = 0; i < ROWS; ++i) {
        sum[i] = over_lanes(sum[i], [](float x, float y) { return x + y; });
        const unsigned at = start[i] * head_dim + column;
        const int columns = inside[i] ? int(head_dim - column) : 0;
        if (partial) {
            const unsigned rows = gridDim.z / splits * heads * queries, split = a.split();
            float* target = partial + (size_t(split) * rows * head_dim + at);
#pragma unroll
            for (unsigned p = 0; p < PACKETS; ++p)
                store_packet(target + p * STEP, result[i][p], columns - int(p * STEP));
            float* stat = stats + 2 * (size_t(split) * rows + start[i]);
            store<1>(stat, greatest + i, inside[i] && lane == 0);
            store<1>(stat + 1, sum + i, inside[i] && lane == 0);
        } else {
            const float over = 1 / sum[i];
#pragma unroll
            for (unsigned p = 0; p < PACKETS; ++p) {
#pragma unroll
                for (unsigned e = 0; e < PACKET; ++e) result[i][p][e] *= over;
                store_packet(o + (at + p * STEP), result[i][p], columns - int(p * STEP));
            }
        }
    }
}

// Grid: x = COMBINE_THREADS * VECTOR elements of o each.
extern "C" __global__ void __launch_bounds__(COMBINE_THREADS)
    attention_simt_combine(const float* __restrict__ partial, const float* __restrict__ stats, Element* __restrict__ o,
                           const unsigned elements, const unsigned head_dim, const unsigned splits) {
    const auto write = [o](unsigned at, const float (&value)[VECTOR], bool inside) {
        store<VECTOR>(o + at, value, inside);
    };
    combine<VECTOR>(partial, stats, elements, head_dim, splits, write);
}
