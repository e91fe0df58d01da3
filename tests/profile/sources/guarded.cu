extern "C" __global__ void shift(const float* x, const int* where, float* y, int n) {
    __shared__ float s[4 * THREADS];
    int i = blockIdx.x * THREADS + threadIdx.x;
#pragma unroll
    for (int k = 0; k < 4; k++) if (i + 16 * k < n) s[threadIdx.x + THREADS * k] = x[i + 16 * k];
    __syncthreads();
    if (i < n) y[i] = s[threadIdx.x] + s[4 * THREADS - 1 - threadIdx.x];
}
