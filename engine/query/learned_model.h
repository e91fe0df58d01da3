// Trained models that correct the costs of a kernel's configs, and the features that they read.
#pragma once

#include "launch.h"
#include "trees.h"

namespace kernrec::query::features {

// Rows of quantities that the engine uses, in the order of `QUANTITIES` in kernrec/model/learn/features.py: inputs, of
// which the first are `CostRow`, then figures of the GPU from `kOne` on, then values derived from both.
enum Quantity : int64_t {
    kCoreS = costs::kCostRows,
    kFixedS = 9,
    kThreads = 12,
    kResident,
    kSharedBytes = 15,
    kFlops,
    kBytes,
    kBlocks,
    kBusyS,
    kWaitS,
    kL2S,
    kFirstPipeS,
    kOne = kFirstPipeS + kPipes,
    kSms,
    kSomeFlops = kOne + 7,
    kComputeS,
    kTrafficS,
    kRooflineS,
    kWarps,
    kLanes,
    kAllThreads,
    kSomeResident,
    kResidentWarps,
    kResidentBytes,
    kWaves,
    kRounds,
    kSomeBusyS,
    kQuantities,
};

// Add the times of one launch to the quantities of a candidate. pipe_clk, times: arrays of `LaunchTime`.
void add_times(const Table<const double>& pipe_clk, const Table<const double>& times, int64_t place,
               const Table<double>& quantities, int64_t candidate);

}  // namespace kernrec::query::features

namespace kernrec::query {

// Computes the features of a model that are ratios of two quantities.
struct FeaturePlan {
    std::vector<double> gpu;  // constant quantities from `kOne` on, then peak FLOP/s and bandwidth
    // For each ratio: rows of both quantities, column of the feature, whether to limit the ratio to 1e-6 .. 1e6, and
    // whether the feature is the logarithm of the ratio.
    std::vector<std::array<int64_t, 5>> ratios;
    int64_t columns;

    // Fill the plan's columns of `features` (C, F) from the inputs in `quantities` (Q, C), and compute the other rows
    // of `quantities`.
    void fill(const Table<double>& quantities, const Table<float>& features) const;
};

// Range and spread of each of F features in a model's training data.
struct Extent {
    std::vector<double> low, high, spread;
    std::vector<double> means;  // matrix that averages each group of features, (F, groups)
    size_t groups;

    // Fill `distances` (C,) with the distance of rows of features (C, F) from the training data. Unknown or infinite
    // values count as within the range.
    template <class T>
    void fill(const Table<const T>& rows, const Row<double>& distances) const;
};

// Return the logarithmic half-width of an interval at a distance from the training data, where the errors of the model
// and of the analytical model add up (kernrec/model/learn/conformal.py). prior: half-width of the analytical model.
inline double widened(double width, double distance, double prior) {
    const double squared = distance * distance;
    return width + squared / (1.0 + squared) * (std::hypot(width, prior) - width);
}

// Fill `seconds` (C,) with lower bounds on times: to move the compulsory bytes, and to compute at the actual clock.
void least_seconds(const Table<const double>& quantities, double bandwidth, double boost_hz,
                   const Row<double>& seconds);

// Models that correct the analytical model, one after another. Usually, there is one model.
struct LearnedModel {
    // Corrections of N candidates, and their features under the last model, (N, F).
    struct Prediction {
        std::vector<double> latency_log, power_log;  // log(expected / analytical); `power_log` may be empty
        std::vector<double> distance;  // from the training data of the last model
        std::vector<float> features;
    };
    // A model: `FeaturePlan`, features of each config that depend on tunables, `Extent`, trees of the latency, trees of
    // the power (null: not learned), and whether the trees are for GPUs without measurements.
    using Layer = std::tuple<const FeaturePlan*, Table<const float>, const Extent*, const Trees*, const Trees*, bool>;

    std::vector<Layer> layers;
    bool bounded;  // whether the physical limits bound the corrections by trees for GPUs without measurements
    double bandwidth, boost_hz;
    double source;
    double widest;  // half-width of the analytical model's interval
    std::vector<int64_t> row_kinds;  // kind of rows of each config
    std::vector<double> half_widths;  // of the intervals of latency and energy, (kinds, 2)

    // Predict the corrections of configs from the inputs in `quantities` (Q, N).
    Prediction predict(const Table<double>& quantities, const std::vector<int64_t>& configs) const;
    // Return the logarithmic half-width of an interval. quantity: 0 for latency, 1 for energy. Far from the training
    // data, the interval also covers the analytical model's error (kernrec/model/learn/conformal.py).
    double half_width(int64_t row_kind, size_t quantity, double distance) const {
        return widened(half_widths[size_t(row_kind) * 2 + quantity], distance, widest);
    }
    int64_t configs() const { return int64_t(row_kinds.size()); }
};

}  // namespace kernrec::query
