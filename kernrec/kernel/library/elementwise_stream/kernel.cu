// y = relu(a x + b) over n elements, a one number in memory; f32 arithmetic, rounded once.
//
// A tile is what a block does in one go: PACKETS packets of VECTOR elements for each of THREADS threads, all of whose
// loads are in flight before the first is used. Packets of a thread lie THREADS apart, so that every request of a warp
// is contiguous. One entry does a tile a block and has no loop; the other strides through the tiles by the grid.
//
// Packets past the end are predicated, so a partial tile costs what a full one does. A NaN becomes 0, as fmaxf has it.
//
// A tensor holds at most 2^31 elements: element offsets fit 32 unsigned bits.

#include "packet.cuh"

#if DTYPE_F32
using Element = float;
#else
using Element = unsigned short;  // the bits of one f16 or bf16
#endif

constexpr unsigned BYTES = VECTOR * sizeof(Element);  // of a packet
constexpr unsigned TILE = THREADS * PACKETS * VECTOR;

#if !DTYPE_F32
// The two elements in a word.
__device__ __forceinline__ float2 unpack(unsigned word) {
#if DTYPE_BF16
    return {__uint_as_float(word << 16), __uint_as_float(word & 0xffff0000u)};
#else
    float2 pair;
    asm("{ .reg .b16 low, high; mov.b32 {low, high}, %2; cvt.f32.f16 %0, low; cvt.f32.f16 %1, high; }"
        : "=f"(pair.x), "=f"(pair.y)
        : "r"(word));
    return pair;
#endif
}

// Two elements in a word, each rounded to nearest even.
__device__ __forceinline__ unsigned pack(float first, float second) {
    unsigned word;
#if DTYPE_BF16 && __CUDA_ARCH__ >= 800
    asm("cvt.rn.bf16x2.f32 %0, %2, %1;" : "=r"(word) : "f"(first), "f"(second));
#elif DTYPE_BF16
    const unsigned low = __float_as_uint(first), high = __float_as_uint(second);
    const unsigned low_rounded = low + 0x7fff + (low >> 16 & 1), high_rounded = high + 0x7fff + (high >> 16 & 1);
    word = __byte_perm(first == first ? low_rounded : 0x7fff0000, second == second ? high_rounded : 0x7fff0000, 0x7632);
#else
    asm("{ .reg .b16 low, high; cvt.rn.f16.f32 low, %1; cvt.rn.f16.f32 high, %2; mov.b32 %0, {low, high}; }"
        : "=r"(word)
        : "f"(first), "f"(second));
#endif
    return word;
}
#endif

__device__ __forceinline__ float apply(float a, float x, float b) { return fmaxf(a * x + b, 0.0f); }

// The elements in a word: two, or one of f32.
__device__ __forceinline__ unsigned apply(float a, unsigned x, unsigned b) {
#if DTYPE_F32
    return __float_as_uint(apply(a, __uint_as_float(x), __uint_as_float(b)));
#else
    const float2 x_pair = unpack(x), b_pair = unpack(b);
    return pack(apply(a, x_pair.x, b_pair.x), VECTOR == 1 ? 0.0f : apply(a, x_pair.y, b_pair.y));
#endif
}

__device__ __forceinline__ float scale(const Element* a) {
#if DTYPE_F32
    return *a;
#else
    return unpack(*a).x;
#endif
}

__device__ __forceinline__ void stream_tile(unsigned tile, float a, const Element* x, const Element* b, Element* y,
                                            unsigned n) {
    const unsigned first = tile * TILE + threadIdx.x * VECTOR;
    x += first, b += first, y += first;
    const unsigned left = first < n ? n - first : 0;  // a multiple of VECTOR
    Packet<BYTES> x_packet[PACKETS], b_packet[PACKETS];
#pragma unroll
    for (unsigned i = 0; i < PACKETS; ++i) {
        const unsigned offset = i * THREADS * VECTOR;
        x_packet[i] = load_packet<BYTES>(x + offset, offset, left);
        b_packet[i] = load_packet<BYTES>(b + offset, offset, left);
    }
#pragma unroll
    for (unsigned i = 0; i < PACKETS; ++i) {
        const unsigned offset = i * THREADS * VECTOR;
#pragma unroll
        for (unsigned w = 0; w < Packet<BYTES>::WORDS; ++w)
            x_packet[i].word[w] = apply(a, x_packet[i].word[w], b_packet[i].word[w]);
        store_packet(y + offset, x_packet[i], offset, left);
    }
}

// Grid: x = tiles.
extern "C" __global__ void __launch_bounds__(THREADS)
    elementwise_stream(const Element* __restrict__ a, const Element* __restrict__ x, const Element* __restrict__ b,
                       Element* __restrict__ y, unsigned n) {
    stream_tile(blockIdx.x, scale(a), x, b, y, n);
}

// Grid: x = any number of blocks up to that of tiles.
extern "C" __global__ void __launch_bounds__(THREADS)
    elementwise_stream_loop(const Element* __restrict__ a, const Element* __restrict__ x,
                            const Element* __restrict__ b, Element* __restrict__ y, unsigned n, unsigned tiles) {
    const float factor = scale(a);
    unsigned tile = blockIdx.x;
#pragma unroll 1
    do {
        stream_tile(tile, factor, x, b, y, n);
        tile += gridDim.x;
    } while (tile < tiles);
}
