// Configs of a kernel, and values of its expressions. Each value is computed once per combination of its tunables.
#pragma once

#include <algorithm>
#include <map>
#include <optional>

#include "arrays.h"

namespace kernrec::query {

// The first operations in `kForms`. Trees have no `kColumn`, `kSpread` and `kRefuse`.
enum class Operation : uint8_t { kNumber, kText, kName, kColumn, kSpread, kRefuse, kBoth, kEither, kChoose, kEqual };

// Reals are stored by their bits, and texts by their index in `Space::texts`.
enum class Kind : uint8_t { kInteger, kReal, kText };

// Distinct combinations of some tunables: index of each row's combination, and first row of each combination.
struct Domain {
    std::vector<int32_t> index, first;
};
// Index in `Space::domains` of the domain without tunables, and of the domain in which each row is a combination.
constexpr int32_t kScalar = 0, kEveryRow = 1;

struct Node {
    Operation operation;
    Kind kind = Kind::kInteger;
    bool dynamic = false;  // depends on the problem
    std::array<int32_t, 4> operands = {-1, -1, -1, -1};
    uint64_t support = 0;  // mask of the tunables in the expression; the last bit stands for all from the 64th on
    int32_t domain = kScalar, depth = 1;
    int64_t place = -1;  // first register
    int64_t number = 0;  // value of a number, or index of a text, column, name or reason
};

// Some rows of the product of the tunables' values.
struct Rows {
    int64_t count = 1;
    std::vector<std::vector<int32_t>> digits;  // for each fixed tunable, each row's index into the tunable's values
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

// Values of an operand of an operation.
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

// Operation of expressions. A loop has arguments (output, number of values, operands).
struct Form {
    using Loop = void (*)(int64_t*, int64_t, const Operand*);

    const char* name;
    size_t operands = 1;
    // Loops for integers and for reals. If `whole` is null, integers are converted. If `real` is null, reals are
    // refused.
    Loop whole = nullptr, real = nullptr;
    bool truth = false;  // the result is an integer even if operands are reals
};
constexpr size_t kFormCount = 30;
extern const Form kForms[kFormCount];

class Problem;

// Values of an expression on the rows of a space.
struct Reader {
    const int64_t* values = nullptr;
    const int32_t* index = nullptr;
    bool real = false;

    double operator()(int64_t row) const {
        const int64_t value = values[index[row]];
        return real ? from_bits(value) : double(value);
    }
    // Fill `out` (N,) with the values of `rows` (N,).
    void fill(const int64_t* rows, int64_t count, double* out) const {
        const Reader from = *this;  // a local copy, which writes to `out` cannot change
        if (real)
            for (int64_t i = 0; i < count; i++) out[i] = from_bits(from.values[from.index[rows[i]]]);
        else
            for (int64_t i = 0; i < count; i++) out[i] = double(from.values[from.index[rows[i]]]);
    }
};

class Space {
  public:
    struct Tunable {
        std::string name;
        std::vector<int64_t> values;
    };

    // lets: expressions by name. facts: numbers and texts by name. Expressions are objects with `tree` and `shown`.
    Space(std::vector<Tunable> tunables, Rows rows, nb::dict lets, nb::dict facts);

    int64_t count() const { return rows.count; }
    // Return the config of a row: the values of the tunables in `config_names`, keyed by name.
    nb::dict config(int64_t row) const;
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
    // Return the index in `domains` of all combinations of the tunables in a mask.
    int32_t domain_of(uint64_t support);

    const std::vector<Tunable> tunables;
    const Rows rows;
    nb::list config_names;
    std::vector<Node> nodes;
    std::vector<Domain> domains;
    std::vector<nb::str> texts;

  private:
    friend class Problem;
    int32_t build(nb::handle tree, int64_t depth);
    int32_t name(const nb::str& name, int64_t depth);
    int32_t constant(nb::handle value);
    int32_t apply(Operation operation, const std::vector<int32_t>& operands);
    int32_t spread(int32_t node, int32_t domain);
    int32_t leaf(Operation operation, Kind kind, int64_t number);
    int32_t made(Node node);
    int64_t interned(const std::string& text);
    void compute(int32_t number, Problem* problem);
    void execute(const Node& node, Problem* problem);
    int64_t* registers(const Node& node, Problem* problem);

    std::vector<std::vector<int64_t>> columns_;  // values of the names of `add_column`
    nb::dict lets_, facts_;
    std::map<int32_t, std::vector<int32_t>> conditions_;  // nodes of conditions, keyed by index in `domains`
    int32_t tested_ = kScalar;  // index in `domains` for the tunables of all conditions
    std::map<std::string, int32_t> names_;  // nodes of names
    std::map<std::string, int64_t> text_numbers_;
    std::map<uint64_t, int32_t> domain_of_;
    std::map<std::vector<int64_t>, int32_t> made_;  // nodes by operation and operands
    std::map<int32_t, nb::object> roots_;  // expressions by node, for messages
    std::map<void*, int32_t> expressions_;  // nodes by expression
    std::vector<nb::object> kept_;
    std::vector<int64_t> fixed_;  // registers that do not depend on the problem
    std::vector<uint8_t> computed_;  // whether the registers of a node that does not depend on the problem are filled
    int64_t dynamic_ = 0;  // number of registers that depend on the problem
    std::vector<std::vector<int64_t>> spare_;  // registers of earlier problems
};

// Space on one problem. Computes each value on first use.
class Problem {
  public:
    Problem(Space& space, nb::dict names, nb::dict tensor_bytes, bool too_large, double flops, double bytes);
    ~Problem();
    Problem(const Problem&) = delete;
    Problem& operator=(const Problem&) = delete;

    // Return the bytes of a tensor; 0 if the tensor does not exist for the data type.
    double tensor_bytes(const nb::object& name) const;

    Space& space;
    bool too_large;
    double flops, bytes;

  private:
    friend class Space;
    nb::dict names_, tensor_bytes_;
    std::vector<int64_t> values_;
    std::vector<uint8_t> computed_;
};

}  // namespace kernrec::query
