// Tensor-core instructions on the registers of one warp: mma.sync, wmma, wgmma and tcgen05.
//
// Sources: PTX ISA, sections "Warp Level Matrix Multiply-Accumulate Instructions", "Asynchronous Warpgroup Level Matrix
// Multiply-Accumulate Instructions" and "TensorCore 5th Generation Family Instructions".
//
// PTX does not specify the order and precision of sums. Here the products of one element of D are added along K in
// float64, one after another. Then C is added, and the sum is rounded once to the type of D. Integers are exact and
// wrap, or saturate with `.satfinite`. NaN results are canonical (0x7FFFFFFF, 0x7FFF).
//
// Fragments (PTX ISA, "Matrix Fragments for mma"): let g = lane / 4, t = lane % 4, and p be the elements per register.
// Register r of a lane contains, for e = 0 .. p - 1:
//   A (m x k): row g + 8 (r % (m / 8)), column 4 p (r / (m / 8)) + p t + e
//   B (k x 8): row 4 p r + p t + e, column g
//   C, D (m x 8): row g + 8 (r / 2), column 2 t + r % 2; as f16 in halves: row g + 8 r, column 2 t + e
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "memory.h"
#include "number_formats.h"

namespace kernrec {

// One 32-bit register of a warp, with a value per lane. A fragment is an array of registers.
using Register = uint32_t*;
using ConstRegister = const uint32_t*;

// Register layout of an element type, and the name of its operation counter.
struct ElementType {
    int bits;
    const char* counted;  // `mma.<counted>`
    int eighths = 8;  // time per operation, in eighths of the counted type's

    int register_bits() const { return bits > 32 ? bits : 32; }
    int per_register() const { return register_bits() / bits; }
};
const ElementType& element_type(NumberType type);

// D (m x 8) = A (m x k) B (k x 8) + C.
struct MatrixMultiply {
    int m;
    int k;
    NumberType a, b, c, d;
    bool saturates = false;  // .satfinite of integers
    bool counts_xor = false;  // for bits: count differing bits instead of common ones

    int registers_a() const { return m * k / (32 * element_type(a).per_register()); }
    int registers_b() const { return 8 * k / (32 * element_type(b).per_register()); }
    int registers_c() const { return m * 8 / (32 * element_type(c).per_register()); }
    int registers_d() const { return m * 8 / (32 * element_type(d).per_register()); }
    uint64_t operations() const { return uint64_t(2) * m * 8 * k; }
};

// Return whether A and B may have these types, and C and D may hold their sums.
bool may_multiply(NumberType a, NumberType b);
bool is_product_type(const MatrixMultiply& types);

// Parse the modifiers of `mma.sync` (PTX ISA, section "mma"): all shapes and types without `.kind` and sparsity.
MatrixMultiply mma_form(const Modifiers& modifiers);

// Execute `mma.sync` for one warp. Registers of f64 are arrays of 32 `uint64_t`.
void mma_sync(const MatrixMultiply& form, const ConstRegister* a, const ConstRegister* b, const ConstRegister* c,
              const Register* d);
void mma_sync_f64(const MatrixMultiply& form, const uint64_t* const* a, const uint64_t* const* b,
                  const uint64_t* const* c, uint64_t* const* d);

// Count operations as `<unit>.<type>`.
void count_operations(Memory& memory, const char* unit, NumberType type, uint64_t operations);

// mma.sync on numbers of 4 to 8 bits, with or without block scaling (PTX ISA, section "mma", "Block Scaling").
struct ScaledMultiply {
    int k;  // extent along K; m is 16
    bool packed;  // two 4-bit numbers per byte instead of one
    NumberType a, b, c, d;
    int factors = 0;  // scale factors along K; 0 for no block scaling
    NumberType scale = NumberType::kUe8m0;
};
ScaledMultiply scaled_mma_form(const Modifiers& modifiers);

// Scale factors of A or B: a register, the first byte in it, and the threads of four that hold them.
struct ScaleOperand {
    ConstRegister factors = nullptr;
    uint32_t byte = 0;
    uint32_t thread = 0;
};
void scaled_mma(const ScaledMultiply& form, const ConstRegister* a, const ConstRegister* b, const ConstRegister* c,
                const Register* d, const ScaleOperand& scale_a, const ScaleOperand& scale_b);
void count_scaled_mma(Memory& memory, const ScaledMultiply& form);

// --- wmma (PTX ISA, section "wmma"): fragments have the layout of mma.sync ---

struct WmmaShape {
    int m, n, k;
};

// Adjacent elements in memory that each lane of a warp moves at once.
struct WmmaPiece {
    std::array<int, kWarp> row;
    std::array<int, kWarp> column;
    int first_element;  // index in a lane's fragment
    int elements;
};

// `wmma.load` and `wmma.store`.
struct WmmaMove {
    bool store;
    char operand;  // a, b, c or d
    NumberType type;
    WmmaShape shape;
    bool by_row;  // elements of a row are adjacent in memory
    int registers;  // registers of the fragment
    int distinct;  // registers with distinct elements: f16 fragments of A and B repeat elements
    std::vector<WmmaPiece> pieces;

