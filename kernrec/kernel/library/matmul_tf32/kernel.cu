// C[m,n] = activation(A[m,k] B[k,n] + bias[n]), f32 with products of TF32, on tensor cores: A and B are rounded to 10
// bits of mantissa (to nearest, ties away from zero) as they come from shared memory; sums are f32.
//
// Built as matmul_mma is, with mma.sync tiles of 16 x 8 x 8. Where an operand lies along the reduction, ldmatrix brings
// its fragments: a row of eight 16-bit elements is one of four 32-bit words, and each lane gets the word that it needs.
// It cannot transpose words: where an operand lies across the reduction, fragments are read word by word.
//
// VECTOR is what one copy moves: 4 elements where the rows of every matrix are a multiple of four, 1 for any length.
//
// Split-K: blockIdx.y takes an equal share of the reduction (the shares differ by one tile at most) and writes a
// partial C; matmul_tf32_reduce adds the partials in a fixed order.

#define THROUGH_REGISTERS 0

#include "mma.cuh"
#include "epilogue.cuh"

#include "word_tile.cuh"

#if LAYOUT_NN || LAYOUT_NT
using ATile = WordTile<BLOCK_M, BLOCK_K, true>;
#else
using ATile = WordTile<BLOCK_M, BLOCK_K, false>;
#endif
#if LAYOUT_NT || LAYOUT_TT
using BTile = WordTile<BLOCK_N, BLOCK_K, true>;
#else
using BTile = WordTile<BLOCK_N, BLOCK_K, false>;
#endif

#include "tf32.cuh"
#include "matmul_tiles.cuh"

// Grid: see `Work`. bias: null for none. partial: null without split-K.
extern "C" __global__ void __launch_bounds__(THREADS, 1)
    matmul_tf32(const float* __restrict__ a, const float* __restrict__ b, const float* __restrict__ bias,
                float* __restrict__ c, float* __restrict__ partial, unsigned m, unsigned n, unsigned k,
                unsigned activation, unsigned tiles_m, unsigned tiles_n, unsigned raster, unsigned share,
                unsigned longer_shares) {
    const Work work(k, tiles_m, tiles_n, raster, share, longer_shares);
    const unsigned warp = threadIdx.x / 32;
    const unsigned warp_row = warp / WARPS_N * WARP_M, warp_column = warp % WARPS_N * WARP_N;
    Sums sums = {};
    multiply_matrices(sums, a, b, m, n, k, work, warp_row, warp_column);

    const unsigned row = work.tile_row + warp_row + threadIdx.x % 32 / 4;
    const unsigned column = work.tile_column + warp_column + threadIdx.x % 4 * 2;
    if (!partial) finish(sums, bias, activation, column, n);
    float* output = partial ? partial + (blockIdx.y * gridDim.z + blockIdx.z) * (size_t(m) * n)
                            : c + blockIdx.z * (size_t(m) * n);
    store_sums(sums, Matrix<float>{output, row, m, n}, column);
}

// Grid: x = REDUCE_THREADS * VECTOR elements of C each.
extern "C" __global__ void __launch_bounds__(REDUCE_THREADS)
    matmul_tf32_reduce(const float* __restrict__ partial, const float* __restrict__ bias, float* __restrict__ c,
                       unsigned activation, unsigned elements, unsigned columns, unsigned splits) {
    const unsigned first = (blockIdx.x * REDUCE_THREADS + threadIdx.x) * VECTOR;
    const Floats<VECTOR> sum = added_up<VECTOR>(partial, bias, activation, first, elements, columns, splits);
    if (first < elements) *reinterpret_cast<Floats<VECTOR>*>(c + first) = sum;
}
