// Corrects the analytical model's costs by trained models: features, distance from the training data, minimum times.
#include "learned_model.h"

#include <algorithm>
#include <numeric>

namespace kernrec::query {

using namespace features;

namespace {

// Indices in `FeaturePlan::gpu`.
constexpr int64_t kConstants = kSomeFlops - kOne, kPeakFlops = kConstants, kBandwidth = kConstants + 1;
constexpr double kLeast = 1e-30;  // replaces 0 as a divisor
constexpr double kLeastRatio = 1e-6, kMostRatio = 1e6;
constexpr double kMostDeviations = 10.0;  // maximum distance in a single feature, in standard deviations

double or_else(double value, double otherwise) { return value == value ? value : otherwise; }

void derive(const Table<double>& quantities, const std::vector<double>& gpu) {
    for (int64_t i = 0; i < quantities.columns; i++) {
        auto quantity = [&](features::Quantity row) -> double& { return quantities(row, i); };
        for (int64_t constant = 0; constant < kConstants; constant++) quantities(kOne + constant, i) = gpu[constant];
        const double flops = maximum(quantity(kFlops), 1.0);
        const double compute_s = flops / gpu[kPeakFlops], traffic_s = quantity(kBytes) / gpu[kBandwidth];
        quantity(kSomeFlops) = flops;
        quantity(kComputeS) = compute_s;
        quantity(kTrafficS) = traffic_s;
        quantity(kRooflineS) = maximum(compute_s, traffic_s);
        const double threads = quantity(kThreads), blocks = quantity(features::kBlocks), resident = quantity(kResident);
        const double warps = std::ceil(threads / 32.0), some_resident = maximum(resident, 1.0);
        const double waves = blocks / (quantity(kSms) * some_resident);
        quantity(features::kWarps) = warps;
        quantity(features::kLanes) = warps * 32.0;
        quantity(kAllThreads) = blocks * threads;
        quantity(kSomeResident) = some_resident;
        quantity(kResidentWarps) = resident * warps;
        quantity(kResidentBytes) = resident * quantity(kSharedBytes);
        quantity(kWaves) = waves;
        quantity(kRounds) = maximum(std::ceil(waves), 1.0);
        quantity(kSomeBusyS) = maximum(quantity(kBusyS), kLeast);
    }
}

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

void FeaturePlan::fill(const Table<double>& quantities, const Table<float>& features) const {
    require(quantities.rows == kQuantities && quantities.columns == features.rows && features.columns >= columns,
            "quantities: expected a column for each row of features");
    derive(quantities, gpu);
    for (const auto& [above, below, place, bounded, logarithmic] : ratios)
        for (int64_t i = 0; i < quantities.columns; i++) {
            double value = quantities(above, i), divisor = quantities(below, i);
            if (bounded) value = minimum(maximum(value / maximum(divisor, kLeast), kLeastRatio), kMostRatio);
            else value = value / divisor;
            features(i, place) = float(logarithmic ? std::log2(value) : value);
        }
}

void least_seconds(const Table<const double>& quantities, double bandwidth, double boost_hz,
                   const Row<double>& seconds) {
    constexpr int64_t kFma = kFirstPipeS + 1, kF64 = kFirstPipeS + 4, kTensor = kFirstPipeS + 5;
    require(quantities.rows == kQuantities && quantities.columns == seconds.size, "quantities: expected (Q, C)");
    for (int64_t i = 0; i < quantities.columns; i++) {
        const double busiest_s = maximum(maximum(quantities(kFma, i), quantities(kF64, i)), quantities(kTensor, i));
        const double arithmetic_s = busiest_s * (boost_hz / or_else(quantities(costs::kClockHz, i), boost_hz));
        const double least_s = maximum(quantities(kBytes, i) / bandwidth, or_else(arithmetic_s, 0.0));
        seconds[i] = least_s + or_else(quantities(kFixedS, i), 0.0);
    }
}

template <class T>
void Extent::fill(const Table<const T>& rows, const Row<double>& distances) const {
    require(rows.columns == int64_t(low.size()) && rows.rows == distances.size, "matrix: expected (C, F)");
    std::vector<double> of_groups(groups);
    for (int64_t i = 0; i < rows.rows; i++) {
        std::fill(of_groups.begin(), of_groups.end(), 0.0);
        for (size_t f = 0; f < low.size(); f++) {
            const double value = rows(i, int64_t(f));
            const double beyond = value > high[f] ? value - high[f] : value < low[f] ? low[f] - value : 0.0;
            if (!(beyond > 0.0 && beyond < kInfinity)) continue;
            const double deviations = minimum(beyond / spread[f], kMostDeviations);
            const double square = deviations * deviations;
            if (square > 0.0)
                for (size_t group = 0; group < of_groups.size(); group++)
                    of_groups[group] += square * means[f * of_groups.size() + group];
        }
        double most = 0.0;
        for (const double mean : of_groups) most = maximum(most, mean);
        distances[i] = 0.5 * std::log1p(std::sqrt(most));
    }
}

template void Extent::fill<float>(const Table<const float>&, const Row<double>&) const;
template void Extent::fill<double>(const Table<const double>&, const Row<double>&) const;

void features::add_times(const Table<const double>& pipe_clk, const Table<const double>& times, int64_t place,
                         const Table<double>& quantities, int64_t candidate) {
    double most_clk = pipe_clk(0, place);
    for (int64_t pipe = 1; pipe < kPipes; pipe++) most_clk = maximum(most_clk, pipe_clk(pipe, place));
    const double busy_s = times(kBusy, place), share_s = busy_s / maximum(most_clk, kLeast);
    for (int64_t pipe = 0; pipe < kPipes; pipe++)
        quantities(kFirstPipeS + pipe, candidate) += pipe_clk(pipe, place) * share_s;
    quantities(kBusyS, candidate) += busy_s;
    quantities(kWaitS, candidate) += times(kLatency, place);
    quantities(kL2S, candidate) += times(kL2Time, place);
}

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
    nb::class_<FeaturePlan>(module, "FeaturePlan")
        .def("__init__",
             [](FeaturePlan* self, const Row<const double>& gpu, const Table<const int64_t>& ratios) {
                 require(gpu.size == kBandwidth + 1 && ratios.columns == 5,
                         "plan: expected nine figures and five columns of ratios");
                 FeaturePlan plan{copied(gpu), {}, 0};
                 for (int64_t i = 0; i < ratios.rows; i++) {
                     require(
                         all_within(ratios[i], 0, 1 << 20) && ratios(i, 0) < kQuantities && ratios(i, 1) < kQuantities,
                         "ratios: expected rows of quantities");
                     auto& ratio = plan.ratios.emplace_back();
                     for (size_t field = 0; field < 5; field++) ratio[field] = ratios(i, int64_t(field));
                     plan.columns = std::max(plan.columns, ratio[2] + 1);
                 }
                 new (self) FeaturePlan(std::move(plan));
             })
        .def("fill", &FeaturePlan::fill);
    nb::class_<Extent>(module, "Extent")
        .def("__init__",
             [](Extent* self, const Row<const double>& low, const Row<const double>& high,
                const Row<const double>& spread, const Table<const double>& means) {
                 require(low.size == high.size && low.size == spread.size && low.size == means.rows,
                         "extent: expected equal numbers of features");
                 new (self) Extent{copied(low), copied(high), copied(spread), copied(means), size_t(means.columns)};
             })
        .def("fill", &Extent::fill<double>);
    module.def("least_seconds", &least_seconds);
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
            require(least.size == ratios.size && filled.size == ratios.size, "bounded: expected arrays of equal size");
            for (int64_t i = 0; i < ratios.size; i++) filled[i] = raised(ratios[i], least[i]);
        });
});

}  // namespace
}  // namespace kernrec::query
