// The body of y[n,m] = a[m,k] x[n,k] over k, for a handful of vectors x: every element of the matrix is read once and
// used n times. Defined before the include: THREADS, ROW_THREADS, ROWS, COLUMNS, VECTOR and UNROLL.
//
// ROW_THREADS neighbouring lanes share ROWS rows of the matrix and COLUMNS vectors. They walk k side by side, a packet
// of VECTOR elements each and UNROLL packets of every row in flight, and then add up their sums by shuffles: at each
// step a lane hands over half of its sums and takes in the other half, so that the results end up spread over lanes.
//
// Edges cost what full tiles cost: rows past the last are clamped to it (computed, never stored), vectors and k are
// padded with zeros by predicated loads. So every block executes prologue + trips * body instructions, for any
// trips >= 1.
//
// Split-K: blockIdx.y takes an equal share of k (the shares differ by one trip at most) and writes f32 partial results,
// which a second pass adds in a fixed order. Sums are f32 throughout, rounded once.
//
// A tensor holds at most 2^31 elements: element offsets fit 32 unsigned bits.

#include "packet.cuh"

#if DTYPE_F32
using Element = float;
#else
using Element = unsigned short;  // the bits of one f16 or bf16
#endif

constexpr unsigned BYTES = VECTOR * sizeof(Element);  // of a packet
constexpr unsigned STEP_K = ROW_THREADS * VECTOR;
constexpr unsigned TRIP_K = STEP_K * UNROLL;
constexpr unsigned BLOCK_ROWS = THREADS / ROW_THREADS * ROWS;
constexpr unsigned SUMS = ROWS * COLUMNS;
constexpr unsigned REDUCE_THREADS = 256;

static_assert(32 % ROW_THREADS == 0 && THREADS % 32 == 0, "the lanes of a row are in one warp");

#if !DTYPE_F32
// Rounds to nearest even.
__device__ __forceinline__ Element encode(float value) {
#if DTYPE_F16
    Element bits;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(value));
    return bits;
#elif __CUDA_ARCH__ >= 800
    unsigned word;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(0.0f), "f"(value));
    return Element(word);
#else
    const unsigned bits = __float_as_uint(value);
    return value == value ? (bits + 0x7fff + (bits >> 16 & 1)) >> 16 : 0x7fff;
#endif
}

__device__ __forceinline__ void store(Element* target, float value, bool inside) {
    store_half(target, encode(value), inside);
}
#endif

__device__ __forceinline__ void store(float* target, float value, bool inside) {
    store_floats<1>(target, &value, inside);
}

__device__ __forceinline__ void decode(float (&value)[VECTOR], const Packet<BYTES>& p) {
#if DTYPE_F32
#pragma unroll
    for (unsigned i = 0; i < VECTOR; ++i) value[i] = __uint_as_float(p.word[i]);
#else
#pragma unroll
    for (unsigned i = 0; i < Packet<BYTES>::WORDS; ++i) {
        float low, high;
#if DTYPE_BF16
        low = __uint_as_float(p.word[i] << 16);
        high = __uint_as_float(p.word[i] & 0xffff0000u);
#else
        asm("{ .reg .b16 low, high; mov.b32 {low, high}, %2; cvt.f32.f16 %0, low; cvt.f32.f16 %1, high; }"
            : "=f"(low), "=f"(high)
            : "r"(p.word[i]));
#endif
        value[2 * i] = low;
        if (VECTOR > 1) value[2 * i + 1] = high;
    }
#endif
}

// Adds up sum[] over the lanes of a row group. Lane `lane` of it is left with its share, from number lane * SUMS /
// ROW_THREADS on: SUMS / ROW_THREADS sums, or the same one as its neighbours where there are fewer sums than lanes.
__device__ __forceinline__ void add_up(float (&sum)[SUMS], unsigned lane) {
    unsigned held = SUMS;
#pragma unroll
    for (unsigned distance = ROW_THREADS / 2; distance; distance /= 2) {
        if (held > 1) {
            held /= 2;
#pragma unroll
            for (unsigned i = 0; i < held; ++i) {
                float given, kept;  // without the branches that the compiler would make of it
                asm("{ .reg .pred p; setp.ne.u32 p, %4, 0; selp.f32 %0, %2, %3, p; selp.f32 %1, %3, %2, p; }"
                    : "=&f"(given), "=f"(kept)
                    : "f"(sum[i]), "f"(sum[i + held]), "r"(lane & distance));
                sum[i] = kept + __shfl_xor_sync(0xffffffff, given, distance);
            }
        } else {
            sum[0] += __shfl_xor_sync(0xffffffff, sum[0], distance);
        }
    }
}

