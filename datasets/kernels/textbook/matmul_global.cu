// C = A B of square matrices of 32-bit unsigned integers; each thread computes one element, straight from global memory.
extern "C" __global__ void matmul_global(const unsigned *a, const unsigned *b, unsigned *c, int size) {
    const int column = blockIdx.x * blockDim.x + threadIdx.x;
    const int row = blockIdx.y * blockDim.y + threadIdx.y;
    if (row >= size || column >= size) return;
    unsigned sum = 0;
    for (int k = 0; k < size; k++) sum += a[row * size + k] * b[k * size + column];
    c[row * size + column] = sum;
}
