// y = conv2d(x, w), tap by tap, for few channels a group: any filter, stride, dilation and groups, nchw and nhwc; f32,
// f16 or bf16 in memory, f32 sums.
//
// With few channels a reduction is too short, and a group too narrow, for tiles of a matrix product. A thread owns
// FILTERS output channels of one group at PIXELS output pixels and walks the reduction, (c r s) in nchw and (r s c) in
// nhwc as in memory, a position at a time: one input for each pixel, straight from global memory (neighbours find it in
// L1), times FILTERS weights.
//
//   nchw  lanes along output pixels, so that x and y are read and written in runs; threads of a warp share filters.
//   nhwc  PACKS lanes along output channels, FILTERS each, so that y is written in runs and groups lie side by side.
//
// What the threads share, the block works out for CHUNK positions at a time, a chunk ahead, in shared memory: the
// weights of its filters, as floats [position][filter], and where the taps lie.
//
// Edges cost what full tiles cost: taps on the padding and past the reduction are zeros from predicated loads, pixels
// past the last are those of the last, and stores are predicated. So every block executes prologue + trips * body
// instructions, for any trips >= 1.
//
// A tensor holds at most 2^31 elements: element offsets fit 32 unsigned bits (those of taps on the padding may wrap and
// are not used), byte offsets are formed in 64. Divisions by dimensions are multiplications by constants of the host.

#include "direct.cuh"
#include "conv2d.cuh"

#if LAYOUT_NHWC
constexpr bool NHWC = true;
constexpr unsigned VECTOR = FILTERS * sizeof(Element) > 16 ? 16 / sizeof(Element) : FILTERS;  // elements of a store
#else
constexpr bool NHWC = false;
constexpr unsigned VECTOR = 1;
#endif
constexpr unsigned THREADS = 128;
constexpr unsigned CHUNK = 9;                         // positions prepared at once: a filter of 3x3 is whole chunks
constexpr unsigned WIDTH = PACKS * FILTERS;           // filters of a block
constexpr unsigned PIXEL_THREADS = THREADS / PACKS;   // threads of a pack
constexpr unsigned PITCH = WIDTH + 4;                 // positions of a filter lie in different banks
constexpr unsigned WEIGHTS = WIDTH * CHUNK;
constexpr unsigned LOADS = (WEIGHTS + THREADS - 1) / THREADS;

static_assert(THREADS % PACKS == 0 && CHUNK <= THREADS, "whole packs, a thread for each position of a chunk");

using Weights = Rows<WIDTH, FILTERS>;

// The convolution, and how its reduction is counted through.
struct Problem : Geometry {
    unsigned reduction;
    Divisor image;  // output pixels of an image
    Divisor line;   // output pixels of a line
    Divisor inner;  // the faster part of the reduction: nchw taps of a filter, nhwc input channels of a group
    Divisor taps;   // taps of a filter's line
};

// Where a position of the reduction lies, from a window's first tap on; far below any input past the reduction.
__device__ __forceinline__ uint2 tap_at(const Problem& p, unsigned k) {
    const unsigned outer = p.inner.quotient(k), inner = k - outer * p.inner.value;
    const unsigned channel = NHWC ? inner : outer, tap = NHWC ? outer : inner;
    const unsigned line = p.taps.quotient(tap);
    const unsigned down = line * p.dilation, right = (tap - line * p.taps.value) * p.dilation;
    const unsigned offset = NHWC ? (down * p.width + right) * p.channels + channel
                                 : (channel * p.height + down) * p.width + right;
    return k < p.reduction ? make_uint2(offset, down << 16 | right) : make_uint2(0, 0xffff0000);
}

// An output pixel's window in x: coordinates of its first tap and that element's offset; all wrap on the padding.
struct Window {
    unsigned top, left, offset;

    __device__ __forceinline__ void place(const Problem& p, unsigned pixel, unsigned first_channel) {
        const unsigned image = p.image.quotient(pixel), in_image = pixel - image * p.image.value;
        const unsigned line = p.line.quotient(in_image);
        top = line * p.stride - p.padding;
        left = (in_image - line * p.line.value) * p.stride - p.padding;
        offset = NHWC ? ((image * p.height + top) * p.width + left) * p.channels + first_channel
                      : ((image * p.channels + first_channel) * p.height + top) * p.width + left;
    }
};

// What a block shares of a chunk.
struct Chunk {
    uint2 taps[CHUNK];
    alignas(16) float weights[CHUNK * PITCH];
};

// A thread's part in bringing chunks to shared memory.
struct Stage {
    const Problem& problem;
    const Element* w;  // the block's first filter
    unsigned filters_left;
    unsigned k = 0;    // first position of the next chunk
    Elements<1> packets[LOADS] = {};

    // Starts the loads of the next chunk's weights.
    __device__ __forceinline__ void fetch() {
#pragma unroll
        for (unsigned i = 0; i < LOADS; ++i) {
            const unsigned e = threadIdx.x + i * THREADS, filter = e / CHUNK, position = k + e % CHUNK;
            const bool there = filter < filters_left && e < WEIGHTS;
            packets[i] = load<1>(w + (filter * problem.reduction + position), position, there ? problem.reduction : 0);
        }
    }

