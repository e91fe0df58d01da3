"""Small programs for testing `kernrec explain`: each wastes time in one way, on the line marked `// SLOW`."""

from typing import NamedTuple


class Slow(NamedTuple):
    """A slow program, and the first words of the advice that `kernrec explain` must give."""

    name: str
    problem: str
    kernel: str
    launch: str
    """Host code that allocates the buffers and launches the kernel."""

    @property
    def source(self) -> str:
        """Return the whole program as CUDA source."""
        return f"#include <stdio.h>\n{self.kernel}\nint main() {{ {self.launch} }}\n"


_XY = "int n = 1 << 24; float *x, *y; cudaMalloc(&x, n * 4); cudaMalloc(&y, n * 4); "
SLOW = (
    Slow("columns", "uncoalesced", """
__global__ void f(const float *x, float *y, int n) {
    int row = blockIdx.x * blockDim.x + threadIdx.x;
    float sum = 0;
    for (int c = 0; c < n; c++)
        sum += x[row * n + c];  // SLOW
    y[row] = sum;
}""", "int n = 512; float *x, *y; cudaMalloc(&x, 65536 * n * 4); cudaMalloc(&y, 262144); f<<<512, 128>>>(x, y, n);"),
    Slow("transposed store", "uncoalesced", """
__global__ void f(const float *x, float *y, int n) {
    int c = blockIdx.x * 32 + threadIdx.x, r = blockIdx.y * 8 + threadIdx.y;
    y[c * n + r] = x[r * n + c];  // SLOW
}""", "int n = 4096; float *x, *y; cudaMalloc(&x, n * n * 4); cudaMalloc(&y, n * n * 4);"
         " f<<<dim3(n / 32, n / 8), dim3(32, 8)>>>(x, y, n);"),
    Slow("bank conflicts", "bank conflicts", """
__global__ void f(const float *x, float *y) {
    __shared__ float s[32][32];
    int c = threadIdx.x, r = threadIdx.y;
    float v = x[blockIdx.x * 1024 + r * 32 + c];
    for (int k = 0; k < 64; k++) {
        s[c][r] = v;  // SLOW
        __syncthreads();
        v += s[r][c];
        __syncthreads();
    }
    y[blockIdx.x * 1024 + r * 32 + c] = v;
}""", "float *x, *y; cudaMalloc(&x, 4194304); cudaMalloc(&y, 4194304); f<<<1024, dim3(32, 32)>>>(x, y);"),
    Slow("local array", "local array", """
__global__ void f(const float *x, float *y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    float a[64];
    for (int k = 0; k < 64; k++) a[k] = x[i] * k;
    float sum = 0;
    for (int k = 0; k < n; k++)
        sum += a[(k * 7 + n) & 63];  // SLOW
    y[i] = sum;
}""", "int n = 1 << 20; float *x, *y; cudaMalloc(&x, n * 4); cudaMalloc(&y, n * 4); f<<<n / 128, 128>>>(x, y, 256);"),
    Slow("divergence", "divergence", """
__global__ void f(const float *x, float *y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    float v = x[i];
    if (i % 8 == 0)
        for (int k = 0; k < n; k++)
            v = v * 1.5f + 0.25f * k;  // SLOW
    y[i] = v;
}""", _XY + "f<<<n / 256, 256>>>(x, y, 2000);"),
    Slow("integer division", "integer division", """
__global__ void f(const float *x, float *y, int n, int width) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    int sum = 0;
    for (int k = 1; k < n; k++)
        sum += (i + k) / width + (i + k) % (width + k);  // SLOW
    y[i] = x[i] + sum;
}""", _XY + "f<<<n / 256, 256>>>(x, y, 64, 7);"),
    Slow("f64 by accident", "f64 by accident", """
__global__ void f(const float *x, float *y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    float v = x[i];
    for (int k = 0; k < n; k++)
        v = v * 0.99 + 0.5;  // SLOW
    y[i] = v;
}""", _XY + "f<<<n / 256, 256>>>(x, y, 32);"),
    Slow("one counter", "atomics on one address", """
__global__ void f(const int *x, int *count) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (x[i] > 0)
        atomicAdd(count, i & 3);  // SLOW
}""", "int n = 1 << 24, *count, *x; cudaMalloc(&x, n * 4); cudaMalloc(&count, 4); "
         "f<<<n / 256, 256>>>(x, count);"),
    Slow("few blocks", "too few warps", """
__global__ void f(const float *x, float *y, int n) {
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x)
        y[i] = 2 * x[i];
}""", _XY + "f<<<4, 128>>>(x, y, n);"),
    Slow("tail", "tail", """
__global__ void __launch_bounds__(1024) f(const float *x, float *y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    float v = x[i];
    for (int k = 0; k < n; k++) v = v * 0.99f + 0.5f;
    y[i] = v;
    __shared__ float s[1024];
    s[threadIdx.x] = v;
    __syncthreads();
    y[i] += s[1023 - threadIdx.x];
}""", "int blocks = 220; float *x, *y; cudaMalloc(&x, blocks * 4096); cudaMalloc(&y, blocks * 4096);"
         " f<<<blocks, 1024>>>(x, y, 20000);"),
    Slow("narrow loads", "narrow", """
__global__ void f(const unsigned char *x, unsigned char *y) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    y[i] = x[i] ^ 1;  // SLOW
}""", "int n = 1 << 26; unsigned char *x, *y; cudaMalloc(&x, n); cudaMalloc(&y, n); f<<<n / 256, 256>>>(x, y);"),
    Slow("bytes one by one", "narrow", """
__global__ void f(const unsigned char *x, unsigned char *y) {
    int first = (blockIdx.x * blockDim.x + threadIdx.x) * 16;
    for (int k = 0; k < 16; k++) y[first + k] = 255 - x[first + k];  // SLOW
}""", "int n = 1 << 24; unsigned char *x, *y; cudaMalloc(&x, n); cudaMalloc(&y, n); f<<<n / 2048, 128>>>(x, y);"),
    Slow("no reuse", "re-read", """
__global__ void f(const float *x, const float *taps, float *y, int n, int radius) {
    int column = blockIdx.x * blockDim.x + threadIdx.x, row = blockIdx.y;
    float sum = 0;
    for (int k = 0; k <= 2 * radius; k++)
        sum += x[row * (n + 64) + column + k] * taps[k];  // SLOW
    y[row * n + column] = sum;
}""", "int n = 4096; float *x, *t, *y; cudaMalloc(&x, n * (n + 64) * 4); cudaMalloc(&t, 260); cudaMalloc(&y, 67108864);"
         " f<<<dim3(n / 256, n), 256>>>(x, t, y, n, 32);"),
    Slow("shared memory limits warps", "too few warps", """
__global__ void f(const float *x, float *y, int n) {
    extern __shared__ float s[];
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    s[threadIdx.x] = x[i];
    float sum = s[threadIdx.x];
    for (int k = 0; k < n; k++) sum += x[i + k * 1048576];
    y[i] = sum;
}""", "float *x, *y; cudaMalloc(&x, 9 * 4194304); cudaMalloc(&y, 4194304); f<<<32768, 32, 40000>>>(x, y, 8);"),
)  # fmt: skip
