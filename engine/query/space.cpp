// Builds expressions as nodes, with one node per distinct subexpression, and computes them for a problem.
//
// kernrec/kernel/expression.py describes the language and creates the trees.
#include "space.h"

#include <algorithm>

#include "arithmetic.h"

namespace kernrec::query {
namespace {

// Combinations are marked in a table if the table has at most this many times the rows; otherwise they are sorted. A
// domain is also used only below this limit.
constexpr int64_t kSparse = 8;
constexpr int64_t kSmallTable = 1 << 16;
constexpr int64_t kMostDepth = 2000;  // limits the recursion of nested expressions and lets
constexpr size_t kMostSpare = 80;
constexpr size_t kLastBit = 63;

// Reason why an expression has no value; reported with the text of its expression.
struct Refusal {
    std::string reason;
};

std::string quoted(const std::string& text) { return nb::cast<std::string>(nb::repr(nb::str(text.c_str()))); }

// Operand of an operation.
struct Operand {
    const int64_t* first;
    int64_t step;
    bool is_real;

    int64_t operator[](int64_t i) const { return first[i * step]; }
    double real(int64_t i) const {
        const int64_t value = first[i * step];
        if (!is_real) return double(value);
        double result;
        std::memcpy(&result, &value, sizeof result);
        return result;
    }
};

int64_t bits(double value) {
    int64_t result;
    std::memcpy(&result, &value, sizeof result);
    return result;
}

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

bool is_comparison(Operation operation) {
    return operation == Operation::kEqual || operation == Operation::kLess || operation == Operation::kLessEqual;
}

// Return the name of a function that takes only integers, or null.
const char* integer_function(Operation operation) {
    switch (operation) {
        case Operation::kPower: return "**";
        case Operation::kLog2: return "log2";
        case Operation::kPowerOfTwo: return "power_of_two";
        case Operation::kMagicMul: return "magic_mul";
        case Operation::kMagicShift: return "magic_shift";
        case Operation::kFloorSum: return "floor_sum";
        default: return nullptr;
    }
}

}  // namespace

Rows Rows::with_tunable(int64_t choices) const {
    Rows result;
    result.count = count * choices;
    for (const auto& column : digits) {
        result.digits.emplace_back();
        for (const int32_t digit : column) result.digits.back().insert(result.digits.back().end(), size_t(choices), digit);
    }
    std::vector<int32_t> added(size_t(result.count));
    for (int64_t i = 0; i < result.count; i++) added[size_t(i)] = int32_t(i % choices);
    result.digits.push_back(std::move(added));
    return result;
}

Rows Rows::take(const std::vector<uint8_t>& kept) const {
    Rows result;
    result.count = std::count_if(kept.begin(), kept.end(), [](uint8_t keep) { return keep != 0; });
    for (const auto& column : digits) {
        result.digits.emplace_back();
        result.digits.back().reserve(size_t(result.count));
        for (size_t row = 0; row < kept.size(); row++)
            if (kept[row]) result.digits.back().push_back(column[row]);
    }
    return result;
}

Space::Space(std::vector<Tunable> tunables, Rows rows, nb::dict lets, nb::dict facts)
    : tunables_(std::move(tunables)), rows_(std::move(rows)), lets_(lets), facts_(facts) {
    domains_.emplace_back();  // one value for all rows
    domains_.push_back({rows_.count, false, {}, {}});
    domain_of_[0] = 0;
}

Domain Space::groups(const std::vector<int64_t>& tunables) const {
    const size_t count = size_t(rows_.count);
    std::vector<uint64_t> code(count, 0);
    double size = 1.0;
    for (const int64_t tunable : tunables) {
        const auto& digits = rows_.digits.at(size_t(tunable));
        const uint64_t choices = tunables_.at(size_t(tunable)).values.size();
        for (size_t row = 0; row < count; row++) code[row] = code[row] * choices + uint64_t(digits[row]);
        size *= double(choices);
    }
    Domain domain{0, false, {}, {}};
    domain.index.resize(count);
    if (size <= double(std::max(kSparse * rows_.count, kSmallTable))) {
        std::vector<int32_t> place(size_t(size), -1);
        for (size_t row = 0; row < count; row++) place[code[row]] = 0;
        for (int32_t& each : place)
            if (each == 0) each = int32_t(domain.size++);
        for (size_t row = 0; row < count; row++) domain.index[row] = place[code[row]];
    } else {
        std::vector<uint64_t> sorted(code);
        std::sort(sorted.begin(), sorted.end());
        sorted.erase(std::unique(sorted.begin(), sorted.end()), sorted.end());
        domain.size = int64_t(sorted.size());
        for (size_t row = 0; row < count; row++)
            domain.index[row] = int32_t(std::lower_bound(sorted.begin(), sorted.end(), code[row]) - sorted.begin());
    }
    domain.first.assign(size_t(domain.size), 0);
    for (size_t row = count; row-- > 0;) domain.first[size_t(domain.index[row])] = int32_t(row);
    return domain;
}

int32_t Space::domain_of(uint64_t support) {
    if (const auto cached = domain_of_.find(support); cached != domain_of_.end()) return cached->second;
    int32_t result = 1;
    double size = 1.0;
    std::vector<int64_t> used;
    for (size_t tunable = 0; tunable < tunables_.size(); tunable++)
        if (support >> std::min(tunable, kLastBit) & 1)
            used.push_back(int64_t(tunable)), size *= double(tunables_[tunable].values.size());
    if (size <= double(kSparse) * double(rows_.count)) {
        Domain domain = groups(used);
        if (2 * domain.size <= rows_.count) {
            result = int32_t(domains_.size());
            domains_.push_back(std::move(domain));
        }
    }
    return domain_of_[support] = result;
}

int64_t Space::interned(const std::string& text) {
    const auto [place, is_new] = text_numbers_.try_emplace(text, int64_t(texts_.size()));
    if (is_new) texts_.push_back(text);
    return place->second;
}

int32_t Space::made(Node node) {
    std::vector<int64_t> key{int64_t(node.operation), node.number, int64_t(node.kind), node.domain};
    key.insert(key.end(), node.operands, node.operands + 4);
    const auto [place, is_new] = made_.try_emplace(std::move(key), int32_t(nodes_.size()));
    if (!is_new) return place->second;
    const int64_t size = domains_[size_t(node.domain)].size;
    if (node.dynamic) {
        node.place = dynamic_;
        dynamic_ += size;
    } else {
        node.place = int64_t(fixed_.size());
        fixed_.resize(fixed_.size() + size_t(size));
    }
    nodes_.push_back(node);
    computed_.push_back(0);
    return place->second;
}

int32_t Space::leaf(Operation operation, Kind kind, int64_t number) {
    Node node{operation};
    node.kind = kind;
    node.number = number;
    node.dynamic = operation == Operation::kInput;
    return made(node);
}

int32_t Space::refusal(const std::string& reason) { return leaf(Operation::kRefuse, Kind::kInteger, interned(reason)); }

int32_t Space::spread(int32_t number, int32_t domain) {
    const Node& from = nodes_[size_t(number)];
    if (from.domain == domain || from.domain <= 1) return number;
    Node node{Operation::kSpread};
    node.kind = from.kind;
    node.dynamic = from.dynamic;
    node.operands[0] = number;
    node.support = from.support;
    node.domain = domain;
    node.depth = from.depth + 1;
    return made(node);
}

int32_t Space::apply(Operation operation, std::vector<int32_t> operands) {
    bool any_text = false, all_text = true, any_real = false;
    for (size_t i = 0; i < operands.size(); i++) {
        if (operation == Operation::kChoose && i == 0) continue;
        const Kind kind = nodes_[size_t(operands[i])].kind;
        any_text = any_text || kind == Kind::kText, all_text = all_text && kind == Kind::kText;
        any_real = any_real || kind == Kind::kReal;
    }
    if (any_text && !(all_text && (operation == Operation::kEqual || operation == Operation::kChoose))) {
        if (operation == Operation::kEqual) return refusal("compares text with a number");
        std::string shown;
        for (const int32_t operand : operands)
            if (const Node& node = nodes_[size_t(operand)]; node.operation == Operation::kText && shown.empty())
                shown = " " + quoted(text(node.number));
        return refusal("text" + shown + " where a number is expected");
    }
    if (const char* function = integer_function(operation); function && any_real)
        return refusal(std::string(function) + " takes integers");
    Node node{operation};
    for (const int32_t operand : operands) {
        const Node& from = nodes_[size_t(operand)];
        node.support |= from.support;
        node.dynamic = node.dynamic || from.dynamic;
        node.depth = std::max(node.depth, from.depth + 2);
        if (from.domain == 1) node.domain = 1;  // like its operand, each row is its own combination
    }
    if (node.depth > kMostDepth) throw nb::value_error("an expression is nested too deeply");
    if (node.domain != 1) node.domain = domain_of(node.support);
    const bool same_kind = operation == Operation::kAdd || operation == Operation::kSubtract ||
                           operation == Operation::kMultiply || operation == Operation::kFloorDivide ||
                           operation == Operation::kModulo || operation == Operation::kMinimum ||
                           operation == Operation::kMaximum || operation == Operation::kAbsolute ||
                           operation == Operation::kCeilDiv || operation == Operation::kChoose;
    if (operation == Operation::kDivide || (same_kind && any_real)) node.kind = Kind::kReal;
    if (operation == Operation::kChoose && all_text) node.kind = Kind::kText;
    for (size_t i = 0; i < operands.size(); i++) node.operands[i] = spread(operands[i], node.domain);
    return made(node);
}

int32_t Space::name(const std::string& name, int64_t depth) {
    if (const auto known = names_.find(name); known != names_.end()) return known->second;
    int32_t result = -1;
    if (const auto column = columns_of_.find(name); column != columns_of_.end()) result = column->second;
    const nb::str key(name.c_str());
    for (size_t tunable = 0; tunable < rows_.digits.size() && result < 0; tunable++) {
        if (tunables_[tunable].name != name) continue;
        Node node{Operation::kColumn};
        node.number = int64_t(tunable);
        node.support = uint64_t(1) << std::min(tunable, kLastBit);
        node.domain = domain_of(node.support);
        result = made(node);
    }
    if (result < 0 && lets_.contains(key)) {
        const nb::object let = lets_[key];
        if (depth > kMostDepth) throw nb::value_error("lets are nested too deeply");
        result = add(let);
    }
    if (result < 0 && facts_.contains(key)) {
        const nb::object fact = facts_[key];
        if (nb::isinstance<nb::str>(fact))
            result = leaf(Operation::kText, Kind::kText, interned(nb::cast<std::string>(fact)));
        else if (nb::isinstance<nb::float_>(fact))
            result = leaf(Operation::kNumber, Kind::kReal, bits(nb::cast<double>(fact)));
        else
            result = leaf(Operation::kNumber, Kind::kInteger, nb::cast<int64_t>(fact));
    }
    if (result < 0) result = leaf(Operation::kInput, Kind::kInteger, interned(name));
    names_[name] = result;
    return result;
}

int32_t Space::build(nb::handle tree, int64_t depth) {
    if (depth > kMostDepth) throw nb::value_error("an expression is nested too deeply");
    const nb::tuple parts = nb::cast<nb::tuple>(tree);
    require(parts.size() >= 2 && parts.size() <= 5, "tree: expected an operation and its operands");
    const int64_t code = nb::cast<int64_t>(parts[0]);
    require(code >= 0 && code <= int64_t(Operation::kFloorSum), "tree: expected an operation");
    const auto operation = Operation(code);
    switch (operation) {
        case Operation::kNumber:
            if (nb::isinstance<nb::float_>(parts[1])) return leaf(operation, Kind::kReal, bits(nb::cast<double>(parts[1])));
            return leaf(operation, Kind::kInteger, nb::cast<int64_t>(parts[1]));
        case Operation::kText: return leaf(operation, Kind::kText, interned(nb::cast<std::string>(parts[1])));
        case Operation::kInput: return name(nb::cast<std::string>(parts[1]), depth + 1);
        case Operation::kColumn: case Operation::kSpread: case Operation::kRefuse:
            throw nb::value_error("tree: expected an operation");
        default: break;
    }
    size_t expected = 2;
    if (operation == Operation::kFloorSum) expected = 4;
    if (operation == Operation::kChoose) expected = 3;
    if (operation == Operation::kNegation || operation == Operation::kTruth || operation == Operation::kAbsolute ||
        (operation >= Operation::kLog2 && operation <= Operation::kMagicShift))
        expected = 1;
    require(parts.size() == expected + 1, "tree: expected the operands of the operation");
    std::vector<int32_t> operands;
    for (size_t i = 1; i < parts.size(); i++) operands.push_back(build(parts[i], depth + 1));
    return apply(operation, std::move(operands));
}

int32_t Space::add(nb::handle expression) {
    if (const auto known = expressions_.find(expression.ptr()); known != expressions_.end()) return known->second;
    // Guard against lets that depend on each other: each level of lets uses one level of recursion.
    struct Level {
        int64_t& depth;
        ~Level() { depth--; }
    };
    static thread_local int64_t levels = 0;
    if (++levels > kMostDepth / 20) {
        levels--;
        throw nb::value_error("lets are nested too deeply");
    }
    const Level level{levels};
    const int32_t node = build(expression.attr("tree"), 0);
    kept_.push_back(nb::borrow(expression));
    expressions_[expression.ptr()] = node;
    roots_.try_emplace(node, nb::borrow(expression));
    return node;
}

void Space::add_column(const std::string& name, Kind kind, std::vector<int64_t> values) {
    require(int64_t(values.size()) == rows_.count, "column: expected a value of each row");
    Node node{Operation::kColumn};
    node.kind = kind;
    node.number = -1 - int64_t(columns_.size());
    node.domain = 1;
    columns_.push_back(std::move(values));
    columns_of_[name] = made(node);
}

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
        return Operand{registers(from, problem), domains_[size_t(from.domain)].scalar ? 0 : 1, from.kind == Kind::kReal};
    };
    const auto read = [&](int number) {
        compute(node.operands[number], problem);
        return operand(number);
    };
    switch (node.operation) {
        case Operation::kNumber: case Operation::kText:
            out[0] = node.number;
            return;
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
            PyObject* const value = PyDict_GetItemString(problem->names_.ptr(), name.c_str());
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
        case Operation::kBoth: case Operation::kEither: {
            const Operand a = read(0);
            const bool either = node.operation == Operation::kEither;
            if (a.step == 0 && (a[0] != 0) == either) {  // the other operand does not matter
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
            case Operation::kNegation: case Operation::kTruth: {
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
    if (is_comparison(node.operation)) {
        switch (node.operation) {
            case Operation::kEqual: return compared(out, count, a, b, [](auto x, auto y) { return x == y; });
            case Operation::kLess: return compared(out, count, a, b, [](auto x, auto y) { return x < y; });
            default: return compared(out, count, a, b, [](auto x, auto y) { return x <= y; });
        }
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
        case Operation::kMinimum:
            return binary(out, count, a, b, [](int64_t x, int64_t y) { return std::min(x, y); });
        case Operation::kMaximum:
            return binary(out, count, a, b, [](int64_t x, int64_t y) { return std::max(x, y); });
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

void Space::set_conditions(std::vector<int32_t> nodes) {
    // Conditions without tunables come first: if one is false, the others are not evaluated.
    std::stable_partition(nodes.begin(), nodes.end(), [&](int32_t number) { return node(number).domain == 0; });
    conditions_ = std::move(nodes);
}

void Space::test(Problem* problem, const Row<uint8_t>& holds) {
    require(holds.size == rows_.count, "holds: expected one of each row");
    std::map<int32_t, std::vector<uint8_t>> by_domain;
    for (const int32_t number : conditions_) {
        const Reader value = read(number, problem);
        const Node& condition = node(number);
        // Without the sign bit, zeros of both kinds are 0.
        const auto is_true = [&](int64_t i) { return (value.values[i] << int(value.real)) != 0; };
        if (condition.domain == 0) {
            if (is_true(0)) continue;
            for (int64_t row = 0; row < holds.size; row++) holds[row] = 0;
            return;
        }
        auto& truths = by_domain[condition.domain];
        truths.resize(size_t(domain(condition.domain).size), 1);
        for (size_t i = 0; i < truths.size(); i++) truths[i] = truths[i] && is_true(int64_t(i));
    }
    for (const auto& [number, truths] : by_domain) {
        const auto& index = domain(number).index;
        if (index.empty())
            for (int64_t row = 0; row < holds.size; row++) holds[row] = holds[row] & truths[size_t(row)];
        else
            for (int64_t row = 0; row < holds.size; row++)
                holds[row] = holds[row] & truths[size_t(index[size_t(row)])];
    }
}

Problem::Problem(nb::object space, nb::dict names, nb::dict tensor_bytes, bool too_large, double flops, double bytes)
    : flops(flops), bytes(bytes), kept_(space), space_(&nb::cast<Space&>(space)), names_(names),
      tensor_bytes_(tensor_bytes), too_large_(too_large) {
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

namespace {

template <class T>
nb::object numpy(std::vector<T> values) {
    auto* const kept = new std::vector<T>(std::move(values));
    const nb::capsule owner(kept, [](void* p) noexcept { delete static_cast<std::vector<T>*>(p); });
    return nb::cast(nb::ndarray<nb::numpy, T, nb::ndim<1>>(kept->data(), {kept->size()}, owner));
}

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
        std::vector<uint8_t> kept(size_t(rows.count), 1);
        part.test(nullptr, {kept.data(), int64_t(kept.size())});
        rows = rows.take(kept);
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
                throw nb::value_error(("over " + std::to_string(most) + " configs already at " +
                                       tunables[fixed - 1].name).c_str());
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
    for (int64_t i = 0; i < count; i++)
        values[size_t(i)] = value.values[value.index ? value.index[row(i)] : row(i)];
    return numpy(std::move(values));
}

// Return the value of an expression for names with numbers, texts, and arrays of `count` integers or reals.
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
        } else
            facts[name] = value;
    }
    return value_of(space, space.add(expression), nullptr, std::nullopt);
}

}  // namespace

void bind_spaces(nb::module_& module) {
    const auto exact = [] { return nb::arg().noconvert(); };
    nb::class_<Space>(module, "Space")
        .def("__init__",
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
                 uint8_t holds = 1;
                 problem.space().test(&problem, {&holds, 1});
                 return holds != 0;
             })
        .def("fixed", [](Space& space, nb::handle expression) { return !space.node(space.add(expression)).dynamic; })
        .def("digits", [](const Space& space, size_t tunable) {
            const auto& digits = space.rows().digits.at(tunable);
            return numpy(std::vector<int64_t>(digits.begin(), digits.end()));
        })
        .def("groups", [](const Space& space, std::vector<int64_t> tunables) {
            const Domain domain = space.groups(tunables);
            return nb::make_tuple(numpy(std::vector<int64_t>(domain.index.begin(), domain.index.end())),
                                  numpy(std::vector<int64_t>(domain.first.begin(), domain.first.end())));
        });
    nb::class_<Problem>(module, "Problem")
        .def(nb::init<nb::object, nb::dict, nb::dict, bool, double, double>())
        .def("column", [](Problem& problem, nb::handle expression, std::optional<Places> rows) {
            return value_of(problem.space(), problem.space().add(expression), &problem, rows);
        }, nb::arg(), nb::arg().none().noconvert() = nb::none())
        .def("test", [](Problem& problem, Array<bool, 1> holds) {
            const Row<bool> bools(holds);
            if (problem.too_large())
                for (int64_t row = 0; row < bools.size; row++) bools[row] = false;
            else
                problem.space().test(&problem, {reinterpret_cast<uint8_t*>(bools.data), bools.size, bools.step});
        }, exact());
    module.def("evaluated", &evaluated, nb::arg(), nb::arg(), nb::arg());
}

}  // namespace kernrec::query
