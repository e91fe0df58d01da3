// y = conv2d(x, w), f16, bf16 or TF32 with f32 sums, NHWC, on tensor cores, as an implicit matrix product: no im2col
// buffer, the input is gathered while it is loaded. TF32 is f32 in memory, rounded as fragments are read.
//
// One group of the convolution is a product A B: rows = output pixels, columns = output channels, a reduction over
// filter taps and input channels, (r s c) as in memory. A = gathered x[pixel, (r s c)], B = w[filter, (r s c)].
//
// A block owns BLOCK_M pixels x BLOCK_N filters and walks the reduction in tiles of BLOCK_K that cp.async loads
// STAGES - 1 ahead; a warp owns WARP_M x WARP_N of it, in mma.sync tiles of 16 x 8 x 16 (TF32: 8). With FRAGMENTS 2 the
// fragments of the next step are read while those of this one are multiplied, across the barrier between two tiles too.
//
// VECTOR is what one copy moves: 8 channels, or 2, which must divide those of a group, in and out; 1 takes any number,
// each element found for itself and moved through registers. Of TF32, it is 4 channels or 1, never through registers.
// Before sm_80, which have neither cp.async nor mma.sync of that shape, all come through registers, and one step is two
// mma of 16 x 8 x 8. A thread copies the same position of
// the reduction for several pixels: where its tap lies is worked out once a trip, by multiplications with constants of
// the host.
//
// Edges cost what full tiles cost: taps on the padding and the rest of the reduction are filled with zeros by copies
// that read nothing, pixels past the last are those of the last, and stores are predicated. So every block executes
// prologue + trips * body instructions, for any trips >= 1.
//
// Split-K: blockIdx.y takes an equal share of the reduction (the shares differ by one tile at most) and writes a
// partial y in f32; conv2d_implicit_gemm_mma_reduce adds the partials in a fixed order.
//
// A tensor holds at most 2^31 elements: element offsets fit 32 unsigned bits (those of taps on the padding may wrap and
// are not used), byte offsets are formed in 64.

// cp.async moves 4 bytes or more. The host's pass of nvcc has no __CUDA_ARCH__.
#if (VECTOR == 1 && !DTYPE_TF32) || (defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800)
#define THROUGH_REGISTERS 1
#else
#define THROUGH_REGISTERS 0
#endif

#include "mma.cuh"
#include "conv2d.cuh"

#if DTYPE_TF32
#include "epilogue.cuh"
#include "word_tile.cuh"
#include "tf32.cuh"

#define Element float  // from here on; in mma.cuh, it has 16 bits
using ATile = WordTile<BLOCK_M, BLOCK_K, true>;
using BTile = WordTile<BLOCK_N, BLOCK_K, true>;
#else
using ATile = Tile<BLOCK_M, BLOCK_K, true>;
using BTile = Tile<BLOCK_N, BLOCK_K, true>;

constexpr unsigned MMA_K = STEP_K;
#endif

#include "mma_tiles.cuh"

#if !DTYPE_TF32
constexpr unsigned UNIT = VECTOR == 1 ? 2 : VECTOR;  // elements of a write to shared memory
#endif
// With one set of fragments registers are kept to 128, so that 16 warps fit an SM: less read ahead, more to switch to.
// Otherwise the assembler is told that one block will do: left to itself it may spill a few to fit more.
constexpr unsigned MIN_BLOCKS = FRAGMENTS == 1 && !THROUGH_REGISTERS ? 512 / THREADS : 1;

#if THROUGH_REGISTERS && VECTOR == 1
using Staged = Pair;
#elif THROUGH_REGISTERS
// Eight channels on their way through registers.
struct Staged {
    Packet<16> packet;

    __device__ __forceinline__ void finish(unsigned target) const {
        asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(target), "r"(packet.word[0]),
                     "r"(packet.word[1]), "r"(packet.word[2]), "r"(packet.word[3])
                     : "memory");
    }
};
#endif

