// Copies of f32 to shared memory, and one multiply-add of TF32 on tensor cores.

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
