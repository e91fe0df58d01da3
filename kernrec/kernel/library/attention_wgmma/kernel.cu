// o = softmax(q k^T / sqrt(head_dim)) v on Hopper's tensor cores, f16, bf16 or e4m3 with f32 sums; the algorithm is that
// of FlashAttention-3 (Shah et al., arXiv 2407.08608).
//
// A block owns BLOCK_Q queries of a head and walks the keys in tiles of BLOCK_K. One warpgroup loads: the queries once,
// then tiles of keys and of values into a ring of STAGES slots, as boxes that tensor maps describe; what lies past the
// last token or past head_dim arrives as zeros. Each slot has two pairs of barriers, for keys and for values: one on
// which their bytes arrive (`full`), and one on which their readers say that they have done (`empty`).
//
// The other warpgroups own 64 queries each. Scores are products of queries and keys from shared memory by
// wgmma.mma_async; weights go from the registers of the scores into the second product, whose other operand is the
// tile of values as it lies, transposed by its descriptor; in e4m3, which no descriptor transposes, the warps that load
// turn it first (attention_8bit.cuh), a tile behind the copies. With OVERLAP, the scores of the next tile and the second
// product of this one are under way while weights are computed. With TURNS, warpgroups start their products one after
// the other: while one computes weights, another has the tensor cores.
//
// Rows of a tile are boxes of 128 bytes of a token, or of 64 where a token is no multiple of 128: swizzled over their
// length. Boxes of the same tokens follow each other.
//
// Masks cost only the tiles that the diagonal or the last key falls into. So a block executes prologue + trips * body +
// masked trips * mask instructions, for any trips.

#include "mma.cuh"
#include "attention.cuh"
#include "tma.cuh"
#include "wgmma.cuh"

#if DTYPE_F8E4M3
using Number = unsigned char;
constexpr bool TURNED = true;  // whether values are
#define WGMMA(n) "wgmma.mma_async.sync.aligned.m64n" n "k32.f32.e4m3.e4m3 "
#define SCORES_END ", p, 1, 1; }"
#define RESULTS_END ", p, 1, 1; }"
#else
using Number = Element;
constexpr bool TURNED = false;
#define WGMMA(n) "wgmma.mma_async.sync.aligned.m64n" n "k16.f32." ELEMENT "." ELEMENT " "
#define SCORES_END ", p, 1, 1, 0, 0; }"
#define RESULTS_END ", p, 1, 1, 1; }"
#endif

constexpr unsigned READERS = BLOCK_Q / 64;  // warpgroups that multiply
constexpr unsigned ROW_BYTES = HEAD * sizeof(Number) % 128 == 0 ? 128 : 64;
constexpr unsigned BOX = ROW_BYTES / sizeof(Number);
constexpr unsigned BOXES = HEAD / BOX;
constexpr unsigned STEP = STEP_BYTES / sizeof(Number);  // keys of one product with values
constexpr unsigned Q_BOX = BLOCK_Q * ROW_BYTES, K_BOX = BLOCK_K * ROW_BYTES;  // bytes
constexpr unsigned Q_TILE = BOXES * Q_BOX, K_TILE = BOXES * K_BOX;
constexpr unsigned KEYS = Q_TILE, COPIED = KEYS + STAGES * K_TILE;  // offsets of the first slots: of values as copied
constexpr unsigned VALUES = COPIED + TURNED * STAGES * K_TILE;      // and as multiplied
constexpr unsigned BARRIERS = VALUES + STAGES * K_TILE;             // and of the barriers, that of the queries first
constexpr unsigned STAGE_BARRIERS = TURNED ? 48 : 32;               // bytes of those of a stage

static_assert(COMBINE_THREADS > 0, "of the header, without a second pass here");
static_assert(BLOCK_K % 16 == 0 && K_BOX % 1024 == 0 && Q_BOX % 1024 == 0, "slots begin where a swizzle does");

#if DTYPE_F8E4M3
#include "attention_8bit.cuh"
#endif

#define PRODUCT(n, places, adds) "{ .reg .pred p; setp.ne.u32 p, " adds ", 0;\n" WGMMA(#n) "{" places "}, "

