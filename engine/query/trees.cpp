// Evaluates boosted trees: all of them on a few rows, several descents at a time.
#include "trees.h"

#include <algorithm>
#include <functional>

namespace kernrec::query {
namespace {

constexpr double kMostRatio = 20.0;  // largest logarithm of a correction; only untrained trees exceed it
// Descents of a row that run interleaved, because each step of a descent waits for the step before. More would not fit
// in registers.
constexpr size_t kTogether = 10;
constexpr size_t kChunk = 20;  // trees between two checks of which rows still matter
constexpr size_t kRows = 128;  // features of more rows would exceed the CPU cache
constexpr double kSlack = 1e-9;  // exceeds the rounding of a sum of leaves
constexpr int32_t kBelowAll = std::numeric_limits<int32_t>::min();  // below every ordered value and every leaf

float from_bits(int32_t bits) {
    float value;
    std::memcpy(&value, &bits, sizeof value);
    return value;
}

}  // namespace

int32_t Trees::ordered(double value) {
    const float single = float(value) + 0.0f;
    if (single != single) return 0x7fc00000;
    int32_t bits;
    std::memcpy(&bits, &single, sizeof bits);
    return bits >= 0 ? bits : bits ^ 0x7fffffff;
}

Trees::Trees(double base, int64_t levels, const Row<const uint16_t>& nodes, const Row<const uint8_t>& inner,
             const Row<const uint8_t>& column, const Row<const uint8_t>& cut, const Row<const uint16_t>& cut_count,
             const Row<const float>& cuts, const Row<const uint8_t>& leaf, const Row<const float>& low,
             const Row<const float>& step)
    : base_(base), levels_(levels) {
    int64_t total = 0;
    for (int64_t tree = 0; tree < nodes.size; tree++) total += nodes[tree];
    std::vector<int64_t> first_cut(1, 0);
    for (int64_t f = 0; f < cut_count.size; f++) first_cut.push_back(first_cut.back() + cut_count[f]);
    require(levels >= 0 && levels <= 64 && all_within(nodes, 1, 1 << 16) && (total + 7) / 8 == inner.size &&
                low.size == nodes.size && step.size == nodes.size && cut.size == column.size &&
                column.size + leaf.size == total && first_cut.back() == cuts.size &&
                all_within(column, 0, cut_count.size),
            "trees: the arrays are inconsistent");
    const auto finite = [](float value) {
        require(std::isfinite(value), "trees: a number is not finite");
        return value;
    };
    finite(float(base));
    nodes_.reserve(size_t(total));
    int64_t split = 0;
    for (int64_t tree = 0, node = 0; tree < nodes.size; tree++) {
        start_.push_back(nodes_.size());
        for (int64_t n = 0, child = 1; n < nodes[tree]; n++, node++) {
            if (inner[node / 8] >> (7 - node % 8) & 1) {
                require(split < column.size && child > n && child + 1 < nodes[tree], "trees: a node does not exist");
                const int64_t feature = column[split];
                require(cut[split] < cut_count[feature], "trees: a threshold does not exist");
                features_ = std::max(features_, feature + 1);
                add_node(false, finite(cuts[first_cut[size_t(feature)] + cut[split]]), child - n, feature);
                child += 2;
                split++;
            } else {
                require(node - split < leaf.size, "trees: a leaf does not exist");
                add_node(true, finite(low[tree] + step[tree] * float(leaf[node - split])), 0, 0);
            }
        }
    }
    finish();
}

Trees::Trees(int64_t features, int64_t trees, int64_t levels, const Row<const uint16_t>& columns,
             const Row<const float>& values, double base)
    : base_(base), levels_(levels), features_(features) {
    require(features >= 0 && features < 1 << 15, "features: expected fewer than 32,768");
    require(trees >= 0 && trees < (1 << 20) && levels >= 0 && levels < 16, "levels: expected 0 to 15");
    require(columns.size == trees * ((int64_t(1) << levels) - 1), "columns: expected one of each split");
    require(values.size == trees * ((int64_t(2) << levels) - 1), "values: expected one of each node");
    require(all_within(columns, 0, 2 * features), "columns: a split on a feature that does not exist");
    // The first copy of a row's features is for splits at which missing values go right.
    any_left_ = !all_within(columns, features, 2 * features);
    std::vector<std::pair<int64_t, int64_t>> order;  // level, and place within the tree's level
    for (int64_t tree = 0; tree < trees; tree++) {
        start_.push_back(nodes_.size());
        order.assign(1, {0, 0});
        for (size_t next = 0; next < order.size(); next++) {
            const auto [level, place] = order[next];
            const auto at = [&](int64_t lower) {
                return trees * ((int64_t(1) << lower) - 1) + (tree << lower) + (place << (lower - level));
            };
            // In the arrays, an early leaf has an infinite threshold, and the last level repeats its value.
            const bool is_leaf = level == levels || values[at(level)] == std::numeric_limits<float>::infinity();
            const int64_t column = is_leaf ? 0 : int64_t(columns[at(level)]);
            add_node(is_leaf, values[at(is_leaf ? levels : level)], int64_t(order.size() - next),
                     column < features ? column + features : column - features);
            if (!is_leaf) order.insert(order.end(), {{level + 1, 2 * place}, {level + 1, 2 * place + 1}});
        }
    }
    finish();
}

void Trees::add_node(bool is_leaf, float value, int64_t left, int64_t feature) {
    value += 0.0f;  // -0.0 has the bits of `kBelowAll`
    Node node{ordered(value), uint16_t(left), uint16_t(feature + 1)};
    if (is_leaf) std::memcpy(&node.threshold, &value, sizeof value), node.left = node.feature = 0;
    nodes_.push_back(node);
}

void Trees::finish() {
    least_.assign(start_.size() + 1, 0.0);
    for (size_t tree = start_.size(), end = nodes_.size(); tree-- > 0; end = start_[tree]) {
        float least = std::numeric_limits<float>::infinity();
        for (size_t n = start_[tree]; n < end; n++)
            if (nodes_[n].left == 0) least = std::min(least, from_bits(nodes_[n].threshold));
        least_[tree] = least_[tree + 1] + double(least);
    }
}

void Trees::predict(const Table<const float>& rows, const Row<double>& sums) const {
    require(rows.columns >= features_ && rows.rows == sums.size, "matrix: expected a row of features of each sum");
    const size_t size = size_t(1 + width());
    std::vector<int32_t> features(size * std::min(kRows, size_t(rows.rows)), kBelowAll);
    std::vector<Descent> some;
    for (int64_t first = 0; first < rows.rows; first += int64_t(kRows)) {
        some.clear();
        for (int64_t i = first; i < std::min(first + int64_t(kRows), rows.rows); i++) {
            int32_t* const row = features.data() + size * size_t(i - first);
            for (int64_t f = 0; f < features_; f++) {
                row[1 + f] = ordered(rows(i, f));
                if (any_left_) row[1 + features_ + f] = std::isnan(rows(i, f)) ? kBelowAll : row[1 + f];
            }
            some.push_back({row, size_t(i), kInfinity, base_});
        }
        add(some);
        for (const Descent& row : some) sums[int64_t(row.number)] = row.sum;
    }
}

void Trees::add(std::vector<Descent>& rows) const {
    for (size_t first = 0; first < start_.size(); first += kChunk) {
        const auto beyond = [&](const Descent& row) {
            return std::min(row.sum + least_[first], kMostRatio) > row.enough + kSlack;
        };
        rows.erase(std::remove_if(rows.begin(), rows.end(), beyond), rows.end());
        if (rows.empty()) return;
        const size_t end = std::min(first + kChunk, start_.size());
        for (Descent& row : rows)
            for (size_t tree = first; tree < end; tree += kTogether) {
                const Node* reached[kTogether];
                // Spare descents repeat the last one.
                for (size_t i = 0; i < kTogether; i++) reached[i] = nodes_.data() + start_[std::min(tree + i, end - 1)];
                for (int64_t level = 0; level < levels_; level++)
#pragma GCC unroll 16
                    for (const Node*& node : reached)
                        node += node->left + (row.features[node->feature] >= node->threshold ? 1 : 0);
                for (size_t i = 0; i < std::min(kTogether, end - tree); i++)
                    row.sum += double(from_bits(reached[i]->threshold));
            }
    }
}

void TreeReader::fill(const Inputs& inputs, const std::vector<Cell>& cells, const Table<double>& values) const {
    const int64_t count = values.columns;
    require(values.rows == backends && inputs.table.rows >= table_rows && inputs.table.columns == count &&
                inputs.least.size == count && inputs.base.columns == count &&
                (inputs.base.rows == 1 || inputs.base.rows == backends) &&
                inputs.own.rows == backends * int64_t(own_columns.size()) &&
                (own_columns.empty() || inputs.own.columns == count),
            "table: expected the features of as many problems as values");
    const auto base_of = [&](const Cell& cell) {
        return inputs.base(inputs.base.rows > 1 ? cell.backend : 0, cell.problem);
    };
    const int64_t size = 1 + features;
    std::vector<int32_t> room(size_t(size) * std::min(kRows, cells.size()));
    std::vector<Trees::Descent> some;
    for (size_t first = 0; first < cells.size(); first += kRows) {
        some.clear();
        for (size_t number = first; number < std::min(first + kRows, cells.size()); number++) {
            const Cell& cell = cells[number];
            int32_t* const row = room.data() + (number - first) * size_t(size);
            std::copy_n(rows.data() + cell.backend * size, size, row);
            for (size_t c = 0; c < columns.size(); c++)
                row[1 + columns[c]] = Trees::ordered(inputs.table(places[c], cell.problem));
            for (size_t c = 0; c < own_columns.size(); c++)
                row[1 + own_columns[c]] =
                    Trees::ordered(inputs.own(int64_t(c) * backends + cell.backend, cell.problem));
            some.push_back({row, number, std::log(cell.enough / base_of(cell)), trees.base()});
            values(cell.backend, cell.problem) = kInfinity;
        }
        trees.add(some);
        for (const Trees::Descent& row : some) {
            const Cell& cell = cells[row.number];
            const double ratio = std::exp(minimum(maximum(row.sum, -kMostRatio), kMostRatio));
            values(cell.backend, cell.problem) =
                minimum(maximum(base_of(cell) * ratio, inputs.least[cell.problem]), inputs.most);
        }
    }
}

void TreeReader::fill_all(const Table<const double>& table, const Table<const double>& own,
                          const Table<const double>& base, const Row<const double>& least, double most,
                          const Table<double>& values) const {
    std::vector<Cell> cells;
    for (int64_t problem = 0; problem < values.columns; problem++)
        for (int64_t backend = 0; backend < values.rows; backend++) cells.push_back({backend, problem, kInfinity});
    fill({table, base, least, most, own}, cells, values);
}

namespace {

const Binding kBinding([](nb::module_& module) {
    using Whole = Row<const int64_t>;
    using Short = Row<const uint16_t>;
    using Byte = Row<const uint8_t>;
    using Real = Row<const float>;
    nb::class_<Trees>(module, "Trees")
        .def(nb::init<double, int64_t, Short, Byte, Byte, Byte, Short, Real, Byte, Real, Real>())
        .def(nb::init<int64_t, int64_t, int64_t, Short, Real, double>())
        .def("predict", &Trees::predict);
    nb::class_<TreeReader>(module, "Reader")
        .def(
            "__init__",
            [](TreeReader* self, const Trees& trees, const Table<const float>& backends, const Whole& columns,
               const Whole& places, const Whole& own_columns) {
                require(backends.columns >= trees.width() && columns.size == places.size &&
                            all_within(columns, 0, backends.columns) && all_within(own_columns, 0, backends.columns) &&
                            all_within(places, 0, 1 << 20),
                        "rows: expected the features of the trees");
                TreeReader reader{trees,         copied(columns), copied(places), copied(own_columns),
                                  backends.rows, backends.columns};
                for (const int64_t place : reader.places) reader.table_rows = std::max(reader.table_rows, place + 1);
                for (int64_t s = 0; s < backends.rows; s++) {
                    reader.rows.push_back(kBelowAll);
                    for (int64_t f = 0; f < backends.columns; f++)
                        reader.rows.push_back(Trees::ordered(backends(s, f)));
                }
                new (self) TreeReader(std::move(reader));
            },
            nb::keep_alive<1, 2>())
        .def("fill", &TreeReader::fill_all);
});

}  // namespace
}  // namespace kernrec::query
