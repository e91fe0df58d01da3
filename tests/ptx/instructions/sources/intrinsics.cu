#include <cuda_fp16.h>
#include <cuda_bf16.h>
template <class T2> __device__ void all(const T2* x, T2* y) {
    int t = threadIdx.x;
    T2 a = x[t], b = x[t + 32], c = x[t + 64];
    y[t] = __hadd2(a, b); y[t + 32] = __hsub2(a, b); y[t + 64] = __hmul2(a, b); y[t + 96] = __hfma2(a, b, c);
    y[t + 128] = __hgt2(a, b); y[t + 160] = __hneg2(a); y[t + 192] = __habs2(a); y[t + 224] = h2exp2(a);
    y[t + 256] = __hmax2(a, b); y[t + 288] = __hmin2(a, b); y[t + 320] = h2sqrt(__habs2(a));
}
extern "C" __global__ void f16(const __half2* x, __half2* y) { all(x, y); }
extern "C" __global__ void bf16(const __nv_bfloat162* x, __nv_bfloat162* y) { all(x, y); }
extern "C" __global__ void widen(const __nv_bfloat162* x, __nv_bfloat162* y) {
    float2 v = __bfloat1622float2(x[threadIdx.x]);
    y[threadIdx.x] = __floats2bfloat162_rn(v.x * 3, v.y * 3);
}
