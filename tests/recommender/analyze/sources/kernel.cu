extern "C" __global__ void rowsum(const float* x, float* y, int width) {
    float sum = 0.0f;
    for (int i = threadIdx.x; i < width; i += blockDim.x)
        sum += x[(size_t) blockIdx.x * width * STRIDE + i * STRIDE];
    extern __shared__ float part[];
    part[threadIdx.x] = sum;
    __syncthreads();
    for (int step = blockDim.x / 2; step; step /= 2) {
        if (threadIdx.x < step) part[threadIdx.x] += part[threadIdx.x + step];
        __syncthreads();
    }
    if (threadIdx.x == 0) y[blockIdx.x] = part[0];
}
