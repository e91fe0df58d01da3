// y[columns,rows] = x[rows,columns], elements of 4 or 2 bytes moved as they are.
//
// A block owns a tile of TILE_ROWS x TILE_COLUMNS of x. A thread reads VECTOR x VECTOR patches, a packet of VECTOR
// elements from each of VECTOR rows, transposes them in registers, and puts them into shared memory as packets along
// the rows of x, which are the columns of y. From there whole rows of y are read and written, a packet at a time. So
// global and shared memory are both accessed a packet at a time, in both directions.
//
// Shared memory, no bank conflicts and no padding: for each column of x a row of TILE_ROWS elements, a multiple of
// 128 bytes, whose packets are exchanged by an XOR with the number of the patch column. Then patches side by side, as
// they are written, and packets along a row, as they are read, both cover all 32 banks. (Packets of 2 bytes are
// exchanged in pairs: a pair shares its bank.)
//
// Packets past an edge are predicated: they cost what others do, and touch no memory.
//
// A tensor holds at most 2^31 elements: element offsets fit 32 unsigned bits.

#include "packet.cuh"

#if DTYPE_F32
using Element = unsigned;
#else
using Element = unsigned short;
#endif

constexpr unsigned BYTES = VECTOR * sizeof(Element);  // of a packet
constexpr unsigned ROW_BYTES = TILE_ROWS * sizeof(Element);  // of shared memory
constexpr unsigned PATCHES_ACROSS = TILE_COLUMNS / VECTOR, PACKETS_DOWN = TILE_ROWS / VECTOR;
constexpr unsigned PATCHES = PATCHES_ACROSS * PACKETS_DOWN / THREADS;  // of a thread
constexpr unsigned PATCH_STEP = THREADS / PATCHES_ACROSS;              // patch rows between two patches of a thread
constexpr unsigned COLUMN_STEP = THREADS / PACKETS_DOWN;               // columns of x between two of its stores
constexpr unsigned STORES = TILE_COLUMNS / COLUMN_STEP;
constexpr unsigned IN_WORD = BYTES < 4 ? 4 / BYTES : 1;     // packets that share a bank
constexpr unsigned AT_ONCE = BYTES < 4 ? 32 : 128 / BYTES;  // packets that one pass through the banks serves

static_assert(ROW_BYTES % 128 == 0 && PATCHES_ACROSS % AT_ONCE == 0, "the exchange covers all banks");
static_assert(PATCHES * THREADS == PATCHES_ACROSS * PACKETS_DOWN && PATCH_STEP * PATCHES_ACROSS == THREADS, "evenly");
static_assert(COLUMN_STEP * PACKETS_DOWN == THREADS && STORES * COLUMN_STEP == TILE_COLUMNS, "evenly");

using Vector = Packet<BYTES>;

__device__ __forceinline__ void put(unsigned char* place, const Vector& p) {
    if constexpr (BYTES == 16)
        *reinterpret_cast<uint4*>(place) = make_uint4(p.word[0], p.word[1], p.word[2], p.word[3]);
    else if constexpr (BYTES == 8)
        *reinterpret_cast<uint2*>(place) = make_uint2(p.word[0], p.word[1]);
    else if constexpr (BYTES == 4)
        *reinterpret_cast<unsigned*>(place) = p.word[0];
    else
        *reinterpret_cast<Element*>(place) = static_cast<Element>(p.word[0]);
}

__device__ __forceinline__ Vector get(const unsigned char* place) {
    if constexpr (BYTES == 16) {
        [[maybe_unused]] const uint4 v = *reinterpret_cast<const uint4*>(place);
        return {v.x, v.y, v.z, v.w};
    } else if constexpr (BYTES == 8) {
        [[maybe_unused]] const uint2 v = *reinterpret_cast<const uint2*>(place);
        return {v.x, v.y};
    } else if constexpr (BYTES == 4) {
        return {*reinterpret_cast<const unsigned*>(place)};
    } else {
        return {*reinterpret_cast<const Element*>(place)};
    }
}

