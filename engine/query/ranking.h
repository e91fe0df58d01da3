// Costs of candidates, corrected by models, measurements, laws of physics and recorded times, and their selection.
#pragma once

#include "costs.h"
#include "learned_model.h"
#include "selection.h"

namespace kernrec::query {

// Interval and source of estimates of one kind, for latency and energy. The 90 % interval goes from value / kBelow to
// value * kAbove. kOwn: logarithmic half-width of the interval of the error that configs of a kernel do not share.
struct EstimateKind {
    enum : size_t { kBelow, kAbove, kSource, kOwn, kFigures };
    double of[2][kFigures];
};

// Values in `SOURCES` of kernrec/model/analytical/spread.py.
constexpr double kPredicted = 0.0, kTransferred = 1.0, kLearned = 2.0, kMeasured = 3.0;

// Rows of the costs of candidates.
enum Cost : int64_t { kSeconds, kJoules, kWatts };

constexpr int32_t kAnalyticalKind = 0;  // index in `kinds_` of the analytical model's predictions
constexpr double kDeviations = 1.645;  // half-width of a 90 % interval in standard deviations
// Default fraction of a prediction's variance due to the config's own error (kernrec/recommender/estimate/costs.py).
constexpr double kOwnShare = 0.35;

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

// Return the fastest reference learned on the GPU, or else the fastest transferred one.
Reference fastest_reference(const std::vector<Reference>& references);
// Return the shrinkage of a kernel whose best config is predicted to take `best_s`. whole: standard deviation of the
// prediction's error.
Shrinkage shrinkage_of(double whole, double best_s, const Reference& reference);

// Interval of each cost that decides a rank: latency, energy or both.
struct Deciding {
    double low[2], high[2];
    size_t count;

    bool overlaps(const Deciding& other) const {
        for (size_t i = 0; i < count; i++)
            if (low[i] > other.high[i] || other.low[i] > high[i]) return false;
        return true;
    }
};

// Rank of a recommendation. Measured recommendations share a rank if their intervals overlap. A rank is ambiguous if
// the interval overlaps that of a neighbor.
struct Rank {
    int64_t number;
    bool exact, ambiguous;
};

// Return the rank of each recommendation, best first. exact: whether all costs that decide the rank were measured.
std::vector<Rank> ranks_of(const std::vector<Deciding>& deciding, const std::vector<bool>& exact);

// Estimates that violate a law of physics.
struct Violations {
    int64_t refused = 0, raised = 0;  // numbers of candidates
    double seconds = 0.0, least_s = 0.0;  // the first refused time, and its lower bound
    int64_t first_point = 0;
    bool any = false;  // whether any cost was changed
};

class Ranking {
  public:
    // Rows of the figures of each problem.
    enum Figure : int64_t {
        kLeastS,
        kRoofClk,            // lower bounds on the time in seconds, and on time x clock
        kWholeDeviation,              // standard deviation of the analytical model's error for this op and data type
        kUnmeasuredDeviation,         // standard deviation of the analytical model's error without recordings
        kBaselineS,
        kBaselineDeviation,
        kBaselineTransferred,     // fastest baseline; NaN: none
        kPhysicalS,
        kPhysicalDeviation,
        kPhysicalHighS,  // time derived from physics; NaN: not needed
        kFigures,
    };

    // kernels: a tuple for each kernel: `LearnedModel` or None, whether the model was trained on this kernel and GPU,
    //     whether the kernel is a Triton kernel, positions of measured configs at each operating point (None: none).
    // limits_w: power limit of each operating point. is_default: whether each point is the GPU's default.
    // others: `PowerLimits` of all points but the first. fallback: `PowerLimits` of the default point; None if first.
    // figures: values of `Figure` for each problem, (problems * kFigures).
    // kinds: `EstimateKind` of the analytical model, (2, 4, 1). whole: estimate all candidates at all points.
    // measure: Python function that applies measurements to the costs of a kernel.
    Ranking(nb::object costs, nb::list kernels, std::vector<double> limits_w, std::vector<double> highest_hz,
            std::vector<bool> is_default, nb::object others, nb::object fallback, std::vector<double> figures,
            Array<const double, 3> kinds, bool whole, nb::object measure);

    // Selection of candidates: one problem, a range of kernels and a range of operating points.
    struct Part {
        int64_t problem, first_kernel, end_kernel, first_point, end_point;
    };
    // Candidates of one kernel on one problem: `size` candidates, from index `first` among all candidates.
    struct Segment {
        int64_t kernel, first, size;
    };
    std::vector<Segment> segments(const Part& part) const;

