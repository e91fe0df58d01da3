// C[m,n] = activation(A[m,k] B[k,n] + bias[n]), f32, row-major, on the FMA pipes. Layout nt stores B as [n,k].
//
// A block owns a BLOCK_M x BLOCK_N tile of C and walks the reduction in tiles of BLOCK_K; a thread owns
// THREAD_M x THREAD_N of it, a warp LANES_M x LANES_N threads. Columns go in runs of four so that B is read from shared
// memory 128 bits at a time; rows are LANES_M apart.
// Lanes are dealt out two rows at a time: neighbouring lanes share a column and lanes two apart a row, so that a 128-bit
// load of either operand returns each quad to a pair of lanes and takes half the passes through the banks.
//
// Shared memory, no bank conflicts and no padding:
//   A tile  [BLOCK_M][BLOCK_K], the 16-byte quads of a row exchanged by an XOR with the row number, so that eight rows
//           at one k, and one row at successive k, both cover all 32 banks. Read along k, FRAGMENT_K at a time.
//   B tile  [BLOCK_K][BLOCK_N]. With scalar loads (VECTOR 1) the columns of a warp are permuted: the four that a thread
//           reads as one quad lie LANES_N apart in memory, so that the scalar stores of C fill whole sectors.
//           Layout nt: loaded along k like the A tile, and transposed by one store for each value. An XOR with k / 4
//           exchanges the quads of a row, so that the stores of a warp cover all 32 banks, too. With scalar loads, an
//           XOR with k % 4 also exchanges the values of a quad; the reader puts them back in order.
//
// Edges cost what full tiles cost: rows and columns past the edge are clamped to the last one (computed, never
// stored), the reduction is padded with zeros by predicated loads, and a prefetch past the last tile reads nothing.
// So every block executes prologue + trips * body instructions, for any trips >= 1.
//
// Split-K: blockIdx.y takes an equal share of the reduction (the shares differ by one tile at most) and writes a
// partial C; matmul_simt_reduce adds the partials in a fixed order.
//
// A tensor holds at most 2^31 elements: element offsets fit 32 unsigned bits, byte offsets are formed in 64.

constexpr unsigned THREADS = (BLOCK_M / THREAD_M) * (BLOCK_N / THREAD_N);
constexpr unsigned LANES_N = 32 / LANES_M;
constexpr unsigned RUN = 4;  // consecutive floats of a shared-memory quad
constexpr unsigned WARP_M = LANES_M * THREAD_M;
constexpr unsigned WARP_N = LANES_N * THREAD_N;
constexpr unsigned WARPS_N = BLOCK_N / WARP_N;
constexpr unsigned A_TILE = BLOCK_M * BLOCK_K;
constexpr unsigned B_TILE = BLOCK_K * BLOCK_N;
[[maybe_unused]] constexpr unsigned SLOT = A_TILE + B_TILE;
constexpr unsigned A_LOADS = A_TILE / (VECTOR * THREADS);
constexpr unsigned B_VECTOR = VECTOR;
constexpr unsigned B_LOADS = B_TILE / (B_VECTOR * THREADS);
constexpr unsigned B_ROW_STEP = THREADS * VECTOR / BLOCK_N;  // rows between two loads of a thread
// Values of A along k held at once: registers against load count.
constexpr unsigned FRAGMENT_K = THREAD_M > 12 ? 2 : 4;

constexpr unsigned UNROLL_FMAS = 1024;  // FMAs of a thread in straight-line code
constexpr unsigned UNROLL = BLOCK_K * THREAD_M * THREAD_N <= UNROLL_FMAS
                                ? BLOCK_K / FRAGMENT_K
                                : UNROLL_FMAS / (FRAGMENT_K * THREAD_M * THREAD_N);

static_assert(A_LOADS * VECTOR * THREADS == A_TILE && B_LOADS * VECTOR * THREADS == B_TILE, "loads divide evenly");
static_assert(THREADS * VECTOR % BLOCK_K == 0 && THREADS * VECTOR % BLOCK_N == 0, "a thread loads one column");
static_assert(THREADS % 32 == 0 && BLOCK_M % WARP_M == 0 && BLOCK_N % WARP_N == 0, "warps tile the block");
static_assert(THREAD_N % RUN == 0 && WARP_M % 8 == 0, "quads of columns, whole periods of the swizzle");

