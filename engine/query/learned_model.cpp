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
double raised(double ratio, double least) { return log_of_sum(kSharpness * ratio, kSharpness * least) / kSharpness; }

}  // namespace

LearnedModel::Prediction LearnedModel::predict(const Table<double>& quantities,
                                               const std::vector<int64_t>& configs) const {
    const size_t count = configs.size();
    const int64_t size = int64_t(count);
    std::vector<double> least;
    if (bounded) {
        least.resize(count);
        least_seconds(quantities, bandwidth, boost_hz, least);
        for (size_t i = 0; i < count; i++) least[i] = std::log(least[i] / quantities(costs::kLatencyS, int64_t(i)));
    }
    Prediction result;
    result.latency_log.assign(count, 0.0);
    result.distance.resize(count);
    std::vector<double> sums(count);
    for (const auto& [plan, of_space, extent, latency, power, different_gpu] : layers) {
        const int64_t columns = of_space.columns;
        result.features.resize(count * size_t(columns));
        const Table<float> rows(result.features.data(), size, columns);
        for (int64_t i = 0; i < size; i++)
            for (int64_t f = 0; f < columns; f++) rows(i, f) = of_space(configs[i], f);
        plan->fill(quantities, rows);
        extent->fill<float>(rows, result.distance);
        latency->predict(rows, sums);
        for (size_t i = 0; i < count; i++) {
            double ratio = sums[i];
            if (different_gpu) {
                ratio *= std::exp(-result.distance[i]);  // less weight far from the training data
                if (bounded) ratio = raised(ratio, least[i]);
            }
            result.latency_log[i] += ratio;
            if (bounded) least[i] -= ratio;
        }
        if (power == nullptr) continue;
        power->predict(rows, sums);
        if (result.power_log.empty()) result.power_log.assign(count, 0.0);
        for (size_t i = 0; i < count; i++) result.power_log[i] += sums[i];
    }
    return result;
}

namespace {

const Binding kBinding([](nb::module_& module) {
    nb::class_<LearnedModel>(module, "LearnedModel")
        .def(
            "__init__",
            [](LearnedModel* self, std::vector<LearnedModel::Layer> layers, bool bounded, double bandwidth,
               double boost_hz, double source, double widest, std::vector<int64_t> row_kinds,
               const Table<const double>& half_widths) {
                require(!layers.empty(), "layers: expected at least one");
                for (const auto& [plan, of_space, extent, latency, power, different_gpu] : layers)
                    require(plan != nullptr && extent != nullptr && latency != nullptr &&
                                of_space.rows == int64_t(row_kinds.size()),
                            "layers: expected trees of latency, and features of each config");
                require(half_widths.columns == 2 && all_within(Row<const int64_t>(row_kinds), 0, half_widths.rows),
                        "half widths: expected two for each kind of rows");
                new (self)
                    LearnedModel{std::move(layers),  bounded, bandwidth, boost_hz, source, widest, std::move(row_kinds),
                                 copied(half_widths)};
            },
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
            for (int64_t i = 0; i < ratios.size; i++) filled[i] = raised(ratios[i], least[i]);
        });
});

}  // namespace
}  // namespace kernrec::query
