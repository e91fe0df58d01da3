__device__ unsigned at(const void* p) { return (unsigned)__cvta_generic_to_shared(p); }
extern "C" __global__ void __cluster_dims__(4, 1, 1) k(const int* x, int* out) {
    __shared__ __align__(16) int s[32];
    __shared__ unsigned long long bar;
    unsigned rank;
    asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    s[threadIdx.x] = -1;
    if (threadIdx.x == 0) {
        asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" :: "r"(at(&bar)));
        asm volatile("fence.mbarrier_init.release.cluster;");
        asm volatile("fence.proxy.async;");
        if (rank != 1) asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], 128;" :: "r"(at(&bar)));
    }
    asm volatile("barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory");
    if (threadIdx.x == 0 && rank == 2)
        asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster"
                     " [%0], [%1], 128, [%2], %3;"
                     :: "r"(at(s)), "l"(x + blockIdx.x / 4 * 32), "r"(at(&bar)), "h"((short)13) : "memory");
    if (rank != 1)
        asm volatile("{ .reg .pred p; W: mbarrier.try_wait.parity.shared::cta.b64 p, [%0], 0; @!p bra W; }"
                     :: "r"(at(&bar)) : "memory");
    out[blockIdx.x * 32 + threadIdx.x] = s[threadIdx.x];
}
