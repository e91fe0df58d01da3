// Answers from ranked candidates: selection, rows of similar configs, ranks, and the figures of each recommendation.
#include <algorithm>
#include <map>
#include <numeric>
#include <tuple>
#include <unordered_map>

#include "ranking.h"

namespace kernrec::query {
namespace {

// Configs are alike if their costs differ by at most this fraction. Repeated measurements differ by 0.5 to 1 %.
constexpr double kSame = 0.005;
// Number of candidates examined per requested row, because most of the best candidates are alike.
constexpr int64_t kListed = 8;
constexpr int64_t kWhole = 1 << 20;  // exceeds the size of any front

// Objectives in the order of `Objective` in kernrec/recommender/request.py.
enum class Objective : int64_t { kPareto, kLatency, kEnergy, kEdp };

struct Bounds {
    Objective objective;
    int64_t top;
    double max_power_w, max_slowdown;  // infinite: no bound
    int64_t source;                    // index of the only source that counts; -1: all
};

// Candidate at an operating point.
struct Pick {
    int64_t point, position;
};

double value_of(Objective objective, double latency, double energy) {
    if (objective == Objective::kEdp) return energy * latency;
    return objective == Objective::kEnergy ? energy : latency;
}

// Candidate at an operating point, and its costs in comparisons.
struct Option {
    Pick pick;
    double latency, energy, power, source;  // source of the latency
};

// Return whether any bound excludes candidates.
bool bounded(const Bounds& bounds) {
    return bounds.max_power_w < kInfinity || bounds.max_slowdown < kInfinity || bounds.source >= 0;
}

// Thrown if no candidate keeps the bounds.
struct Unreachable {
    double least_w;  // lowest power of any candidate; NaN if no candidate has the source
};

// Remove options that do not keep the bounds. Throws `Unreachable` if none remains.
void exclude(std::vector<Option>& options, const Bounds& bounds) {
    double least_w = kInfinity, least_s = kInfinity;
    for (const Option& each : options) least_w = std::min(least_w, each.power);
    const auto keep = [&](auto allows) {
        const auto refused = [&](const Option& each) { return !allows(each); };
        options.erase(std::remove_if(options.begin(), options.end(), refused), options.end());
    };
    if (bounds.source >= 0) keep([&](const Option& each) { return each.source == double(bounds.source); });
    if (options.empty()) throw Unreachable{std::numeric_limits<double>::quiet_NaN()};
    if (bounds.max_power_w < kInfinity) keep([&](const Option& each) { return each.power <= bounds.max_power_w; });
    if (options.empty()) throw Unreachable{least_w};
    for (const Option& each : options) least_s = std::min(least_s, each.latency);
    if (bounds.max_slowdown < kInfinity)
        keep([&](const Option& each) { return each.latency <= least_s * (1.0 + bounds.max_slowdown); });
}

// Return the `top` of `count` candidates with the lowest values, each at its best operating point. Of equal values, the
// first wins. Options must be ordered by operating point.
std::vector<Pick> least(const std::vector<Option>& options, Objective objective, int64_t count, int64_t top) {
    std::vector<std::pair<double, int64_t>> best(size_t(count), {kInfinity, 0});  // value and point of each candidate
    for (const Option& each : options)
        if (const double value = value_of(objective, each.latency, each.energy); value < best[each.pick.position].first)
            best[each.pick.position] = {value, each.pick.point};
    std::vector<std::pair<double, int64_t>> order;
    for (int64_t i = 0; i < count; i++)
        if (best[i].first < kInfinity) order.push_back({best[i].first, i});
    const auto end = order.begin() + std::min<int64_t>(top, int64_t(order.size()));
    std::partial_sort(order.begin(), end, order.end());
    std::vector<Pick> picks;
    std::for_each(order.begin(), end,
                  [&](const auto& each) { picks.push_back({best[each.second].second, each.second}); });
    return picks;
}

// Return the Pareto-optimal options, fastest first; only the first of equal options.
std::vector<Option> pareto_front(std::vector<Option> options) {
    const auto faster = [](const Option& a, const Option& b) {
        return std::tie(a.latency, a.energy, a.pick.point, a.pick.position) <
               std::tie(b.latency, b.energy, b.pick.point, b.pick.position);
    };
    const auto frugal = [](const Option& a, const Option& b) { return a.energy < b.energy; };
    std::vector<Option> front;
    if (options.empty()) return front;
    // Before sorting, remove candidates slower than the lowest-energy candidate, or using more energy than the fastest.
    const double most_s = std::min_element(options.begin(), options.end(), frugal)->latency;
    const double most_j = std::min_element(options.begin(), options.end(), faster)->energy;
    const auto beyond = [&](const Option& each) { return !(each.latency <= most_s && each.energy <= most_j); };
    options.erase(std::remove_if(options.begin(), options.end(), beyond), options.end());
    std::sort(options.begin(), options.end(), faster);
    double least_j = kInfinity;
    for (const Option& each : options)
        if (each.energy < least_j) front.push_back(each), least_j = each.energy;
    return front;
}

// Return the indices of at most `count` options of a front: both ends, then repeatedly the option farthest from the
// selected options. For a single option, return the one with the lowest energy-delay product.
std::vector<size_t> spread(const std::vector<Option>& front, int64_t count) {
    const size_t size = front.size();
    std::vector<size_t> chosen(size);
    std::iota(chosen.begin(), chosen.end(), 0);
    if (int64_t(size) <= count) return chosen;
    if (count == 1) {
        const auto less = [](const Option& a, const Option& b) { return a.latency * a.energy < b.latency * b.energy; };
        return {size_t(std::min_element(front.begin(), front.end(), less) - front.begin())};
    }
    std::vector<double> x, y, distance(size, kInfinity);
    for (const Option& each : front) x.push_back(std::log(each.latency)), y.push_back(std::log(each.energy));
    chosen.clear();
    for (size_t next = 0; int64_t(chosen.size()) < count;) {
        chosen.push_back(next);
        for (size_t i = 0; i < size; i++)
            distance[i] = minimum(distance[i], std::hypot(x[i] - x[next], y[i] - y[next]));
        next = size_t(std::max_element(distance.begin(), distance.end()) - distance.begin());
        if (chosen.size() == 1) next = size - 1;
    }
    std::sort(chosen.begin(), chosen.end());
    return chosen;
}

// Interval of each cost that decides a rank: latency, energy or both.
struct Deciding {
    bool exact;  // whether all of these costs were measured
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
            tied[ranks[i].number] = 1;
        } else {
            leader = i;
        }
    }
    for (size_t i = 0; i < deciding.size(); i++) {
        const bool follows = i > 0 && deciding[i - 1].overlaps(deciding[i]);
        const bool precedes = i + 1 < deciding.size() && deciding[i].overlaps(deciding[i + 1]);
        ranks[i].ambiguous = deciding[i].exact ? tied[ranks[i].number] != 0 : follows || precedes;
    }
    return ranks;
}

