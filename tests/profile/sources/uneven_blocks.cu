extern "C" __global__ void product(const float* a, const float* b, float* c, int m, int n, int k) {
    __shared__ float as[32][33], bs[32][33];
    int tiles_n = n / 32, tiles = m / 32 * tiles_n, x = threadIdx.x, y = threadIdx.y;
    for (int tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
        int row = tile / tiles_n * 32 + y, column = tile % tiles_n * 32 + x;
        float sums[4] = {};
        for (int step = 0; step < k; step += 32) {
            for (int i = 0; i < 4; i++) {
                as[y + 8 * i][x] = a[(row + 8 * i) * k + step + x];
                bs[y + 8 * i][x] = b[(step + y + 8 * i) * n + column];
            }
            __syncthreads();
            for (int j = 0; j < 32; j++)
                for (int i = 0; i < 4; i++) sums[i] += as[y + 8 * i][j] * bs[j][x];
            __syncthreads();
        }
        for (int i = 0; i < 4; i++) c[(row + 8 * i) * n + column] = sums[i];
    }
}
