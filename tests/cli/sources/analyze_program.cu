#include <stdio.h>
__global__ void scale(float *x, int n) { int i = blockIdx.x * blockDim.x + threadIdx.x; if (i < n) x[i] *= 2; }
template <class T> __global__ void fill(T *x, int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) x[i] = 1;
}
__global__ void lonely(float *x, int n) { if (threadIdx.x < n) x[blockIdx.x] = 0; }
int main()
{
    int n = 1 << 20;
    float *x;
    cudaMalloc(&x, n * sizeof(float));
    scale<<<(n + 31) / 32, 32>>>(x, n);
    fill<float><<<(n + 255) / 256, 256>>>(x, n);
    printf("done");
}
