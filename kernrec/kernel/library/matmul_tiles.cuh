// The body of a matrix product on tensor cores, whatever its elements: which tile of C is a block's, how the tiles of A
// and B come into shared memory, the loop over them, and stores of sums in f32.
//
// Defined before the include: what mma_tiles.cuh needs, UNIT (elements of one write to shared memory) and Scalar (an
// element).
//
// Edges cost what full tiles cost: what lies past an edge is filled with zeros by copies that read nothing, and stores
// are predicated. So every block executes prologue + trips * body instructions, for any trips >= 1.
//
// A tensor holds at most 2^31 elements: offsets of elements within one product fit 32 unsigned bits.

#include "mma_tiles.cuh"

// `pointer` ROWS rows of `pitch` elements further. In one instruction: as C++, the 64-bit product would be kept in two
// registers throughout the loop.
template <unsigned ROWS>
__device__ __forceinline__ const Scalar* rows_ahead(const Scalar* pointer, unsigned pitch) {
    asm("mad.wide.u32 %0, %1, %2, %0;" : "+l"(pointer) : "r"(pitch), "n"(ROWS * sizeof(Scalar)));
    return pointer;
}

#if THROUGH_REGISTERS
// 16 bytes on their way through registers; zeros where `inside` is false.
struct Staged {
    Packet<16> packet;

    __device__ __forceinline__ void start(const Scalar* source, bool inside) {
        packet = load_packet<16>(source, inside);
    }

    __device__ __forceinline__ void finish(unsigned target) const {
        asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(target), "r"(packet.word[0]),
                     "r"(packet.word[1]), "r"(packet.word[2]), "r"(packet.word[3])
                     : "memory");
    }
};
#endif

// One thread's share in loading the tiles of one operand.
template <class T>
struct Loader {
    static constexpr unsigned PER_ROW = T::WIDTH / UNIT;
    static constexpr unsigned ROW_STEP = THREADS / PER_ROW;  // rows between two loads of a thread
    static constexpr unsigned LOADS = T::ROWS / ROW_STEP;
    static_assert(THREADS % PER_ROW == 0 && LOADS * ROW_STEP == T::ROWS, "a thread loads one column, evenly");

    const Scalar* source;
    unsigned pitch;  // elements from row to row
    int rows_left, columns_left;  // from this thread's first element to the edge
    unsigned place;
#if THROUGH_REGISTERS && VECTOR == 1
    Pair staged[LOADS];
#elif THROUGH_REGISTERS
    Staged staged[LOADS];
#endif

    // From the tile at `extent_begin` (of `extent` rows of A or columns of B) and `k_begin`; past `k_end` are zeros.
    __device__ __forceinline__ Loader(const Scalar* operand, unsigned extent, unsigned k, unsigned extent_begin,
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
        const Scalar* row = source;
#pragma unroll
        for (unsigned i = 0; i < LOADS; ++i) {
            const bool inside = int(i * ROW_STEP) < rows_left && columns_left > 0;
#if THROUGH_REGISTERS && VECTOR == 1
            staged[i].start(row, inside, inside && columns_left > 1);
#elif THROUGH_REGISTERS
            staged[i].start(row, inside);
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

#if THROUGH_REGISTERS
    // Writes the fetched tile from registers to `tile`.
    __device__ __forceinline__ void settle(unsigned tile) const {
#pragma unroll
        for (unsigned i = 0; i < LOADS; ++i) staged[i].finish(target(tile, i));
    }
#endif
};

// What a block computes. Grid: x = tiles of C, walked in bands of `raster` tile rows, down the rows of a band first, so
// that blocks in flight share tiles of A and B in L2; y = shares of the reduction, of which the first `longer_shares`
// have one tile more than `share`; z = products of a batch.
struct Work {
    unsigned tile_row, tile_column, trips, k_begin, k_end;

    __device__ __forceinline__ Work(unsigned k, unsigned tiles_m, unsigned tiles_n, unsigned raster, unsigned share,
                                    unsigned longer_shares) {
        const unsigned band_tiles = raster * tiles_n;
        const unsigned band = blockIdx.x / band_tiles;
        const unsigned in_band = blockIdx.x - band * band_tiles;
        const unsigned band_rows = min(raster, tiles_m - band * raster);
        const unsigned tile_n = in_band / band_rows;
        tile_row = (band * raster + in_band - tile_n * band_rows) * BLOCK_M;
        tile_column = tile_n * BLOCK_N;
        trips = share + (blockIdx.y < longer_shares);
        k_begin = (blockIdx.y * share + min(blockIdx.y, longer_shares)) * BLOCK_K;
        k_end = min(k, k_begin + trips * BLOCK_K);
    }
};

// sums += the tile of A times the tile of B, for the warp's part of C at `warp_row` and `warp_column` of the block's.
__device__ __forceinline__ void multiply_matrices(Sums& sums, const Scalar* a, const Scalar* b, unsigned m, unsigned n,
                                                  unsigned k, const Work& work, unsigned warp_row,
                                                  unsigned warp_column) {
    extern __shared__ __align__(128) unsigned char shared[];
    const unsigned slots = static_cast<unsigned>(__cvta_generic_to_shared(shared));

    Loader<ATile> a_loader(a + size_t(blockIdx.z) * m * k, m, k, work.tile_row, work.k_begin, work.k_end);
    Loader<BTile> b_loader(b + size_t(blockIdx.z) * n * k, n, k, work.tile_column, work.k_begin, work.k_end);
    const auto fetch = [&](unsigned slot) {
        a_loader.fetch(slot);
        b_loader.fetch(slot + ATile::BYTES);
#if !THROUGH_REGISTERS
        commit_copies();
#endif
    };
    const auto settle = [&](unsigned slot) {
#if THROUGH_REGISTERS
        a_loader.settle(slot);
        b_loader.settle(slot + ATile::BYTES);
#endif
    };
    const unsigned a_place = ATile::fragment_place(warp_row), b_place = BTile::fragment_place(warp_column);
    multiply_tiles(sums, slots, work.trips, a_place, b_place, fetch, settle);
}

// Bias and activation of the warp's sums; `column` is the lane's first, n columns.
template <class Bias>
__device__ __forceinline__ void finish(Sums& sums, const Bias* __restrict__ bias, unsigned activation, unsigned column,
                                       unsigned n) {
    if (bias) {
#pragma unroll
        for (unsigned j = 0; j < WARP_N / 8; ++j)
#pragma unroll
            for (unsigned e = 0; e < 2; ++e) {
                const float value = bias_at(bias, min(column + j * 8 + e, n - 1));
#pragma unroll
                for (unsigned i = 0; i < WARP_M / 16; ++i) {
                    sums[i][j][e] += value;
                    sums[i][j][e + 2] += value;
                }
            }
    }
    activate(activation, [&](auto change) {
#pragma unroll
        for (unsigned i = 0; i < WARP_M / 16; ++i)
#pragma unroll
            for (unsigned j = 0; j < WARP_N / 8; ++j)
#pragma unroll
                for (unsigned e = 0; e < 4; ++e) sums[i][j][e] = change(sums[i][j][e]);
    });
}

// A row-major matrix of m x n that sums are stored to; `row` is the lane's first.
template <class Element>
struct Matrix {
    Element* first;
    unsigned row, m, n;

    __device__ __forceinline__ Element* at(unsigned column, unsigned next = 0) const {
        return first + (row * n + column + next);
    }

    __device__ __forceinline__ bool holds(unsigned column) const { return row < m && column < n; }
};
