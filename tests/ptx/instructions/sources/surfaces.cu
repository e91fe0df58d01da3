extern "C" __global__ void k(cudaSurfaceObject_t from, cudaSurfaceObject_t to, int width, int height) {
    int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y;
    uchar4 v = surf2Dread<uchar4>(from, (x - 2) * 4, y, cudaBoundaryModeZero);
    uchar4 w = surf2Dread<uchar4>(from, (x + 3) * 4, y, cudaBoundaryModeClamp);
    v.x += w.y;
    if (x < width) surf2Dwrite(v, to, x * 4, y);
}
