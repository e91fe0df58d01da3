// Computes features of candidates for trained models, their distance from the training data, and their minimum time.
#include "features.h"

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

}  // namespace

void FeaturePlan::fill(const Table<double>& quantities, const Table<float>& features) const {
    require(quantities.rows == kQuantities && quantities.columns == features.rows && features.columns >= columns,
            "quantities: expected a column of each row of features");
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
                         "extent: expected as many features everywhere");
                 new (self) Extent{copied(low), copied(high), copied(spread), copied(means), size_t(means.columns)};
             })
        .def("fill", &Extent::fill<double>);
    module.def("least_seconds", &least_seconds);
});

}  // namespace
}  // namespace kernrec::query
