extern "C" __global__ void shift(const float* x, const int* where, float* y, int n) {
    int i = blockIdx.x * THREADS + threadIdx.x, place = i;
    float sum = 0.0f;
    if (i < n - THREADS) for (int k = 0; k < 5000; k++) { place = where[place]; sum += x[place]; }
    y[i] = sum;
}
