// Trained models applied to one kernel's configs on a GPU.
#pragma once

#include "features.h"
#include "trees.h"

namespace kernrec::query {

// Models that correct the analytical model, one after another. Usually, there is one model.
struct LearnedModel {
    // Corrections of N candidates, and their features under the last model, (N, F).
    struct Prediction {
        std::vector<double> latency_log, power_log;  // log(expected / analytical); `power_log` may be empty
        std::vector<double> distance;                // from the training data of the last model
        std::vector<float> features;
    };
    // A model: `FeaturePlan`, features of each config that depend on tunables, `Extent`, trees of the latency, trees of
    // the power (null: not learned), and whether the trees are for GPUs without measurements.
    using Layer = std::tuple<const FeaturePlan*, Table<const float>, const Extent*, const Trees*, const Trees*, bool>;

    std::vector<Layer> layers;
    bool bounded;  // whether the physical limits bound the corrections by trees for GPUs without measurements
    double bandwidth, boost_hz;
    double source;
    double widest;                     // half-width of the analytical model's interval
    std::vector<int64_t> row_kinds;    // kind of rows of each config
    std::vector<double> half_widths;   // of the intervals of latency and energy, (kinds, 2)

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
