// C = A + B of square f32 matrices, one thread an element, threadIdx.x along rows: neighbors in a warp access neighboring elements.
extern "C" __global__ void add_coalesced(const float *a, const float *b, float *c, int size) {
    const int column = blockIdx.x * blockDim.x + threadIdx.x;
    const int row = blockIdx.y * blockDim.y + threadIdx.y;
    if (row < size && column < size) c[row * size + column] = a[row * size + column] + b[row * size + column];
}