// A thread's share in loading a tile: UNIT elements from `column` on of the rows `row` + i * ROW_STEP.
template <class T>
struct Share {
    static constexpr unsigned PER_ROW = BLOCK_K / UNIT;
    static constexpr unsigned ROW_STEP = THREADS / PER_ROW;
    static constexpr unsigned LOADS = T::ROWS / ROW_STEP;
    static_assert(THREADS % PER_ROW == 0 && LOADS * ROW_STEP == T::ROWS, "a thread loads one column, evenly");

    unsigned row = threadIdx.x / PER_ROW;
    unsigned column = threadIdx.x % PER_ROW * UNIT;
    unsigned place = T::place(row, column);

    // row < ROW_STEP, both powers of two: the exchange of row + i * ROW_STEP is that of row, XOR a constant
    __device__ __forceinline__ unsigned target(unsigned tile, unsigned i) const {
        return tile + (place ^ T::exchange(i * ROW_STEP)) + i * ROW_STEP * T::ROW_BYTES;
    }
};

// Loads of w.
struct Filters : Share<BTile> {
    const Element* source;
    unsigned pitch;               // elements from filter to filter
    int rows_left, columns_left;  // from this thread's first element to the edge
#if THROUGH_REGISTERS
    Staged staged[LOADS];
#endif

    // From filter `first` of `count` on, at `k_begin` of the reduction; past `k_end` are zeros.
    __device__ __forceinline__ Filters(const Element* w, unsigned first, unsigned count, unsigned reduction,
                                       unsigned k_begin, unsigned k_end)
        : pitch(reduction) {
        source = w + ((first + row) * pitch + k_begin + column);
        rows_left = int(count - first - row);
        columns_left = int(k_end - k_begin - column);
    }

    // Starts the loads of the next tile, towards `tile` in shared memory.
    __device__ __forceinline__ void fetch(unsigned tile) {
        const Element* filter = source;
#pragma unroll
        for (unsigned i = 0; i < LOADS; ++i) {
            const bool inside = int(i * ROW_STEP) < rows_left && columns_left > 0;
#if THROUGH_REGISTERS && VECTOR == 1
            staged[i].start(filter, inside, inside && columns_left > 1);
#elif THROUGH_REGISTERS
            staged[i].packet = load_packet<16>(filter, inside);
#else
            copy_async<VECTOR>(target(tile, i), filter, inside);
#endif
            // in one instruction: as C++, the 64-bit product would be kept in two registers throughout the loop
            asm("mad.wide.u32 %0, %1, %2, %0;" : "+l"(filter) : "r"(pitch), "n"(ROW_STEP * sizeof(Element)));
        }
        source += BLOCK_K;
        columns_left -= BLOCK_K;
    }

#if THROUGH_REGISTERS
    // Writes the fetched tile from registers to `tile`.
    __device__ __forceinline__ void settle(unsigned tile) const {
#pragma unroll
        for (unsigned i = 0; i < LOADS; ++i) staged[i].finish(target(tile, i));
    }
#endif
};

// One group of the convolution.
struct Group : Geometry {
    unsigned first_channel;
    Divisor image;  // output pixels of an image
    Divisor line;   // output pixels of a line
    Divisor depth;  // input channels of the group
    Divisor taps;   // taps of a filter's line
};

// An output pixel's window in x: coordinates of its first tap and that element's offset; all wrap on the padding.
struct Window {
    unsigned top, left, offset;

    __device__ __forceinline__ void place(const Group& g, unsigned pixel) {
        const unsigned image = g.image.quotient(pixel);
        const unsigned in_image = pixel - image * g.image.value;
        const unsigned line = g.line.quotient(in_image);
        top = line * g.stride - g.padding;
        left = (in_image - line * g.line.value) * g.stride - g.padding;
        offset = ((image * g.height + top) * g.width + left) * g.channels + g.first_channel;
    }
};

// Position k of the reduction, relative to a window's first tap.
struct Tap {
    unsigned down, right, offset;

    __device__ __forceinline__ Tap(const Group& g, unsigned k) {
        const unsigned tap = g.depth.quotient(k);
        const unsigned line = g.taps.quotient(tap);
        down = line * g.dilation;
        right = (tap - line * g.taps.value) * g.dilation;
        offset = (down * g.width + right) * g.channels + k - tap * g.depth.value;
    }

