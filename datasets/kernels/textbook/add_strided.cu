// C = A + B of square f32 matrices, one thread an element, threadIdx.x down columns: neighbors in a warp access elements a row apart.
extern "C" __global__ void add_strided(const float *a, const float *b, float *c, int size) {
    const int column = blockIdx.y * blockDim.y + threadIdx.y;
    const int row = blockIdx.x * blockDim.x + threadIdx.x;
    if (row < size && column < size) c[row * size + column] = a[row * size + column] + b[row * size + column];
}
