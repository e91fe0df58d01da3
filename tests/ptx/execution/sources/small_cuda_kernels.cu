extern "C" __global__ void add(const float* a, const float* b, float* c, int n) {
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) c[i] = a[i] + b[i];
}
extern "C" __global__ void sum(const float* __restrict__ x, float* out, int n) {
    __shared__ float part[32];
    float v = 0;
    for (int i = threadIdx.x; i < n; i += blockDim.x) v += x[i];
    for (int o = 16; o; o >>= 1) v += __shfl_down_sync(0xffffffff, v, o);
    if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = v;
    __syncthreads();
    if (threadIdx.x < 32) {
        v = threadIdx.x < blockDim.x / 32 ? part[threadIdx.x] : 0.f;
        for (int o = 16; o; o >>= 1) v += __shfl_xor_sync(0xffffffff, v, o);
        if (threadIdx.x == 0) atomicAdd(out, v);
    }
}
extern "C" __global__ void transpose(const float* x, float* y, int rows, int cols) {
    __shared__ float tile[16][16 + PAD];
    int c = blockIdx.x * 16 + threadIdx.x, r = blockIdx.y * 16 + threadIdx.y;
    if (r < rows && c < cols) tile[threadIdx.y][threadIdx.x] = x[r * cols + c];
    __syncthreads();
    c = blockIdx.y * 16 + threadIdx.x; r = blockIdx.x * 16 + threadIdx.y;
    if (r < cols && c < rows) y[r * rows + c] = tile[threadIdx.x][threadIdx.y];
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
