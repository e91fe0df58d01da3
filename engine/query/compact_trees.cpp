// Applies trees that correct a backend's time bound (kernrec/model/baselines/compact_trees.py).
#include <algorithm>

#include "arrays.h"

namespace kernrec::query {
namespace {

constexpr double kMostRatio = 20.0;  // largest logarithm of a correction; only untrained trees exceed it
// Rows that descend a tree together: each step of a row depends on its last step, so interleaving hides the latency.
constexpr int64_t kTogether = 16;

// Map a value in single precision to an integer with the same order; -0.0 equals 0.0. NaN is above all values, but
// below the threshold of leaves.
int32_t ordered(double value) {
    const float single = float(value) + 0.0f;
    if (single != single) return 0x7fc00000;
    int32_t bits;
    std::memcpy(&bits, &single, sizeof bits);
    return bits >= 0 ? bits : bits ^ 0x7fffffff;
}

// Ordered features of N rows. Each feature of `kTogether` rows is contiguous; unused places of the last rows are 0.
class OrderedRows {
  public:
    OrderedRows(int64_t count, int64_t columns)
        : columns_(columns), values_(size_t((count + kTogether - 1) / kTogether * kTogether * columns)) {}
    int32_t& operator()(int64_t row, int64_t column) {
        return values_[size_t((row / kTogether * columns_ + column) * kTogether + row % kTogether)];
    }
    // Return the features of the rows from `row` on, which is a multiple of `kTogether`.
    const int32_t* from(int64_t row) const { return values_.data() + row * columns_; }

  private:
    int64_t columns_;
    std::vector<int32_t> values_;
};

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
        for (int64_t n = 0; n < nodes; n++) {
            const bool is_leaf = std::isnan(thresholds[n]);
            require(lefts[n] >= 0 && lefts[n] < nodes - (is_leaf ? 0 : 1), "trees: expected nodes that exist");
            features_ = std::max(features_, features[n] + 1);
            // A leaf's threshold exceeds every value, so no row leaves a leaf.
            link_.push_back(int32_t(lefts[n] << 8 | features[n]));
            threshold_.push_back(is_leaf ? std::numeric_limits<int32_t>::max() : ordered(thresholds[n]));
        }
    }

    // Fill `sums` (C,) with the prediction of each row of `matrix` (C, F).
    void predict(Array<const float, 2> matrix, Array<double, 1> sums_of_rows) const {
        const Table<const float> rows(matrix);
        const Row<double> sums(sums_of_rows);
        require(rows.rows == sums.size && rows.columns >= features_, "matrix: expected a row of features of each sum");
        OrderedRows features(rows.rows, rows.columns);
        for (int64_t i = 0; i < rows.rows; i++)
            for (int64_t f = 0; f < rows.columns; f++) features(i, f) = ordered(rows(i, f));
        add(features, sums);
    }

    // Fill `sums` with the base plus the values of the leaves that each row reaches.
    void add(const OrderedRows& rows, const Row<double>& sums) const {
        constexpr int64_t kRows = 8 * kTogether;  // features of more rows would exceed the CPU cache
        for (int64_t i = 0; i < sums.size; i++) sums[i] = base_;
        for (int64_t first = 0; first < sums.size; first += kRows) {
            const int64_t end = std::min(first + kRows, sums.size);
            for (const int64_t start : start_)  // All rows descend a tree while its nodes are in the cache.
                for (int64_t row = first; row < end; row += kTogether) {
                    int32_t reached[kTogether];
                    std::fill_n(reached, kTogether, int32_t(start));
                    (kAvx2 ? descend_avx2 : descend)(*this, rows.from(row), reached);
                    const int64_t together = std::min(kTogether, end - row);
                    for (int64_t i = 0; i < together; i++) sums[row + i] += leaf_[size_t(reached[i])];
                }
        }
    }

    int64_t features() const { return features_; }

  private:
    // Take rows from a tree's first node to its leaves.
    KERNREC_INLINE static void descend_inline(const CompactTrees& self, const int32_t* features, int32_t* reached) {
        const int32_t *const link = self.link_.data(), *const threshold = self.threshold_.data();
        for (int64_t level = 0; level < self.levels_; level++)
            for (int32_t i = 0; i < int32_t(kTogether); i++) {
                const int32_t node = reached[i], step = link[node];
                const int32_t feature = features[(step & 255) * int32_t(kTogether) + i];
                reached[i] = (step >> 8) + (feature >= threshold[node] ? 1 : 0);
            }
    }
    static void descend(const CompactTrees& self, const int32_t* features, int32_t* reached) {
        descend_inline(self, features, reached);
    }
    KERNREC_AVX2 static void descend_avx2(const CompactTrees& self, const int32_t* features, int32_t* reached) {
        descend_inline(self, features, reached);
    }

