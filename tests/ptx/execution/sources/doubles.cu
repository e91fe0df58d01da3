extern "C" __global__ void doubles(const double* a, const double* b, double* out) {
    const int i = threadIdx.x; const double x = a[i], y = b[i]; int at = i;
    auto put = [&](double v) { out[at] = v; at += 64; };
    put(fma(x, y, 0.1)); put(x / y); put(sqrt(fabs(x))); put(rsqrt(fabs(x))); put(exp(x)); put(log(fabs(x)));
    put(sin(x)); put(cos(1e6 * y)); put(pow(fabs(x), y)); put(floor(x)); put(rint(y)); put(fmin(x, y)); put(tanh(x));
    put(double((long long)(x * 1e12))); put(fmod(x, 0.7)); put(erf(y)); put(float(x)); put(sqrtf(float(fabs(y))) / 3.f);
}
