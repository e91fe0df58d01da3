// Applies trees that correct a backend's time bound (kernrec/model/baselines/compact_trees.py).
#include "compact_trees.h"

#include <algorithm>
#include <functional>

namespace kernrec::query {
namespace {

constexpr double kMostRatio = 20.0;  // largest logarithm of a correction; only untrained trees exceed it
// Rows that descend a tree together: each step of a row depends on its last step, so interleaving hides the latency.
constexpr size_t kTogether = 16;
constexpr size_t kChunk = 20;  // trees between two checks of which rows still matter
constexpr double kSlack = 1e-9;  // exceeds the rounding of a sum of leaves

// Map a value in single precision to an integer with the same order; -0.0 equals 0.0. NaN is above all values, but
// below the threshold of leaves.
int32_t ordered(double value) {
    const float single = float(value) + 0.0f;
    if (single != single) return 0x7fc00000;
    int32_t bits;
    std::memcpy(&bits, &single, sizeof bits);
    return bits >= 0 ? bits : bits ^ 0x7fffffff;
}

// Ordered features of a row, and the sum of the leaves that it has reached.
struct Descent {
    const int32_t* features;
    size_t number;   // of the row
    double enough;  // the row does not matter if its final sum exceeds this one
    double sum;
};

}  // namespace

// T trees with N nodes in total, over at most 256 features.
class CompactTrees {
  public:
    // start: first node of each tree, (T,). left, feature, threshold, leaf: values of each node, (N,). A leaf is its
    // own left child, and its threshold is NaN.
    CompactTrees(Array<const int64_t, 1> start, Array<const int64_t, 1> left, Array<const int64_t, 1> feature,
                 Array<const float, 1> threshold, Array<const float, 1> leaf, double base, int64_t levels)
        : start_(copied(Row<const int64_t>(start))),
          leaf_(copied(Row<const float>(leaf))),
          base_(base),
          levels_(levels) {
        const Row<const int64_t> lefts(left), features(feature);
        const Row<const float> thresholds(threshold);
        const int64_t nodes = int64_t(leaf_.size());
        require(lefts.size == nodes && features.size == nodes && thresholds.size == nodes && nodes < (1 << 23),
                "trees: expected as many nodes everywhere");
        require(levels >= 0 && levels <= 64 && all_within(Row<const int64_t>(start), 0, nodes) &&
                    all_within(features, 0, 256),
                "trees: expected nodes and features that exist");
        require(std::adjacent_find(start_.begin(), start_.end(), std::greater_equal<>()) == start_.end(),
                "trees: expected roots in ascending order");
        for (int64_t n = 0; n < nodes; n++) {
            const bool is_leaf = std::isnan(thresholds[n]);
            require(lefts[n] >= 0 && lefts[n] < nodes - (is_leaf ? 0 : 1), "trees: expected nodes that exist");
            features_ = std::max(features_, features[n] + 1);
            // A leaf's threshold exceeds every value, so no row leaves a leaf.
            const int32_t beyond = is_leaf ? std::numeric_limits<int32_t>::max() : ordered(thresholds[n]);
            nodes_.push_back(uint64_t(uint32_t(beyond)) << 32 | uint64_t(lefts[n] << 8 | features[n]));
        }
        least_.assign(start_.size() + 1, 0.0);
        for (size_t tree = start_.size(), end = size_t(nodes); tree-- > 0; end = size_t(start_[tree])) {
            float least = std::numeric_limits<float>::infinity();
            for (size_t n = size_t(start_[tree]); n < end; n++)
                if (std::isnan(thresholds[int64_t(n)])) least = std::min(least, leaf_[n]);
            least_[tree] = least_[tree + 1] + double(least);
        }
    }

    // Fill `sums` (C,) with the prediction of each row of `matrix` (C, F).
    void predict(Array<const float, 2> matrix, Array<double, 1> sums_of_rows) const {
        const Table<const float> table(matrix);
        const Row<double> sums(sums_of_rows);
        require(table.rows == sums.size && table.columns >= features_,
                "matrix: expected a row of features of each sum");
        std::vector<int32_t> features;
        for (int64_t i = 0; i < table.rows; i++)
            for (int64_t f = 0; f < table.columns; f++) features.push_back(ordered(table(i, f)));
        std::vector<Descent> rows;
        for (int64_t i = 0; i < table.rows; i++)
            rows.push_back({features.data() + i * table.columns, size_t(i), kInfinity, base_});
        add(rows);
        for (const Descent& row : rows) sums[int64_t(row.number)] = row.sum;
    }

    // Add the leaves that each row reaches to its sum. Remove rows that do not matter.
    void add(std::vector<Descent>& rows) const {
        for (size_t tree = 0; tree < start_.size(); tree++) {
            if (tree % kChunk == 0)
                rows.erase(std::remove_if(rows.begin(), rows.end(),
                                          [&](const Descent& row) {
                                              const double least = std::min(row.sum + least_[tree], kMostRatio);
                                              return least > row.enough + kSlack;
                                          }),
                           rows.end());
            for (size_t first = 0; first < rows.size(); first += kTogether)
                descend(uint32_t(start_[tree]), rows.data() + first, std::min(kTogether, rows.size() - first));
        }
    }

    int64_t features() const { return features_; }
    double base() const { return base_; }

  private:
    void descend(uint32_t start, Descent* rows, size_t count) const {
        const int32_t* features[kTogether];
        uint32_t reached[kTogether];
        for (size_t i = 0; i < kTogether; i++) features[i] = rows[std::min(i, count - 1)].features, reached[i] = start;
        for (int64_t level = 0; level < levels_; level++)
#pragma GCC unroll 16
            for (size_t i = 0; i < kTogether; i++) {
                const uint64_t node = nodes_[reached[i]];
                reached[i] = (uint32_t(node) >> 8) + (features[i][node & 255] >= int32_t(node >> 32) ? 1 : 0);
            }
        for (size_t i = 0; i < count; i++) rows[i].sum += double(leaf_[reached[i]]);
    }

