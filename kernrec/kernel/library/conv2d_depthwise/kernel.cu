// y = conv2d(x, w) with one input and one output channel a group: every channel has a filter of its own. f32, f16 or
// bf16 in memory, f32 sums.
//
// There is nothing to share between channels, so what counts is to read each input once. A block owns TILE_P x TILE_Q
// outputs of some channels of one image; a thread OUT_P x OUT_Q of them and, in nhwc, VECTOR channels, which it moves
// in one load; filter size and stride (STEP) are fixed at compile time, so that a line of inputs is read once, into
// registers, for every output that it meets.
//
//   nhwc  lanes along channels; inputs come straight from global memory (halos from L1), or with STAGED through a tile
//         in shared memory that holds the block's inputs as they are.
//   nchw  lanes along a line; always staged, as floats, in lines that are read four at a time. VECTOR inputs are loaded
//         and VECTOR outputs stored together; for that the padding is what keeps the size (half the filter).
//
// The filters lie in shared memory as floats, [tap][channel]. Edges cost what full tiles cost: what lies on the padding
// or past an edge is zeros from predicated loads, and not stored. So every block executes the same instructions.
//
// A tensor holds at most 2^31 elements: element offsets fit 32 unsigned bits (those on the padding may wrap and are not
// used), byte offsets are formed in 64.

#include "direct.cuh"
#include "conv2d.cuh"

#if LAYOUT_NHWC
constexpr unsigned DEEP = VECTOR, ALONG_Q = 1;  // channels of a thread, and outputs of a line it stores together
#else
constexpr unsigned DEEP = 1, ALONG_Q = VECTOR;
#endif
constexpr unsigned CHANNELS = LANES * DEEP;  // of a block
constexpr unsigned THREADS_P = TILE_P / OUT_P, THREADS_Q = TILE_Q / OUT_Q;
constexpr unsigned THREADS = LANES * THREADS_P * THREADS_Q;
constexpr unsigned TAPS = FILTER * FILTER;
constexpr unsigned WEIGHTS = TAPS * CHANNELS;
constexpr unsigned FILTER_PITCH = CHANNELS + 4;  // floats; taps of a channel lie in different banks
// The inputs follow the filters.
[[maybe_unused]] constexpr unsigned FILTER_FLOATS = TAPS * FILTER_PITCH + (4 - TAPS * FILTER_PITCH % 4) % 4;

// Inputs that `outputs` neighbouring outputs meet.
__device__ constexpr unsigned met(unsigned outputs) { return (outputs - 1) * STEP + FILTER; }

[[maybe_unused]] constexpr unsigned LINES = met(TILE_P), COLUMNS = met(TILE_Q);  // of the inputs of a block

static_assert(TILE_P % OUT_P == 0 && TILE_Q % OUT_Q == 0 && THREADS % 32 == 0, "threads tile the block");

// Rounds in which `threads` of them do `count` things.
__device__ constexpr unsigned rounds(unsigned count, unsigned threads) { return (count + threads - 1) / threads; }

using Filters = Rows<CHANNELS, DEEP>;

// Brings the filters of the block's channels, of which `channels_left` exist, to shared memory.
__device__ __forceinline__ void stage_filters(float* filters, const Element* w, unsigned channels_left) {
    const unsigned end = min(WEIGHTS, channels_left * TAPS);
#pragma unroll
    for (unsigned i = 0; i < rounds(WEIGHTS, THREADS); ++i) {
        const unsigned e = threadIdx.x + i * THREADS;
        const Elements<1> weight = load<1>(w + e, e, end);
        if (e < WEIGHTS) filters[e % TAPS * FILTER_PITCH + Filters::place(e / TAPS)] = value(weight, 0);
    }
}

// The inputs of a block, or of one of its channels: `source` is the first, at line `top` and column `left`; all of them
// wrap on the padding. A line of x is `pitch` elements, and past `end` of them there is nothing for this thread.
struct Corner {
    const Element* x;
    unsigned source, top, left, width, pitch, end;

    // Where inputs count as there for `load`: lines below this.
    __device__ __forceinline__ unsigned end_at(unsigned across) const { return left + across < width ? end : 0; }
};

// A thread's outputs meet met(OUT_P) lines of met(OUT_Q) inputs, from `line` and `column` of the block's tile on.
#if LAYOUT_NHWC
struct Inputs {
    const Corner& corner;  // from the thread's channels on
    unsigned channels, line, column, lane;
#if STAGED
    Elements<VECTOR>* tile;  // [LINES][COLUMNS][LANES]

