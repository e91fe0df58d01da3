// C[m,n] = A[m,k] B[k,n], f16 or bf16 with f32 sums, on tensor cores.
//
// A block owns a BLOCK_M x BLOCK_N tile of C and walks the reduction in tiles of BLOCK_K that cp.async loads STAGES - 1
// ahead; a warp owns WARP_M x WARP_N of it, in mma.sync tiles of 16 x 8 x 16. With FRAGMENTS 2 the fragments of the
// next step are read while those of this one are multiplied, across the barrier between two tiles too.
//
// Either operand may lie along the reduction or across it (layouts nn, nt, tn, tt; the tiles of mma.cuh serve both).
// C is always row-major. VECTOR is what one copy moves: 8 elements; 2 where rows are even; 1, through registers, where
// they are of any length. Wide stores of C take eight columns a lane, exchanged within quads of lanes.
//
// Edges cost what full tiles cost: what lies past an edge is filled with zeros by copies that read nothing, and stores
// are predicated. So every block executes prologue + trips * body instructions, for any trips >= 1.
//
// Split-K: blockIdx.y takes an equal share of the reduction (the shares differ by one tile at most) and writes a
// partial C in f32; matmul_mma_reduce adds the partials in a fixed order.
//
// A tensor holds at most 2^31 elements: offsets of elements within one product fit 32 unsigned bits.

#include "mma.cuh"

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

constexpr unsigned WARPS_N = BLOCK_N / WARP_N;
constexpr unsigned THREADS = 32 * WARPS_N * (BLOCK_M / WARP_M);
constexpr unsigned SLOT = ATile::BYTES + BTile::BYTES;
constexpr unsigned UNIT = VECTOR == 1 ? 2 : VECTOR;  // elements of a write to shared memory
// With one set of fragments registers are kept to 128, so that 16 warps fit an SM: less read ahead, more to switch to.
// Otherwise the assembler is told that one block will do: left to itself it may spill a few to fit more.
constexpr unsigned MIN_BLOCKS = FRAGMENTS == 1 && VECTOR == 8 ? 512 / THREADS : 1;

static_assert(BLOCK_M % WARP_M == 0 && BLOCK_N % WARP_N == 0, "warps tile the block");
static_assert(WARP_M % 16 == 0 && WARP_N % 32 == 0, "whole mma tiles, four of them beside each other");
static_assert(BLOCK_K / STEP_K % 2 == 0, "fragments alternate");
static_assert(VECTOR > 1 || (STAGES == 2 && FRAGMENTS == 1), "through registers, more stages gain nothing");

// `pointer` ROWS rows of `pitch` elements further. In one instruction: as C++, the 64-bit product would be kept in two
// registers throughout the loop.
template <unsigned ROWS>
__device__ __forceinline__ const Element* rows_ahead(const Element* pointer, unsigned pitch) {
    asm("mad.wide.u32 %0, %1, %2, %0;" : "+l"(pointer) : "r"(pitch), "n"(ROWS * sizeof(Element)));
    return pointer;
}

// One thread's share in loading the tiles of one operand.
template <class T>
struct Loader {
    static constexpr unsigned PER_ROW = T::WIDTH / UNIT;
    static constexpr unsigned ROW_STEP = THREADS / PER_ROW;  // rows between two loads of a thread
    static constexpr unsigned LOADS = T::ROWS / ROW_STEP;
    static_assert(THREADS % PER_ROW == 0 && LOADS * ROW_STEP == T::ROWS, "a thread loads one column, evenly");

    const Element* source;
    unsigned pitch;  // elements from row to row
    int rows_left, columns_left;  // from this thread's first element to the edge
    unsigned place;
#if VECTOR == 1
    Pair pairs[LOADS];
#endif

    // From the tile at `extent_begin` (of `extent` rows of A or columns of B) and `k_begin`; past `k_end` are zeros.
    __device__ __forceinline__ Loader(const Element* operand, unsigned extent, unsigned k, unsigned extent_begin,
                                      unsigned k_begin, unsigned k_end)
        : pitch(T::along_k ? k : extent) {
        const unsigned row = threadIdx.x / PER_ROW, column = threadIdx.x % PER_ROW * UNIT;
        const unsigned first_row = (T::along_k ? extent_begin : k_begin) + row;
        const unsigned first_column = (T::along_k ? k_begin : extent_begin) + column;
        source = operand + (first_row * pitch + first_column);
        rows_left = int((T::along_k ? extent : k_end) - first_row);
        columns_left = int((T::along_k ? k_end : extent) - first_column);
        place = T::place(row, column);
    }

