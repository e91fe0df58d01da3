// C = A B of square matrices of 32-bit unsigned integers, in square tiles that the threads of a block stage in shared
// memory. The edge of the tiles is that of the thread block, which the kernel reads at run time. BLOCK: this edge.
extern "C" __global__ void matmul_shared(const unsigned *a, const unsigned *b, unsigned *c, int size) {
    __shared__ unsigned tile_a[BLOCK * BLOCK], tile_b[BLOCK * BLOCK];
    const int edge = blockDim.x, x = threadIdx.x, y = threadIdx.y;
    const int column = blockIdx.x * edge + x, row = blockIdx.y * edge + y;
    unsigned sum = 0;
    for (int first = 0; first < size; first += edge) {
        tile_a[y * edge + x] = row < size && first + x < size ? a[row * size + first + x] : 0;
        tile_b[y * edge + x] = column < size && first + y < size ? b[(first + y) * size + column] : 0;
        __syncthreads();
        for (int k = 0; k < edge; k++) sum += tile_a[y * edge + k] * tile_b[k * edge + x];
        __syncthreads();
    }
    if (row < size && column < size) c[row * size + column] = sum;
}
