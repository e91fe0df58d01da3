// y = A x of a square matrix of 32-bit unsigned integers; each thread computes one row, and the block stages the vector
// in shared memory, as many elements at a time as it has threads, which it reads at run time. BLOCK: threads of a block.
extern "C" __global__ void matvec_shared(const unsigned *a, const unsigned *x, unsigned *y, int size) {
    __shared__ unsigned piece[BLOCK];
    const int threads = blockDim.x, row = blockIdx.x * threads + threadIdx.x;
    unsigned sum = 0;
    for (int first = 0; first < size; first += threads) {
        piece[threadIdx.x] = first + threadIdx.x < size ? x[first + threadIdx.x] : 0;
        __syncthreads();
        if (row < size)
            for (int k = 0; k < threads && first + k < size; k++) sum += a[row * size + first + k] * piece[k];
        __syncthreads();
    }
    if (row < size) y[row] = sum;
}
