// Builds expressions as nodes, with one node per distinct subexpression.
//
// kernrec/kernel/expression.py describes the language and creates the trees. `space_values.cpp` computes the nodes.
#include "space.h"

#include <algorithm>

namespace kernrec::query {
namespace {

// A node gets a domain only if its tunables have at most this many combinations per row. A table then finds the
// distinct combinations without sorting.
constexpr int64_t kSparse = 8;
constexpr int64_t kSmallTable = 1 << 16;
constexpr int64_t kMostDepth = 2000;  // maximum depth of an expression in which definitions replace names
constexpr size_t kLastBit = 63;

std::string quoted(const std::string& text) { return nb::cast<std::string>(nb::repr(nb::str(text.c_str()))); }

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
        for (const int32_t digit : column)
            result.digits.back().insert(result.digits.back().end(), size_t(choices), digit);
    }
    std::vector<int32_t> added(size_t(result.count));
    for (int64_t i = 0; i < result.count; i++) added[size_t(i)] = int32_t(i % choices);
    result.digits.push_back(std::move(added));
    return result;
}

Rows Rows::take(const std::vector<int64_t>& kept) const {
    Rows result;
    result.count = int64_t(kept.size());
    for (const auto& column : digits) {
        result.digits.emplace_back();
        for (const int64_t row : kept) result.digits.back().push_back(column[size_t(row)]);
    }
    return result;
}

Space::Space(std::vector<Tunable> tunables, Rows rows, nb::dict lets, nb::dict facts)
    : tunables_(std::move(tunables)), rows_(std::move(rows)), lets_(lets), facts_(facts) {
    domains_.emplace_back();  // one value for all rows
    domains_.push_back({rows_.count, false, {}, {}});
    domain_of_[0] = 0;
}

nb::dict Space::config(int64_t row) const {
    nb::dict values;
    for (size_t i = 0; i < config_names_.size(); i++)
        values[config_names_[i]] = tunables_[i].values[size_t(rows_.digits[i].at(size_t(row)))];
    return values;
}

void Space::set_names(nb::list names) {
    require(names.size() <= tunables_.size(), "names: expected a tunable for each");
    config_names_ = names;
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
    if (is_new) texts_.push_back(text), keys_.push_back(nb::str(text.c_str()));
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
        if (from.domain == 1) node.domain = 1;  // domain 1: each row is a combination of its own
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
        else result = leaf(Operation::kNumber, Kind::kInteger, nb::cast<int64_t>(fact));
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
            if (nb::isinstance<nb::float_>(parts[1]))
                return leaf(operation, Kind::kReal, bits(nb::cast<double>(parts[1])));
            return leaf(operation, Kind::kInteger, nb::cast<int64_t>(parts[1]));
        case Operation::kText: return leaf(operation, Kind::kText, interned(nb::cast<std::string>(parts[1])));
        case Operation::kInput: return name(nb::cast<std::string>(parts[1]), depth + 1);
        case Operation::kColumn:
        case Operation::kSpread:
        case Operation::kRefuse: throw nb::value_error("tree: expected an operation");
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

}  // namespace kernrec::query