// Grid: x = tiles of y, the groups of COLUMNS vectors first, so that blocks in flight share rows of the matrix in L2;
// y = shares of k. y: the results, or the partial ones. `finish` takes a result and its row of the matrix, and gives
// what is stored.
template <class Y, class Finish>
__device__ __forceinline__ void multiply(const Element* a, const Element* x, Y* y, unsigned m, unsigned n, unsigned k,
                                         unsigned tiles_n, unsigned share, unsigned longer_shares,
                                         const Finish& finish) {
    const unsigned tile_m = blockIdx.x / tiles_n;
    const unsigned first_column = (blockIdx.x - tile_m * tiles_n) * COLUMNS;
    const unsigned lane = threadIdx.x % ROW_THREADS;
    const unsigned first_row = tile_m * BLOCK_ROWS + threadIdx.x / ROW_THREADS * ROWS;
    const unsigned columns = n - first_column;  // those from the first on: more than COLUMNS, or fewer

    const unsigned trips = share + (blockIdx.y < longer_shares);
    const unsigned k_begin = (blockIdx.y * share + min(blockIdx.y, longer_shares)) * TRIP_K;
    const unsigned k_end = min(k, k_begin + trips * TRIP_K);
    unsigned at_k = k_begin + lane * VECTOR;

    const Element* a_source[ROWS];
#pragma unroll
    for (unsigned r = 0; r < ROWS; ++r) a_source[r] = a + (size_t(min(first_row + r, m - 1)) * k + at_k);
    const Element* x_source = x + (size_t(first_column) * k + at_k);

    float sum[SUMS] = {};
#pragma unroll 1
    for (unsigned trip = 0; trip < trips; ++trip) {
        Packet<BYTES> a_packet[UNROLL][ROWS];
#pragma unroll
        for (unsigned u = 0; u < UNROLL; ++u)
#pragma unroll
            for (unsigned r = 0; r < ROWS; ++r)
                a_packet[u][r] = load_packet<BYTES>(a_source[r] + u * STEP_K, at_k + u * STEP_K, k_end);
#pragma unroll
        for (unsigned u = 0; u < UNROLL; ++u) {
            float row[ROWS][VECTOR];
#pragma unroll
            for (unsigned r = 0; r < ROWS; ++r) decode(row[r], a_packet[u][r]);
            const Element* vector_source = x_source + u * STEP_K;
#pragma unroll
            for (unsigned c = 0; c < COLUMNS; ++c) {
                float vector[VECTOR];
                decode(vector, load_packet<BYTES>(vector_source, at_k + u * STEP_K, c < columns ? k_end : 0));
                vector_source += k;
#pragma unroll
                for (unsigned r = 0; r < ROWS; ++r)
#pragma unroll
                    for (unsigned i = 0; i < VECTOR; ++i) sum[c * ROWS + r] += row[r][i] * vector[i];
            }
        }
#pragma unroll
        for (unsigned r = 0; r < ROWS; ++r) a_source[r] += TRIP_K;
        x_source += TRIP_K;
        at_k += TRIP_K;
    }

    add_up(sum, lane);
    constexpr unsigned HELD = SUMS > ROW_THREADS ? SUMS / ROW_THREADS : 1;
    constexpr unsigned SHARING = SUMS < ROW_THREADS ? ROW_THREADS / SUMS : 1;  // lanes that hold the same sum
    y += size_t(blockIdx.y) * m * n;
#pragma unroll
    for (unsigned i = 0; i < HELD; ++i) {
        const unsigned number = lane / SHARING * HELD + i;
        const unsigned r = first_row + number % ROWS, c = number / ROWS;
        const float result = finish(sum[i], min(r, m - 1));
        store(y + (size_t(first_column + c) * m + r), result, lane % SHARING == 0 && r < m && c < columns);
    }
}
