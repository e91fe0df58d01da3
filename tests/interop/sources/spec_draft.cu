#ifndef THREADS
#define THREADS 128
#endif
#define WIDTH 8
extern "C" __global__ void __launch_bounds__(256)
rows(const float4* A, const int* index, unsigned char* out, float scale, long long N, bool flip, int m, int step)
{
    extern __shared__ float staged[];
    int i = blockIdx.x * THREADS + threadIdx.x;
    staged[threadIdx.x] = A[i].x * WIDTH;
    __syncthreads();
    if (i < N) out[i] = staged[threadIdx.x ^ 1] * scale + index[i % m] + flip + step;
}
