// y = conv2d(x, w), f32, as an implicit matrix product: no im2col buffer, the input is gathered while it is loaded.
//
// One group of the convolution is a product A B with a reduction over input channels and filter taps:
//   nchw  rows = output channels, columns = output pixels;  A = w[k, (c r s)], B = gathered x[(c r s), pixel]
//   nhwc  rows = output pixels, columns = output channels;  A = gathered x[pixel, (r s c)], B = w[k, (r s c)]
// so that in both the last axis of y lies along the columns and every tensor is read along its last axis.
//
// A block owns BLOCK_M x BLOCK_N results and walks the reduction in tiles of BLOCK_K; a thread owns THREAD_M x THREAD_N
// of them, a warp LANES_M x LANES_N threads; rows are LANES_M apart. VECTOR 4 reads what is contiguous 128 bits at a
// time: w in both layouts, x in nhwc, and x and y in nchw with POINTWISE, which takes filters of one tap, stride 1 and
// no padding, where the gather is a plain read.
//
// Lanes are dealt out two rows at a time: neighbouring lanes share a column and lanes two apart a row, so that a 128-bit
// load of either operand returns each quad to a pair of lanes and takes half the passes through the banks.
//
// Shared memory, no bank conflicts and no padding:
//   along the reduction (A; in nhwc B too)  [rows][BLOCK_K], the 16-byte quads of a row exchanged by an XOR with the
//           row number, so that eight rows at one k, and one row at successive k, both cover all 32 banks.
//   across it (B in nchw)  [BLOCK_K][BLOCK_N]. With scalar loads the columns of a warp are permuted: the four that a
//           thread reads as one quad lie LANES_N apart in memory, so that the scalar stores of y fill whole sectors.
//
// Edges cost what full tiles cost: rows and columns past the edge are clamped to the last one (computed, never
// stored); taps on the padding and the rest of the reduction are zeros from predicated loads, and a prefetch past the
// last tile reads nothing. So every block executes prologue + trips * body instructions, for any trips >= 1.
//
// Split-K: blockIdx.z takes an equal share of the reduction (the shares differ by one tile at most) and writes a
// partial y; conv2d_implicit_gemm_simt_reduce adds the partials in a fixed order.
//
// A tensor holds at most 2^31 elements: element offsets fit 32 unsigned bits (those of taps on the padding may wrap and
// are not used), byte offsets are formed in 64. Divisions by dimensions are multiplications by constants of the host.

#if LAYOUT_NHWC
constexpr bool NHWC = true;
#else
constexpr bool NHWC = false;
#endif
constexpr unsigned THREADS = (BLOCK_M / THREAD_M) * (BLOCK_N / THREAD_N);
constexpr unsigned LANES_N = 32 / LANES_M;
constexpr unsigned RUN = 4;  // consecutive floats of a shared-memory quad
constexpr unsigned WARP_M = LANES_M * THREAD_M;
constexpr unsigned WARP_N = LANES_N * THREAD_N;
constexpr unsigned WARPS_N = BLOCK_N / WARP_N;
constexpr unsigned A_TILE = BLOCK_M * BLOCK_K;
constexpr unsigned B_TILE = BLOCK_K * BLOCK_N;
constexpr unsigned SLOT = A_TILE + B_TILE;
constexpr unsigned B_VECTOR = NHWC || POINTWISE ? VECTOR : 1;
constexpr unsigned OUT_VECTOR = POINTWISE ? VECTOR : 1;
constexpr unsigned A_LOADS = A_TILE / (VECTOR * THREADS);
constexpr unsigned B_LOADS = B_TILE / (B_VECTOR * THREADS);
// Values along k held at once of what lies along the reduction: registers against load count.
constexpr unsigned FRAGMENT_K = THREAD_M + (NHWC ? THREAD_N : 0) > 12 ? 2 : 4;

constexpr unsigned UNROLL_FMAS = 1024;  // FMAs of a thread in straight-line code
constexpr unsigned UNROLL = BLOCK_K * THREAD_M * THREAD_N <= UNROLL_FMAS
                                ? BLOCK_K / FRAGMENT_K
                                : UNROLL_FMAS / (FRAGMENT_K * THREAD_M * THREAD_N);