    std::vector<int64_t> start_;
    // Threshold of each node in the upper half, then its left child, then its feature in the last byte. Values that are
    // not less than the threshold go right, to the node after the left child.
    std::vector<uint64_t> nodes_;
    std::vector<float> leaf_;
    std::vector<double> least_;  // sum of the lowest leaves of each tree and of all later trees
    double base_;
    int64_t levels_, features_ = 0;
};

TreeReader::TreeReader(nb::object trees, Array<const float, 2> rows, Array<const int64_t, 1> columns,
                       Array<const int64_t, 1> places, Array<const int64_t, 1> own_columns)
    : kept_(trees),
      trees_(&nb::cast<const CompactTrees&>(trees)),
      columns_(copied(Row<const int64_t>(columns))),
      places_(copied(Row<const int64_t>(places))),
      own_columns_(copied(Row<const int64_t>(own_columns))) {
    const Table<const float> table(rows);
    backends_ = table.rows, features_ = table.columns;
    require(features_ >= trees_->features() && columns_.size() == places_.size() &&
                all_within(Row<const int64_t>(columns), 0, features_) &&
                all_within(Row<const int64_t>(own_columns), 0, features_),
            "rows: expected the features of the trees");
    for (const int64_t place : places_) {
        require(place >= 0 && place < 1 << 20, "places: expected rows of a table");
        table_rows_ = std::max(table_rows_, place + 1);
    }
    for (int64_t s = 0; s < backends_; s++)
        for (int64_t f = 0; f < features_; f++) rows_.push_back(ordered(table(s, f)));
}

void TreeReader::fill(const Inputs& inputs, const std::vector<Cell>& cells, const Table<double>& values) const {
    constexpr size_t kRows = 8 * kTogether;  // features of more rows would exceed the CPU cache
    const int64_t count = values.columns;
    require(values.rows == backends_ && inputs.table.rows >= table_rows_ && inputs.table.columns == count &&
                inputs.least.size == count && inputs.base.columns == count &&
                (inputs.base.rows == 1 || inputs.base.rows == backends_) &&
                (own_columns_.empty() ||
                 (inputs.own && inputs.own->shape(0) == own_columns_.size() &&
                  int64_t(inputs.own->shape(1)) == backends_ && int64_t(inputs.own->shape(2)) == count)),
            "table: expected the features of as many problems as values");
    const auto base_of = [&](const Cell& cell) {
        return inputs.base(inputs.base.rows > 1 ? cell.backend : 0, cell.problem);
    };
    std::vector<int32_t> features(size_t(features_) * std::min(kRows, cells.size()));
    std::vector<Descent> rows;
    for (size_t first = 0; first < cells.size(); first += kRows) {
        rows.clear();
        for (size_t number = first; number < std::min(first + kRows, cells.size()); number++) {
            const Cell& cell = cells[number];
            int32_t* const row = features.data() + (number - first) * size_t(features_);
            std::copy_n(rows_.data() + cell.backend * features_, features_, row);
            for (size_t c = 0; c < columns_.size(); c++)
                row[columns_[c]] = ordered(inputs.table(places_[c], cell.problem));
            for (size_t c = 0; c < own_columns_.size(); c++)
                row[own_columns_[c]] = ordered(inputs.own->view()(c, size_t(cell.backend), size_t(cell.problem)));
            rows.push_back({row, number, std::log(cell.enough / base_of(cell)), trees_->base()});
            values(cell.backend, cell.problem) = kInfinity;
        }
        trees_->add(rows);
        for (const Descent& row : rows) {
            const Cell& cell = cells[row.number];
            const double ratio = std::exp(minimum(maximum(row.sum, -kMostRatio), kMostRatio));
            values(cell.backend, cell.problem) =
                minimum(maximum(base_of(cell) * ratio, inputs.least[cell.problem]), inputs.most);
        }
    }
}

void TreeReader::fill_all(Array<const double, 2> table, Array<const double, 3> own, Array<const double, 2> base,
                          Array<const double, 1> least, double most, Array<double, 2> filled) const {
    const Table<double> values(filled);
    std::vector<Cell> cells;
    for (int64_t problem = 0; problem < values.columns; problem++)
        for (int64_t backend = 0; backend < values.rows; backend++) cells.push_back({backend, problem, kInfinity});
    fill({table, base, least, most, own}, cells, values);
}

void bind_compact_trees(nb::module_& module) {
    const auto exact = [] { return nb::arg().noconvert(); };
    nb::class_<CompactTrees>(module, "CompactTrees")
        .def(nb::init<Array<const int64_t, 1>, Array<const int64_t, 1>, Array<const int64_t, 1>, Array<const float, 1>,
                      Array<const float, 1>, double, int64_t>(),
             exact(), exact(), exact(), exact(), exact(), nb::arg(), nb::arg())
        .def("predict", &CompactTrees::predict, exact(), exact());
    nb::class_<TreeReader>(module, "Reader")
        .def(nb::init<nb::object, Array<const float, 2>, Array<const int64_t, 1>, Array<const int64_t, 1>,
                      Array<const int64_t, 1>>(),
             nb::arg(), exact(), exact(), exact(), exact())
        .def("fill", &TreeReader::fill_all, exact(), exact(), exact(), exact(), nb::arg(), exact());
}

}  // namespace kernrec::query
