// What matrix products by TMA have in common: tiles of A and B whose rows are the 128 bytes that a swizzle spans, and the
// headers on which they stand.
//
// Defined before the include: the tunables, the dtype (DTYPE_F16, DTYPE_BF16 or DTYPE_F8E4M3 as 1), WARP_M and WARP_N, and
// B_ROWS, the columns of C whose part of B a block loads.

#define THROUGH_REGISTERS 0
#define FRAGMENTS 1
#define VECTOR 8

#if DTYPE_F8E4M3
#define DTYPE_TF32 1  // of the headers: without the product and the stores of 16-bit numbers
#if BLOCK_K != 128
#error "a row of a tile is 128 bytes"
#endif
#undef BLOCK_K
#define BLOCK_K 64  // in pairs, as to the headers an element is one
constexpr unsigned DEPTH = 128;  // numbers in a row of a tile
#else
constexpr unsigned DEPTH = BLOCK_K;
#endif

#include "mma.cuh"
#include "epilogue.cuh"

using Scalar = Element;
using ATile = Tile<BLOCK_M, BLOCK_K, true>;
using BTile = Tile<B_ROWS, BLOCK_K, true>;

constexpr unsigned UNIT = VECTOR;
constexpr unsigned MMA_K = STEP_K;

#if DTYPE_F8E4M3
__device__ void multiply_add(float (&)[4], const unsigned (&)[2][2], const unsigned (&)[2]);  // not used
#endif
#include "matmul_tiles.cuh"
#include "tma.cuh"
#include "clusters.cuh"
#if DTYPE_F8E4M3
#include "scaled.cuh"
#endif

constexpr unsigned ROW_BYTES = 128;  // of a tile: the span of the swizzle
static_assert(ATile::ROW_BYTES == ROW_BYTES, "whole rows of the swizzle");
