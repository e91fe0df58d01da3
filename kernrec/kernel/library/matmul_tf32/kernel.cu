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

using Scalar = float;

constexpr unsigned WORDS = CHUNK_BYTES / sizeof(Scalar);  // of a chunk
constexpr unsigned UNIT = VECTOR;                         // elements of a write to shared memory
constexpr unsigned MMA_K = 8;                             // reduction of one mma.sync.m16n8k8

// The tile of one operand in shared memory, as that of mma.cuh with elements of 32 bits: 16-byte chunks exchanged by an
// XOR with the row number. Across the reduction a fragment takes eight words of each of four rows: those must lie in
// different eighths of 32 banks, so there pairs of chunks are exchanged.
template <unsigned EXTENT, unsigned REDUCTION, bool ALONG_K>
struct WordTile {
    static constexpr bool along_k = ALONG_K;
    static constexpr unsigned ROWS = ALONG_K ? EXTENT : REDUCTION;
    static constexpr unsigned WIDTH = ALONG_K ? REDUCTION : EXTENT;
    static constexpr unsigned ROW_BYTES = WIDTH * sizeof(Scalar);
    static constexpr unsigned BYTES = ROWS * ROW_BYTES;
    static constexpr unsigned CHUNKS = WIDTH / WORDS;
    static_assert(CHUNKS >= (ALONG_K ? 4 : 8) && (CHUNKS & (CHUNKS - 1)) == 0, "rows of whole periods of the exchange");

    // What the chunk numbers of a row are XORed with, in bytes.
    __device__ __forceinline__ static constexpr unsigned exchange(unsigned row) {
        return (!ALONG_K ? row % 4 * 2 : CHUNKS >= 8 ? row % 8 : row / 2 % 4) * CHUNK_BYTES;
    }

    // Where an element lies, in bytes from the start of the tile.
    __device__ __forceinline__ static unsigned place(unsigned row, unsigned column) {
        return row * ROW_BYTES + (column * sizeof(Scalar) ^ exchange(row));
    }

    // Where the lane's part of a fragment lies that begins at `extent` of the tile, a multiple of 16.
    __device__ __forceinline__ static unsigned fragment_place(unsigned extent) {
        const unsigned lane = threadIdx.x % 32;
        return ALONG_K ? extent * ROW_BYTES + place(lane % 16, lane / 16 * WORDS) : place(lane % 4, extent + lane / 4);
    }

    // Reads the 16 x 8 fragment `extent` and `reduction` further, constants once unrolled, as
    // fragment[half of the extent][half of the reduction], rounded to TF32.
    __device__ __forceinline__ static void read(unsigned (&fragment)[2][2], unsigned tile, unsigned fragment_place,
                                                unsigned extent, unsigned reduction) {
        if constexpr (ALONG_K) {
            const unsigned address = tile + (fragment_place ^ reduction * sizeof(Scalar)) + extent * ROW_BYTES;
            asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                         : "=r"(fragment[0][0]), "=r"(fragment[1][0]), "=r"(fragment[0][1]), "=r"(fragment[1][1])
                         : "r"(address)
                         : "memory");
        } else {
#pragma unroll
            for (unsigned i = 0; i < 4; ++i) {
                const unsigned column = extent + i / 2 * 8, row = reduction + i % 2 * 4;
                const unsigned address = tile + (fragment_place ^ column * sizeof(Scalar)) + row * ROW_BYTES;
                asm volatile("ld.shared.b32 %0, [%1];" : "=r"(fragment[i / 2][i % 2]) : "r"(address) : "memory");
            }
        }
#pragma unroll
        for (unsigned i = 0; i < 4; ++i) {
            unsigned& word = fragment[i / 2][i % 2];
            asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(word) : "f"(__uint_as_float(word)));
        }
    }
};

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

// Starts a copy of N elements to shared memory; zeros, and nothing read, where `inside` is false.
template <unsigned N>
__device__ __forceinline__ void copy_async(unsigned target, const float* source, bool inside) {
    static_assert(N == 4 || N == 1, "16 or 4 bytes");
    const unsigned bytes = inside ? N * sizeof(float) : 0;
    if constexpr (N == 4)
        asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(target), "l"(source), "r"(bytes)
                     : "memory");
    else
        asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(target), "l"(source), "r"(bytes)
                     : "memory");
}

// d += a b, for a 16 x 8 (a[half of the rows][half of the reduction]) and b 8 x 8 (b[half of the reduction]).
__device__ __forceinline__ void multiply_add(float (&d)[4], const unsigned (&a)[2][2], const unsigned (&b)[2]) {
    asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0][0]), "r"(a[1][0]), "r"(a[0][1]), "r"(a[1][1]), "r"(b[0]), "r"(b[1]));
}

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
