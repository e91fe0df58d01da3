// y = (x - mean) / sqrt(variance + EPSILON) * weight + bias, mean and variance those of a row; row-major, f32 arithmetic.
//
// RESIDENT: a row is one chunk and stays in registers, read once. Otherwise it is read twice: in the first pass every
// thread keeps the mean of its values and their squared distances from it, chunk by chunk (Chan, Golub and LeVeque
// 1983), which loses nothing where the mean is far from zero; a second pass writes.

#include "rows.cuh"

constexpr float EPSILON = 1e-5f;

// Grid: x = ROWS_PER_BLOCK rows each.
extern "C" __global__ void __launch_bounds__(THREADS)
    layernorm_rows(const Element* __restrict__ x, const Element* __restrict__ weight, const Element* __restrict__ bias,
                   Element* __restrict__ y, unsigned rows, unsigned columns, unsigned chunks) {
    const Row row(rows, columns);
    x += row.offset;
    y += row.offset;
    const float share = 1 / float(columns);
    float value[VALUES];

#if RESIDENT
    row.read<ZERO>(value, x, 0);
    const float mean = combine_row<Add, 0>(combine_values<Add>(value)) * share;
    float squares[VALUES];
#pragma unroll
    for (unsigned i = 0; i < VALUES; ++i) {
        value[i] = row.holds(0, i) ? value[i] - mean : 0;
        squares[i] = value[i] * value[i];
    }
    const float variance = combine_row<Add, 1>(combine_values<Add>(squares)) * share;
#else
    float my_mean = 0, my_squares = 0, my_count = 0;
#pragma unroll 1
    for (unsigned chunk = 0; chunk < chunks; ++chunk) {
        row.read<ZERO>(value, x, chunk * CHUNK);
        float count = 0;
#pragma unroll
        for (unsigned i = 0; i < VALUES; i += VECTOR) count += row.holds(chunk * CHUNK, i) ? VECTOR : 0;
        const float chunk_mean = __fdividef(combine_values<Add>(value), fmaxf(count, 1));
#pragma unroll
        for (unsigned i = 0; i < VALUES; ++i) {
            const float centred = row.holds(chunk * CHUNK, i) ? value[i] - chunk_mean : 0;
            value[i] = centred * centred;
        }
        // the first chunk is full for every thread: `together` is not zero
        const float together = my_count + count, apart = chunk_mean - my_mean;
        const float part = __fdividef(count, together);
        my_mean += apart * part;
        my_squares += combine_values<Add>(value) + apart * apart * part * my_count;
        my_count = together;
    }
    const float mean = combine_row<Add, 0>(my_mean * my_count) * share;
    const float apart = my_mean - mean;
    const float variance = combine_row<Add, 1>(my_squares + apart * apart * my_count) * share;
#endif

    const float scale = rsqrtf(variance + EPSILON);
    float term[VALUES];  // weights, then biases: both at once would take too many registers
#if RESIDENT
    row.read<ZERO>(term, weight, 0);
#pragma unroll
    for (unsigned i = 0; i < VALUES; ++i) value[i] *= scale * term[i];
    row.read<ZERO>(term, bias, 0);
#pragma unroll
    for (unsigned i = 0; i < VALUES; ++i) value[i] += term[i];
    row.write(y, 0, value);
#else
#pragma unroll 1
    for (unsigned chunk = 0; chunk < chunks; ++chunk) {
        row.read<ZERO>(value, x, chunk * CHUNK);
        row.read<ZERO>(term, weight, chunk * CHUNK);
#pragma unroll
        for (unsigned i = 0; i < VALUES; ++i) value[i] = (value[i] - mean) * (scale * term[i]);
        row.read<ZERO>(term, bias, chunk * CHUNK);
#pragma unroll
        for (unsigned i = 0; i < VALUES; ++i) value[i] += term[i];
        row.write(y, chunk * CHUNK, value);
    }
#endif
}