    // Writes them and the taps to `chunk`.
    __device__ __forceinline__ void settle(Chunk& chunk) {
#pragma unroll
        for (unsigned i = 0; i < LOADS; ++i) {
            const unsigned e = threadIdx.x + i * THREADS;
            if (e < WEIGHTS) chunk.weights[e % CHUNK * PITCH + Weights::place(e / CHUNK)] = value(packets[i], 0);
        }
        const uint2 tap = tap_at(problem, k + threadIdx.x);
        if (threadIdx.x < CHUNK) chunk.taps[threadIdx.x] = tap;
        k += CHUNK;
    }
};

// Grid: x = blocks of output pixels; y = blocks of WIDTH filters.
extern "C" __global__ void __launch_bounds__(THREADS) conv2d_direct(
    const Element* __restrict__ x, const Element* __restrict__ w, Element* __restrict__ y,
    unsigned channels, unsigned height, unsigned width,  // of x
    unsigned filters, unsigned pixels,                   // output channels; n * p * q
    unsigned depth, unsigned reduction,                  // input channels of a group; times taps
    unsigned stride, unsigned padding, unsigned dilation,
    unsigned image, unsigned image_multiplier, unsigned image_shift, unsigned image_is_one,  // p * q
    unsigned line, unsigned line_multiplier, unsigned line_shift, unsigned line_is_one,      // q
    unsigned inner, unsigned inner_multiplier, unsigned inner_shift, unsigned inner_is_one,  // nchw r * s, nhwc depth
    unsigned taps, unsigned taps_multiplier, unsigned taps_shift, unsigned taps_is_one,      // s
    unsigned group_filters, unsigned group_multiplier, unsigned group_shift, unsigned group_is_one,
    unsigned trips) {
    __shared__ Chunk chunks[2];
    const Problem problem = {{channels, height, width, stride, padding, dilation}, reduction,
                             {image, image_multiplier, image_shift, image_is_one},
                             {line, line_multiplier, line_shift, line_is_one},
                             {inner, inner_multiplier, inner_shift, inner_is_one},
                             {taps, taps_multiplier, taps_shift, taps_is_one}};
    const unsigned pack = NHWC ? threadIdx.x % PACKS : threadIdx.x / PIXEL_THREADS;
    const unsigned member = NHWC ? threadIdx.x / PACKS : threadIdx.x % PIXEL_THREADS;
    const unsigned first_filter = blockIdx.y * WIDTH, filter = first_filter + pack * FILTERS;
    const unsigned first_pixel = blockIdx.x * (PIXEL_THREADS * PIXELS) + member;
    const Divisor per_group = {group_filters, group_multiplier, group_shift, group_is_one};
    const unsigned group = per_group.quotient(min(filter, filters - 1));

    Window window[PIXELS];
#pragma unroll
    for (unsigned j = 0; j < PIXELS; ++j)
        window[j].place(problem, min(first_pixel + j * PIXEL_THREADS, pixels - 1), group * depth);
    Stage stage = {problem, w + first_filter * reduction, filters - first_filter};
    float sums[PIXELS][FILTERS] = {};

    stage.fetch();
    stage.settle(chunks[0]);
    __syncthreads();
#pragma unroll 1
    for (unsigned trip = 0; trip < trips; ++trip) {
        stage.fetch();
        const Chunk& chunk = chunks[trip % 2];
#pragma unroll
        for (unsigned k = 0; k < CHUNK; ++k) {
            const uint2 tap = chunk.taps[k];
            float weight[FILTERS], number[PIXELS];
            Weights::read(weight, chunk.weights + k * PITCH, pack);
#pragma unroll
            for (unsigned j = 0; j < PIXELS; ++j) {
                const unsigned end = window[j].left + (tap.y & 0xffff) < width ? height : 0;
                number[j] = value(load<1>(x + (window[j].offset + tap.x), window[j].top + (tap.y >> 16), end), 0);
            }
#pragma unroll
            for (unsigned j = 0; j < PIXELS; ++j)
#pragma unroll
                for (unsigned f = 0; f < FILTERS; ++f) sums[j][f] += number[j] * weight[f];
        }
        stage.settle(chunks[(trip + 1) % 2]);
        __syncthreads();
    }

#pragma unroll
    for (unsigned j = 0; j < PIXELS; ++j) {
        const unsigned pixel = first_pixel + j * PIXEL_THREADS;
        const unsigned end = pixel < pixels ? filters : 0;
        const unsigned in_batch = problem.image.quotient(pixel);
        Element* target = y + (NHWC ? pixel * filters + filter
                                    : (in_batch * filters + filter - in_batch) * image + pixel);
#pragma unroll
        for (unsigned f = 0; f < FILTERS; f += VECTOR)
            store<VECTOR>(NHWC ? target + f : target + f * image, &sums[j][f], filter + f, end);
    }
}
