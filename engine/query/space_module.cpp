// Python's interface of spaces: enumerates configs, and returns values of expressions as arrays.
#include <numeric>

#include "space.h"

namespace kernrec::query {
namespace {

using Places = Array<const int64_t, 1>;

// Return the rows that satisfy the conditions decided by the tunables fixed so far.
Rows enumerated(const std::vector<Space::Tunable>& tunables, std::optional<Array<const int64_t, 2>> listed,
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
        rows = rows.take(part.valid(nullptr, std::move(every)));
    };
    if (listed) {
        const Table<const int64_t> digits(*listed);
        require(digits.columns == int64_t(tunables.size()), "configs: expected a column of each tunable");
        rows.count = digits.rows;
        for (int64_t tunable = 0; tunable < digits.columns; tunable++) {
            rows.digits.emplace_back();
            for (int64_t row = 0; row < digits.rows; row++) {
                const int64_t digit = digits(row, tunable);
                require(digit >= 0 && digit < int64_t(tunables[size_t(tunable)].values.size()),
                        "configs: expected values of the tunables");
                rows.digits.back().push_back(int32_t(digit));
            }
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
            rows = rows.with_tunable(choices);
        }
        keep_decided(fixed, false);
    }
    return rows;
}

std::vector<Space::Tunable> tunables_of(const nb::dict& values) {
    std::vector<Space::Tunable> tunables;
    for (const auto& [name, choices] : values)
        tunables.push_back({nb::cast<std::string>(name), copied(Row<const int64_t>(nb::cast<Places>(choices)))});
    return tunables;
}

// Return the value of an expression: a text, or a number or array of integers or reals for the given rows (none: all).
nb::object value_of(Space& space, int32_t number, Problem* problem, std::optional<Places> rows_of) {
    const Reader value = space.read(number, problem);
    const Node& node = space.node(number);
    if (node.domain == 0) {
        if (node.kind == Kind::kText) return nb::cast(space.text(value.values[0]));
        return value.real ? nb::cast(value(0)) : nb::cast(value.values[0]);
    }
    require(node.kind != Kind::kText, "expression: text of many configs");
    const Row<const int64_t> rows = rows_of ? Row<const int64_t>(*rows_of) : Row<const int64_t>();
    require(!rows_of || all_within(rows, 0, space.count()), "rows: expected configs of the space");
    const int64_t count = rows_of ? rows.size : space.count();
    const auto row = [&](int64_t i) { return rows_of ? rows[i] : i; };
    if (value.real) {
        std::vector<double> values(static_cast<size_t>(count));
        for (int64_t i = 0; i < count; i++) values[size_t(i)] = value(row(i));
        return numpy(std::move(values));
    }
    std::vector<int64_t> values(static_cast<size_t>(count));
    for (int64_t i = 0; i < count; i++) values[size_t(i)] = value.values[value.index ? value.index[row(i)] : row(i)];
    return numpy(std::move(values));
}

// Return the value of an expression. names: value of each name: a number, a text, or an array of `count` numbers.
nb::object evaluated(nb::handle expression, const nb::dict& names, int64_t count) {
    Rows rows;
    rows.count = count;
    nb::dict facts;
    Space space({}, rows, nb::dict(), facts);
    for (const auto& [name, value] : names) {
        nb::ndarray<const int64_t, nb::ndim<1>, nb::device::cpu> whole;
        nb::ndarray<const double, nb::ndim<1>, nb::device::cpu> real;
        if (nb::try_cast(value, whole, false))
            space.add_column(nb::cast<std::string>(name), Kind::kInteger, copied(Row<const int64_t>(whole)));
        else if (nb::try_cast(value, real, false)) {
            std::vector<int64_t> values;
            for (const double each : copied(Row<const double>(real))) values.push_back(bits(each));
            space.add_column(nb::cast<std::string>(name), Kind::kReal, std::move(values));
        } else facts[name] = value;
    }
    return value_of(space, space.add(expression), nullptr, std::nullopt);
}

}  // namespace

void bind_spaces(nb::module_& module) {
    const auto exact = [] { return nb::arg().noconvert(); };
    nb::class_<Space>(module, "Space")
        .def(
            "__init__",
            [](Space* self, nb::dict values, std::optional<Array<const int64_t, 2>> listed, nb::dict lets,
               nb::dict facts, nb::list fixed, nb::list conditions, int64_t most) {
                auto tunables = tunables_of(values);
                Rows rows = enumerated(tunables, listed, lets, facts, fixed, most);
                new (self) Space(std::move(tunables), std::move(rows), lets, facts);
                std::vector<int32_t> nodes;
                for (const nb::handle condition : conditions) nodes.push_back(self->add(condition));
                self->set_conditions(std::move(nodes));
            },
            nb::arg(), nb::arg().none(), nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg())
        .def_prop_ro("count", &Space::count)
        .def("holds",
             [](nb::object space, nb::dict names) {
                 require(nb::cast<const Space&>(space).count() == 1, "holds: expected a space of one config");
                 Problem problem(space, names, nb::dict(), false, 0.0, 0.0);
                 return !problem.space().valid(&problem, {0}).empty();
             })
        .def("fixed", [](Space& space, nb::handle expression) { return !space.node(space.add(expression)).dynamic; })
        .def("digits",
             [](const Space& space, size_t tunable) {
                 const auto& digits = space.rows().digits.at(tunable);
                 return numpy(std::vector<int64_t>(digits.begin(), digits.end()));
             })
        .def("config", &Space::config)
        .def("set_names", &Space::set_names)
        .def("groups", [](const Space& space, std::vector<int64_t> tunables) {
            const Domain domain = space.groups(tunables);
            return nb::make_tuple(numpy(std::vector<int64_t>(domain.index.begin(), domain.index.end())),
                                  numpy(std::vector<int64_t>(domain.first.begin(), domain.first.end())));
        });
    nb::class_<Problem>(module, "Problem")
        .def(nb::init<nb::object, nb::dict, nb::dict, bool, double, double>())
        .def(
            "column",
            [](Problem& problem, nb::handle expression, std::optional<Places> rows) {
                return value_of(problem.space(), problem.space().add(expression), &problem, rows);
            },
            nb::arg(), nb::arg().none().noconvert() = nb::none())
        .def(
            "test",
            [](Problem& problem, Array<bool, 1> holds) {
                const Row<bool> bools(holds);
                require(bools.size == problem.space().count(), "holds: expected one of each row");
                std::vector<int64_t> rows = true_places(bools);
                for (const int64_t row : rows) bools[row] = false;
                if (problem.too_large()) return;
                for (const int64_t row : problem.space().valid(&problem, std::move(rows))) bools[row] = true;
            },
            exact());
    module.def("evaluated", &evaluated, nb::arg(), nb::arg(), nb::arg());
}

}  // namespace kernrec::query
