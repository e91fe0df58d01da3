// Block 1 arrives at a barrier of block 0, but block 0 does not wait at this barrier.
extern "C" __global__ void __cluster_dims__(2, 1, 1) k(const int* x) {
    __shared__ __align__(128) int s[32];
    __shared__ unsigned long long told, full;
    unsigned rank, there;
    asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    if (threadIdx.x == 0) { start(&told, 1); start(&full, 1); }
    asm volatile("barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory");
    if (rank == 1 && threadIdx.x == 0) {
        expect(&full, 128);
        copy(s, x, 128, &full);
        wait(&full, 0);
        asm volatile("mapa.shared::cluster.u32 %0, %1, 0;" : "=r"(there) : "r"(at(&told)));
        asm volatile("mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%0];" :: "r"(there) : "memory");
    }
    asm volatile("barrier.cluster.arrive;\nbarrier.cluster.wait;" ::: "memory");
}
