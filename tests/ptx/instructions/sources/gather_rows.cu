extern "C" __global__ void k(const __grid_constant__ Map in, short* out) {
    __shared__ __align__(1024) short tile[4 * 64];
    __shared__ unsigned long long bar;
    if (threadIdx.x == 0) {
        start(&bar, 1);
        expect(&bar, 512);
        asm volatile("cp.async.bulk.tensor.2d.shared::cta.global.tile::gather4.mbarrier::complete_tx::bytes"
                     " [%0], [%1, {%2, %3, %4, %5, %6}], [%7];"
                     :: "r"(at(tile)), "l"(&in), "r"(0), "r"(9), "r"(2), "r"(40), "r"(2), "r"(at(&bar)) : "memory");
    }
    __syncwarp();
    wait(&bar, 0);
    for (int i = threadIdx.x; i < 256; i += 32) out[i] = tile[i];
}
