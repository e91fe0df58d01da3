#include <torch/extension.h>
#define BIND(name) torch::Tensor name(torch::Tensor a) { f<<<1, 2>>>(a); return a; }
__global__ void f(int *x) { *x = 1; }
BIND(first)
BIND(second)
PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) { m.def("first", &torch::first); }
