extern "C" __global__ void gather(const float *x, const int *idx, float *y, int n, int c)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n * c) y[i] = x[(size_t)idx[i / c] * c + i % c];
}
extern "C" __global__ void pairs(const float2 *x, const long long *idx, float *y, int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n && idx[i] >= 0) y[i] = x[idx[i]].x + x[idx[i]].y;
}
extern "C" __global__ void scatter(const float *x, const unsigned *idx, float *y, int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) atomicAdd(&y[idx[i]], x[i]);
}
extern "C" __global__ void spmv(const int *off, const int *col, const float *val, const float *x, float *y, int n)
{
    int r = blockIdx.x * blockDim.x + threadIdx.x;
    if (r >= n) return;
    float s = 0;
    for (int j = off[r]; j < off[r + 1]; ++j) s += val[j] * x[col[j]];
    y[r] = s;
}
extern "C" __global__ void count(const int *idx, float *y, int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = idx[i] % 7;
}
