// C[m,n] = activation(A[m,k] B[n,k] over k + bias[n]), for the few rows of A that decoding has: a product of the
// weights B with m vectors, on the FMA pipes. Weights are read once; see matvec.cuh, whose matrix they are.

constexpr unsigned THREADS = 128;     // of a block
constexpr unsigned ROW_THREADS = 32;  // lanes that share rows of the weights

#include "matvec.cuh"
#include "epilogue.cuh"

// The assembler is told that one block to an SM will do: left to itself it may spill a few registers to fit more.
// bias: null for none.
extern "C" __global__ void __launch_bounds__(THREADS, 1)
    matmul_skinny(const Element* __restrict__ a, const Element* __restrict__ b, const Element* __restrict__ bias,
                  Element* __restrict__ c, unsigned m, unsigned n, unsigned k, unsigned activation, unsigned tiles_m,
                  unsigned share, unsigned longer_shares) {
    multiply(b, a, c, n, m, k, tiles_m, share, longer_shares, [=](float sum, unsigned column) {
        if (bias) sum += bias_at(bias, column);
        activate(activation, [&](auto change) { sum = change(sum); });
        return sum;
    });
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    matmul_skinny_partial(const Element* __restrict__ a, const Element* __restrict__ b, float* __restrict__ partial,
                          unsigned m, unsigned n, unsigned k, unsigned tiles_m, unsigned share,
                          unsigned longer_shares) {
    multiply(b, a, partial, n, m, k, tiles_m, share, longer_shares, [](float sum, unsigned) { return sum; });
}

// Grid: x = REDUCE_THREADS elements of C each.
extern "C" __global__ void __launch_bounds__(REDUCE_THREADS)
    matmul_skinny_reduce(const float* __restrict__ partial, const Element* __restrict__ bias, Element* __restrict__ c,
                         unsigned activation, unsigned elements, unsigned columns, unsigned splits) {
    const unsigned first = blockIdx.x * REDUCE_THREADS + threadIdx.x;
    const Floats<1> sum = added_up<1>(partial, bias, activation, first, elements, columns, splits);
    store(c + first, sum.value[0], first < elements);
}
