// An image of RGB bytes to grey bytes, one thread a pixel.
extern "C" __global__ void grayscale(const unsigned char *rgb, unsigned char *grey, int size) {
    const int x = blockIdx.x * blockDim.x + threadIdx.x;
    const int y = blockIdx.y * blockDim.y + threadIdx.y;
    if (x >= size || y >= size) return;
    const unsigned char *pixel = rgb + 3 * (y * size + x);
    grey[y * size + x] = 0.21f * pixel[0] + 0.71f * pixel[1] + 0.07f * pixel[2];
}
