// What kernels of tiled f32 products on the FMA pipes share: predicated loads and stores, transfers to shared memory, the
// layout of its tiles, and the second pass of split-K.
//
// Defined before the include: ASYNC_COPY, BLOCK_K, VECTOR, and the constants THREADS, LANES_N, RUN, FRAGMENT_K and
// B_VECTOR (floats in a load of the operand that lies across the reduction).

#include "packet.cuh"

constexpr unsigned REDUCE_THREADS = 256;

// One load of a thread on its way from global to shared memory: N floats, or zeros where `inside` is false.
template <unsigned N>
struct Transfer {
#if ASYNC_COPY
    // The bytes past src-size are filled with zeros and not read.
    __device__ __forceinline__ void start(float* target, const float* source, bool inside) {
        const unsigned address = static_cast<unsigned>(__cvta_generic_to_shared(target));
        const unsigned bytes = inside ? 4 * N : 0;
        if constexpr (N == 4)
            asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(address), "l"(source), "r"(bytes)
                         : "memory");
        else
            asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(address), "l"(source), "r"(bytes)
                         : "memory");
    }
#else
    Floats<N> packet;

    __device__ __forceinline__ void start(float*, const float* source, bool inside) {
        packet = load_floats<N>(source, inside);
    }

    __device__ __forceinline__ void finish(float* target) const {
        const unsigned address = static_cast<unsigned>(__cvta_generic_to_shared(target));
        if constexpr (N == 4)
            asm volatile("st.shared.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(address), "f"(packet.value[0]),
                         "f"(packet.value[1]), "f"(packet.value[2]), "f"(packet.value[3])
                         : "memory");
        else
            asm volatile("st.shared.f32 [%0], %1;" ::"r"(address), "f"(packet.value[0]) : "memory");
    }
#endif
};

// Exchange of the quads of row `row` of a tile that lies along the reduction.
__device__ __forceinline__ constexpr unsigned swizzle(unsigned row) {
    return row / (32 / BLOCK_K) % (BLOCK_K / 4);
}

// Where column `column` of the B tile lies in its row.
__device__ __forceinline__ constexpr unsigned place(unsigned column) {
    constexpr unsigned GROUP = RUN * LANES_N;
    return B_VECTOR == 4 ? column : column / GROUP * GROUP + column % LANES_N * RUN + column / LANES_N % RUN;
}

// This thread's loads of a tile [..][BLOCK_K] that lies along the reduction: from `column` of rows `row` + i * STEP.
template <unsigned BASE>
struct AlongK {
    static constexpr unsigned STEP = THREADS * VECTOR / BLOCK_K;
    unsigned row = threadIdx.x / (BLOCK_K / VECTOR);
    unsigned column = threadIdx.x % (BLOCK_K / VECTOR) * VECTOR;

    __device__ __forceinline__ float* target(float* slot, unsigned i) const {
        // row < STEP, both powers of two: the exchange of row + i * STEP is that of row, XOR a constant
        const unsigned quad = column / 4 ^ swizzle(row) ^ swizzle(i * STEP);
        return slot + BASE + (row + i * STEP) * BLOCK_K + quad * 4 + column % 4;
    }
};

// FRAGMENT_K floats at k of row `row` + `step`, a multiple of the rows of a warp's lanes.
__device__ __forceinline__ void read_fragment(float (&fragment)[FRAGMENT_K], const float* tile, unsigned row,
                                              unsigned step, unsigned k) {
    const unsigned quad = k / 4 ^ swizzle(step) ^ swizzle(row);
    const float* source = tile + (row + step) * BLOCK_K + quad * 4 + k % 4;
    if constexpr (FRAGMENT_K == 4)
        *reinterpret_cast<float4*>(fragment) = *reinterpret_cast<const float4*>(source);
    else
        *reinterpret_cast<float2*>(fragment) = *reinterpret_cast<const float2*>(source);
}

// output[i] = sum over s of partial[s * elements + i], in the order of s: N elements a thread.
template <unsigned N>
__device__ __forceinline__ void add_partials(const float* partial, float* output, unsigned elements, unsigned splits) {
    const unsigned first = (blockIdx.x * REDUCE_THREADS + threadIdx.x) * N;
    const bool inside = first < elements;
    partial += first;
    Floats<N> sum = {};
#pragma unroll 1
    for (unsigned split = 0; split < splits; ++split) {
        const Floats<N> next = load_floats<N>(partial, inside);
#pragma unroll
        for (unsigned i = 0; i < N; ++i) sum.value[i] += next.value[i];
        partial += elements;
    }
    store_floats<N>(output + first, sum.value, inside);
}