    // Whether it meets x rather than the padding.
    __device__ __forceinline__ bool meets(const Group& g, const Window& window) const {
        return window.top + down < g.height && window.left + right < g.width;
    }
};

// Loads of x, gathered.
struct Pixels : Share<ATile> {
    Window window[LOADS];
    unsigned k;
#if THROUGH_REGISTERS
    Staged staged[LOADS];
#endif

    __device__ __forceinline__ Pixels(const Group& g, unsigned first, unsigned count, unsigned k_begin)
        : k(k_begin + column) {
#pragma unroll
        for (unsigned i = 0; i < LOADS; ++i) window[i].place(g, min(first + row + i * ROW_STEP, count - 1));
    }

    // Starts the loads of the next tile, towards `tile` in shared memory.
    __device__ __forceinline__ void fetch(unsigned tile, const Group& g, const Element* x, unsigned k_end) {
#if THROUGH_REGISTERS && VECTOR == 1
#pragma unroll
        for (unsigned half = 0; half < 2; ++half) {
            const Tap tap(g, k + half);
#pragma unroll
            for (unsigned i = 0; i < LOADS; ++i)
                load(staged[i].value[half], x + (window[i].offset + tap.offset),
                     tap.meets(g, window[i]) && k + half < k_end);
        }
#else
        const Tap tap(g, k);
#pragma unroll
        for (unsigned i = 0; i < LOADS; ++i) {
            const Element* source = x + (window[i].offset + tap.offset);
            const bool inside = tap.meets(g, window[i]) && k < k_end;
#if THROUGH_REGISTERS
            staged[i].packet = load_packet<16>(source, inside);
#else
            copy_async<VECTOR>(target(tile, i), source, inside);
#endif
        }
#endif
        k += BLOCK_K;
    }

#if THROUGH_REGISTERS && VECTOR == 1
    // Loads one element; zero where `inside` is false.
    __device__ __forceinline__ static void load(Element& value, const Element* source, bool inside) {
        asm volatile("{ .reg .pred p; setp.ne.u32 p, %2, 0; mov.b16 %0, 0; @p ld.global.nc.b16 %0, [%1]; }"
                     : "=&h"(value)
                     : "l"(source), "r"(unsigned(inside)));
    }
#endif

#if THROUGH_REGISTERS
    // Writes the fetched tile from registers to `tile`.
    __device__ __forceinline__ void settle(unsigned tile) const {
#pragma unroll
        for (unsigned i = 0; i < LOADS; ++i) staged[i].finish(target(tile, i));
    }
#endif
};

// Where a lane's sums go: pixels from `row` on, `pitch` elements from pixel to pixel, and filters of one group.
template <class Number>
struct Output {
    Number* first;  // the group's first filter at the first pixel
    unsigned row, rows, columns, pitch;

    __device__ __forceinline__ Number* at(unsigned column, unsigned next = 0) const {
        return first + row * pitch + column + next;
    }

    __device__ __forceinline__ bool holds(unsigned column) const { return row < rows && column < columns; }
};

