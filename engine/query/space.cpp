// Builds expressions as nodes, with one node per distinct subexpression.
//
// kernrec/kernel/expression.py describes the language and creates the trees. `space_values.cpp` computes the nodes.
#include "space.h"

#include <algorithm>
#include <numeric>

namespace kernrec::query {
namespace {

// A node gets a domain only if its tunables have at most this many combinations per row. A table then finds the
// distinct combinations without sorting.
constexpr int64_t kSparse = 8;
constexpr int64_t kSmallTable = 1 << 16;
constexpr int64_t kMostDepth = 2000;  // maximum depth of an expression in which definitions replace names
constexpr size_t kLastBit = 63;

}  // namespace

Space::Space(std::vector<Tunable> tunables_of, Rows rows_of, nb::dict lets, nb::dict facts)
    : tunables(std::move(tunables_of)), rows(std::move(rows_of)), lets_(lets), facts_(facts) {
    domains.push_back({std::vector<int32_t>(size_t(rows.count), 0), {0}});
    std::vector<int32_t> every(static_cast<size_t>(rows.count));
    std::iota(every.begin(), every.end(), 0);
    domains.push_back({every, every});
    domain_of_[0] = kScalar;
}

nb::dict Space::config(int64_t row) const {
    nb::dict values;
    for (size_t i = 0; i < config_names.size(); i++)
        values[config_names[i]] = tunables.at(i).values[rows.digits[i].at(size_t(row))];
    return values;
}

Domain Space::groups(const std::vector<int64_t>& grouped) const {
    const size_t count = size_t(rows.count);
    std::vector<uint64_t> code(count, 0);
    double size = 1.0;
    for (const int64_t tunable : grouped) {
        const auto& digits = rows.digits.at(size_t(tunable));
        const uint64_t choices = tunables.at(size_t(tunable)).values.size();
        for (size_t row = 0; row < count; row++) code[row] = code[row] * choices + uint64_t(digits[row]);
        size *= double(choices);
    }
    Domain domain{std::vector<int32_t>(count), {}};
    size_t different = 0;
    if (size <= double(std::max(kSparse * rows.count, kSmallTable))) {
        std::vector<int32_t> place(size_t(size), -1);
        for (size_t row = 0; row < count; row++) place[code[row]] = 0;
        for (int32_t& each : place)
            if (each == 0) each = int32_t(different++);
        for (size_t row = 0; row < count; row++) domain.index[row] = place[code[row]];
    } else {
        std::vector<uint64_t> sorted(code);
        std::sort(sorted.begin(), sorted.end());
        sorted.erase(std::unique(sorted.begin(), sorted.end()), sorted.end());
        different = sorted.size();
        for (size_t row = 0; row < count; row++)
            domain.index[row] = int32_t(std::lower_bound(sorted.begin(), sorted.end(), code[row]) - sorted.begin());
    }
    domain.first.assign(different, 0);
    for (size_t row = count; row-- > 0;) domain.first[domain.index[row]] = int32_t(row);
    return domain;
}

int32_t Space::domain_of(uint64_t support) {
    if (const auto cached = domain_of_.find(support); cached != domain_of_.end()) return cached->second;
    int32_t result = kEveryRow;
    double size = 1.0;
    std::vector<int64_t> used;
    for (size_t tunable = 0; tunable < tunables.size(); tunable++)
        if (support >> std::min(tunable, kLastBit) & 1)
            used.push_back(int64_t(tunable)), size *= double(tunables[tunable].values.size());
    if (size <= double(kSparse) * double(rows.count)) {
        Domain domain = groups(used);
        if (2 * int64_t(domain.first.size()) <= rows.count) {
            result = int32_t(domains.size());
            domains.push_back(std::move(domain));
        }
    }
    return domain_of_[support] = result;
}

int64_t Space::interned(const std::string& text) {
    const auto [place, is_new] = text_numbers_.try_emplace(text, int64_t(texts.size()));
    if (is_new) texts.emplace_back(text.c_str());
    return place->second;
}

int32_t Space::made(Node node) {
    std::vector<int64_t> key{int64_t(node.operation), node.number, int64_t(node.kind), node.domain};
    key.insert(key.end(), node.operands.begin(), node.operands.end());
    const auto [place, is_new] = made_.try_emplace(std::move(key), int32_t(nodes.size()));
    if (!is_new) return place->second;
    const int64_t size = int64_t(domains[node.domain].first.size());
    if (node.dynamic) {
        node.place = dynamic_;
        dynamic_ += size;
    } else {
        node.place = int64_t(fixed_.size());
        fixed_.resize(fixed_.size() + size_t(size));
    }
    nodes.push_back(node);
    computed_.push_back(0);
    return place->second;
}

int32_t Space::leaf(Operation operation, Kind kind, int64_t number) {
    Node node{operation, kind, operation == Operation::kName};
    node.number = number;
    return made(node);
}

// Return the leaf of a number or text.
int32_t Space::constant(nb::handle value) {
    if (nb::isinstance<nb::str>(value))
        return leaf(Operation::kText, Kind::kText, interned(nb::cast<std::string>(value)));
    if (nb::isinstance<nb::float_>(value)) return leaf(Operation::kNumber, Kind::kReal, bits(nb::cast<double>(value)));
    return leaf(Operation::kNumber, Kind::kInteger, nb::cast<int64_t>(value));
}

int32_t Space::spread(int32_t number, int32_t domain) {
    Node node = nodes[number];
    if (node.domain == domain || node.domain <= kEveryRow) return number;
    node.operation = Operation::kSpread;
    node.operands = {number, -1, -1, -1};
    node.number = 0;
    node.domain = domain;
    node.depth++;
    return made(node);
}

int32_t Space::apply(Operation operation, const std::vector<int32_t>& operands) {
    const auto refusal = [&](const std::string& reason) {
        return leaf(Operation::kRefuse, Kind::kInteger, interned(reason));
    };
    const Form& form = kForms[size_t(operation)];
    const bool chooses = operation == Operation::kChoose;
    bool any_text = false, all_text = true, any_real = false;
    for (size_t i = chooses ? 1 : 0; i < operands.size(); i++) {
        const Kind kind = nodes[operands[i]].kind;
        any_text = any_text || kind == Kind::kText, all_text = all_text && kind == Kind::kText;
        any_real = any_real || kind == Kind::kReal;
    }
    if (any_text && !(all_text && (operation == Operation::kEqual || chooses))) {
        if (operation == Operation::kEqual) return refusal("compares text with a number");
        std::string shown;
        for (const int32_t operand : operands)
            if (const Node& node = nodes[operand]; node.operation == Operation::kText && shown.empty())
                shown = " " + nb::cast<std::string>(nb::repr(texts[node.number]));
        return refusal("text" + shown + " where a number is expected");
    }
    if (any_real && form.whole && !form.real) return refusal(std::string(form.name) + " takes integers");
    Node node{operation};
    for (const int32_t operand : operands) {
        const Node& from = nodes[operand];
        node.support |= from.support;
        node.dynamic = node.dynamic || from.dynamic;
        node.depth = std::max(node.depth, from.depth + 2);
        if (from.domain == kEveryRow) node.domain = kEveryRow;
    }
    if (node.depth > kMostDepth) throw nb::value_error("an expression is nested too deeply");
    if (node.domain != kEveryRow) node.domain = domain_of(node.support);
    const bool takes_reals = chooses || (form.real && !form.truth);
    if (takes_reals && (any_real || (form.real && !form.whole))) node.kind = Kind::kReal;
    if (chooses && all_text) node.kind = Kind::kText;
    for (size_t i = 0; i < operands.size(); i++) node.operands[i] = spread(operands[i], node.domain);
    return made(node);
}

int32_t Space::name(const nb::str& key, int64_t depth) {
    const std::string name = nb::cast<std::string>(key);
    if (const auto known = names_.find(name); known != names_.end()) return known->second;
    int32_t result = -1;
    for (size_t tunable = 0; tunable < rows.digits.size() && result < 0; tunable++) {
        if (tunables[tunable].name != name) continue;
        Node node{Operation::kColumn};
        node.number = int64_t(tunable);
        node.support = uint64_t(1) << std::min(tunable, kLastBit);
        node.domain = domain_of(node.support);
        result = made(node);
    }
    if (result < 0 && lets_.contains(key)) {
        if (depth > kMostDepth) throw nb::value_error("lets are nested too deeply");
        result = add(nb::object(lets_[key]));
    }
    if (result < 0 && facts_.contains(key)) result = constant(nb::object(facts_[key]));
    if (result < 0) result = leaf(Operation::kName, Kind::kInteger, interned(name));
    return names_[name] = result;
}

int32_t Space::build(nb::handle tree, int64_t depth) {
    if (depth > kMostDepth) throw nb::value_error("an expression is nested too deeply");
    const nb::tuple parts = nb::cast<nb::tuple>(tree);
    require(parts.size() >= 2, "tree: expected an operation and its operands");
    const size_t code = nb::cast<size_t>(parts[0]);
    const auto operation = Operation(code);
    require(code < kFormCount && (operation <= Operation::kName || operation >= Operation::kBoth),
            "tree: expected an operation");
    require(parts.size() == kForms[code].operands + 1, "tree: expected the operands of the operation");
    if (operation == Operation::kName) return name(nb::cast<nb::str>(parts[1]), depth + 1);
    if (operation < Operation::kName) return constant(parts[1]);
    std::vector<int32_t> operands;
    for (size_t i = 1; i < parts.size(); i++) operands.push_back(build(parts[i], depth + 1));
    return apply(operation, operands);
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
    require(int64_t(values.size()) == rows.count, "column: expected a value of each row");
    Node node{Operation::kColumn};
    node.kind = kind;
    node.number = -1 - int64_t(columns_.size());
    node.domain = kEveryRow;
    columns_.push_back(std::move(values));
    names_[name] = made(node);
}

}  // namespace kernrec::query
