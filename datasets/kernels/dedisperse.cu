// Dedispersion of a radio telescope's samples: for each trial (dispersion measure) a sum over frequency channels, each
// read with a delay that grows with the trial and falls with the frequency. The addresses come from a table.
// Written for kernrec in the style of tuned astronomy kernels.
//
// Macros: block_size_x  threads along time; block_size_y  along trials; tile_size_x, tile_size_y  sums a thread has
// along each; tile_stride_x, tile_stride_y  1: a thread's sums are a block apart, 0: side by side; unroll_channels
// channels unrolled, 0: none; delays_in_constant  1: the table lies in constant memory.

#define CHANNELS 256

#if delays_in_constant == 1
__constant__ int delays[CHANNELS];
#endif

// samples: [CHANNELS][pitch], sums: [trials][times]
extern "C" __global__ void dedisperse(const float *__restrict__ samples, float *__restrict__ sums,
                                      const int *__restrict__ table, int times, int pitch, int trials) {
#if tile_stride_x == 1
    const int time = blockIdx.x * block_size_x * tile_size_x + threadIdx.x, step_x = block_size_x;
#else
    const int time = (blockIdx.x * block_size_x + threadIdx.x) * tile_size_x, step_x = 1;
#endif
#if tile_stride_y == 1
    const int trial = blockIdx.y * block_size_y * tile_size_y + threadIdx.y, step_y = block_size_y;
#else
    const int trial = (blockIdx.y * block_size_y + threadIdx.y) * tile_size_y, step_y = 1;
#endif
    float sum[tile_size_y][tile_size_x] = {};

#if unroll_channels > 0
    #pragma unroll unroll_channels
#endif
    for (int channel = 0; channel < CHANNELS; channel++) {
#if delays_in_constant == 1
        const int delay = delays[channel];
#else
        const int delay = table[channel];
#endif
#pragma unroll
        for (int i = 0; i < tile_size_y; i++) {
            const int shift = (delay * (trial + i * step_y)) >> 10;
#pragma unroll
            for (int j = 0; j < tile_size_x; j++) {
                const int at = time + j * step_x + shift;
                if (at < pitch) sum[i][j] += samples[channel * pitch + at];
            }
        }
    }

#pragma unroll
    for (int i = 0; i < tile_size_y; i++)
#pragma unroll
        for (int j = 0; j < tile_size_x; j++)
            if (time + j * step_x < times && trial + i * step_y < trials)
                sums[(trial + i * step_y) * times + time + j * step_x] = sum[i][j];
}