    // Return the picks of a query and the number of similar configs of each. by_code: merge all configs with the same
    // machine code.
    std::vector<std::pair<Pick, int64_t>> rows(const Part& part, const Bounds& bounds, int64_t first, bool each_config,
                                               bool by_code) const;
    std::vector<Pick> select(const Part& part, const Bounds& bounds, int64_t first) const;
    // Return the best CUDA kernel if all picks are Triton kernels, or the best Triton kernel if none is.
    std::vector<Pick> best_of_other_kind(const Part& part, const std::vector<Pick>& picks, const Bounds& bounds,
                                         int64_t first) const;
    // Return the figures of the first `ranked` picks, of all other picks, and the costs of the fastest candidate. The
    // figures are those that `rows_of` in kernrec/recommender/select.py lists.
    nb::tuple described(const Part& part, const std::vector<Pick>& picks, const std::vector<int64_t>& alike,
                        int64_t ranked, Objective objective, const nb::tuple& sources) const;
    // Describe the result of `rows`, and that of `best_of_other_kind` if `other_kind` is true.
    nb::tuple recommended(const Part& part, const Bounds& bounds, int64_t first, bool each_config, bool by_code,
                          bool other_kind, const nb::tuple& sources) const;
    // Return (operating point, slowdown, fraction of energy saved) of a candidate: the point that saves the most energy
    // within `most_slowdown`. Return None if no point saves `least_saved`.
    nb::object saving(const Part& part, int64_t position, double most_slowdown, double least_saved) const;
    // Return the number of a candidate's kernel, and its fields of `NominalCosts`.
    nb::tuple nominal(const Part& part, int64_t position) const;
    int64_t fastest(const Part& part) const;
    // Return the number of the fastest candidate's kernel, and its latency.
    std::pair<int64_t, double> fastest_kernel(const Part& part) const;
    bool any_ran(const Part& part) const;
    bool any_measured(const Part& part) const;

    int64_t count() const { return count_; }
    // Return the costs according to the analytical model, (kCostRows, points, C).
    nb::object limited_array() const;
    // Return latency, energy and power (3, P, N), kinds of latency and energy (2, P, N), and lower ends of latency
    // (P, N) on a problem, at a range of operating points, of the candidates from `first` to `end`. Candidates that
    // were not estimated at a point are infinite there.
    nb::tuple costs(int64_t problem, int64_t first_point, int64_t end_point, int64_t first, int64_t end) const;
    std::vector<EstimateKind>& kinds() { return kinds_; }
    double* risk() { return risk_.data(); }
    // Return the `Shrinkage` of a kernel on a problem.
    nb::tuple shrinkage(size_t kernel, size_t problem) const;
    bool violated() const;
    // Return the violations of a problem (kernel -1), or of a kernel's corrected costs: numbers of refused and raised
    // candidates, the first refused time and its bound, and whether the analytical model replaced refused costs.
    nb::tuple violations(int64_t kernel, size_t problem) const;
    // Return the kind of rows that a kernel's model uses for each problem.
    const std::vector<int64_t>& row_kinds(size_t kernel) const { return kernels_.at(kernel).row_kinds; }
    // Return the expected core clock in Hz and the bottleneck of a candidate.
    std::pair<double, int64_t> running(size_t kernel, int64_t point, int64_t place) const;

  private:
    struct Kernel {
        const Costs::Part* part;
        const LearnedModel* model;
        bool trained, triton;
        std::vector<std::vector<int64_t>> measured;  // positions at each point
        int64_t most_measured = 0;
        std::vector<int64_t> scored;  // positions that the model evaluated
        LearnedModel::Prediction prediction;
        std::vector<double> factors[3];  // for latency, energy and power; empty if all are 1
        std::vector<int64_t> row_kinds;
        std::vector<Shrinkage> shrinkages;
        std::vector<Violations> violations;

        bool ran() const { return trained || most_measured > 0; }
        bool of_gpu() const { return trained && most_measured == 0; }
        // Places of the candidates on a problem: from `first(problem)` to `first(problem + 1)`.
        int64_t first(int64_t problem) const { return part->first + part->starts[size_t(problem)]; }
    };

