// Runs programs of expressions: each instruction on the combinations of the tunables that it depends on.
//
// kernrec/kernel/expression.py describes the language. Every operation has a value for all operands.
#include "program.h"

#include <algorithm>

namespace kernrec::query {
namespace {

// Numbers of an instruction: operation, result, combinations and index, then four operands with their steps. A step is
// 0 for an operand with one value for all combinations, else 1.
constexpr int64_t kFields = 12;

int64_t add(int64_t a, int64_t b) { return int64_t(uint64_t(a) + uint64_t(b)); }
int64_t subtract(int64_t a, int64_t b) { return int64_t(uint64_t(a) - uint64_t(b)); }
int64_t multiply(int64_t a, int64_t b) { return int64_t(uint64_t(a) * uint64_t(b)); }
int64_t floor_divide(int64_t a, int64_t b) {
    if (b == 0) return 0;
    if (b == -1) return subtract(0, a);  // the smallest integer has no negation
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

// Operations in the order of `OPERATIONS` in kernrec/kernel/instructions.py.
enum Operation : int64_t {
    kMultiply, kCeilDiv, kGather, kAdd, kSubtract, kFloorDivide, kModulo, kEqual, kLess, kLessEqual, kBoth, kEither,
    kNegation, kChoose, kMinimum, kMaximum, kTruth, kAsInteger, kPower, kAbsolute, kLog2, kPowerOfTwo, kMagicMul,
    kMagicShift, kFloorSum, kOperations,
};

// Return the number of operands of an operation.
int64_t operands(int64_t operation) {
    switch (operation) {
        case kGather: case kNegation: case kTruth: case kAsInteger: case kAbsolute: case kLog2: case kPowerOfTwo:
        case kMagicMul: case kMagicShift:
            return 1;
        case kChoose:
            return 3;
        case kFloorSum:
            return 4;
        default:
            return 2;
    }
}

// Operand of an instruction.
struct Column {
    const int64_t* first;
    int64_t step;
    int64_t operator[](int64_t i) const { return first[i * step]; }
};

template <class F>
void unary(int64_t* out, int64_t count, Column a, F apply) {
    for (int64_t i = 0; i < count; i++) out[i] = apply(a[i]);
}
template <class F>
void binary(int64_t* out, int64_t count, Column a, Column b, F apply) {
    for (int64_t i = 0; i < count; i++) out[i] = apply(a[i], b[i]);
}

}  // namespace

Program::Program(Array<const int64_t, 1> code_of, Array<const int32_t, 1> indexes_of,
                 Array<const int64_t, 1> initial_of, Array<const int64_t, 1> truths_of, int64_t configs)
    : code(copied(Row<const int64_t>(code_of))), indexes(copied(Row<const int32_t>(indexes_of))),
      initial(copied(Row<const int64_t>(initial_of))), truths(copied(Row<const int64_t>(truths_of))),
      configs(configs) {
    const int64_t registers = int64_t(initial.size());
    require(code.size() % kFields == 0 && truths.size() % 2 == 0, "program: expected whole instructions");
    const auto inside = [&](int64_t first, int64_t count) {
        return first >= 0 && count >= 0 && first <= registers && count <= registers - first;
    };
    for (size_t place = 0; place < code.size(); place += kFields) {
        const int64_t* at = code.data() + place;
        const int64_t operation = at[0], count = at[2];
        require(operation >= 0 && operation < kOperations && inside(at[1], count), "program: expected registers");
        if (operation == kGather) {
            require(at[3] >= 0 && count <= int64_t(indexes.size()) && at[3] <= int64_t(indexes.size()) - count,
                    "program: expected an index of each combination");
            int64_t most = -1;
            for (int64_t i = 0; i < count; i++) {
                const int64_t index = indexes[size_t(at[3] + i)];
                require(index >= 0, "program: expected combinations");
                most = std::max(most, index);
            }
            require(inside(at[4], most + 1), "program: expected registers");
            continue;
        }
        for (int64_t operand = 0; operand < operands(operation); operand++) {
            const int64_t step = at[5 + 2 * operand];
            require((step == 0 || step == 1) && inside(at[4 + 2 * operand], step ? count : 1),
                    "program: expected registers");
        }
    }
    for (size_t number = 0; number < truths.size(); number += 2)
        require(readable(truths[number], truths[number + 1], configs), "program: expected conditions in registers");
}

bool Program::readable(int64_t place, int64_t index, int64_t rows) const {
    const int64_t registers = int64_t(initial.size());
    if (place < 0 || place >= registers) return false;
    if (index == -1) return true;
    if (index == -2) return rows <= registers - place;
    if (index < 0 || rows > int64_t(indexes.size()) || index > int64_t(indexes.size()) - rows) return false;
    for (int64_t row = 0; row < rows; row++) {
        const int64_t combination = indexes[size_t(index + row)];
        if (combination < 0 || combination >= registers - place) return false;
    }
    return true;
}

void Execution::run(int64_t first, int64_t last) {
    require(0 <= first && first <= last && last <= int64_t(program_.code.size()) / kFields,
            "run: expected instructions");
    for (const int64_t* at = program_.code.data() + first * kFields; first < last; first++, at += kFields) {
        int64_t* const values = values_.data();
        int64_t* const out = values + at[1];
        const int64_t count = at[2];
        const auto operand = [&](int64_t number) { return Column{values + at[4 + 2 * number], at[5 + 2 * number]}; };
        const Column a = operand(0), b = operand(1);
        switch (at[0]) {
            case kMultiply: binary(out, count, a, b, multiply); break;
            case kCeilDiv: binary(out, count, a, b, ceil_div); break;
            case kGather: {
                const int32_t* index = program_.indexes.data() + at[3];
                for (int64_t i = 0; i < count; i++) out[i] = a.first[index[i]];
                break;
            }
            case kAdd: binary(out, count, a, b, add); break;
            case kSubtract: binary(out, count, a, b, subtract); break;
            case kFloorDivide: binary(out, count, a, b, floor_divide); break;
            case kModulo: binary(out, count, a, b, modulo); break;
            case kEqual: binary(out, count, a, b, [](int64_t x, int64_t y) { return int64_t(x == y); }); break;
            case kLess: binary(out, count, a, b, [](int64_t x, int64_t y) { return int64_t(x < y); }); break;
            case kLessEqual: binary(out, count, a, b, [](int64_t x, int64_t y) { return int64_t(x <= y); }); break;
            case kBoth: binary(out, count, a, b, [](int64_t x, int64_t y) { return x & y; }); break;
            case kEither: binary(out, count, a, b, [](int64_t x, int64_t y) { return x | y; }); break;
            case kNegation: unary(out, count, a, [](int64_t x) { return int64_t(x == 0); }); break;
            case kChoose: {
                const Column c = operand(2);
                for (int64_t i = 0; i < count; i++) out[i] = a[i] ? b[i] : c[i];
                break;
            }
            case kMinimum: binary(out, count, a, b, [](int64_t x, int64_t y) { return std::min(x, y); }); break;
            case kMaximum: binary(out, count, a, b, [](int64_t x, int64_t y) { return std::max(x, y); }); break;
            case kTruth: unary(out, count, a, [](int64_t x) { return int64_t(x != 0); }); break;
            case kAsInteger: unary(out, count, a, [](int64_t x) { return x; }); break;
            case kPower: binary(out, count, a, b, power); break;
            case kAbsolute: unary(out, count, a, [](int64_t x) { return x < 0 ? subtract(0, x) : x; }); break;
            case kLog2: unary(out, count, a, log2); break;
            case kPowerOfTwo: unary(out, count, a, power_of_two); break;
            case kMagicMul: unary(out, count, a, magic_mul); break;
            case kMagicShift: unary(out, count, a, magic_shift); break;
            default: {
                const Column c = operand(2), d = operand(3);
                for (int64_t i = 0; i < count; i++) out[i] = floor_sum(a[i], b[i], c[i], d[i]);
            }
        }
    }
}

void Execution::test(const Row<bool>& holds) const {
    require(holds.size == program_.configs, "holds: expected one of each config");
    const std::vector<int64_t>& truths = program_.truths;
    for (size_t number = 0; number < truths.size(); number += 2)
        for (int64_t row = 0; row < holds.size; row++)
            holds[row] = holds[row] && value(truths[number], truths[number + 1], row) != 0;
}

void bind_programs(nb::module_& module) {
    const auto exact = [] { return nb::arg().noconvert(); };
    nb::class_<Program>(module, "Program")
        .def(nb::init<Array<const int64_t, 1>, Array<const int32_t, 1>, Array<const int64_t, 1>,
                      Array<const int64_t, 1>, int64_t>(),
             exact(), exact(), exact(), exact(), nb::arg());
    nb::class_<Execution>(module, "Execution")
        .def(nb::init<nb::object>())
        .def("set", &Execution::set)
        .def("run", &Execution::run)
        .def("test", [](const Execution& execution, Array<bool, 1> holds) { execution.test(holds); }, exact())
        .def("item", [](const Execution& execution, int64_t place) { return execution.values().at(size_t(place)); })
        .def("column", [](const Execution& execution, int64_t first, Array<int64_t, 1> filled) {
            const Row<int64_t> values(filled);
            require(first >= 0 && first <= int64_t(execution.values().size()) - values.size,
                    "column: expected registers");
            for (int64_t i = 0; i < values.size; i++) values[i] = execution.values()[size_t(first + i)];
        }, nb::arg(), exact());
}

}  // namespace kernrec::query
