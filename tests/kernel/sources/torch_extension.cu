// __global__ void no_kernel(int) is a comment
typedef float real;
using Index = std::int64_t;
#define WIDE double
#ifndef TILE
#define TILE (16u)  // threads
#endif
#define ROWS 7
template <int N>
__global__ void copies(float* x) {}
extern "C" __global__ void __launch_bounds__(TILE * (TILE), 2)
first(const float4* __restrict__ a, real b[], Index n, WIDE* const c, __half2* h, std::pair<int, int> p = f(1, 2))
{ b[0] = "__global__ void in_a_string()"[0]; }
static __global__ void last(void);
__global__ void last() {}
