extern "C" __global__ void tiles(const float* a, const float* b, float* c, int rows, int columns, int band) {
    int inside = blockIdx.x % (band * columns), first = blockIdx.x / (band * columns) * band;
    int row = first + inside % band, column = inside / band;
    float sum = a[row * blockDim.x + threadIdx.x] + b[column * blockDim.x + threadIdx.x];
    __syncthreads();
    c[(row * columns + column) * blockDim.x + threadIdx.x] = sum;
}
