// What kernels share that work along the rows of a row-major matrix: f32, f16 or bf16 in memory, f32 in registers.
//
// Defined before the include: DTYPE_F32, DTYPE_F16 or DTYPE_BF16 as 1, THREADS_PER_ROW, ROWS_PER_BLOCK, VECTOR (elements
// of one load: 1, or as many as 16 bytes hold) and PACKETS (loads a thread has in flight).
//
// THREADS_PER_ROW threads, whole warps, walk a row chunk by chunk; packet p of a chunk lies p * THREADS_PER_ROW packets
// further, so that a warp reads 32 neighbouring ones. Edges cost what full chunks cost: what lies past the end of a row
// is filled in by predicated loads and not stored, and threads past the last row compute it again and do not store.
// So every block executes a fixed number of instructions, and in loops a fixed number for each chunk.
//
// A matrix holds at most 2^31 elements: element offsets fit 32 unsigned bits, byte offsets are formed in 64.

constexpr unsigned THREADS = THREADS_PER_ROW * ROWS_PER_BLOCK;
constexpr unsigned WARPS_PER_ROW = THREADS_PER_ROW / 32;
constexpr unsigned PACKET_STEP = THREADS_PER_ROW * VECTOR;  // columns between two packets of a thread
// Columns that the threads of a row hold at once.
[[maybe_unused]] constexpr unsigned CHUNK = PACKET_STEP * PACKETS;
constexpr unsigned VALUES = PACKETS * VECTOR;               // values that a thread holds at once

#include "packet.cuh"

#if DTYPE_F32
using Element = float;
#else
using Element = unsigned short;  // the bits of one f16 or bf16
#endif

constexpr unsigned PER_WORD = 4 / sizeof(Element);
constexpr unsigned BYTES = VECTOR * sizeof(Element);  // of a packet

static_assert(THREADS_PER_ROW % 32 == 0 && (WARPS_PER_ROW & (WARPS_PER_ROW - 1)) == 0, "a power of two of whole warps");
static_assert(VECTOR == 1 || VECTOR * sizeof(Element) == 16, "scalar or 16-byte loads");

// What stands for the columns past the end of a row, two halves or one float to a word.
[[maybe_unused]] constexpr unsigned ZERO = 0;
#if DTYPE_F32
[[maybe_unused]] constexpr unsigned MINUS_INFINITY = 0xff800000;
#elif DTYPE_F16
[[maybe_unused]] constexpr unsigned MINUS_INFINITY = 0xfc00fc00;
#else
[[maybe_unused]] constexpr unsigned MINUS_INFINITY = 0xff80ff80;
#endif

// The first or second value of a word.
__device__ __forceinline__ float unpack(unsigned word, bool second) {
#if DTYPE_F32
    return __uint_as_float(word);
#elif DTYPE_F16
    float value;
    asm("{ .reg .b16 half; cvt.u16.u32 half, %1; cvt.f32.f16 %0, half; }"
        : "=f"(value)
        : "r"(second ? word >> 16 : word));
    return value;
#else
    return __uint_as_float(second ? word & 0xffff0000 : word << 16);
#endif
}

