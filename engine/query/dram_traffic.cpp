// Computes the bytes between L2 and DRAM of a launch; kernrec/model/analytical/dram_traffic.py describes the model.
#include <algorithm>

#include "launch.h"

namespace kernrec::query {
namespace {

constexpr auto kFill = [](const Access* access, int64_t count, const double* blocks, double* concurrent,
                          Table<double> extents, Table<const double> sizes, double l2_bytes,
                          double* moved) __attribute__((always_inline)) {
    std::vector<double> room(size_t(3 * count), 0.0);
    double *const miss = room.data(), *const waves = miss + count, *const loads = waves + count;
    for (int64_t tensor = 0; tensor < sizes.rows; tensor++) {
        const double* const size = &sizes(tensor, 0);
        for (int64_t i = 0; i < count; i++) miss[i] = miss[i] + size[i];
    }
    for (int64_t i = 0; i < count; i++) {
        miss[i] = maximum(1.0 - l2_bytes / miss[i], 0.0);
        concurrent[i] = minimum(concurrent[i], blocks[i]);
        waves[i] = blocks[i] / concurrent[i];
        moved[i] = 0.0;
    }
    // Replace the extent of each step by the fraction of it that a wave covers.
    for (int64_t step = 0; step < extents.rows; step++) {
        double* const extent = &extents(step, 0);
        for (int64_t i = 0; i < count; i++) {
            const double covered = minimum(concurrent[i], extent[i]) / extent[i];
            concurrent[i] = maximum(concurrent[i] / extent[i], 1.0);
            extent[i] = covered;
        }
    }
    for (size_t number = 0; number < access->reads.size(); number++) {
        const int64_t tensor = access->reads[number];
        const double* const size = &sizes(tensor, 0);
        const bool scratch = access->scratch[tensor];
        std::copy_n(waves, count, loads);  // loads of the tensor over all waves
        for (int64_t step = 0; step < extents.rows; step++) {
            if (!access->axes[number * size_t(extents.rows) + size_t(step)]) continue;
            const double* const covered = &extents(step, 0);
            for (int64_t i = 0; i < count; i++) loads[i] = loads[i] * covered[i];
        }
        for (int64_t i = 0; i < count; i++) {
            const double again = miss[i] * maximum(loads[i] - 1.0, 0.0);
            moved[i] = moved[i] + size[i] * ((scratch ? miss[i] : 1.0) + again);
        }
    }
    for (const int64_t tensor : access->writes) {
        const double* const size = &sizes(tensor, 0);
        const bool scratch = access->scratch[tensor];
        for (int64_t i = 0; i < count; i++) moved[i] = moved[i] + (scratch ? size[i] * miss[i] : size[i]);
    }
};

}  // namespace

void Access::fill_moved(const double* blocks, double* concurrent, const Table<double>& extents,
                        const Table<const double>& sizes, double l2_bytes, double* moved) const {
    ByCpu<kFill>()(this, sizes.columns, blocks, concurrent, extents, sizes, l2_bytes, moved);
}

}  // namespace kernrec::query
