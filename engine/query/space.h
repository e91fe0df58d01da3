// Configs of a kernel, and values of its expressions. Each value is computed once per combination of its tunables.
#pragma once

#include <algorithm>
#include <map>
#include <optional>

#include "arrays.h"

namespace kernrec::query {

// Operations in the order of `OPERATIONS` in kernrec/kernel/expression.py. The first ones do not occur in trees.
enum class Operation : uint8_t {
    kNumber,
    kText,
    kColumn,
    kInput,
    kSpread,
    kRefuse,
    kAdd,
    kSubtract,
    kMultiply,
    kFloorDivide,
    kDivide,
    kModulo,
    kPower,
    kEqual,
    kLess,
    kLessEqual,
    kBoth,
    kEither,
    kNegation,
    kTruth,
    kChoose,
    kMinimum,
    kMaximum,
    kAbsolute,
    kCeilDiv,
    kLog2,
    kPowerOfTwo,
    kMagicMul,
    kMagicShift,
    kFloorSum,
};

// Reals are stored by their bits, and texts by their index in `Space::texts`.
enum class Kind : uint8_t { kInteger, kReal, kText };

// Distinct combinations of some tunables: combination of each row, and first row of each combination. Both are empty
// if every row is its own combination, or if there is one value for all rows.
struct Domain {
    int64_t size = 1;
    bool scalar = true;
    std::vector<int32_t> index, first;
};

struct Node {
    Operation operation;
    Kind kind = Kind::kInteger;
    bool dynamic = false;  // depends on the problem
    int32_t operands[4] = {-1, -1, -1, -1};
    uint64_t support = 0;  // mask of the tunables in the expression; the last bit stands for all from the 64th on
    int32_t domain = 0, depth = 1;
    int64_t place = -1;  // first register
    int64_t number = 0;  // value of a number, or index of a text, column, name or reason
};

// Some rows of the product of the tunables' values.
struct Rows {
    int64_t count = 1;
    std::vector<std::vector<int32_t>> digits;  // for each fixed tunable, each row's index into the tunable's values

    Rows with_tunable(int64_t choices) const;
    Rows take(const std::vector<int64_t>& kept) const;
};

// Bits of a real number, as the values of expressions are stored.
inline int64_t bits(double value) {
    int64_t result;
    std::memcpy(&result, &value, sizeof result);
    return result;
}

inline double from_bits(int64_t bits) {
    double result;
    std::memcpy(&result, &bits, sizeof result);
    return result;
}

class Problem;

// Values of an expression on the rows of a space.
struct Reader {
    const int64_t* values = nullptr;
    const int32_t* index = nullptr;
    int64_t step = 0;
    bool real = false;

    double operator()(int64_t row) const {
        const int64_t value = values[place(row)];
        return real ? from_bits(value) : double(value);
    }
    // Fill `out` (N,) with the values of `rows` (N,).
    void fill(const int64_t* rows, int64_t count, double* out) const {
        if (index == nullptr && step == 0) std::fill_n(out, count, (*this)(0));
        else if (real)
            for (int64_t i = 0; i < count; i++) out[i] = from_bits(values[place(rows[i])]);
        else
            for (int64_t i = 0; i < count; i++) out[i] = double(values[place(rows[i])]);
    }

  private:
    int64_t place(int64_t row) const { return index ? index[row] : row * step; }
};

class Space {
  public:
    struct Tunable {
        std::string name;
        std::vector<int64_t> values;
    };

    // lets: expressions by name. facts: numbers and texts by name. Expressions are objects with `tree` and `shown`.
    Space(std::vector<Tunable> tunables, Rows rows, nb::dict lets, nb::dict facts);

