// Kernels that read what their neighbors read, or move it. BLOCK is the side of a square thread block, or its size.
extern "C" __global__ void transpose_naive(const float *from, float *to, int size)
{
    int x = blockIdx.x * BLOCK + threadIdx.x, y = blockIdx.y * BLOCK + threadIdx.y;
    if (x < size && y < size)
        to[x * size + y] = from[y * size + x];
}

extern "C" __global__ void transpose_tiled(const float *from, float *to, int size)
{
    __shared__ float tile[BLOCK][BLOCK + 1];
    int x = blockIdx.x * BLOCK + threadIdx.x, y = blockIdx.y * BLOCK + threadIdx.y;
    if (x < size && y < size)
        tile[threadIdx.y][threadIdx.x] = from[y * size + x];
    __syncthreads();
    x = blockIdx.y * BLOCK + threadIdx.x;
    y = blockIdx.x * BLOCK + threadIdx.y;
    if (x < size && y < size)
        to[y * size + x] = tile[threadIdx.x][threadIdx.y];
}

// The mean of a square window around each pixel, as far as it lies in the image.
extern "C" __global__ void box_blur(const float *image, float *blurred, int size)
{
    int x = blockIdx.x * BLOCK + threadIdx.x, y = blockIdx.y * BLOCK + threadIdx.y;
    if (x >= size || y >= size)
        return;
    float sum = 0.0f;
    int count = 0;
    for (int v = y - 3; v <= y + 3; ++v)
        for (int u = x - 3; u <= x + 3; ++u)
            if (u >= 0 && u < size && v >= 0 && v < size) {
                sum += image[v * size + u];
                ++count;
            }
    blurred[y * size + x] = sum / count;
}

extern "C" __global__ void stencil_5(const float *from, float *to, int size)
{
    int x = blockIdx.x * BLOCK + threadIdx.x, y = blockIdx.y * BLOCK + threadIdx.y;
    if (x < 1 || y < 1 || x >= size - 1 || y >= size - 1)
        return;
    int i = y * size + x;
    to[i] = 0.2f * (from[i] + from[i - 1] + from[i + 1] + from[i - size] + from[i + size]);
}
