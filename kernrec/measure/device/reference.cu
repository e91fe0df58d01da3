// Helper kernels of the measuring protocol: two reference kernels that never change, a wait, and a clock.

__device__ unsigned long long nanoseconds() {
    unsigned long long t;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t));
    return t;
}

// Runs eight independent chains of FMAs in each thread. The FMA pipes limit its speed.
extern "C" __global__ void reference_compute(float* out, unsigned trips, float a, float b) {
    float x[8];
    for (int i = 0; i < 8; i++) x[i] = threadIdx.x + i;
    for (unsigned trip = 0; trip < trips; trip++) {
#pragma unroll
        for (int i = 0; i < 8; i++) x[i] = x[i] * a + b;
    }
    float sum = 0.0f;
    for (int i = 0; i < 8; i++) sum += x[i];
    out[blockIdx.x * blockDim.x + threadIdx.x] = sum;
}

// Copies an array. Each thread copies 16 bytes per iteration. DRAM limits the speed.
extern "C" __global__ void reference_memory(uint4* to, const uint4* from, unsigned count) {
    for (unsigned i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += gridDim.x * blockDim.x) to[i] = from[i];
}

// Holds the queue back while the host fills it.
extern "C" __global__ void wait(unsigned ns) {
    unsigned long long start = nanoseconds();
    while (nanoseconds() - start < ns) { }
}

// Counts SM cycles and nanoseconds during at least `ns` nanoseconds.
extern "C" __global__ void sm_clock(unsigned long long* found, unsigned ns) {
    unsigned long long start = nanoseconds(), before = start;
    while (start == before) start = nanoseconds();  // Wait for a tick, because the timer may be coarse.
    long long cycles = clock64();
    unsigned long long end = start;
    while (end - start < ns) end = nanoseconds();
    found[0] = clock64() - cycles;
    found[1] = end - start;
}
