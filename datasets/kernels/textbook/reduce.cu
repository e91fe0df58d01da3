// Sums and scans with a tree in shared memory. BLOCK is the size of a thread block.
extern "C" __global__ void reduce_tree(const float *values, float *sums, int size)
{
    __shared__ float part[BLOCK];
    int i = blockIdx.x * BLOCK + threadIdx.x;
    part[threadIdx.x] = i < size ? values[i] : 0.0f;
    __syncthreads();
    for (int stride = BLOCK / 2; stride > 0; stride /= 2) {
        if (threadIdx.x < stride)
            part[threadIdx.x] += part[threadIdx.x + stride];
        __syncthreads();
    }
    if (threadIdx.x == 0)
        sums[blockIdx.x] = part[0];
}

extern "C" __global__ void reduce_atomic(const float *values, float *sum, int size)
{
    int i = blockIdx.x * BLOCK + threadIdx.x;
    if (i < size)
        atomicAdd(sum, values[i]);
}

// Inclusive prefix sums of each block's elements (Hillis and Steele).
extern "C" __global__ void scan_block(const float *values, float *sums, int size)
{
    __shared__ float part[2][BLOCK];
    int i = blockIdx.x * BLOCK + threadIdx.x, now = 0;
    part[0][threadIdx.x] = i < size ? values[i] : 0.0f;
    __syncthreads();
    for (int offset = 1; offset < BLOCK; offset *= 2) {
        part[1 - now][threadIdx.x] =
            part[now][threadIdx.x] + (threadIdx.x >= offset ? part[now][threadIdx.x - offset] : 0.0f);
        now = 1 - now;
        __syncthreads();
    }
    if (i < size)
        sums[i] = part[now][threadIdx.x];
}

// Softmax of rows, a thread block for each row.
extern "C" __global__ void softmax_rows(const float *values, float *shares, int columns)
{
    __shared__ float part[BLOCK];
    const float *row = values + (size_t)blockIdx.x * columns;
    float most = -3.4e38f;
    for (int i = threadIdx.x; i < columns; i += BLOCK)
        most = fmaxf(most, row[i]);
    part[threadIdx.x] = most;
    __syncthreads();
    for (int stride = BLOCK / 2; stride > 0; stride /= 2) {
        if (threadIdx.x < stride)
            part[threadIdx.x] = fmaxf(part[threadIdx.x], part[threadIdx.x + stride]);
        __syncthreads();
    }
    most = part[0];
    __syncthreads();
    float sum = 0.0f;
    for (int i = threadIdx.x; i < columns; i += BLOCK)
        sum += expf(row[i] - most);
    part[threadIdx.x] = sum;
    __syncthreads();
    for (int stride = BLOCK / 2; stride > 0; stride /= 2) {
        if (threadIdx.x < stride)
            part[threadIdx.x] += part[threadIdx.x + stride];
        __syncthreads();
    }
    sum = part[0];
    for (int i = threadIdx.x; i < columns; i += BLOCK)
        shares[(size_t)blockIdx.x * columns + i] = expf(row[i] - most) / sum;
}
