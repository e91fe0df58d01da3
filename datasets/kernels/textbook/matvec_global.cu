// y = A x of a square matrix of 32-bit unsigned integers; each thread computes one row.
extern "C" __global__ void matvec_global(const unsigned *a, const unsigned *x, unsigned *y, int size) {
    const int row = blockIdx.x * blockDim.x + threadIdx.x;
    if (row >= size) return;
    unsigned sum = 0;
    for (int k = 0; k < size; k++) sum += a[row * size + k] * x[k];
    y[row] = sum;
}
