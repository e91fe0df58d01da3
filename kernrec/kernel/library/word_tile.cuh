// Tiles of f32 in shared memory, for products of TF32 on tensor cores. Needs mma.cuh, and VECTOR: the elements of one
// copy.

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
