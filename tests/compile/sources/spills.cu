extern "C" __global__ void __launch_bounds__(1024, 2) k(float* a) {
    __shared__ float s[512];
    float t[96];
    #pragma unroll
    for (int i = 0; i < 96; i++) t[i] = a[i * 33 + threadIdx.x];
    s[threadIdx.x % 512] = a[1];
    __syncthreads();
    #pragma unroll
    for (int i = 0; i < 96; i++) a[i * 7 + threadIdx.x] = t[i] * s[i];
}
