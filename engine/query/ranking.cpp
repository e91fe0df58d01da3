// Corrects the analytical model's costs by trained models, measurements, laws of physics, and recorded times of other
// kernels. kernrec/recommender/rank.py describes the steps.
#include "ranking.h"

#include <algorithm>
#include <iterator>

namespace kernrec::query {
namespace {

constexpr int64_t kScored = 64;  // maximum number of a problem's candidates that the trees evaluate
constexpr int64_t kFewest = 5;   // minimum number of measurements that adapt a model
// Number of a kernel's fastest and lowest-energy candidates that are estimated at other operating points. On 72
// problems of four ops, this missed the lowest energy once, by 1.3 %.
constexpr int64_t kSwept = 64;
constexpr double kRounding = 1e-9;
// A predicted time that is below the bound by more than this factor is rejected instead of corrected.
constexpr double kRefused = 2.0;
constexpr double kWorthNoting = 1.05;  // a note reports times that were raised by more than this factor
// A power limit is the bottleneck if it lowers the clock below this fraction of the boost clock.
constexpr double kHeld = 0.95;
// Indices in `RESOURCES` of kernrec/model/analytical/launch_time.py, followed by the power limit.
constexpr int64_t kDram = kPipes + 2, kLaunchOverhead = kPipes + 3, kPowerLimit = kPipes + 4;
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

// View the figures of kinds, (2, 4, K).
View<double> view_of(std::vector<EstimateKind>& kinds) {
    return View<double>(&kinds[0].of[0].below, {2, kIntervalFields, kinds.size()}, {},
                        {kIntervalFields, 1, 2 * kIntervalFields});
}

// Return the fastest reference learned on the GPU, or else the fastest transferred one.
Reference fastest_reference(const std::vector<Reference>& references) {
    const auto is_transferred = [](const Reference& each) { return each.transferred; };
    const bool transferred = std::all_of(references.begin(), references.end(), is_transferred);
    std::vector<Reference> alike;
    std::copy_if(references.begin(), references.end(), std::back_inserter(alike),
                 [&](const Reference& each) { return each.transferred == transferred; });
    if (alike.size() <= 1) return alike.empty() ? Reference() : alike[0];
    const auto faster = [](const Reference& each, const Reference& other) { return each.latency_s < other.latency_s; };
    const double first_s = std::min_element(alike.begin(), alike.end(), faster)->latency_s;
    // Average times that are nearly equal, with more weight on more certain times. Otherwise a kernel's lead would
    // jump when the order of two nearly equal references changes.
    std::vector<double> lags, weights;
    double total = 0.0, lag = 0.0, variance = 0.0;
    for (const Reference& each : alike) {
        lags.push_back(std::log(each.latency_s / first_s));
        const double apart = lags.back() / kAmongKernels;
        weights.push_back(std::exp(-0.5 * (apart * apart)) /
                          (kAmongKernels * kAmongKernels + each.deviation * each.deviation));
        total += weights.back();
    }
    for (size_t i = 0; i < alike.size(); i++) {
        lag += weights[i] / total * lags[i];
        variance += weights[i] / total * (alike[i].deviation * alike[i].deviation);
    }
    const size_t heaviest = size_t(std::max_element(weights.begin(), weights.end()) - weights.begin());
    return {first_s * std::exp(lag), std::sqrt(variance), transferred, alike[heaviest].origin};
}

// Return the shrinkage of a kernel whose best config is predicted to take `best_s`. whole: standard deviation of the
// prediction's error.
Shrinkage shrinkage_of(double whole, double best_s, const Reference& reference) {
    if (reference.origin == Reference::kNone) return {reference, 0.0, 1.0, whole};
    const double own = std::sqrt(std::max(whole * whole - kAmongKernels * kAmongKernels, 0.25 * whole * whole));
    const double room = std::hypot(kAmongKernels, reference.deviation);
    const double share = room * room / (own * own + room * room);
    return {reference, std::max(std::log(reference.latency_s / best_s), 0.0), share, own * std::sqrt(share)};
}

}  // namespace

// Correct the analytical model's costs. others: `PowerLimits` of all points but the first. fallback: `PowerLimits` of
// the default point; None if the default point is the first. analytical_kinds: `EstimateKind` of the analytical model,
// (2, 4, 1). measure_with: Python function that applies measurements to the costs of a kernel.
void Ranking::rank(nb::handle others, nb::handle fallback, const Array<const double, 3>& analytical_kinds,
                   nb::handle measure_with) {
    // Row 0 contains latencies. `score` also reads the rows after it.
    if (!fallback.is_none()) default_s = limited_costs(fallback, costs.nominal(0, count), 1);
    for (Kernel& kernel : kernels)
        if (kernel.model != nullptr && !kernel.part->rows.empty()) score(kernel);
    if (points > 1) sweep(others);
    add_kinds(analytical_kinds);
    // Copy the analytical model's predictions at all operating points.
    estimates.reserve(size_t(count) + size_t(points - 1) * swept.size());
    for (int64_t point = 0; point < points; point++)
        each_estimated(point, 0, count, [&](int64_t place, int64_t) { estimates.push_back(analytical(point, place)); });
    for (int64_t problem = 0; problem < problems; problem++) {
        Violations& all = violations[problem];
        for (const Kernel& kernel : kernels) {
            const Violations here = enforce(kernel, problem, false);
            if (here.refused > 0 && (all.refused == 0 || here.first_point < all.first_point))
                all.seconds = here.seconds, all.least_s = here.least_s, all.first_point = here.first_point;
            all.refused += here.refused, all.raised += here.raised;
        }
    }
    for (size_t number = 0; number < kernels.size(); number++) {
        Kernel& kernel = kernels[number];
        if (kernel.part->rows.empty() || (kernel.model == nullptr && kernel.most_measured == 0)) continue;
        if (kernel.model != nullptr) correct(kernel);
        if (kernel.most_measured > 0) measure(kernel, number, measure_with);
        for (int64_t problem = 0; problem < problems; problem++)
            kernel.violations[problem] = enforce(kernel, problem, true);
    }
    for (int64_t problem = 0; problem < problems; problem++) {
        compare_with_references(problem);
        for (Kernel& kernel : kernels) set_risk(kernel, problem);
    }
}

std::pair<std::vector<double>, std::vector<int32_t>> Ranking::copied_costs(int64_t first_point, int64_t end_point,
                                                                           int64_t first, int64_t end) const {
    std::pair<std::vector<double>, std::vector<int32_t>> copied;
    for (int64_t quantity = 0; quantity < 3; quantity++)
        for (int64_t point = first_point; point < end_point; point++)
            for (int64_t place = first; place < end; place++) {
                copied.first.push_back(value(quantity, point, place));
                if (quantity < 2) copied.second.push_back(kind(quantity, point, place));
            }
    return copied;
}

// Evaluate the model for the candidates with the lowest predicted latency or energy, and for measured ones.
void Ranking::score(Kernel& kernel) {
    const Costs::Part& part = *kernel.part;
    const double* const limited = costs.limited.data() + part.first;
    // With enough measurements, configs that the analytical model ranks low may be promising. Trees for all configs
    // take milliseconds.
    std::vector<uint8_t> marks(part.rows.size(), 1);
    if (!whole && int64_t(kernel.measured[0].size()) < kFewest) {
        marks = promising(limited + costs::kLatencyS * count, limited + costs::kEnergyJ * count, part.starts, kScored);
        for (const int64_t position : kernel.measured[0]) marks[position] = 1;
    }
    kernel.scored = true_places(Row<uint8_t>(marks));
    // Use the default operating point, so that costs do not depend on how an operating point was requested.
    const double* const basis = default_s.empty() ? limited : default_s.data() + part.first;
    const int64_t scored = int64_t(kernel.scored.size());
    std::vector<double> room(size_t(features::kQuantities * scored));
    const Table<double> quantities(room.data(), features::kQuantities, scored);
    costs.fill(part, 0, kernel.scored, {basis, costs::kCostRows, part.size(), count, 1}, quantities);
    std::vector<int64_t> configs;
    for (const int64_t position : kernel.scored) configs.push_back(part.rows[position]);
    kernel.prediction = kernel.model->predict(quantities, configs);
    for (size_t problem = 0; problem + 1 < part.starts.size(); problem++) {
        const auto place = std::lower_bound(kernel.scored.begin(), kernel.scored.end(), part.starts[problem]);
        const size_t first = size_t(place - kernel.scored.begin());
        kernel.row_kinds[problem] = first < configs.size() ? kernel.model->row_kinds[configs[first]] : 0;
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
            for (size_t i = first; i < place; i++) factors[kernel.scored[i]] = std::exp(logs[i]);
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
void Ranking::sweep(nb::handle others) {
    for (const Kernel& kernel : kernels) {
        const Costs::Part& part = *kernel.part;
        const size_t size = part.rows.size();
        std::vector<uint8_t> marks(size, 1);
        if (!whole && kernel.most_measured == 0) {
            const double* const limited = costs.limited.data() + part.first;
            const double *seconds = limited + costs::kLatencyS * count, *joules = limited + costs::kEnergyJ * count;
            std::vector<double> latency(seconds, seconds + size), energy(joules, joules + size);
            for (size_t i = 0; i < kernel.factors[kSeconds].size(); i++) {
                latency[i] *= kernel.factors[kSeconds][i];
                energy[i] *= kernel.factors[kJoules][i];
            }
            marks = promising(latency.data(), energy.data(), part.starts, kSwept);
        }
        for (const int64_t position : true_places(Row<uint8_t>(marks))) swept.push_back(part.first + position);
    }
    const int64_t size = int64_t(swept.size());
    const Table<const double> nominal = costs.nominal(0, count);
    std::vector<double> room(size_t(nominal.rows * size));
    const Table<double> launches(room.data(), nominal.rows, size);
    slots.assign(size_t(count), -1);
    for (int64_t slot = 0; slot < size; slot++) {
        slots[swept[slot]] = int32_t(slot);
        for (int64_t row = 0; row < nominal.rows; row++) launches(row, slot) = nominal(row, swept[slot]);
    }
    swept_costs = limited_costs(others, launches, points - 1);
}

// Append kinds with the figures (2, 4, K) to `kinds`.
void Ranking::add_kinds(const Array<const double, 3>& more) {
    require(more.shape(0) == 2 && more.shape(1) == kIntervalFields && more.shape(2) > 0,
            "kinds: expected figures of both quantities");
    const auto all = more.view();
    const auto interval = [&](size_t of, size_t i) {
        return Interval{all(of, 0, i), all(of, 1, i), all(of, 2, i), all(of, 3, i)};
    };
    for (size_t i = 0; i < more.shape(2); i++) kinds.push_back({{interval(0, i), interval(1, i)}});
}

// Correct a kernel's costs by its model.
void Ranking::correct(Kernel& kernel) {
    const Costs::Part& part = *kernel.part;
    for (int64_t quantity = 0; quantity < 3; quantity++)
        for (int64_t point = 0; point < points; point++)
            each_estimated(point, part.first, part.first + int64_t(kernel.factors[quantity].size()),
                           [&](int64_t place, int64_t index) {
                               estimates[index].costs[quantity] *= kernel.factors[quantity][place - part.first];
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
            Interval& of = learned.of[quantity];
            of.below = of.above = wide;
            of.source = kernel.model->source, of.own = std::sqrt(kOwnShare) * width;
        }
        for (int64_t point = 0; point < points; point++) {
            const int64_t index = estimate(point, part.first + position);
            if (index < 0) continue;
            estimates[index].kinds[kSeconds] = int32_t(kinds.size());
            if (energy_learned) estimates[index].kinds[kJoules] = int32_t(kinds.size());
        }
        kinds.push_back(learned);
    }
}

// Apply measurements to a kernel's costs with a Python function. Its arguments are the number of the kernel, `values`
// (3, points, N), `kind_numbers` (2, points, N), `kinds` (2, 4, K), the candidates that the model evaluated, and their
// features. The function returns new values, kinds of the candidates, and figures of the kinds.
void Ranking::measure(Kernel& kernel, size_t number, nb::handle function) {
    const int64_t first = kernel.part->first;
    const size_t size = kernel.part->rows.size(), all = size_t(points), scored = kernel.scored.size();
    auto [old_values, old_kinds] = copied_costs(0, points, first, first + int64_t(size));
    const nb::object changed =
        function(number, numpy<double, 3>(std::move(old_values), {3, all, size}),
                 numpy<int32_t, 3>(std::move(old_kinds), {2, all, size}), nb::cast(view_of(kinds), nb::rv_policy::copy),
                 numpy(kernel.scored),
                 numpy<float, 2>(kernel.prediction.features,
                                 {scored, scored == 0 ? 0 : kernel.prediction.features.size() / scored}));
    using Changed = std::tuple<Array<const double, 3>, Array<const int32_t, 3>, Array<const double, 3>>;
    const auto [new_values, new_kinds, new_figures] = nb::cast<Changed>(changed);
    require(new_values.shape(0) == 3 && new_values.shape(1) == all && new_values.shape(2) == size &&
                new_kinds.shape(0) == 2 && new_kinds.shape(1) == all && new_kinds.shape(2) == size,
            "measure: expected costs of each candidate");
    const int64_t base = int64_t(kinds.size()), more = int64_t(new_figures.shape(2));
    add_kinds(new_figures);
    const auto value_of = new_values.view();
    const auto kind_of = new_kinds.view();
    for (size_t point = 0; point < all; point++)
        for (size_t i = 0; i < size; i++) {
            const int64_t index = estimate(int64_t(point), first + int64_t(i));
            require(index >= 0, "measure: expected a sweep of all candidates");
            for (size_t quantity = 0; quantity < 3; quantity++)
                estimates[index].costs[quantity] = value_of(quantity, point, i);
            for (size_t quantity = 0; quantity < 2; quantity++) {
                const int32_t new_kind = kind_of(quantity, point, i);
                require(new_kind >= 0 && new_kind < more, "measure: expected kinds of the table");
                estimates[index].kinds[quantity] = int32_t(base + new_kind);
            }
        }
}

// Make the costs of candidates of one problem obey the laws of physics.
//
// A small violation is corrected: the time is raised to the bound at the predicted power, or the launch is slowed to
// its power limit. After a large violation, the costs of the analytical model replace corrected costs. If these violate
// the laws too, the costs become infinite. Measured candidates do not change.
Violations Ranking::enforce(const Kernel& kernel, int64_t problem, bool corrected) {
    const int64_t first = kernel.first(problem), end = kernel.first(problem + 1);
    const double least_s = figure(problem, kLeastS), roof_clk = figure(problem, kRoofClk);
    // Candidates without an estimate at a point are infinite there. A comparison with NaN is false, so NaN fails.
    const auto lawful = [&](int64_t point, int64_t place) {
        const double latency = value(kSeconds, point, place) * (1.0 + kRounding), energy = value(kJoules, point, place);
        return energy <= latency * limits_w[point] && energy > 0.0 && latency >= least_s &&
               latency * limited(costs::kClockHz, point, place) >= roof_clk;
    };
    // The analytical model already keeps power limits, and its time bounds hold at all points, so check one point.
    bool all = true;
    for (int64_t point = 0; point < (corrected ? points : 1) && all; point++)
        each_estimated(point, first, end, [&](int64_t place, int64_t) { all = all && lawful(point, place); });
    Violations result;
    if (all) return result;
    for (int64_t place = first; place < end; place++) {
        bool refused = false, noted = false;
        for (int64_t point = 0; point < points; point++) {
            if (lawful(point, place)) continue;
            const std::vector<int64_t>& measured = kernel.measured[point];
            if (corrected && std::binary_search(measured.begin(), measured.end(), place - kernel.part->first)) continue;
            const int64_t index = estimate(point, place);
            if (index < 0) continue;  // Only estimates violate a law.
            auto& [latency, energy, power] = estimates[index].costs;
            const double bound_s = maximum(least_s, roof_clk / limited(costs::kClockHz, point, place));
            const auto impossible = [&, &latency = latency, &energy = energy] {
                return !(latency * kRefused >= bound_s && energy > 0.0 && std::isfinite(energy));
            };
            bool replaced = false;
            if (impossible()) {
                if ((!refused && result.refused == 0) || point < result.first_point)
                    result.seconds = latency, result.least_s = bound_s, result.first_point = point;
                refused = true, replaced = corrected;
                if (replaced) estimates[index] = analytical(point, place);
                if (!replaced || impossible()) {
                    latency = energy = power = kInfinity;
                    continue;
                }
            }
            const double raised = maximum(bound_s / latency, 1.0), limit_w = limits_w[point];
            // At the default limit, only the power is wrong: recorded times already include the effect of the limit.
            const double drawn_w = energy / latency;
            const bool over = drawn_w > limit_w;
            double slower = 1.0, share = 1.0;
            if (over && !is_default[point])
                slower = slowdown(
                    drawn_w, limited(costs::kStaticJ, point, place) / limited(costs::kLatencyS, point, place), limit_w);
            slower *= raised;
            if (over) share = minimum(limit_w / drawn_w, 1.0), power = limit_w;
            latency *= slower;
            energy *= slower * share;
            noted = noted || (!replaced && raised > kWorthNoting);
        }
        result.refused += refused, result.raised += noted;
    }
    return result;
}

// Shrink the lead of unmeasured kernels over the recorded times of a problem: the fastest baseline, and the Triton
// kernels that a model learned on this GPU. Compare times at the default power limit and clock, so that a config's cost
// does not depend on the other operating points of the query.
void Ranking::compare_with_references(int64_t problem) {
    std::vector<std::pair<Kernel*, double>> unchecked;  // with the time of the fastest config
    std::vector<Reference> references;
    const auto figure = [&](Figure row) { return this->figure(problem, row); };
    const bool has_baseline = !std::isnan(figure(kBaselineS));
    if (has_baseline)
        references.push_back({figure(kBaselineS), figure(kBaselineDeviation), figure(kBaselineTransferred) != 0.0,
                              Reference::kBaseline});
    double least_s = kInfinity;
    for (size_t number = 0; number < kernels.size(); number++) {
        Kernel& kernel = kernels[number];
        kernel.shrinkages[problem].deviation = figure(kUnmeasuredDeviation);
        const int64_t first = kernel.first(problem), end = kernel.first(problem + 1);
        if (first == end) continue;
        int64_t best = first;
        double best_s = kInfinity;
        for (int64_t place = first; place < end; place++) {
            double seconds = value(kSeconds, 0, place);
            if (!default_s.empty()) seconds *= default_s[place] / limited(costs::kLatencyS, 0, place);
            if (seconds < best_s) best = place, best_s = seconds;
        }
        if (!kernel.ran()) {
            unchecked.push_back({&kernel, best_s});
        } else if (kernel.of_gpu() && kernel.triton) {
            references.push_back({best_s, deviation_of(kind_of(kSeconds, 0, best)), false, int64_t(number)});
            least_s = std::min(least_s, best_s);
        }
    }
    // If no backend was recorded on the problem, libraries may have kernels that Triton's template lacks, such as
    // kernels for f32 matmuls of few rows.
    if (!has_baseline && figure(kPhysicalHighS) < least_s)
        references = {{figure(kPhysicalS), figure(kPhysicalDeviation), true, Reference::kPhysics}};
    const Reference fastest = fastest_reference(references);
    for (const auto& [kernel, best_s] : unchecked) {
        Shrinkage& own = kernel->shrinkages[problem];
        own = shrinkage_of(figure(kWholeDeviation), best_s, fastest);
        if (own.lead > 0.0) raise(*kernel, problem, own);
    }
}

// Raise the times and energies of an unmeasured kernel. One factor raises all configs, because they share most of the
// error. The new intervals are as wide as the deviation of `shrinkage`, but their upper ends never decrease. A config's
// own error is at most the fraction `kOwnShare` of the variance.
void Ranking::raise(Kernel& kernel, int64_t problem, const Shrinkage& shrinkage) {
    const double factor = std::exp(shrinkage.lead * (1.0 - shrinkage.share));
    const double wide = std::exp(kDeviations * shrinkage.deviation);
    const double own = std::sqrt(kOwnShare) * std::log(wide);
    std::vector<int32_t> raised(kinds.size(), -1);
    const int64_t first = kernel.first(problem), end = kernel.first(problem + 1);
    for (int64_t quantity = 0; quantity < 2; quantity++)
        for (int64_t point = 0; point < points; point++)
            each_estimated(point, first, end, [&](int64_t, int64_t index) {
                estimates[index].costs[quantity] *= factor;
                int32_t& number = estimates[index].kinds[quantity];
                int32_t& new_number = raised[number];
                if (new_number < 0) {
                    EstimateKind each = kinds[number];
                    for (auto& of : each.of) {
                        of.below = wide, of.above = maximum(of.above / factor, wide);
                        of.own = minimum(of.own, own);
                    }
                    new_number = int32_t(kinds.size());
                    kinds.push_back(each);
                }
                number = new_number;
            });
}

// Set the factors that multiply a kernel's costs in comparisons with configs that were run. An unmeasured config beats
// a measured config, or a config that a model learned on this GPU, only if its lead is larger than its error.
void Ranking::set_risk(Kernel& kernel, int64_t problem) {
    const double deviation = kernel.shrinkages[problem].deviation, unsure = std::exp(kCertain * deviation);
    const int64_t first = kernel.first(problem), end = kernel.first(problem + 1);
    const bool is_measured = kernel.most_measured > 0, same = kernel.model == nullptr && !is_measured;
    for (int64_t place = first; place < end; place++) {
        double& factor = risk[place];
        factor = unsure;
        if (same) continue;
        const Interval& of = kind_of(kSeconds, 0, place);
        if (kernel.of_gpu()) {
            if (of.source == kLearned) factor = 1.0;
            continue;
        }
        double own = minimum(deviation_of(of), deviation);
        // The interval of the analytical model covers errors within one kernel. In a comparison with kernels of other
        // authors, the differences between kernels add to the error.
        if (!is_measured && of.source == kPredicted) own = deviation;
        factor = std::exp(kCertain * own);
    }
    for (const std::vector<int64_t>& positions : kernel.measured)
        for (const int64_t position : positions) risk[first + position] = 1.0;
}

std::pair<double, int64_t> Ranking::running(size_t kernel, int64_t point, int64_t place) const {
    require(kernel < kernels.size() && point >= 0 && point < points && place >= 0 && place < count,
            "running: expected a candidate");
    const double clock_hz = limited(costs::kClockHz, point, place);
    int64_t resource = int64_t(costs.longest[count + place]);
    if (resource != kLaunchOverhead) {
        const Table<const double> nominal = costs.nominal(place, 1);
        // The nominal time of the core is for the boost clock, so convert it to the actual clock.
        const double faster = clock_hz / kernels[kernel].part->kernel->launches[0]->device.clock_hz;
        const double core_s = nominal(0, 0) / faster, dram_s = nominal(1, 0);
        if (resource != kDram && faster > 1.0 && dram_s > core_s) {
            resource = kDram;
        } else if (faster < kHeld && limited(costs::kRegime, point, place) == costs::kCapped &&
                   (resource != kDram || core_s > dram_s)) {
            resource = kPowerLimit;
        }
    }
    return {clock_hz, resource};
}

namespace {

// Return whether any estimate of the analytical model, or after corrections, violated a law of physics.
bool violated(const Ranking& of) {
    const auto any = [](const std::vector<Violations>& all) {
        return std::any_of(all.begin(), all.end(),
                           [](const Violations& each) { return each.refused + each.raised > 0; });
    };
    return any(of.violations) || std::any_of(of.kernels.begin(), of.kernels.end(),
                                             [&](const Ranking::Kernel& each) { return any(each.violations); });
}

// A kernel: `LearnedModel` or null, whether the model was trained on this kernel and GPU, whether the kernel is a
// Triton kernel, positions of measured configs at each operating point (None: none).
using KernelArguments = std::tuple<const LearnedModel*, bool, bool, std::optional<std::vector<Row<const int64_t>>>>;

void make_ranking(Ranking* self, Costs& costs, const std::vector<KernelArguments>& kernels,
                  std::vector<double> limits_w, std::vector<double> highest_hz, std::vector<bool> is_default,
                  nb::handle others, nb::handle fallback, std::vector<double> figures,
                  const Array<const double, 3>& kinds, bool whole, nb::handle measure) {
    const size_t points = size_t(costs.points), problems = figures.size() / Ranking::kFigures;
    require(points > 0 && limits_w.size() == points && highest_hz.size() == points && is_default.size() == points,
            "points: expected a limit of each operating point");
    require(kernels.size() == costs.parts.size() && figures.size() % Ranking::kFigures == 0,
            "kernels: expected all kernels");
    Ranking ranking{costs,
                    costs.count,
                    costs.points,
                    int64_t(problems),
                    std::move(limits_w),
                    std::move(highest_hz),
                    std::move(is_default),
                    std::move(figures),
                    whole};
    ranking.risk.resize(size_t(costs.count)), ranking.violations.resize(problems);
    for (const auto& [model, trained, triton, measured] : kernels) {
        const Costs::Part& part = costs.parts[ranking.kernels.size()];
        Ranking::Kernel& kernel = ranking.kernels.emplace_back(Ranking::Kernel{&part, model, trained, triton});
        require(part.problems.size() == problems, "figures: expected a row of each problem");
        require(model == nullptr || model->configs() == part.kernel->space.count(),
                "model: expected the kernel's configs");
        kernel.measured.resize(points), kernel.row_kinds.resize(problems);
        kernel.shrinkages.resize(problems), kernel.violations.resize(problems);
        if (!measured) continue;
        require(problems == 1 && measured->size() == points, "measured: expected one problem's positions");
        for (size_t point = 0; point < points; point++) {
            const Row<const int64_t>& positions = (*measured)[point];
            require(all_within(positions, 0, part.size()), "measured: expected candidates");
            kernel.measured[point] = copied(positions);
            kernel.most_measured = std::max(kernel.most_measured, positions.size);
        }
    }
    ranking.rank(others, fallback, kinds, measure);
    new (self) Ranking(std::move(ranking));
}

const Binding kBinding([](nb::module_& module) {
    nb::class_<Ranking>(module, "Ranking")
        .def("__init__", &make_ranking, nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg().none(),
             nb::arg().none(), nb::arg(), nb::arg().noconvert(), nb::arg(), nb::arg().none(), nb::keep_alive<1, 2>(),
             nb::keep_alive<1, 3>())
        // Latency, energy and power (3, P, N), kinds of latency and energy (2, P, N), and lower ends of latency (P, N)
        // on a problem, as in `copied_costs`.
        .def(
            "costs",
            [](const Ranking& of, int64_t problem, int64_t first_point, int64_t end_point, int64_t first, int64_t end) {
                require(problem >= 0 && problem < of.problems && first_point >= 0 && first_point <= end_point &&
                            end_point <= of.points && first >= 0 && first <= end && end <= of.count,
                        "costs: expected points and candidates");
                auto [values, kinds] = of.copied_costs(first_point, end_point, first, end);
                const size_t points = size_t(end_point - first_point), size = size_t(end - first);
                std::vector<double> lows;
                for (int64_t point = first_point; point < end_point; point++)
                    for (int64_t place = first; place < end; place++) lows.push_back(of.low_s(problem, point, place));
                return nb::make_tuple(numpy<double, 3>(std::move(values), {3, points, size}),
                                      numpy<int32_t, 3>(std::move(kinds), {2, points, size}),
                                      numpy<double, 2>(std::move(lows), {points, size}));
            })
        // Costs according to the analytical model, (kCostRows, points, C).
        .def_prop_ro("limited",
                     [](const Ranking& of) {
                         std::vector<double> costs;
                         for (int64_t row = 0; row < costs::kCostRows; row++)
                             for (int64_t point = 0; point < of.points; point++)
                                 for (int64_t place = 0; place < of.count; place++)
                                     costs.push_back(of.limited(row, point, place));
                         return numpy<double, 3>(std::move(costs),
                                                 {size_t(costs::kCostRows), size_t(of.points), size_t(of.count)});
                     })
        .def_prop_ro("kinds", [](Ranking& of) { return view_of(of.kinds); })
        .def_prop_ro("risk", [](Ranking& of) { return View<double>(of.risk.data(), {of.risk.size()}); })
        .def_prop_ro("violated", &violated)
        // Fields of `Shrinkage` of a kernel on a problem.
        .def("shrinkage",
             [](const Ranking& of, size_t kernel, size_t problem) {
                 const Shrinkage& own = of.kernels.at(kernel).shrinkages.at(problem);
                 const Reference& reference = own.reference;
                 return nb::make_tuple(reference.origin, reference.latency_s, reference.deviation,
                                       reference.transferred, own.lead, own.share, own.deviation);
             })
        // Violations of a problem (kernel -1), or of a kernel's corrected costs: numbers of refused and raised
        // candidates, the first refused time and its bound, and whether the analytical model replaced refused costs.
        .def("violations",
             [](const Ranking& of, int64_t kernel, size_t problem) {
                 const auto& all = kernel < 0 ? of.violations : of.kernels.at(size_t(kernel)).violations;
                 const Violations& here = all.at(problem);
                 return nb::make_tuple(here.refused, here.raised, here.seconds, here.least_s, kernel >= 0);
             })
        .def("row_kinds", [](const Ranking& of, size_t kernel) { return of.kernels.at(kernel).row_kinds; })
        .def("running", &Ranking::running);
    module.attr("DEVIATIONS") = kDeviations;
    module.attr("OWN_SHARE") = kOwnShare;
});

}  // namespace
}  // namespace kernrec::query
