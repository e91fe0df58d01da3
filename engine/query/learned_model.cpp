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

const Trees* trees(nb::handle of) { return of.is_none() ? nullptr : &nb::cast<const Trees&>(of); }

}  // namespace

LearnedModel::LearnedModel(nb::list layers, std::vector<bool> different_gpu, bool bounded, double bandwidth,
                           double boost_hz, double source, double widest, std::vector<int64_t> row_kinds,
                           Array<const double, 2> half_widths)
    : bounded_(bounded),
      bandwidth_(bandwidth),
      boost_hz_(boost_hz),
      source_(source),
      widest_(widest),
      row_kinds_(std::move(row_kinds)) {
    require(layers.size() > 0 && layers.size() == different_gpu.size(), "layers: expected at least one");
    for (const nb::handle each : layers) {
        const nb::tuple parts = nb::cast<nb::tuple>(each);
        require(parts.size() == 5, "layers: expected five parts");
        const Array<const float, 2> of_space = nb::cast<Array<const float, 2>>(parts[1], false);
        layers_.push_back({{parts[0], parts[1], parts[2], parts[3], parts[4]},
                           &nb::cast<const FeaturePlan&>(parts[0]),
                           Table<const float>(of_space),
                           &nb::cast<const Extent&>(parts[2]),
                           trees(parts[3]),
                           trees(parts[4]),
                           different_gpu[layers_.size()]});
        require(layers_.back().latency != nullptr && layers_.back().of_space.rows == configs(),
                "layers: expected trees of latency, and features of each config");
    }
    const Table<const double> widths(half_widths);
    require(widths.columns == 2 && std::all_of(row_kinds_.begin(), row_kinds_.end(),
                                               [&](int64_t kind) { return kind >= 0 && kind < widths.rows; }),
            "half widths: expected two for each kind of rows");
    for (int64_t kind = 0; kind < widths.rows; kind++)
        for (int64_t quantity = 0; quantity < 2; quantity++) half_widths_.push_back(widths(kind, quantity));
}

LearnedModel::Prediction LearnedModel::predict(const Table<double>& quantities,
                                               const std::vector<int64_t>& configs) const {
    const size_t count = configs.size();
    const int64_t size = int64_t(count);
    std::vector<double> least;
    if (bounded_) {
        least.resize(count);
        least_seconds({quantities.data, quantities.rows, size, quantities.row_step, quantities.step}, bandwidth_,
                      boost_hz_, {least.data(), size});
        for (size_t i = 0; i < count; i++) least[i] = std::log(least[i] / quantities(features::kLatencyS, int64_t(i)));
    }
    Prediction result;
    result.latency_log.assign(count, 0.0);
    result.distance.resize(count);
    std::vector<double> sums(count);
    for (const Layer& layer : layers_) {
        const int64_t columns = layer.of_space.columns;
        result.features.resize(count * size_t(columns));
        for (size_t i = 0; i < count; i++)
            for (int64_t f = 0; f < columns; f++)
                result.features[i * size_t(columns) + size_t(f)] = layer.of_space(configs[i], f);
        layer.plan->fill(quantities, {result.features.data(), size, columns, columns, 1});
        const Table<const float> rows(result.features.data(), size, columns, columns, 1);
        layer.extent->fill(rows, {result.distance.data(), size});
        layer.latency->predict(rows, {sums.data(), size});
        for (size_t i = 0; i < count; i++) {
            double ratio = sums[i];
            if (layer.different_gpu) {
                ratio *= std::exp(-result.distance[i]);  // less weight far from the training data
                if (bounded_) ratio = bounded(ratio, least[i]);
            }
            result.latency_log[i] += ratio;
            if (bounded_) least[i] -= ratio;
        }
        if (layer.power == nullptr) continue;
        layer.power->predict(rows, {sums.data(), size});
        if (result.power_log.empty()) result.power_log.assign(count, 0.0);
        for (size_t i = 0; i < count; i++) result.power_log[i] += sums[i];
    }
    return result;
}

double LearnedModel::half_width(int64_t row_kind, size_t quantity, double distance) const {
    return widened(half_widths_[size_t(row_kind) * 2 + quantity], distance, widest_);
}

void bind_learned_models(nb::module_& module) {
    nb::class_<LearnedModel>(module, "LearnedModel")
        .def(nb::init<nb::list, std::vector<bool>, bool, double, double, double, double, std::vector<int64_t>,
                      Array<const double, 2>>(),
             nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg(),
             nb::arg().noconvert())
        .def(
            "predict",
            [](const LearnedModel& self, Array<double, 2> quantities) {
                const Table<double> table(quantities);
                require(table.rows == features::kQuantities && table.columns == self.configs(),
                        "quantities: expected a column of each config");
                std::vector<int64_t> configs(static_cast<size_t>(table.columns));
                std::iota(configs.begin(), configs.end(), 0);
                LearnedModel::Prediction result = self.predict(table, configs);
                return nb::make_tuple(numpy(std::move(result.latency_log)), numpy(std::move(result.power_log)),
                                      numpy(std::move(result.distance)));
            },
            nb::arg().noconvert());
    module.def(
        "bounded",
        [](Array<const double, 1> ratios_of, Array<const double, 1> least_of, Array<double, 1> filled_of) {
            const Row<const double> ratios(ratios_of), least(least_of);
            const Row<double> filled(filled_of);
            require(least.size == ratios.size && filled.size == ratios.size, "bounded: expected as many everywhere");
            for (int64_t i = 0; i < ratios.size; i++) filled[i] = bounded(ratios[i], least[i]);
        },
        nb::arg().noconvert(), nb::arg().noconvert(), nb::arg().noconvert());
}

}  // namespace kernrec::query
