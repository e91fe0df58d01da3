// Costs of candidates, corrected by models, measurements, laws of physics and recorded times, and their selection.
#pragma once

#include "costs.h"
#include "learned_model.h"

namespace kernrec::query {

// Interval and source of an estimate. The 90 % interval goes from value / below to value * above.
struct Interval {
    double below, above;
    double source;
    double own;  // logarithmic half-width, only for the part of the error that configs of a kernel do not share
};

// Intervals of the latency and the energy of estimates of one kind.
struct EstimateKind {
    Interval of[2];
};
constexpr size_t kIntervalFields = sizeof(Interval) / sizeof(double);

// Values in `SOURCES` of kernrec/model/analytical/spread.py.
constexpr double kPredicted = 0.0, kTransferred = 1.0, kLearned = 2.0, kMeasured = 3.0;

// Rows of the costs of candidates.
enum Cost : int64_t { kSeconds, kJoules, kWatts };

constexpr int32_t kAnalyticalKind = 0;  // index in `kinds_` of the analytical model's predictions
constexpr double kDeviations = 1.645;  // half-width of a 90 % interval in standard deviations
// Default fraction of a prediction's variance due to the config's own error (kernrec/recommender/estimate/costs.py).
constexpr double kOwnShare = 0.35;

// Return the standard deviation of the logarithm of an estimate.
inline double deviation_of(const Interval& of) { return std::log(of.above * of.below) / (2.0 * kDeviations); }

// Fastest recorded time of a problem.
struct Reference {
    double latency_s = 0.0, deviation = 0.0;  // standard deviation of the logarithm
    bool transferred = false;                 // from other GPUs
    int64_t origin = kNone;                   // `kBaseline`, `kPhysics`, or the number of a kernel

    enum : int64_t { kNone = -3, kPhysics = -2, kBaseline = -1 };
};

// Predicted lead of a kernel over the reference time, and its shrinkage.
struct Shrinkage {
    Reference reference;
    double lead = 0.0;    // log(reference / predicted time of the best config); 0 if it is not faster
    double share = 1.0;   // fraction of the lead that is kept
    double deviation = 0.0;  // standard deviation of the logarithm of the kernel's time after shrinkage
};

// Estimates that violate a law of physics.
struct Violations {
    int64_t refused = 0, raised = 0;  // numbers of candidates
    double seconds = 0.0, least_s = 0.0;  // the first refused time, and its lower bound
    int64_t first_point = 0;
};

// Expected costs of a candidate at an operating point.
struct Estimate {
    double costs[3];   // latency (s), energy (J) and power (W)
    int32_t kinds[2];  // index in `Ranking::kinds` of latency and energy
};

struct Ranking {
    // Rows of the figures of each problem.
    enum Figure : int64_t {
        kLeastS,
        kRoofClk,              // lower bounds on the time in seconds, and on time x clock
        kWholeDeviation,       // standard deviation of the analytical model's error for this op and data type
        kUnmeasuredDeviation,  // standard deviation of the analytical model's error without recordings
        kBaselineS,
        kBaselineDeviation,
        kBaselineTransferred,  // fastest baseline; NaN: none
        kPhysicalS,
        kPhysicalDeviation,
        kPhysicalHighS,  // time derived from physics; NaN: not needed
        kFigures,
    };

    struct Kernel {
        const Costs::Part* part;
        const LearnedModel* model;
        bool trained, triton;
        std::vector<std::vector<int64_t>> measured;  // positions at each point
        std::vector<int64_t> row_kinds;              // kind of rows that the model uses for each problem
        std::vector<Shrinkage> shrinkages;
        std::vector<Violations> violations;
        int64_t most_measured = 0;
        std::vector<int64_t> scored;  // positions that the model evaluated
        LearnedModel::Prediction prediction;
        std::vector<double> factors[3];  // for latency, energy and power; empty if all are 1

        bool ran() const { return trained || most_measured > 0; }
        bool of_gpu() const { return trained && most_measured == 0; }
        // Places of the candidates on a problem: from `first(problem)` to `first(problem + 1)`.
        int64_t first(int64_t problem) const { return part->first + part->starts[problem]; }
    };

