// Expressions of a space as one program over registers of 64-bit integers, which wrap.
#pragma once

#include "arrays.h"

namespace kernrec::query {

// Program that all problems of a space share; kernrec/kernel/program.py creates its instructions.
struct Program {
    std::vector<int64_t> code;     // kFields numbers per instruction
    std::vector<int32_t> indexes;  // combinations of rows, and of combinations of more tunables
    std::vector<int64_t> initial;  // registers, with values that do not depend on the problem
    std::vector<int64_t> truths;   // register of each condition, and start of its index
    int64_t configs;

    Program(Array<const int64_t, 1> code_of, Array<const int32_t, 1> indexes_of, Array<const int64_t, 1> initial_of,
            Array<const int64_t, 1> truths_of, int64_t configs);
    // Return whether a register can be read for every row: index is -1 for one value for all rows, -2 for one per row.
    bool readable(int64_t place, int64_t index, int64_t rows) const;
};

// Program on one problem.
class Execution {
   public:
    explicit Execution(nb::object program)
        : kept_(program), program_(nb::cast<const Program&>(program)), values_(program_.initial) {}

    void set(int64_t place, int64_t value) {
        require(place >= 0 && place < int64_t(values_.size()), "set: expected a register");
        values_[size_t(place)] = value;
    }
    // Execute the instructions `first` to `last` - 1.
    void run(int64_t first, int64_t last);
    // Clear `holds` (rows,) where one of the conditions is false.
    void test(const Row<bool>& holds) const;
    const std::vector<int64_t>& values() const { return values_; }
    const Program& program() const { return program_; }

    int64_t value(int64_t place, int64_t index, int64_t row) const {
        if (index < 0) return index == -1 ? values_[size_t(place)] : values_[size_t(place + row)];
        return values_[size_t(place + program_.indexes[size_t(index + row)])];
    }

   private:
    nb::object kept_;
    const Program& program_;
    std::vector<int64_t> values_;
};

}  // namespace kernrec::query
