// Evaluates complete binary trees. A step down is one comparison, without a pointer.
#include "forest.h"

namespace kernrec::query {
namespace {

constexpr int64_t kTogether = 8;  // trees that a candidate descends together: each step waits for the last one

}  // namespace

Forest::Forest(int64_t features, int64_t trees, int64_t levels, Flat<uint16_t> columns, Flat<float> values, double base)
    : features_(features),
      trees_(trees),
      levels_(levels),
      base_(base),
      kept_columns_(columns),
      kept_values_(values),
      columns_(columns.data(), int64_t(columns.size())),
      values_(values.data(), int64_t(values.size())) {
    require(trees >= 0 && trees < (1 << 20) && trees % kTogether == 0, "trees: expected a multiple of eight");
    require(levels >= 0 && levels < 32, "levels: expected 0 to 31");
    require(columns_.size == trees * ((int64_t(1) << levels) - 1), "columns: expected one of each split");
    require(values_.size == trees * ((int64_t(2) << levels) - 1), "values: expected one of each node");
    require(all_within(columns_, 0, 2 * features), "columns: a split on a feature that does not exist");
}

void Forest::predict(const Table<const float>& rows, const Row<double>& sums) const {
    require(rows.columns == features_ && rows.rows == sums.size, "matrix: expected a row of features of each sum");
    // Store each row twice: missing values are low in the first half (go left), and high in the second (go right).
    std::vector<float> both(size_t(rows.rows * 2 * features_));
    constexpr float infinity = std::numeric_limits<float>::infinity();
    for (int64_t i = 0; i < rows.rows; i++) {
        float* row = both.data() + i * 2 * features_;
        for (int64_t f = 0; f < features_; f++) {
            const float value = rows(i, f);
            row[f] = value == value ? value : -infinity;
            row[features_ + f] = value == value ? value : infinity;
        }
        sums[i] = base_;
    }
    for (int64_t first = 0; first < trees_; first += kTogether)
        for (int64_t i = 0; i < rows.rows; i++) sums[i] = sums[i] + leaves(both.data() + i * 2 * features_, first);
}

double Forest::leaves(const float* row, int64_t first) const {
    const uint16_t* columns = columns_.data;
    const float* values = values_.data;
    int64_t node[kTogether];
    for (int64_t t = 0; t < kTogether; t++) node[t] = first + t;
    for (int64_t level = 0; level < levels_; level++)
#pragma GCC unroll 8
        for (int64_t t = 0; t < kTogether; t++)
            node[t] = 2 * node[t] + trees_ + (row[columns[node[t]]] >= values[node[t]]);
    auto leaf = [&](int64_t t) { return double(values[node[t]]); };
    return ((leaf(0) + leaf(1)) + (leaf(2) + leaf(3))) + ((leaf(4) + leaf(5)) + (leaf(6) + leaf(7)));
}

void bind_forest(nb::module_& module) {
    nb::class_<Forest>(module, "Forest")
        .def(nb::init<int64_t, int64_t, int64_t, Forest::Flat<uint16_t>, Forest::Flat<float>, double>(), nb::arg(),
             nb::arg(), nb::arg(), nb::arg().noconvert(), nb::arg().noconvert(), nb::arg())
        .def(
            "predict",
            [](const Forest& self, Array<const float, 2> matrix, Array<double, 1> sums) { self.predict(matrix, sums); },
            nb::arg().noconvert(), nb::arg().noconvert());
}

}  // namespace kernrec::query
