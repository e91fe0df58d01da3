// A histogram by atomic additions, a thread for each element: to global memory, or to a copy of each block first.
extern "C" __global__ void histogram_global(const unsigned *values, unsigned *counts, int size)
{
    int i = blockIdx.x * BLOCK + threadIdx.x;
    if (i < size)
        atomicAdd(&counts[values[i] % BINS], 1u);
}

extern "C" __global__ void histogram_private(const unsigned *values, unsigned *counts, int size)
{
    __shared__ unsigned own[BINS];
    for (int bin = threadIdx.x; bin < BINS; bin += BLOCK)
        own[bin] = 0;
    __syncthreads();
    for (int i = blockIdx.x * BLOCK + threadIdx.x; i < size; i += gridDim.x * BLOCK)
        atomicAdd(&own[values[i] % BINS], 1u);
    __syncthreads();
    for (int bin = threadIdx.x; bin < BINS; bin += BLOCK)
        if (own[bin])
            atomicAdd(&counts[bin], own[bin]);
}
