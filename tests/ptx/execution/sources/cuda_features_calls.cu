struct Triple { float a; int b; double c; };
__device__ __noinline__ float poly(float x, int n) { float r = 0; for (int i = 0; i < n; ++i) r = r * x + i; return r; }
__device__ __noinline__ Triple twice(Triple p) { p.a *= 2; p.b += 1; p.c = p.a * p.b; return p; }
__device__ __noinline__ void exchange(float* a, float* b) { const float t = *a; *a = poly(*b, 3); *b = t; }
__constant__ float table[4] = {1, 2, 4, 8};
__device__ int calls = 5;
extern "C" __global__ void call(const float* x, float* y) {
    const int i = threadIdx.x;
    Triple p = twice({poly(x[i], i % 5), i, 0});
    float a = p.a, b = float(p.c);
    exchange(&a, &b);
    if (i % 2) a += poly(b, 2) * table[i % 4];
    y[i] = a - b + calls;
}
