// Kernels whose threads each work on one element. BLOCK is the size of a thread block.
extern "C" __global__ void saxpy(const float *x, float *y, float factor, int size)
{
    int i = blockIdx.x * BLOCK + threadIdx.x;
    if (i < size)
        y[i] = factor * x[i] + y[i];
}

// European call and put options after Black and Scholes; the cumulative normal distribution by a polynomial.
__device__ float normal_below(float d)
{
    float k = 1.0f / (1.0f + 0.2316419f * fabsf(d));
    float sum = k * (0.31938153f + k * (-0.356563782f + k * (1.781477937f + k * (-1.821255978f + k * 1.330274429f))));
    float below = 0.39894228f * expf(-0.5f * d * d) * sum;
    return d > 0.0f ? 1.0f - below : below;
}

extern "C" __global__ void black_scholes(
    const float *price, const float *strike, const float *years, float *call, float *put, int size)
{
    int i = blockIdx.x * BLOCK + threadIdx.x;
    if (i >= size)
        return;
    const float rate = 0.02f, volatility = 0.3f;
    float root = sqrtf(years[i]);
    float d1 = (logf(price[i] / strike[i]) + (rate + 0.5f * volatility * volatility) * years[i]) / (volatility * root);
    float d2 = d1 - volatility * root;
    float discounted = strike[i] * expf(-rate * years[i]);
    call[i] = price[i] * normal_below(d1) - discounted * normal_below(d2);
    put[i] = discounted * normal_below(-d2) - price[i] * normal_below(-d1);
}

// Points in the unit square that lie in the circle: each thread draws `trials` of them.
extern "C" __global__ void monte_carlo(unsigned *inside, int trials, int size)
{
    int i = blockIdx.x * BLOCK + threadIdx.x;
    if (i >= size)
        return;
    unsigned state = 747796405u * i + 2891336453u, hits = 0;
    for (int trial = 0; trial < trials; ++trial) {
        state = state * 1664525u + 1013904223u;
        float x = (state >> 8) * (1.0f / 16777216.0f);
        state = state * 1664525u + 1013904223u;
        float y = (state >> 8) * (1.0f / 16777216.0f);
        hits += x * x + y * y < 1.0f;
    }
    inside[i] = hits;
}
