extern "C" __global__ void k(const int* x, int* o, int bytes) {
    __shared__ __align__(128) int s[64], t[64];
    __shared__ unsigned long long bar;
    if (threadIdx.x == 0) start(&bar, 1);
    __syncthreads();
    if (threadIdx.x == 0) {
        expect(&bar, 256);
        asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
                     :: "r"(at(s)), "l"(x), "r"(bytes), "r"(at(&bar)) : "memory");
        wait(&bar, 0);
        expect(&bar, 256);
        asm volatile("cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
                     :: "r"(at(t)), "r"(at(s)), "r"(256), "r"(at(&bar)) : "memory");
        wait(&bar, 1);
        asm volatile("cp.reduce.async.bulk.global.shared::cta.bulk_group.max.s32 [%0], [%1], %2;"
                     :: "l"(o), "r"(at(t)), "r"(256) : "memory");
        asm volatile("cp.async.bulk.commit_group;");
        asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
    }
}