// Stores a packet if `place` is before `end`. A single element of 16 bits has not left its 16-bit register.
__device__ __forceinline__ void store(Element* target, const Vector& p, unsigned place, unsigned end) {
    if constexpr (BYTES == 2)
        asm volatile("{ .reg .pred p; setp.lt.u32 p, %2, %3; @p st.global.b16 [%1], %0; }" ::"h"(
                         static_cast<unsigned short>(p.word[0])),
                     "l"(target), "r"(place), "r"(end)
                     : "memory");
    else
        store_packet(target, p, place, end);
}

// Column `column` of a patch as a packet.
__device__ __forceinline__ Vector column_of(const Vector (&patch)[VECTOR], unsigned column) {
    Vector p;
    if constexpr (sizeof(Element) == 4 || VECTOR == 1) {
#pragma unroll
        for (unsigned i = 0; i < VECTOR; ++i) p.word[i] = patch[i].word[column];
    } else {
#pragma unroll
        for (unsigned i = 0; i < Vector::WORDS; ++i)  // the lower halves of two words, or the upper ones
            p.word[i] = __byte_perm(patch[2 * i].word[column / 2], patch[2 * i + 1].word[column / 2],
                                    column % 2 ? 0x7632 : 0x5410);
    }
    return p;
}

// What the packet numbers of a column of x are XORed with. Columns of disjoint bits: that of their sum is the XOR.
__device__ __forceinline__ constexpr unsigned exchange(unsigned column) {
    return column / VECTOR % AT_ONCE * IN_WORD;
}

// Grid: x = tiles of x, along its rows first.
// The assembler is told that one block to an SM will do: left to itself it may spill a few registers to fit more.
extern "C" __global__ void __launch_bounds__(THREADS, 1)
    transpose_tiled(const Element* __restrict__ x, Element* __restrict__ y, unsigned rows, unsigned columns,
                    unsigned tiles_across) {
    extern __shared__ __align__(16) unsigned char shared[];
    const unsigned tile_down = blockIdx.x / tiles_across;
    const unsigned first_row = tile_down * TILE_ROWS;
    const unsigned first_column = (blockIdx.x - tile_down * tiles_across) * TILE_COLUMNS;

    {
        const unsigned across = threadIdx.x % PATCHES_ACROSS, down = threadIdx.x / PATCHES_ACROSS;
        const unsigned row = first_row + down * VECTOR, column = first_column + across * VECTOR;
        const unsigned corner = across * VECTOR * ROW_BYTES + (down ^ exchange(across * VECTOR)) * BYTES;
        const Element* source = x + (size_t(row) * columns + column);
        const unsigned rows_left = column < columns && row < rows ? rows - row : 0;
        Vector patch[PATCHES][VECTOR];
#pragma unroll
        for (unsigned i = 0; i < PATCHES; ++i)
#pragma unroll
            for (unsigned j = 0; j < VECTOR; ++j) {
                const unsigned step = i * PATCH_STEP * VECTOR + j;
                patch[i][j] = load_packet<BYTES>(source + size_t(step) * columns, step, rows_left);
            }
#pragma unroll
        for (unsigned i = 0; i < PATCHES; ++i)
#pragma unroll
            for (unsigned j = 0; j < VECTOR; ++j)
                put(shared + (corner ^ i * PATCH_STEP * BYTES) + j * ROW_BYTES, column_of(patch[i], j));
    }
    __syncthreads();
    {
        const unsigned packet = threadIdx.x % PACKETS_DOWN, column = threadIdx.x / PACKETS_DOWN;
        const unsigned y_row = first_column + column, y_column = first_row + packet * VECTOR;
        const unsigned begin = column * ROW_BYTES + (packet ^ exchange(column)) * BYTES;
        Element* target = y + (size_t(y_row) * rows + y_column);
        const unsigned columns_left = y_column < rows && y_row < columns ? columns - y_row : 0;
#pragma unroll
        for (unsigned i = 0; i < STORES; ++i) {
            const unsigned step = i * COLUMN_STEP;
            const Vector p = get(shared + (begin ^ exchange(step) * BYTES) + step * ROW_BYTES);
            store(target + size_t(step) * rows, p, step, columns_left);
        }
    }
}
