// o = softmax(q k^T / sqrt(head_dim)) v, f16 or bf16 with f32 sums, on tensor cores; the algorithm is that of
// FlashAttention-2 (Dao, arXiv 2307.08691).
//
// A block owns BLOCK_Q rows and walks the keys in tiles of BLOCK_K, a warp owns WARP_Q of the rows. For each tile a
// warp forms the scores in mma.sync tiles, takes the running maximum, the weights and their sum along, and multiplies
// the weights into the values straight from registers: the accumulators of the first product are the operand of the
// second. Where rows are few, WARPS_K warps share them and the keys of each tile, and put their results together at
// the end.
//
// Tiles come through cp.async. With STAGES > 1 they wait in a ring of slots of a K and a V tile each, loaded STAGES - 1
// ahead, with one barrier a tile. With STAGES 1 there is one slot: V comes while scores are formed, the next K while
// weights are multiplied; a second barrier, but half the shared memory. Before sm_80, which have no cp.async, that one
// slot is filled through registers, each tile just before the barrier in front of its use.
//
// HEAD is head_dim rounded up: columns past head_dim are filled with zeros by copies that read nothing, and not stored.
// Rows of tiles are made of 16-byte chunks, which are exchanged so that 8 successive rows at one chunk, and the chunks
// that 8 successive threads copy, cover all 32 banks, for every HEAD that is a multiple of 16.
//
// Masks cost only the tiles that the diagonal or the last key falls into. Other edges cost what full tiles cost. So a
// block executes prologue + trips * body + masked trips * mask instructions, for any trips.

// The host's pass of nvcc has no __CUDA_ARCH__.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
#define THROUGH_REGISTERS 1
#else
#define THROUGH_REGISTERS 0
#endif

#include "mma.cuh"
#include "attention.cuh"

constexpr unsigned THREADS = BLOCK_Q / WARP_Q * WARPS_K * 32;
constexpr unsigned WARP_K = BLOCK_K / WARPS_K;
constexpr unsigned CHUNKS = HEAD / CHUNK;
// Neighbouring chunks that trade places, and threads that copy a row.
constexpr unsigned EXCHANGED = CHUNKS % 8 == 0 ? 8 : CHUNKS % 4 == 0 ? 4 : 2;
constexpr unsigned GROUPS = CHUNKS / EXCHANGED;
constexpr unsigned ROW_BYTES = HEAD * sizeof(Element);
constexpr unsigned TILE = BLOCK_K * ROW_BYTES;
constexpr unsigned SLOT = 2 * TILE;
constexpr unsigned ROW_STEP = THREADS / EXCHANGED;  // rows that the threads copy at once
constexpr unsigned STEPS = HEAD / STEP_K;
constexpr bool HELD = WARP_Q == 16 && HEAD <= 160;  // rows of q are held in registers, and only come through here
constexpr unsigned Q_TILE = HELD ? (STAGES == 1 ? TILE : (STAGES - 1) * SLOT) : STAGES * SLOT;
constexpr unsigned MS = WARP_Q / 16;

static_assert(BLOCK_Q % WARP_Q == 0 && WARP_Q % 16 == 0 && WARP_K % 16 == 0 && HEAD % 16 == 0, "whole mma tiles");
static_assert(BLOCK_K % ROW_STEP == 0 && (HELD || BLOCK_Q % ROW_STEP == 0), "threads copy tiles evenly");
static_assert(!HELD || BLOCK_Q <= (STAGES == 1 ? 1 : 2) * BLOCK_K, "q fits where the last values will lie");
static_assert(WARPS_K == 1 || BLOCK_Q == WARP_Q, "either rows or keys are shared out");
static_assert(!THROUGH_REGISTERS || STAGES == 1, "through registers, one slot");

// What the chunk numbers of a row are XORed with.
__device__ __forceinline__ constexpr unsigned exchange(unsigned row) { return row * EXCHANGED / 8 % EXCHANGED; }

// Where the lane's part of a 16 x 16 fragment lies, for each of the fragments along a row between which the exchange
// differs; the others follow at constant distances. Bytes from the fragment's first row.
struct Place {
    static constexpr unsigned PERIOD = EXCHANGED / 2;
    unsigned bytes[PERIOD];

    __device__ __forceinline__ Place() {
        const unsigned row = threadIdx.x % 16, half = threadIdx.x % 32 / 16;
#pragma unroll
        for (unsigned i = 0; i < PERIOD; ++i)
            bytes[i] = row * ROW_BYTES + ((2 * i + half) ^ exchange(row)) * CHUNK_BYTES;
    }

