#include <cooperative_groups.h>
namespace cg = cooperative_groups;
extern "C" __global__ void groups(const float* x, float* y) {
    const auto block = cg::this_thread_block();
    const auto tile = cg::tiled_partition<8>(block);
    float v = x[block.thread_rank()];
    for (int step = tile.size() / 2; step; step /= 2) v += tile.shfl_down(v, step);
    v = tile.shfl(v, 0);
    tile.sync(); block.sync();
    if (block.thread_rank() % 3 == 0) {
        const auto some = cg::coalesced_threads();
        v += some.size() + 0.5f * some.thread_rank();
    }
    y[block.thread_rank()] = v + tile.meta_group_rank();
}