    // row < ROW_STEP, both powers of two: the exchange of row + i * ROW_STEP is that of row, XOR a constant
    __device__ __forceinline__ unsigned target(unsigned tile, unsigned i) const {
        return tile + (place ^ T::exchange(i * ROW_STEP)) + i * ROW_STEP * T::ROW_BYTES;
    }

    // Starts the loads of the next tile, towards `tile` in shared memory.
    __device__ __forceinline__ void fetch(unsigned tile) {
        const Element* row = source;
#pragma unroll
        for (unsigned i = 0; i < LOADS; ++i) {
            const bool inside = int(i * ROW_STEP) < rows_left && columns_left > 0;
#if VECTOR == 1
            pairs[i].start(row, inside, inside && columns_left > 1);
#else
            copy_async<VECTOR>(target(tile, i), row, inside);
#endif
            row = rows_ahead<ROW_STEP>(row, pitch);
        }
        if (T::along_k) {
            source += BLOCK_K;
            columns_left -= BLOCK_K;
        } else {
            source = rows_ahead<BLOCK_K>(source, pitch);
            rows_left -= BLOCK_K;
        }
    }

#if VECTOR == 1
    // Writes the fetched tile from registers to `tile`.
    __device__ __forceinline__ void settle(unsigned tile) const {
#pragma unroll
        for (unsigned i = 0; i < LOADS; ++i) pairs[i].finish(target(tile, i));
    }
#endif
};

// What a warp has summed up: the sums[i][j] of a lane lie in rows i * 16 + {0, 8} and columns j * 8 + {0, 1}, counted
// from row lane / 4 and column lane % 4 * 2.
using Sums = float[WARP_M / 16][WARP_N / 8][4];

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
            for (unsigned j = 0; j < WARP_N / 8; ++j) mma(sums[i][j], a[i], b[j / 2][j % 2]);
    }
};

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
                words[w] = pack(sum[0], sum[1]);
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

// Writes the sums to `partial` as they are; see `write_result`.
__device__ __forceinline__ void write_partial(const Sums& sums, float* partial, unsigned row, unsigned column,
                                              unsigned m, unsigned n) {
    column += threadIdx.x % 4 * 2;
#pragma unroll
    for (unsigned i = 0; i < WARP_M / 8; ++i, row += 8) {
#pragma unroll
        for (unsigned j = 0; j < WARP_N / 8; ++j) {
            const float* sum = sums[i / 2][j] + i % 2 * 2;
            const unsigned at = column + j * 8;
#if VECTOR == 1
            store(partial + (row * n + at), sum[0], row < m && at < n);
            store(partial + (row * n + at + 1), sum[1], row < m && at + 1 < n);
#else
            store(partial + (row * n + at), sum[0], sum[1], row < m && at < n);
#endif
        }
    }
}

