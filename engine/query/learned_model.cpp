// Corrects the analytical model's costs by trained models.
#include "learned_model.h"

#include <algorithm>
#include <numeric>

namespace kernrec::query {
namespace {

// Exponent of the smooth maximum of a corrected time and its lower bound. Of the exponents 4, 8, 16 and 32, this one
// ranked recorded f32 matmuls best without increasing the errors of their times.
constexpr double kSharpness = 16.0;

// Return log(exp(a) + exp(b)).
double log_of_sum(double a, double b) {
    if (a == b) return a + std::log(2.0);
    return a > b ? a + std::log1p(std::exp(b - a)) : a <= b ? b + std::log1p(std::exp(a - b)) : a - b;
}

// Limit a correction from below: log(corrected time / analytical time), and log(minimum time / analytical time).
double bounded(double ratio, double least) { return log_of_sum(kSharpness * ratio, kSharpness * least) / kSharpness; }

}  // namespace

LearnedModel::LearnedModel(std::vector<Layer> layers, bool bounded, double bandwidth, double boost_hz, double source,
                           double widest, std::vector<int64_t> row_kinds, const Table<const double>& half_widths)
    : layers_(std::move(layers)),
      bounded_(bounded),
      bandwidth_(bandwidth),
      boost_hz_(boost_hz),
      source_(source),
      widest_(widest),
      row_kinds_(std::move(row_kinds)),
      half_widths_(copied(half_widths)) {
    require(!layers_.empty(), "layers: expected at least one");
    for (const auto& [plan, of_space, extent, latency, power, different_gpu] : layers_)
        require(plan != nullptr && extent != nullptr && latency != nullptr && of_space.rows == configs(),
                "layers: expected trees of latency, and features of each config");
    require(half_widths.columns == 2 && all_within(Row<const int64_t>(row_kinds_), 0, half_widths.rows),
            "half widths: expected two for each kind of rows");
}

LearnedModel::Prediction LearnedModel::predict(const Table<double>& quantities,
                                               const std::vector<int64_t>& configs) const {
    const size_t count = configs.size();
    const int64_t size = int64_t(count);
    std::vector<double> least;
    if (bounded_) {
        least.resize(count);
        least_seconds(quantities, bandwidth_, boost_hz_, least);
        for (size_t i = 0; i < count; i++) least[i] = std::log(least[i] / quantities(features::kLatencyS, int64_t(i)));
    }
    Prediction result;
    result.latency_log.assign(count, 0.0);
    result.distance.resize(count);
    std::vector<double> sums(count);
    for (const auto& [plan, of_space, extent, latency, power, different_gpu] : layers_) {
        const int64_t columns = of_space.columns;
        result.features.resize(count * size_t(columns));
        const Table<float> rows(result.features.data(), size, columns);
        for (int64_t i = 0; i < size; i++)
            for (int64_t f = 0; f < columns; f++) rows(i, f) = of_space(configs[size_t(i)], f);
        plan->fill(quantities, rows);
        extent->fill<float>(rows, result.distance);
        latency->predict(rows, sums);
        for (size_t i = 0; i < count; i++) {
            double ratio = sums[i];
            if (different_gpu) {
                ratio *= std::exp(-result.distance[i]);  // less weight far from the training data
                if (bounded_) ratio = bounded(ratio, least[i]);
            }
            result.latency_log[i] += ratio;
            if (bounded_) least[i] -= ratio;
        }
        if (power == nullptr) continue;
        power->predict(rows, sums);
        if (result.power_log.empty()) result.power_log.assign(count, 0.0);
        for (size_t i = 0; i < count; i++) result.power_log[i] += sums[i];
    }
    return result;
}

double LearnedModel::half_width(int64_t row_kind, size_t quantity, double distance) const {
    return widened(half_widths_[size_t(row_kind) * 2 + quantity], distance, widest_);
}

namespace {

const Binding kBinding([](nb::module_& module) {
    nb::class_<LearnedModel>(module, "LearnedModel")
        .def(nb::init<std::vector<LearnedModel::Layer>, bool, double, double, double, double, std::vector<int64_t>,
                      Table<const double>>(),
             nb::keep_alive<1, 2>())
        .def("predict", [](const LearnedModel& self, const Table<double>& quantities) {
            require(quantities.rows == features::kQuantities && quantities.columns == self.configs(),
                    "quantities: expected a column of each config");
            std::vector<int64_t> configs(static_cast<size_t>(quantities.columns));
            std::iota(configs.begin(), configs.end(), 0);
            LearnedModel::Prediction result = self.predict(quantities, configs);
            return nb::make_tuple(numpy(std::move(result.latency_log)), numpy(std::move(result.power_log)),
                                  numpy(std::move(result.distance)));
        });
    module.def(
        "bounded", [](const Row<const double>& ratios, const Row<const double>& least, const Row<double>& filled) {
            require(least.size == ratios.size && filled.size == ratios.size, "bounded: expected as many everywhere");
            for (int64_t i = 0; i < ratios.size; i++) filled[i] = bounded(ratios[i], least[i]);
        });
});

}  // namespace
}  // namespace kernrec::query
