extern "C" __global__ void scale(const float *x, float *y, int n) {
    __shared__ float tile[BX];
    int i = blockIdx.x * BX + threadIdx.x;
    tile[threadIdx.x] = i < n ? x[i] : 0.0f;
    __syncthreads();
    if (i < n) y[i] = TILE * tile[threadIdx.x];
}