// Grid: x = tiles of C, walked in bands of `raster` tile rows, down the rows of a band first, so that blocks in flight
// share tiles of A and B in L2; y = shares of the reduction; z = products of a batch. partial: null without split-K.
extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS)
    matmul_mma(const Element* __restrict__ a, const Element* __restrict__ b, Element* __restrict__ c,
               float* __restrict__ partial, unsigned m, unsigned n, unsigned k,
               unsigned tiles_m, unsigned tiles_n, unsigned raster,
               unsigned share, unsigned longer_shares) {  // tiles of the reduction; the first shares have one more
    extern __shared__ __align__(128) unsigned char shared[];
    const unsigned slots = static_cast<unsigned>(__cvta_generic_to_shared(shared));

    const unsigned band_tiles = raster * tiles_n;
    const unsigned band = blockIdx.x / band_tiles;
    const unsigned in_band = blockIdx.x - band * band_tiles;
    const unsigned band_rows = min(raster, tiles_m - band * raster);
    const unsigned tile_n = in_band / band_rows;
    const unsigned tile_row = (band * raster + in_band - tile_n * band_rows) * BLOCK_M;
    const unsigned tile_column = tile_n * BLOCK_N;

    const unsigned trips = share + (blockIdx.y < longer_shares);
    const unsigned k_begin = (blockIdx.y * share + min(blockIdx.y, longer_shares)) * BLOCK_K;
    const unsigned k_end = min(k, k_begin + trips * BLOCK_K);

    Loader<ATile> a_loader(a + size_t(blockIdx.z) * m * k, m, k, tile_row, k_begin, k_end);
    Loader<BTile> b_loader(b + size_t(blockIdx.z) * n * k, n, k, tile_column, k_begin, k_end);
    const auto fetch = [&](unsigned slot) {
        a_loader.fetch(slot);
        b_loader.fetch(slot + ATile::BYTES);
#if VECTOR > 1
        commit_copies();
#endif
    };

    const unsigned warp = threadIdx.x / 32;
    const unsigned warp_row = warp / WARPS_N * WARP_M, warp_column = warp % WARPS_N * WARP_N;
    const unsigned a_place = ATile::fragment_place(warp_row), b_place = BTile::fragment_place(warp_column);
    Sums sums = {};

#if VECTOR == 1
    Fragments fragments;
    const auto settle = [&](unsigned slot) {
        a_loader.settle(slot);
        b_loader.settle(slot + ATile::BYTES);
    };
    fetch(slots);
    settle(slots);
    __syncthreads();
    unsigned read = 0;
#pragma unroll 1
    for (unsigned trip = 0; trip < trips; ++trip) {
        fetch(slots);
#pragma unroll
        for (unsigned step = 0; step < BLOCK_K; step += STEP_K) {
            fragments.read(slots + read, a_place, b_place, step);
            fragments.multiply(sums);
        }
        read = SLOT - read;
        settle(slots + read);
        __syncthreads();
    }
#else
    const auto next = [](unsigned slot) { return slot == (STAGES - 1) * SLOT ? 0 : slot + SLOT; };
    const auto previous = [](unsigned slot) { return slot == 0 ? (STAGES - 1) * SLOT : slot - SLOT; };
#pragma unroll
    for (unsigned stage = 0; stage + 1 < STAGES; ++stage) fetch(slots + stage * SLOT);
    unsigned read = 0;
#if FRAGMENTS == 2
    Fragments fragments[2];
    wait_for_copies<STAGES - 2>();
    __syncthreads();
    fragments[0].read(slots, a_place, b_place, 0);
#pragma unroll 1
    for (unsigned trip = 0; trip < trips; ++trip) {
        fetch(slots + previous(read));
#pragma unroll
        for (unsigned step = 0; step < BLOCK_K; step += STEP_K) {
            if (step + STEP_K == BLOCK_K) {
                wait_for_copies<STAGES - 2>();
                __syncthreads();  // the next tile has landed for all, and all have read this one
                read = next(read);
            }
            fragments[(step / STEP_K + 1) % 2].read(slots + read, a_place, b_place, (step + STEP_K) % BLOCK_K);
            fragments[step / STEP_K % 2].multiply(sums);
        }
    }
#else
    Fragments fragments;
#pragma unroll 1
    for (unsigned trip = 0; trip < trips; ++trip) {
        wait_for_copies<STAGES - 2>();
        __syncthreads();  // the tile of this trip has landed for all, and all have done with the slot written next
        fetch(slots + previous(read));
#pragma unroll
        for (unsigned step = 0; step < BLOCK_K; step += STEP_K) {
            fragments.read(slots + read, a_place, b_place, step);
            fragments.multiply(sums);
        }
        read = next(read);
    }
#endif
    wait_for_copies<0>();
#endif

    const unsigned row = tile_row + warp_row + threadIdx.x % 32 / 4, column = tile_column + warp_column;
    const size_t elements = size_t(m) * n;
    if (partial)
        write_partial(sums, partial + (blockIdx.y * gridDim.z + blockIdx.z) * elements, row, column, m, n);
    else
        write_result(sums, c + blockIdx.z * elements, row, column, m, n);
}

// c[i] = sum over s of partial[s * elements + i], in the order of s.
// Grid: x = REDUCE_THREADS * min(VECTOR, 4) elements each.
extern "C" __global__ void __launch_bounds__(REDUCE_THREADS)
    matmul_mma_reduce(const float* __restrict__ partial, Element* __restrict__ c, unsigned elements,
                      unsigned splits) {
    add_partials<VECTOR == 8 ? 4 : VECTOR>(partial, c, elements, splits);
}