// Candidates of one problem: the configs of a range of kernels, at a range of operating points. A position is an index
// among the candidates of all these kernels.
struct Candidates {
    Candidates(const Ranking& ranking, int64_t problem, int64_t first_kernel, int64_t end_kernel, int64_t first_point,
               int64_t end_point)
        : ranking_(ranking), problem_(problem), first_point_(first_point), points_(end_point - first_point) {
        require(problem >= 0 && problem < ranking_.problems && first_kernel >= 0 &&
                    end_kernel <= int64_t(ranking_.kernels.size()) && first_point >= 0 && points_ > 0 &&
                    end_point <= ranking_.points,
                "candidates: expected a problem, kernels and points of the ranking");
        for (size_t number = size_t(first_kernel); number < size_t(std::max(end_kernel, first_kernel)); number++) {
            const Ranking::Kernel& kernel = ranking_.kernels[number];
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
        each_pick(0, 1, [&](const Pick& pick, const Ranking::Kernel&, int64_t place, int64_t index) {
            const double cost = ranking_.estimates[index].costs[kSeconds] * factor(place);
            if (cost < least) best = pick.position, least = cost;
        });
        return best;
    }

    // Return the number of the fastest candidate's kernel, and its latency.
    std::pair<size_t, double> fastest_kernel() const {
        const Pick best{0, fastest()};
        return {locate(best.position).segment.number, value(kSeconds, best)};
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
        const Table<const double> costs = ranking_.costs.nominal(located.place, 1);
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
        int64_t place;  // index among all candidates of the ranking
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
        return ranking_.value(quantity, first_point_ + pick.point, locate(pick.position).place);
    }

    // Return the factor that multiplies a candidate's costs in comparisons.
    double factor(int64_t place) const { return any_ran ? ranking_.risk[place] : 1.0; }

    // Call a function with each candidate that is estimated at the points from `first` to `end`: its pick, its kernel,
    // its index among all candidates of the ranking, and the index of its estimate.
    template <class F>
    void each_pick(int64_t first, int64_t end, F apply) const {
        for (int64_t point = first; point < end; point++)
            for (const Segment& of : segments_)
                ranking_.each_estimated(first_point_ + point, of.first, of.first + of.size,
                                        [&](int64_t place, int64_t index) {
                                            apply(Pick{point, of.start + place - of.first}, *of.kernel, place, index);
                                        });
    }

    // Return at most `top` picks from point `first` on, best first; for a Pareto front, fastest first. Throws
    // `Unreachable` if no candidate keeps the bounds.
    std::vector<Pick> select(const Bounds& bounds, int64_t first) const {
        require(count > 0 && first >= 0 && first < points_ && bounds.top > 0, "select: expected candidates");
        const bool measured = any_measured && points_ - first > 1, front = bounds.objective == Objective::kPareto;
        std::vector<Option> options;
        if (!front) options.reserve(size_t(count));
        // Costs of the fastest candidate so far, and of the candidate with the lowest energy.
        double least_s = kInfinity, its_j = kInfinity, least_j = kInfinity, its_s = kInfinity;
        each_pick(first, points_, [&](const Pick& pick, const Ranking::Kernel&, int64_t place, int64_t index) {
            const double source = ranking_.kinds[ranking_.estimates[index].kinds[kSeconds]].of[kSeconds].source;
            // A limit above the power draw has the same prediction as the default limit. Prefer the measured point.
            const double preferred = measured && source == kMeasured ? 1.0 - 1e-9 : 1.0;
            const double risk = factor(place) * preferred;
            const auto& [seconds, joules, watts] = ranking_.estimates[index].costs;
            const double cost_s = seconds * risk, cost_j = joules * risk;
            if (front && !bounded(bounds)) {
                // To avoid copying all costs, skip candidates that one of the two dominates.
                if ((cost_s >= least_s && cost_j > its_j) || (cost_j >= least_j && cost_s > its_s)) return;
                if (cost_s <= least_s) least_s = cost_s, its_j = cost_j;
                if (cost_j <= least_j) least_j = cost_j, its_s = cost_s;
            }
            options.push_back({pick, cost_s, cost_j, watts, source});
        });
        if (bounded(bounds)) exclude(options, bounds);
        if (!front) return least(options, bounds.objective, count, bounds.top);
        std::vector<Pick> picks;
        options = pareto_front(std::move(options));
        for (const size_t i : spread(options, bounds.top)) picks.push_back(options[i].pick);
        return picks;
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
        std::vector<Option> options;
        for (const Row& row : result)
            options.push_back({row.pick, value(kSeconds, row.pick), value(kJoules, row.pick), 0.0, 0.0});
        std::vector<Row> some;
        for (const size_t i : spread(options, bounds.top)) some.push_back(result[i]);
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
            const bool is_measured = ranking_.kind_of(kSeconds, first_point_ + pick.point, place).source == kMeasured;
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
        return part.rows[place - part.first];
    }

    static bool same_code(const Kernel& kernel, int64_t row, int64_t other) {
        for (int64_t column = 0; column < kernel.codes.columns; column++)
            if (kernel.codes(row, column) != kernel.codes(other, column)) return false;
        return true;
    }

    static int64_t differences(const Kernel& kernel, int64_t row, int64_t other) {
        int64_t count = 0;
        for (const auto& digits : kernel.space.rows.digits) count += digits[row] != digits[other];
        return count;
    }

    // Add the best CUDA kernel if all rows are Triton kernels, or the best Triton kernel if none is.
    void add_other_kind(std::vector<Row>& rows, const Bounds& bounds, int64_t first) const {
        bool missing[2] = {true, true};
        for (const Row& row : rows) missing[locate(row.pick.position).segment.kernel->triton] = false;
        const Objective objective = bounds.objective == Objective::kPareto ? Objective::kLatency : bounds.objective;
        double least = kInfinity;
        Pick best{-1, -1};
        each_pick(first, points_, [&](const Pick& pick, const Ranking::Kernel& kernel, int64_t, int64_t index) {
            const auto& [seconds, joules, watts] = ranking_.estimates[index].costs;
            if (!missing[kernel.triton] || !(watts <= bounds.max_power_w)) return;
            const double cost = value_of(objective, seconds, joules);
            if (cost < least) least = cost, best = pick;
        });
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
            return ranking_.kind_of(quantity, first_point_ + pick.point, locate(pick.position).place);
        };
        for (size_t i = 0; i < ranked; i++) {
            const Pick& pick = rows[i].pick;
            bool exact = true;
            for (int64_t quantity = first_quantity; quantity < end_quantity; quantity++)
                exact = exact && kind_of(quantity, pick).source == kMeasured;
            deciding.push_back({exact, {}}), any_exact = any_exact || exact;
            many_kernels =
                many_kernels || locate(pick.position).segment.number != locate(rows[0].pick.position).segment.number;
        }
        for (size_t i = 0; i < ranked; i++)
            for (int64_t quantity = first_quantity; quantity < end_quantity; quantity++) {
                const double expected = value(Cost(quantity), rows[i].pick);
                const Interval& of = kind_of(quantity, rows[i].pick);
                const double low = expected / of.below, high = expected * of.above;
                deciding[i].intervals.push_back(any_exact ? std::pair{low, high}
                                                          : own_interval(expected, low, high, of.own, many_kernels));
            }
        const std::vector<Rank> ranks = ranks_of(deciding);
        nb::list recommended, beside;
        for (size_t i = 0; i < rows.size(); i++) {
            const Pick& pick = rows[i].pick;
            require(pick.point >= 0 && pick.point < points_, "picks: expected operating points");
            const auto [segment, place] = locate(pick.position);
            const Costs::Part& part = *segment.kernel->part;
            const int64_t point = first_point_ + pick.point, row = config(segment, place);
            const int64_t heuristic = segment.first + part.picks[problem_];
            const Rank rank = i < ranked ? ranks[i] : Rank{1, true};
            const bool exact = i < ranked && deciding[i].exact;
            const auto [clock_hz, resource] = ranking_.running(segment.number, point, place);
            const double risk = ranking_.risk[place];
            (i < ranked ? recommended : beside)
                .append(nb::make_tuple(segment.number, pick.position, part.kernel->space.config(row), pick.point,
                                       rank.number, exact, rank.ambiguous, estimate(kSeconds, point, place, sources),
                                       estimate(kJoules, point, place, sources), ranking_.value(kWatts, point, place),
                                       clock_hz, resource, part.kernel->occupancy[row],
                                       nb::make_tuple(ranking_.value(kSeconds, first_point_, heuristic),
                                                      ranking_.value(kJoules, first_point_, heuristic)),
                                       rows[i].alike, risk,
                                       ranking_.value(kSeconds, point, place) < fastest_s && pick.position != fastest &&
                                           pick.point == 0 && risk > 1.0));
        }
        return nb::make_tuple(recommended, beside, nb::make_tuple(fastest_s, value(kJoules, {0, fastest})));
    }

