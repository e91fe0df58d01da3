// Converts PTX instructions to operations. Each file registers builders for the opcodes that it implements.
#pragma once

#include <optional>
#include <type_traits>

#include "program.h"

namespace kernrec {

class Decoder {
  public:
    Decoder(Program& program, const Launch& launch, std::vector<uint32_t> register_widths);

    // Decode all basic blocks. An unsupported instruction fails when it runs.
    void decode();
    uint32_t source = 0;

    // Return the row from which to read an operand: the low part of the register if `type` is narrower.
    Row read(const Operand& operand, std::string_view type);
    // Return the row for a result. If the register is wider than `type`, the decoder emits an extension of the result.
    Row write(const Operand& operand, std::string_view type);
    // Return the register with its own width.
    Row plain(const Operand& operand);
    // Return a predicate, and whether it is negated.
    std::pair<Row, bool> flag(const Operand& operand);
    // Return the row of an address register, and the offset to add.
    std::pair<Row, int64_t> address(const Operand& operand);
    Row constant(uint32_t width, uint64_t bits);
    Row scratch(uint32_t width);
    Row clock(const Operand& operand, const std::string& name);
    Row carry(uint32_t which);
    // Like `read`, but return the whole register, for operations that read the values of single lanes.
    Row value(const Operand& operand, std::string_view type);
    // Return an access at the address in an operand, with the guard of the current instruction.
    Instruction access(const Operand& address, Space space);
    BasicBlock& block() { return *block_; }

    // Append an operation of the current instruction, with its guard.
    Instruction& emit(Run run, Row d = {}, Row a = {}, Row b = {}, Row c = {}, Row e = {});
    // Append an operation on the operands of the instruction. `types` are the types of the result and the sources.
    void emit_typed(Run run, const std::vector<std::string_view>& types);
    // Append an operation that moves registers from or to memory.
    Instruction& emit_access(Run run, const Operand& address, Space space, std::vector<Row> registers);
    const Source& ins() const { return program_.sources[source]; }
    void note_atomic(Space space) { program_.has_atomics |= space == Space::kGlobal || space == Space::kGeneric; }
    // Return whether an instruction reads a register that the current one writes.
    bool result_is_read() const;

  private:
    Row new_row(uint32_t width);
    Row register_row(uint32_t id);
    void instruction();
    void end(BasicBlock& block);
    void drop_result(size_t first);
    void refuse_when_run(const std::string& text);
    void watch_warpgroup_registers(uint32_t first, uint32_t stop);
    void guard(Row& predicate, bool& inverted);
    std::vector<bool> watched_;  // indexed by register: whether wgmma.mma_async uses it

    Program& program_;
    const Launch& launch_;
    std::vector<uint32_t> widths_;
    std::vector<Row> registers_;
    std::map<std::pair<uint32_t, uint64_t>, Row> constants_;
    std::map<uint32_t, Row> specials_;
    std::map<uint32_t, uint32_t> used_scratch_;
    std::map<std::pair<uint32_t, uint32_t>, Row> scratch_;
    Row carries_[2];
    BasicBlock* block_ = nullptr;
    struct Cast {
        Run run;
        Row to, from;
    };
    std::vector<Cast> after_;  // conversions to append after the current instruction
};

using Builder = void (*)(Decoder&, const Source&);

// Builders by opcode. `Registration` adds builders when the program is loaded.
std::map<std::string, Builder>& builders();

struct Registration {
    Registration(std::initializer_list<const char*> opcodes, Builder builder) {
        for (const char* opcode : opcodes) builders()[opcode] = builder;
    }
};

// Operation that checks a warpgroup's access to registers of an unfinished wgmma.mma_async. `ins.list` has the rows of
// the registers, and `ins.modes` the PTX instruction of each.
void touch_warpgroup_registers(Batch& batch, const Instruction& ins);

uint32_t width_of(std::string_view type);

// Decode integer arithmetic: without carries, and with carries (addc, add.cc).
bool is_integer_type(const std::string& type);
void integer_arithmetic(Decoder& decoder, const Source& ins);
void carrying(Decoder& decoder, const Source& ins);

// Return the operation that converts integers of `from` bits to rows of `to` bits, with extension or truncation.
Run cast_run(uint32_t from, uint32_t to, bool is_signed);
Run copy_run(uint32_t width);

// Call a function with a value of the C++ type for a PTX type such as `s32`. Refuse types outside of `Types`. Bit types
// such as `b32` are unsigned.
template <class... Types, class Call>
Run for_integer(const std::string& type, Call call) {
    Run run = nullptr;
    const auto take = [&](auto t) {
        const std::string bits = std::to_string(8 * sizeof t);
        if (type == (std::is_signed_v<decltype(t)> ? "s" : "u") + bits ||
            (!std::is_signed_v<decltype(t)> && type == "b" + bits))
            run = call(t);
    };
    (take(Types{}), ...);
    if (!run) refuse("the type ." + type);
    return run;
}
template <class Call>
Run for_any_integer(const std::string& type, Call call) {
    return for_integer<uint32_t, int32_t, uint64_t, int64_t, uint16_t, int16_t, uint8_t, int8_t>(type, call);
}

}  // namespace kernrec
