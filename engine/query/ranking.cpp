// Corrects the analytical model's costs by trained models, measurements, laws of physics, and recorded times of other
// kernels. kernrec/recommender/rank.py describes the steps.
#include "ranking.h"

#include <algorithm>
#include <tuple>

namespace kernrec::query {
namespace {

constexpr int64_t kScored = 64;  // maximum number of a problem's candidates that the trees evaluate
constexpr int64_t kFewest = 5;   // minimum number of measurements that adapt a model
// Number of a kernel's fastest and lowest-energy candidates that are estimated at other operating points. On 72
// problems of four ops, this missed the lowest energy once, by 1.3 %.
constexpr int64_t kSwept = 64;
constexpr double kRounding = 1e-9;
// Rows of the cost table (`CostRow`) with the analytical model's latency, energy and power, before corrections.
constexpr int64_t kAnalytical[] = {costs::kLatencyS, costs::kEnergyJ, costs::kPowerW};
// A predicted time that is below the bound by more than this factor is rejected instead of corrected.
constexpr double kRefused = 2.0;
constexpr double kWorthNoting = 1.05;  // a note reports times that were raised by more than this factor
// Standard deviations added to the expected cost of an unmeasured kernel when it is compared with a measured kernel.
// The unmeasured kernel ranks first only if it is faster with a probability of 90 %.
constexpr double kCertain = 1.28;
// Standard deviation of log(time of a kernel / time of the best backend) for kernels of independent authors. It is
// estimated from Triton's best kernel and cuBLAS, on problems where Triton is faster (A100: .07 in bf16 and TF32, .08
// in f32, .24 in f16, where recorded sizes are odd; H100: .05 to .18; RTX 3090: .07 to .11).
constexpr double kAmongKernels = 0.10;

double median(std::vector<double> values) {
    std::sort(values.begin(), values.end());
    return 0.5 * (values[(values.size() - 1) / 2] + values[values.size() / 2]);
}

// Return the slowdown factor that keeps a launch within a power limit that its learned power exceeds.
//
// The energy of its events is assumed constant. That is an upper bound, because a lower clock also lowers the voltage.
double slowdown(double drawn_w, double rest_w, double limit_w) {
    const double rest = minimum(rest_w, costs::kResting * limit_w);
    return (drawn_w - rest) / (limit_w - rest);
}

std::vector<uint8_t> promising(const double* latency, const double* energy, const std::vector<int64_t>& starts,
                               int64_t most) {
    std::vector<uint8_t> marks(size_t(starts.back()), 0);
    for (size_t i = 0; i + 1 < starts.size(); i++)
        mark_promising(latency + starts[i], energy + starts[i], starts[i + 1] - starts[i], most,
                       marks.data() + starts[i]);
    return marks;
}

}  // namespace

Reference fastest_reference(const std::vector<Reference>& references) {
    std::vector<const Reference*> alike;
    for (const Reference& each : references)
        if (!each.transferred) alike.push_back(&each);
    if (alike.empty())
        for (const Reference& each : references) alike.push_back(&each);
    if (alike.empty()) return {};
    if (alike.size() == 1) return *alike[0];
    const Reference* first = alike[0];
    for (const Reference* each : alike)
        if (each->latency_s < first->latency_s) first = each;
    // Average times that are nearly equal, with more weight on more certain times. Otherwise a kernel's lead would
    // jump when the order of two nearly equal references changes.
    std::vector<double> lags, weights;
    double total = 0.0, lag = 0.0, variance = 0.0;
    for (const Reference* each : alike) {
        lags.push_back(std::log(each->latency_s / first->latency_s));
        const double apart = lags.back() / kAmongKernels;
        weights.push_back(std::exp(-0.5 * (apart * apart)) /
                          (kAmongKernels * kAmongKernels + each->deviation * each->deviation));
        total += weights.back();
    }
    for (size_t i = 0; i < alike.size(); i++) {
        lag += weights[i] / total * lags[i];
        variance += weights[i] / total * (alike[i]->deviation * alike[i]->deviation);
    }
    const size_t heaviest = size_t(std::max_element(weights.begin(), weights.end()) - weights.begin());
    return {first->latency_s * std::exp(lag), std::sqrt(variance), first->transferred, alike[heaviest]->origin};
}

Shrinkage shrinkage_of(double whole, double best_s, const Reference& reference) {
    if (reference.origin == Reference::kNone) return {reference, 0.0, 1.0, whole};
    const double own = std::sqrt(std::max(whole * whole - kAmongKernels * kAmongKernels, 0.25 * whole * whole));
    const double room = std::hypot(kAmongKernels, reference.deviation);
    const double share = room * room / (own * own + room * room);
    return {reference, std::max(std::log(reference.latency_s / best_s), 0.0), share, own * std::sqrt(share)};
}

Ranking::Ranking(nb::object costs, nb::list kernels, std::vector<double> limits_w, std::vector<double> highest_hz,
                 std::vector<bool> is_default, nb::object others, nb::object fallback, std::vector<double> figures,
                 Array<const double, 3> kinds, bool whole, nb::object measure_with)
    : kept_costs_(costs),
      others_(others),
      fallback_(fallback),
      kept_kernels_(kernels),
      costs_(&nb::cast<Costs&>(costs)),
      count_(costs_->count()),
      points_(costs_->points()),
      limits_w_(std::move(limits_w)),
      highest_hz_(std::move(highest_hz)),
      is_default_(std::move(is_default)),
      kept_figures_(std::move(figures)),
      whole_(whole) {
    problems_ = int64_t(kept_figures_.size()) / kFigures;
    figures_ = {kept_figures_.data(), problems_, kFigures, kFigures, 1};
    require(points_ > 0 && int64_t(limits_w_.size()) == points_ && int64_t(highest_hz_.size()) == points_ &&
                int64_t(is_default_.size()) == points_,
            "points: expected a limit of each operating point");
    require(kernels.size() == costs_->parts().size() && kept_figures_.size() % kFigures == 0,
            "kernels: expected all kernels");
    require(kinds.shape(0) == 2 && kinds.shape(1) == EstimateKind::kFigures && kinds.shape(2) > 0,
            "kinds: expected figures of both quantities");
    for (const nb::handle each : kernels) add_kernel(nb::cast<nb::tuple>(each), kernels_.size());
    violations_.resize(size_t(problems_));
    // Row 0 contains latencies. `score` also reads the rows after it.
    if (!fallback.is_none()) default_s_ = limited_costs(fallback, costs_->nominal(0, count_), 1);
    for (Kernel& kernel : kernels_)
        if (kernel.model != nullptr && !kernel.part->rows.empty()) score(kernel);
    if (points_ > 1) sweep();
    add_kinds(kinds);
    copy_predictions();
    for (int64_t problem = 0; problem < problems_; problem++) {
        Violations& all = violations_[size_t(problem)];
        for (const Segment& own : segments({problem, 0, int64_t(kernels_.size()), 0, points_})) {
            const Violations here = enforce(own.first, own.first + own.size, problem, nullptr, nullptr, nullptr);
            if (here.refused > 0 && (all.refused == 0 || here.first_point < all.first_point))
                all.seconds = here.seconds, all.least_s = here.least_s, all.first_point = here.first_point;
            all.refused += here.refused, all.raised += here.raised, all.any = all.any || here.any;
        }
    }
    for (size_t number = 0; number < kernels_.size(); number++) {
        Kernel& kernel = kernels_[number];
        if (kernel.part->rows.empty() || (kernel.model == nullptr && kernel.most_measured == 0)) continue;
        // Keep the costs before the corrections if `enforce` changed costs of the analytical model.
        std::vector<double> before;
        std::vector<int32_t> kinds_before;
        if (std::any_of(violations_.begin(), violations_.end(), [](const Violations& each) { return each.any; }))
            std::tie(before, kinds_before) = copied_costs<int32_t>(
                0, points_, kernel.part->first, kernel.part->first + int64_t(kernel.part->rows.size()));
        if (kernel.model != nullptr) correct(kernel);
        if (kernel.most_measured > 0) measure(kernel, number, measure_with);
        for (int64_t problem = 0; problem < problems_; problem++)
            kernel.violations[size_t(problem)] =
                enforce(kernel.first(problem), kernel.first(problem + 1), problem, &kernel, &before, &kinds_before);
    }
    risk_.resize(size_t(count_));
    for (int64_t problem = 0; problem < problems_; problem++) {
        compare_with_references(problem);
        for (Kernel& kernel : kernels_) set_risk(kernel, problem);
    }
}

template <class T>
std::pair<std::vector<double>, std::vector<T>> Ranking::copied_costs(int64_t first_point, int64_t end_point,
                                                                     int64_t first, int64_t end) const {
    std::pair<std::vector<double>, std::vector<T>> copied;
    for (int64_t quantity = 0; quantity < 3; quantity++)
        for (int64_t point = first_point; point < end_point; point++)
            for (int64_t place = first; place < end; place++) {
                copied.first.push_back(value(quantity, point, place));
                if (quantity < 2) copied.second.push_back(kind(quantity, point, place));
            }
    return copied;
}

nb::tuple Ranking::costs(int64_t problem, int64_t first_point, int64_t end_point, int64_t first, int64_t end) const {
    require(problem >= 0 && problem < problems_ && first_point >= 0 && first_point <= end_point &&
                end_point <= points_ && first >= 0 && first <= end && end <= count_,
            "costs: expected points and candidates");
    auto [values, kinds] = copied_costs<int32_t>(first_point, end_point, first, end);
    const size_t points = size_t(end_point - first_point), size = size_t(end - first);
    std::vector<double> lows;
    for (int64_t point = first_point; point < end_point; point++)
        for (int64_t place = first; place < end; place++) lows.push_back(low_s(problem, point, place));
    return nb::make_tuple(numpy<double, 3>(std::move(values), {3, points, size}),
                          numpy<int32_t, 3>(std::move(kinds), {2, points, size}),
                          numpy<double, 2>(std::move(lows), {points, size}));
}

void Ranking::add_kernel(nb::tuple each, size_t number) {
    require(each.size() == 4, "kernels: expected four parts");
    Kernel kernel;
    kernel.part = &costs_->parts()[number];
    require(int64_t(kernel.part->problems.size()) == problems_, "figures: expected a row of each problem");
    kernel.model = each[0].is_none() ? nullptr : &nb::cast<const LearnedModel&>(each[0]);
    require(kernel.model == nullptr || kernel.model->configs() == kernel.part->kernel->space->count(),
            "model: expected the kernel's configs");
    kernel.trained = nb::cast<bool>(each[1]), kernel.triton = nb::cast<bool>(each[2]);
    kernel.measured.resize(size_t(points_));
    if (!each[3].is_none()) {
        const nb::list by_point = nb::cast<nb::list>(each[3]);
        require(problems_ == 1 && int64_t(by_point.size()) == points_, "measured: expected one problem's positions");
        for (size_t point = 0; point < by_point.size(); point++) {
            const Row<const int64_t> positions(nb::cast<Array<const int64_t, 1>>(by_point[point], false));
            require(all_within(positions, 0, int64_t(kernel.part->rows.size())), "measured: expected candidates");
            kernel.measured[point] = copied(positions);
            kernel.most_measured = std::max(kernel.most_measured, positions.size);
        }
    }
    kernel.row_kinds.resize(size_t(problems_)), kernel.shrinkages.resize(size_t(problems_));
    kernel.violations.resize(size_t(problems_));
    kernels_.push_back(std::move(kernel));
}

// Evaluate the model for the candidates with the lowest predicted latency or energy, and for measured ones.
void Ranking::score(Kernel& kernel) {
    const Costs::Part& part = *kernel.part;
    const int64_t size = int64_t(part.rows.size());
    const double* const limited = costs_->limited() + part.first;
    // With enough measurements, configs that the analytical model ranks low may be promising. Trees for all configs
    // take milliseconds.
    std::vector<uint8_t> marks(size_t(size), 1);
    if (!whole_ && int64_t(kernel.measured[0].size()) < kFewest) {
        marks =
            promising(limited + costs::kLatencyS * count_, limited + costs::kEnergyJ * count_, part.starts, kScored);
        for (const int64_t position : kernel.measured[0]) marks[size_t(position)] = 1;
    }
    kernel.scored = true_places(Row<uint8_t>(marks.data(), size));
    // Use the default operating point, so that costs do not depend on how an operating point was requested.
    const double* const basis = default_s_.empty() ? limited : default_s_.data() + part.first;
    const int64_t scored = int64_t(kernel.scored.size());
    std::vector<double> room(size_t(features::kQuantities * scored));
    const Table<double> quantities(room.data(), features::kQuantities, scored, scored, 1);
    costs_->fill(part, 0, {kernel.scored.data(), scored}, {basis, costs::kCostRows, size, count_, 1}, quantities);
    std::vector<int64_t> configs;
    for (const int64_t position : kernel.scored) configs.push_back(part.rows[size_t(position)]);
    kernel.prediction = kernel.model->predict(quantities, configs);
    for (size_t problem = 0; problem + 1 < part.starts.size(); problem++) {
        const auto place = std::lower_bound(kernel.scored.begin(), kernel.scored.end(), part.starts[problem]);
        const size_t first = size_t(place - kernel.scored.begin());
        kernel.row_kinds[problem] = first < configs.size() ? kernel.model->row_kind(configs[first]) : 0;
    }
    set_factors(kernel);
}

// Set the model's correction factors on latency, energy and power of all candidates. Candidates that the model did not
// evaluate get the median factor of their problem. A model without trees of the power keeps the power, so the factor on
// energy is the factor on latency.
void Ranking::set_factors(Kernel& kernel) {
    const std::vector<int64_t>& starts = kernel.part->starts;
    const auto factor = [&](const std::vector<double>& logs) {
        std::vector<double> factors(size_t(starts.back()));
        size_t place = 0;
        for (size_t problem = 0; problem + 1 < starts.size(); problem++) {
            const size_t first = place;
            while (place < logs.size() && kernel.scored[place] < starts[problem + 1]) place++;
            if (starts[problem] == starts[problem + 1]) continue;
            if (int64_t(place - first) < starts[problem + 1] - starts[problem])
                std::fill(
                    factors.begin() + starts[problem], factors.begin() + starts[problem + 1],
                    std::exp(median({logs.begin() + std::ptrdiff_t(first), logs.begin() + std::ptrdiff_t(place)})));
            for (size_t i = first; i < place; i++) factors[size_t(kernel.scored[i])] = std::exp(logs[i]);
        }
        return factors;
    };
    const std::vector<double>&latency = kernel.prediction.latency_log, &power = kernel.prediction.power_log;
    kernel.factors[kSeconds] = kernel.factors[kJoules] = factor(latency);
    if (power.empty()) return;
    std::vector<double> energy(latency.size());
    for (size_t i = 0; i < energy.size(); i++) energy[i] = latency[i] + power[i];
    kernel.factors[kJoules] = factor(energy);
    kernel.factors[kWatts] = factor(power);
}

// Estimate the most promising candidates at all operating points except the first. Measurements correct the predictions
// of all configs, so a measured kernel needs all of them.
void Ranking::sweep() {
    for (const Kernel& kernel : kernels_) {
        const Costs::Part& part = *kernel.part;
        const size_t size = part.rows.size();
        std::vector<uint8_t> marks(size, 1);
        if (!whole_ && kernel.most_measured == 0) {
            const double* const limited = costs_->limited() + part.first;
            const double *seconds = limited + costs::kLatencyS * count_, *joules = limited + costs::kEnergyJ * count_;
            std::vector<double> latency(seconds, seconds + size), energy(joules, joules + size);
            for (size_t i = 0; i < kernel.factors[kSeconds].size(); i++) {
                latency[i] *= kernel.factors[kSeconds][i];
                energy[i] *= kernel.factors[kJoules][i];
            }
            marks = promising(latency.data(), energy.data(), part.starts, kSwept);
        }
        for (const int64_t position : true_places(Row<uint8_t>(marks.data(), int64_t(size))))
            swept_.push_back(part.first + position);
    }
    const int64_t count = int64_t(swept_.size());
    const Table<const double> nominal = costs_->nominal(0, count_);
    std::vector<double> launches(size_t(nominal.rows * count));
    slots_.assign(size_t(count_), -1);
    for (int64_t slot = 0; slot < count; slot++) {
        slots_[size_t(swept_[size_t(slot)])] = int32_t(slot);
        for (int64_t row = 0; row < nominal.rows; row++)
            launches[size_t(row * count + slot)] = nominal(row, swept_[size_t(slot)]);
    }
    swept_costs_ = limited_costs(others_, {launches.data(), nominal.rows, count, count, 1}, points_ - 1);
}

// Copy the analytical model's predictions at all operating points.
void Ranking::copy_predictions() {
    const int64_t further = (points_ - 1) * int64_t(swept_.size());
    estimates_ = count_ + further;
    values_.reserve(size_t(3 * estimates_)), kind_.assign(size_t(2 * estimates_), kAnalyticalKind);
    for (const int64_t row : kAnalytical) {
        const double *const first = costs_->limited() + row * count_, *const swept =
                                                                          swept_costs_.data() + row * further;
        values_.insert(values_.end(), first, first + count_), values_.insert(values_.end(), swept, swept + further);
    }
}

void Ranking::add_kinds(const Array<const double, 3>& kinds) {
    const auto figures_of = kinds.view();
    for (size_t i = 0; i < kinds.shape(2); i++) {
        EstimateKind& added = kinds_.emplace_back();
        for (size_t quantity = 0; quantity < 2; quantity++)
            for (size_t figure = 0; figure < EstimateKind::kFigures; figure++)
                added.of[quantity][figure] = figures_of(quantity, figure, i);
    }
}

// Correct a kernel's costs by its model.
void Ranking::correct(Kernel& kernel) {
    const Costs::Part& part = *kernel.part;
    for (int64_t quantity = 0; quantity < 3; quantity++)
        for (int64_t point = 0; point < points_; point++)
            each_estimated(point, part.first, part.first + int64_t(kernel.factors[quantity].size()),
                           [&](int64_t place, int64_t index) {
                               value_at(quantity, index) *= kernel.factors[quantity][size_t(place - part.first)];
                           });
    const bool energy_learned = !kernel.prediction.power_log.empty();
    size_t problem = 0;
    for (size_t i = 0; i < kernel.scored.size(); i++) {
        const int64_t position = kernel.scored[i];
        while (position >= part.starts[problem + 1]) problem++;
        const int64_t row_kind = kernel.row_kinds[problem];
        EstimateKind learned;
        for (size_t quantity = 0; quantity < 2; quantity++) {
            const double width =
                kernel.model->half_width(row_kind, energy_learned ? quantity : 0, kernel.prediction.distance[i]);
            const double wide = std::exp(width);
            double* const of = learned.of[quantity];
            of[EstimateKind::kBelow] = of[EstimateKind::kAbove] = wide;
            of[EstimateKind::kSource] = kernel.model->source(), of[EstimateKind::kOwn] = std::sqrt(kOwnShare) * width;
        }
        for (int64_t point = 0; point < points_; point++) {
            const int64_t index = estimate(point, part.first + position);
            if (index < 0) continue;
            kind_at(kSeconds, index) = int32_t(kinds_.size());
            if (energy_learned) kind_at(kJoules, index) = int32_t(kinds_.size());
        }
        kinds_.push_back(learned);
    }
}

// Apply measurements to a kernel's costs with a Python function. Its arguments are the number of the kernel, `values_`
// (3, points, N), `kind_` (2, points, N), `kinds_` (2, 4, K), the candidates that the model evaluated, and their
// features. The function returns new values, kinds of the candidates, and figures of the kinds.
void Ranking::measure(Kernel& kernel, size_t number, const nb::object& function) {
    const int64_t first = kernel.part->first;
    const size_t size = kernel.part->rows.size(), points = size_t(points_);
    auto [values, kinds] = copied_costs<int64_t>(0, points_, first, first + int64_t(size));
    std::vector<double> figures;
    for (size_t row = 0; row < 2 * EstimateKind::kFigures; row++)
        for (const EstimateKind& each : kinds_)
            figures.push_back(each.of[row / EstimateKind::kFigures][row % EstimateKind::kFigures]);
    const size_t scored = kernel.scored.size();
    const nb::tuple changed = nb::cast<nb::tuple>(
        function(number, numpy<double, 3>(std::move(values), {3, points, size}),
                 numpy<int64_t, 3>(std::move(kinds), {2, points, size}),
                 numpy<double, 3>(std::move(figures), {2, EstimateKind::kFigures, kinds_.size()}), numpy(kernel.scored),
                 numpy<float, 2>(kernel.prediction.features,
                                 {scored, scored == 0 ? 0 : kernel.prediction.features.size() / scored})));
    const auto new_values = nb::cast<Array<const double, 3>>(changed[0]);
    const auto new_kinds = nb::cast<Array<const int64_t, 3>>(changed[1]);
    const auto new_figures = nb::cast<Array<const double, 3>>(changed[2]);
    require(new_values.shape(0) == 3 && new_values.shape(1) == points && new_values.shape(2) == size &&
                new_kinds.shape(0) == 2 && new_kinds.shape(1) == points && new_kinds.shape(2) == size &&
                new_figures.shape(0) == 2 && new_figures.shape(1) == EstimateKind::kFigures,
            "measure: expected costs of each candidate");
    const int64_t base = int64_t(kinds_.size()), more = int64_t(new_figures.shape(2));
    add_kinds(new_figures);
    for (size_t point = 0; point < points; point++)
        for (size_t i = 0; i < size; i++) {
            const int64_t index = estimate(int64_t(point), first + int64_t(i));
            require(index >= 0, "measure: expected a sweep of all candidates");
            for (size_t quantity = 0; quantity < 3; quantity++)
                value_at(int64_t(quantity), index) = new_values.view()(quantity, point, i);
            for (size_t quantity = 0; quantity < 2; quantity++) {
                const int64_t number_of_kind = new_kinds.view()(quantity, point, i);
                require(number_of_kind >= 0 && number_of_kind < more, "measure: expected kinds of the table");
                kind_at(int64_t(quantity), index) = int32_t(base + number_of_kind);
            }
        }
}

// Make the costs of candidates of one problem obey the laws of physics.
//
// A small violation is corrected: the time is raised to the bound at the predicted power, or the launch is slowed to
// its power limit. After a large violation, the costs from before the corrections return, or the costs become infinite.
// Measured candidates do not change. kernel: kernel of the candidates; null for costs of the analytical model.
Violations Ranking::enforce(int64_t first, int64_t end, int64_t problem, const Kernel* kernel,
                            const std::vector<double>* before, const std::vector<int32_t>* kinds_before) {
    const double least_s = figures_(problem, kLeastS), roof_clk = figures_(problem, kRoofClk);
    // Candidates without an estimate at a point are infinite there. A comparison with NaN is false, so NaN fails.
    const auto lawful = [&](int64_t point, int64_t place) {
        const double latency = value(kSeconds, point, place) * (1.0 + kRounding), energy = value(kJoules, point, place);
        return energy <= latency * limits_w_[size_t(point)] && energy > 0.0 && latency >= least_s &&
               latency * limited(costs::kClockHz, point, place) >= roof_clk;
    };
    // The analytical model already keeps power limits, and its time bounds hold at all points, so check one point.
    bool all = true;
    for (int64_t point = 0; point < (kernel == nullptr ? 1 : points_) && all; point++)
        each_estimated(point, first, end, [&](int64_t place, int64_t) { all = all && lawful(point, place); });
    Violations result;
    if (all) return result;
    result.any = true;
    for (int64_t place = first; place < end; place++) {
        bool refused = false, noted = false;
        for (int64_t point = 0; point < points_; point++) {
            if (lawful(point, place)) continue;
            if (kernel != nullptr) {
                const std::vector<int64_t>& measured = kernel->measured[size_t(point)];
                if (std::binary_search(measured.begin(), measured.end(), place - kernel->part->first)) continue;
            }
            const int64_t changed = estimate(point, place);
            if (changed < 0) continue;  // Only estimates violate a law.
            double &latency = value_at(kSeconds, changed), &energy = value_at(kJoules, changed),
                   &power = value_at(kWatts, changed);
            const double bound_s = maximum(least_s, roof_clk / limited(costs::kClockHz, point, place));
            if (!(latency * kRefused >= bound_s && energy > 0.0 && std::isfinite(energy))) {
                if ((!refused && result.refused == 0) || point < result.first_point)
                    result.seconds = latency, result.least_s = bound_s, result.first_point = point;
                refused = true;
                if (kernel == nullptr) {
                    latency = energy = power = kInfinity;
                    continue;
                }
                const int64_t size = int64_t(kernel->part->rows.size()), own = place - kernel->part->first;
                const auto index = [&](int64_t quantity) { return size_t((quantity * points_ + point) * size + own); };
                for (int64_t quantity = 0; quantity < 3; quantity++)
                    value_at(quantity, changed) =
                        before->empty() ? limited(kAnalytical[quantity], point, place) : (*before)[index(quantity)];
                for (int64_t quantity = 0; quantity < 2; quantity++)
                    kind_at(quantity, changed) = before->empty() ? kAnalyticalKind : (*kinds_before)[index(quantity)];
            }
            const double raised = maximum(bound_s / latency, 1.0), limit_w = limits_w_[size_t(point)];
            // At the default limit, only the power is wrong: recorded times already include the effect of the limit.
            const double drawn_w = energy / latency;
            const bool over = drawn_w > limit_w;
            double slower = 1.0, share = 1.0;
            if (over && !is_default_[size_t(point)])
                slower = slowdown(
                    drawn_w, limited(costs::kStaticJ, point, place) / limited(costs::kLatencyS, point, place), limit_w);
            slower *= raised;
            if (over) share = minimum(limit_w / drawn_w, 1.0), power = limit_w;
            latency *= slower;
            energy *= slower * share;
            noted = noted || raised > kWorthNoting;
        }
        result.refused += refused, result.raised += noted;
    }
    return result;
}

// Shrink the lead of unmeasured kernels over the recorded times of a problem: the fastest baseline, and the Triton
// kernels that a model learned on this GPU. Compare times at the default power limit and clock, so that a config's cost
// does not depend on the other operating points of the query.
void Ranking::compare_with_references(int64_t problem) {
    struct Unchecked {
        Kernel* kernel;
        double best_s;
    };
    std::vector<Unchecked> unchecked;
    std::vector<Reference> references;
    const auto figure = [&](Figure row) { return figures_(problem, row); };
    const bool has_baseline = !std::isnan(figure(kBaselineS));
    if (has_baseline)
        references.push_back({figure(kBaselineS), figure(kBaselineDeviation), figure(kBaselineTransferred) != 0.0,
                              Reference::kBaseline});
    double least_s = kInfinity;
    for (size_t number = 0; number < kernels_.size(); number++) {
        Kernel& kernel = kernels_[number];
        kernel.shrinkages[size_t(problem)].deviation = figure(kUnmeasuredDeviation);
        const int64_t first = kernel.first(problem), end = kernel.first(problem + 1);
        if (first == end) continue;
        int64_t best = first;
        double best_s = kInfinity;
        for (int64_t place = first; place < end; place++) {
            double seconds = value(kSeconds, 0, place);
            if (!default_s_.empty()) seconds *= default_s_[size_t(place)] / limited(costs::kLatencyS, 0, place);
            if (seconds < best_s) best = place, best_s = seconds;
        }
        if (!kernel.ran()) {
            unchecked.push_back({&kernel, best_s});
        } else if (kernel.of_gpu() && kernel.triton) {
            const double* const of = figures(kSeconds, 0, best);
            references.push_back({best_s,
                                  std::log(of[EstimateKind::kAbove] * of[EstimateKind::kBelow]) / (2.0 * kDeviations),
                                  false, int64_t(number)});
            least_s = std::min(least_s, best_s);
        }
    }
    // If no backend was recorded on the problem, libraries may have kernels that Triton's template lacks, such as
    // kernels for f32 matmuls of few rows.
    if (!has_baseline && figure(kPhysicalHighS) < least_s)
        references = {{figure(kPhysicalS), figure(kPhysicalDeviation), true, Reference::kPhysics}};
    const Reference fastest = fastest_reference(references);
    for (const Unchecked& each : unchecked) {
        Shrinkage& own = each.kernel->shrinkages[size_t(problem)];
        own = shrinkage_of(figure(kWholeDeviation), each.best_s, fastest);
        if (own.lead > 0.0) raise(*each.kernel, problem, own);
    }
}

// Raise the times and energies of an unmeasured kernel. One factor raises all configs, because they share most of the
// error. The new intervals are as wide as the deviation of `shrinkage`, but their upper ends never decrease. A config's
// own error is at most the fraction `kOwnShare` of the variance.
void Ranking::raise(Kernel& kernel, int64_t problem, const Shrinkage& shrinkage) {
    const double factor = std::exp(shrinkage.lead * (1.0 - shrinkage.share));
    const double wide = std::exp(kDeviations * shrinkage.deviation);
    const double own = std::sqrt(kOwnShare) * std::log(wide);
    std::vector<int32_t> raised(kinds_.size(), -1);
    const int64_t first = kernel.first(problem), end = kernel.first(problem + 1);
    for (int64_t quantity = 0; quantity < 2; quantity++)
        for (int64_t point = 0; point < points_; point++)
            each_estimated(point, first, end, [&](int64_t, int64_t index) {
                value_at(quantity, index) *= factor;
                int32_t& number = kind_at(quantity, index);
                int32_t& new_number = raised[size_t(number)];
                if (new_number < 0) {
                    EstimateKind each = kinds_[size_t(number)];
                    for (auto& of : each.of) {
                        of[EstimateKind::kBelow] = wide,
                        of[EstimateKind::kAbove] = maximum(of[EstimateKind::kAbove] / factor, wide);
                        of[EstimateKind::kOwn] = minimum(of[EstimateKind::kOwn], own);
                    }
                    new_number = int32_t(kinds_.size());
                    kinds_.push_back(each);
                }
                number = new_number;
            });
}

// Set the factors that multiply a kernel's costs in comparisons with configs that were run. An unmeasured config beats
// a measured config, or a config that a model learned on this GPU, only if its lead is larger than its error.
void Ranking::set_risk(Kernel& kernel, int64_t problem) {
    const double deviation = kernel.shrinkages[size_t(problem)].deviation, unsure = std::exp(kCertain * deviation);
    const int64_t first = kernel.first(problem), end = kernel.first(problem + 1);
    const bool is_measured = kernel.most_measured > 0, same = kernel.model == nullptr && !is_measured;
    for (int64_t place = first; place < end; place++) {
        double& risk = risk_[size_t(place)];
        risk = unsure;
        if (same) continue;
        const double* const of = figures(kSeconds, 0, place);
        if (kernel.of_gpu()) {
            if (of[EstimateKind::kSource] == kLearned) risk = 1.0;
            continue;
        }
        double own =
            minimum(std::log(of[EstimateKind::kAbove] * of[EstimateKind::kBelow]) / (2.0 * kDeviations), deviation);
        // The interval of the analytical model covers errors within one kernel. In a comparison with kernels of other
        // authors, the differences between kernels add to the error.
        if (!is_measured && of[EstimateKind::kSource] == kPredicted) own = deviation;
        risk = std::exp(kCertain * own);
    }
    for (const std::vector<int64_t>& positions : kernel.measured)
        for (const int64_t position : positions) risk_[size_t(first + position)] = 1.0;
}

nb::object Ranking::limited_array() const {
    std::vector<double> costs;
    for (int64_t row = 0; row < costs::kCostRows; row++)
        for (int64_t point = 0; point < points_; point++)
            for (int64_t place = 0; place < count_; place++) costs.push_back(limited(row, point, place));
    return numpy<double, 3>(std::move(costs), {size_t(costs::kCostRows), size_t(points_), size_t(count_)});
}

nb::tuple Ranking::shrinkage(size_t kernel, size_t problem) const {
    const Shrinkage& own = kernels_.at(kernel).shrinkages.at(problem);
    const Reference& reference = own.reference;
    return nb::make_tuple(reference.origin, reference.latency_s, reference.deviation, reference.transferred, own.lead,
                          own.share, own.deviation);
}

nb::tuple Ranking::violations(int64_t kernel, size_t problem) const {
    const Violations& here = kernel < 0 ? violations_.at(problem) : kernels_.at(size_t(kernel)).violations.at(problem);
    return nb::make_tuple(here.refused, here.raised, here.seconds, here.least_s, kernel >= 0);
}

}  // namespace kernrec::query