    // Return the index of a candidate's estimate at a point in `estimates`; -1 if it has none.
    int64_t estimate(int64_t point, int64_t place) const {
        if (point == 0) return place;
        const int32_t slot = slots[place];
        return slot < 0 ? -1 : count + (point - 1) * int64_t(swept.size()) + slot;
    }
    double value(int64_t quantity, int64_t point, int64_t place) const {
        const int64_t index = estimate(point, place);
        return index < 0 ? kInfinity : estimates[index].costs[quantity];
    }
    int32_t kind(int64_t quantity, int64_t point, int64_t place) const {
        const int64_t index = estimate(point, place);
        return index < 0 ? kAnalyticalKind : estimates[index].kinds[quantity];
    }
    const Interval& kind_of(int64_t quantity, int64_t point, int64_t place) const {
        return kinds[kind(quantity, point, place)].of[quantity];
    }
    double figure(int64_t problem, Figure row) const { return figures[problem * kFigures + row]; }
    // Return the lower end of a latency's interval. That of a prediction is not below the minimum time of the problem
    // at the highest clock.
    double low_s(int64_t problem, int64_t point, int64_t place) const {
        const double latency = value(kSeconds, point, place);
        const Interval& of = kind_of(kSeconds, point, place);
        if (of.source == kMeasured) return latency / of.below;
        const double least_s = maximum(figure(problem, kLeastS), figure(problem, kRoofClk) / highest_hz[point]);
        return maximum(latency / of.below, minimum(least_s, latency));
    }
    // Return a cost of the analytical model, or infinity if the candidate was not estimated at the point.
    double limited(int64_t row, int64_t point, int64_t place) const {
        if (point == 0) return costs.limited[row * count + place];
        const int32_t slot = slots[place];
        if (slot < 0) return kInfinity;
        return swept_costs[size_t(row * (points - 1) + point - 1) * swept.size() + size_t(slot)];
    }
    // Return the costs of a candidate at a point according to the analytical model.
    Estimate analytical(int64_t point, int64_t place) const {
        return {{limited(costs::kLatencyS, point, place), limited(costs::kEnergyJ, point, place),
                 limited(costs::kPowerW, point, place)},
                {kAnalyticalKind, kAnalyticalKind}};
    }
    // Call a function with each place from `first` to `end` that is estimated at a point, and the estimate's index.
    template <class F>
    void each_estimated(int64_t point, int64_t first, int64_t end, F apply) const {
        if (point == 0) {
            for (int64_t place = first; place < end; place++) apply(place, place);
            return;
        }
        const int64_t size = int64_t(swept.size()), *const places = swept.data();
        for (int64_t slot = std::lower_bound(places, places + size, first) - places; slot < size && places[slot] < end;
             slot++)
            apply(places[slot], count + (point - 1) * size + slot);
    }
    // Return the expected core clock in Hz and the bottleneck of a candidate.
    std::pair<double, int64_t> running(size_t kernel, int64_t point, int64_t place) const;
    // Return latency, energy and power (3, P, N), and kinds of latency and energy (2, P, N), at a range of operating
    // points, of the candidates from `first` to `end`. Candidates without an estimate at a point are infinite there.
    std::pair<std::vector<double>, std::vector<int32_t>> copied_costs(int64_t first_point, int64_t end_point,
                                                                      int64_t first, int64_t end) const;

    Costs& costs;
    int64_t count, points, problems;
    std::vector<double> limits_w, highest_hz;  // power limit and highest clock of each operating point
    std::vector<bool> is_default;  // whether each point is the GPU's default
    std::vector<double> figures;   // values of `Figure` for each problem, (problems * kFigures)
    bool whole;                    // estimate all candidates at all points
    std::vector<Kernel> kernels;
    std::vector<int64_t> swept;       // places that are estimated at all operating points, ascending
    std::vector<int32_t> slots;       // index in `swept` of each place; -1 if it is not in `swept`
    std::vector<double> swept_costs;  // at all points except the first, (kCostRows, points - 1, swept)
    std::vector<double> default_s;    // latency at the default point; empty if the first point is the default
    std::vector<Estimate> estimates;  // of all candidates at the first point, then of `swept` at each further point
    std::vector<EstimateKind> kinds;
    std::vector<double> risk;
    std::vector<Violations> violations;  // of the analytical model, by problem

    void rank(nb::handle others, nb::handle fallback, const Array<const double, 3>& analytical_kinds,
              nb::handle measure_with);
    // Steps of `rank`.
    void score(Kernel& kernel);
    void set_factors(Kernel& kernel);
    void sweep(nb::handle others);
    void add_kinds(const Array<const double, 3>& more);
    void correct(Kernel& kernel);
    void measure(Kernel& kernel, size_t number, nb::handle function);
    Violations enforce(const Kernel& kernel, int64_t problem, bool corrected);
    void compare_with_references(int64_t problem);
    void raise(Kernel& kernel, int64_t problem, const Shrinkage& shrinkage);
    void set_risk(Kernel& kernel, int64_t problem);
};

}  // namespace kernrec::query
