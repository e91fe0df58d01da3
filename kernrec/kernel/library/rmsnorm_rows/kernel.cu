// y = x / sqrt(mean of x^2 over a row + EPSILON) * weight, row-major, f32 arithmetic.
//
// RESIDENT: a row is one chunk and stays in registers, read once. Otherwise it is read twice.

#include "rows.cuh"

constexpr float EPSILON = 1e-5f;

// Sum of squares of the values a thread holds.
__device__ __forceinline__ float sum_of_squares(const float (&value)[VALUES]) {
    float squares[VALUES];
#pragma unroll
    for (unsigned i = 0; i < VALUES; ++i) squares[i] = value[i] * value[i];
    return combine_values<Add>(squares);
}

// Grid: x = ROWS_PER_BLOCK rows each.
extern "C" __global__ void __launch_bounds__(THREADS)
    rmsnorm_rows(const Element* __restrict__ x, const Element* __restrict__ weight, Element* __restrict__ y,
                 unsigned rows, unsigned columns, unsigned chunks) {
    const Row row(rows, columns);
    x += row.offset;
    y += row.offset;
    float value[VALUES], weights[VALUES];

    float my_sum = 0;
#if RESIDENT
    row.read<ZERO>(value, x, 0);
    row.read<ZERO>(weights, weight, 0);
    my_sum = sum_of_squares(value);
#else
#pragma unroll 1
    for (unsigned chunk = 0; chunk < chunks; ++chunk) {
        row.read<ZERO>(value, x, chunk * CHUNK);
        my_sum += sum_of_squares(value);
    }
#endif
    const float scale = rsqrtf(combine_row<Add, 0>(my_sum) / float(columns) + EPSILON);

#if RESIDENT
#pragma unroll
    for (unsigned i = 0; i < VALUES; ++i) value[i] *= scale * weights[i];
    row.write(y, 0, value);
#else
#pragma unroll 1
    for (unsigned chunk = 0; chunk < chunks; ++chunk) {
        row.read<ZERO>(value, x, chunk * CHUNK);
        row.read<ZERO>(weights, weight, chunk * CHUNK);
#pragma unroll
        for (unsigned i = 0; i < VALUES; ++i) value[i] *= scale * weights[i];
        row.write(y, chunk * CHUNK, value);
    }
#endif
}
