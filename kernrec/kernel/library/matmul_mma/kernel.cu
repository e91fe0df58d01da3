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

#define THROUGH_REGISTERS (VECTOR == 1 || __CUDA_ARCH__ < 800)

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

// What a warp has summed up: the sums[i][j] of a lane lie in rows i * 16 + {0, 8} and columns j * 8 + {0, 1}, counted
// from row lane / 4 and column lane % 4 * 2.
using Sums = float[WARP_M / 16][WARP_N / 8][4];

#if __CUDA_ARCH__ >= 800
__device__ __forceinline__ void multiply_add(float (&d)[4], const unsigned (&a)[2][2], const unsigned (&b)[2]) {
    mma(d, a, b);
}

__device__ __forceinline__ unsigned pair_of(float first, float second) { return pack(first, second); }
#else
__device__ __forceinline__ void multiply_add(float (&d)[4], const unsigned (&a)[2][2], const unsigned (&b)[2]) {
#pragma unroll
    for (unsigned half = 0; half < 2; ++half)
        asm("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
            : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
            : "r"(a[0][half]), "r"(a[1][half]), "r"(b[half]));
}

__device__ __forceinline__ unsigned pair_of(float first, float second) {
    unsigned word;
    asm("{ .reg .b16 low, high; cvt.rn.f16.f32 low, %1; cvt.rn.f16.f32 high, %2; mov.b32 %0, {low, high}; }"
        : "=r"(word)
        : "f"(first), "f"(second));
    return word;
}
#endif

// The operands of one step of the reduction, for a warp.
struct Fragments {
    unsigned a[WARP_M / 16][2][2], b[WARP_N / 16][2][2];

    __device__ __forceinline__ void read(unsigned slot, unsigned a_place, unsigned b_place, unsigned k) {
#pragma unroll
        for (unsigned i = 0; i < WARP_M / 16; ++i) ATile::read(a[i], slot, a_place, i * 16, k);
#pragma unroll
        for (unsigned j = 0; j < WARP_N / 16; ++j) BTile::read(b[j], slot + ATile::BYTES, b_place, j * 16, k);
    }

    __device__ __forceinline__ void multiply(Sums& sums) const {
#pragma unroll
        for (unsigned i = 0; i < WARP_M / 16; ++i)
#pragma unroll
            for (unsigned j = 0; j < WARP_N / 8; ++j) multiply_add(sums[i][j], a[i], b[j / 2][j % 2]);
    }
};

#include "matmul_tiles.cuh"

// With one set of fragments registers are kept to 128, so that 16 warps fit an SM: less read ahead, more to switch to.
// Otherwise the assembler is told that one block will do: left to itself it may spill a few to fit more.
constexpr unsigned MIN_BLOCKS = FRAGMENTS == 1 && !THROUGH_REGISTERS ? 512 / THREADS : 1;

// Writes the sums to `c` of m x n; from `row`, the lane's first, and `column`, the warp's first.
__device__ __forceinline__ void write_result(const Sums& sums, Element* c, unsigned row, unsigned column, unsigned m,
                                             unsigned n) {
#pragma unroll
    for (unsigned i = 0; i < WARP_M / 8; ++i, row += 8) {
#pragma unroll
        for (unsigned j = 0; j < WARP_N / 8; j += 4) {
            unsigned words[4];
#pragma unroll
            for (unsigned w = 0; w < 4; ++w) {
                const float* sum = sums[i / 2][j + w] + i % 2 * 2;
                words[w] = pair_of(sum[0], sum[1]);
            }
#if VECTOR == 8
            transpose_quad(words);
            const unsigned at = column + j * 8 + threadIdx.x % 4 * 8;
            store<4>(c + (row * n + at), words, row < m && at < n);
#else
#pragma unroll
            for (unsigned w = 0; w < 4; ++w) {
                const unsigned at = column + (j + w) * 8 + threadIdx.x % 4 * 2;
#if VECTOR == 2
                store<1>(c + (row * n + at), words + w, row < m && at < n);
#else
                store(c + (row * n + at), Element(words[w]), row < m && at < n);
                store(c + (row * n + at + 1), Element(words[w] >> 16), row < m && at + 1 < n);
#endif
            }
#endif
        }
    }
}

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
    multiply_tiles(sums, a, b, m, n, k, work, warp_row, warp_column);

    const unsigned row = work.tile_row + warp_row + threadIdx.x % 32 / 4, column = work.tile_column + warp_column;
    const unsigned lane_column = column + threadIdx.x % 4 * 2;
    const size_t elements = size_t(m) * n;
    if (partial) {
        partial += (blockIdx.y * gridDim.z + blockIdx.z) * elements;
        write_sums(sums, partial, row, lane_column, m, n);
    } else {
        finish(sums, bias, activation, lane_column, n);
        write_result(sums, c + blockIdx.z * elements, row, column, m, n);
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
    store(c + first, Element(pair_of(sum.value[0], 0.0f)), inside);
#else
    unsigned words[N / 2];
#pragma unroll
    for (unsigned i = 0; i < N / 2; ++i) words[i] = pair_of(sum.value[2 * i], sum.value[2 * i + 1]);
    store<N / 2>(c + first, words, inside);
#endif
}