    int bits() const { return element_type(type).bits; }
    uint32_t default_stride() const;  // elements between rows or columns of a contiguous matrix
    uint32_t piece_bytes(const WmmaPiece& piece) const { return uint32_t(piece.elements * bits() / 8); }
    uint32_t unit_bytes(const WmmaPiece& piece) const;
};
WmmaMove wmma_move_form(const Modifiers& modifiers);

// `wmma.mma`, and `mma.sync` with n = 8: one MatrixMultiply for each eight columns of B.
struct WmmaMultiply {
    MatrixMultiply tile;
    int n;
    int registers_a, registers_b, registers_c, registers_d;  // whole fragments, including repeated registers

    int tiles() const { return n / 8; }
};
WmmaMultiply wmma_multiply_form(const Modifiers& modifiers);
void wmma_mma(const WmmaMultiply& form, const ConstRegister* a, const ConstRegister* b, const ConstRegister* c,
              const Register* d);

// --- Matrices in shared memory (PTX ISA, sections "Matrix Descriptor Format" and "Shared memory descriptor") ---

// Location of a matrix in shared memory. A tile consists of eight consecutive rows (four if `piece` is 32) of `row`
// bytes. If a row has more than 16 bytes, its pieces are swizzled by address.
struct MatrixDescriptor {
    uint32_t start;
    uint32_t leading_bytes;
    uint32_t stride_bytes;
    uint32_t base_offset;
    uint32_t row_bytes;
    uint32_t piece_bytes = 16;
};
// Decode a descriptor, or throw std::invalid_argument with the reason.
MatrixDescriptor wgmma_descriptor(uint64_t bits);
MatrixDescriptor tcgen05_descriptor(uint64_t bits);

// Extents of a tile that an instruction reads: `extent` elements along M or N, `depth` along K.
struct TileShape {
    uint32_t extent;
    uint32_t depth;
    uint32_t element_bytes;
    bool mn_major = false;  // rows run along M or N
};
// Return the address of a byte of a tile: `along` bytes along its row, in row `across`.
uint32_t tile_address(const MatrixDescriptor& descriptor, bool mn_major, uint32_t across, uint32_t along);

// Bytes of A and B along K that one wgmma or tcgen05.mma reads.
constexpr uint32_t kTileRowBytes = 32;

// Read a tile of a thread block's shared memory; bytes have the order (extent, depth). Fail if the descriptor is
// invalid, or the tile exceeds shared memory. `addresses`, if given, receives the address of each element.
std::vector<uint8_t> read_tile(Memory& memory, uint32_t block, bool is_tcgen05, uint64_t descriptor,
                               const TileShape& shape, std::vector<uint32_t>* addresses = nullptr);

// --- wgmma (PTX ISA, section "wgmma.mma_async") ---

struct WgmmaMultiply {
    int n, k;
    NumberType d, a, b;
    bool saturates;

    int registers_d() const { return n / (d == NumberType::kF16 ? 4 : 2); }
    bool may_transpose() const { return a == NumberType::kF16 || a == NumberType::kBf16; }
};
WgmmaMultiply wgmma_form(const Modifiers& modifiers);

// Locations of A and B of a wgmma.mma_async. A is in registers if `a_registers` is set.
struct WgmmaOperands {
    const ConstRegister* a_registers = nullptr;
    uint64_t a_descriptor = 0;
    uint64_t b_descriptor = 0;
    bool a_mn_major = false;
    bool b_mn_major = false;
    int sign = 1;  // imm-scale-a times imm-scale-b
    bool adds_d = true;  // scale-d
};

// Shared memory inputs of a warpgroup: numbers of B in groups of eight columns by K, and bytes of A.
struct WgmmaTiles {
    std::vector<double> b;
    std::vector<uint8_t> a;
    std::vector<uint32_t> addresses;  // addresses of the elements
};
WgmmaTiles read_wgmma_tiles(Memory& memory, const WgmmaMultiply& form, const WgmmaOperands& operands, uint32_t block);

// Multiply the 16 rows of A and D of one warp in a warpgroup. `quarter` is the warp's index in the warpgroup. Only warp
// 0 counts the tensor cores' reads of shared memory.
void wgmma_mma(Memory& memory, const WgmmaMultiply& form, const WgmmaOperands& operands, const WgmmaTiles& tiles,
               int quarter, const Register* d);

// --- tcgen05 (PTX ISA, section "TensorCore 5th Generation Family Instructions") ---

constexpr uint32_t kTensorLanes = 128;
constexpr uint32_t kTensorColumns = 512;

// Cell of a thread block's tensor memory.
struct Cell {
    uint32_t lane;
    uint32_t column;
};
using Cells = std::vector<Cell>;

// Pending operations that block cells of tensor memory.
enum class TensorUse : uint8_t { kStored, kLoaded, kComputed, kRead };

// Tensor memory of one thread block, with operations in flight (PTX ISA, section "Tensor Memory"). Functions throw
// std::invalid_argument with the reason; callers add the instruction.
class TensorMemory {
  public:
    uint32_t allocate(uint32_t columns, uint32_t source);
    void release(uint32_t address, uint32_t columns);
    void relinquish() { closed_ = true; }
    // Return columns that were not released at the end of the kernel: allocating instruction and message.
    std::optional<std::pair<uint32_t, std::string>> unreleased() const;

