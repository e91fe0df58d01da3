// Lower bounds on the times of problems in a backend, and the larger problems whose times limit theirs.
#pragma once

#include "arrays.h"

namespace kernrec::query {

// Rows of `Bound::work`: seconds of math, DRAM and L2 at data-sheet rates, and of the launch; the bound; the GPU's work
// only. The last row is NaN if it is unknown.
enum BoundRow : int64_t { kMathS, kDramS, kL2S, kOverheadS, kTotalS, kWorkS, kBoundRows };

// Lower bounds on the times of P problems, and their features; see `Bound` in kernrec/model/baselines/bound.py.
struct Bound {
    nb::object names, constants;  // of the features; only Python reads them
    int64_t count = 0;  // P
    int64_t first_size = 0, sizes = 0;  // features that are logarithms of sizes
    std::vector<double> work;  // (rows, P); further rows may follow
    std::vector<double> table;  // features, (F, P)

    Row<const double> row(BoundRow number) const { return {work.data() + number * count, count}; }
    Table<const double> features() const { return {table.data(), int64_t(table.size()) / count, count}; }
};

// Item counts at which trees are evaluated, to predict the time of a given item count.
struct ItemPoints {
    // Largest grid point at or below the item count, then `near` chosen counts up to the next grid point, then further
    // grid points.
    std::vector<int64_t> numbers;
    size_t near = 0;  // 0 if the item count is a grid point
    bool between = false;  // strictly between the first two of the `near` counts

    ItemPoints(int64_t items, int64_t farthest);
    // own_s: monotonic bound at the given item count. bounds, at_points: bounds and predictions at `numbers`.
    double seconds(double own_s, const double* bounds, const Row<const double>& at_points) const;
};

// N problems of an op, each followed by the same problem with other numbers of items (rows, images or sequences). The
// times at these points limit the time of the problem.
struct MoreItems {
    // flat: D sizes of each of the N problems. alone, together: dimension that counts the items if the first size
    // is 1, or larger than 1 (-1: none). farthest: largest grid point to evaluate. It must not depend on the item
    // count, because every further point can lower the predicted time.
    MoreItems(const std::vector<double>& flat, int64_t problems, int64_t alone, int64_t together, int64_t farthest);

    // Return the extents of the D dimensions, (D, P). Columns are problems and grid points.
    Table<const double> sizes() const { return {rows.data(), dims, int64_t(rows.size()) / dims, 1, dims}; }

    int64_t dims = 0;
    std::vector<double> rows;
    std::vector<int64_t> starts;  // column of each problem
    std::vector<std::optional<ItemPoints>> points;
};

}  // namespace kernrec::query
