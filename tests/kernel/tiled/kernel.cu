// Not meant to run: stands for a kernel in tests of specs and spaces.
extern "C" __global__ void tiled(const float* a, const float* b, float* c, float* partial) {}
extern "C" __global__ void tiled_reduce(const float* partial, float* c) {}
