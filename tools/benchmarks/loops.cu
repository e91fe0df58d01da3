extern "C" __global__ void loop(const float* x, float* y, int trips) {
    float sum = 0.0f;
    for (int i = 0; i < trips; i++) sum = sum * x[threadIdx.x] + 1.0f;
    y[blockIdx.x * blockDim.x + threadIdx.x] = sum;
}
extern "C" __global__ void divergent(const float* x, float* y, int trips) {
    float sum = 0.0f;
    for (int i = 0; i < trips * (threadIdx.x % 32 + 1) / 32; i++) sum = sum * x[threadIdx.x] + 1.0f;
    y[blockIdx.x * blockDim.x + threadIdx.x] = sum;
}
