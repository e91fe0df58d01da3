// Computes the bytes between L2 and DRAM of a launch; kernrec/model/analytical/dram_traffic.py describes the model.
#include <algorithm>

#include "launch.h"

namespace kernrec::query {

Access::Access(const Row<const int64_t>& reads, const Table<const uint8_t>& axes, const Row<const int64_t>& writes,
               const Row<const uint8_t>& scratch)
    : reads(copied(reads)), writes(copied(writes)), axes(copied(axes)), scratch(copied(scratch)), steps(axes.columns) {
    require(steps > 0 && axes.rows == reads.size && all_within(reads, 0, scratch.size) &&
                all_within(writes, 0, scratch.size),
            "access: expected tensors that exist, and at least one step");
}

namespace {

struct Moved {
    const Access& access;
    double l2_bytes;
    std::vector<double> room;  // `kLanes` values for each step, then `kLanes` values for each tensor
    Lanes concurrent, blocks, total;

    double* lanes(int64_t row) { return room.data() + row * kLanes; }

    KERNREC_INLINE void add() {
        Lanes miss = {}, waves;
        for (size_t tensor = 0; tensor < access.scratch.size(); tensor++)
            for (int64_t i = 0; i < kLanes; i++) miss[i] = miss[i] + lanes(access.steps + int64_t(tensor))[i];
        for (int64_t i = 0; i < kLanes; i++) {
            miss[i] = maximum(1.0 - l2_bytes / miss[i], 0.0);
            concurrent[i] = minimum(concurrent[i], blocks[i]);
            waves[i] = blocks[i] / concurrent[i];
            total[i] = 0.0;
        }
        // Replace the extent of each step by the fraction of it that a wave covers.
        for (int64_t step = 0; step < access.steps; step++) {
            double* const extent = lanes(step);
            for (int64_t i = 0; i < kLanes; i++) {
                const double covered = minimum(concurrent[i], extent[i]) / extent[i];
                concurrent[i] = maximum(concurrent[i] / extent[i], 1.0);
                extent[i] = covered;
            }
        }
        for (size_t number = 0; number < access.reads.size(); number++) {
            const int64_t tensor = access.reads[number];
            const double* const size = lanes(access.steps + tensor);
            const bool scratch = access.scratch[size_t(tensor)];
            Lanes loads;  // loads of the tensor over all waves
            std::copy_n(waves, kLanes, loads);
            for (int64_t step = 0; step < access.steps; step++)
                if (access.axes[number * size_t(access.steps) + size_t(step)])
                    for (int64_t i = 0; i < kLanes; i++) loads[i] = loads[i] * lanes(step)[i];
            for (int64_t i = 0; i < kLanes; i++) {
                const double again = miss[i] * maximum(loads[i] - 1.0, 0.0);
                total[i] = total[i] + size[i] * ((scratch ? miss[i] : 1.0) + again);
            }
        }
        for (const int64_t tensor : access.writes) {
            const double* const size = lanes(access.steps + tensor);
            const bool scratch = access.scratch[size_t(tensor)];
            for (int64_t i = 0; i < kLanes; i++) total[i] = total[i] + (scratch ? size[i] * miss[i] : size[i]);
        }
    }
};

constexpr auto kAdd = [](Moved* moved) __attribute__((always_inline)) { moved->add(); };

}  // namespace

void Access::fill_moved(const Row<const double>& blocks, const Row<const double>& concurrent,
                        const Table<const double>& extents, const Table<const double>& sizes, double l2_bytes,
                        const Row<double>& filled) const {
    Moved moved{*this, l2_bytes, std::vector<double>(size_t((steps + sizes.rows) * kLanes)), {}, {}, {}};
    for (int64_t first = 0; first < filled.size; first += kLanes) {
        const int64_t count = std::min(kLanes, filled.size - first);
        for (int64_t i = 0; i < kLanes; i++) {
            const int64_t column = first + std::min(i, count - 1);  // Spare lanes repeat the last one.
            moved.blocks[i] = blocks[column], moved.concurrent[i] = concurrent[column];
            for (int64_t step = 0; step < steps; step++) moved.lanes(step)[i] = extents(step, column);
            for (int64_t tensor = 0; tensor < sizes.rows; tensor++)
                moved.lanes(steps + tensor)[i] = sizes(tensor, column);
        }
        ByCpu<kAdd>()(&moved);
        for (int64_t i = 0; i < count; i++) filled[first + i] = moved.total[i];
    }
}

}  // namespace kernrec::query
