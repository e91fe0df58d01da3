// Trained models applied to one kernel's configs on a GPU.
#pragma once

#include "features.h"
#include "trees.h"

namespace kernrec::query {

// Models that correct the analytical model one after the other; usually one.
class LearnedModel {
  public:
    // Corrections of N candidates, and their features under the last model, (N, F).
    struct Prediction {
        std::vector<double> latency_log, power_log;  // log(expected / analytical); `power_log` may be empty
        std::vector<double> distance;                // from the training data of the last model
        std::vector<float> features;
    };

    // layers: for each model its plan, the features of each config that depend on tunables (configs, F), its extent,
    // and its trees: of latency and power (None: not learned), or of differences on an unmeasured GPU and None.
    // different_gpu: for each model, whether its trees are for unmeasured GPUs. bounded: whether a correction by such
    // trees is limited by physics, at this DRAM bandwidth and boost clock. row_kinds: kind of rows of each config.
    // half_widths: of the intervals of latency and energy, by kind of rows, (kinds, 2).
    LearnedModel(nb::list layers, std::vector<bool> different_gpu, bool bounded, double bandwidth, double boost_hz,
                 double source, double widest, std::vector<int64_t> row_kinds, Array<const double, 2> half_widths);

    // Predict the corrections of configs from the inputs in `quantities` (Q, N).
    Prediction predict(const Table<double>& quantities, const std::vector<int64_t>& configs) const;
    // Return the logarithmic half-width of an interval (0: of latency, 1: of energy) at a distance from the training
    // data: far from it, the errors of both models add up (kernrec/model/learn/conformal.py).
    double half_width(int64_t row_kind, size_t quantity, double distance) const;

    int64_t features() const { return layers_.back().of_space.columns; }
    int64_t row_kind(int64_t config) const { return row_kinds_[size_t(config)]; }
    int64_t configs() const { return int64_t(row_kinds_.size()); }
    double source() const { return source_; }

  private:
    struct Layer {
        nb::object kept[5];
        const FeaturePlan* plan;
        Table<const float> of_space;
        const Extent* extent;
        const Trees *latency, *power;
        bool different_gpu;
    };
    std::vector<Layer> layers_;
    bool bounded_;
    double bandwidth_, boost_hz_, source_;
    double widest_;  // half-width of the analytical model's interval
    std::vector<int64_t> row_kinds_;
    std::vector<double> half_widths_;
};

}  // namespace kernrec::query
