// Decoded kernel: instructions as function pointers with operands resolved to rows of the register arena.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "memory.h"

namespace kernrec {

class Batch;
struct Instruction;
struct PhaseTest;
struct Image;

using Run = void (*)(Batch&, const Instruction&);

constexpr uint32_t kNoRow = ~0u;

// Location of a value of all lanes in the registers of a batch. A predicate row has a 32-bit mask per warp.
struct Row {
    uint32_t width = 0;   // bits: 1, 8, 16, 32 or 64
    uint32_t index = kNoRow;  // bytes per lane of all earlier rows

    explicit operator bool() const { return index != kNoRow; }
};

// Decoded operation. A batch resolves its rows to pointers.
struct Instruction {
    Run run = nullptr;
    uint32_t source = 0;          // index of its PTX instruction
    Row guard;                    // predicate; none to run for all lanes
    bool guard_inverted = false;
    Row d, a, b, c, e;            // destination and sources of `run`
    int64_t immediate = 0;        // address offset, or a parameter
    uint32_t mode = 0;            // variant of an operation
    Space space = Space::kGeneric;
    uint32_t unit = 0;            // bytes per element of an access
    std::vector<Row> list;        // registers of a vector or fragment
    std::vector<uint32_t> modes;  // parameters of a tensor operation
    std::shared_ptr<const void> form;  // parsed name of a tensor operation or copy
};

enum class OperandKind : uint8_t {
    kNone,
    kRegister,
    kInteger,
    kF32Bits,
    kF64Bits,
    kDecimal,
    kSymbol,
    kSpecial,
    kAddress,
    kVector,
    kPair,
    kNegated,
    kLabel,
    kTexel,  // an image or tensor map, then coordinates
    kOther
};

// Operand of an instruction, as Python passes it.
struct Operand;

// Operands or modifiers of an instruction. The decoder refuses the instruction if an index is too large.
template <typename T>
class Parts : public std::vector<T> {
  public:
    using std::vector<T>::vector;

    const T& operator[](size_t index) const {
        if (index >= this->size()) refuse("too few operands or modifiers");
        return this->data()[index];
    }
    const T& back() const { return (*this)[this->size() - 1]; }
};

using Operands = Parts<Operand>;
using Modifiers = Parts<std::string>;

struct Operand {
    OperandKind kind = OperandKind::kNone;
    uint32_t id = 0;     // register, special register, or symbol
    int64_t value = 0;   // literal, offset, or basic block of a label
    Operands items;
};

// PTX instruction, as Python passes it.
struct Source {
    std::string opcode;
    Modifiers modifiers;
    Operands operands;
    int32_t guard = -1;  // register
    bool guard_inverted = false;
    bool unneeded = false;  // nothing reads its result: it is only counted

    bool has(std::string_view name) const;
    // Return the last modifier, or one before it.
    const std::string& type(size_t before = 0) const { return modifiers[modifiers.size() - 1 - before]; }
};

enum class End : uint8_t { kNone, kBranch, kIndexedBranch, kExit, kBarrier, kTrap };

struct BasicBlock {
    uint32_t first = 0, count = 0;       // PTX instructions
    std::vector<Instruction> code;
    End end = End::kNone;
    uint32_t end_source = 0;             // last instruction
    bool warp_synchronous = false;       // lanes of a warp wait for the lanes in `mask`
    bool spins = false;                  // a loop in which threads wait for others
    bool goes_on = false;                // runs in the same step as the previous block (see watch.h)
    bool warpgroup_synchronous = false;  // the four warps of a warpgroup wait for each other
    std::shared_ptr<const PhaseTest> phase_test;  // lanes wait for a barrier phase in shared memory
    // Cluster barrier: 0 none, 1 arrive, 2 wait.
    uint32_t cluster_barrier = 0;
    Row mask;                            // mask of a warp-synchronous block; none for all lanes
    Row guard;                           // guard of the last instruction
    bool guard_inverted = false;
    std::vector<uint32_t> targets;       // basic blocks
    Row index;                           // row with the index into the targets of an indexed branch
    // If the block ends with a barrier: the action, and the rows of its operands.
    bool arrives = false, plain = false;
    uint32_t reduction = 0;              // 0 none, 1 popc, 2 and, 3 or
    Row number, threads, reduced, result;
    bool reduced_inverted = false;
};

// Registers that an instruction reads and writes. The reads include its guard.
struct RegistersOf {
    std::vector<uint32_t> reads, writes;
};
RegistersOf registers_of(const Source& source);
// Append the registers in an operand to `ids`.
void add_registers(const Operand& operand, std::vector<uint32_t>& ids);

struct Program {
    std::vector<Source> sources;
    std::vector<BasicBlock> blocks;
    std::vector<std::pair<Row, uint64_t>> constants;  // rows that no instruction writes, and their contents
    std::vector<std::pair<Row, uint32_t>> specials;   // rows of special registers, by index in the list of names
    uint32_t row_bytes = 0;              // bytes per lane of all rows
    std::vector<Row> registers;          // row of each register
    std::vector<uint32_t> unassigned;    // registers that a thread may read before it writes them
    bool has_atomics = false;            // results may depend on the order of blocks
    std::map<uint32_t, std::string> unsupported;  // unsupported part of each instruction, keyed by instruction
    Row lane_address;                    // scratch row for one lane's computed address
    bool hands_over = false;             // blocks order global memory accesses by release and acquire
    bool has_tensor_fences = false;      // tcgen05.fence
};

struct Region {
    std::string name;
    uint8_t* bytes = nullptr;
    uint64_t size = 0;
    bool writable = false;
};

struct Launch {
    uint32_t grid[3], block[3], cluster[3] = {1, 1, 1};
    uint32_t blocks_per_batch = 1;
    std::vector<Region> buffers;
    std::vector<uint8_t> constants, parameters;
    uint64_t constant_bytes = 0, parameter_bytes = 0;
    uint32_t shared_bytes = 0, local_bytes = 0, argument_bytes = 0;
    std::vector<int64_t> symbols;
    std::vector<std::string> special_names;
    std::vector<int64_t> special_values;  // values that the launch determines
    std::map<uint64_t, std::shared_ptr<const Image>> images;  // keyed by handle
    uint32_t registers = 0;  // per thread at the start of the kernel; 0 if unknown
    uint64_t budget = 0;

    uint32_t cluster_blocks() const { return cluster[0] * cluster[1] * cluster[2]; }
    bool count = true, check_races = false, watch = false;
    std::shared_ptr<struct Watch> checks;  // null if only fatal errors are checked
};

constexpr uint32_t kBufferShift = 40, kWindowShift = 56;

// Kind of error. Python adds the location of the error.
enum class FaultKind : uint8_t { kEmulation, kUnsupported, kBudget };

// Error while a kernel runs.
struct Fault : std::runtime_error {
    Fault(FaultKind kind, int64_t source, const std::string& text)
        : std::runtime_error(text), kind(kind), source(source) {}
    FaultKind kind;
    int64_t source;  // instruction, or -1
};

}  // namespace kernrec
