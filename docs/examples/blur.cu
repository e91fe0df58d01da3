// A 3 x 3 box blur. The macros BX and BY are the thread block's extents.
extern "C" __global__ void blur(const float *image, float *blurred, int width, int height)
{
    int x = blockIdx.x * BX + threadIdx.x;
    int y = blockIdx.y * BY + threadIdx.y;
    if (x < 1 || y < 1 || x >= width - 1 || y >= height - 1)
        return;
    float sum = 0.0f;
    for (int j = -1; j <= 1; ++j)
        for (int i = -1; i <= 1; ++i)
            sum += image[(y + j) * width + x + i];
    blurred[y * width + x] = sum / 9.0f;
}
