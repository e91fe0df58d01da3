// Thread 128 loads three tiles, each into the same shared memory. A warpgroup multiplies each tile.
extern "C" __global__ void k(const char* x, float* out) {
    __shared__ __align__(128) char tile[2304];
    __shared__ unsigned long long full, empty;
    if (threadIdx.x == 0) { start(&full, 1); start(&empty, 128); }
    __syncthreads();
    if (threadIdx.x >= 128) {
        for (int c = 0; threadIdx.x == 128 && c < 3; c++) {
            wait(&empty, c & 1 ^ 1);
            expect(&full, 2304);
            copy(tile, x, 2304, &full);
        }
        return;
    }
    float sum[4];
    asm volatile(".reg .f32 d<4>;");  // The compiler cannot copy PTX registers while a product runs.
    unsigned long long a = 16ull << 32 | 8 << 16 | at(tile) >> 4, b = 16ull << 32 | 8 << 16 | at(tile + 2048) >> 4;
    for (int c = 0; c < 3; c++) {
        wait(&full, c & 1);
        asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
        asm volatile("{ .reg .pred p; setp.ne.u32 p, %2, 0;\n"
                     "wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {d0, d1, d2, d3}, %0, %1, p, 1, 1, 0, 0; }"
                     :: "l"(a), "l"(b), "r"(c) : "memory");
        asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
        asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
        arrive(&empty);
    }
    asm volatile("mov.f32 %0, d0;\nmov.f32 %1, d1;\nmov.f32 %2, d2;\nmov.f32 %3, d3;"
                 : "=f"(sum[0]), "=f"(sum[1]), "=f"(sum[2]), "=f"(sum[3]));
    out[threadIdx.x] = sum[0] + sum[1] + sum[2] + sum[3];
}
