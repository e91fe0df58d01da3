// y[i] = sum over j of x[i,j], row-major, f32 sums, always added in the same order.
//
// Few long rows: blockIdx.y takes an equal share of a row's chunks (the shares differ by one at most) and writes a
// partial sum; reduce_rows_finish adds those.

#include "rows.cuh"

constexpr unsigned FINISH_THREADS = 256;  // a warp to a row

// Grid: x = ROWS_PER_BLOCK rows each, y = shares of the columns. partial[rows][shares]: null where there is one share.
extern "C" __global__ void __launch_bounds__(THREADS)
    reduce_rows(const Element* __restrict__ x, Element* __restrict__ y, float* __restrict__ partial, unsigned rows,
                unsigned columns,
                unsigned share, unsigned longer_shares) {  // chunks; the first shares have one more
    const Row row(rows, columns);
    const unsigned chunks = share + (blockIdx.y < longer_shares);
    unsigned first = (blockIdx.y * share + min(blockIdx.y, longer_shares)) * CHUNK;
    x += row.offset;
    float my_sum = 0;
#pragma unroll 1
    for (unsigned chunk = 0; chunk < chunks; ++chunk) {
        float value[VALUES];
        row.read<ZERO>(value, x, first);
        my_sum += combine_values<Add>(value);
        first += CHUNK;
    }
    const float sum = combine_row<Add, 0>(my_sum);
    const bool mine = row.inside && row.column == 0;
    if (partial != nullptr)
        store_float(partial + (row.index * gridDim.y + blockIdx.y), sum, mine);
    else
        store(y + row.index, sum, mine);
}

// y[i] = sum over s of partial[i][s], for a multiple of 32 shares. Grid: x = FINISH_THREADS / 32 rows each.
extern "C" __global__ void __launch_bounds__(FINISH_THREADS)
    reduce_rows_finish(const float* __restrict__ partial, Element* __restrict__ y, unsigned rows, unsigned shares) {
    const unsigned row = blockIdx.x * (FINISH_THREADS / 32) + threadIdx.x / 32, lane = threadIdx.x % 32;
    const unsigned index = min(row, rows - 1);
    partial += index * shares + lane;
    float sum = 0;
#pragma unroll 1
    for (unsigned i = 0; i < shares; i += 32) sum += partial[i];
    store(y + index, combine_warp<Add>(sum), row < rows && lane == 0);
}
