// Boosted trees, which correct the bound of a backend or the analytical model of a kernel.
#pragma once

#include "arrays.h"

namespace kernrec::query {

class Trees {
  public:
    // T compact trees (kernrec/model/baselines/compact_trees.py) with at most L levels. nodes: number of nodes of each
    // tree, (T,). inner: a bit for each node, set for a split. Nodes are ordered by level. column: feature of each
    // split. cut: index of each split's threshold among the cuts of its feature. cut_count: number of cuts of each
    // feature; cuts: their values. The value of a leaf is low + leaf * step, with the `low` and `step` of its tree.
    Trees(double base, int64_t levels, const Row<const uint16_t>& nodes, const Row<const uint8_t>& inner,
          const Row<const uint8_t>& column, const Row<const uint8_t>& cut, const Row<const uint16_t>& cut_count,
          const Row<const float>& cuts, const Row<const uint8_t>& leaf, const Row<const float>& low,
          const Row<const float>& step);
    // T complete trees of L levels over F features. Nodes are numbered level by level, with the trees side by side: the
    // children of node n are 2 n + T and 2 n + T + 1. columns: feature of each split, plus F if missing values go
    // right. values: thresholds of all splits, then all leaves.
    Trees(int64_t features, int64_t trees, int64_t levels, const Row<const uint16_t>& columns,
          const Row<const float>& values, double base);

    // Row that descends the trees: ordered features, and the sum of the leaves that it has reached.
    struct Descent {
        const int32_t* features;
        size_t number;  // of the row
        double enough;  // the exact sum of all trees only matters up to this value
        double sum;
    };

    // Map a value in single precision to an integer with the same order; -0.0 equals 0.0. NaN is above all values.
    static int32_t ordered(double value);

    // Fill `sums` (C,) with the prediction of each row of features (C, F), whose NaNs are missing values.
    void predict(const Table<const float>& rows, const Row<double>& sums) const;
    // Add the leaves that each row reaches to its sum. Remove rows that do not matter.
    void add(std::vector<Descent>& rows) const;

    // Return the number of features that a row of `Descent` has.
    int64_t width() const { return any_left_ ? 2 * features_ : features_; }
    double base() const { return base_; }

  private:
    void add_node(bool is_leaf, float value, int64_t left, int64_t feature);
    void finish();

    std::vector<size_t> start_;
    // A feature that is not less than the threshold leads to the right child, which follows the left child. In a leaf,
    // `threshold` has the bits of the value, and `left` is 0. Feature 0 is below every value, so a descent stays at the
    // leaf.
    struct Node {
        int32_t threshold;
        uint16_t left;  // distance to the left child
        uint16_t feature;
    };
    std::vector<Node> nodes_;
    std::vector<double> least_;  // sum of the lowest leaves of each tree and of all later trees
    double base_;
    int64_t levels_, features_ = 0;
    bool any_left_ = false;  // whether missing values go left anywhere: there, splits use a second copy of the features
};

// Trees for one kind of problem in S backends.
struct TreeReader {
    // Features of N problems, and what the trees correct.
    struct Inputs {
        Table<const double> table;  // features, (features, N)
        Table<const double> base;  // (S, N), or (1, N) if equal for all backends
        Row<const double> least;  // lower bounds, (N,)
        double most;  // upper bound
        Table<const double> own;  // features of backends and problems, (own columns * S, N)
    };
    // Value to compute for a backend and a problem. The exact value only matters if it is less than `enough`.
    struct Cell {
        int64_t backend, problem;
        double enough;
    };

    // Fill the values of some cells in `values` (S, N): the base, corrected by the trees. A value that does not matter
    // becomes infinite.
    void fill(const Inputs& inputs, const std::vector<Cell>& cells, const Table<double>& values) const;
    // Fill all values in `filled` (S, N).
    void fill_all(const Table<const double>& table, const Table<const double>& own, const Table<const double>& base,
                  const Row<const double>& least, double most, const Table<double>& values) const;

    const Trees& trees;
    // Row places[i] of `Inputs::table` contains feature columns[i] of each problem. Features in `own_columns` depend on
    // problem and backend: `Inputs::own`.
    std::vector<int64_t> columns, places, own_columns;
    int64_t backends, features;
    int64_t table_rows = 0;
    std::vector<int32_t> rows;  // features of each backend, in the order of `Trees::Descent`
};

}  // namespace kernrec::query
