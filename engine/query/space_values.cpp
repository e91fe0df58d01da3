// Computes the values of expressions. Nodes that do not depend on the problem are computed once for all problems.
#include "space.h"

#include <algorithm>

#include "arithmetic.h"

namespace kernrec::query {
namespace {

constexpr size_t kMostSpare = 80;

// Reason why an expression has no value. The error message also contains the text of the expression.
struct Refusal {
    std::string reason;
};

// Operand of an operation.
struct Operand {
    const int64_t* first;
    int64_t step;
    bool is_real;

    int64_t operator[](int64_t i) const { return first[i * step]; }
    double real(int64_t i) const {
        const int64_t value = first[i * step];
        return is_real ? from_bits(value) : double(value);
    }
};

template <class F>
void unary(int64_t* out, int64_t count, Operand a, F apply) {
    for (int64_t i = 0; i < count; i++) out[i] = apply(a[i]);
}
template <class F>
void binary(int64_t* out, int64_t count, Operand a, Operand b, F apply) {
    for (int64_t i = 0; i < count; i++) out[i] = apply(a[i], b[i]);
}
template <class F>
void reals(int64_t* out, int64_t count, Operand a, Operand b, F apply) {
    for (int64_t i = 0; i < count; i++) out[i] = bits(apply(a.real(i), b.real(i)));
}
template <class F>
void compared(int64_t* out, int64_t count, Operand a, Operand b, F apply) {
    if (a.is_real || b.is_real)
        for (int64_t i = 0; i < count; i++) out[i] = apply(a.real(i), b.real(i));
    else
        for (int64_t i = 0; i < count; i++) out[i] = apply(a[i], b[i]);
}

}  // namespace

int64_t* Space::registers(const Node& node, Problem* problem) {
    return (node.dynamic ? problem->values_.data() : fixed_.data()) + node.place;
}

void Space::compute(int32_t number, Problem* problem) {
    const Node& node = nodes_[size_t(number)];
    uint8_t& done = node.dynamic ? problem->computed_[size_t(number)] : computed_[size_t(number)];
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
    const Domain& domain = domains_[size_t(node.domain)];
    const int64_t count = domain.size;
    const auto operand = [&](int number) {
        const Node& from = nodes_[size_t(node.operands[number])];
        return Operand{registers(from, problem), domains_[size_t(from.domain)].scalar ? 0 : 1,
                       from.kind == Kind::kReal};
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
                const auto& values = columns_[size_t(-1 - node.number)];
                std::copy(values.begin(), values.end(), out);
                return;
            }
            const auto& digits = rows_.digits[size_t(node.number)];
            const auto& values = tunables_[size_t(node.number)].values;
            for (int64_t i = 0; i < count; i++)
                out[i] = values[size_t(digits[size_t(domain.first.empty() ? i : domain.first[size_t(i)])])];
            return;
        }
        case Operation::kInput: {
            const std::string& name = texts_[size_t(node.number)];
            PyObject* const value = PyDict_GetItem(problem->names_.ptr(), keys_[size_t(node.number)].ptr());
            if (!value) throw Refusal{" needs " + name};
            if (!nb::try_cast<int64_t>(nb::handle(value), out[0]))
                throw Refusal{": " + name + " is " + nb::cast<std::string>(nb::repr(value)) + ", expected an integer"};
            return;
        }
        case Operation::kRefuse: throw Refusal{": " + text(node.number)};
        case Operation::kSpread: {
            const Node& from = nodes_[size_t(node.operands[0])];
            const Operand a = read(0);
            const auto& index = domains_[size_t(from.domain)].index;
            for (int64_t i = 0; i < count; i++)
                out[i] = a.first[index[size_t(domain.first.empty() ? i : domain.first[size_t(i)])]];
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
            if (either) binary(out, count, a, b, [](int64_t x, int64_t y) { return x | y; });
            else binary(out, count, a, b, [](int64_t x, int64_t y) { return x & y; });
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
    const Operand a = read(0);
    if (node.operands[1] < 0) {
        switch (node.operation) {
            case Operation::kNegation:
            case Operation::kTruth: {
                const bool wanted = node.operation == Operation::kTruth;
                for (int64_t i = 0; i < count; i++) out[i] = (a.is_real ? a.real(i) != 0.0 : a[i] != 0) == wanted;
                return;
            }
            case Operation::kAbsolute:
                if (a.is_real) reals(out, count, a, a, [](double x, double) { return std::fabs(x); });
                else unary(out, count, a, [](int64_t x) { return x < 0 ? arithmetic::subtract(0, x) : x; });
                return;
            case Operation::kLog2: return unary(out, count, a, arithmetic::log2);
            case Operation::kPowerOfTwo: return unary(out, count, a, arithmetic::power_of_two);
            case Operation::kMagicMul: return unary(out, count, a, arithmetic::magic_mul);
            default: return unary(out, count, a, arithmetic::magic_shift);
        }
    }
    const Operand b = read(1);
    using Whole = int64_t (*)(int64_t, int64_t);
    using Real = double (*)(double, double);
    switch (node.operation) {
        case Operation::kEqual: return compared(out, count, a, b, [](auto x, auto y) { return x == y; });
        case Operation::kLess: return compared(out, count, a, b, [](auto x, auto y) { return x < y; });
        case Operation::kLessEqual: return compared(out, count, a, b, [](auto x, auto y) { return x <= y; });
        default: break;
    }
    if (node.kind == Kind::kReal) {
        switch (node.operation) {
            case Operation::kAdd: return reals(out, count, a, b, [](double x, double y) { return x + y; });
            case Operation::kSubtract: return reals(out, count, a, b, [](double x, double y) { return x - y; });
            case Operation::kMultiply: return reals(out, count, a, b, [](double x, double y) { return x * y; });
            case Operation::kFloorDivide: return reals(out, count, a, b, Real(arithmetic::floor_divide));
            case Operation::kModulo: return reals(out, count, a, b, Real(arithmetic::modulo));
            case Operation::kMinimum: return reals(out, count, a, b, minimum);
            case Operation::kMaximum: return reals(out, count, a, b, maximum);
            case Operation::kCeilDiv: return reals(out, count, a, b, Real(arithmetic::ceil_div));
            default: return reals(out, count, a, b, [](double x, double y) { return y == 0.0 ? 0.0 : x / y; });
        }
    }
    switch (node.operation) {
        case Operation::kAdd: return binary(out, count, a, b, arithmetic::add);
        case Operation::kSubtract: return binary(out, count, a, b, arithmetic::subtract);
        case Operation::kMultiply: return binary(out, count, a, b, arithmetic::multiply);
        case Operation::kFloorDivide: return binary(out, count, a, b, Whole(arithmetic::floor_divide));
        case Operation::kModulo: return binary(out, count, a, b, Whole(arithmetic::modulo));
        case Operation::kPower: return binary(out, count, a, b, arithmetic::power);
        case Operation::kMinimum: return binary(out, count, a, b, [](int64_t x, int64_t y) { return std::min(x, y); });
        case Operation::kMaximum: return binary(out, count, a, b, [](int64_t x, int64_t y) { return std::max(x, y); });
        case Operation::kCeilDiv: return binary(out, count, a, b, Whole(arithmetic::ceil_div));
        default: {
            const Operand c = read(2), d = read(3);
            for (int64_t i = 0; i < count; i++) out[i] = arithmetic::floor_sum(a[i], b[i], c[i], d[i]);
        }
    }
}

Reader Space::read(int32_t number, Problem* problem) {
    require(number >= 0 && number < int32_t(nodes_.size()), "expression: expected one of the space");
    const Node& node = nodes_[size_t(number)];
    require(problem || !node.dynamic, "expression: expected a problem");
    if (problem && problem->values_.size() < size_t(dynamic_)) problem->values_.resize(size_t(dynamic_));
    if (problem && problem->computed_.size() < nodes_.size()) problem->computed_.resize(nodes_.size());
    compute(number, problem);
    const Domain& domain = domains_[size_t(node.domain)];
    return {registers(node, problem), domain.index.empty() ? nullptr : domain.index.data(), domain.scalar ? 0 : 1,
            node.kind == Kind::kReal};
}

void Space::set_conditions(const std::vector<int32_t>& nodes) {
    uint64_t support = 0;
    for (const int32_t number : nodes)
        conditions_[node(number).domain].push_back(number), support |= node(number).support;
    tested_ = domain_of(support);
}

std::vector<int64_t> Space::valid(Problem* problem, std::vector<int64_t> rows) {
    std::vector<uint8_t> truths;
    const auto filter = [&](const std::vector<int32_t>& index_of, std::vector<int64_t>& filtered) {
        const int32_t* const index = index_of.empty() ? nullptr : index_of.data();
        const uint8_t* const holds = truths.data();
        int64_t* const kept = filtered.data();
        size_t count = 0;
        for (const int64_t row : filtered) {
            kept[count] = row;
            count += holds[index == nullptr ? row : index[row]];
        }
        filtered.resize(count);
    };
    // Test one row of each combination of the conditions' tunables if few combinations exist.
    const Domain& tested = domains_[size_t(tested_)];
    std::vector<int64_t> first(tested.first.begin(), tested.first.end());
    for (const auto& [number, conditions] : conditions_) {
        const Domain& domain = domains_[size_t(number)];
        truths.assign(size_t(domain.size), 1);
        for (const int32_t condition : conditions) {
            const Reader value = read(condition, problem);
            // Without the sign bit, zeros of both kinds are 0.
            for (size_t i = 0; i < truths.size(); i++) truths[i] &= uint8_t(value.values[i] << int(value.real) != 0);
            // Conditions without tunables come first: if one is false, the others are not evaluated.
            if (domain.scalar && truths[0] == 0) return {};
        }
        if (!domain.scalar) filter(domain.index, tested.first.empty() ? rows : first);
    }
    if (tested.first.empty()) return rows;
    truths.assign(tested.first.size(), 0);
    for (const int64_t row : first) truths[size_t(tested.index[size_t(row)])] = 1;
    filter(tested.index, rows);
    return rows;
}

Problem::Problem(nb::object space, nb::dict names, nb::dict tensor_bytes, bool too_large, double flops, double bytes)
    : flops(flops),
      bytes(bytes),
      kept_(space),
      space_(&nb::cast<Space&>(space)),
      names_(names),
      tensor_bytes_(tensor_bytes),
      too_large_(too_large) {
    auto& spare = space_->spare_;
    if (!spare.empty()) {
        values_ = std::move(spare.back());
        spare.pop_back();
    }
}

Problem::~Problem() {
    if (space_->spare_.size() < kMostSpare) space_->spare_.push_back(std::move(values_));
}

double Problem::tensor_bytes(const nb::object& name) const {
    PyObject* const value = PyDict_GetItem(tensor_bytes_.ptr(), name.ptr());
    return value ? nb::cast<double>(nb::handle(value)) : 0.0;
}

}  // namespace kernrec::query
