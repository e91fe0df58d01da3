// Vector clocks: the order between warps in kernels that synchronize not only by barriers of a whole block.
//
// The time of a warp is its number of releases. If `seen(w, u)` is t, warp w is ordered after all that u did up to t.
// A barrier in shared memory collects the clocks of its arrivals, and passes the clocks to warps that observe the
// complete phase (PTX ISA, section 8, "Memory consistency model": release and acquire patterns). A barrier also has a
// column for the copies that it counts. The time in the column is a number of phases, because a warp that observes a
// complete phase also observes the copies of the phase.
#pragma once

#include <algorithm>
#include <cstdint>
#include <unordered_map>
#include <vector>

#include "memory.h"

namespace kernrec {

// Vector clock: its warp is ordered after events of warp u up to time `knowledge[u]`.
using Knowledge = std::vector<int32_t>;

// Merge another row of clocks. A row is shorter if it was copied before the newest barriers got a column.
inline void learn(Knowledge& row, const Knowledge& more) {
    if (row.size() < more.size()) row.resize(more.size());
    for (size_t i = 0; i < more.size(); i++) row[i] = std::max(row[i], more[i]);
}

class VectorClocks {
  public:
    explicit VectorClocks(uint32_t warps) : warps(warps), rows_(warps, Knowledge(warps)) {}

    // Order all warps after what they did in earlier batches.
    void start_batch() {
        Knowledge now;
        for (uint32_t warp = 0; warp < warps; warp++) now.push_back(time(warp));
        for (uint32_t warp = 0; warp < warps; warp++) {
            rows_[warp] = now;
            rows_[warp][warp]++;
        }
        barriers_.clear(), places_.clear();
    }
    int32_t seen(uint32_t warp, uint32_t column) const { return rows_[warp][column]; }
    size_t columns() const { return warps + places_.size(); }
    int32_t time(uint32_t warp) const { return rows_[warp][warp]; }
    const int32_t* row(uint32_t warp) const { return rows_[warp].data(); }

    // Return the column of the copies that a barrier counts.
    uint32_t column(size_t place) {
        uint32_t& column = barriers_[place].column;
        if (!column) {
            column = uint32_t(columns());
            places_.push_back(place);
            for (Knowledge& row : rows_) row.resize(column + 1);
        }
        return column;
    }
    size_t place_of(uint32_t column) const { return places_[column - warps]; }
    // Return the time of a copy that finishes now.
    int32_t now(size_t place) const {
        const auto barrier = barriers_.find(place);
        return barrier == barriers_.end() ? 1 : barrier->second.phase;
    }
    // Return the current clock of a warp, for an arrival that may come later.
    Knowledge snapshot(uint32_t warp) {
        Knowledge row = rows_[warp];
        rows_[warp][warp]++;
        return row;
    }
    void arrive(const Knowledge& row, size_t place) { kernrec::learn(barriers_[place].arrived, row); }
    void release(uint32_t warp, size_t place) { arrive(snapshot(warp), place); }
    void complete(size_t place) {
        const uint32_t own = column(place);
        Barrier& barrier = barriers_[place];
        barrier.completed = barrier.arrived;
        barrier.completed.resize(std::max<size_t>(barrier.completed.size(), own + 1));
        barrier.completed[own] = barrier.phase++;
    }
    void acquire(uint32_t warp, size_t place) {
        const auto barrier = barriers_.find(place);
        if (barrier != barriers_.end()) learn(warp, barrier->second.completed);
    }
    void learn(uint32_t warp, const Knowledge& row) { kernrec::learn(rows_[warp], row); }
    // Record that warps pass a barrier together. snapshots: clocks of other warps at their earlier arrivals.
    void join(const std::vector<uint32_t>& together, const std::vector<Knowledge>& snapshots = {}) {
        Knowledge all;
        for (const uint32_t warp : together) kernrec::learn(all, rows_[warp]);
        for (const Knowledge& row : snapshots) kernrec::learn(all, row);
        for (const uint32_t warp : together) rows_[warp] = all;
        for (const uint32_t warp : together) rows_[warp][warp]++;
    }

    const uint32_t warps;

  private:
    struct Barrier {
        uint32_t column = 0;           // column of the copies that the barrier counts, or 0
        int32_t phase = 1;             // time of a copy that finishes now
        Knowledge arrived, completed;  // clocks of the arrivals, and of the last complete phase
    };
    std::vector<Knowledge> rows_;
    std::unordered_map<size_t, Barrier> barriers_;
    std::vector<size_t> places_;  // barriers with a column, indexed by column
};

}  // namespace kernrec