static_assert(A_LOADS * VECTOR * THREADS == A_TILE && B_LOADS * B_VECTOR * THREADS == B_TILE, "loads divide evenly");
static_assert(THREADS * VECTOR % BLOCK_K == 0, "a thread loads one column of a tile along the reduction");
static_assert(NHWC || THREADS * B_VECTOR % BLOCK_N == 0, "a thread loads one pixel or quad of pixels");
static_assert(THREADS % 32 == 0 && BLOCK_M % WARP_M == 0 && BLOCK_N % WARP_N == 0, "warps tile the block");
static_assert(THREAD_N % RUN == 0 && WARP_M % 8 == 0 && WARP_N % 8 == 0, "quads of columns, whole swizzle periods");
static_assert(!POINTWISE || (!NHWC && VECTOR == 4), "POINTWISE widens the loads of x in nchw");

// A divisor d known to the host: multiplier and shift such that n / d = umulhi(n, multiplier) >> shift for n < 2^31. No
// multiplier does this for d = 1: there it is 0 and `is_one` is 1.
struct Divisor {
    unsigned value, multiplier, shift, is_one;
    __device__ __forceinline__ unsigned quotient(unsigned n) const {
        return (__umulhi(n, multiplier) >> shift) + n * is_one;
    }
};

// One group of the convolution.
struct Geometry {
    unsigned channels, height, width;  // of x, all groups
    unsigned depth;                    // input channels of a group
    unsigned stride, padding, dilation;
    unsigned group;
    Divisor image;   // output pixels of an image
    Divisor line;    // output pixels of a line
    Divisor inner;   // the faster part of the reduction: nchw taps of a filter, nhwc channels
    Divisor taps;    // taps of a filter's line
};

#include "simt.cuh"

// An output pixel's window in x: coordinates of its first tap and that element's offset; both wrap on the padding.
struct Window {
    unsigned top, left, offset;

    __device__ __forceinline__ void place(const Geometry& g, unsigned pixel) {
        const unsigned image = g.image.quotient(pixel);
        const unsigned in_image = pixel - image * g.image.value;
        const unsigned line = g.line.quotient(in_image);
        top = line * g.stride - g.padding;
        left = (in_image - line * g.line.value) * g.stride - g.padding;
        offset = NHWC ? ((image * g.height + top) * g.width + left) * g.channels + g.group * g.depth
                      : ((image * g.channels + g.group * g.depth) * g.height + top) * g.width + left;
    }
};

// Position k of the reduction, relative to a window's first tap.
struct Tap {
    unsigned down, right, offset;

    __device__ __forceinline__ static Tap at(const Geometry& g, unsigned k) {
        if (POINTWISE) return {0, 0, k * g.height * g.width};
        const unsigned outer = g.inner.quotient(k);
        const unsigned inner = k - outer * g.inner.value;
        const unsigned channel = NHWC ? inner : outer;
        const unsigned tap = NHWC ? outer : inner;
        const unsigned line = g.taps.quotient(tap);
        const unsigned down = line * g.dilation;
        const unsigned right = (tap - line * g.taps.value) * g.dilation;
        return {down, right, NHWC ? (down * g.width + right) * g.channels + channel
                                  : (channel * g.height + down) * g.width + right};
    }

    // Whether it meets x rather than the padding.
    __device__ __forceinline__ bool meets(const Geometry& g, const Window& window) const {
        return POINTWISE || (window.top + down < g.height && window.left + right < g.width);
    }
};

// Loads of w: a tile of output channels, along the reduction.
template <unsigned BASE, unsigned LOADS>
struct Weights {
    AlongK<BASE> tile;
    const float* source[LOADS];
    unsigned k;
    Transfer<VECTOR> transfer[LOADS];

    __device__ __forceinline__ Weights(const float* w, unsigned first, unsigned count, unsigned reduction,
                                       unsigned k_begin) {
        k = k_begin + tile.column;
#pragma unroll
        for (unsigned i = 0; i < LOADS; ++i)
            source[i] = w + (min(first + tile.row + i * tile.STEP, count - 1) * reduction + k);
    }

