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

// Interval of each cost that decides a rank: latency, energy or both.
struct Deciding {
    bool exact;  // all of these costs were measured
    std::vector<std::pair<double, double>> intervals;

    bool overlaps(const Deciding& other) const {
        for (size_t i = 0; i < intervals.size(); i++)
            if (intervals[i].first > other.intervals[i].second || other.intervals[i].first > intervals[i].second)
                return false;
        return true;
    }
};

// Rank of a recommendation. Measured recommendations share a rank if their intervals overlap. A rank is ambiguous if
// the interval overlaps that of a neighbor.
struct Rank {
    int64_t number;
    bool ambiguous;
};

// Return the rank of each recommendation, best first.
std::vector<Rank> ranks_of(const std::vector<Deciding>& deciding) {
    std::vector<Rank> ranks;
    std::vector<uint8_t> tied(deciding.size() + 1, 0);
    size_t leader = deciding.size();  // best of the tie: neighbors may overlap although the ends do not
    for (size_t i = 0; i < deciding.size(); i++) {
        ranks.push_back({int64_t(i) + 1, false});
        if (!deciding[i].exact) continue;
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
        ranks[i].ambiguous = deciding[i].exact ? tied[size_t(ranks[i].number)] != 0 : follows || precedes;
    }
    return ranks;
}

// Candidates of one problem: the configs of a range of kernels, at a range of operating points. A position is an index
// among the candidates of all these kernels.
struct Candidates {
    Candidates(const Ranking& ranking, int64_t problem, int64_t first_kernel, int64_t end_kernel, int64_t first_point,
               int64_t end_point)
        : of_(ranking), problem_(problem), first_point_(first_point), points_(end_point - first_point) {
        require(problem >= 0 && problem < of_.problems && first_kernel >= 0 &&
                    end_kernel <= int64_t(of_.kernels.size()) && first_point >= 0 && points_ > 0 &&
                    end_point <= of_.points,
                "candidates: expected a problem, kernels and points of the ranking");
        for (size_t number = size_t(first_kernel); number < size_t(std::max(end_kernel, first_kernel)); number++) {
            const Ranking::Kernel& kernel = of_.kernels[number];
            const int64_t first = kernel.first(problem), size = kernel.first(problem + 1) - first;
            if (size == 0) continue;
            segments_.push_back({&kernel, number, count, first, size});
            count += size;
            any_ran = any_ran || kernel.ran(), any_measured = any_measured || kernel.most_measured > 0;
        }
    }

    // Return the position of the candidate with the lowest latency times risk at the first point.
    int64_t fastest() const {
        int64_t best = 0;
        double least = kInfinity;
        for (const Segment& own : segments_)
            for (int64_t place = own.first; place < own.first + own.size; place++)
                if (const double cost =
                        of_.value(kSeconds, first_point_, place) * (any_ran ? of_.risk[size_t(place)] : 1.0);
                    cost < least)
                    best = own.start + place - own.first, least = cost;
        return best;
    }

    // Return the number of the fastest candidate's kernel, and its latency.
    std::pair<size_t, double> fastest_kernel() const {
        const Pick best{0, fastest()};
        return {locate(best.position).segment.number, value(kSeconds, best)};
    }

