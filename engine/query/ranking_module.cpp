// Python's interface of rankings: what the answers need, as numbers and tuples.
#include "ranking.h"

namespace kernrec::query {
namespace {

using PartTuple = std::tuple<int64_t, int64_t, int64_t, int64_t, int64_t>;

Ranking::Part part_of(const PartTuple& part) {
    const auto& [problem, first_kernel, end_kernel, first_point, end_point] = part;
    return {problem, first_kernel, end_kernel, first_point, end_point};
}

nb::object pairs_of(const std::vector<Pick>& picks) {
    nb::list pairs;
    for (const Pick& pick : picks) pairs.append(nb::make_tuple(pick.point, pick.position));
    return pairs;
}

Bounds bounds_of(const std::tuple<int64_t, int64_t, double, double, int64_t>& bounds) {
    const auto& [objective, top, max_power_w, max_slowdown, source] = bounds;
    require(objective >= 0 && objective <= int64_t(Objective::kEdp) && top > 0, "bounds: expected an objective");
    return {Objective(objective), top, max_power_w, max_slowdown, source};
}

// Return the result of a selection, or the lowest power of any candidate if none keeps the bounds.
template <class F>
nb::object unless_unreachable(F function) {
    try {
        return function();
    } catch (const Unreachable& error) {
        return nb::float_(error.least_w);
    }
}

// Array that views memory of a C++ object, and keeps the object alive.
template <class T>
using View = nb::ndarray<nb::numpy, T>;

}  // namespace

void bind_rankings(nb::module_& module) {
    using BoundsTuple = std::tuple<int64_t, int64_t, double, double, int64_t>;
    const auto exact = [] { return nb::arg().noconvert(); };
    nb::class_<Ranking>(module, "Ranking")
        .def(nb::init<nb::object, nb::list, std::vector<double>, std::vector<double>, std::vector<bool>, nb::object,
                      nb::object, std::vector<double>, Array<const double, 3>, bool, nb::object>(),
             nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg().none(), nb::arg().none(), nb::arg(),
             exact(), nb::arg(), nb::arg().none())
        .def("costs", &Ranking::costs)
        .def_prop_ro("limited", &Ranking::limited_array)
        .def_prop_ro("kinds",
                     [](Ranking& of) {
                         return View<double>(&of.kinds()[0].of[0][0], {2, EstimateKind::kFigures, of.kinds().size()},
                                             {}, {EstimateKind::kFigures, 1, 2 * EstimateKind::kFigures});
                     })
        .def_prop_ro("risk", [](Ranking& of) { return View<double>(of.risk(), {size_t(of.count())}); })
        .def("recommended",
             [](const Ranking& self, const PartTuple& part, const BoundsTuple& bounds, int64_t first, bool each_config,
                bool by_code, bool other_kind, const nb::tuple& sources) {
                 return unless_unreachable([&]() -> nb::object {
                     return self.recommended(part_of(part), bounds_of(bounds), first, each_config, by_code, other_kind,
                                             sources);
                 });
             })
        .def("select",
             [](const Ranking& self, const PartTuple& part, const BoundsTuple& bounds, int64_t first) {
                 return unless_unreachable(
                     [&] { return pairs_of(self.select(part_of(part), bounds_of(bounds), first)); });
             })
        .def("described",
             [](const Ranking& self, const PartTuple& part, int64_t point, int64_t position, const nb::tuple& sources) {
                 return self.described(part_of(part), {{point, position}}, {0}, 0, Objective::kLatency, sources);
             })
        .def("nominal", [](const Ranking& self, const PartTuple& part,
                           int64_t position) { return self.nominal(part_of(part), position); })
        .def("fastest", [](const Ranking& self, const PartTuple& part) { return self.fastest(part_of(part)); })
        .def("fastest_kernel",
             [](const Ranking& self, const PartTuple& part) { return self.fastest_kernel(part_of(part)); })
        .def("saving",
             [](const Ranking& self, const PartTuple& part, int64_t position, double most_slowdown,
                double least_saved) { return self.saving(part_of(part), position, most_slowdown, least_saved); })
        .def_prop_ro("violated", &Ranking::violated)
        .def("shrinkage", &Ranking::shrinkage)
        .def("violations", &Ranking::violations)
        .def("row_kinds", &Ranking::row_kinds)
        .def("running", &Ranking::running);
    module.def(
        "select",
        [](Array<const double, 2> latency, Array<const double, 2> energy, Array<const double, 2> power,
           Array<const double, 2> source, const BoundsTuple& bounds) {
            const Bounds of_query = bounds_of(bounds);
            const Table<const double> seconds(latency), joules(energy), watts(power), sources(source);
            for (const auto& each : {joules, watts, sources})
                require(each.rows == seconds.rows && each.columns == seconds.columns,
                        "select: expected tables of one shape");
            PickCosts costs;
            costs.count = seconds.columns;
            for (int64_t point = 0; point < seconds.rows; point++)
                for (int64_t i = 0; i < seconds.columns; i++)
                    costs.add(seconds(point, i), joules(point, i), watts(point, i), sources(point, i),
                              bounded(of_query));
            return unless_unreachable([&] { return pairs_of(query::select(std::move(costs), of_query)); });
        },
        exact(), exact(), exact(), exact(), nb::arg());
    module.def(
        "pareto_front",
        [](Array<const double, 1> latency, Array<const double, 1> energy) {
            return numpy(pareto_front(Row<const double>(latency), Row<const double>(energy)));
        },
        exact(), exact());
    module.def(
        "spread",
        [](const std::vector<int64_t>& front, Array<const double, 1> latency, Array<const double, 1> energy,
           int64_t count) {
            require(
                count > 0 &&
                    all_within(Row<const int64_t>(front.data(), int64_t(front.size())), 0, int64_t(latency.shape(0))) &&
                    latency.shape(0) == energy.shape(0),
                "spread: expected places of the costs");
            return numpy(spread(front, Row<const double>(latency), Row<const double>(energy), count));
        },
        nb::arg(), exact(), exact(), nb::arg());
    using Times = std::vector<std::tuple<double, double, bool>>;  // latency (s), deviation, transferred
    const auto references = [](const Times& times) {
        std::vector<Reference> result;
        for (const auto& [latency_s, deviation, transferred] : times)
            result.push_back({latency_s, deviation, transferred, int64_t(result.size())});
        return result;
    };
    module.def("fastest_reference", [references](const Times& times) {
        const Reference fastest = fastest_reference(references(times));
        return nb::make_tuple(fastest.latency_s, fastest.deviation, fastest.transferred, fastest.origin);
    });
    module.def("shrinkage", [references](double whole, double best_s, const Times& times) {
        const Shrinkage shrinkage = shrinkage_of(whole, best_s, fastest_reference(references(times)));
        return nb::make_tuple(shrinkage.lead, shrinkage.share, shrinkage.deviation);
    });
    module.def("ranks", [](const std::vector<std::pair<double, double>>& intervals, const std::vector<bool>& exact) {
        require(intervals.size() == exact.size(), "ranks: expected an interval of each");
        std::vector<Deciding> deciding;
        for (const auto& [low, high] : intervals) deciding.push_back({{low}, {high}, 1});
        nb::list result;
        for (const Rank& rank : ranks_of(deciding, exact))
            result.append(nb::make_tuple(rank.number, rank.exact, rank.ambiguous));
        return result;
    });
    module.attr("DEVIATIONS") = kDeviations;
    module.attr("OWN_SHARE") = kOwnShare;
}

}  // namespace kernrec::query
