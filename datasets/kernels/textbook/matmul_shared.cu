// C = A B of square matrices of 32-bit unsigned integers, in square tiles that the threads of a block stage in shared
// memory. BLOCK: edge of the thread block and of the tiles.
extern "C" __global__ void matmul_shared(const unsigned *a, const unsigned *b, unsigned *c, int size) {
    __shared__ unsigned tile_a[BLOCK][BLOCK], tile_b[BLOCK][BLOCK];
    const int x = threadIdx.x, y = threadIdx.y;
    const int column = blockIdx.x * BLOCK + x, row = blockIdx.y * BLOCK + y;
    unsigned sum = 0;
    for (int first = 0; first < size; first += BLOCK) {
        tile_a[y][x] = row < size && first + x < size ? a[row * size + first + x] : 0;
        tile_b[y][x] = column < size && first + y < size ? b[(first + y) * size + column] : 0;
        __syncthreads();
        for (int k = 0; k < BLOCK; k++) sum += tile_a[y][k] * tile_b[k][x];
        __syncthreads();
    }
    if (row < size && column < size) c[row * size + column] = sum;
}