    std::vector<Pick> select(const Bounds& bounds, int64_t first) const {
        require(count > 0 && first >= 0 && first < points_ && bounds.top > 0, "select: expected candidates");
        const bool measured = any_measured && points_ - first > 1, bounded = query::bounded(bounds);
        // On a front, skip candidates without an estimate at a point.
        const bool every = bounded || bounds.objective != Objective::kPareto;
        PickCosts costs;
        costs.count = count;
        const size_t most = every ? size_t(count * (points_ - first)) : 0;
        costs.latency.reserve(most), costs.energy.reserve(most);
        // Costs of the fastest candidate so far, and of the candidate with the lowest energy.
        double least_s = kInfinity, its_j = kInfinity, least_j = kInfinity, its_s = kInfinity;
        for (int64_t point = first_point_ + first; point < first_point_ + points_; point++)
            for (const Segment& each : segments_) {
                const auto add = [&](int64_t place, int64_t index) {
                    if (every) index = of_.estimate(point, place);
                    const double seconds = of_.estimated(kSeconds, index);
                    if (!every && !(seconds < kInfinity)) return;
                    double factor = any_ran ? of_.risk[size_t(place)] : 1.0, source = 0.0;
                    if (measured || bounded) source = of_.kind_of(kSeconds, point, place)[EstimateKind::kSource];
                    // A limit above the power draw has the same prediction as the default limit. Prefer the measured
                    // point.
                    if (measured && source == kMeasured) factor *= 1.0 - 1e-9;
                    const double cost_s = seconds * factor, cost_j = of_.estimated(kJoules, index) * factor;
                    if (!every) {
                        // Either of the two may exclude a candidate from the front, without a copy of all costs.
                        if ((cost_s >= least_s && cost_j > its_j) || (cost_j >= least_j && cost_s > its_s)) return;
                        if (cost_s <= least_s) least_s = cost_s, its_j = cost_j;
                        if (cost_j <= least_j) least_j = cost_j, its_s = cost_s;
                        costs.places.push_back((point - first_point_) * count + each.start + place - each.first);
                    }
                    costs.latency.push_back(cost_s), costs.energy.push_back(cost_j);
                    if (bounded) costs.power.push_back(of_.estimated(kWatts, index)), costs.source.push_back(source);
                };
                of_.each_estimated(every ? 0 : point, each.first, each.first + each.size, add);
            }
        std::vector<Pick> picks = query::select(std::move(costs), bounds);
        if (every)
            for (Pick& pick : picks) pick.point += first;
        return picks;
    }

    // Return (operating point, slowdown, fraction of energy saved) of a candidate: the point that saves the most energy
    // within `most_slowdown`. Return None if no point saves `least_saved`.
    nb::object saving(int64_t position, double most_slowdown, double least_saved) const {
        int64_t best = 0;
        double best_slowdown = 0.0, best_saved = 0.0;
        for (int64_t point = 1; point < points_; point++) {
            const double slowdown = value(kSeconds, {point, position}) / value(kSeconds, {0, position}) - 1.0;
            const double saved = 1.0 - value(kJoules, {point, position}) / value(kJoules, {0, position});
            if (slowdown <= most_slowdown && saved >= least_saved && (best == 0 || saved > best_saved))
                best = point, best_slowdown = slowdown, best_saved = saved;
        }
        if (best == 0) return nb::none();
        return nb::make_tuple(best, best_slowdown, best_saved);
    }

    // Return the number of a candidate's kernel, and its fields of `NominalCosts`.
    nb::tuple nominal(int64_t position) const {
        const Place located = locate(position);
        const Table<const double> costs = of_.costs.nominal(located.place, 1);
        return nb::make_tuple(located.segment.number, costs(0, 0), costs(1, 0), costs(2, 0), costs(3, 0), costs(4, 0));
    }

    // Return the figures of the recommendations, of the best kernel of the other kind if `other_kind` is true, and the
    // costs of the fastest candidate. The figures are those that `rows_of` in kernrec/recommender/select.py lists.
    // by_code: merge all configs with the same machine code.
    nb::tuple recommended(const Bounds& bounds, int64_t first, bool each_config, bool by_code, bool other_kind,
                          const nb::tuple& sources) const {
        std::vector<Row> recommended = rows(bounds, first, each_config, by_code);
        const size_t ranked = recommended.size();
        if (other_kind) add_other_kind(recommended, bounds, first);
        return described(recommended, ranked, bounds.objective, sources);
    }

    nb::tuple described(int64_t point, int64_t position, const nb::tuple& sources) const {
        return described({{{point, position}, 0}}, 0, Objective::kLatency, sources);
    }

    int64_t count = 0;
    bool any_ran = false, any_measured = false;  // whether any kernel ran on this GPU, or was measured on the problem

    // Return the number of each kernel with candidates, and the position of its first candidate.
    std::vector<std::pair<size_t, int64_t>> starts() const {
        std::vector<std::pair<size_t, int64_t>> result;
        for (const Segment& each : segments_) result.push_back({each.number, each.start});
        return result;
    }

  private:
    // Candidates of one kernel: `size` candidates, from position `start` and from index `first` among all candidates of
    // the ranking.
    struct Segment {
        const Ranking::Kernel* kernel;
        size_t number;  // of the kernel
        int64_t start, first, size;
    };
    struct Place {
        const Segment& segment;
        int64_t place;  // among all candidates of the ranking
    };
    // Recommended pick, and the number of similar configs.
    struct Row {
        Pick pick;
        int64_t alike;
    };

    Place locate(int64_t position) const {
        for (const Segment& each : segments_)
            if (position >= each.start && position < each.start + each.size)
                return {each, each.first + position - each.start};
        throw nb::index_error("position: no such candidate");
    }

