// A kernel with loops, slow paths, shared memory, shuffles, atomics, and accesses of several widths.
__shared__ float row[256];

extern "C" __global__ void k(float4 *a, const double *d, unsigned char *bytes, short *shorts, int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    float4 v = a[i];
    float local[8];
    for (int j = 0; j < 8; ++j)
        local[j] = v.x * j;
    row[threadIdx.x] = v.x / v.y;
    __syncthreads();
    float sum = 0.0f;
#pragma unroll 4
    for (int j = 0; j < n; ++j)
        sum = fmaf(row[(threadIdx.x + j) & 255], local[(i + j) & 7], sum);
    sum += __shfl_xor_sync(~0u, sum, 1);
    if (bytes[i] > 3)
        atomicAdd(&a[0].x, sqrtf(sum));
    shorts[i] = (short)(__popc(bytes[i]) + (int)d[i]);
    while (sum > 1.0f) {
        sum -= __sinf(sum) + bytes[(int)sum];
        if (sum < v.w)
            break;
    }
    a[i] = make_float4(sum, (float)(d[i] / 3.0), __int2float_rn(i % n), v.w);
}
