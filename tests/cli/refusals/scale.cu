extern "C" __global__ void scale(const float* x, float* y, int n) {
    int i = blockIdx.x * THREADS + threadIdx.x;
    if (i < n) y[i] = 2.0f * x[i];
}
