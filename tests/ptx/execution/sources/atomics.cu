extern "C" __global__ void atomics(int* a, float* f, unsigned long long* u, double* d, unsigned* flags) {
    const int i = threadIdx.x + blockIdx.x * blockDim.x;
    atomicAdd(a, i); atomicMax(a + 1, i); atomicMin(a + 2, -i); atomicExch(a + 3, 7); atomicCAS(a + 4, 0, 5);
    atomicSub(a + 5, i); atomicAnd(flags, ~(1u << i % 32)); atomicOr(flags + 1, 1u << i % 32);
    atomicXor(flags + 2, 1u << i % 31); atomicInc(flags + 3, 9u); atomicDec(flags + 4, 9u);
    atomicAdd(f, 0.5f); atomicAdd(u, 3ull); atomicMax(u + 1, i + (1ull << 40)); atomicAdd(d, 0.25);
    int* place = reinterpret_cast<int*>(f + 1);
    int seen = *place, assumed;
    do {  // atomic maximum of floats
        assumed = seen;
        seen = atomicCAS(place, assumed, __float_as_int(fmaxf(i * 1.5f, __int_as_float(assumed))));
    } while (seen != assumed);
    __shared__ int of_block[2];
    if (threadIdx.x < 2) of_block[threadIdx.x] = 0;
    __syncthreads();
    atomicAdd(of_block, 1); atomicMax(of_block + 1, i);
    __syncthreads();
    if (threadIdx.x == 0) {
        atomicAdd_block(a + 6, of_block[0]); atomicAdd_system(a + 7, of_block[1]);
        __threadfence();
    }
}