    __device__ __forceinline__ void fetch(float* slot, unsigned k_end) {
#pragma unroll
        for (unsigned i = 0; i < LOADS; ++i) {
            transfer[i].start(tile.target(slot, i), source[i], k < k_end);
            source[i] += BLOCK_K;
        }
        k += BLOCK_K;
    }

#if !ASYNC_COPY
    __device__ __forceinline__ void settle(float* slot) const {
#pragma unroll
        for (unsigned i = 0; i < LOADS; ++i) transfer[i].finish(tile.target(slot, i));
    }
#endif
};

// Loads of x: a tile of output pixels. In nhwc a thread gathers one position of the reduction for several pixels. In
// nchw it gathers several positions for one pixel (or quad of pixels, POINTWISE); those are the same for all pixels, so
// the block works them out once, a trip ahead, and keeps them in shared memory.
#if LAYOUT_NHWC
struct Pixels {
    AlongK<0> tile;
    Window window[A_LOADS];
    unsigned k;
    Transfer<VECTOR> transfer[A_LOADS];

    __device__ __forceinline__ Pixels(const Geometry& g, unsigned first, unsigned count, unsigned k_begin) {
        k = k_begin + tile.column;
#pragma unroll
        for (unsigned i = 0; i < A_LOADS; ++i) window[i].place(g, min(first + tile.row + i * tile.STEP, count - 1));
    }

    __device__ __forceinline__ void fetch(float* slot, const Geometry& g, const float* x, unsigned k_end) {
        const Tap tap = Tap::at(g, k);
#pragma unroll
        for (unsigned i = 0; i < A_LOADS; ++i)
            transfer[i].start(tile.target(slot, i), x + (window[i].offset + tap.offset),
                              tap.meets(g, window[i]) && k < k_end);
        k += BLOCK_K;
    }

#if !ASYNC_COPY
    __device__ __forceinline__ void settle(float* slot) const {
#pragma unroll
        for (unsigned i = 0; i < A_LOADS; ++i) transfer[i].finish(tile.target(slot, i));
    }
#endif
};
#else
constexpr unsigned TABLE = (STAGES < 2 ? 2 : STAGES) * BLOCK_K;  // taps of the next tiles
__shared__ uint2 table[TABLE];

struct Pixels {
    static constexpr unsigned STEP = THREADS * B_VECTOR / BLOCK_N;  // positions between two loads of a thread
    Window window;
    unsigned slot_place, row, k;
    unsigned read = 0;  // place of the next tile in the table
    Transfer<B_VECTOR> transfer[B_LOADS];

    __device__ __forceinline__ Pixels(const Geometry& g, unsigned first, unsigned count, unsigned k_begin) {
        row = threadIdx.x / (BLOCK_N / B_VECTOR);
        const unsigned column = threadIdx.x % (BLOCK_N / B_VECTOR) * B_VECTOR;
        slot_place = A_TILE + row * BLOCK_N + place(column);
        k = k_begin;
        window.place(g, min(first + column, count - B_VECTOR));
#if !POINTWISE
        if (threadIdx.x < TABLE) note(g, threadIdx.x, k_begin + threadIdx.x);
        __syncthreads();
#endif
    }

    __device__ __forceinline__ static void note(const Geometry& g, unsigned entry, unsigned position) {
        const Tap tap = Tap::at(g, position);
        table[entry] = make_uint2(tap.offset, tap.down << 16 | tap.right);
    }

    // Works out the taps of the tile after the one last fetched.
    __device__ __forceinline__ void look_ahead(const Geometry& g) {
        if (threadIdx.x < BLOCK_K) note(g, read + threadIdx.x, k + threadIdx.x);
    }

    __device__ __forceinline__ float* target(float* slot, unsigned i) const {
        return slot + slot_place + i * STEP * BLOCK_N;
    }

    __device__ __forceinline__ void fetch(float* slot, const Geometry& g, const float* x, unsigned k_end) {
#pragma unroll
        for (unsigned i = 0; i < B_LOADS; ++i) {
            const unsigned my_row = row + i * STEP;
#if POINTWISE
            const Tap tap = Tap::at(g, k + my_row);
#else
            const uint2 noted = table[read + my_row];
            const Tap tap = {noted.y >> 16, noted.y & 0xffff, noted.x};
#endif
            transfer[i].start(target(slot, i), x + (window.offset + tap.offset),
                              tap.meets(g, window) && k + my_row < k_end);
        }
        k += BLOCK_K;
#if !POINTWISE
        read = read == TABLE - BLOCK_K ? 0 : read + BLOCK_K;
#endif
    }

#if !ASYNC_COPY
    __device__ __forceinline__ void settle(float* slot) const {
#pragma unroll
        for (unsigned i = 0; i < B_LOADS; ++i) transfer[i].finish(target(slot, i));
    }
#endif
};
#endif

