// C[m,n] = activation(a_scale b_scale A[m,k] B[n,k]^T + bias[n]), e4m3 (sums in f32) or int8 (sums in s32), on tensor
// cores; C is bf16, f16 or f32, chosen when the kernel is launched.
//
// Built as matmul_mma is, of whose headers it takes tiles, loads and loop: to them an element is a pair of numbers of 8
// bits. So an mma.sync tile of 16 x 8 x 32 has the fragments of one of 16 x 8 x 16, and ldmatrix brings them. It cannot
// transpose single bytes: both operands lie along the reduction (layout nt, that of quantized layers).
//
// VECTOR is what one copy moves, in numbers: 16, or 4, or 2 through registers; rows of A and B are a multiple of it.
// Before sm_80 tiles come through registers, and a step is four mma of 8 x 8 x 16.
//
// Split-K: blockIdx.y takes an equal share of the reduction and writes a scaled partial C in f32;
// matmul_mma_8bit_reduce adds the partials in a fixed order.

// From here on in pairs.
#if BLOCK_K == 64
#undef BLOCK_K
#define BLOCK_K 32
#else
#undef BLOCK_K
#define BLOCK_K 64
#endif
#if VECTOR == 16
#undef VECTOR
#define VECTOR 8
#elif VECTOR == 4
#undef VECTOR
#define VECTOR 2
#else
#undef VECTOR
#define VECTOR 1
#endif

#if VECTOR == 1 || (defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800)
#define THROUGH_REGISTERS 1
#else
#define THROUGH_REGISTERS 0
#endif

#define DTYPE_TF32 1  // of the headers: without the product and the stores of 16-bit numbers
#include "mma.cuh"
#include "epilogue.cuh"

using Scalar = Element;
using ATile = Tile<BLOCK_M, BLOCK_K, true>;
using BTile = Tile<BLOCK_N, BLOCK_K, true>;

constexpr unsigned UNIT = VECTOR == 1 ? 2 : VECTOR;  // pairs of a write to shared memory
constexpr unsigned MMA_K = STEP_K;

// d += a b, for a 16 x 32 (a[half of the rows][half of the reduction]) and b 32 x 8 (b[half of the reduction]). Sums of
// int8 are the bits of s32.
__device__ __forceinline__ void multiply_add(float (&d)[4], const unsigned (&a)[2][2], const unsigned (&b)[2]) {
#if DTYPE_F8E4M3
    asm("mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e4m3.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0][0]), "r"(a[1][0]), "r"(a[0][1]), "r"(a[1][1]), "r"(b[0]), "r"(b[1]));
#else
    int sum[4];
#pragma unroll
    for (unsigned e = 0; e < 4; ++e) sum[e] = __float_as_int(d[e]);
#if __CUDA_ARCH__ >= 800
    asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+r"(sum[0]), "+r"(sum[1]), "+r"(sum[2]), "+r"(sum[3])
        : "r"(a[0][0]), "r"(a[1][0]), "r"(a[0][1]), "r"(a[1][1]), "r"(b[0]), "r"(b[1]));
#else
#pragma unroll
    for (unsigned rows = 0; rows < 2; ++rows)
#pragma unroll
        for (unsigned half = 0; half < 2; ++half)
            asm("mma.sync.aligned.m8n8k16.row.col.s32.s8.s8.s32 {%0, %1}, {%2}, {%3}, {%0, %1};"
                : "+r"(sum[2 * rows]), "+r"(sum[2 * rows + 1])
                : "r"(a[rows][half]), "r"(b[half]));
#endif
#pragma unroll
    for (unsigned e = 0; e < 4; ++e) d[e] = __int_as_float(sum[e]);
#endif
}

#include "matmul_tiles.cuh"
#include "scaled.cuh"

// With one set of fragments registers are kept to 128, so that 16 warps fit an SM; otherwise one block will do.
constexpr unsigned MIN_BLOCKS = FRAGMENTS == 1 && !THROUGH_REGISTERS ? 512 / THREADS : 1;

// Grid: see `Work`. half_k: pairs in a row of A and B. each_scale: 0, or 1 for a scale for every row and column. bias:
// null for none. partial: null without split-K.
extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS)
    matmul_mma_8bit(const Element* __restrict__ a, const Element* __restrict__ b, const float* __restrict__ a_scale,
                    const float* __restrict__ b_scale, const float* __restrict__ bias, void* __restrict__ c,
                    float* __restrict__ partial, unsigned m, unsigned n, unsigned half_k, unsigned each_scale,
                    unsigned output, unsigned activation, unsigned tiles_m, unsigned tiles_n, unsigned raster,
                    unsigned share, unsigned longer_shares) {
    const Work work(half_k, tiles_m, tiles_n, raster, share, longer_shares);
    const unsigned warp = threadIdx.x / 32;
    const unsigned warp_row = warp / WARPS_N * WARP_M, warp_column = warp % WARPS_N * WARP_N;
    Sums sums = {};
    multiply_matrices(sums, a, b, m, n, half_k, work, warp_row, warp_column);

    const unsigned row = work.tile_row + warp_row + threadIdx.x % 32 / 4, column = work.tile_column + warp_column;
    const unsigned lane_column = column + threadIdx.x % 4 * 2;
    scale(sums, Scales(a_scale, each_scale, m), Scales(b_scale, each_scale, n), row, lane_column);
    if (partial) {
        partial += (blockIdx.y * gridDim.z + blockIdx.z) * (size_t(m) * n);
        store_sums(sums, Matrix<float>{partial, row, m, n}, lane_column);
    } else {
        store_scaled(sums, bias, activation, c, output, row, column, lane_column, m, n);
    }
}

// Grid: x = REDUCE_THREADS * min(VECTOR, 4) elements of C each.
extern "C" __global__ void __launch_bounds__(REDUCE_THREADS)
    matmul_mma_8bit_reduce(const float* __restrict__ partial, const float* __restrict__ bias, void* __restrict__ c,
                           unsigned output, unsigned activation, unsigned elements, unsigned columns,
                           unsigned splits) {
    constexpr unsigned N = VECTOR == 8 ? 4 : VECTOR;
    const unsigned first = (blockIdx.x * REDUCE_THREADS + threadIdx.x) * N;
    const Floats<N> sum = added_up<N>(partial, bias, activation, first, elements, columns, splits);
    const bool inside = first < elements;
    if (output == F32)
        store_floats<N>(static_cast<float*>(c) + first, sum.value, inside);
    else if (output == BF16)
        store_words<N>(static_cast<Element*>(c) + first, sum, inside, PackBf16());
    else
        store_words<N>(static_cast<Element*>(c) + first, sum, inside, PackElements());
}