// d = q k, or d + q k if `add`, for a step of columns of the queries and of N keys.
#define DEFINE_SCORES(n, count, q_place, k_place, add_place)                                               \
    __device__ __forceinline__ void multiply_keys(float (&d)[n / 8][4], unsigned long long q,              \
                                                  unsigned long long k, unsigned add) {                    \
        asm volatile(PRODUCT(n, PLACES_##count, add_place) q_place ", " k_place SCORES_END                 \
                     : SUMS_##count                                                                        \
                     : "l"(q), "l"(k), "r"(add));                                                          \
    }
#if BLOCK_K == 64
DEFINE_SCORES(64, 32, "%32", "%33", "%34")
#elif BLOCK_K == 80
DEFINE_SCORES(80, 40, "%40", "%41", "%42")
#elif BLOCK_K == 96
DEFINE_SCORES(96, 48, "%48", "%49", "%50")
#elif BLOCK_K == 128
DEFINE_SCORES(128, 64, "%64", "%65", "%66")
#elif BLOCK_K == 176
DEFINE_SCORES(176, 88, "%88", "%89", "%90")
#else
DEFINE_SCORES(192, 96, "%96", "%97", "%98")
#endif

// d += w v, for weights of a step of keys in registers, and N columns of their values.
#define DEFINE_RESULTS(n, count, w0, w1, w2, w3, v_place)                                                            \
    __device__ __forceinline__ void multiply_values(float (&d)[n / 8][4], const unsigned (&w)[4],                    \
                                                    unsigned long long v) {                                          \
        asm volatile(PRODUCT(n, PLACES_##count, "1") "{" w0 ", " w1 ", " w2 ", " w3 "}, " v_place RESULTS_END        \
                     : SUMS_##count                                                                                  \
                     : "r"(w[0]), "r"(w[1]), "r"(w[2]), "r"(w[3]), "l"(v));                                          \
    }
#if HEAD == 64
DEFINE_RESULTS(64, 32, "%32", "%33", "%34", "%35", "%36")
#elif HEAD == 96
DEFINE_RESULTS(96, 48, "%48", "%49", "%50", "%51", "%52")
#elif HEAD == 128
DEFINE_RESULTS(128, 64, "%64", "%65", "%66", "%67", "%68")
#elif HEAD == 192
DEFINE_RESULTS(192, 96, "%96", "%97", "%98", "%99", "%100")
#else
DEFINE_RESULTS(256, 128, "%128", "%129", "%130", "%131", "%132")
#endif

// Where a tile lies in its tensor: a token of a head of a sequence; `inner`: tokens of a head follow each other.
struct Origin {
    unsigned token, head, sequence;
    bool inner;
};

// Starts the copy of the BOXES boxes of a tile, whose bytes arrive on `barrier`.
__device__ __forceinline__ void copy_tile(unsigned target, unsigned box_bytes, const TensorMap& map, unsigned barrier,
                                          const Origin& origin) {
    barrier_expect(barrier, BOXES * box_bytes);
    const unsigned second = origin.inner ? origin.token : origin.head;
    const unsigned third = origin.inner ? origin.head : origin.token;
#pragma unroll
    for (unsigned box = 0; box < BOXES; ++box)
        asm volatile(
            "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
            "[%0], [%1, {%2, %3, %4, %5}], [%6];" ::"r"(target + box * box_bytes),
            "l"(&map), "r"(box * BOX), "r"(second), "r"(third), "r"(origin.sequence), "r"(barrier)
            : "memory");
}

// The warp has done with a slot.
__device__ __forceinline__ void release(unsigned barrier) {
    if (threadIdx.x % 32 == 0) asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

// Turns of the warpgroups that multiply: each waits for the one before it, and lets the next one go on.
__device__ __forceinline__ void await_turn(unsigned reader) {
    asm volatile("bar.sync %0, %1;" ::"r"(reader + 1), "n"(2 * GROUP) : "memory");
}

__device__ __forceinline__ void pass_turn(unsigned reader) {
    const unsigned next = reader + 1 == READERS ? 0 : reader + 1;
    asm volatile("bar.arrive %0, %1;" ::"r"(next + 1), "n"(2 * GROUP) : "memory");
}

// A value combined over the four lanes that share rows.
template <class Combine>
__device__ __forceinline__ float over_quad(float value, const Combine& combine) {
    value = combine(value, __shfl_xor_sync(0xffffffff, value, 1));
    return combine(value, __shfl_xor_sync(0xffffffff, value, 2));
}

// Rows lane / 4 and lane / 4 + 8 of a warp: the greatest score so far, the lane's part of the sum of weights, and how
// many keys are met, counted from the lane's first in the tile.
struct Rows {
    float greatest[2] = {MASKED, MASKED}, sum[2] = {};
    int met[2];
    int unmasked;  // keys from the tile's first on that every row of the block meets
    float scale;

    // Scores become weights; `rescale`: what those of earlier tiles are multiplied by.
    __device__ __forceinline__ void weigh(float (&score)[BLOCK_K / 8][4], float (&rescale)[2]) {
        if (unmasked < int(BLOCK_K)) {
#pragma unroll
            for (unsigned j = 0; j < BLOCK_K / 8; ++j)
#pragma unroll
                for (unsigned e = 0; e < 4; ++e)
                    score[j][e] = int(j * 8 + e % 2) < met[e / 2] ? score[j][e] : MASKED;
        }
        unmasked -= BLOCK_K;
#pragma unroll
        for (unsigned h = 0; h < 2; ++h) {
            float most = greatest[h];
#pragma unroll
            for (unsigned j = 0; j < BLOCK_K / 8; ++j) most = fmaxf(most, fmaxf(score[j][2 * h], score[j][2 * h + 1]));
            most = over_quad(most, [](float x, float y) { return fmaxf(x, y); });
            rescale[h] = ex2((greatest[h] - most) * scale);
#if DTYPE_F8E4M3
            const float shift = fmaf(most, -scale, WEIGHT_SHIFT);
#else
            const float shift = most * -scale;
#endif
            greatest[h] = most;
            sum[h] *= rescale[h];
#pragma unroll
            for (unsigned j = 0; j < BLOCK_K / 8; ++j)
#pragma unroll
                for (unsigned e = 2 * h; e < 2 * h + 2; ++e) {
                    score[j][e] = ex2(fmaf(score[j][e], scale, shift));
                    sum[h] += score[j][e];
                }
            met[h] -= BLOCK_K;
        }
    }
};

// Grid: x = tiles of queries, y = heads, z = sequences. Tensor maps have boxes of BOX elements of BLOCK_Q or BLOCK_K
// tokens; `inner`: their second axis is that of the tokens. Scales are those of e4m3, null for others: one each, or with
// `each_scale` one for every sequence and head of keys; `halves`: o is then f16, not bf16.
extern "C" __global__ void __launch_bounds__(GROUP * (READERS + 1), 1)
    attention_wgmma(const __grid_constant__ TensorMap q, const __grid_constant__ TensorMap k,
                    const __grid_constant__ TensorMap v, const float* __restrict__ q_scale,
                    const float* __restrict__ k_scale, const float* __restrict__ v_scale, Element* __restrict__ o,
                    const unsigned each_scale, const unsigned halves, const unsigned queries, const unsigned keys,
                    const unsigned head_dim, const unsigned heads, const unsigned group, const unsigned q_pitch,
                    const unsigned q_head, const unsigned inner, const unsigned older) {
    extern __shared__ __align__(1024) unsigned char shared[];
    const Attention a = {queries, keys, head_dim, heads, 0, group, q_pitch, q_head, 0, 0, 1, BLOCK_Q, 1, older};
    const unsigned slots = static_cast<unsigned>(__cvta_generic_to_shared(shared));
    const unsigned q_full = slots + BARRIERS;
    const auto k_full = [&](unsigned stage) { return q_full + 8 + stage * STAGE_BARRIERS; };
    const auto k_empty = [&](unsigned stage) { return q_full + 16 + stage * STAGE_BARRIERS; };
    const auto v_full = [&](unsigned stage) { return q_full + 24 + stage * STAGE_BARRIERS; };
    const auto v_empty = [&](unsigned stage) { return q_full + 32 + stage * STAGE_BARRIERS; };
    // of values as copied, where they are turned; else the same
    const auto copied = [&](unsigned stage) { return TURNED ? q_full + 40 + stage * STAGE_BARRIERS : v_full(stage); };
    const auto turned = [&](unsigned stage) { return TURNED ? q_full + 48 + stage * STAGE_BARRIERS : v_empty(stage); };
    const unsigned warp = threadIdx.x / 32, lane = threadIdx.x % 32, tile = a.tile();
    const KeyTiles tiles(a, tile, BLOCK_K);

    if (threadIdx.x == 0) {
        barrier_start(q_full, 1);
        for (unsigned stage = 0; stage < STAGES; ++stage) {
            barrier_start(k_full(stage), 1);
            barrier_start(copied(stage), 1);
            barrier_start(k_empty(stage), READERS * (GROUP / 32));
            barrier_start(v_empty(stage), READERS * (GROUP / 32));
            if (TURNED) {
                barrier_start(v_full(stage), GROUP / 32);
                barrier_start(turned(stage), GROUP / 32);
            }
        }
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __syncthreads();  // the barriers are there for all

    Stage stage;
    if (warp >= READERS * (GROUP / 32)) {
#if BLOCK_Q == 128 && DTYPE_F8E4M3
        asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");  // to turn values with
#elif BLOCK_Q == 128
        asm volatile("setmaxnreg.dec.sync.aligned.u32 24;");
#elif BLOCK_Q == 192
        asm volatile("setmaxnreg.dec.sync.aligned.u32 32;");
#endif
        const bool loads = warp == READERS * (GROUP / 32);
        if (loads && lane == 0)
            copy_tile(slots, Q_BOX, q, q_full, {tile * BLOCK_Q, blockIdx.y, blockIdx.z, inner != 0});
        Origin origin = {tiles.first, blockIdx.y / group, blockIdx.z, inner != 0};
        const auto load = [&]() {
            barrier_wait(k_empty(stage.number), stage.parity ^ 1);
            if (lane == 0) copy_tile(slots + KEYS + stage.number * K_TILE, K_BOX, k, k_full(stage.number), origin);
            __syncwarp();
            barrier_wait(turned(stage.number), stage.parity ^ 1);
            if (lane == 0) copy_tile(slots + COPIED + stage.number * K_TILE, K_BOX, v, copied(stage.number), origin);
            __syncwarp();
            origin.token += BLOCK_K;
            stage.next();
        };
#if DTYPE_F8E4M3
        Stage last;  // whose values are turned
#pragma unroll 1
        for (unsigned trip = 0; trip <= tiles.trips; ++trip) {
            if (loads && trip < tiles.trips) load();
            if (trip == 0) continue;
            barrier_wait(copied(last.number), last.parity);
            barrier_wait(v_empty(last.number), last.parity ^ 1);
            turn_values(slots + COPIED + last.number * K_TILE, slots + VALUES + last.number * K_TILE);
            asm volatile("fence.proxy.async.shared::cta;" ::: "memory");  // tensor cores read what was stored
            __syncwarp();
            release(turned(last.number));
            release(v_full(last.number));
            last.next();
        }
#else
#pragma unroll 1
        for (unsigned trip = 0; loads && trip < tiles.trips; ++trip) load();
#endif
        return;
    }

#if BLOCK_Q == 128 && DTYPE_F8E4M3
    asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
#elif BLOCK_Q == 128
    asm volatile("setmaxnreg.inc.sync.aligned.u32 240;");
#elif BLOCK_Q == 192
    asm volatile("setmaxnreg.inc.sync.aligned.u32 160;");
#endif
    const unsigned reader = warp / (GROUP / 32);
    Rows rows;
#if DTYPE_F8E4M3
    const unsigned scale = each_scale ? blockIdx.z * (heads / group) + blockIdx.y / group : 0;
    rows.scale = LOG2_E * rsqrtf(float(head_dim)) * (q_scale[scale] * k_scale[scale]);
#else
    rows.scale = LOG2_E * rsqrtf(float(head_dim));
#endif
    rows.unmasked = int(tiles.unmasked - tiles.first);
#pragma unroll
    for (unsigned h = 0; h < 2; ++h)
        rows.met[h] = int(a.visible(tile, warp * 16 + h * 8 + lane / 4) - tiles.first - lane % 4 * 2);

    float score[BLOCK_K / 8][4] = {}, result[HEAD / 8][4] = {}, rescale[2];
    unsigned weight[BLOCK_K / STEP][4];
    const auto multiply_queries = [&](unsigned number) {
        const unsigned long long q_tile = described<ROW_BYTES>(slots + reader * 64 * ROW_BYTES);
        const unsigned long long k_tile = described<ROW_BYTES>(slots + KEYS + number * K_TILE);
#pragma unroll
        for (unsigned box = 0; box < BOXES; ++box)
#pragma unroll
            for (unsigned step = 0; step < ROW_BYTES; step += STEP_BYTES)
                multiply_keys(score, q_tile + (box * Q_BOX + step) / 16, k_tile + (box * K_BOX + step) / 16,
                              box + step > 0);
        commit_products();
    };
    const auto multiply_weights = [&](unsigned number) {
#if DTYPE_F8E4M3
        const unsigned long long v_tile = described<VALUES_ROW>(slots + VALUES + number * K_TILE);
        const auto place = [](unsigned key) { return key / VALUES_ROW * VALUES_BOX + key % VALUES_ROW; };
#else
        const unsigned long long v_tile = described<ROW_BYTES, K_BOX>(slots + VALUES + number * K_TILE);
        const auto place = [](unsigned key) { return key * ROW_BYTES; };
#endif
#pragma unroll
        for (unsigned step = 0; step < BLOCK_K / STEP; ++step)
            multiply_values(result, weight[step], v_tile + place(step * STEP) / 16);
        commit_products();
    };
    // The weights as the operand of a product, and the results so far as if computed with them.
    const auto apply_weights = [&]() {
#pragma unroll
        for (unsigned j = 0; j < HEAD / 8; ++j)
#pragma unroll
            for (unsigned e = 0; e < 4; ++e) result[j][e] *= rescale[e / 2];
#pragma unroll
        for (unsigned step = 0; step < BLOCK_K / STEP; ++step)
#pragma unroll
            for (unsigned e = 0; e < 4; ++e) {
#if DTYPE_F8E4M3
                const unsigned j = 4 * step + e / 2 * 2, h = e % 2 * 2;
                weight[step][e] = pack_bytes(score[j][h], score[j][h + 1], score[j + 1][h], score[j + 1][h + 1]);
#else
                const float* two = &score[2 * step + e / 2][e % 2 * 2];
                weight[step][e] = pack(two[0], two[1]);
#endif
            }
    };
    // Adds the values of a stage, with the weights that are held.
    const auto add_values = [&](const Stage& held) {
        barrier_wait(v_full(held.number), held.parity);
        hold(weight);
        hold(result);
        products_fence();
        multiply_weights(held.number);
        wait_for_products<0>();
        hold(result);
    };

    barrier_wait(q_full, 0);
#if OVERLAP
    barrier_wait(k_full(0), 0);
    hold(score);
    products_fence();
    multiply_queries(0);
    wait_for_products<0>();
    hold(score);
    release(k_empty(0));
    rows.weigh(score, rescale);
    apply_weights();
#if TURNS
    if (reader == READERS - 1) pass_turn(reader);
#endif
#pragma unroll 1
    for (unsigned trip = 1; trip < tiles.trips; ++trip) {
        const Stage now = stage;
        stage.next();
        barrier_wait(k_full(stage.number), stage.parity);
#if TURNS
        await_turn(reader);
#endif
        hold(score);
        hold(weight);
        hold(result);
        products_fence();
        multiply_queries(stage.number);
        barrier_wait(v_full(now.number), now.parity);
        multiply_weights(now.number);
#if TURNS
        pass_turn(reader);
#endif
        wait_for_products<1>();
        hold(score);
        release(k_empty(stage.number));
        rows.weigh(score, rescale);
        wait_for_products<0>();
        hold(result);
        release(v_empty(now.number));
        apply_weights();
    }
#if TURNS
    if (reader == 0) await_turn(reader);  // which nobody else takes
#endif
    add_values(stage);
#else
#pragma unroll 1
    for (unsigned trip = 0; trip < tiles.trips; ++trip) {
        barrier_wait(k_full(stage.number), stage.parity);
        hold(score);
        products_fence();
        multiply_queries(stage.number);
        wait_for_products<0>();
        hold(score);
        release(k_empty(stage.number));
        rows.weigh(score, rescale);
        apply_weights();
        add_values(stage);
        release(v_empty(stage.number));
        stage.next();
    }
#endif

#pragma unroll
    for (unsigned h = 0; h < 2; ++h) {
        const float over = 1 / over_quad(rows.sum[h], [](float x, float y) { return x + y; });
        bool inside;
        const unsigned start = a.row(tile, warp * 16 + h * 8 + lane / 4, inside) * head_dim;
#if DTYPE_F8E4M3
        const float scaled = over * v_scale[scale];
        if (halves)
            store_row<true>(o + start, result, h, scaled, head_dim, inside);
        else
            store_row<false>(o + start, result, h, scaled, head_dim, inside);
#else
#pragma unroll
        for (unsigned j = 0; j < HEAD / 8; j += 4) {
            unsigned four[4];
#pragma unroll
            for (unsigned i = 0; i < 4; ++i)
                four[i] = pack(result[j + i][2 * h] * over, result[j + i][2 * h + 1] * over);
            transpose_quad(four);
            const unsigned at = j * 8 + lane % 4 * 8;
            store_packet(o + (start + at), Packet<16>{four[0], four[1], four[2], four[3]}, inside && at < head_dim);
        }
#endif
    }
}