    // Brings the block's inputs to shared memory.
    __device__ __forceinline__ void stage() const {
        constexpr unsigned SPOTS = LINES * COLUMNS, AT_ONCE = THREADS / LANES;
#pragma unroll
        for (unsigned i = 0; i < rounds(SPOTS, AT_ONCE); ++i) {
            const unsigned spot = threadIdx.x / LANES + i * AT_ONCE, row = spot / COLUMNS, across = spot % COLUMNS;
            const Elements<VECTOR> packet = fetch(row, across);
            if (spot < SPOTS) tile[spot * LANES + lane] = packet;
        }
    }
#endif

    __device__ __forceinline__ Elements<VECTOR> fetch(unsigned row, unsigned across) const {
        const unsigned offset = corner.source + across * channels + row * corner.pitch;
        return load<VECTOR>(corner.x + offset, corner.top + row, corner.end_at(across));
    }

    __device__ __forceinline__ void read(float (&number)[met(OUT_Q)][DEEP], unsigned i) const {
#pragma unroll
        for (unsigned j = 0; j < met(OUT_Q); ++j) {
#if STAGED
            const Elements<VECTOR> packet = tile[((line + i) * COLUMNS + column + j) * LANES + lane];
#else
            const Elements<VECTOR> packet = fetch(line + i, column + j);
#endif
#pragma unroll
            for (unsigned c = 0; c < DEEP; ++c) number[j][c] = value(packet, c);
        }
    }
};
#else
// A line of the tile holds, at the end of its first quad, the padding or halo on the left; then what lies under the
// block's outputs; then the halo on the right.
struct Inputs {
    static constexpr unsigned LEFT = FILTER / 2, MIDDLE = TILE_Q * STEP, HALO = FILTER - STEP;
    static constexpr unsigned FRONT = 4 - LEFT;  // floats of the first quad that no output meets
    static constexpr unsigned QUADS = (FRONT + met(OUT_Q) + 3) / 4;  // that hold a line of the thread
    // The threads of two lines of a warp read different banks.
    static constexpr unsigned PITCH = MIDDLE + 8 + (OUT_P * STEP * (MIDDLE + 8) % 32 == 0 ? 4 : 0);
    static constexpr unsigned MEMBERS = THREADS / LANES;  // threads of a channel
    static_assert(OUT_Q * STEP == 4 && LEFT < 4 && HALO - LEFT <= 4, "a thread's inputs begin with a quad");
    const Corner& corner;  // of the thread's channel
    unsigned line, column;
    float* tile;           // [LINES][PITCH] of the thread's channel

    // Brings the channel's inputs to shared memory.
    __device__ __forceinline__ void stage() const {
        constexpr unsigned PER_LINE = MIDDLE / VECTOR, COUNT = LINES * PER_LINE, HALOS = LINES * HALO;
        const unsigned member = threadIdx.x % MEMBERS;
#pragma unroll
        for (unsigned i = 0; i < rounds(COUNT, MEMBERS); ++i) {
            const unsigned e = member + i * MEMBERS;
            stage<VECTOR>(e / PER_LINE, LEFT + e % PER_LINE * VECTOR, e < COUNT);
        }
#pragma unroll
        for (unsigned i = 0; i < rounds(HALOS, MEMBERS); ++i) {
            const unsigned e = member + i * MEMBERS, which = e % HALO;
            stage<1>(e / HALO, which < LEFT ? which : MIDDLE + which, e < HALOS);
        }
    }

    // Brings N inputs from `across` on of a line.
    template <unsigned N>
    __device__ __forceinline__ void stage(unsigned row, unsigned across, bool wanted) const {
        const Elements<N> packet = load<N>(corner.x + (corner.source + across + row * corner.pitch), corner.top + row,
                                         corner.end_at(across));
        float* target = tile + row * PITCH + FRONT + across;
        if (!wanted) return;
        if constexpr (N == 4)
            *reinterpret_cast<float4*>(target) =
                make_float4(value(packet, 0), value(packet, 1), value(packet, 2), value(packet, 3));
        else if constexpr (N == 2)
            *reinterpret_cast<float2*>(target) = make_float2(value(packet, 0), value(packet, 1));
        else
            *target = value(packet, 0);
    }

