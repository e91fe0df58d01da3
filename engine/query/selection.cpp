// Pareto fronts, and the candidates of lowest cost within bounds.
#include "selection.h"

#include <algorithm>
#include <numeric>

namespace kernrec::query {
namespace {

int64_t lowest(const Row<const double>& values) {
    int64_t best = 0;
    double least = values[0];
    for (int64_t i = 1; i < values.size; i++)
        if (values[i] < least) best = i, least = values[i];
    return best;
}

// Return the indices of the entries that keep the bounds, ascending.
std::vector<int64_t> allowed_of(const std::vector<double>& latency, const std::vector<double>& power,
                                const std::vector<double>& source, const Bounds& bounds) {
    std::vector<int64_t> allowed(latency.size());
    std::iota(allowed.begin(), allowed.end(), 0);
    const auto keep = [&](auto allows) {
        const auto refused = [&](int64_t i) { return !allows(size_t(i)); };
        allowed.erase(std::remove_if(allowed.begin(), allowed.end(), refused), allowed.end());
    };
    if (bounds.source >= 0) keep([&](size_t i) { return source[i] == double(bounds.source); });
    if (allowed.empty()) throw Unreachable{std::numeric_limits<double>::quiet_NaN()};
    if (bounds.max_power_w < kInfinity) keep([&](size_t i) { return power[i] <= bounds.max_power_w; });
    if (allowed.empty()) throw Unreachable{*std::min_element(power.begin(), power.end())};
    if (bounds.max_slowdown < kInfinity) {
        double least_s = kInfinity;
        for (const int64_t i : allowed) least_s = std::min(least_s, latency[size_t(i)]);
        keep([&](size_t i) { return latency[i] <= least_s * (1.0 + bounds.max_slowdown); });
    }
    return allowed;
}

// Return the candidates with the lowest values, each at its best operating point. Of equal values, the first wins.
std::vector<Pick> least(const std::vector<double>& value, int64_t count, int64_t top) {
    const int64_t points = int64_t(value.size()) / count;
    std::vector<double> best(value.begin(), value.begin() + count);
    std::vector<int64_t> best_point(size_t(count), 0);
    std::vector<std::pair<double, int64_t>> order;
    for (int64_t point = 1; point < points; point++)
        for (int64_t i = 0; i < count; i++)
            if (const double other = value[size_t(point * count + i)]; other < best[size_t(i)])
                best[size_t(i)] = other, best_point[size_t(i)] = point;
    if (top == 1) {
        order.push_back({0.0, lowest(best)});
    } else {
        for (int64_t i = 0; i < count; i++)
            if (std::isfinite(best[size_t(i)])) order.push_back({best[size_t(i)], i});
        const auto end = order.begin() + std::min<int64_t>(top, int64_t(order.size()));
        std::nth_element(order.begin(), end, order.end());
        std::sort(order.begin(), end);
        order.erase(end, order.end());
    }
    std::vector<Pick> picks;
    for (const auto& [value, i] : order) picks.push_back({best_point[size_t(i)], i});
    return picks;
}

}  // namespace

std::vector<int64_t> pareto_front(const Row<const double>& latency, const Row<const double>& energy) {
    std::vector<int64_t> front;
    if (latency.size == 0) return front;
    // Before sorting, remove candidates slower than the lowest-energy candidate, or using more energy than the fastest.
    const double most_s = latency[lowest(energy)], most_j = energy[lowest(latency)];
    struct Costs {
        double seconds, joules;
        int64_t number;
        bool operator<(const Costs& other) const {
            if (seconds != other.seconds) return seconds < other.seconds;
            return joules != other.joules ? joules < other.joules : number < other.number;
        }
    };
    std::vector<Costs> between;
    for (int64_t i = 0; i < latency.size; i++)
        if (latency[i] <= most_s && energy[i] <= most_j) between.push_back({latency[i], energy[i], i});
    std::sort(between.begin(), between.end());
    double least_j = kInfinity;
    for (const Costs& each : between)
        if (each.joules < least_j) front.push_back(each.number), least_j = each.joules;
    return front;
}

std::vector<int64_t> spread(const std::vector<int64_t>& front, const Row<const double>& latency,
                            const Row<const double>& energy, int64_t count) {
    const size_t size = front.size();
    if (int64_t(size) <= count) return front;
    if (count == 1) {
        size_t best = 0;
        const auto edp = [&](size_t i) { return latency[front[i]] * energy[front[i]]; };
        for (size_t i = 1; i < size; i++)
            if (edp(i) < edp(best)) best = i;
        return {front[best]};
    }
    std::vector<double> x(size), y(size), distance(size);
    for (size_t i = 0; i < size; i++) x[i] = std::log(latency[front[i]]), y[i] = std::log(energy[front[i]]);
    const auto apart = [&](size_t i, size_t other) { return std::hypot(x[i] - x[other], y[i] - y[other]); };
    for (size_t i = 0; i < size; i++) distance[i] = minimum(apart(i, 0), apart(i, size - 1));
    std::vector<size_t> chosen{0, size - 1};
    while (int64_t(chosen.size()) < count) {
        const size_t far = size_t(std::max_element(distance.begin(), distance.end()) - distance.begin());
        chosen.push_back(far);
        for (size_t i = 0; i < size; i++) distance[i] = minimum(distance[i], apart(i, far));
    }
    std::sort(chosen.begin(), chosen.end());
    std::vector<int64_t> result;
    for (const size_t i : chosen) result.push_back(front[i]);
    return result;
}

std::vector<Pick> select(PickCosts costs, const Bounds& bounds) {
    std::vector<double>&latency = costs.latency, &energy = costs.energy;
    std::optional<std::vector<int64_t>> allowed;
    if (bounded(bounds)) allowed = allowed_of(latency, costs.power, costs.source, bounds);
    if (bounds.objective != Objective::kPareto) {
        std::vector<double> value(latency.size(), kInfinity);
        const auto set = [&](size_t i) { value[i] = value_of(bounds.objective, latency[i], energy[i]); };
        if (!allowed)
            for (size_t i = 0; i < value.size(); i++) set(i);
        else
            for (const int64_t i : *allowed) set(size_t(i));
        return least(value, costs.count, bounds.top);
    }
    if (allowed) {
        for (size_t i = 0; i < allowed->size(); i++) {
            latency[i] = latency[size_t((*allowed)[i])];
            energy[i] = energy[size_t((*allowed)[i])];
        }
        latency.resize(allowed->size()), energy.resize(allowed->size());
        costs.places = std::move(*allowed);
    }
    const Row<const double> seconds(latency), joules(energy);
    std::vector<Pick> picks;
    for (const int64_t i : spread(pareto_front(seconds, joules), seconds, joules, bounds.top)) {
        const int64_t place = costs.places.empty() ? i : costs.places[size_t(i)];
        picks.push_back({place / costs.count, place % costs.count});
    }
    return picks;
}

namespace {

const Binding kBinding([](nb::module_& module) {
    module.def("pareto_front", [](const Row<const double>& latency, const Row<const double>& energy) {
        require(latency.size == energy.size, "front: expected as many costs of each kind");
        return numpy(pareto_front(latency, energy));
    });
});

}  // namespace
}  // namespace kernrec::query