    void load(const Cells& cells, uint32_t* values);  // in flight until finish(kLoaded)
    void store(const Cells& cells, const uint32_t* values);  // in flight until finish(kStored)
    void begin_read(const Cells& cells);  // of a matrix operation, in flight until finish(kRead)
    void begin_write(const Cells& cells);  // in flight until finish(kComputed)
    void finish(TensorUse use, const Cells& cells);  // loads or stores of cells are done

    uint32_t value(Cell cell) const { return cells_[index(cell)]; }
    void put(Cell cell, uint32_t value) { cells_[index(cell)] = value; }

  private:
    struct Allocation {
        uint32_t first, columns, source;
    };
    static size_t index(Cell cell) { return size_t(cell.lane) * kTensorColumns + cell.column; }
    void check(const Cells& cells, std::initializer_list<TensorUse> hindrances) const;

    std::vector<uint32_t> cells_;
    std::array<std::vector<int16_t>, 4> under_way_;
    std::vector<Allocation> allocations_;
    bool closed_ = false;
};

// `tcgen05.ld` and `tcgen05.st`: cells of a warp's registers, in the order (lane of the warp, register).
struct TensorMove {
    std::string shape;
    int registers;
    bool packed;  // .pack::16b, .unpack::16b
};
TensorMove tensor_move_form(const Modifiers& modifiers);
Cells tensor_move_cells(const TensorMove& form, uint32_t address, uint32_t split_columns);

// Instruction descriptor of `tcgen05.mma` (PTX ISA, section "Instruction descriptor").
struct InstructionDescriptor {
    int m, n;
    NumberType a, b, d;
    bool a_mn_major, b_mn_major;
    int sign;
    bool saturates;
    NumberType scale = NumberType::kUe8m0;  // type of scale factors, for block-scaled kinds
    int first_scale_a = 0, first_scale_b = 0;
};

// Parsed name of a `tcgen05.mma`.
struct TensorMultiply {
    std::string kind;
    int ctas;  // thread blocks that multiply together
    int vector;  // numbers along K per scale factor; 0 for no scaling

    bool packed() const { return kind == "mxf4" || kind == "mxf4nvf4"; }
};
TensorMultiply tensor_multiply_form(const Modifiers& modifiers);
InstructionDescriptor instruction_descriptor(uint32_t bits, const TensorMultiply& form);

// Operands of one `tcgen05.mma` of one thread.
struct TensorOperands {
    uint32_t d_address;
    bool a_in_tensor_memory;
    uint64_t a;  // descriptor or address
    uint64_t b_descriptor;
    uint32_t scale_a_address = 0, scale_b_address = 0;
    const uint32_t* disabled = nullptr;  // masks of lanes of D that keep their values: 4 words per block
    bool adds_d = true;
    int divide_by_power = 0;  // D is first divided by two to this power
};

// Inputs and outputs of an operation.
struct TensorOperation {
    struct BlockCells {
        uint32_t block;  // position in the batch
        Cells cells;
    };
    std::vector<BlockCells> read;
    std::vector<BlockCells> written;
    std::vector<uint32_t> blocks;
    std::vector<std::vector<uint32_t>> shared_bytes;  // for each block: addresses of elements in shared memory
};

// Function that is called after an operation has read its inputs and before it writes outputs.
using IssueOperation = std::function<void(const TensorOperation&)>;

// Multiply. `blocks` are the batch positions and tensor memories of one or two thread blocks.
TensorOperation tcgen05_mma(Memory& memory, const TensorMultiply& form, const InstructionDescriptor& descriptor,
                            const TensorOperands& operands,
                            const std::vector<std::pair<uint32_t, TensorMemory*>>& blocks, const IssueOperation& issue);

// `tcgen05.cp`: copy rows of a matrix in shared memory to lanes of tensor memory.
struct TensorCopy {
    uint32_t rows, row_bytes;
    std::vector<uint32_t> first_lanes;  // for each copy of the rows
    uint32_t lane_step;
    bool skips_quarter;  // rows 32 to 63 go to lanes from 64
    int ctas;
};
TensorCopy tensor_copy_form(const Modifiers& modifiers);
TensorOperation tcgen05_cp(Memory& memory, const TensorCopy& form, uint32_t address, uint64_t descriptor,
                           const std::vector<std::pair<uint32_t, TensorMemory*>>& blocks, const IssueOperation& issue);

}  // namespace kernrec
