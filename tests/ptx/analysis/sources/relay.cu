// Every block but the last waits for the number of the next block, adds 1, and passes the sum to the previous block.
extern "C" __global__ void relay(volatile int* passed, int* out) {
    int mine = 1;
    if (blockIdx.x + 1 < gridDim.x) {
        int got;
        while ((got = passed[blockIdx.x + 1]) == 0);
        mine = got + 1;
    }
    out[blockIdx.x * blockDim.x + threadIdx.x] = mine;
    __syncthreads();
    if (threadIdx.x == 0) passed[blockIdx.x] = mine;
}
