// Warp 0 loads chunks into two buffers in turn. Warps 1 and 2 double the values, and thread 32 stores the results.
extern "C" __global__ void k(const int* x, int* out) {
    __shared__ __align__(128) int in[2][64], doubled[2][64];
    __shared__ unsigned long long full[2], empty[2];
    if (threadIdx.x == 0)
        for (int i = 0; i < 2; i++) { start(&full[i], 1); start(&empty[i], 64); }
    __syncthreads();
    if (threadIdx.x < 32) {
        if (threadIdx.x == 0)
            for (int c = 0; c < 7; c++) {
                int s = c & 1, phase = c / 2 & 1;
                wait(&empty[s], phase ^ 1);
                expect(&full[s], 256);
                copy(in[s], x + c * 64, 128, &full[s]);
                copy(in[s] + 32, x + c * 64 + 32, 128, &full[s]);
            }
        return;
    }
    int t = threadIdx.x - 32;
    for (int c = 0; c < 7; c++) {
        int s = c & 1, phase = c / 2 & 1;
        wait(&full[s], phase);
        int value = in[s][63 - t];
        arrive(&empty[s]);
        if (t == 0) asm volatile("cp.async.bulk.wait_group.read 1;" ::: "memory");
        asm volatile("bar.sync 1, 64;" ::: "memory");
        doubled[s][t] = 2 * value;
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
        asm volatile("bar.sync 2, 64;" ::: "memory");
        if (t == 0) {
            asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], 256;"
                         :: "l"(out + c * 64), "r"(at(doubled[s])) : "memory");
            asm volatile("cp.async.bulk.commit_group;");
        }
    }
    if (t == 0) asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
}