    __device__ __forceinline__ void read(float (&number)[met(OUT_Q)][DEEP], unsigned i) const {
        const float* source = tile + (line + i) * PITCH + column;
#pragma unroll
        for (unsigned quad = 0; quad < QUADS; ++quad) {
            const float4 four = reinterpret_cast<const float4*>(source)[quad];
            const float values[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
            for (unsigned j = 0; j < 4; ++j)
                if (quad * 4 + j >= FRONT && quad * 4 + j - FRONT < met(OUT_Q))
                    number[quad * 4 + j - FRONT][0] = values[j];
        }
    }
};
#endif

// Grid: x = tiles of outputs, along q first; y = blocks of channels; z = images.
extern "C" __global__ void __launch_bounds__(THREADS)
    conv2d_depthwise(const Element* __restrict__ x, const Element* __restrict__ w, Element* __restrict__ y,
                     unsigned channels, unsigned height, unsigned width, unsigned outputs_p, unsigned outputs_q,
                     unsigned padding, unsigned tiles_q, unsigned tiles_q_multiplier, unsigned tiles_q_shift,
                     unsigned tiles_q_is_one) {
    extern __shared__ __align__(16) float shared[];
    const Divisor tiles = {tiles_q, tiles_q_multiplier, tiles_q_shift, tiles_q_is_one};
    const unsigned tile_p = tiles.quotient(blockIdx.x), tile_q = blockIdx.x - tile_p * tiles_q;
    const unsigned image = blockIdx.z, first_channel = blockIdx.y * CHANNELS;
    const unsigned first_p = tile_p * TILE_P, first_q = tile_q * TILE_Q;
    const unsigned top = first_p * STEP - padding, left = first_q * STEP - padding;
#if LAYOUT_NHWC
    const unsigned lane = threadIdx.x % LANES, spot = threadIdx.x / LANES;
#else
    const unsigned lane = threadIdx.x / (THREADS_P * THREADS_Q), spot = threadIdx.x % (THREADS_P * THREADS_Q);
#endif
    const unsigned p = spot / THREADS_Q * OUT_P, q = spot % THREADS_Q * OUT_Q;  // the thread's first, in the tile
    const unsigned channel = first_channel + lane * DEEP;
    const unsigned end = channel < channels ? height : 0;

    stage_filters(shared, w + first_channel * TAPS, channels - first_channel);
#if LAYOUT_NHWC
    const Corner corner = {x, ((image * height + top) * width + left) * channels + channel, top, left, width,
                           width * channels, end};
#if STAGED
    const Inputs inputs = {corner, channels, p * STEP, q * STEP, lane,
                           reinterpret_cast<Elements<VECTOR>*>(shared + FILTER_FLOATS)};
    inputs.stage();
#else
    const Inputs inputs = {corner, channels, p * STEP, q * STEP, lane};
#endif
#else
    const Corner corner = {x, ((image * channels + channel) * height + top) * width + left, top, left, width, width,
                           end};
    const Inputs inputs = {corner, p * STEP, q * STEP, shared + FILTER_FLOATS + lane * LINES * Inputs::PITCH};
    inputs.stage();
#endif
    __syncthreads();

    float sums[OUT_P][OUT_Q][DEEP] = {};
#pragma unroll
    for (unsigned i = 0; i < met(OUT_P); ++i) {
        float number[met(OUT_Q)][DEEP];
        inputs.read(number, i);
#pragma unroll
        for (unsigned out_p = 0; out_p < OUT_P; ++out_p) {
            const unsigned r = i - out_p * STEP;  // wraps above
            if (r >= FILTER) continue;
#pragma unroll
            for (unsigned s = 0; s < FILTER; ++s) {
                float weight[DEEP];
                Filters::read(weight, shared + (r * FILTER + s) * FILTER_PITCH, lane);
#pragma unroll
                for (unsigned out_q = 0; out_q < OUT_Q; ++out_q)
#pragma unroll
                    for (unsigned c = 0; c < DEEP; ++c)
                        sums[out_p][out_q][c] += number[out_q * STEP + s][c] * weight[c];
            }
        }
    }

    const unsigned lines = channel < channels ? outputs_p : 0;  // that this thread may store to
#pragma unroll
    for (unsigned i = 0; i < OUT_P; ++i) {
        const unsigned line = first_p + p + i;
#pragma unroll
        for (unsigned j = 0; j < OUT_Q; j += ALONG_Q) {
            const unsigned column = first_q + q + j;
#if LAYOUT_NHWC
            const unsigned offset = ((image * outputs_p + line) * outputs_q + column) * channels + channel;
            const float* number = sums[i][j];
#else
            const unsigned offset = ((image * channels + channel) * outputs_p + line) * outputs_q + column;
            float number[VECTOR];
#pragma unroll
            for (unsigned v = 0; v < VECTOR; ++v) number[v] = sums[i][j + v][0];
#endif
            store<VECTOR>(y + offset, number, line, column < outputs_q ? lines : 0);
        }
    }
}
