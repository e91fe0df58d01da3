// Selects candidates by the bounds and the objective of a query.
#pragma once

#include "arrays.h"

namespace kernrec::query {

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

inline double value_of(Objective objective, double latency, double energy) {
    if (objective == Objective::kEdp) return energy * latency;
    return objective == Objective::kEnergy ? energy : latency;
}

// Return the Pareto-optimal candidates, fastest first; only the first of equal candidates.
std::vector<int64_t> pareto_front(const Row<const double>& latency, const Row<const double>& energy);

// Return at most `count` points of a front: both ends, then repeatedly the point farthest from the selected points. For
// a single point, return the one with the lowest energy-delay product.
std::vector<int64_t> spread(const std::vector<int64_t>& front, const Row<const double>& latency,
                            const Row<const double>& energy, int64_t count);

// Costs of `count` candidates at some operating points, point by point.
struct PickCosts {
    int64_t count = 0;
    std::vector<double> latency, energy;
    std::vector<double> power, source;  // filled only if `bounded`; source of the latency
    std::vector<int64_t> places;        // index of each entry in (points, count); empty if no entry is missing
};

// Return whether any bound excludes candidates.
inline bool bounded(const Bounds& bounds) {
    return bounds.max_power_w < kInfinity || bounds.max_slowdown < kInfinity || bounds.source >= 0;
}

// Return at most `top` picks, best first; for a Pareto front, fastest first.
//
// Throws `Unreachable` if no candidate keeps the bounds.
std::vector<Pick> select(PickCosts costs, const Bounds& bounds);

struct Unreachable {
    double least_w;  // lowest power of any candidate; NaN if no candidate has the source
};

}  // namespace kernrec::query
