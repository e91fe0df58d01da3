// Computes the values of expressions. Nodes that do not depend on the problem are computed once for all problems.
#include "space.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <utility>

namespace kernrec::query {
namespace {

constexpr size_t kMostSpare = 80;

// Arithmetic on 64-bit integers and on reals. Integers wrap. No operation fails: x // 0 is 0.
namespace arithmetic {

// Apply a function object, such as `std::less<>`.
template <class Function, class R, class T>
R applied(T a, T b) {
    return Function()(a, b);
}
template <bool wanted, class T>
int64_t is_true(T a) {
    return (a != T(0)) == wanted;
}

int64_t add(int64_t a, int64_t b) { return int64_t(uint64_t(a) + uint64_t(b)); }
int64_t subtract(int64_t a, int64_t b) { return int64_t(uint64_t(a) - uint64_t(b)); }
int64_t multiply(int64_t a, int64_t b) { return int64_t(uint64_t(a) * uint64_t(b)); }
int64_t minimum(int64_t a, int64_t b) { return b < a ? b : a; }
int64_t maximum(int64_t a, int64_t b) { return a < b ? b : a; }
int64_t absolute(int64_t a) { return a < 0 ? subtract(0, a) : a; }
int64_t floor_divide(int64_t a, int64_t b) {
    if (b == 0) return 0;
    if (b == -1) return subtract(0, a);  // the CPU traps if it divides the smallest integer by -1
    const int64_t quotient = a / b;
    return quotient - (quotient * b != a && (a < 0) != (b < 0));
}
int64_t modulo(int64_t a, int64_t b) {
    if (b == 0 || b == -1) return 0;
    const int64_t rest = a % b;
    return rest != 0 && (rest < 0) != (b < 0) ? rest + b : rest;
}
int64_t ceil_div(int64_t a, int64_t b) { return subtract(0, floor_divide(subtract(0, a), b)); }
int64_t power(int64_t a, int64_t b) {
    if (b < 0) return 0;
    int64_t result = 1;
    for (; b > 0; b >>= 1, a = multiply(a, a))
        if (b & 1) result = multiply(result, a);
    return result;
}
int64_t log2(int64_t a) {
    int64_t exponent = 0;
    for (; a > 1; a >>= 1) exponent++;
    return exponent;
}
int64_t power_of_two(int64_t a) { return a > 0 && (a & (a - 1)) == 0; }
bool has_magic(int64_t d) { return d >= 2 && d <= int64_t(1) << 31; }
int64_t magic_shift(int64_t d) { return has_magic(d) ? log2(d - 1) : 0; }
int64_t magic_mul(int64_t d) { return has_magic(d) ? ceil_div(int64_t(1) << (log2(d - 1) + 32), d) : 0; }

// Return the sum of (step * i + start) // divisor for i < n, by Euclid's algorithm (Graham, Knuth and Patashnik,
// "Concrete Mathematics", section 3.5). Return 0 for n <= 0, step < 0, divisor <= 0 or an operand of 2**31 or more.
int64_t floor_sum(int64_t n, int64_t step, int64_t start, int64_t divisor) {
    constexpr int64_t kLimit = int64_t(1) << 31;
    if (n <= 0 || step < 0 || divisor <= 0 || start <= -kLimit) return 0;
    if (n >= kLimit || step >= kLimit || divisor >= kLimit || start >= kLimit) return 0;
    for (int64_t total = 0;;) {
        const int64_t pairs = multiply(n, n - 1) / 2;
        const int64_t whole_steps = multiply(pairs, floor_divide(step, divisor));
        total = add(total, add(whole_steps, multiply(n, floor_divide(start, divisor))));
        step = modulo(step, divisor), start = modulo(start, divisor);
        const int64_t beyond = add(multiply(step, n), start);
        n = floor_divide(beyond, divisor);
        if (n == 0) return total;
        start = modulo(beyond, divisor);
        std::swap(step, divisor);
    }
}

namespace reals {

double divide(double a, double b) { return b == 0.0 ? 0.0 : a / b; }
double absolute(double a) { return std::fabs(a); }
double modulo(double a, double b) {
    if (b == 0.0) return 0.0;
    const double rest = std::fmod(a, b);
    if (rest == 0.0) return std::copysign(0.0, b);
    return (rest < 0.0) != (b < 0.0) ? rest + b : rest;
}
// Subtract the remainder before dividing and rounding, like Python and NumPy.
double floor_divide(double a, double b) {
    if (b == 0.0) return 0.0;
    const double quotient = (a - modulo(a, b)) / b;
    if (quotient == 0.0) return std::copysign(0.0, a / b);
    const double whole = std::floor(quotient);
    return quotient - whole > 0.5 ? whole + 1.0 : whole;
}
double ceil_div(double a, double b) { return 0.0 - floor_divide(0.0 - a, b); }

}  // namespace reals
}  // namespace arithmetic

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
    if (tested_ <= kEveryRow) return rows;
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
