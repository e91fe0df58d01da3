extern "C" __global__ void product(const unsigned* a, const unsigned* b, float* d) {
    unsigned x[4], y[2]; float z[4];
    int g = threadIdx.x / 4, t = threadIdx.x % 4;
    for (int r = 0; r < 4; ++r) x[r] = a[(g + 8 * (r % 2)) * 8 + t + 4 * (r / 2)];
    for (int r = 0; r < 2; ++r) y[r] = b[g * 8 + t + 4 * r];
    asm volatile("mma.sync.aligned.m16n8k32.row.col.f32.A.B.f32"
        " {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%10,%10,%10,%10};"
        : "=f"(z[0]), "=f"(z[1]), "=f"(z[2]), "=f"(z[3])
        : "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3]), "r"(y[0]), "r"(y[1]), "f"(0.5f));
    for (int r = 0; r < 4; ++r) d[(g + 8 * (r / 2)) * 8 + 2 * t + r % 2] = z[r];
}