    __device__ __forceinline__ unsigned at(unsigned row, unsigned step) const {
        return bytes[step % PERIOD] + row * ROW_BYTES + step / PERIOD * PERIOD * 2 * CHUNK_BYTES;
    }
};

// fragment[half of the rows][half of the columns] of the tile.
__device__ __forceinline__ void read(unsigned (&fragment)[2][2], unsigned address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(fragment[0][0]), "=r"(fragment[1][0]), "=r"(fragment[0][1]), "=r"(fragment[1][1])
                 : "r"(address)
                 : "memory");
}

// fragment[half of the columns][half of the rows] of the tile, each 8 x 8 transposed.
__device__ __forceinline__ void read_transposed(unsigned (&fragment)[2][2], unsigned address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(fragment[0][0]), "=r"(fragment[0][1]), "=r"(fragment[1][0]), "=r"(fragment[1][1])
                 : "r"(address)
                 : "memory");
}

// One thread's share in copying rows: EXCHANGED neighbouring threads copy a row, GROUPS chunks each. Of `ROWS` rows from
// its first on, every ROW_STEP-th is its own.
template <unsigned ROWS>
struct Copier {
    unsigned row = threadIdx.x / EXCHANGED, chunk = threadIdx.x % EXCHANGED;
    unsigned place = row * ROW_BYTES + (chunk ^ exchange(row)) * CHUNK_BYTES;
#if THROUGH_REGISTERS
    Packet<CHUNK_BYTES> staged[(ROWS + ROW_STEP - 1) / ROW_STEP][GROUPS];
#endif

    // Starts to copy row `row` + `step` of a tile, a multiple of ROW_STEP, from `source`, the row's first element.
    // row < ROW_STEP, both powers of two: the exchange of row + step is that of row, XOR a constant (zero but for rows
    // of 128 bytes).
    __device__ __forceinline__ void copy(unsigned tile, unsigned step, const Element* source, unsigned head_dim,
                                         bool inside) {
        const unsigned target = tile + (place ^ exchange(step) * CHUNK_BYTES) + step * ROW_BYTES;
#pragma unroll
        for (unsigned g = 0; g < GROUPS; ++g) {
            const Element* from = source + (g * EXCHANGED + chunk) * CHUNK;
            const bool held = inside && (g * EXCHANGED + chunk) * CHUNK < head_dim;
#if THROUGH_REGISTERS
            staged[step / ROW_STEP][g] = load_packet<CHUNK_BYTES>(from, held);
#else
            copy_async<CHUNK>(target + g * EXCHANGED * CHUNK_BYTES, from, held);
#endif
        }
    }

    // Writes the rows that were copied last to the same tile where they came through registers.
    __device__ __forceinline__ void settle(unsigned tile) const {
#if THROUGH_REGISTERS
#pragma unroll
        for (unsigned step = 0; step < ROWS; step += ROW_STEP)
#pragma unroll
            for (unsigned g = 0; g < GROUPS; ++g) {
                const unsigned(&word)[4] = staged[step / ROW_STEP][g].word;
                asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(
                                 tile + (place ^ exchange(step) * CHUNK_BYTES) + step * ROW_BYTES +
                                 g * EXCHANGED * CHUNK_BYTES),
                             "r"(word[0]), "r"(word[1]), "r"(word[2]), "r"(word[3])
                             : "memory");
            }
#endif
    }
};

__device__ __forceinline__ void commit() {
#if !THROUGH_REGISTERS
    commit_copies();
#endif
}

template <unsigned PENDING>
__device__ __forceinline__ void wait() {
#if !THROUGH_REGISTERS
    wait_for_copies<PENDING>();
#endif
}

// The tiles of k or of v, one after the other.
struct Loader {
    Copier<BLOCK_K> copier;
    const Element* source;
    unsigned head_dim, pitch;  // elements
    int left;                  // rows from this thread's first to the end

    __device__ __forceinline__ Loader(const Element* tensor, const Attention& a, const KeyTiles& tiles)
        : head_dim(a.head_dim), pitch(a.kv_pitch * a.head_dim), left(int(tiles.end - tiles.first - copier.row)) {
        source = tensor + (a.kv_row() + (tiles.first + copier.row) * a.kv_pitch) * a.head_dim;
    }

