// What kernels of f16 and bf16 products on tensor cores share: mma.sync and its fragments, tiles in shared memory,
// copies into them, packed and predicated stores, and the second pass of split-K. Sums are f32.
//
// Defined before the include: DTYPE_F16 or DTYPE_BF16 as 1.
//
// A tile holds one operand of a product: `extent` (rows of A or columns of B) by `reduction`. Either may be the
// contiguous one in memory and lies along the rows of the tile as it does there: ldmatrix transposes where needed.
// Rows are made of 16-byte chunks, exchanged by an XOR with the row number: then 8 successive rows at one chunk, and 8
// successive chunks as they are copied, both cover all 32 banks. No padding, no bank conflicts.

#include "packet.cuh"

#if DTYPE_BF16
#define ELEMENT "bf16"
#else
#define ELEMENT "f16"
#endif

using Element = unsigned short;  // the bits of one f16 or bf16

constexpr unsigned CHUNK_BYTES = 16;
constexpr unsigned CHUNK = CHUNK_BYTES / sizeof(Element);
[[maybe_unused]] constexpr unsigned STEP_K = 16;  // reduction of one mma.sync.m16n8k16

#if !DTYPE_TF32
// d += a b, for a 16 x 16 (a[half of the rows][half of the reduction]) and b 16 x 8 (b[half of the reduction]). Before
// sm_80, which have no mma.sync of that shape, two of half the reduction.
#if __CUDA_ARCH__ >= 800
__device__ __forceinline__ void multiply_add(float (&d)[4], const unsigned (&a)[2][2], const unsigned (&b)[2]) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32." ELEMENT "." ELEMENT ".f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0][0]), "r"(a[1][0]), "r"(a[0][1]), "r"(a[1][1]), "r"(b[0]), "r"(b[1]));
}
#else
__device__ __forceinline__ void multiply_add(float (&d)[4], const unsigned (&a)[2][2], const unsigned (&b)[2]) {
#pragma unroll
    for (unsigned half = 0; half < 2; ++half)
        asm("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
            : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
            : "r"(a[0][half]), "r"(a[1][half]), "r"(b[half]));
}
#endif
#endif

// The tile of one operand in shared memory. ALONG_K: the reduction is contiguous.
template <unsigned EXTENT, unsigned REDUCTION, bool ALONG_K>
struct Tile {
    static constexpr bool along_k = ALONG_K;
    static constexpr unsigned ROWS = ALONG_K ? EXTENT : REDUCTION;
    static constexpr unsigned WIDTH = ALONG_K ? REDUCTION : EXTENT;
    static constexpr unsigned ROW_BYTES = WIDTH * sizeof(Element);
    static constexpr unsigned BYTES = ROWS * ROW_BYTES;
    static constexpr unsigned CHUNKS = WIDTH / CHUNK;
    static_assert(CHUNKS >= 4 && (CHUNKS & (CHUNKS - 1)) == 0, "rows of whole periods of the exchange");

    // What the chunk numbers of a row are XORed with, in bytes.
    __device__ __forceinline__ static constexpr unsigned exchange(unsigned row) {
        return (CHUNKS >= 8 ? row % 8 : row / 2 % 4) * CHUNK_BYTES;
    }

    // Where an element lies, in bytes from the start of the tile.
    __device__ __forceinline__ static unsigned place(unsigned row, unsigned column) {
        return row * ROW_BYTES + (column * sizeof(Element) ^ exchange(row));
    }

    // Where the lane's part of a fragment lies that begins at `extent` of the tile, a multiple of 16.
    __device__ __forceinline__ static unsigned fragment_place(unsigned extent) {
        const unsigned row = threadIdx.x % 16, column = threadIdx.x % 32 / 16 * CHUNK;
        return ALONG_K ? extent * ROW_BYTES + place(row, column) : place(row, extent + column);
    }

    // Reads the 16 x 16 fragment `extent` and `reduction` further, constants once unrolled, as
    // fragment[half of the extent][half of the reduction].
    __device__ __forceinline__ static void read(unsigned (&fragment)[2][2], unsigned tile, unsigned fragment_place,
                                                unsigned extent, unsigned reduction) {
        if constexpr (ALONG_K) {
            const unsigned address = tile + (fragment_place ^ reduction * sizeof(Element)) + extent * ROW_BYTES;
            asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                         : "=r"(fragment[0][0]), "=r"(fragment[1][0]), "=r"(fragment[0][1]), "=r"(fragment[1][1])
                         : "r"(address)
                         : "memory");
        } else {
            const unsigned address = tile + (fragment_place ^ extent * sizeof(Element)) + reduction * ROW_BYTES;
            asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                         : "=r"(fragment[0][0]), "=r"(fragment[0][1]), "=r"(fragment[1][0]), "=r"(fragment[1][1])
                         : "r"(address)
                         : "memory");
        }
    }
};

