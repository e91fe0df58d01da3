// Python's interface of spaces: enumerates configs, and returns values of expressions as arrays.
#include <numeric>

#include "space.h"

namespace kernrec::query {
namespace {

using Places = Row<const int64_t>;

Rows with_tunable(const Rows& rows, int64_t choices) {
    Rows result;
    result.count = rows.count * choices;
    for (const auto& column : rows.digits) {
        auto& digits = result.digits.emplace_back();
        for (const int32_t digit : column) digits.insert(digits.end(), size_t(choices), digit);
    }
    auto& added = result.digits.emplace_back();
    for (int64_t i = 0; i < result.count; i++) added.push_back(int32_t(i % choices));
    return result;
}

Rows taken(const Rows& rows, const std::vector<int64_t>& kept) {
    Rows result;
    result.count = int64_t(kept.size());
    for (const auto& column : rows.digits) {
        auto& digits = result.digits.emplace_back();
        for (const int64_t row : kept) digits.push_back(column[row]);
    }
    return result;
}

// Return the rows that satisfy the conditions decided by the tunables fixed so far.
Rows enumerated(const std::vector<Space::Tunable>& tunables, const std::optional<Table<const int64_t>>& listed,
                const nb::dict& lets, const nb::dict& facts, const nb::list& conditions, int64_t most) {
    Rows rows;
    const auto keep_decided = [&](size_t fixed, bool all) {
        Space part({tunables.begin(), tunables.begin() + std::ptrdiff_t(fixed)}, rows, lets, facts);
        std::vector<int32_t> decided;
        for (const nb::handle condition : conditions)
            if (all || nb::cast<size_t>(condition[0]) == fixed) decided.push_back(part.add(condition[1]));
        if (decided.empty()) return;
        part.set_conditions(decided);
        std::vector<int64_t> every(size_t(rows.count));
        std::iota(every.begin(), every.end(), 0);
        rows = taken(rows, part.valid(nullptr, std::move(every)));
    };
    if (listed) {
        require(listed->columns == int64_t(tunables.size()), "configs: expected a column of each tunable");
        rows.count = listed->rows;
        for (int64_t tunable = 0; tunable < listed->columns; tunable++) {
            const Row<const int64_t> column{&(*listed)(0, tunable), listed->rows, listed->row_step};
            require(all_within(column, 0, int64_t(tunables[tunable].values.size())),
                    "configs: expected values of the tunables");
            auto& digits = rows.digits.emplace_back();
            for (int64_t row = 0; row < column.size; row++) digits.push_back(int32_t(column[row]));
        }
        keep_decided(tunables.size(), true);
        return rows;
    }
    for (size_t fixed = 0; fixed <= tunables.size(); fixed++) {
        if (fixed > 0) {
            const int64_t choices = int64_t(tunables[fixed - 1].values.size());
            if (choices && rows.count > most / choices)
                throw nb::value_error(
                    ("over " + std::to_string(most) + " configs already at " + tunables[fixed - 1].name).c_str());
            rows = with_tunable(rows, choices);
        }
        keep_decided(fixed, false);
    }
    return rows;
}

// Return the value of an expression: a text, or a number or array of integers or reals for the given rows (none: all).
nb::object value_of(Space& space, int32_t number, Problem* problem, const std::optional<Places>& rows) {
    const Reader value = space.read(number, problem);
    const Node& node = space.nodes[number];
    if (node.domain == kScalar) {
        if (node.kind == Kind::kText) return space.texts[value.values[0]];
        return value.real ? nb::cast(from_bits(value.values[0])) : nb::cast(value.values[0]);
    }
    require(node.kind != Kind::kText, "expression: text of many configs");
    require(!rows || all_within(*rows, 0, space.count()), "rows: expected configs of the space");
    const int64_t count = rows ? rows->size : space.count();
    const auto array = [&](auto of) {
        std::vector<decltype(of(0))> values;
        values.reserve(size_t(count));
        for (int64_t i = 0; i < count; i++) values.push_back(of(rows ? (*rows)[i] : i));
        return numpy(std::move(values));
    };
    return value.real ? array(value) : array([&](int64_t row) { return value.values[value.index[row]]; });
}

// Return the value of an expression. names: value of each name: a number, a text, or an array of `count` numbers.
nb::object evaluated(nb::handle expression, const nb::dict& names, int64_t count) {
    Rows rows;
    rows.count = count;
    nb::dict facts;
    Space space({}, rows, nb::dict(), facts);
    for (const auto& [name, value] : names) {
        Row<const int64_t> whole;
        Row<const double> real;
        if (nb::try_cast(value, whole)) space.add_column(nb::cast<std::string>(name), Kind::kInteger, copied(whole));
        else if (nb::try_cast(value, real)) {
            std::vector<int64_t> values;
            for (int64_t i = 0; i < real.size; i++) values.push_back(bits(real[i]));
            space.add_column(nb::cast<std::string>(name), Kind::kReal, std::move(values));
        } else facts[name] = value;
    }
    return value_of(space, space.add(expression), nullptr, std::nullopt);
}

const Binding kBinding([](nb::module_& module) {
    nb::class_<Space>(module, "Space")
        .def("__init__",
             [](Space* self, const nb::dict& values, const std::optional<Table<const int64_t>>& listed, nb::dict lets,
                nb::dict facts, const nb::list& fixed, const nb::list& conditions, int64_t most) {
                 std::vector<Space::Tunable> tunables;
                 for (const auto& [name, choices] : values)
                     tunables.push_back({nb::cast<std::string>(name), copied(nb::cast<Places>(choices))});
                 Rows rows = enumerated(tunables, listed, lets, facts, fixed, most);
                 new (self) Space(std::move(tunables), std::move(rows), lets, facts);
                 std::vector<int32_t> nodes;
                 for (const nb::handle condition : conditions) nodes.push_back(self->add(condition));
                 self->set_conditions(nodes);
             })
        .def_prop_ro("count", &Space::count)
        .def_rw("config_names", &Space::config_names)
        .def("holds",
             [](Space& space, nb::dict names) {
                 require(space.count() == 1, "holds: expected a space of one config");
                 Problem problem(space, names, nb::dict(), false, 0.0, 0.0);
                 return !space.valid(&problem, {0}).empty();
             })
        .def("fixed", [](Space& space, nb::handle expression) { return !space.nodes[space.add(expression)].dynamic; })
        .def("digits", [](const Space& space, size_t tunable) { return numpy(space.rows.digits.at(tunable)); })
        .def("config", &Space::config)
        .def("groups", [](const Space& space, const std::vector<int64_t>& tunables) {
            const Domain domain = space.groups(tunables);
            return nb::make_tuple(numpy(std::vector<int64_t>(domain.index.begin(), domain.index.end())),
                                  numpy(std::vector<int64_t>(domain.first.begin(), domain.first.end())));
        });
    nb::class_<Problem>(module, "Problem")
        .def(nb::init<Space&, nb::dict, nb::dict, bool, double, double>(), nb::keep_alive<1, 2>())
        .def(
            "column",
            [](Problem& problem, nb::handle expression, const std::optional<Places>& rows) {
                return value_of(problem.space, problem.space.add(expression), &problem, rows);
            },
            nb::arg(), nb::arg() = nb::none())
        .def("test", [](Problem& problem, const Row<bool>& holds) {
            require(holds.size == problem.space.count(), "holds: expected one of each row");
            std::vector<int64_t> rows = true_places(holds);
            for (const int64_t row : rows) holds[row] = false;
            if (problem.too_large) return;
            for (const int64_t row : problem.space.valid(&problem, std::move(rows))) holds[row] = true;
        });
    module.def("evaluated", &evaluated);
    nb::dict operations;
    for (size_t number = 0; number < kFormCount; number++) operations[kForms[number].name] = number;
    module.attr("OPERATIONS") = operations;
});

}  // namespace
}  // namespace kernrec::query

namespace kernrec {

// Add the submodule `kernrec._engine.query`.
void bind_query(nanobind::module_& engine) {
    nanobind::set_leak_warnings(false);  // plans and trees stay cached until the process ends
    nanobind::module_ module = engine.def_submodule("query");
    for (const auto bind : query::Binding::all()) bind(module);
}

}  // namespace kernrec