    __device__ __forceinline__ void fetch(unsigned tile) {
#pragma unroll
        for (unsigned step = 0; step < BLOCK_K; step += ROW_STEP) {
            copier.copy(tile, step, source, head_dim, int(step) < left);
            asm("mad.wide.u32 %0, %1, %2, %0;" : "+l"(source) : "r"(pitch), "n"(ROW_STEP * sizeof(Element)));
        }
        left -= BLOCK_K;
    }
};

// A value combined over the four lanes that share rows.
template <class Combine>
__device__ __forceinline__ float over_quad(float value, const Combine& combine) {
    value = combine(value, __shfl_xor_sync(0xffffffff, value, 1));
    return combine(value, __shfl_xor_sync(0xffffffff, value, 2));
}

// Grid: x = tiles of queries, y = heads or packed groups of them, z = sequences and, within each, splits of the keys.
extern "C" __global__ void __launch_bounds__(THREADS, 1)
    attention_mma(const Element* __restrict__ q, const Element* __restrict__ k, const Element* __restrict__ v,
                  Element* __restrict__ o, float* __restrict__ partial, float* __restrict__ stats,
                  const unsigned queries, const unsigned keys, const unsigned head_dim, const unsigned heads,
                  const unsigned kv_heads, const unsigned group, const unsigned q_pitch, const unsigned q_head,
                  const unsigned kv_pitch, const unsigned kv_head, const unsigned packed, const unsigned tile_queries,
                  const unsigned splits, const unsigned older) {
    extern __shared__ __align__(128) unsigned char shared[];
    const Attention a = {queries, keys,     head_dim, heads,  kv_heads,     group,  q_pitch,
                         q_head,  kv_pitch, kv_head,  packed, tile_queries, splits, older};
    const unsigned slots = __cvta_generic_to_shared(shared);
    const unsigned tile = a.tile();
    const KeyTiles tiles(a, tile, BLOCK_K);
    Loader keys_loader(k, a, tiles), values_loader(v, a, tiles);
    const Place place;

    {
        Copier<BLOCK_Q> copier;
#pragma unroll
        for (unsigned step = 0; step < BLOCK_Q; step += ROW_STEP) {
            bool inside;
            const unsigned row = a.row(tile, copier.row + step, inside);
            copier.copy(slots + Q_TILE, step, q + row * head_dim, head_dim, inside);
        }
        copier.settle(slots + Q_TILE);
        commit();
    }
#if STAGES == 1
    constexpr unsigned AHEAD = 1;
    keys_loader.fetch(slots);
    commit();
#else
    constexpr unsigned AHEAD = STAGES - 1;
#pragma unroll
    for (unsigned stage = 0; stage < AHEAD; ++stage) {
        keys_loader.fetch(slots + stage * SLOT);
        values_loader.fetch(slots + stage * SLOT + TILE);
        commit_copies();
    }
#endif

    const unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const unsigned warp_row = warp / WARPS_K * WARP_Q, warp_key = warp % WARPS_K * WARP_K;
    unsigned q_fragment[HELD ? STEPS : 1][MS][2][2];
    if constexpr (HELD) {
        wait<AHEAD>();
        __syncthreads();  // q has landed for all
#pragma unroll
        for (unsigned step = 0; step < STEPS; ++step)
            read(q_fragment[step][0], slots + Q_TILE + place.at(warp_row, step));
    }

    // Of rows lane / 4 + {0, 8} of each 16: the greatest score so far, the lane's part of the sum of weights, and how
    // many keys are met, counted from the lane's first in the tile.
    float greatest[MS][2], sum[MS][2] = {};
    int met[MS][2];
#pragma unroll
    for (unsigned i = 0; i < MS; ++i)
#pragma unroll
        for (unsigned h = 0; h < 2; ++h) {
            greatest[i][h] = MASKED;
            const unsigned row = warp_row + i * 16 + h * 8 + lane / 4;
            met[i][h] = int(a.visible(tile, row) - tiles.first - warp_key - lane % 4 * 2);
        }
    int unmasked = int(tiles.unmasked - tiles.first);
    float result[MS][HEAD / 8][4] = {};
    const float scale = LOG2_E * rsqrtf(float(head_dim));

    unsigned slot = slots;
#pragma unroll 1
    for (unsigned trip = 0; trip < tiles.trips; ++trip) {
#if STAGES == 1
        keys_loader.copier.settle(slots);
        wait<0>();
        __syncthreads();  // the keys have landed for all, and all have done with the values before
        values_loader.fetch(slots + TILE);
        commit();
#else
        wait_for_copies<STAGES - 2>();
        __syncthreads();  // this tile has landed for all, and all have done with the slot written next
        {
            const unsigned next = slot == slots ? slots + (STAGES - 1) * SLOT : slot - SLOT;
            keys_loader.fetch(next);
            values_loader.fetch(next + TILE);
            commit_copies();
        }
#endif
        float score[MS][WARP_K / 8][4] = {};
#pragma unroll
        for (unsigned step = 0; step < STEPS; ++step) {
            if constexpr (!HELD)
#pragma unroll
                for (unsigned i = 0; i < MS; ++i)
                    read(q_fragment[0][i], slots + Q_TILE + place.at(warp_row + i * 16, step));
#pragma unroll
            for (unsigned j = 0; j < WARP_K / 16; ++j) {
                unsigned fragment[2][2];
                read(fragment, slot + place.at(warp_key + j * 16, step));
#pragma unroll
                for (unsigned i = 0; i < MS; ++i)
#pragma unroll
                    for (unsigned h = 0; h < 2; ++h)
                        multiply_add(score[i][2 * j + h], q_fragment[HELD ? step : 0][i], fragment[h]);
            }
        }
#if STAGES == 1
        values_loader.copier.settle(slots + TILE);
        wait<0>();
        __syncthreads();  // the values have landed for all, and all have done with the keys
        keys_loader.fetch(slots);
        commit();
#endif

        if (unmasked < int(BLOCK_K)) {
#pragma unroll
            for (unsigned i = 0; i < MS; ++i)
#pragma unroll
                for (unsigned j = 0; j < WARP_K / 8; ++j)
#pragma unroll
                    for (unsigned e = 0; e < 4; ++e)
                        score[i][j][e] = int(j * 8 + e % 2) < met[i][e / 2] ? score[i][j][e] : MASKED;
        }
        unmasked -= BLOCK_K;

#pragma unroll
        for (unsigned i = 0; i < MS; ++i)
#pragma unroll
            for (unsigned h = 0; h < 2; ++h) {
                float most = greatest[i][h];
#pragma unroll
                for (unsigned j = 0; j < WARP_K / 8; ++j)
                    most = fmaxf(most, fmaxf(score[i][j][2 * h], score[i][j][2 * h + 1]));
                most = over_quad(most, [](float x, float y) { return fmaxf(x, y); });
                const float rescale = ex2((greatest[i][h] - most) * scale), shift = most * -scale;
                greatest[i][h] = most;
                sum[i][h] *= rescale;
#pragma unroll
                for (unsigned j = 0; j < WARP_K / 8; ++j)
#pragma unroll
                    for (unsigned e = 2 * h; e < 2 * h + 2; ++e) {
                        score[i][j][e] = ex2(fmaf(score[i][j][e], scale, shift));
                        sum[i][h] += score[i][j][e];
                    }
#pragma unroll
                for (unsigned j = 0; j < HEAD / 8; ++j) {
                    result[i][j][2 * h] *= rescale;
                    result[i][j][2 * h + 1] *= rescale;
                }
                met[i][h] -= BLOCK_K;
            }

#pragma unroll
        for (unsigned step = 0; step < WARP_K / STEP_K; ++step) {
            unsigned weight[MS][2][2];
#pragma unroll
            for (unsigned i = 0; i < MS; ++i)
#pragma unroll
                for (unsigned e = 0; e < 4; ++e) {
                    const float* two = &score[i][2 * step + e / 2][e % 2 * 2];
                    weight[i][e % 2][e / 2] = pack(two[0], two[1]);
                }
#pragma unroll
            for (unsigned j = 0; j < STEPS; ++j) {
                unsigned fragment[2][2];
                read_transposed(fragment, slot + TILE + place.at(warp_key + step * STEP_K, j));
#pragma unroll
                for (unsigned i = 0; i < MS; ++i)
#pragma unroll
                    for (unsigned h = 0; h < 2; ++h) multiply_add(result[i][2 * j + h], weight[i], fragment[h]);
            }
        }
#if STAGES > 1
        slot = slot == slots + (STAGES - 1) * SLOT ? slots : slot + SLOT;
#endif
    }
    wait<0>();

#if WARPS_K > 1
    // Each register of a warp has a row of lanes in shared memory: other warps hold the same rows and columns in
    // theirs.
    constexpr unsigned REGISTERS = HEAD / 2 + 4;
    static_assert(WARPS_K * REGISTERS * 32 * sizeof(float) <= STAGES * SLOT, "results fit where the tiles were");
    float* const mine = reinterpret_cast<float*>(shared) + (warp * REGISTERS * 32 + lane);
    __syncthreads();  // all have done with the last tile
    if (warp > 0) {
#pragma unroll
        for (unsigned h = 0; h < 2; ++h) {
            mine[h * 32] = greatest[0][h];
            mine[(2 + h) * 32] = sum[0][h];
#pragma unroll
            for (unsigned e = 0; e < HEAD / 4; ++e)
                mine[(4 + h * HEAD / 4 + e) * 32] = result[0][e / 2][2 * h + e % 2];
        }
    }
    __syncthreads();  // the others' results are there for the first warp
    if (warp > 0) return;
#pragma unroll 1
    for (unsigned other = 1; other < WARPS_K; ++other) {
        const float* theirs = mine + other * REGISTERS * 32;
#pragma unroll
        for (unsigned h = 0; h < 2; ++h) {
            const float most = fmaxf(greatest[0][h], theirs[h * 32]);
            const float own = ex2((greatest[0][h] - most) * scale), its = ex2((theirs[h * 32] - most) * scale);
            greatest[0][h] = most;
            sum[0][h] = sum[0][h] * own + theirs[(2 + h) * 32] * its;
#pragma unroll
            for (unsigned e = 0; e < HEAD / 4; ++e) {
                float& value = result[0][e / 2][2 * h + e % 2];
                value = value * own + theirs[(4 + h * HEAD / 4 + e) * 32] * its;
            }
        }
    }
#endif

#pragma unroll
    for (unsigned i = 0; i < MS; ++i)
#pragma unroll
        for (unsigned h = 0; h < 2; ++h) {
            sum[i][h] = over_quad(sum[i][h], [](float x, float y) { return x + y; });
            bool inside;
            const unsigned row = a.row(tile, warp_row + i * 16 + h * 8 + lane / 4, inside), start = row * head_dim;
            if (partial) {
                const unsigned rows = gridDim.z / splits * heads * queries, split = a.split();
                float* target = partial + (size_t(split) * rows * head_dim + start);
#pragma unroll
                for (unsigned j = 0; j < HEAD / 8; ++j) {
                    const unsigned at = j * 8 + lane % 4 * 2;
                    store_floats<2>(target + at, result[i][j] + 2 * h, inside && at < head_dim);
                }
                const float stat[2] = {greatest[i][h] * scale, sum[i][h]};
                store_floats<2>(stats + 2 * (size_t(split) * rows + row), stat, inside && lane % 4 == 0);
            } else {
                const float over = 1 / sum[i][h];
                unsigned words[HEAD / 8];
#pragma unroll
                for (unsigned j = 0; j < HEAD / 8; ++j)
                    words[j] = pack(result[i][j][2 * h] * over, result[i][j][2 * h + 1] * over);
                if constexpr (HEAD % 32 == 0) {
#pragma unroll
                    for (unsigned j = 0; j < HEAD / 8; j += 4) {
                        unsigned(&four)[4] = *reinterpret_cast<unsigned(*)[4]>(words + j);
                        transpose_quad(four);
                        const unsigned at = j * 8 + lane % 4 * 8;
                        store_packet(o + (start + at), Packet<16>{four[0], four[1], four[2], four[3]},
                                     inside && at < head_dim);
                    }
                } else {
#pragma unroll
                    for (unsigned j = 0; j < HEAD / 8; ++j) {
                        const unsigned at = j * 8 + lane % 4 * 2;
                        store_packet(o + (start + at), Packet<4>{words[j]}, inside && at < head_dim);
                    }
                }
            }
        }
}

// Grid: x = COMBINE_THREADS * 4 elements of o each.
extern "C" __global__ void __launch_bounds__(COMBINE_THREADS)
    attention_mma_combine(const float* __restrict__ partial, const float* __restrict__ stats, Element* __restrict__ o,
                          const unsigned elements, const unsigned head_dim, const unsigned splits) {
    combine<4>(partial, stats, elements, head_dim, splits, [o](unsigned at, const float (&value)[4], bool inside) {
        const Packet<8> rounded = {pack(value[0], value[1]), pack(value[2], value[3])};
        store_packet(o + at, rounded, inside);
    });
}
