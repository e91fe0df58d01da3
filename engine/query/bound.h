// Lower bounds on the times of problems in a backend.
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

}  // namespace kernrec::query
