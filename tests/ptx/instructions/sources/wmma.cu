#include <mma.h>
using namespace nvcuda;
extern "C" __global__ void k(const half* a, const half* b, float* c, int n) {
    int row = blockIdx.y * 16, column = blockIdx.x * 16;
    wmma::fragment<wmma::matrix_a, 16, 16, 16, half, wmma::row_major> x;
    wmma::fragment<wmma::matrix_b, 16, 16, 16, half, wmma::col_major> y;
    wmma::fragment<wmma::accumulator, 16, 16, 16, float> sum;
    wmma::fill_fragment(sum, 0.0f);
    for (int k = 0; k < n; k += 16) {
        wmma::load_matrix_sync(x, a + row * n + k, n);
        wmma::load_matrix_sync(y, b + column * n + k, n);
        wmma::mma_sync(sum, x, y, sum);
    }
    for (int i = 0; i < sum.num_elements; i++) sum.x[i] = fmaxf(2.0f * sum.x[i], 0.0f);
    wmma::store_matrix_sync(c + row * n + column, sum, n, wmma::mem_row_major);
}