    double value(Cost quantity, const Pick& pick) const {
        return of_.value(quantity, first_point_ + pick.point, locate(pick.position).place);
    }

    // Return the picks of a query.
    std::vector<Row> rows(const Bounds& bounds, int64_t first, bool each_config, bool by_code) const {
        const bool front = bounds.objective == Objective::kPareto, merges = bounds.top > 1 && !each_config;
        Bounds wider = bounds;
        if (merges) wider.top = front ? kWhole : kListed * bounds.top;
        std::vector<Pick> picks = select(wider, first);
        std::vector<Row> result;
        if (!merges) {
            for (const Pick& pick : picks) result.push_back({pick, 0});
            return result;
        }
        if (front) picks = three_points(picks);
        result = merged(picks, bounds.objective, front ? kWhole : bounds.top, by_code);
        if (!front || int64_t(result.size()) <= bounds.top) return result;
        std::vector<double> latency, energy;
        std::vector<int64_t> every;
        for (const Row& row : result) {
            every.push_back(int64_t(every.size()));
            latency.push_back(value(kSeconds, row.pick)), energy.push_back(value(kJoules, row.pick));
        }
        std::vector<Row> some;
        for (const int64_t i : spread(every, latency, energy, bounds.top)) some.push_back(result[size_t(i)]);
        return some;
    }

    // Keep at most three points of each config on a front: lowest latency, lowest energy and lowest EDP.
    std::vector<Pick> three_points(const std::vector<Pick>& picks) const {
        struct Points {
            size_t first, last, balanced;
            double least_edp;
        };
        std::unordered_map<int64_t, Points> by_config;
        for (size_t i = 0; i < picks.size(); i++) {
            const double edp = value(kSeconds, picks[i]) * value(kJoules, picks[i]);
            Points& points = by_config.try_emplace(picks[i].position, Points{i, i, i, edp}).first->second;
            points.last = i;
            if (edp < points.least_edp) points.balanced = i, points.least_edp = edp;
        }
        std::vector<Pick> some;
        for (size_t i = 0; i < picks.size(); i++)
            if (const Points& points = by_config.at(picks[i].position);
                i == points.first || i == points.balanced || i == points.last)
                some.push_back(picks[i]);
        return some;
    }

    // Merge similar picks, and return at most `top` rows.
    std::vector<Row> merged(const std::vector<Pick>& picks, Objective objective, int64_t top, bool by_code) const {
        std::map<std::pair<size_t, int64_t>, std::vector<size_t>> leaders;  // rows by kernel and point
        std::vector<size_t> numbers;  // pick of each row
        std::vector<Row> result;
        std::vector<int64_t> configs;
        std::vector<std::pair<double, double>> logs;
        for (const Pick& pick : picks) {
            const auto [segment, place] = locate(pick.position);
            const Kernel& kernel = *segment.kernel->part->kernel;
            const int64_t row = config(segment, place);
            const double latency = value(kSeconds, pick), energy = value(kJoules, pick);
            const double cost = std::log(value_of(objective, latency, energy));
            const std::pair<double, double> log{cost, objective == Objective::kPareto ? std::log(energy) : cost};
            std::vector<size_t>& among = leaders[{segment.number, pick.point}];
            const bool is_measured =
                of_.kind_of(kSeconds, first_point_ + pick.point, place)[EstimateKind::kSource] == kMeasured;
            const auto similar = [&, row = row, &kernel = kernel](size_t leader) {
                const size_t other = numbers[leader];
                const bool same = same_code(kernel, row, configs[other]);
                const bool close = std::abs(log.first - logs[other].first) < kSame &&
                                   std::abs(log.second - logs[other].second) < kSame;
                return (same && (by_code || kernel.call)) ||
                       (close && (same || differences(kernel, row, configs[other]) == 1));
            };
            const auto leader = is_measured ? among.end() : std::find_if(among.begin(), among.end(), similar);
            if (leader != among.end()) {
                result[*leader].alike++;
            } else if (int64_t(result.size()) < top) {
                if (!is_measured) among.push_back(result.size());
                numbers.push_back(configs.size());
                result.push_back({pick, 0});
            }
            configs.push_back(row), logs.push_back(log);
        }
        return result;
    }

    // Return a candidate's config in the kernel's space.
    static int64_t config(const Segment& segment, int64_t place) {
        const Costs::Part& part = *segment.kernel->part;
        return part.rows[size_t(place - part.first)];
    }

