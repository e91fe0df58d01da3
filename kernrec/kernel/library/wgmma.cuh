// Operands of wgmma.mma_async (sm_90a): tiles in shared memory, and sums in the registers of a warpgroup, of which
// d[j] are a thread's four of columns 8 j to 8 j + 7, as in mma.sync.

constexpr unsigned GROUP = 128;      // threads of a warpgroup
constexpr unsigned STEP_BYTES = 32;  // of a row along the reduction that one wgmma takes

// A tile as wgmma takes it that starts at shared address `tile`: rows of ROW_BYTES, swizzled over their length, eight
// of them one behind the other. LEADING: bytes to the same row of the next columns, of tiles that lie transposed.
template <unsigned ROW_BYTES, unsigned LEADING = 16>
__device__ __forceinline__ unsigned long long described(unsigned tile) {
    static_assert(ROW_BYTES == 64 || ROW_BYTES == 128, "a swizzle");
    constexpr unsigned long long swizzle = ROW_BYTES == 128 ? 1 : 2;
    return (swizzle << 62) | ((unsigned long long)(8 * ROW_BYTES) >> 4 << 32) |
           ((unsigned long long)(LEADING >> 4) << 16) | (tile >> 4);
}

// Places of operands in inline assembly: those of N / 2 sums.
#define PLACES_32                                                                                                      \
    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, "    \
    "%24, %25, %26, %27, %28, %29, %30, %31"
#define PLACES_40 PLACES_32 ", %32, %33, %34, %35, %36, %37, %38, %39"
#define PLACES_48 PLACES_40 ", %40, %41, %42, %43, %44, %45, %46, %47"
#define PLACES_64                                                                                                      \
    PLACES_48 ", %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define PLACES_88                                                                                                      \
    PLACES_64 ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, %80, %81, %82, %83, "  \
    "%84, %85, %86, %87"
#define PLACES_96 PLACES_88 ", %88, %89, %90, %91, %92, %93, %94, %95"
#define PLACES_128                                                                                                     \
    PLACES_96 ", %96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, %112, "    \
    "%113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"

// The sums themselves, as many: d[from] and on.
#define SUMS_AT(from) "+f"(d[from][0]), "+f"(d[from][1]), "+f"(d[from][2]), "+f"(d[from][3])
#define EIGHT_AT(from) SUMS_AT(from), SUMS_AT(from + 1)
#define MANY_AT(from) EIGHT_AT(from), EIGHT_AT(from + 2), EIGHT_AT(from + 4), EIGHT_AT(from + 6)
#define SUMS_32 MANY_AT(0)
#define SUMS_40 SUMS_32, EIGHT_AT(8)
#define SUMS_48 SUMS_40, EIGHT_AT(10)
#define SUMS_64 SUMS_32, MANY_AT(8)
#define SUMS_88 SUMS_64, EIGHT_AT(16), EIGHT_AT(18), EIGHT_AT(20)
#define SUMS_96 SUMS_64, MANY_AT(16)
#define SUMS_128 SUMS_96, MANY_AT(24)

// No product starts before what was written to its registers is there.
__device__ __forceinline__ void products_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }

// Ends the group of products that a later wait counts as one.
__device__ __forceinline__ void commit_products() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }

// Waits until all but the PENDING newest groups of products are done.
template <unsigned PENDING>
__device__ __forceinline__ void wait_for_products() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory");
}

// A register of a product: what was written to it is there before this place, and it is not read before it.
__device__ __forceinline__ void hold(float& d) { asm volatile("" : "+f"(d)::"memory"); }
__device__ __forceinline__ void hold(unsigned& a) { asm volatile("" : "+r"(a)::"memory"); }

template <typename Word, unsigned N>
__device__ __forceinline__ void hold(Word (&words)[N][4]) {
#pragma unroll
    for (unsigned j = 0; j < N; ++j)
#pragma unroll
        for (unsigned e = 0; e < 4; ++e) hold(words[j][e]);
}