// The bits of a value rounded to nearest, in the lower part of a word.
__device__ __forceinline__ unsigned round_to_element(float value) {
#if DTYPE_F32
    return __float_as_uint(value);
#elif DTYPE_F16
    unsigned word;
    asm("{ .reg .b16 half; cvt.rn.f16.f32 half, %1; cvt.u32.u16 %0, half; }" : "=r"(word) : "f"(value));
    return word;
#else
    const unsigned bits = __float_as_uint(value);
    return value != value ? 0x7fff : (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
#endif
}

// Two values in a word, the first in its lower half, each rounded to nearest.
__device__ __forceinline__ unsigned pack(float first, float second) {
#if DTYPE_F16 && __CUDA_ARCH__ >= 800
    unsigned word;
    asm("cvt.rn.f16x2.f32 %0, %2, %1;" : "=r"(word) : "f"(first), "f"(second));
    return word;
#elif DTYPE_BF16 && __CUDA_ARCH__ >= 800
    unsigned word;
    asm("cvt.rn.bf16x2.f32 %0, %2, %1;" : "=r"(word) : "f"(first), "f"(second));
    return word;
#else
    return round_to_element(first) | round_to_element(second) << 16;
#endif
}

__device__ __forceinline__ void store_float(float* target, float value, bool inside) {
    store_floats<1>(target, &value, inside);
}

// Stores one element, rounded, if `inside`.
__device__ __forceinline__ void store(Element* target, float value, bool inside) {
#if DTYPE_F32
    store_float(target, value, inside);
#else
    store_half(target, static_cast<unsigned short>(round_to_element(value)), inside);
#endif
}

// Stores the packet that begins at `value`, rounded, if `inside`.
__device__ __forceinline__ void store(Element* target, const float* value, bool inside) {
    if constexpr (VECTOR == 1) {
        store(target, value[0], inside);
    } else {
        Packet<BYTES> p;
#pragma unroll
        for (unsigned i = 0; i < Packet<BYTES>::WORDS; ++i)
            p.word[i] = PER_WORD == 1 ? __float_as_uint(value[i]) : pack(value[i * PER_WORD], value[i * PER_WORD + 1]);
        store_packet(target, p, inside);
    }
}

// The row of this thread.
struct Row {
    unsigned offset;   // elements before it
    unsigned columns;
    unsigned column;   // of the thread's first value
    unsigned index;
    bool inside;       // false past the last row, which then stands for it

    __device__ __forceinline__ Row(unsigned rows, unsigned columns_) : columns(columns_) {
        const unsigned row = blockIdx.x * ROWS_PER_BLOCK + threadIdx.x / THREADS_PER_ROW;
        column = threadIdx.x % THREADS_PER_ROW * VECTOR;
        index = min(row, rows - 1);
        offset = index * columns;
        inside = row < rows;
    }

    // Chunk from column `first` on of a vector as long as a row.
    template <unsigned FILL>
    __device__ __forceinline__ void read(float (&value)[VALUES], const Element* vector, unsigned first) const {
        Packet<BYTES> packet[PACKETS];
        const unsigned start = first + column;
        vector += start;
#pragma unroll
        for (unsigned p = 0; p < PACKETS; ++p)
            packet[p] = load_packet<BYTES, FILL>(vector + p * PACKET_STEP, start + p * PACKET_STEP < columns);
#pragma unroll
        for (unsigned i = 0; i < VALUES; ++i) {
            const unsigned in_packet = i % VECTOR;
            value[i] = unpack(packet[i / VECTOR].word[in_packet / PER_WORD], in_packet % PER_WORD);
        }
    }

    __device__ __forceinline__ void write(Element* vector, unsigned first, const float (&value)[VALUES]) const {
        const unsigned start = first + column;
        vector += start;
#pragma unroll
        for (unsigned p = 0; p < PACKETS; ++p)
            store(vector + p * PACKET_STEP, &value[p * VECTOR], inside && start + p * PACKET_STEP < columns);
    }

    // Whether value i of the chunk from column `first` on is one of the row.
    __device__ __forceinline__ bool holds(unsigned first, unsigned i) const {
        return first + column + i / VECTOR * PACKET_STEP < columns;
    }
};

struct Add {
    static __device__ __forceinline__ float of(float a, float b) { return a + b; }
};

struct Max {
    static __device__ __forceinline__ float of(float a, float b) { return fmaxf(a, b); }
};

// N values of a thread combined, in pairs.
template <typename Combine, unsigned N = VALUES>
__device__ __forceinline__ float combine_values(const float* value) {
    if constexpr (N == 1)
        return value[0];
    else
        return Combine::of(combine_values<Combine, N / 2>(value), combine_values<Combine, N / 2>(value + N / 2));
}

// One value of each lane of a warp combined, the same for all of them and in the same order every time.
template <typename Combine>
__device__ __forceinline__ float combine_warp(float value) {
#pragma unroll
    for (unsigned distance = 16; distance > 0; distance /= 2)
        value = Combine::of(value, __shfl_xor_sync(0xffffffff, value, distance));
    return value;
}

// One value of each thread of a row combined, the same for all of them and in the same order every time. ROUND tells the
// calls of a kernel apart: each has shared memory of its own, so that one barrier is enough.
template <typename Combine, unsigned ROUND>
__device__ __forceinline__ float combine_row(float value) {
    value = combine_warp<Combine>(value);
    if constexpr (WARPS_PER_ROW > 1) {
        __shared__ float of_warp[ROWS_PER_BLOCK * WARPS_PER_ROW];
        const unsigned warp = threadIdx.x / 32;
        of_warp[warp] = value;  // all lanes write the same
        __syncthreads();
        value = of_warp[warp / WARPS_PER_ROW * WARPS_PER_ROW + threadIdx.x % WARPS_PER_ROW];
#pragma unroll
        for (unsigned distance = WARPS_PER_ROW / 2; distance > 0; distance /= 2)
            value = Combine::of(value, __shfl_xor_sync(0xffffffff, value, distance));
    }
    return value;
}
