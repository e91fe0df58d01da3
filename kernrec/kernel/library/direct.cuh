// What convolutions on the FMA pipes share: f32, f16 or bf16 in global memory, f32 in registers and in the sums.
//
// Defined before the include: DTYPE_F32, DTYPE_F16 or DTYPE_BF16 as 1.

#include "packet.cuh"

#if DTYPE_F32
using Element = float;
#else
using Element = unsigned short;  // the bits of one f16 or bf16
#endif

// N neighbouring elements.
template <unsigned N>
using Elements = Packet<N * sizeof(Element)>;

// Zeros unless `place` is below `end`.
template <unsigned N>
__device__ __forceinline__ Elements<N> load(const Element* source, unsigned place, unsigned end) {
    return load_packet<N * sizeof(Element)>(source, place, end);
}

// The value of element `i` of a packet.
template <unsigned BYTES>
__device__ __forceinline__ float value(const Packet<BYTES>& p, unsigned i) {
#if DTYPE_F32
    return __uint_as_float(p.word[i]);
#elif DTYPE_F16
    float number;
    asm("{ .reg .b16 half; cvt.u16.u32 half, %1; cvt.f32.f16 %0, half; }"
        : "=f"(number)
        : "r"(i % 2 ? p.word[i / 2] >> 16 : p.word[i / 2]));
    return number;
#else
    return __uint_as_float(i % 2 ? p.word[i / 2] & 0xffff0000 : p.word[i / 2] << 16);
#endif
}

#if !DTYPE_F32
// The bits of a value rounded to nearest, in the lower part of a word.
__device__ __forceinline__ unsigned round_to_element(float number) {
#if DTYPE_F16
    unsigned word;
    asm("{ .reg .b16 half; cvt.rn.f16.f32 half, %1; cvt.u32.u16 %0, half; }" : "=r"(word) : "f"(number));
    return word;
#else
    const unsigned bits = __float_as_uint(number);
    return number != number ? 0x7fff : (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
#endif
}

// Two values in a word, the first in its lower half, each rounded to nearest.
__device__ __forceinline__ unsigned pack(float first, float second) {
#if __CUDA_ARCH__ >= 800
    unsigned word;
#if DTYPE_F16
    asm("cvt.rn.f16x2.f32 %0, %2, %1;" : "=r"(word) : "f"(first), "f"(second));
#else
    asm("cvt.rn.bf16x2.f32 %0, %2, %1;" : "=r"(word) : "f"(first), "f"(second));
#endif
    return word;
#else
    return round_to_element(first) | round_to_element(second) << 16;
#endif
}
#endif

// Stores N values, rounded, if `place` is below `end`; no branch.
template <unsigned N>
__device__ __forceinline__ void store(Element* target, const float* number, unsigned place, unsigned end) {
    Elements<N> p;
#if DTYPE_F32
#pragma unroll
    for (unsigned i = 0; i < N; ++i) p.word[i] = __float_as_uint(number[i]);
#else
    if constexpr (N == 1) {
        p.word[0] = round_to_element(number[0]);
    } else {
#pragma unroll
        for (unsigned i = 0; i < N / 2; ++i) p.word[i] = pack(number[2 * i], number[2 * i + 1]);
    }
#endif
    store_packet(target, p, place, end);
}

// Rows of WIDTH floats in shared memory that threads read N at a time, neighbours beside each other. Quads of a thread
// lie WIDTH / N quads apart, so that eight lanes that read a quad each cover all 32 banks.
template <unsigned WIDTH, unsigned N>
struct Rows {
    static_assert(WIDTH % N == 0 && (N <= 2 || N % 4 == 0), "whole shares");

    // Where column `i` lies in its row.
    __device__ __forceinline__ static unsigned place(unsigned i) {
        return N % 4 == 0 ? (i % N / 4 * (WIDTH / N) + i / N) * 4 + i % 4 : i;
    }

    // Reads the N columns from `share` * N on of the row that begins at `row`.
    __device__ __forceinline__ static void read(float (&number)[N], const float* row, unsigned share) {
        if constexpr (N % 4 == 0) {
#pragma unroll
            for (unsigned quad = 0; quad < N / 4; ++quad) {
                const float4 four = *reinterpret_cast<const float4*>(row + (quad * (WIDTH / N) + share) * 4);
                number[quad * 4] = four.x, number[quad * 4 + 1] = four.y;
                number[quad * 4 + 2] = four.z, number[quad * 4 + 3] = four.w;
            }
        } else if constexpr (N == 2) {
            const float2 two = *reinterpret_cast<const float2*>(row + share * 2);
            number[0] = two.x, number[1] = two.y;
        } else {
            number[0] = row[share];
        }
    }
};