    // Return the index of a candidate's estimate at a point among all estimates of a quantity; -1 if it has none.
    int64_t estimate(int64_t point, int64_t place) const {
        if (point == 0) return place;
        const int32_t slot = slots_[size_t(place)];
        return slot < 0 ? -1 : count_ + (point - 1) * int64_t(swept_.size()) + slot;
    }
    double estimated(int64_t quantity, int64_t estimate) const {
        return estimate < 0 ? kInfinity : values_[size_t(quantity * estimates_ + estimate)];
    }
    double value(int64_t quantity, int64_t point, int64_t place) const {
        return estimated(quantity, estimate(point, place));
    }
    int32_t kind(int64_t quantity, int64_t point, int64_t place) const {
        const int64_t index = estimate(point, place);
        return index < 0 ? kAnalyticalKind : kind_[size_t(quantity * estimates_ + index)];
    }
    double& value_at(int64_t quantity, int64_t estimate) { return values_[size_t(quantity * estimates_ + estimate)]; }
    int32_t& kind_at(int64_t quantity, int64_t estimate) { return kind_[size_t(quantity * estimates_ + estimate)]; }
    const double* figures(int64_t quantity, int64_t point, int64_t place) const {
        return kinds_[size_t(kind(quantity, point, place))].of[quantity];
    }
    // Return the lower end of a latency's interval. That of a prediction is not below the minimum time of the problem
    // at the highest clock.
    double low_s(int64_t problem, int64_t point, int64_t place) const {
        const double latency = value(kSeconds, point, place);
        const double* const of = figures(kSeconds, point, place);
        if (of[EstimateKind::kSource] == kMeasured) return latency / of[EstimateKind::kBelow];
        const double least_s =
            maximum(figures_(problem, kLeastS), figures_(problem, kRoofClk) / highest_hz_[size_t(point)]);
        return maximum(latency / of[EstimateKind::kBelow], minimum(least_s, latency));
    }
    // Return a cost of the analytical model, or infinity if the candidate was not estimated at the point.
    double limited(int64_t row, int64_t point, int64_t place) const {
        if (point == 0) return costs_->limited()[row * count_ + place];
        const int32_t slot = slots_[size_t(place)];
        if (slot < 0) return kInfinity;
        return swept_costs_[size_t(row * (points_ - 1) + point - 1) * swept_.size() + size_t(slot)];
    }
    // Call a function with each place from `first` to `end` that is estimated at a point, and the estimate's index.
    template <class F>
    void each_estimated(int64_t point, int64_t first, int64_t end, F apply) const {
        if (point == 0) {
            for (int64_t place = first; place < end; place++) apply(place, place);
            return;
        }
        const int64_t size = int64_t(swept_.size()), *const swept = swept_.data();
        for (int64_t slot = std::lower_bound(swept, swept + size, first) - swept; slot < size && swept[slot] < end;
             slot++)
            apply(swept[slot], count_ + (point - 1) * size + slot);
    }

    void add_kernel(nb::tuple each, size_t number);
    // Return values (3, P, N) and kinds (2, P, N) as in `costs`.
    template <class T>
    std::pair<std::vector<double>, std::vector<T>> copied_costs(int64_t first_point, int64_t end_point, int64_t first,
                                                                int64_t end) const;
    void score(Kernel& kernel);
    void set_factors(Kernel& kernel);
    void sweep();
    void copy_predictions();
    // Append kinds with the figures (2, 4, K) to `kinds_`.
    void add_kinds(const Array<const double, 3>& kinds);
    void correct(Kernel& kernel);
    void measure(Kernel& kernel, size_t number, const nb::object& function);
    Violations enforce(int64_t first, int64_t end, int64_t problem, const Kernel* kernel,
                       const std::vector<double>* before, const std::vector<int32_t>* kinds_before);
    void compare_with_references(int64_t problem);
    void raise(Kernel& kernel, int64_t problem, const Shrinkage& shrinkage);
    void set_risk(Kernel& kernel, int64_t problem);
    nb::tuple described(const Pick& pick, const std::vector<Segment>& own, const Part& part, int64_t alike,
                        const Rank& rank, double fastest_s, int64_t fastest, const nb::tuple& sources) const;
    double cost(Cost quantity, const Part& part, const std::vector<Segment>& own, const Pick& pick) const;
    // Keep at most three points of each config on a front: lowest latency, lowest energy and lowest EDP.
    std::vector<Pick> three_points(const Part& part, const std::vector<Segment>& own,
                                   const std::vector<Pick>& picks) const;
    // Merge similar picks; return at most `top` of them, each with the number of similar configs.
    std::vector<std::pair<Pick, int64_t>> merged(const Part& part, const std::vector<Segment>& own,
                                                 const std::vector<Pick>& picks, Objective objective, int64_t top,
                                                 bool by_code) const;

    nb::object kept_costs_, others_, fallback_;
    nb::list kept_kernels_;
    Costs* costs_;
    int64_t count_, points_, problems_ = 0;
    std::vector<double> limits_w_, highest_hz_;  // power limit and highest clock of each operating point
    std::vector<bool> is_default_;
    std::vector<double> kept_figures_;
    Table<const double> figures_;
    bool whole_;
    std::vector<Kernel> kernels_;
    std::vector<int64_t> swept_;          // places that are estimated at all operating points, ascending
    std::vector<int32_t> slots_;          // index of each place in `swept_`; -1 if it is missing there
    std::vector<double> swept_costs_;     // at all points except the first, (kCostRows, points - 1, swept)
    std::vector<double> default_s_;       // latency at the default point; empty if the first point is the default
    // Estimates of each quantity: of all candidates at the first point, then of `swept_` at each further point.
    int64_t estimates_ = 0;
    std::vector<double> values_;  // latency (s), energy (J), power (W), (3, estimates)
    std::vector<int32_t> kind_;  // index in `kinds_` of latency and energy, (2, estimates)
    std::vector<EstimateKind> kinds_;
    std::vector<double> risk_;
    std::vector<Violations> violations_;  // of the analytical model, by problem
};

}  // namespace kernrec::query
