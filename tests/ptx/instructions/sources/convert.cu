extern "C" __global__ void convert(const float* x, unsigned short* codes, unsigned* halves) {
    unsigned short pair; unsigned half;
    asm("cvt.rn.satfinite.Kx2.f32 %0, %1, %2;" : "=h"(pair) : "f"(x[2 * threadIdx.x + 1]), "f"(x[2 * threadIdx.x]));
    asm("cvt.rn.f16x2.Kx2 %0, %1;" : "=r"(half) : "h"(pair));
    codes[threadIdx.x] = pair; halves[threadIdx.x] = half;
}