#include "simt.cuh"
#include "epilogue.cuh"

#if LAYOUT_NT
static_assert(!ASYNC_COPY, "cp.async cannot transpose");

// Exchange of the quads in row `k` of the B tile, and of the values in each quad.
__device__ __forceinline__ constexpr unsigned quad_exchange(unsigned k) { return k / 4 * (128 / BLOCK_K) % BLOCK_N; }
__device__ __forceinline__ constexpr unsigned value_exchange(unsigned k) { return VECTOR == 1 ? k % RUN : 0; }

// The quad of B at row `k` of the tile and places `column` to `column` + 3.
__device__ __forceinline__ void read_quad(float* quad, const float* slot, unsigned k, unsigned column) {
    const float4 values = *reinterpret_cast<const float4*>(slot + A_TILE + k * BLOCK_N + (column ^ quad_exchange(k)));
    quad[0 ^ value_exchange(k)] = values.x;
    quad[1 ^ value_exchange(k)] = values.y;
    quad[2 ^ value_exchange(k)] = values.z;
    quad[3 ^ value_exchange(k)] = values.w;
}
#endif

// One thread's share of the loads: where the next tile is, and what is on its way.
struct Loader {
    AlongK<0> a_tile;
    const float* a_source[A_LOADS];
    const float* b_source[B_LOADS];
#if LAYOUT_NT
    unsigned b_row, b_place;
#else
    size_t b_step;  // floats between tiles of B
    unsigned b_place;
#endif
    unsigned a_k, b_k, k_end;
    Transfer<VECTOR> a_transfer[A_LOADS];
    Transfer<VECTOR> b_transfer[B_LOADS];

    __device__ __forceinline__ Loader(const float* a, const float* b, unsigned m, unsigned n, unsigned k,
                                      unsigned tile_row, unsigned tile_column, unsigned k_begin, unsigned k_end_)
        : k_end(k_end_) {
        a_k = k_begin + a_tile.column;
#pragma unroll
        for (unsigned i = 0; i < A_LOADS; ++i)
            a_source[i] = a + (min(tile_row + a_tile.row + i * a_tile.STEP, m - 1) * k + a_k);

#if LAYOUT_NT
        const unsigned tile_k = a_tile.column;  // first k of the thread in the tiles of A and of B
        b_row = A_TILE + tile_k * BLOCK_N;
        b_place = place(a_tile.row) ^ quad_exchange(tile_k) ^ value_exchange(tile_k);
#pragma unroll
        for (unsigned i = 0; i < B_LOADS; ++i)
            b_source[i] = b + (min(tile_column + a_tile.row + i * a_tile.STEP, n - 1) * k + a_k);
#else
        const unsigned row = threadIdx.x / (BLOCK_N / VECTOR);
        const unsigned column = threadIdx.x % (BLOCK_N / VECTOR) * VECTOR;
        b_place = A_TILE + row * BLOCK_N + place(column);
        b_k = k_begin + row;
        b_step = size_t(BLOCK_K) * n;
#pragma unroll
        for (unsigned i = 0; i < B_LOADS; ++i)
            b_source[i] = b + size_t(b_k + i * B_ROW_STEP) * n + min(tile_column + column, n - VECTOR);
#endif
    }

    __device__ __forceinline__ float* b_target(float* slot, unsigned i) const {
#if LAYOUT_NT
        // row < STEP, both powers of two, and `place` moves bits: the place of row + i * STEP is that of row, XOR a constant
        return slot + b_row + (b_place ^ place(i * a_tile.STEP));
#else
        return slot + b_place + i * B_ROW_STEP * BLOCK_N;
#endif
    }

