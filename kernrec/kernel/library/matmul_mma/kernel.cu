// C[m,n] = activation(A[m,k] B[k,n] + bias[n]), f16 or bf16 with f32 sums, on tensor cores.
//
// A block owns a BLOCK_M x BLOCK_N tile of C and walks the reduction in tiles of BLOCK_K that cp.async loads STAGES - 1
// ahead; a warp owns WARP_M x WARP_N of it, in mma.sync tiles of 16 x 8 x 16. With FRAGMENTS 2 the fragments of the
// next step are read while those of this one are multiplied, across the barrier between two tiles too. Before sm_80,
// which have neither cp.async nor that shape, tiles come through registers and one step is two mma of 16 x 8 x 8.
//
// Either operand may lie along the reduction or across it (layouts nn, nt, tn, tt; the tiles of mma.cuh serve both).
// C is always row-major. VECTOR is what one copy moves: 8 elements; 2 where rows are even; 1, through registers, where
// they are of any length. Wide stores of C take eight columns a lane, exchanged within quads of lanes.
//
// Split-K: blockIdx.y takes an equal share of the reduction (the shares differ by one tile at most) and writes a
// partial C in f32; matmul_mma_reduce adds the partials in a fixed order.

// The host's pass of nvcc has no __CUDA_ARCH__.
#if VECTOR == 1 || (defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800)
#define THROUGH_REGISTERS 1
#else
#define THROUGH_REGISTERS 0
#endif

#include "mma.cuh"
#include "epilogue.cuh"

using Scalar = Element;

#if LAYOUT_NN || LAYOUT_NT
using ATile = Tile<BLOCK_M, BLOCK_K, true>;
#else
using ATile = Tile<BLOCK_M, BLOCK_K, false>;
#endif
#if LAYOUT_NT || LAYOUT_TT
using BTile = Tile<BLOCK_N, BLOCK_K, true>;
#else
using BTile = Tile<BLOCK_N, BLOCK_K, false>;
#endif

constexpr unsigned UNIT = VECTOR == 1 ? 2 : VECTOR;  // elements of a write to shared memory
constexpr unsigned MMA_K = STEP_K;

#include "matmul_tiles.cuh"

// With one set of fragments registers are kept to 128, so that 16 warps fit an SM: less read ahead, more to switch to.
// Otherwise the assembler is told that one block will do: left to itself it may spill a few to fit more.
constexpr unsigned MIN_BLOCKS = FRAGMENTS == 1 && !THROUGH_REGISTERS ? 512 / THREADS : 1;

// Grid: see `Work`. bias: null for none. partial: null without split-K.
extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS)
    matmul_mma(const Element* __restrict__ a, const Element* __restrict__ b, const Element* __restrict__ bias,
               Element* __restrict__ c, float* __restrict__ partial, unsigned m, unsigned n, unsigned k,
               unsigned activation, unsigned tiles_m, unsigned tiles_n, unsigned raster, unsigned share,
               unsigned longer_shares) {
    const Work work(k, tiles_m, tiles_n, raster, share, longer_shares);
    const unsigned warp = threadIdx.x / 32;
    const unsigned warp_row = warp / WARPS_N * WARP_M, warp_column = warp % WARPS_N * WARP_N;
    Sums sums = {};
    multiply_matrices(sums, a, b, m, n, k, work, warp_row, warp_column);

    const unsigned row = work.tile_row + warp_row + threadIdx.x % 32 / 4, column = work.tile_column + warp_column;
    const unsigned lane_column = column + threadIdx.x % 4 * 2;
    const size_t elements = size_t(m) * n;
    if (partial) {
        partial += (blockIdx.y * gridDim.z + blockIdx.z) * elements;
        store_sums(sums, Matrix<float>{partial, row, m, n}, lane_column);
    } else {
        finish(sums, bias, activation, lane_column, n);
        store_rounded(sums, Matrix<Element>{c + blockIdx.z * elements, row, m, n}, column);
    }
}

// Grid: x = REDUCE_THREADS * min(VECTOR, 4) elements of C each.
extern "C" __global__ void __launch_bounds__(REDUCE_THREADS)
    matmul_mma_reduce(const float* __restrict__ partial, const Element* __restrict__ bias, Element* __restrict__ c,
                      unsigned activation, unsigned elements, unsigned columns, unsigned splits) {
    constexpr unsigned N = VECTOR == 8 ? 4 : VECTOR;
    const unsigned first = (blockIdx.x * REDUCE_THREADS + threadIdx.x) * N;
    const Floats<N> sum = added_up<N>(partial, bias, activation, first, elements, columns, splits);
    const bool inside = first < elements;
#if VECTOR == 1
    store_half(c + first, Element(pack(sum.value[0], 0.0f)), inside);
#else
    Packet<2 * N> words;
#pragma unroll
    for (unsigned i = 0; i < N / 2; ++i) words.word[i] = pack(sum.value[2 * i], sum.value[2 * i + 1]);
    store_packet(c + first, words, inside);
#endif
}