    std::vector<int64_t> start_;
    std::vector<int32_t> link_;       // of each node: 256 times the left child, plus the feature
    std::vector<int32_t> threshold_;  // ordered thresholds; values that are not less go right, to the next node
    std::vector<float> leaf_;
    double base_;
    int64_t levels_, features_ = 0;
};

// Reader of the trees' features, for one kind of problem in S backends.
class Reader {
  public:
    // rows: features of each backend, (S, F). For each problem, rows `places` of a
    // feature table replace the features at `columns`. The features at `own_columns` also differ between backends.
    Reader(nb::object trees, Array<const float, 2> rows, Array<const int64_t, 1> columns,
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

    // Fill `values` (S, N), a quantity of N problems in S backends: `base`, corrected by the trees.
    //
    // table: features of the problems, (features, N). own: features of backends and problems, (own columns, S, N).
    // base: (S, N), or (1, N) if equal for all backends. least: lower bounds, (N,). most: upper bound.
    void fill(Array<const double, 2> table_of, Array<const double, 3> own, Array<const double, 2> base_of,
              Array<const double, 1> least_of, double most, Array<double, 2> filled) const {
        const Table<const double> table(table_of), base(base_of);
        const Row<const double> least(least_of);
        const Table<double> values(filled);
        const int64_t count = values.columns;
        require(values.rows == backends_ && table.rows >= table_rows_ && table.columns == count &&
                    least.size == count && base.columns == count && (base.rows == 1 || base.rows == backends_) &&
                    own.shape(0) == own_columns_.size() &&
                    (own_columns_.empty() || (int64_t(own.shape(1)) == backends_ && int64_t(own.shape(2)) == count)),
                "table: expected the features of as many problems as values");
        const auto own_values = own.view();
        OrderedRows rows(backends_ * count, features_);
        for (int64_t s = 0; s < backends_; s++)
            for (int64_t i = 0; i < count; i++) {
                const int64_t row = s * count + i;
                for (int64_t f = 0; f < features_; f++) rows(row, f) = rows_[size_t(s * features_ + f)];
                for (size_t c = 0; c < columns_.size(); c++) rows(row, columns_[c]) = ordered(table(places_[c], i));
                for (size_t c = 0; c < own_columns_.size(); c++)
                    rows(row, own_columns_[c]) = ordered(own_values(c, size_t(s), size_t(i)));
            }
        std::vector<double> sums(size_t(backends_ * count));
        trees_->add(rows, Row<double>(sums.data(), int64_t(sums.size())));
        for (int64_t s = 0; s < backends_; s++)
            for (int64_t i = 0; i < count; i++) {
                const double ratio = std::exp(minimum(maximum(sums[size_t(s * count + i)], -kMostRatio), kMostRatio));
                values(s, i) = minimum(maximum(base(base.rows > 1 ? s : 0, i) * ratio, least[i]), most);
            }
    }

  private:
    nb::object kept_;
    const CompactTrees* trees_;
    std::vector<int64_t> columns_, places_, own_columns_;
    std::vector<int32_t> rows_;
    int64_t backends_ = 0, features_ = 0, table_rows_ = 0;
};

}  // namespace

void bind_compact_trees(nb::module_& module) {
    const auto exact = [] { return nb::arg().noconvert(); };
    nb::class_<CompactTrees>(module, "CompactTrees")
        .def(nb::init<Array<const int64_t, 1>, Array<const int64_t, 1>, Array<const int64_t, 1>, Array<const float, 1>,
                      Array<const float, 1>, double, int64_t>(),
             exact(), exact(), exact(), exact(), exact(), nb::arg(), nb::arg())
        .def("predict", &CompactTrees::predict, exact(), exact());
    nb::class_<Reader>(module, "Reader")
        .def(nb::init<nb::object, Array<const float, 2>, Array<const int64_t, 1>, Array<const int64_t, 1>,
                      Array<const int64_t, 1>>(),
             nb::arg(), exact(), exact(), exact(), exact())
        .def("fill", &Reader::fill, exact(), exact(), exact(), exact(), nb::arg(), exact());
}

}  // namespace kernrec::query
