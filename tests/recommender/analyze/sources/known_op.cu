template <int N> __device__ float sum(const float (&x)[N]) { float s = 0; for (float v : x) s += v; return s; }
__global__ void reduce(const float* x, float* y, int columns) {
    float part[UNROLL] = {};
    for (int i = threadIdx.x; i < columns; i += 32 * UNROLL)
        for (int j = 0; j < UNROLL; j++) if (i + 32 * j < columns) part[j] += x[blockIdx.x * columns + i + 32 * j];
    float s = sum(part);
    for (int step = 16; step; step /= 2) s += __shfl_down_sync(~0u, s, step);
    if (threadIdx.x == 0) y[blockIdx.x] = s;
}
