#define FULL (TILE + 2)
#if KEPT == 1
#define FACTOR 3.0f
#endif
KERNEL sums(const float *x, float *y, int n) {
    __shared__ float tile[FULL];
#if KEPT == 1
    extern __shared__ float kept[];
#endif
    const int at = blockIdx.x * TILE + threadIdx.x;
    for (int i = threadIdx.x; i < FULL; i += TILE) tile[i] = x[min(at + i, n - 1)];
#ifdef FACTOR
    kept[threadIdx.x] = FACTOR * x[at];
#endif
    __syncthreads();
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < UNROLLED; i++) sum += tile[(threadIdx.x + i) % FULL];
#ifdef FACTOR
    sum += kept[threadIdx.x ^ 1];
#endif
    if (at < n) y[at] = sum;
}