    // Starts the loads of the next tile, towards `slot`.
    __device__ __forceinline__ void fetch(float* slot) {
#pragma unroll
        for (unsigned i = 0; i < A_LOADS; ++i) {
            a_transfer[i].start(a_tile.target(slot, i), a_source[i], a_k < k_end);
            a_source[i] += BLOCK_K;
        }
#pragma unroll
        for (unsigned i = 0; i < B_LOADS; ++i) {
#if LAYOUT_NT
            b_transfer[i].start(slot, b_source[i], a_k < k_end);
            b_source[i] += BLOCK_K;
        }
        a_k += BLOCK_K;
#else
            b_transfer[i].start(b_target(slot, i), b_source[i], b_k + i * B_ROW_STEP < k_end);
            b_source[i] += b_step;
        }
        a_k += BLOCK_K;
        b_k += BLOCK_K;
#endif
#if ASYNC_COPY
        asm volatile("cp.async.commit_group;" ::: "memory");
#endif
    }

#if !ASYNC_COPY
    // Writes the fetched tile from registers to `slot`.
    __device__ __forceinline__ void settle(float* slot) const {
#pragma unroll
        for (unsigned i = 0; i < A_LOADS; ++i) a_transfer[i].finish(a_tile.target(slot, i));
#pragma unroll
#if LAYOUT_NT
        for (unsigned i = 0; i < B_LOADS * VECTOR; ++i)
            b_target(slot, i / VECTOR)[i % VECTOR * BLOCK_N] = b_transfer[i / VECTOR].packet.value[i % VECTOR];
#else
        for (unsigned i = 0; i < B_LOADS; ++i) b_transfer[i].finish(b_target(slot, i));
#endif
    }
#endif
};

// accumulator += A tile * B tile, for this thread's rows from `my_row` and columns from place `my_column`.
__device__ __forceinline__ void multiply(const float* slot, unsigned my_row, unsigned my_column,
                                         float (&accumulator)[THREAD_M][THREAD_N]) {
#pragma unroll UNROLL
    for (unsigned k = 0; k < BLOCK_K; k += FRAGMENT_K) {
        float a[THREAD_M][FRAGMENT_K];
#pragma unroll
        for (unsigned i = 0; i < THREAD_M; ++i) read_fragment(a[i], slot, my_row, i * LANES_M, k);
#pragma unroll
        for (unsigned kk = 0; kk < FRAGMENT_K; ++kk) {
            float b[THREAD_N];
#pragma unroll
            for (unsigned j = 0; j < THREAD_N; j += RUN)
#if LAYOUT_NT
                read_quad(b + j, slot, k + kk, my_column + j * LANES_N);
#else
                *reinterpret_cast<float4*>(b + j) =
                    *reinterpret_cast<const float4*>(slot + A_TILE + (k + kk) * BLOCK_N + my_column + j * LANES_N);
#endif
#pragma unroll
            for (unsigned i = 0; i < THREAD_M; ++i)
#pragma unroll
                for (unsigned j = 0; j < THREAD_N; ++j) accumulator[i][j] += a[i][kk] * b[j];
        }
    }
}

// Bias and activation of the thread's results; `column` is its first of n, see the stores of the kernel.
__device__ __forceinline__ void finish(float (&result)[THREAD_M][THREAD_N], const float* __restrict__ bias,
                                       unsigned activation, unsigned column, unsigned n) {
    if (bias) {
#pragma unroll
        for (unsigned j = 0; j < THREAD_N; ++j) {
            const float value = bias_at(bias, min(column + j / VECTOR * VECTOR * LANES_N + j % VECTOR, n - 1));
#pragma unroll
            for (unsigned i = 0; i < THREAD_M; ++i) result[i][j] += value;
        }
    }
    activate(activation, [&](auto change) {
#pragma unroll
        for (unsigned i = 0; i < THREAD_M; ++i)
#pragma unroll
            for (unsigned j = 0; j < THREAD_N; ++j) result[i][j] = change(result[i][j]);
    });
}