    static bool same_code(const Kernel& kernel, int64_t row, int64_t other) {
        for (int64_t column = 0; column < kernel.codes.columns; column++)
            if (kernel.codes(row, column) != kernel.codes(other, column)) return false;
        return true;
    }

    static int64_t differences(const Kernel& kernel, int64_t row, int64_t other) {
        int64_t count = 0;
        for (const auto& digits : kernel.space.rows.digits) count += digits[size_t(row)] != digits[size_t(other)];
        return count;
    }

    // Add the best CUDA kernel if all rows are Triton kernels, or the best Triton kernel if none is.
    void add_other_kind(std::vector<Row>& rows, const Bounds& bounds, int64_t first) const {
        bool missing[2] = {true, true};
        for (const Row& row : rows) missing[locate(row.pick.position).segment.kernel->triton] = false;
        const Objective objective = bounds.objective == Objective::kPareto ? Objective::kLatency : bounds.objective;
        double least = kInfinity;
        Pick best{-1, -1};
        for (const Segment& each : segments_)
            for (int64_t point = first; point < points_ && missing[each.kernel->triton]; point++) {
                const int64_t at = first_point_ + point;
                of_.each_estimated(at, each.first, each.first + each.size, [&](int64_t place, int64_t) {
                    if (!(of_.value(kWatts, at, place) <= bounds.max_power_w)) return;
                    const double cost =
                        value_of(objective, of_.value(kSeconds, at, place), of_.value(kJoules, at, place));
                    if (cost < least || (cost == least && std::isfinite(cost) && point < best.point))
                        least = cost, best = {point, each.start + place - each.first};
                });
            }
        if (best.point >= 0) rows.push_back({best, 0});
    }

    // Return the interval that decides the rank of an estimate that was not measured.
    //
    // An error that all configs of a kernel share does not change their order, so only their own errors count. Between
    // kernels, half of the variance of the shared error also counts.
    static std::pair<double, double> own_interval(double value, double low, double high, double own,
                                                  bool many_kernels) {
        const double whole = 0.5 * std::log(high / low), mine = own * own;
        const double variance = mine + (many_kernels ? 0.5 : 0.0) * maximum(whole * whole - mine, 0.0);
        // Two intervals of equal variance overlap exactly if the interval of the costs' ratio contains 1.
        const double factor = std::exp(std::sqrt(0.5 * variance));
        return {value / factor, value * factor};
    }

    // Describe the first `ranked` rows, all other rows, and the fastest candidate.
    nb::tuple described(const std::vector<Row>& rows, size_t ranked, Objective objective,
                        const nb::tuple& sources) const {
        require(sources.size() == size_t(kMeasured) + 1, "sources: expected a name of each");
        const int64_t fastest = this->fastest();
        const double fastest_s = value(kSeconds, {0, fastest});
        const int64_t first_quantity = objective == Objective::kEnergy,
                      end_quantity = objective == Objective::kLatency ? 1 : 2;
        std::vector<Deciding> deciding;
        bool any_exact = false, many_kernels = false;
        const auto kind_of = [&](int64_t quantity, const Pick& pick) {
            return of_.kind_of(quantity, first_point_ + pick.point, locate(pick.position).place);
        };
        for (size_t i = 0; i < ranked; i++) {
            const Pick& pick = rows[i].pick;
            bool exact = true;
            for (int64_t quantity = first_quantity; quantity < end_quantity; quantity++)
                exact = exact && kind_of(quantity, pick)[EstimateKind::kSource] == kMeasured;
            deciding.push_back({exact, {}}), any_exact = any_exact || exact;
            many_kernels =
                many_kernels || locate(pick.position).segment.number != locate(rows[0].pick.position).segment.number;
        }
        for (size_t i = 0; i < ranked; i++)
            for (int64_t quantity = first_quantity; quantity < end_quantity; quantity++) {
                const double expected = value(Cost(quantity), rows[i].pick);
                const double* const of = kind_of(quantity, rows[i].pick);
                const double low = expected / of[EstimateKind::kBelow], high = expected * of[EstimateKind::kAbove];
                deciding[i].intervals.push_back(
                    any_exact ? std::pair{low, high}
                              : own_interval(expected, low, high, of[EstimateKind::kOwn], many_kernels));
            }
        const std::vector<Rank> ranks = ranks_of(deciding);
        nb::list recommended, beside;
        for (size_t i = 0; i < rows.size(); i++) {
            const Pick& pick = rows[i].pick;
            require(pick.point >= 0 && pick.point < points_, "picks: expected operating points");
            const auto [segment, place] = locate(pick.position);
            const Costs::Part& part = *segment.kernel->part;
            const int64_t point = first_point_ + pick.point, row = config(segment, place);
            const int64_t heuristic = segment.first + part.picks[size_t(problem_)];
            const Rank rank = i < ranked ? ranks[i] : Rank{1, true};
            const bool exact = i < ranked && deciding[i].exact;
            const auto [clock_hz, resource] = of_.running(segment.number, point, place);
            const double risk = of_.risk[size_t(place)];
            (i < ranked ? recommended : beside)
                .append(nb::make_tuple(segment.number, pick.position, part.kernel->space.config(row), pick.point,
                                       rank.number, exact, rank.ambiguous, estimate(kSeconds, point, place, sources),
                                       estimate(kJoules, point, place, sources), of_.value(kWatts, point, place),
                                       clock_hz, resource, part.kernel->occupancy[row],
                                       nb::make_tuple(of_.value(kSeconds, first_point_, heuristic),
                                                      of_.value(kJoules, first_point_, heuristic)),
                                       rows[i].alike, risk,
                                       of_.value(kSeconds, point, place) < fastest_s && pick.position != fastest &&
                                           pick.point == 0 && risk > 1.0));
        }
        return nb::make_tuple(recommended, beside, nb::make_tuple(fastest_s, value(kJoules, {0, fastest})));
    }

