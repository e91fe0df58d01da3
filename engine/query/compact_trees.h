// Reads the trees that correct a backend's bound, for one kind of problem in S backends.
#pragma once

#include "arrays.h"

namespace kernrec::query {

class CompactTrees;

class TreeReader {
  public:
    // rows: features of each backend, (S, F). For each problem, rows `places` of a feature table replace the features
    // at `columns`. The features at `own_columns` also differ between backends.
    TreeReader(nb::object trees, Array<const float, 2> rows, Array<const int64_t, 1> columns,
               Array<const int64_t, 1> places, Array<const int64_t, 1> own_columns);

    // Features of N problems, and what the trees correct.
    struct Inputs {
        Table<const double> table;                 // features, (features, N)
        Table<const double> base;                  // (S, N), or (1, N) if equal for all backends
        Row<const double> least;                   // lower bounds, (N,)
        double most;                               // upper bound
        std::optional<Array<const double, 3>> own;  // features of backends and problems, (own columns, S, N)
    };
    // A backend's value to compute for a problem. It does not matter if it is at least `enough`.
    struct Cell {
        int64_t backend, problem;
        double enough;
    };

    int64_t backends() const { return backends_; }

    // Fill the values of some cells in `values` (S, N): the base, corrected by the trees. A value that does not matter
    // becomes infinite.
    void fill(const Inputs& inputs, const std::vector<Cell>& cells, const Table<double>& values) const;
    // Fill all values in `filled` (S, N).
    void fill_all(Array<const double, 2> table, Array<const double, 3> own, Array<const double, 2> base,
                  Array<const double, 1> least, double most, Array<double, 2> filled) const;

  private:
    nb::object kept_;
    const CompactTrees* trees_;
    std::vector<int64_t> columns_, places_, own_columns_;
    std::vector<int32_t> rows_;
    int64_t backends_ = 0, features_ = 0, table_rows_ = 0;
};

}  // namespace kernrec::query
