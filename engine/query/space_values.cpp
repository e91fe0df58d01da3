// Computes the values of expressions. Nodes that do not depend on the problem are computed once for all problems.
#include "space.h"

#include <algorithm>
#include <functional>

#include "arithmetic.h"

namespace kernrec::query {
namespace {

constexpr size_t kMostSpare = 80;

// Reason why an expression has no value. The error message also contains the text of the expression.
struct Refusal {
    std::string reason;
};

// Loop over the values of a function's operands.
template <auto apply, class Function = decltype(apply)>
struct Each;
template <auto apply, class R, class... A>
struct Each<apply, R (*)(A...)> {
    template <class T>
    static T value(const Operand& from, int64_t i) {
        if constexpr (std::is_same_v<T, double>) return from.real(i);
        else return from[i];
    }
    template <size_t... n>
    static void fill(int64_t* out, int64_t count, const Operand* of, std::index_sequence<n...>) {
        for (int64_t i = 0; i < count; i++) {
            const R result = apply(value<A>(of[n], i)...);
            if constexpr (std::is_same_v<R, double>) out[i] = bits(result);
            else out[i] = result;
        }
    }
    static void loop(int64_t* out, int64_t count, const Operand* of) {
        fill(out, count, of, std::index_sequence_for<A...>());
    }
};

template <auto apply>
constexpr Form::Loop kEach = Each<apply>::loop;

namespace reals = arithmetic::reals;

template <class Function>
constexpr Form::Loop kReal = kEach<arithmetic::applied<Function, double, double>>;

template <class Function>
constexpr Form comparison(const char* name) {
    return {name, 2, kEach<arithmetic::applied<Function, int64_t, int64_t>>,
            kEach<arithmetic::applied<Function, int64_t, double>>, true};
}

template <bool wanted>
constexpr Form logical(const char* name) {
    return {name, 1, kEach<arithmetic::is_true<wanted, int64_t>>, kEach<arithmetic::is_true<wanted, double>>, true};
}

}  // namespace

const Form kForms[kFormCount] = {
    {"number"},
    {"text"},
    {"name"},
    {"column"},
    {"spread"},
    {"refuse"},
    {"both", 2},
    {"either", 2},
    {"choose", 3},
    comparison<std::equal_to<>>("equal"),
    comparison<std::less<>>("less"),
    comparison<std::less_equal<>>("less_equal"),
    logical<false>("negation"),
    logical<true>("truth"),
    {"add", 2, kEach<arithmetic::add>, kReal<std::plus<>>},
    {"subtract", 2, kEach<arithmetic::subtract>, kReal<std::minus<>>},
    {"multiply", 2, kEach<arithmetic::multiply>, kReal<std::multiplies<>>},
    {"floor_divide", 2, kEach<arithmetic::floor_divide>, kEach<reals::floor_divide>},
    {"divide", 2, nullptr, kEach<reals::divide>},
    {"modulo", 2, kEach<arithmetic::modulo>, kEach<reals::modulo>},
    {"minimum", 2, kEach<arithmetic::minimum>, kEach<minimum>},
    {"maximum", 2, kEach<arithmetic::maximum>, kEach<maximum>},
    {"absolute", 1, kEach<arithmetic::absolute>, kEach<reals::absolute>},
    {"ceil_div", 2, kEach<arithmetic::ceil_div>, kEach<reals::ceil_div>},
    {"**", 2, kEach<arithmetic::power>},
    {"log2", 1, kEach<arithmetic::log2>},
    {"power_of_two", 1, kEach<arithmetic::power_of_two>},
    {"magic_mul", 1, kEach<arithmetic::magic_mul>},
    {"magic_shift", 1, kEach<arithmetic::magic_shift>},
    {"floor_sum", 4, kEach<arithmetic::floor_sum>},
};

int64_t* Space::registers(const Node& node, Problem* problem) {
    return (node.dynamic ? problem->values_.data() : fixed_.data()) + node.place;
}

void Space::compute(int32_t number, Problem* problem) {
    const Node& node = nodes[number];
    uint8_t& done = node.dynamic ? problem->computed_[number] : computed_[number];
    if (done) return;
    try {
        execute(node, problem);
    } catch (const Refusal& refusal) {
        const auto root = roots_.find(number);
        if (root == roots_.end()) throw;
        throw nb::value_error(
            ("expression " + nb::cast<std::string>(root->second.attr("shown")) + refusal.reason).c_str());
    }
    done = 1;
}

void Space::execute(const Node& node, Problem* problem) {
    int64_t* const out = registers(node, problem);
    const Domain& domain = domains[node.domain];
    const int64_t count = int64_t(domain.first.size());
    const auto operand = [&](int number) {
        const Node& from = nodes[node.operands[number]];
        return Operand{registers(from, problem), from.domain == kScalar ? 0 : 1, from.kind == Kind::kReal};
    };
    const auto read = [&](int number) {
        compute(node.operands[number], problem);
        return operand(number);
    };
    switch (node.operation) {
        case Operation::kNumber:
        case Operation::kText: out[0] = node.number; return;
        case Operation::kColumn: {
            if (node.number < 0) {
                const auto& values = columns_[-1 - node.number];
                std::copy(values.begin(), values.end(), out);
                return;
            }
            const auto& digits = rows.digits[node.number];
            const auto& values = tunables[node.number].values;
            for (int64_t i = 0; i < count; i++) out[i] = values[digits[domain.first[i]]];
            return;
        }
        case Operation::kName: {
            const nb::str& name = texts[node.number];
            PyObject* const value = PyDict_GetItem(problem->names_.ptr(), name.ptr());
            if (!value) throw Refusal{std::string(" needs ") + name.c_str()};
            if (!nb::try_cast<int64_t>(nb::handle(value), out[0]))
                throw Refusal{std::string(": ") + name.c_str() + " is " + nb::cast<std::string>(nb::repr(value)) +
                              ", expected an integer"};
            return;
        }
        case Operation::kRefuse: throw Refusal{std::string(": ") + texts[node.number].c_str()};
        case Operation::kSpread: {
            const Node& from = nodes[node.operands[0]];
            const Operand a = read(0);
            const auto& index = domains[from.domain].index;
            for (int64_t i = 0; i < count; i++) out[i] = a.first[index[domain.first[i]]];
            return;
        }
        case Operation::kBoth:
        case Operation::kEither: {
            const Operand a = read(0);
            const bool either = node.operation == Operation::kEither;
            if (a.step == 0 && (a[0] != 0) == either) {  // this operand alone decides the result
                std::fill(out, out + count, int64_t(either));
                return;
            }
            const Operand b = read(1);
            for (int64_t i = 0; i < count; i++) out[i] = either ? a[i] | b[i] : a[i] & b[i];
            return;
        }
        case Operation::kChoose: {
            const Operand condition = read(0);
            const bool real = node.kind == Kind::kReal;
            const auto value = [&](Operand from, int64_t i) { return real ? bits(from.real(i)) : from[i]; };
            if (condition.step == 0) {
                const Operand chosen = read(condition[0] ? 1 : 2);
                for (int64_t i = 0; i < count; i++) out[i] = value(chosen, i);
                return;
            }
            const Operand a = read(1), b = read(2);
            for (int64_t i = 0; i < count; i++) out[i] = condition[i] ? value(a, i) : value(b, i);
            return;
        }
        default: break;
    }
    const Form& form = kForms[size_t(node.operation)];
    Operand operands[4];
    bool real = form.whole == nullptr;
    for (size_t i = 0; i < form.operands; i++) {
        operands[i] = read(int(i));
        real = real || (operands[i].is_real && form.real);
    }
    (real ? form.real : form.whole)(out, count, operands);
}

Reader Space::read(int32_t number, Problem* problem) {
    require(number >= 0 && number < int32_t(nodes.size()), "expression: expected one of the space");
    const Node& node = nodes[number];
    require(problem || !node.dynamic, "expression: expected a problem");
    if (problem && problem->values_.size() < size_t(dynamic_)) problem->values_.resize(size_t(dynamic_));
    if (problem && problem->computed_.size() < nodes.size()) problem->computed_.resize(nodes.size());
    compute(number, problem);
    return {registers(node, problem), domains[node.domain].index.data(), node.kind == Kind::kReal};
}

void Space::set_conditions(const std::vector<int32_t>& conditions) {
    uint64_t support = 0;
    for (const int32_t number : conditions)
        conditions_[nodes[number].domain].push_back(number), support |= nodes[number].support;
    tested_ = domain_of(support);
}

std::vector<int64_t> Space::valid(Problem* problem, std::vector<int64_t> rows) {
    std::vector<uint8_t> truths;
    const auto filter = [&](const Domain& domain, std::vector<int64_t>& filtered) {
        const int32_t* const index = domain.index.data();
        const uint8_t* const holds = truths.data();
        int64_t* const kept = filtered.data();
        size_t count = 0;
        for (const int64_t row : filtered) kept[count] = row, count += holds[index[row]];
        filtered.resize(count);
    };
    // Test one row of each combination of the conditions' tunables if few combinations exist.
    const Domain& tested = domains[tested_];
    std::vector<int64_t> first(tested.first.begin(), tested.first.end());
    for (const auto& [number, conditions] : conditions_) {
        const Domain& domain = domains[number];
        truths.assign(domain.first.size(), 1);
        for (const int32_t condition : conditions) {
            const Reader value = read(condition, problem);
            // Without the sign bit, zeros of both kinds are 0.
            for (size_t i = 0; i < truths.size(); i++) truths[i] &= uint8_t(value.values[i] << int(value.real) != 0);
            // Conditions without tunables come first: if one is false, the others are not evaluated.
            if (number == kScalar && truths[0] == 0) return {};
        }
        if (number != kScalar) filter(domain, tested_ == kEveryRow ? rows : first);
    }
    if (tested_ == kEveryRow) return rows;
    truths.assign(tested.first.size(), 0);
    for (const int64_t row : first) truths[tested.index[row]] = 1;
    filter(tested, rows);
    return rows;
}

Problem::Problem(Space& space, nb::dict names, nb::dict tensor_bytes, bool too_large, double flops, double bytes)
    : space(space), too_large(too_large), flops(flops), bytes(bytes), names_(names), tensor_bytes_(tensor_bytes) {
    auto& spare = space.spare_;
    if (!spare.empty()) {
        values_ = std::move(spare.back());
        spare.pop_back();
    }
}

Problem::~Problem() {
    if (space.spare_.size() < kMostSpare) space.spare_.push_back(std::move(values_));
}

double Problem::tensor_bytes(const nb::object& name) const {
    PyObject* const value = PyDict_GetItem(tensor_bytes_.ptr(), name.ptr());
    return value ? nb::cast<double>(nb::handle(value)) : 0.0;
}

}  // namespace kernrec::query
