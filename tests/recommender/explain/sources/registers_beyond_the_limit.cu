extern "C" __global__ void __maxnreg__(REGISTERS) row_products(const float *x, float *y, int n)
{
    int i = blockIdx.x * THREADS + threadIdx.x;
    float a[112];
#pragma unroll
    for (int j = 0; j < 112; ++j)
        a[j] = x[i + j * n];
    float sum = 0.0f;
#pragma unroll
    for (int j = 0; j < 112; ++j)
        sum += a[j] * a[111 - j] * a[(j + 50) % 112];
    y[i] = sum;
}
