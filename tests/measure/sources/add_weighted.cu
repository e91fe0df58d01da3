__constant__ float weights[8];
extern "C" __global__ void add_weighted(float *sums, const float *values, int n) {
    for (int k = 0; k < WPT; k++) {
        const int i = (blockIdx.x * WPT + k) * blockDim.x + threadIdx.x;
        if (i < n) sums[i] += weights[(i + SHIFT) % 8] * values[i];
    }
}