// Grid: x = tiles of the product, walked in bands of `raster` tile rows, down the rows of a band first, so that blocks
// in flight share tiles of A and B in L2; y = shares of the reduction; z = groups. partial: null without split-K.
extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS) conv2d_implicit_gemm_mma(
    const Element* __restrict__ x, const Element* __restrict__ w, Element* __restrict__ y,
    float* __restrict__ partial,
    unsigned channels, unsigned height, unsigned width,          // of x
    unsigned filters, unsigned group_filters, unsigned pixels,   // output channels, those of a group; n * p * q
    unsigned reduction,                                          // taps times input channels of a group
    unsigned stride, unsigned padding, unsigned dilation,
    unsigned image, unsigned image_multiplier, unsigned image_shift, unsigned image_is_one,  // p * q
    unsigned line, unsigned line_multiplier, unsigned line_shift, unsigned line_is_one,      // q
    unsigned depth, unsigned depth_multiplier, unsigned depth_shift, unsigned depth_is_one,  // channels of a group
    unsigned taps, unsigned taps_multiplier, unsigned taps_shift, unsigned taps_is_one,      // s
    unsigned tiles_m, unsigned tiles_n, unsigned raster,
    unsigned share, unsigned longer_shares) {  // tiles of the reduction; the first shares have one more
    extern __shared__ __align__(128) unsigned char shared[];
    const unsigned slots = static_cast<unsigned>(__cvta_generic_to_shared(shared));

    const unsigned band_tiles = raster * tiles_n;
    const unsigned band = blockIdx.x / band_tiles;
    const unsigned in_band = blockIdx.x - band * band_tiles;
    const unsigned band_rows = min(raster, tiles_m - band * raster);
    const unsigned tile_n = in_band / band_rows;
    const unsigned first_pixel = (band * raster + in_band - tile_n * band_rows) * BLOCK_M;
    const unsigned first_filter = tile_n * BLOCK_N;

    const unsigned trips = share + (blockIdx.y < longer_shares);
    const unsigned k_begin = (blockIdx.y * share + min(blockIdx.y, longer_shares)) * BLOCK_K;
    const unsigned k_end = min(reduction, k_begin + trips * BLOCK_K);

    const Group group = {{channels, height, width, stride, padding, dilation}, blockIdx.z * depth,
                         {image, image_multiplier, image_shift, image_is_one},
                         {line, line_multiplier, line_shift, line_is_one},
                         {depth, depth_multiplier, depth_shift, depth_is_one},
                         {taps, taps_multiplier, taps_shift, taps_is_one}};
    Pixels pixel_loader(group, first_pixel, pixels, k_begin);
    Filters filter_loader(w + size_t(blockIdx.z) * group_filters * reduction, first_filter, group_filters, reduction,
                          k_begin, k_end);
    const auto fetch = [&](unsigned slot) {
        pixel_loader.fetch(slot, group, x, k_end);
        filter_loader.fetch(slot + ATile::BYTES);
#if !THROUGH_REGISTERS
        commit_copies();
#endif
    };

    const unsigned warp = threadIdx.x / 32;
    const unsigned warp_row = warp / WARPS_N * WARP_M, warp_column = warp % WARPS_N * WARP_N;
    const unsigned a_place = ATile::fragment_place(warp_row), b_place = BTile::fragment_place(warp_column);
    Sums sums = {};

    const auto settle = [&](unsigned slot) {
#if THROUGH_REGISTERS
        pixel_loader.settle(slot);
        filter_loader.settle(slot + ATile::BYTES);
#endif
    };
    multiply_tiles(sums, slots, trips, a_place, b_place, fetch, settle);

    const unsigned row = first_pixel + warp_row + threadIdx.x % 32 / 4, column = first_filter + warp_column;
    const unsigned group_begin = blockIdx.z * group_filters;
    if (partial) {
        partial += size_t(blockIdx.y) * pixels * filters + group_begin;
        store_sums(sums, Output<float>{partial, row, pixels, group_filters, filters}, column + threadIdx.x % 4 * 2);
    } else {
#if DTYPE_TF32
        const Output<float> output{y + group_begin, row, pixels, group_filters, filters};
        store_sums(sums, output, column + threadIdx.x % 4 * 2);
#else
        store_rounded(sums, Output<Element>{y + group_begin, row, pixels, group_filters, filters}, column);
#endif
    }
}

// y[i] = sum over s of partial[s * elements + i], in the order of s.
// Grid: x = REDUCE_THREADS * min(VECTOR, 4) elements each.
extern "C" __global__ void __launch_bounds__(REDUCE_THREADS)
    conv2d_implicit_gemm_mma_reduce(const float* __restrict__ partial, Element* __restrict__ y, unsigned elements,
                                    unsigned splits) {
#if DTYPE_TF32
    const unsigned first = (blockIdx.x * REDUCE_THREADS + threadIdx.x) * VECTOR;
    const float* no_bias = nullptr;
    const Floats<VECTOR> sum = added_up<VECTOR>(partial, no_bias, NONE, first, elements, elements, splits);
    if (first < elements) *reinterpret_cast<Floats<VECTOR>*>(y + first) = sum;
#else
    add_partials<VECTOR == 8 ? 4 : VECTOR>(partial, y, elements, splits);
#endif
}
