// What matrix products do to a sum before it is rounded and stored: add the bias of its column, then apply the
// activation. Both are the same for a whole launch, chosen when it is launched: a uniform branch, so that without them
// nothing but the branch is paid, and the code space does not grow. And the second pass of split-K, which applies them.

#include "packet.cuh"

enum Activation : unsigned { NONE, RELU, GELU, SILU };

__device__ __forceinline__ float bias_at(const float* bias, unsigned column) { return bias[column]; }

// Of 16-bit elements, f16 unless DTYPE_BF16.
__device__ __forceinline__ float bias_at(const unsigned short* bias, unsigned column) {
#if DTYPE_BF16
    return __uint_as_float(unsigned(bias[column]) << 16);
#else
    float value;
    asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bias[column]));
    return value;
#endif
}

// x / (1 + exp(-x (linear + cubic x^2))): SiLU is that with 1 and 0, and GELU, 0.5 x (1 + tanh(u)), with u = sqrt(2/pi)
// (x + 0.044715 x^3), too, for 0.5 (1 + tanh(u)) = 1 / (1 + exp(-2 u)). The factors come times -log2(e).
__device__ __forceinline__ float gated(float x, float linear, float cubic) {
    float power, share;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(x * (linear + cubic * x * x)));  // x * x might overflow
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(share) : "f"(1.0f + power));
    return x * share;
}

// `each` takes a function and puts every value of the thread through it.
template <class Each>
__device__ __forceinline__ void activate(unsigned activation, const Each& each) {
    if (activation == RELU) {
        each([](float x) { return x < 0.0f ? 0.0f : x; });  // a NaN stays one
    } else if (activation != NONE) {
        const float linear = activation == GELU ? -2.302208198f : -1.442695041f;
        const float cubic = activation == GELU ? -0.1029432397f : 0.0f;
        each([=](float x) { return gated(x, linear, cubic); });
    }
}

// For N successive elements of C a thread, from `first` on (of `elements`, a multiple of N; past the last, those are
// taken again): the sum over s of partial[s * elements + i], in the order of s, with bias and activation. A row of C
// has `columns`, a multiple of N.
template <unsigned N, class Element>
__device__ __forceinline__ Floats<N> added_up(const float* __restrict__ partial, const Element* __restrict__ bias,
                                              unsigned activation, unsigned first, unsigned elements, unsigned columns,
                                              unsigned splits) {
    first = min(first, elements - N);
    partial += first;
    Floats<N> sum = {};
#pragma unroll 1
    for (unsigned split = 0; split < splits; ++split) {
        const Floats<N> next = *reinterpret_cast<const Floats<N>*>(partial);
#pragma unroll
        for (unsigned i = 0; i < N; ++i) sum.value[i] += next.value[i];
        partial += elements;
    }
    if (bias) {
        const unsigned column = first % columns;
#pragma unroll
        for (unsigned i = 0; i < N; ++i) sum.value[i] += bias_at(bias, column + i);
    }
    activate(activation, [&](auto change) {
#pragma unroll
        for (unsigned i = 0; i < N; ++i) sum.value[i] = change(sum.value[i]);
    });
    return sum;
}