    // Return the value, the ends of the interval, the source, and the half-width of the own error of a cost.
    nb::tuple estimate(int64_t quantity, int64_t point, int64_t place, const nb::tuple& sources) const {
        const double expected = ranking_.value(quantity, point, place);
        const Interval& of = ranking_.kind_of(quantity, point, place);
        const double low = quantity == kSeconds ? ranking_.low_s(problem_, point, place) : expected / of.below;
        return nb::make_tuple(expected, low, expected * of.above, sources[size_t(of.source)], of.own);
    }

    const Ranking& ranking_;
    int64_t problem_, first_point_, points_;
    std::vector<Segment> segments_;
};

const Binding kBinding([](nb::module_& module) {
    nb::class_<Candidates>(module, "Candidates")
        .def(nb::init<const Ranking&, int64_t, int64_t, int64_t, int64_t, int64_t>(), nb::keep_alive<1, 2>())
        // Return the lowest power of any candidate if no candidate keeps the bounds.
        .def(
            "recommended",
            [](const Candidates& of, const std::tuple<int64_t, int64_t, double, double, int64_t>& bounds, int64_t first,
               bool each_config, bool by_code, bool other_kind, const nb::tuple& sources) -> nb::object {
                const auto& [objective, top, max_power_w, max_slowdown, source] = bounds;
                require(objective >= 0 && objective <= int64_t(Objective::kEdp), "bounds: expected an objective");
                try {
                    return of.recommended({Objective(objective), top, max_power_w, max_slowdown, source}, first,
                                          each_config, by_code, other_kind, sources);
                } catch (const Unreachable& error) {
                    return nb::float_(error.least_w);
                }
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
    module.def("pareto_front", [](const Row<const double>& latency, const Row<const double>& energy) {
        require(latency.size == energy.size, "front: expected as many costs of each kind");
        std::vector<Option> options;
        for (int64_t i = 0; i < latency.size; i++) options.push_back({{0, i}, latency[i], energy[i], 0.0, 0.0});
        std::vector<int64_t> front;
        for (const Option& each : pareto_front(options)) front.push_back(each.pick.position);
        return numpy(front);
    });
});

}  // namespace
}  // namespace kernrec::query
