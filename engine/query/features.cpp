// Computes features of candidates for trained models, their distance from the training data, and their minimum time.
#include "features.h"

namespace kernrec::query {

using namespace features;

namespace {

// Figures of the GPU from `plan_of`: the rows from `kOne` on, then these two.
constexpr int64_t kConstants = kSomeFlops - kOne, kPeakFlops = kConstants, kBandwidth = kConstants + 1;
constexpr int64_t kTimesBusy = 3, kTimesWait = 4, kTimesL2 = 5;  // rows of `LaunchTime.rows`
constexpr double kLeast = 1e-30;  // replaces 0 as a divisor
constexpr double kLeastRatio = 1e-6, kMostRatio = 1e6;
constexpr double kMostDeviations = 10.0;  // maximum distance in a single feature, in standard deviations

double or_else(double value, double otherwise) { return value == value ? value : otherwise; }

// Model columns that are ratios of two quantities.
struct Ratio {
    int64_t above, below, place;
    bool bounded, logarithmic;
};

class FeaturePlan {
   public:
    // ratios: numerator, denominator, place, whether bounded, whether a logarithm, (R, 5).
    FeaturePlan(Array<const double, 1> gpu, Array<const int64_t, 2> ratios) : gpu_(copied(Row<const double>(gpu))) {
        require(int64_t(gpu_.size()) == kBandwidth + 1, "gpu: expected nine figures");
        const Table<const int64_t> rows(ratios);
        require(rows.columns == 5, "ratios: expected five columns");
        for (int64_t i = 0; i < rows.rows; i++) {
            require(all_within(rows[i], 0, 1 << 20) && rows(i, 0) < kQuantities && rows(i, 1) < kQuantities,
                    "ratios: expected rows of quantities");
            ratios_.push_back({rows(i, 0), rows(i, 1), rows(i, 2), rows(i, 3) != 0, rows(i, 4) != 0});
            columns_ = std::max(columns_, rows(i, 2) + 1);
        }
    }

    // Fill the plan's columns of `features` (C, F) from the inputs in `quantities` (Q, C), and compute the other rows
    // of `quantities`.
    void fill(Array<double, 2> quantities_of, Array<float, 2> features_of) const {
        const Table<double> quantities(quantities_of);
        const Table<float> features(features_of);
        require(quantities.rows == kQuantities && quantities.columns == features.rows && features.columns >= columns_,
                "quantities: expected a column of each row of features");
        derive(quantities);
        for (const Ratio& ratio : ratios_) {
            const Row<double> above = quantities[ratio.above], below = quantities[ratio.below];
            for (int64_t i = 0; i < quantities.columns; i++) {
                double value = above[i];
                if (ratio.bounded)
                    value = minimum(maximum(value / maximum(below[i], kLeast), kLeastRatio), kMostRatio);
                else
                    value = value / below[i];
                features(i, ratio.place) = float(ratio.logarithmic ? std::log2(value) : value);
            }
        }
    }

   private:
    void derive(const Table<double>& quantities) const {
        for (int64_t i = 0; i < quantities.columns; i++) {
            auto quantity = [&](Quantity row) -> double& { return quantities(row, i); };
            for (int64_t constant = 0; constant < kConstants; constant++)
                quantities(kOne + constant, i) = gpu_[size_t(constant)];
            const double flops = maximum(quantity(kFlops), 1.0);
            const double compute_s = flops / gpu_[kPeakFlops], traffic_s = quantity(kBytes) / gpu_[kBandwidth];
            quantity(kSomeFlops) = flops;
            quantity(kComputeS) = compute_s;
            quantity(kTrafficS) = traffic_s;
            quantity(kRooflineS) = maximum(compute_s, traffic_s);
            const double threads = quantity(kThreads), blocks = quantity(kBlocks), resident = quantity(kResident);
            const double warps = std::ceil(threads / 32.0), some_resident = maximum(resident, 1.0);
            const double waves = blocks / (quantity(kSms) * some_resident);
            quantity(kWarps) = warps;
            quantity(kLanes) = warps * 32.0;
            quantity(kAllThreads) = blocks * threads;
            quantity(kSomeResident) = some_resident;
            quantity(kResidentWarps) = resident * warps;
            quantity(kResidentBytes) = resident * quantity(kSharedBytes);
            quantity(kWaves) = waves;
            quantity(kRounds) = maximum(std::ceil(waves), 1.0);
            quantity(kSomeBusyS) = maximum(quantity(kBusyS), kLeast);
        }
    }

