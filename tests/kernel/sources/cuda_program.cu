#include <stdio.h>
#include <vector>
#include <cuda_fp16.h>
#define GPU __device__ __forceinline__
using namespace std;
struct Point { float x, y; float norm() const { return x * x + y * y; } };
struct Owner { std::vector<float> values; };  // a type of the host
typedef struct { glob_t files; Owner *owner; } Loader;
#define TIMED() Timer timer(__FUNCTION__)
class Timer { public: Timer(const std::string &name) {} };
const int width = 32;
float *host_values;
template <class T> __host__ __device__ T ceil_div(T a, T b) { return (a + b - 1) / b; }
constexpr int twice(int x) { return 2 * x; }
GPU float half_of(float x) { return x / 2; }
void print(const float *values);
namespace inner {
template <class T> __global__ void scale(float *y, const Point *p, uint32_t n) {
    for (uint32_t i = threadIdx.x; i < n; i += ceil_div(twice(width), 2))
        y[i] = fminf(half_of(p[i].norm()), std::is_same<T, int>::value ? FLT_MAX : 1);
}
template __global__ void scale<int>(float *, const Point *, uint32_t);
}
void print(const float *values) { TIMED(); for (auto v : vector<float>(1)) printf("%f", v); }
int main() {
    inner::scale<int><<<1, 32>>>(host_values, 0, 4);
    return 0;
}