    int64_t count() const { return rows_.count; }
    const Rows& rows() const { return rows_; }
    const std::vector<Tunable>& tunables() const { return tunables_; }
    // Return the values of the first tunables in a row, keyed by the names that `set_names` stored.
    nb::dict config(int64_t row) const;
    void set_names(nb::list names);
    // Return the node of an expression.
    int32_t add(nb::handle expression);
    // Add a column of values under a name, for expressions on arrays. bits: bits of integers or reals.
    void add_column(const std::string& name, Kind kind, std::vector<int64_t> bits);
    // Return the groups of rows with the same values of some tunables: index of each row, first row of each group.
    Domain groups(const std::vector<int64_t>& tunables) const;
    void set_conditions(const std::vector<int32_t>& nodes);
    // Return those of `rows`, ascending, that satisfy all conditions.
    std::vector<int64_t> valid(Problem* problem, std::vector<int64_t> rows);
    Reader read(int32_t node, Problem* problem);
    const Node& node(int32_t number) const { return nodes_.at(size_t(number)); }
    const Domain& domain(int32_t number) const { return domains_[size_t(number)]; }
    // Return the combinations of the tunables in a mask.
    int32_t domain_of(uint64_t support);
    const std::string& text(int64_t number) const { return texts_[size_t(number)]; }

  private:
    friend class Problem;
    int32_t build(nb::handle tree, int64_t depth);
    int32_t name(const std::string& name, int64_t depth);
    int32_t apply(Operation operation, std::vector<int32_t> operands);
    int32_t spread(int32_t node, int32_t domain);
    int32_t refusal(const std::string& reason);
    int32_t leaf(Operation operation, Kind kind, int64_t number);
    int32_t made(Node node);
    int64_t interned(const std::string& text);
    void compute(int32_t number, Problem* problem);
    void execute(const Node& node, Problem* problem);
    int64_t* registers(const Node& node, Problem* problem);

    std::vector<Tunable> tunables_;
    std::vector<std::vector<int64_t>> columns_;  // values of the names of `add_column`
    Rows rows_;
    nb::dict lets_, facts_;
    std::vector<Node> nodes_;
    std::vector<Domain> domains_;
    std::vector<std::string> texts_;
    std::vector<nb::object> keys_;  // the texts as keys of dictionaries
    std::map<int32_t, std::vector<int32_t>> conditions_;  // nodes of conditions, keyed by index in `domains_`
    int32_t tested_ = 0;  // index in `domains_` for the tunables of all conditions
    std::map<std::string, int32_t> names_;  // nodes of names
    std::map<std::string, int32_t> columns_of_;  // nodes of the names of `add_column`
    std::map<std::string, int64_t> text_numbers_;
    std::map<uint64_t, int32_t> domain_of_;
    std::map<std::vector<int64_t>, int32_t> made_;  // nodes by operation and operands
    std::map<int32_t, nb::object> roots_;  // expressions by node, for messages
    std::map<void*, int32_t> expressions_;  // nodes by expression
    std::vector<nb::object> kept_;
    nb::list config_names_;
    std::vector<int64_t> fixed_;  // registers that do not depend on the problem
    std::vector<uint8_t> computed_;  // whether the registers of a node that does not depend on the problem are filled
    int64_t dynamic_ = 0;  // number of registers that depend on the problem
    std::vector<std::vector<int64_t>> spare_;  // registers of earlier problems
};

// Space on one problem. Computes each value on first use.
class Problem {
  public:
    Problem(nb::object space, nb::dict names, nb::dict tensor_bytes, bool too_large, double flops, double bytes);
    ~Problem();
    Problem(const Problem&) = delete;
    Problem& operator=(const Problem&) = delete;

    Space& space() const { return *space_; }
    // Return the bytes of a tensor; 0 if the tensor does not exist for the data type.
    double tensor_bytes(const nb::object& name) const;
    bool too_large() const { return too_large_; }

    double flops, bytes;
    const int64_t number = ++count_;  // different for each problem

  private:
    friend class Space;
    nb::object kept_;
    Space* space_;
    nb::dict names_, tensor_bytes_;
    bool too_large_;
    inline static int64_t count_ = 0;
    std::vector<int64_t> values_;
    std::vector<uint8_t> computed_;
};

}  // namespace kernrec::query
