// Rows of the quantities from which features of models are computed.
#pragma once

#include "arrays.h"

namespace kernrec::query::features {

// Rows of quantities, in the order of `QUANTITIES` in kernrec/model/learn/features.py: inputs, then figures of the GPU
// (`kOne` to `kL2Bytes`), then values derived from both.
enum Quantity : int64_t {
    kLatencyS,
    kPowerW,
    kEnergyJ,
    kClockHz,
    kStaticJ,
    kClockedJ,
    kRegime,
    kCoreS,
    kDramS,
    kFixedS,
    kCoreJ,
    kDramJ,
    kThreads,
    kResident,
    kRegisters,
    kSharedBytes,
    kFlops,
    kBytes,
    kBlocks,
    kBusyS,
    kWaitS,
    kL2S,
    kFirstPipeS,
    kPipes = 9,
    kOne = kFirstPipeS + kPipes,
    kSms,
    kMaxWarps,
    kMaxRegisters,
    kSmemPerSm,
    kTdpW,
    kL2Bytes,
    kSomeFlops,
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
class FeaturePlan {
  public:
    // ratios: fields of `Ratio`, (R, 5). `place` is the feature's column. `bounded` limits the ratio to 1e-6 .. 1e6.
    FeaturePlan(const Row<const double>& gpu, const Table<const int64_t>& ratios);
    // Fill the plan's columns of `features` (C, F) from the inputs in `quantities` (Q, C), and compute the other rows
    // of `quantities`.
    void fill(const Table<double>& quantities, const Table<float>& features) const;

  private:
    struct Ratio {
        int64_t above, below, place;
        bool bounded, logarithmic;
    };
    void derive(const Table<double>& quantities) const;

    std::vector<double> gpu_;
    std::vector<Ratio> ratios_;
    int64_t columns_ = 0;
};

// Range and spread of each of F features in a model's training data.
class Extent {
  public:
    // group_means: matrix that averages each group of features, (F, groups).
    Extent(const Row<const double>& low, const Row<const double>& high, const Row<const double>& spread,
           const Table<const double>& group_means);
    // Fill `distances` (C,) with the distance of rows of features (C, F) from the training data. Unknown or infinite
    // values count as within the range.
    template <class T>
    void fill(const Table<const T>& rows, const Row<double>& distances) const;

  private:
    std::vector<double> low_, high_, spread_, means_;
    size_t groups_;
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

}  // namespace kernrec::query
