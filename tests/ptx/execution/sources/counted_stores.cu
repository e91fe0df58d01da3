__device__ unsigned at(const void* p) { return (unsigned)__cvta_generic_to_shared(p); }
extern "C" __global__ void __cluster_dims__(2, 1, 1) k(int* out) {
    __shared__ int s[32];
    __shared__ unsigned long long bar;
    unsigned rank, to, its;
    asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    s[threadIdx.x] = 7;
    if (threadIdx.x == 0) {
        asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" :: "r"(at(&bar)));
        asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], 128;" :: "r"(at(&bar)));
    }
    asm volatile("barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory");
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(to) : "r"(at(&s[threadIdx.x])), "r"(rank ^ 1));
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(its) : "r"(at(&bar)), "r"(rank ^ 1));
    asm volatile("STORE [%0], %1, [%2];" :: "r"(to), "r"(threadIdx.x + 100 * rank), "r"(its) : "memory");
    asm volatile("{ .reg .pred p; W: mbarrier.try_wait.parity.shared::cta.b64 p, [%0], 0; @!p bra W; }"
                 :: "r"(at(&bar)) : "memory");
    out[blockIdx.x * 32 + threadIdx.x] = s[threadIdx.x];
}
