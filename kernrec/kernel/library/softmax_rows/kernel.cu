// y[i,j] = exp(x[i,j] - max of row i) / sum over j of exp(x[i,j] - max of row i), row-major, f32 arithmetic.
//
// RESIDENT: a row is one chunk and stays in registers, read once. Otherwise it is read twice: a first pass keeps the
// largest value so far and the sum relative to it (Milakov and Gimelshein 2018, arXiv 1805.02867), a second one writes.

#include "rows.cuh"

constexpr float LOWEST = -3.4028234663852886e38f;  // finite, so that a thread without values has differences, not NaN

// Grid: x = ROWS_PER_BLOCK rows each.
extern "C" __global__ void __launch_bounds__(THREADS)
    softmax_rows(const Element* __restrict__ x, Element* __restrict__ y, unsigned rows, unsigned columns,
                 unsigned chunks) {
    const Row row(rows, columns);
    x += row.offset;
    y += row.offset;
    float value[VALUES];

#if RESIDENT
    row.read<MINUS_INFINITY>(value, x, 0);
    const float highest = combine_row<Max, 0>(fmaxf(LOWEST, combine_values<Max>(value)));
#pragma unroll
    for (unsigned i = 0; i < VALUES; ++i) value[i] = __expf(value[i] - highest);
    const float scale = 1 / combine_row<Add, 1>(combine_values<Add>(value));
#pragma unroll
    for (unsigned i = 0; i < VALUES; ++i) value[i] *= scale;
    row.write(y, 0, value);
#else
    float my_highest = LOWEST, my_sum = 0;
#pragma unroll 1
    for (unsigned chunk = 0; chunk < chunks; ++chunk) {
        row.read<MINUS_INFINITY>(value, x, chunk * CHUNK);
        const float higher = fmaxf(my_highest, combine_values<Max>(value));
#pragma unroll
        for (unsigned i = 0; i < VALUES; ++i) value[i] = __expf(value[i] - higher);
        my_sum = my_sum * __expf(my_highest - higher) + combine_values<Add>(value);
        my_highest = higher;
    }
    const float highest = combine_row<Max, 0>(my_highest);
    const float scale = 1 / combine_row<Add, 1>(my_sum * __expf(my_highest - highest));
#pragma unroll 1
    for (unsigned chunk = 0; chunk < chunks; ++chunk) {
        row.read<MINUS_INFINITY>(value, x, chunk * CHUNK);
#pragma unroll
        for (unsigned i = 0; i < VALUES; ++i) value[i] = __expf(value[i] - highest) * scale;
        row.write(y, chunk * CHUNK, value);
    }
#endif
}
