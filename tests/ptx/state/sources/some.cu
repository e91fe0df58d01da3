// Three warps; warp 2 writes what warp 0 reads.
extern "C" __global__ void k(int* out) {
    __shared__ int held[32];
    __shared__ unsigned long long unused;
    if (threadIdx.x == 0) start(&unused, 1);
    __syncthreads();
    if (threadIdx.x >= 64) {
        held[threadIdx.x - 64] = threadIdx.x;
        WRITER
    } else if (threadIdx.x < 32) {
        READER
        out[threadIdx.x] = held[31 - threadIdx.x];
    } else {
        OTHER
    }
}
