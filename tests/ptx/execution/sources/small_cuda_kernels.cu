extern "C" __global__ void add(const float* a, const float* b, float* c, int n) {
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) c[i] = a[i] + b[i];
}
extern "C" __global__ void histogram(const unsigned char* x, unsigned* bins, int n) {
    extern __shared__ unsigned local[];
    for (int i = threadIdx.x; i < 64; i += blockDim.x) local[i] = 0;
    __syncthreads();
    for (int i = threadIdx.x; i < n; i += blockDim.x) atomicAdd(&local[x[i] % 64], 1u);
    __syncthreads();
    for (int i = threadIdx.x; i < 64; i += blockDim.x) bins[i] = local[i];
}
extern "C" __global__ void collatz(const unsigned* x, unsigned* steps, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    unsigned long long v = x[i]; unsigned count = 0;
    while (v != 1) { v = v % 2 ? 3 * v + 1 : v / 2; count++; }
    steps[i] = count;
}
extern "C" __global__ void functions(const float* x, float* y, int n) {
    int i = threadIdx.x;
    if (i >= n) return;
    float v = x[i];
    float pieces[6] = {expf(v), sinf(v), logf(v), sqrtf(v), v / 3.f, powf(v, 1.5f)};
    float total = 0;
    for (int j = 0; j < 6; j++) total += pieces[(j + i) % 6] * (j + 1);
    switch (i % 5) {
        case 0: total += 1; break;
        case 1: total *= 2; break;
        case 2: total -= 3; break;
        case 3: total = -total;
    }
    y[i] = total;
}
extern "C" __global__ void divide(const long long* a, const long long* b, long long* q, int* r, int n) {
    int i = threadIdx.x;
    if (i < n) { q[i] = a[i] / b[i]; r[i] = (int)a[i] % (int)b[i]; }
}
