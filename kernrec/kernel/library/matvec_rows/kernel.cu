// y[n,m] = a[m,k] x[n,k] over k: a matrix times a handful of vectors. See matvec.cuh.

#include "matvec.cuh"

// The assembler is told that one block to an SM will do: left to itself it may spill a few registers to fit more.
extern "C" __global__ void __launch_bounds__(THREADS, 1)
    matvec_rows(const Element* __restrict__ a, const Element* __restrict__ x, Element* __restrict__ y, unsigned m,
                unsigned n, unsigned k, unsigned tiles_n, unsigned share, unsigned longer_shares) {
    multiply(a, x, y, m, n, k, tiles_n, share, longer_shares, [](float sum, unsigned) { return sum; });
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    matvec_rows_partial(const Element* __restrict__ a, const Element* __restrict__ x, float* __restrict__ partial,
                        unsigned m, unsigned n, unsigned k, unsigned tiles_n, unsigned share, unsigned longer_shares) {
    multiply(a, x, partial, m, n, k, tiles_n, share, longer_shares, [](float sum, unsigned) { return sum; });
}

// y[i] = sum over s of partial[s * elements + i], in the order of s.
// Grid: x = REDUCE_THREADS elements each.
extern "C" __global__ void __launch_bounds__(REDUCE_THREADS)
    matvec_rows_reduce(const float* __restrict__ partial, Element* __restrict__ y, unsigned elements, unsigned splits) {
    const unsigned i = blockIdx.x * REDUCE_THREADS + threadIdx.x;
    const bool inside = i < elements;
    partial += i;
    float sum = 0;
#pragma unroll 1
    for (unsigned split = 0; split < splits; ++split) {
        sum += load_floats<1>(partial, inside).value[0];
        partial += elements;
    }
    store(y + i, sum, inside);
}
