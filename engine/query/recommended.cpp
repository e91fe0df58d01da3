// Answers from ranked candidates: selection, rows of similar configs, ranks, and the figures of each recommendation.
#include <algorithm>
#include <map>
#include <unordered_map>

#include "ranking.h"

namespace kernrec::query {
namespace {

// Configs are alike if their costs differ by at most this fraction. Repeated measurements differ by 0.5 to 1 %.
constexpr double kSame = 0.005;
// Number of candidates examined per requested row, because most of the best candidates are alike.
constexpr int64_t kListed = 8;
constexpr int64_t kWhole = 1 << 20;  // exceeds the size of any front
// A power limit is the bottleneck if it lowers the clock below this fraction of the boost clock.
constexpr double kHeld = 0.95;
// Indices in `RESOURCES` of kernrec/model/analytical/launch_time.py, followed by the power limit.
constexpr int64_t kDram = kPipes + 2, kLaunchOverhead = kPipes + 3, kPowerLimit = kPipes + 4;

struct Place {
    const Ranking::Segment* segment;
    int64_t own;   // position within the kernel on the problem
    int64_t place; // among all candidates
};

Place locate(const std::vector<Ranking::Segment>& segments, int64_t position) {
    for (const Ranking::Segment& each : segments) {
        if (position >= 0 && position < each.size) return {&each, position, each.first + position};
        position -= each.size;
    }
    throw nb::index_error("position: no such candidate");
}

}  // namespace

std::vector<Rank> ranks_of(const std::vector<Deciding>& deciding, const std::vector<bool>& exact) {
    std::vector<Rank> ranks;
    std::vector<uint8_t> tied(deciding.size() + 1, 0);
    size_t leader = deciding.size();  // best of the tie: neighbors may overlap although the ends do not
    for (size_t i = 0; i < deciding.size(); i++) {
        ranks.push_back({int64_t(i) + 1, exact[i], false});
        if (!exact[i]) continue;
        if (leader < deciding.size() && deciding[leader].overlaps(deciding[i])) {
            ranks[i].number = ranks[leader].number;
            tied[size_t(ranks[i].number)] = 1;
        } else {
            leader = i;
        }
    }
    for (size_t i = 0; i < deciding.size(); i++) {
        const bool follows = i > 0 && deciding[i - 1].overlaps(deciding[i]);
        const bool precedes = i + 1 < deciding.size() && deciding[i].overlaps(deciding[i + 1]);
        ranks[i].ambiguous = exact[i] ? tied[size_t(ranks[i].number)] != 0 : follows || precedes;
    }
    return ranks;
}

std::vector<Ranking::Segment> Ranking::segments(const Part& part) const {
    require(part.problem >= 0 && part.problem < problems_ && part.first_kernel >= 0 &&
                part.end_kernel <= int64_t(kernels_.size()) && part.first_point >= 0 &&
                part.first_point < part.end_point && part.end_point <= points_,
            "part: expected a problem, kernels and points of the candidates");
    std::vector<Segment> result;
    for (int64_t number = part.first_kernel; number < part.end_kernel; number++) {
        const Costs::Part& own = *kernels_[size_t(number)].part;
        const int64_t start = own.starts[size_t(part.problem)], end = own.starts[size_t(part.problem) + 1];
        if (end > start) result.push_back({number, own.first + start, end - start});
    }
    return result;
}

bool Ranking::any_ran(const Part& part) const {
    for (const Segment& own : segments(part))
        if (kernels_[size_t(own.kernel)].ran()) return true;
    return false;
}

bool Ranking::any_measured(const Part& part) const {
    for (const Segment& own : segments(part))
        if (kernels_[size_t(own.kernel)].most_measured > 0) return true;
    return false;
}

int64_t Ranking::fastest(const Part& part) const {
    const bool risky = any_ran(part);
    int64_t best = 0, position = 0;
    double least = kInfinity;
    for (const Segment& own : segments(part))
        for (int64_t place = own.first; place < own.first + own.size; place++, position++)
            if (const double cost = value(kSeconds, part.first_point, place) * (risky ? risk_[size_t(place)] : 1.0);
                cost < least)
                best = position, least = cost;
    return best;
}

std::pair<int64_t, double> Ranking::fastest_kernel(const Part& part) const {
    const std::vector<Segment> own = segments(part);
    const Place best = locate(own, fastest(part));
    return {best.segment->kernel, value(kSeconds, part.first_point, best.place)};
}

std::vector<Pick> Ranking::select(const Part& part, const Bounds& bounds, int64_t first) const {
    const std::vector<Segment> own = segments(part);
    int64_t count = 0;
    for (const Segment& each : own) count += each.size;
    require(count > 0 && first >= 0 && first < part.end_point - part.first_point, "select: expected candidates");
    const bool risky = any_ran(part), several = part.end_point - part.first_point - first > 1;
    const bool measured = several && any_measured(part), bounded = query::bounded(bounds);
    // On a front, skip candidates without an estimate at a point.
    const bool every = bounded || bounds.objective != Objective::kPareto;
    PickCosts costs;
    costs.count = count;
    const size_t most = every ? size_t(count * (part.end_point - part.first_point - first)) : 0;
    costs.latency.reserve(most), costs.energy.reserve(most);
    int64_t start = 0;  // number of the segment's first candidate
    // Costs of the fastest candidate so far, and of the candidate with the lowest energy.
    double least_s = kInfinity, its_j = kInfinity, least_j = kInfinity, its_s = kInfinity;
    for (int64_t point = part.first_point + first; point < part.end_point; point++)
        for (const Segment& each : own) {
            const auto add = [&](int64_t place, int64_t index) {
                if (every) index = estimate(point, place);
                const double seconds = estimated(kSeconds, index);
                if (!every && !(seconds < kInfinity)) return;
                double factor = risky ? risk_[size_t(place)] : 1.0, source = 0.0;
                if (measured || bounded) source = figures(kSeconds, point, place)[EstimateKind::kSource];
                // A limit above the power draw has the same prediction as the default limit. Prefer the measured point.
                if (measured && source == kMeasured) factor *= 1.0 - 1e-9;
                const double cost_s = seconds * factor, cost_j = estimated(kJoules, index) * factor;
                if (!every) {
                    // Either of the two may exclude a candidate from the front, without a copy of all costs.
                    if ((cost_s >= least_s && cost_j > its_j) || (cost_j >= least_j && cost_s > its_s)) return;
                    if (cost_s <= least_s) least_s = cost_s, its_j = cost_j;
                    if (cost_j <= least_j) least_j = cost_j, its_s = cost_s;
                    costs.places.push_back(start + place - each.first);
                }
                costs.add(cost_s, cost_j, bounded ? estimated(kWatts, index) : 0.0, source, bounded);
            };
            each_estimated(every ? 0 : point, each.first, each.first + each.size, add);
            start += each.size;
        }
    std::vector<Pick> picks = query::select(std::move(costs), bounds);
    for (Pick& pick : picks) pick.point += first;
    return picks;
}

nb::object Ranking::saving(const Part& part, int64_t position, double most_slowdown, double least_saved) const {
    const int64_t place = locate(segments(part), position).place, first = part.first_point;
    int64_t best = -1;
    double best_slowdown = 0.0, best_saved = 0.0;
    for (int64_t point = first + 1; point < part.end_point; point++) {
        const double slowdown = value(kSeconds, point, place) / value(kSeconds, first, place) - 1.0;
        const double saved = 1.0 - value(kJoules, point, place) / value(kJoules, first, place);
        if (slowdown <= most_slowdown && saved >= least_saved && (best < 0 || saved > best_saved))
            best = point - first, best_slowdown = slowdown, best_saved = saved;
    }
    if (best < 0) return nb::none();
    return nb::make_tuple(best, best_slowdown, best_saved);
}

nb::tuple Ranking::nominal(const Part& part, int64_t position) const {
    const std::vector<Segment> own = segments(part);
    const Place located = locate(own, position);
    const Table<const double> costs = costs_->nominal(located.place, 1);
    return nb::make_tuple(located.segment->kernel, costs(0, 0), costs(1, 0), costs(2, 0), costs(3, 0), costs(4, 0));
}

bool Ranking::violated() const {
    const auto any = [](const std::vector<Violations>& all) {
        return std::any_of(all.begin(), all.end(),
                           [](const Violations& each) { return each.refused + each.raised > 0; });
    };
    return any(violations_) ||
           std::any_of(kernels_.begin(), kernels_.end(), [&](const Kernel& each) { return any(each.violations); });
}

double Ranking::cost(Cost quantity, const Part& part, const std::vector<Segment>& own, const Pick& pick) const {
    return value(quantity, part.first_point + pick.point, locate(own, pick.position).place);
}

std::vector<Pick> Ranking::three_points(const Part& part, const std::vector<Segment>& own,
                                        const std::vector<Pick>& picks) const {
    struct Points {
        size_t first, last, balanced;
        double least_edp;
    };
    std::unordered_map<int64_t, Points> by_config;
    for (size_t i = 0; i < picks.size(); i++) {
        const double edp = cost(kSeconds, part, own, picks[i]) * cost(kJoules, part, own, picks[i]);
        Points& points = by_config.try_emplace(picks[i].position, Points{i, i, i, edp}).first->second;
        points.last = i;
        if (edp < points.least_edp) points.balanced = i, points.least_edp = edp;
    }
    std::vector<uint8_t> kept(picks.size(), 0);
    for (const auto& [position, points] : by_config) kept[points.first] = kept[points.balanced] = kept[points.last] = 1;
    std::vector<Pick> some;
    for (size_t i = 0; i < picks.size(); i++)
        if (kept[i]) some.push_back(picks[i]);
    return some;
}

std::vector<std::pair<Pick, int64_t>> Ranking::merged(const Part& part, const std::vector<Segment>& own,
                                                      const std::vector<Pick>& picks, Objective objective, int64_t top,
                                                      bool by_code) const {
    std::map<std::pair<int64_t, int64_t>, std::vector<size_t>> leaders;  // rows by kernel and point
    std::vector<std::pair<size_t, int64_t>> alike;  // rows with their numbers of similar configs
    std::vector<Place> places;
    std::vector<std::pair<double, double>> logs;
    for (const Pick& pick : picks) {
        places.push_back(locate(own, pick.position));
        const double latency = cost(kSeconds, part, own, pick), energy = cost(kJoules, part, own, pick);
        const double first = std::log(value_of(objective, latency, energy));
        logs.push_back({first, objective == Objective::kPareto ? std::log(energy) : first});
    }
    for (size_t i = 0; i < picks.size(); i++) {
        const Kernel& kernel = kernels_[size_t(places[i].segment->kernel)];
        const query::Kernel& fixed = *kernel.part->kernel;
        const auto row_of = [&](size_t pick) {
            return kernel.part->rows[size_t(places[pick].place - kernel.part->first)];
        };
        const auto same_code = [&](int64_t row, int64_t other) {
            for (int64_t column = 0; column < fixed.codes.columns; column++)
                if (fixed.codes(row, column) != fixed.codes(other, column)) return false;
            return true;
        };
        const auto differences = [&](int64_t row, int64_t other) {
            int64_t count = 0;
            for (const auto& digits : fixed.space->rows().digits) count += digits[size_t(row)] != digits[size_t(other)];
            return count;
        };
        std::vector<size_t>& among = leaders[{places[i].segment->kernel, picks[i].point}];
        const bool is_measured =
            figures(kSeconds, part.first_point + picks[i].point, places[i].place)[EstimateKind::kSource] == kMeasured;
        size_t leader = alike.size();
        for (size_t place = 0; !is_measured && place < among.size() && leader == alike.size(); place++) {
            const size_t other = alike[among[place]].first;
            const bool same = same_code(row_of(i), row_of(other));
            const bool close = std::abs(logs[i].first - logs[other].first) < kSame &&
                               std::abs(logs[i].second - logs[other].second) < kSame;
            if ((same && (by_code || fixed.call)) || (close && (same || differences(row_of(i), row_of(other)) == 1)))
                leader = among[place];
        }
        if (leader < alike.size()) {
            alike[leader].second++;
        } else if (int64_t(alike.size()) < top) {
            if (!is_measured) among.push_back(alike.size());
            alike.push_back({i, 0});
        }
    }
    std::vector<std::pair<Pick, int64_t>> result;
    for (const auto& [i, count] : alike) result.push_back({picks[i], count});
    return result;
}

std::vector<std::pair<Pick, int64_t>> Ranking::rows(const Part& part, const Bounds& bounds, int64_t first,
                                                    bool each_config, bool by_code) const {
    std::vector<std::pair<Pick, int64_t>> result;
    const bool front = bounds.objective == Objective::kPareto;
    Bounds wider = bounds;
    if (bounds.top > 1 && !each_config) wider.top = front ? kWhole : kListed * bounds.top;
    std::vector<Pick> picks = select(part, wider, first);
    if (bounds.top == 1 || each_config) {
        for (const Pick& pick : picks) result.push_back({pick, 0});
        return result;
    }
    const std::vector<Segment> own = segments(part);
    if (front) picks = three_points(part, own, picks);
    result = merged(part, own, picks, bounds.objective, front ? kWhole : bounds.top, by_code);
    if (!front || int64_t(result.size()) <= bounds.top) return result;
    std::vector<double> latency, energy;
    std::vector<int64_t> every;
    for (const auto& row : result) {
        every.push_back(int64_t(every.size()));
        latency.push_back(cost(kSeconds, part, own, row.first)), energy.push_back(cost(kJoules, part, own, row.first));
    }
    std::vector<std::pair<Pick, int64_t>> some;
    const int64_t size = int64_t(latency.size());
    for (const int64_t i : spread(every, {latency.data(), size}, {energy.data(), size}, bounds.top))
        some.push_back(result[size_t(i)]);
    return some;
}

std::vector<Pick> Ranking::best_of_other_kind(const Part& part, const std::vector<Pick>& picks, const Bounds& bounds,
                                              int64_t first) const {
    const std::vector<Segment> own = segments(part);
    require(first >= 0, "first: expected an operating point");
    bool missing[2] = {true, true};
    for (const Pick& pick : picks) missing[kernels_[size_t(locate(own, pick.position).segment->kernel)].triton] = false;
    const Objective objective = bounds.objective == Objective::kPareto ? Objective::kLatency : bounds.objective;
    double least = kInfinity;
    Pick best{-1, -1};
    int64_t start = 0;
    for (const Segment& each : own) {
        if (missing[kernels_[size_t(each.kernel)].triton])
            for (int64_t point = first; point < part.end_point - part.first_point; point++)
                each_estimated(
                    part.first_point + point, each.first, each.first + each.size, [&](int64_t place, int64_t) {
                        const int64_t at = part.first_point + point;
                        if (!(value(kWatts, at, place) <= bounds.max_power_w)) return;
                        const double cost = value_of(objective, value(kSeconds, at, place), value(kJoules, at, place));
                        if (cost < least || (cost == least && std::isfinite(cost) && point < best.point))
                            least = cost, best = {point, start + place - each.first};
                    });
        start += each.size;
    }
    if (best.point < 0) return {};
    return {best};
}

std::pair<double, int64_t> Ranking::running(size_t kernel, int64_t point, int64_t place) const {
    require(kernel < kernels_.size() && point >= 0 && point < points_ && place >= 0 && place < count_,
            "running: expected a candidate");
    const double clock_hz = limited(costs::kClockHz, point, place);
    int64_t resource = int64_t(costs_->longest_resource(place));
    if (resource != kLaunchOverhead) {
        const Table<const double> nominal = costs_->nominal(place, 1);
        // The nominal time of the core is for the boost clock, so convert it to the actual clock.
        const double faster = clock_hz / kernels_[kernel].part->kernel->launches[0]->device().clock_hz;
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

nb::tuple Ranking::described(const Pick& pick, const std::vector<Segment>& own, const Part& part, int64_t alike,
                             const Rank& rank, double fastest_s, int64_t fastest, const nb::tuple& sources) const {
    const Place located = locate(own, pick.position);
    const size_t number = size_t(located.segment->kernel);
    const Costs::Part& of_kernel = *kernels_[number].part;
    const int64_t point = part.first_point + pick.point;
    const auto estimate = [&](int64_t quantity) {
        const double expected = value(quantity, point, located.place);
        const double* const of = figures(quantity, point, located.place);
        const double low =
            quantity == kSeconds ? low_s(part.problem, point, located.place) : expected / of[EstimateKind::kBelow];
        return nb::make_tuple(expected, low, expected * of[EstimateKind::kAbove],
                              sources[size_t(of[EstimateKind::kSource])], of[EstimateKind::kOwn]);
    };
    const auto [clock_hz, resource] = running(number, point, located.place);
    const double risk = risk_[size_t(located.place)], latency_s = value(kSeconds, point, located.place);
    const int64_t row = of_kernel.rows[size_t(located.place - of_kernel.first)];
    const int64_t heuristic = located.segment->first + of_kernel.picks[size_t(part.problem)];
    return nb::make_tuple(
        number, pick.position, of_kernel.kernel->space->config(row), pick.point, rank.number, rank.exact,
        rank.ambiguous, estimate(kSeconds), estimate(kJoules), value(kWatts, point, located.place), clock_hz, resource,
        of_kernel.kernel->occupancy[size_t(row)],
        nb::make_tuple(value(kSeconds, part.first_point, heuristic), value(kJoules, part.first_point, heuristic)),
        alike, risk, latency_s < fastest_s && pick.position != fastest && pick.point == 0 && risk > 1.0);
}

nb::tuple Ranking::described(const Part& part, const std::vector<Pick>& picks, const std::vector<int64_t>& alike,
                             int64_t ranked, Objective objective, const nb::tuple& sources) const {
    require(sources.size() == size_t(kMeasured) + 1, "sources: expected a name of each");
    require(alike.size() == picks.size() && ranked <= int64_t(picks.size()),
            "described: expected a count of each pick");
    for (const Pick& pick : picks)
        require(pick.point >= 0 && pick.point < part.end_point - part.first_point, "picks: expected operating points");
    const std::vector<Segment> own = segments(part);
    const int64_t best = fastest(part), best_place = locate(own, best).place;
    const double fastest_s = value(kSeconds, part.first_point, best_place);
    const size_t first_quantity = objective == Objective::kEnergy,
                 end_quantity = objective == Objective::kLatency ? 1 : 2;
    std::vector<Deciding> deciding;
    std::vector<bool> exact;
    std::vector<int64_t> numbers;
    bool any_exact = false, many_kernels = false;
    for (int64_t i = 0; i < ranked; i++) {
        const Place located = locate(own, picks[size_t(i)].position);
        bool all = true;
        for (size_t quantity = first_quantity; quantity < end_quantity; quantity++)
            all = all && figures(int64_t(quantity), part.first_point + picks[size_t(i)].point,
                                 located.place)[EstimateKind::kSource] == kMeasured;
        exact.push_back(all), any_exact = any_exact || all;
        numbers.push_back(located.segment->kernel), many_kernels = many_kernels || numbers.back() != numbers[0];
    }
    for (int64_t i = 0; i < ranked; i++) {
        const int64_t point = part.first_point + picks[size_t(i)].point;
        const int64_t place = locate(own, picks[size_t(i)].position).place;
        Deciding each{{}, {}, 0};
        for (size_t quantity = first_quantity; quantity < end_quantity; quantity++) {
            const double expected = value(int64_t(quantity), point, place);
            const double* const of = figures(int64_t(quantity), point, place);
            const double low = expected / of[EstimateKind::kBelow], high = expected * of[EstimateKind::kAbove];
            each.low[each.count] = low, each.high[each.count] = high;
            if (!any_exact) {
                // An error that all configs of a kernel share does not change their order, so only their own errors
                // count. Between kernels, half of the variance of the shared error also counts.
                const double whole = 0.5 * std::log(high / low), mine = of[EstimateKind::kOwn] * of[EstimateKind::kOwn];
                const double variance = mine + (many_kernels ? 0.5 : 0.0) * maximum(whole * whole - mine, 0.0);
                // Two intervals of equal variance overlap exactly if the interval of the costs' ratio contains 1.
                const double factor = std::exp(std::sqrt(0.5 * variance));
                each.low[each.count] = expected / factor, each.high[each.count] = expected * factor;
            }
            each.count++;
        }
        deciding.push_back(each);
    }
    const std::vector<Rank> ranks = ranks_of(deciding, exact);
    nb::list rows, beside;
    for (size_t i = 0; i < picks.size(); i++) {
        const bool has_rank = int64_t(i) < ranked;
        (has_rank ? rows : beside)
            .append(described(picks[i], own, part, alike[i], has_rank ? ranks[i] : Rank{1, false, true}, fastest_s,
                              best, sources));
    }
    return nb::make_tuple(rows, beside, nb::make_tuple(fastest_s, value(kJoules, part.first_point, best_place)));
}

nb::tuple Ranking::recommended(const Part& part, const Bounds& bounds, int64_t first, bool each_config, bool by_code,
                               bool other_kind, const nb::tuple& sources) const {
    std::vector<Pick> picks;
    std::vector<int64_t> alike;
    for (const auto& [pick, count] : rows(part, bounds, first, each_config, by_code))
        picks.push_back(pick), alike.push_back(count);
    const int64_t ranked = int64_t(picks.size());
    if (other_kind)
        for (const Pick& pick : best_of_other_kind(part, picks, bounds, first)) picks.push_back(pick);
    alike.resize(picks.size());
    return described(part, picks, alike, ranked, bounds.objective, sources);
}

}  // namespace kernrec::query