    std::vector<double> gpu_;
    std::vector<Ratio> ratios_;
    int64_t columns_ = 0;
};

// Fill `seconds` (C,) with the minimum time of candidates: compulsory bytes, or arithmetic at the reduced clock.
void least_seconds(Array<const double, 2> quantities_of, double bandwidth, double boost_hz, Array<double, 1> filled) {
    constexpr int64_t kFma = kFirstPipeS + 1, kF64 = kFirstPipeS + 4, kTensor = kFirstPipeS + 5;
    const Table<const double> quantities(quantities_of);
    const Row<double> seconds(filled);
    require(quantities.rows == kQuantities && quantities.columns == seconds.size, "quantities: expected (Q, C)");
    for (int64_t i = 0; i < quantities.columns; i++) {
        const double busiest_s = maximum(maximum(quantities(kFma, i), quantities(kF64, i)), quantities(kTensor, i));
        const double arithmetic_s = busiest_s * (boost_hz / or_else(quantities(kClockHz, i), boost_hz));
        const double least_s = maximum(quantities(kBytes, i) / bandwidth, or_else(arithmetic_s, 0.0));
        seconds[i] = least_s + or_else(quantities(kFixedS, i), 0.0);
    }
}

// Range and spread of each of F features in a model's training data.
class Extent {
   public:
    // group_means: matrix that takes the mean over each group of features, (F, groups).
    Extent(Array<const double, 1> low, Array<const double, 1> high, Array<const double, 1> spread,
           Array<const double, 2> group_means)
        : low_(copied(Row<const double>(low))), high_(copied(Row<const double>(high))),
          spread_(copied(Row<const double>(spread))) {
        const Table<const double> means(group_means);
        require(low_.size() == high_.size() && low_.size() == spread_.size() && int64_t(low_.size()) == means.rows,
                "extent: expected as many features everywhere");
        groups_ = means.columns;
        for (int64_t f = 0; f < means.rows; f++)
            for (int64_t group = 0; group < groups_; group++) means_.push_back(means(f, group));
    }

    // Fill `distances` (C,) with the distance of rows of `matrix` (C, F) from the training data. Unknown or infinite
    // values count as within the range.
    void fill(Array<const double, 2> matrix, Array<double, 1> distances_of) const {
        const Table<const double> rows(matrix);
        const Row<double> distances(distances_of);
        require(rows.columns == int64_t(low_.size()) && rows.rows == distances.size, "matrix: expected (C, F)");
        std::vector<double> of_groups(static_cast<size_t>(groups_));
        for (int64_t i = 0; i < rows.rows; i++) {
            std::fill(of_groups.begin(), of_groups.end(), 0.0);
            for (size_t f = 0; f < low_.size(); f++) {
                const double value = rows(i, int64_t(f));
                double beyond = value > high_[f] ? value - high_[f] : value < low_[f] ? low_[f] - value : 0.0;
                beyond = beyond < kInfinity ? beyond : 0.0;
                const double deviations = minimum(beyond / spread_[f], kMostDeviations);
                const double square = deviations * deviations;
                if (square > 0.0)
                    for (size_t group = 0; group < of_groups.size(); group++)
                        of_groups[group] += square * means_[f * of_groups.size() + group];
            }
            double most = 0.0;
            for (const double mean : of_groups) most = maximum(most, mean);
            distances[i] = 0.5 * std::log1p(std::sqrt(most));
        }
    }

   private:
    std::vector<double> low_, high_, spread_, means_;
    int64_t groups_ = 0;
};

}  // namespace

void features::add_times(const Table<const double>& pipe_clk, const Table<const double>& times, int64_t place,
                         const Table<double>& quantities, int64_t candidate) {
    double most_clk = pipe_clk(0, place);
    for (int64_t pipe = 1; pipe < kPipes; pipe++) most_clk = maximum(most_clk, pipe_clk(pipe, place));
    const double busy_s = times(kTimesBusy, place), share_s = busy_s / maximum(most_clk, kLeast);
    for (int64_t pipe = 0; pipe < kPipes; pipe++)
        quantities(kFirstPipeS + pipe, candidate) += pipe_clk(pipe, place) * share_s;
    quantities(kBusyS, candidate) += busy_s;
    quantities(kWaitS, candidate) += times(kTimesWait, place);
    quantities(kL2S, candidate) += times(kTimesL2, place);
}

void bind_features(nb::module_& module) {
    const auto exact = [] { return nb::arg().noconvert(); };
    nb::class_<FeaturePlan>(module, "FeaturePlan")
        .def(nb::init<Array<const double, 1>, Array<const int64_t, 2>>(), exact(), exact())
        .def("fill", &FeaturePlan::fill, exact(), exact());
    nb::class_<Extent>(module, "Extent")
        .def(nb::init<Array<const double, 1>, Array<const double, 1>, Array<const double, 1>, Array<const double, 2>>(),
             exact(), exact(), exact(), exact())
        .def("fill", &Extent::fill, exact(), exact());
    module.def("least_seconds", &least_seconds, exact(), nb::arg(), nb::arg(), exact());
}

}  // namespace kernrec::query
