extern "C" __global__ void branches(const int* x, int* y, int* counts, int n) {
    extern __shared__ int kept[];
    const int i = threadIdx.x, v = x[i];
    int r, keep[16];
    switch (v % 10) {
        case 0: r = v * 3; break;
        case 1: r = 7 - v; break;
        case 2: r = v ^ 99; break;
        case 3: r = v / 3; break;
        case 4: r = v << 2; break;
        case 5: y[i] = 4; return;
        case 6: r = v * v; break;
        case 7: r = -v; break;
        case 8: r = v & 12; break;
        default: r = 100;
    }
    for (int j = 0; j < 16; ++j) keep[j] = __ldg(x + (i + j) % n);
    for (int j = 0; j < n; ++j) keep[(j * 7 + i) % 16] += r;
    kept[i] = keep[(i + 3) % 16];
    __syncwarp();
    y[i] = kept[i];
}