// Grid: x = tiles of C, walked in bands of `raster` tile rows, down the rows of a band first, so that blocks in flight
// share tiles of A and B in L2; y = shares of the reduction. bias: null for none. partial: null without split-K.
extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS)
    matmul_simt(const float* __restrict__ a, const float* __restrict__ b, const float* __restrict__ bias,
                float* __restrict__ c, float* __restrict__ partial, unsigned m, unsigned n, unsigned k,
                unsigned activation, unsigned tiles_m, unsigned tiles_n, unsigned raster,
                unsigned share, unsigned longer_shares) {  // tiles of the reduction; the first shares have one more
    extern __shared__ __align__(16) float shared[];

    const unsigned band_tiles = raster * tiles_n;
    const unsigned band = blockIdx.x / band_tiles;
    const unsigned in_band = blockIdx.x - band * band_tiles;
    const unsigned band_rows = min(raster, tiles_m - band * raster);
    const unsigned tile_n = in_band / band_rows;
    const unsigned tile_row = (band * raster + in_band - tile_n * band_rows) * BLOCK_M;
    const unsigned tile_column = tile_n * BLOCK_N;

    const unsigned trips = share + (blockIdx.y < longer_shares);
    const unsigned k_begin = (blockIdx.y * share + min(blockIdx.y, longer_shares)) * BLOCK_K;
    const unsigned k_end = min(k, k_begin + trips * BLOCK_K);

    const unsigned warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const unsigned lane_m = lane / (2 * LANES_N) * 2 + lane % 2, lane_n = lane / 2 % LANES_N;
    const unsigned my_row = warp / WARPS_N * WARP_M + lane_m, warp_column = warp % WARPS_N * WARP_N;
    const unsigned my_column = warp_column + lane_n * RUN;

    Loader loader(a, b, m, n, k, tile_row, tile_column, k_begin, k_end);
    float accumulator[THREAD_M][THREAD_N] = {};

#if ASYNC_COPY
#pragma unroll
    for (unsigned stage = 0; stage + 1 < STAGES; ++stage) loader.fetch(shared + stage * SLOT);
    unsigned read = 0, write = (STAGES - 1) * SLOT;
#pragma unroll 1
    for (unsigned trip = 0; trip < trips; ++trip) {
        asm volatile("cp.async.wait_group %0;" ::"n"(STAGES - 2) : "memory");
        __syncthreads();  // the tile of this trip has landed for all, and all have done with the slot written next
        loader.fetch(shared + write);
        multiply(shared + read, my_row, my_column, accumulator);
        read = read == (STAGES - 1) * SLOT ? 0 : read + SLOT;
        write = write == (STAGES - 1) * SLOT ? 0 : write + SLOT;
    }
    asm volatile("cp.async.wait_all;" ::: "memory");
#elif STAGES == 2
    loader.fetch(shared);
    loader.settle(shared);
    __syncthreads();
    unsigned read = 0;
#pragma unroll 1
    for (unsigned trip = 0; trip < trips; ++trip) {
        loader.fetch(shared);
        multiply(shared + read, my_row, my_column, accumulator);
        read = SLOT - read;
        loader.settle(shared + read);
        __syncthreads();
    }
#else
#pragma unroll 1
    for (unsigned trip = 0; trip < trips; ++trip) {
        loader.fetch(shared);
        __syncthreads();  // all have done with the tile before
        loader.settle(shared);
        __syncthreads();
        multiply(shared, my_row, my_column, accumulator);
    }
#endif

    const unsigned first_column = tile_column + warp_column + lane_n * VECTOR;
    if (!partial) finish(accumulator, bias, activation, first_column, n);
    float* output = partial ? partial + size_t(blockIdx.y) * m * n : c;
#pragma unroll
    for (unsigned i = 0; i < THREAD_M; ++i) {
        const unsigned row = tile_row + my_row + i * LANES_M;
#pragma unroll
        for (unsigned j = 0; j < THREAD_N; j += VECTOR) {
            const unsigned column = first_column + j * LANES_N;
            store_floats<VECTOR>(output + (row * n + column), &accumulator[i][j], row < m && column < n);
        }
    }
}

// Grid: x = REDUCE_THREADS * VECTOR elements of C each.
extern "C" __global__ void __launch_bounds__(REDUCE_THREADS)
    matmul_simt_reduce(const float* __restrict__ partial, const float* __restrict__ bias, float* __restrict__ c,
                       unsigned activation, unsigned elements, unsigned columns, unsigned splits) {
    const unsigned first = (blockIdx.x * REDUCE_THREADS + threadIdx.x) * VECTOR;
    const Floats<VECTOR> sum = added_up<VECTOR>(partial, bias, activation, first, elements, columns, splits);
    store_floats<VECTOR>(c + first, sum.value, first < elements);
}