// Starts a copy of N elements to shared memory; zeros, and nothing read, where `inside` is false. Wide copies bring
// whole lines into L2: where a row of a tile is half a line, the next tile wants the other half.
template <unsigned N>
__device__ __forceinline__ void copy_async(unsigned target, const Element* source, bool inside) {
    static_assert(N == 8 || N == 2, "16 or 4 bytes");
    const unsigned bytes = inside ? N * sizeof(Element) : 0;
    if constexpr (N == 8)
        asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(target), "l"(source), "r"(bytes)
                     : "memory");
    else
        asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(target), "l"(source), "r"(bytes)
                     : "memory");
}

__device__ __forceinline__ void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// Waits until all but the PENDING newest groups of copies have landed.
template <unsigned PENDING>
__device__ __forceinline__ void wait_for_copies() {
    asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
}

// Two elements on their way through registers, for sources that are not aligned; zeros where `inside` is false.
struct Pair {
    Element value[2];

    __device__ __forceinline__ void start(const Element* source, bool first_inside, bool second_inside) {
        asm volatile(
            "{ .reg .pred p, q; setp.ne.u32 p, %3, 0; setp.ne.u32 q, %4, 0;\n"
            "  mov.b16 %0, 0; mov.b16 %1, 0;\n"
            "  @p ld.global.nc.b16 %0, [%2]; @q ld.global.nc.b16 %1, [%2 + 2]; }"
            : "=&h"(value[0]), "=&h"(value[1])
            : "l"(source), "r"(unsigned(first_inside)), "r"(unsigned(second_inside)));
    }

    __device__ __forceinline__ void finish(unsigned target) const {
        asm volatile("{ .reg .b32 pair; mov.b32 pair, {%1, %2}; st.shared.b32 [%0], pair; }" ::"r"(target),
                     "h"(value[0]), "h"(value[1])
                     : "memory");
    }
};

// Two elements in a word, the first in its lower half, each rounded to nearest.
__device__ __forceinline__ unsigned pack(float first, float second) {
    unsigned word;
#if __CUDA_ARCH__ >= 800
    asm("cvt.rn." ELEMENT "x2.f32 %0, %2, %1;" : "=r"(word) : "f"(first), "f"(second));
#else
    asm("{ .reg .b16 low, high; cvt.rn.f16.f32 low, %1; cvt.rn.f16.f32 high, %2; mov.b32 %0, {low, high}; }"
        : "=r"(word)
        : "f"(first), "f"(second));
#endif
    return word;
}

// Among four neighbouring lanes, word i of lane j becomes word j of lane i: a lane that held two columns of each of
// four mma tiles then holds eight columns of one.
__device__ __forceinline__ void transpose_quad(unsigned (&word)[4]) {
#pragma unroll
    for (unsigned distance = 1; distance <= 2; distance *= 2) {
        const bool upper = threadIdx.x & distance;
#pragma unroll
        for (unsigned i = 0; i < 2; ++i) {
            unsigned& first = word[distance == 1 ? 2 * i : i];
            unsigned& second = word[distance == 1 ? 2 * i + 1 : i + 2];
            const unsigned got = __shfl_xor_sync(0xffffffff, upper ? first : second, distance);
            first = upper ? got : first;
            second = upper ? second : got;
        }
    }
}

[[maybe_unused]] constexpr unsigned REDUCE_THREADS = 256;

// output[i] = sum over s of partial[s * elements + i], in the order of s, rounded once: N elements a thread.
template <unsigned N>
__device__ __forceinline__ void add_partials(const float* partial, Element* output, unsigned elements,
                                             unsigned splits) {
    const unsigned first = (blockIdx.x * REDUCE_THREADS + threadIdx.x) * N;
    const bool inside = first < elements;
    partial += first;
    float sum[N] = {};
#pragma unroll 1
    for (unsigned split = 0; split < splits; ++split) {
        float next[N];
        if constexpr (N == 4) {
            const Floats<4> four = load_floats<4>(partial, inside);
#pragma unroll
            for (unsigned i = 0; i < N; ++i) next[i] = four.value[i];
        } else {
#pragma unroll
            for (unsigned i = 0; i < N; ++i) next[i] = load_floats<1>(partial + i, inside).value[0];
        }
#pragma unroll
        for (unsigned i = 0; i < N; ++i) sum[i] += next[i];
        partial += elements;
    }
    if constexpr (N == 1) {
        store_half(output + first, Element(pack(sum[0], 0)), inside);
    } else {
        Packet<2 * N> words;
#pragma unroll
        for (unsigned i = 0; i < N / 2; ++i) words.word[i] = pack(sum[2 * i], sum[2 * i + 1]);
        store_packet(output + first, words, inside);
    }
}
