extern "C" __global__ void __launch_bounds__(384, 1) k(int* o) {
    if (threadIdx.x >= 256) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 LESS;");
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 MORE;");
    }
    o[threadIdx.x] = threadIdx.x;
}