    // Return the value, the ends of the interval, the source, and the half-width of the own error of a cost.
    nb::tuple estimate(int64_t quantity, int64_t point, int64_t place, const nb::tuple& sources) const {
        const double expected = of_.value(quantity, point, place);
        const double* const of = of_.kind_of(quantity, point, place);
        const double low =
            quantity == kSeconds ? of_.low_s(problem_, point, place) : expected / of[EstimateKind::kBelow];
        return nb::make_tuple(expected, low, expected * of[EstimateKind::kAbove],
                              sources[size_t(of[EstimateKind::kSource])], of[EstimateKind::kOwn]);
    }

    const Ranking& of_;
    int64_t problem_, first_point_, points_;
    std::vector<Segment> segments_;
};

using BoundsTuple = std::tuple<int64_t, int64_t, double, double, int64_t>;

// Call a function with the bounds. Return its result, or the lowest power of any candidate if none keeps the bounds.
template <class F>
nb::object within(const BoundsTuple& bounds, F function) {
    const auto& [objective, top, max_power_w, max_slowdown, source] = bounds;
    require(objective >= 0 && objective <= int64_t(Objective::kEdp), "bounds: expected an objective");
    try {
        return function(Bounds{Objective(objective), top, max_power_w, max_slowdown, source});
    } catch (const Unreachable& error) {
        return nb::float_(error.least_w);
    }
}

const Binding kBinding([](nb::module_& module) {
    nb::class_<Candidates>(module, "Candidates")
        .def(nb::init<const Ranking&, int64_t, int64_t, int64_t, int64_t, int64_t>(), nb::keep_alive<1, 2>())
        .def("recommended",
             [](const Candidates& of, const BoundsTuple& bounds, int64_t first, bool each_config, bool by_code,
                bool other_kind, const nb::tuple& sources) {
                 return within(bounds, [&](const Bounds& all) -> nb::object {
                     return of.recommended(all, first, each_config, by_code, other_kind, sources);
                 });
             })
        .def("select",
             [](const Candidates& of, const BoundsTuple& bounds, int64_t first) {
                 return within(bounds, [&](const Bounds& all) -> nb::object {
                     nb::list pairs;
                     for (const Pick& pick : of.select(all, first))
                         pairs.append(nb::make_tuple(pick.point, pick.position));
                     return pairs;
                 });
             })
        .def("described", nb::overload_cast<int64_t, int64_t, const nb::tuple&>(&Candidates::described, nb::const_))
        .def_ro("count", &Candidates::count)
        .def_ro("any_ran", &Candidates::any_ran)
        .def_ro("any_measured", &Candidates::any_measured)
        .def_prop_ro("segments", &Candidates::starts)
        .def("nominal", &Candidates::nominal)
        .def("fastest", &Candidates::fastest)
        .def("fastest_kernel", &Candidates::fastest_kernel)
        .def("saving", &Candidates::saving);
});

}  // namespace
}  // namespace kernrec::query
