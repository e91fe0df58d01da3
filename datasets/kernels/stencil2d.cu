// Heat diffusion on a plate, several time steps at once: a block loads its tile with a halo as wide as the steps it
// takes, and each step leaves one cell less of the halo valid. Written for kernrec in the style of tuned stencils.
//
// Macros: block_size_x, block_size_y  threads; tile_size_x, tile_size_y  cells a thread has along each axis;
// time_steps  steps per launch; unroll_steps  of which so many are unrolled; source_in_shared  1: the heat source's
// tile is kept in dynamic shared memory, 0: read from global memory in every step.

#define TILE_X (block_size_x * tile_size_x)
#define TILE_Y (block_size_y * tile_size_y)
#define FULL_X (TILE_X + 2 * time_steps)
#define FULL_Y (TILE_Y + 2 * time_steps)

extern "C" __global__ void stencil2d(const float *__restrict__ source, const float *__restrict__ heat,
                                     float *__restrict__ result, int width, int height, float keep, float gain) {
    __shared__ float plate[2][FULL_Y][FULL_X];
#if source_in_shared == 1
    extern __shared__ float kept_source[];
#endif
    const int left = blockIdx.x * TILE_X - time_steps;
    const int top = blockIdx.y * TILE_Y - time_steps;

    for (int y = threadIdx.y; y < FULL_Y; y += block_size_y) {
        for (int x = threadIdx.x; x < FULL_X; x += block_size_x) {
            const int from_x = min(max(left + x, 0), width - 1);
            const int from_y = min(max(top + y, 0), height - 1);
            plate[0][y][x] = heat[from_y * width + from_x];
#if source_in_shared == 1
            kept_source[y * FULL_X + x] = source[from_y * width + from_x];
#endif
        }
    }
    __syncthreads();

    int now = 0;
#if unroll_steps > 1
    #pragma unroll unroll_steps
#endif
    for (int step = 1; step <= time_steps; step++) {
        for (int y = threadIdx.y + step; y < FULL_Y - step; y += block_size_y) {
            for (int x = threadIdx.x + step; x < FULL_X - step; x += block_size_x) {
                const float here = plate[now][y][x];
                const float around = plate[now][y][x - 1] + plate[now][y][x + 1] + plate[now][y - 1][x] + plate[now][y + 1][x];
#if source_in_shared == 1
                const float heating = kept_source[y * FULL_X + x];
#else
                const int from_x = min(max(left + x, 0), width - 1);
                const int from_y = min(max(top + y, 0), height - 1);
                const float heating = source[from_y * width + from_x];
#endif
                plate[1 - now][y][x] = here + keep * (around - 4.0f * here) + gain * heating;
            }
        }
        __syncthreads();
        now = 1 - now;
    }

#pragma unroll
    for (int i = 0; i < tile_size_y; i++) {
        const int y = threadIdx.y + i * block_size_y;
#pragma unroll
        for (int j = 0; j < tile_size_x; j++) {
            const int x = threadIdx.x + j * block_size_x;
            const int to_x = blockIdx.x * TILE_X + x, to_y = blockIdx.y * TILE_Y + y;
            if (to_x < width && to_y < height)
                result[to_y * width + to_x] = plate[now][y + time_steps][x + time_steps];
        }
    }
}
