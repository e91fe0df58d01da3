extern "C" __global__ void k(const __grid_constant__ Map in, const __grid_constant__ Map out, int x, int y, int bytes) {
    extern __shared__ __align__(1024) unsigned short tile[];
    __shared__ unsigned long long bar;
    if (threadIdx.x == 0) {
        start(&bar, 1);
        asm volatile("fence.mbarrier_init.release.cluster;");
        expect(&bar, bytes);
        asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.L2::cache_hint"
                     " [%0], [%1, {%2, %3}], [%4], %5;"
                     :: "r"(at(tile)), "l"(&in), "r"(x), "r"(y), "r"(at(&bar)), "l"(0x1000000000000000l) : "memory");
    }
    __syncthreads();
    wait(&bar, 0);
    for (int i = threadIdx.x; i < bytes / 2; i += 32) tile[i] += 1;
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    __syncthreads();
    if (threadIdx.x == 0) {
        asm volatile("STORE.tensor.2d.global.shared::cta.REDUCEbulk_group [%0, {%1, %2}], [%3];"
                     :: "l"(&out), "r"(x), "r"(y), "r"(at(tile)) : "memory");
        asm volatile("cp.async.bulk.commit_group;");
        asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
    }
}