// One thread's share of the loads: where the next tiles are, and what is on its way.
struct Loader {
    const Geometry& geometry;
    const float* x;
    unsigned k_end;
    Weights<NHWC ? A_TILE : 0, NHWC ? B_LOADS : A_LOADS> weights;
    Pixels pixels;

    // Prepares the loads of the tiles after those last fetched; a barrier must follow before they are.
    __device__ __forceinline__ void look_ahead() {
#if !LAYOUT_NHWC && !POINTWISE
        pixels.look_ahead(geometry);
#endif
    }

    // Starts the loads of the next tiles, towards `slot`.
    __device__ __forceinline__ void fetch(float* slot) {
        weights.fetch(slot, k_end);
        pixels.fetch(slot, geometry, x, k_end);
#if ASYNC_COPY
        asm volatile("cp.async.commit_group;" ::: "memory");
#endif
    }

#if !ASYNC_COPY
    // Writes the fetched tiles from registers to `slot`.
    __device__ __forceinline__ void settle(float* slot) const {
        weights.settle(slot);
        pixels.settle(slot);
    }
#endif
};

// accumulator += A tile * B tile, for this thread's rows from `my_row` and columns from `my_column` (nchw: its place).
__device__ __forceinline__ void multiply(const float* slot, unsigned my_row, unsigned my_column,
                                         float (&accumulator)[THREAD_M][THREAD_N]) {
#pragma unroll UNROLL
    for (unsigned k = 0; k < BLOCK_K; k += FRAGMENT_K) {
        float a[THREAD_M][FRAGMENT_K];
#pragma unroll
        for (unsigned i = 0; i < THREAD_M; ++i) read_fragment(a[i], slot, my_row, i * LANES_M, k);
#if LAYOUT_NHWC
        float b[THREAD_N][FRAGMENT_K];
#pragma unroll
        for (unsigned j = 0; j < THREAD_N; ++j) read_fragment(b[j], slot + A_TILE, my_column, j * LANES_N, k);
#endif
#pragma unroll
        for (unsigned kk = 0; kk < FRAGMENT_K; ++kk) {
            float b_row[THREAD_N];
#pragma unroll
            for (unsigned j = 0; j < THREAD_N; j += RUN) {
#if LAYOUT_NHWC
#pragma unroll
                for (unsigned run = 0; run < RUN; ++run) b_row[j + run] = b[j + run][kk];
#else
                *reinterpret_cast<float4*>(b_row + j) =
                    *reinterpret_cast<const float4*>(slot + A_TILE + (k + kk) * BLOCK_N + my_column + j * LANES_N);
#endif
            }
#pragma unroll
            for (unsigned i = 0; i < THREAD_M; ++i)
#pragma unroll
                for (unsigned j = 0; j < THREAD_N; ++j) accumulator[i][j] += a[i][kk] * b_row[j];
        }
    }
}

