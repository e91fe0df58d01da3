// A general 2D filter with its coefficients in constant memory. Written for kernrec in the style of tuned convolutions.
//
// Macros: block_size_x, block_size_y  threads; tile_size_x, tile_size_y  pixels a thread computes along each axis;
// filter_width, filter_height  odd; use_shared  1: the block's input lies in shared memory; use_padding  1: its rows are
// one word longer, against bank conflicts; read_only  1: input through the read-only path; unroll_rows  rows of the
// filter that are unrolled, 0: none is.

#define IN_X (block_size_x * tile_size_x + filter_width - 1)
#define IN_Y (block_size_y * tile_size_y + filter_height - 1)
#define ROW (IN_X + use_padding)

__constant__ float coefficients[filter_width * filter_height];

#if read_only == 1
#define FETCH(p) __ldg(p)
#else
#define FETCH(p) (*(p))
#endif

// The input has a border, so that no access needs a check: its rows have width + filter_width - 1 pixels.
extern "C" __global__ void filter2d(const float *input, float *output, int width, int height) {
    const int x0 = blockIdx.x * block_size_x * tile_size_x + threadIdx.x;
    const int y0 = blockIdx.y * block_size_y * tile_size_y + threadIdx.y;
    const int pitch = width + filter_width - 1;
    float sum[tile_size_y][tile_size_x];
#pragma unroll
    for (int i = 0; i < tile_size_y; i++)
#pragma unroll
        for (int j = 0; j < tile_size_x; j++) sum[i][j] = 0.0f;

#if use_shared == 1
    extern __shared__ float pixels[];
    const int first_x = blockIdx.x * block_size_x * tile_size_x, first_y = blockIdx.y * block_size_y * tile_size_y;
    for (int y = threadIdx.y; y < IN_Y; y += block_size_y)
        for (int x = threadIdx.x; x < IN_X; x += block_size_x) {
            const int from_x = first_x + x, from_y = first_y + y;
            float value = 0.0f;
            if (from_x < pitch && from_y < height + filter_height - 1) value = FETCH(input + from_y * pitch + from_x);
            pixels[y * ROW + x] = value;
        }
    __syncthreads();
#endif

#if unroll_rows > 0
    #pragma unroll unroll_rows
#endif
    for (int v = 0; v < filter_height; v++) {
#pragma unroll
        for (int u = 0; u < filter_width; u++) {
            const float weight = coefficients[v * filter_width + u];
#pragma unroll
            for (int i = 0; i < tile_size_y; i++)
#pragma unroll
                for (int j = 0; j < tile_size_x; j++) {
#if use_shared == 1
                    const int at = (threadIdx.y + i * block_size_y + v) * ROW + threadIdx.x + j * block_size_x + u;
                    sum[i][j] += weight * pixels[at];
#else
                    const int x = x0 + j * block_size_x, y = y0 + i * block_size_y;
                    if (x < width && y < height) sum[i][j] += weight * FETCH(input + (y + v) * pitch + x + u);
#endif
                }
        }
    }

#pragma unroll
    for (int i = 0; i < tile_size_y; i++)
#pragma unroll
        for (int j = 0; j < tile_size_x; j++) {
            const int x = x0 + j * block_size_x, y = y0 + i * block_size_y;
            if (x < width && y < height) output[y * width + x] = sum[i][j];
        }
}