// Grid: x = tiles of the product, walked in bands of `raster` tile rows, down the rows of a band first, so that blocks
// in flight share tiles of A and B in L2; y = groups; z = shares of the reduction. y: the result, or partial results.
extern "C" __global__ void __launch_bounds__(THREADS) conv2d_implicit_gemm_simt(
    const float* __restrict__ x, const float* __restrict__ w, float* __restrict__ y,
    unsigned channels, unsigned height, unsigned width,            // of x
    unsigned filters, unsigned group_filters, unsigned pixels,     // output channels, those of a group; n * p * q
    unsigned depth, unsigned reduction,                            // input channels of a group; times taps
    unsigned stride, unsigned padding, unsigned dilation,
    unsigned image, unsigned image_multiplier, unsigned image_shift, unsigned image_is_one,  // p * q
    unsigned line, unsigned line_multiplier, unsigned line_shift, unsigned line_is_one,     // q
    unsigned inner, unsigned inner_multiplier, unsigned inner_shift, unsigned inner_is_one,  // nchw r * s, nhwc depth
    unsigned taps, unsigned taps_multiplier, unsigned taps_shift, unsigned taps_is_one,     // s
    unsigned tiles_m, unsigned tiles_n, unsigned raster,
    unsigned share, unsigned longer_shares) {  // tiles of the reduction; the first shares have one more
    extern __shared__ __align__(16) float shared[];

    const unsigned band_tiles = raster * tiles_n;
    const unsigned band = blockIdx.x / band_tiles;
    const unsigned in_band = blockIdx.x - band * band_tiles;
    const unsigned band_rows = min(raster, tiles_m - band * raster);
    const unsigned tile_n = in_band / band_rows;
    const unsigned tile_row = (band * raster + in_band - tile_n * band_rows) * BLOCK_M;
    const unsigned tile_column = tile_n * BLOCK_N;

    const unsigned trips = share + (blockIdx.z < longer_shares);
    const unsigned k_begin = (blockIdx.z * share + min(blockIdx.z, longer_shares)) * BLOCK_K;
    const unsigned k_end = min(reduction, k_begin + trips * BLOCK_K);

    const unsigned warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const unsigned lane_m = lane / (2 * LANES_N) * 2 + lane % 2, lane_n = lane / 2 % LANES_N;
    const unsigned my_row = warp / WARPS_N * WARP_M + lane_m, warp_column = warp % WARPS_N * WARP_N;
    const unsigned my_column = warp_column + lane_n * (NHWC ? 1 : RUN);

    const unsigned group = blockIdx.y;
    const Geometry geometry = {channels, height, width, depth, stride, padding, dilation, group,
                               {image, image_multiplier, image_shift, image_is_one},
                               {line, line_multiplier, line_shift, line_is_one},
                               {inner, inner_multiplier, inner_shift, inner_is_one},
                               {taps, taps_multiplier, taps_shift, taps_is_one}};
    const unsigned first_filter = NHWC ? tile_column : tile_row, first_pixel = NHWC ? tile_row : tile_column;
    Loader loader = {geometry, x, k_end,
                     {w + size_t(group) * group_filters * reduction, first_filter, group_filters, reduction, k_begin},
                     {geometry, first_pixel, pixels, k_begin}};
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
        loader.look_ahead();
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
        loader.look_ahead();
        multiply(shared + read, my_row, my_column, accumulator);
        read = SLOT - read;
        loader.settle(shared + read);
        __syncthreads();
    }
#else
#pragma unroll 1
    for (unsigned trip = 0; trip < trips; ++trip) {
        loader.fetch(shared);
        loader.look_ahead();
        __syncthreads();  // all have done with the tile before
        loader.settle(shared);
        __syncthreads();
        multiply(shared, my_row, my_column, accumulator);
    }
#endif

    y += size_t(blockIdx.z) * pixels * filters;
    const unsigned rows = NHWC ? pixels : group_filters, columns = NHWC ? group_filters : pixels;
    const unsigned first_row = tile_row + my_row;
    const unsigned first_column = tile_column + warp_column + lane_n * OUT_VECTOR;
#pragma unroll
    for (unsigned j = 0; j < THREAD_N; j += OUT_VECTOR) {
        const unsigned column = first_column + j * LANES_N;
        const unsigned in_batch = NHWC ? 0 : geometry.image.quotient(column);
        const unsigned first_plane = NHWC ? 0 : in_batch * filters + group * group_filters;
        const unsigned offset = NHWC ? group * group_filters + column : (first_plane - in_batch) * image + column;
#pragma unroll
        for (unsigned i = 0; i < THREAD_M; ++i) {
            const unsigned row = first_row + i * LANES_M;
            store_floats<OUT_VECTOR>(y + (offset + row * (NHWC ? filters : image)), &accumulator[i][j],
                              row < rows && column < columns);
        }
    }
}

// y[i] = sum over s of partial[s * elements + i], in the order of s.
// Grid: x = REDUCE_THREADS * OUT_VECTOR elements each.
extern "C" __global__ void __launch_bounds__(REDUCE_THREADS)
    conv2d_implicit_gemm_simt_reduce(const float* __restrict__ partial, float* __restrict__ y, unsigned elements,
                unsigned splits) {
    add_partials<OUT_VECTOR>(partial, y, elements, splits);
}
