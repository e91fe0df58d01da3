// Tensor cores of data-center Blackwell: `tcgen05` (PTX ISA, section "TensorCore 5th Generation Family Instructions").
// tensor_memory.h tracks operations in flight.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "dispatch.h"
#include "pending.h"
#include "tensor_core.h"
#include "text.h"

namespace kernrec {
namespace {

using Type = NumberType;

TensorMemory& memory_of(Batch& batch, uint32_t lane) { return batch.work().tensor.memories[batch.lane_block(lane)]; }

struct AllocateForm {
    Instruction target;  // store of the allocated address
    Row columns;
};

void allocate(Batch& batch, const Instruction& ins) {
    const auto& form = form_of<AllocateForm>(ins);
    batch.require_whole_warps(ins);
    each_warp(batch, ins, [&](uint32_t warp, uint32_t lane, uint32_t) {
        const uint32_t address = memory_of(batch, lane).allocate(uint32_t(batch.value(form.columns, lane)));
        Instruction store = form.target;
        store.guard = {};
        const std::vector<Resolved> all = batch.access_of(store, 4, AccessKind::kWrite, {{warp, 1}});
        for (const Resolved& at : all) {
            std::memcpy(at.places[0], &address, 4);
            batch.count_access(store, at, 4, AccessKind::kWrite);
        }
        batch.check_races(store, all, 4, true, false);
    });
}

void release(Batch& batch, const Instruction& ins) {
    batch.require_whole_warps(ins);
    each_warp(batch, ins, [&](uint32_t, uint32_t lane, uint32_t) {
        memory_of(batch, lane).release(uint32_t(batch.value(ins.a, lane)), uint32_t(batch.value(ins.b, lane)));
    });
}

void relinquish(Batch& batch, const Instruction& ins) {
    batch.require_whole_warps(ins);
    each_warp(batch, ins, [&](uint32_t, uint32_t lane, uint32_t) { memory_of(batch, lane).relinquish(); });
}

void wait(Batch& batch, const Instruction& ins) {
    batch.require_whole_warps(ins);
    uint64_t warps = 0;
    each_warp(batch, ins, [&](uint32_t warp, uint32_t, uint32_t) {
        batch.work().tensor.wait(batch, warp, ins.mode ? TensorUse::kLoaded : TensorUse::kStored);
        warps++;
    });
    batch.count("tcgen05.waits", warps);
}

void fence(Batch& batch, const Instruction& ins) {
    TensorFences& fences = batch.work().tensor.fences;
    fences.tick();
    each_warp(batch, ins, [&](uint32_t warp, uint32_t, uint32_t) { fences.fence(warp, ins.mode); });
}

// --- ld and st (PTX ISA, section "Data Movement Shape") ---

constexpr size_t kMostMoveRegisters = 128;

struct MoveForm {
    std::string shape;
    bool store = false;
    bool packed = false;  // .pack::16b, .unpack::16b
    uint32_t split_columns = 0;
    Instruction address;
    std::vector<Row> registers;
};

// Return the cells of a warp's registers, in the order (lane of the warp, register). Fail if the threads have
// different addresses, or if the warp cannot access the lanes.
Cells cells_of(Batch& batch, const MoveForm& form, uint32_t warp) {
    const uint64_t address = address_at(batch, form.address, warp * kWarp);
    for (uint32_t lane = warp * kWarp; lane < (warp + 1) * kWarp; lane++)
        if (address_at(batch, form.address, lane) != address)
            batch.fail("the threads of a warp have different addresses");
    const uint32_t first_lane = uint32_t(address >> 16) & 0xFFFF, first_column = uint32_t(address) & 0xFFFF;
    const uint32_t within = warp % batch.warps_per_block % 4;
    if (first_lane != 32 * within && (form.shape == "32x32b" || first_lane != 32 * within + 16))
        batch.fail("lane " + std::to_string(first_lane) + " of tensor memory is out of reach: warp " +
                   std::to_string(within) + " of a warpgroup can only access lanes from " +
                   std::to_string(32 * within) + " on");
    Cells cells;
    for (uint32_t t = 0; t < kWarp; ++t)
        for (uint32_t r = 0; r < form.registers.size(); ++r) {
            uint32_t lane = 0, column = 0, split = 0;
            if (form.shape == "32x32b") lane = t, column = r;
            else if (form.shape == "16x32bx2") lane = t % 16, column = r, split = t / 16 * form.split_columns;
            else if (form.shape == "16x64b") lane = t / 4 + 8 * (t % 2), column = t / 2 % 2 + 2 * r;
            else if (form.shape == "16x128b") lane = t / 4 + 8 * (r % 2), column = t % 4 + 4 * (r / 2);
            else lane = t / 4 + 8 * (r / 2 % 2), column = 2 * (t % 4) + r % 2 + 8 * (r / 4);
            const uint32_t columns = form.packed ? 2 : 1;
            for (uint32_t i = 0; i < columns; ++i)
                cells.push_back({first_lane + lane, first_column + column * columns + split + i});
        }
    return cells;
}

void move(Batch& batch, const Instruction& ins) {
    const auto& form = form_of<MoveForm>(ins);
    batch.require_whole_warps(ins);
    const uint32_t halves = form.packed ? 2 : 1;
    uint64_t warps = 0;
    each_warp(batch, ins, [&](uint32_t warp, uint32_t first, uint32_t) {
        warps++;
        const Cells cells = cells_of(batch, form, warp);
        batch.work().tensor.begin(batch, warp, form.store ? TensorUse::kStored : TensorUse::kLoaded, cells);
        TensorMemory& memory = memory_of(batch, first);
        const Cell* cell = cells.data();
        for (uint32_t t = 0; t < kWarp; t++)
            for (const Row& row : form.registers) {
                uint32_t& word = batch.row<uint32_t>(row)[first + t];
                if (!form.store) word = memory.value(cell[0]);
                if (!form.store && form.packed) word = (word & 0xFFFF) | memory.value(cell[1]) << 16;
                if (form.store) memory.put(cell[0], form.packed ? word & 0xFFFF : word);
                if (form.store && form.packed) memory.put(cell[1], word >> 16);
                cell += halves;
            }
    });
    batch.count(form.store ? "tensor_memory.store_bytes" : "tensor_memory.load_bytes",
                warps * kWarp * form.registers.size() * 4 * halves);
}

// Decode ld.sync.aligned.<shape>.x<N>[.pack::16b].b32, or st.
void decode_move(Decoder& decoder, const Source& ins) {
    const Modifiers& modifiers = ins.modifiers;
    if (modifiers.size() < 6 || modifiers[1] != "sync" || modifiers[2] != "aligned" || modifiers.back() != "b32")
        refuse();
    MoveForm form;
    form.store = modifiers[0] == "st";
    form.shape = modifiers[3];
    static const std::map<std::string, int> kRegisters = {
        {"32x32b", 1}, {"16x32bx2", 1}, {"16x64b", 1}, {"16x128b", 2}, {"16x256b", 4}};
    const auto of_one = kRegisters.find(form.shape);
    const int times = modifiers[4].size() > 1 && modifiers[4][0] == 'x' ? parse_int(modifiers[4].substr(1)) : -1;
    form.packed = modifiers.size() == 8 && modifiers[5] == (form.store ? "unpack" : "pack") && modifiers[6] == "16b";
    if (of_one == kRegisters.end() || times < 1 || modifiers.size() != (form.packed ? 8u : 6u)) refuse();
    const size_t registers = size_t(of_one->second * std::min(times, 1024));
    if (registers > kMostMoveRegisters)
        refuse(std::to_string(registers) + " registers, at most " + std::to_string(kMostMoveRegisters));
    Operands operands = ins.operands;
    const auto take = [&](size_t i) {
        if (i >= operands.size()) refuse();
        const Operand operand = operands[i];
        operands.erase(operands.begin() + int64_t(i));
        return operand;
    };
    form.address = decoder.access(take(form.store ? 0 : 1), Space::kGeneric);
    if (form.shape == "16x32bx2") {
        const Operand split = take(form.store ? 0 : operands.size() - 1);
        if (split.kind != OperandKind::kInteger || split.value < 0 || split.value > 0xFFFF)
            refuse("a distance of the halves that is no literal");
        form.split_columns = uint32_t(split.value);
    }
    if (operands.size() != 1) refuse();
    const Operands items = elements(operands[0]);
    if (items.size() != registers)
        refuse(std::to_string(items.size()) + " registers where " + std::to_string(registers) + " are expected");
    for (const Operand& item : items)
        form.registers.push_back(form.store ? decoder.read(item, "b32") : decoder.write(item, "b32"));
    emit_form(decoder, move, std::move(form));
}

// --- mma ---

void require_pair(Batch& batch) {
    if (batch.cluster_blocks() % 2)
        batch.fail("a pair of thread blocks in a cluster of " + std::to_string(batch.cluster_blocks()));
}

struct MultiplyForm {
    std::string kind;
    int ctas = 1;  // thread blocks that multiply together
    uint32_t vector = 0;  // numbers along K per scale factor; 0 for no scaling
    Instruction d, a_address, scale_a, scale_b;
    Row a, b, descriptor;  // matrix descriptors (without `a`, A is in tensor memory), and the instruction descriptor
    std::vector<Row> disabled;  // masks of lanes of D that keep their values: 4 words per block
    Row enable;
    bool enable_inverted = false, enabled = true;
    int shift = 0;  // D is first divided by 2^shift

    bool packed() const { return kind == "mxf4" || kind == "mxf4nvf4"; }
};

// Instruction descriptor of `tcgen05.mma` (PTX ISA, section "Instruction descriptor").
struct InstructionDescriptor {
    uint32_t m, n;
    Type a, b, d;
    bool a_mn_major, b_mn_major;
    int sign;
    bool saturates;
    Type scale = Type::kUe8m0;  // type of scale factors, for block-scaled kinds
    uint32_t first_scale_a = 0, first_scale_b = 0;
};

InstructionDescriptor instruction_descriptor(Batch& batch, uint32_t bits, const MultiplyForm& form) {
    const auto field = [bits](int low, int count) { return bits >> low & ((1u << count) - 1); };
    const auto error = [&](const std::string& what) {
        batch.fail("instruction descriptor " + hex(bits, 8) + " of .kind::" + form.kind + " " + what);
    };
    const bool scaled = form.vector != 0;
    const bool reserved = scaled ? field(3, 1) || field(6, 1) : field(6, 1) || field(23, 1) || field(29, 1);
    if (reserved) error("has a reserved bit");
    if (field(0, 3)) error("asks for a sparse matrix A, which the emulator does not support");
    if (field(31, 1) || (!scaled && field(30, 1)))
        error("asks for more along K, or for a shift, which the emulator does not support");
    constexpr Type kNone = Type::kU64;
    const auto operand = [&](uint32_t code) {
        if (form.kind == "f16") return code == 0 ? Type::kF16 : code == 1 ? Type::kBf16 : kNone;
        if (form.kind == "tf32") return code == 2 ? Type::kTf32 : kNone;
        if (form.kind == "i8") return code == 0 ? Type::kU8 : code == 1 ? Type::kS8 : kNone;
        if (form.packed()) return code == 1 ? Type::kE2m1 : kNone;
        constexpr Type kTypes[] = {Type::kE4m3, Type::kE5m2, kNone, Type::kE2m3,
                                   Type::kE3m2, Type::kE2m1, kNone, kNone};
        return kTypes[code];
    };
    const auto result = [&](uint32_t code) {
        if (scaled) return Type::kF32;
        if (form.kind == "i8") return code == 2 ? Type::kS32 : kNone;
        if (form.kind == "tf32") return code == 1 ? Type::kF32 : kNone;
        return code == 0 ? Type::kF16 : code == 1 ? Type::kF32 : kNone;
    };
    InstructionDescriptor says{};
    says.a = operand(field(7, 3)), says.b = operand(field(10, 3)), says.d = result(field(4, 2));
    if (says.a == kNone || says.b == kNone || says.d == kNone)
        error("has the types A = " + std::to_string(field(7, 3)) + ", B = " + std::to_string(field(10, 3)) +
              " and D = " + std::to_string(field(4, 2)) + ", of which at least one does not exist");
    says.m = field(24, 5) << 4, says.n = field(17, 6) << 3;
    const uint32_t ctas = uint32_t(form.ctas);
    const uint32_t step = says.m == 64 * ctas ? (ctas == 1 ? 8 : 16) : says.m == 128 * ctas ? 16 : 0;
    if (!step || says.n % step || says.n < step || says.n > 256 || (scaled && says.m == 64))
        error("has M = " + std::to_string(says.m) + " and N = " + std::to_string(says.n) +
              ", a shape that does not exist");
    const bool mixed = says.d == Type::kF16 && (says.a == Type::kBf16 || says.b == Type::kBf16);
    if (mixed || (form.kind != "i8" && field(3, 1) && !scaled))
        error("has a type of D or a saturation that its types of A and B do not have");
    says.a_mn_major = field(15, 1), says.b_mn_major = field(16, 1);
    says.sign = field(13, 1) ^ field(14, 1) ? -1 : 1;
    says.saturates = field(3, 1);
    if (scaled) {
        says.scale = field(23, 1) ? Type::kUe8m0 : Type::kUe4m3;
        says.first_scale_a = field(29, 2), says.first_scale_b = field(4, 2);
    }
    return says;
}

// Return the bytes of an element in shared memory; types below 8 bits take one byte.
uint32_t stored_bytes(Type type) { return uint32_t(element_bits(type)) / 8; }

// Return the lane of a row of D. If D has 64 rows, each warp has 16 of them.
uint32_t lane_of_row(uint32_t row, uint32_t rows) { return rows == kTensorLanes ? row : row / 16 * 32 + row % 16; }

Cell cell_at(uint32_t address, uint32_t lane, uint32_t column) {
    return {(address >> 16) + lane, (address & 0xFFFF) + column};
}

double sum_of_cell(Type type, uint32_t cell) {
    if (type == Type::kS32) return int32_t(cell);
    return to_double(type, type == Type::kF16 ? cell & 0xFFFF : cell);
}

void decode_row(const MultiplyForm& form, Type type, const uint8_t* bytes, double* numbers) {
    if (!is_narrow(type)) {
        decode_bytes(type, bytes, int(kTileRowBytes * 8) / number_bits(type), numbers);
        return;
    }
    const float* values = small_float_values(type);
    if (form.packed()) {
        for (uint32_t i = 0; i < 2 * kTileRowBytes; ++i) numbers[i] = values[bytes[i / 2] >> 4 * (i % 2) & 15];
        return;
    }
    // Each 16-byte piece contains 16 numbers and padding.
    const uint32_t bits = uint32_t(number_bits(type));
    for (uint32_t i = 0; i < kTileRowBytes; ++i) {
        const uint8_t* piece = bytes + i / 16 * 16;
        const uint32_t first = i % 16 * bits;
        const uint32_t word = piece[first / 8] | uint32_t(piece[first / 8 + 1]) << 8;
        numbers[i] = values[word >> first % 8 & ((1u << bits) - 1)];
    }
}

// One `tcgen05.mma` of one thread: collects the inputs, checks them, then multiplies.
class Multiplication {
  public:
    Multiplication(Batch& batch, const MultiplyForm& form, uint32_t lane)
        : batch_(batch),
          form_(form),
          lane_(lane),
          says_(instruction_descriptor(batch, uint32_t(batch.value(form.descriptor, lane)), form)),
          depth_(kTileRowBytes / stored_bytes(says_.a) * (form.packed() ? 2 : 1)),
          adds_d_(form.enable ? bool(batch.value(form.enable, lane)) != form.enable_inverted : form.enabled),
          a_(size_t(says_.m) * depth_),
          b_(size_t(says_.n) * depth_) {
        const uint32_t block = batch.lane_block(lane);
        if (form.ctas == 2) require_pair(batch);
        blocks_ = form.ctas == 1 ? std::vector<uint32_t>{block} : std::vector<uint32_t>{block & ~1u, block | 1u};
        rows_ = says_.m / uint32_t(blocks_.size());
    }

    void run() {
        const uint32_t count = uint32_t(blocks_.size());
        for (const uint32_t block : blocks_) operation_.written.push_back({block, cells_of_d()});
        for (uint32_t i = 0; i < count; ++i)
            if (form_.a) read_shared(i, form_.a, rows_, says_.a, says_.a_mn_major, a_);
            else note_tensor_a(i);
        for (uint32_t i = 0; i < count; ++i) read_shared(i, form_.b, says_.n / count, says_.b, says_.b_mn_major, b_);
        if (form_.vector) {
            note_scales(says_.first_scale_a, form_.scale_a, says_.m, count);
            note_scales(says_.first_scale_b, form_.scale_b, says_.n, 1);
        }
        batch_.work().tensor.issue(batch_, lane_, operation_);
        for (uint32_t i = 0; i < count && !form_.a; ++i) decode_tensor_a(i);
        if (form_.vector) {
            scale(a_, says_.first_scale_a, form_.scale_a, says_.m, count);
            scale(b_, says_.first_scale_b, form_.scale_b, says_.n, 1);
        }
        multiply();
        count_events();
    }

  private:
    uint32_t address(const Instruction& access) const { return uint32_t(address_at(batch_, access, lane_)); }
    TensorMemory& memory(size_t i) const { return batch_.work().tensor.memories[blocks_[i]]; }

    Cells cells_of_d() const {
        const uint32_t d = address(form_.d), n = says_.n;
        const bool halves = rows_ == kTensorLanes / 2 && blocks_.size() == 2;
        Cells cells;
        for (uint32_t row = 0; row < rows_; ++row)
            for (uint32_t j = 0; j < n; ++j)
                cells.push_back(halves ? cell_at(d, row + j / (n / 2) * 64, j % (n / 2))
                                       : cell_at(d, lane_of_row(row, rows_), j));
        return cells;
    }

    void note_tensor_a(size_t i) {
        if (is_narrow(says_.a) && !form_.packed())
            batch_.fail(std::string(number_name(says_.a)) + " numbers in tensor memory are not supported");
        Cells cells;
        for (uint32_t row = 0; row < rows_; ++row)
            for (uint32_t j = 0; j < kTileRowBytes / 4; ++j)
                cells.push_back(
                    cell_at(address(form_.a_address), blocks_.size() == 2 ? row : lane_of_row(row, rows_), j));
        operation_.read.push_back({blocks_[i], std::move(cells)});
    }

    void decode_tensor_a(size_t i) {
        for (uint32_t row = 0; row < rows_; ++row) {
            uint32_t words[kTileRowBytes / 4];
            for (uint32_t j = 0; j < kTileRowBytes / 4; ++j)
                words[j] = memory(i).value(operation_.read[i].cells[row * (kTileRowBytes / 4) + j]);
            decode_row(form_, says_.a, reinterpret_cast<const uint8_t*>(words), &a_[(i * rows_ + row) * depth_]);
        }
    }

    void read_shared(size_t i, const Row& descriptor, uint32_t extent, Type type, bool mn_major,
                     std::vector<double>& numbers) {
        const uint32_t size = stored_bytes(type);
        if (mn_major && is_narrow(type)) batch_.fail(std::string(number_name(type)) + " numbers must be K-major");
        const auto tile = read_tile(batch_, blocks_[i], true, batch_.value(descriptor, lane_),
                                    {extent, kTileRowBytes / size, size, mn_major}, &operation_.places);
        for (uint32_t row = 0; row < extent; ++row)
            decode_row(form_, type, &tile[row * kTileRowBytes], &numbers[(i * extent + row) * depth_]);
    }

    void note_scales(uint32_t first, const Instruction& access, uint32_t extent, uint32_t count) {
        const uint32_t factors = depth_ / form_.vector;
        if (first + factors > 4)
            batch_.fail(std::to_string(factors) + " scale factors from byte " + std::to_string(first) +
                        " of a column on");
        for (uint32_t i = 0; i < count; ++i) {
            Cells cells;
            for (uint32_t row = 0; row < extent / count; ++row)
                cells.push_back(cell_at(address(access), row % 32, row / 32));
            operation_.read.push_back({blocks_[i], std::move(cells)});
        }
    }

    void scale(std::vector<double>& numbers, uint32_t first, const Instruction& access, uint32_t extent,
               uint32_t count) const {
        const uint32_t per_block = extent / count;
        for (uint32_t row = 0; row < extent; ++row) {
            const uint32_t of_block = row % per_block;
            const Cell cell = cell_at(address(access), of_block % 32, of_block / 32);
            const uint32_t word = memory(row / per_block).value(cell);
            for (uint32_t k = 0; k < depth_; ++k)
                numbers[row * depth_ + k] *= to_double(says_.scale, word >> 8 * (first + k / form_.vector) & 0xFF);
        }
    }

    void multiply() {
        std::vector<double> sums(size_t(says_.m) * 8), tile(8 * depth_);
        std::vector<uint32_t> disabled;
        for (const Row& row : form_.disabled) disabled.push_back(uint32_t(batch_.value(row, lane_)));
        const double divisor = std::ldexp(1.0, -form_.shift);
        for (uint32_t first = 0; first < says_.n; first += 8) {
            for (uint32_t column = 0; column < 8; ++column)
                for (uint32_t k = 0; k < depth_; ++k) tile[8 * k + column] = b_[(first + column) * depth_ + k];
            multiply_tile({a_.data(), int(says_.m), int(depth_), int(depth_)}, tile.data(), sums.data());
            for (uint32_t row = 0; row < says_.m; ++row)
                for (uint32_t j = 0; j < 8; ++j) {
                    const size_t i = row / rows_;
                    const Cell cell = operation_.written[i].cells[row % rows_ * says_.n + first + j];
                    if (!disabled.empty() && disabled[4 * i + cell.lane / 32] >> cell.lane % 32 & 1) continue;
                    double sum = says_.sign * sums[8 * size_t(row) + j];
                    if (adds_d_) sum += sum_of_cell(says_.d, memory(i).value(cell)) * divisor;
                    memory(i).put(cell, rounded_sum(says_.d, says_.saturates, sum));
                }
        }
    }

    void count_events() const {
        // Count two packed 4-bit numbers as one, because both together take as long. Unpacked numbers take a byte each.
        const uint64_t bytes = stored_bytes(says_.a), cells = uint64_t(says_.m) * says_.n;
        const uint64_t operations = 2 * cells * (kTileRowBytes / bytes);
        count_operations(batch_, "mma", says_.a, operations);
        count_operations(batch_, "tcgen05", says_.a, operations);
        batch_.count("tcgen05.shared_bytes", operation_.places.size() * bytes);
        const uint64_t in_tensor = form_.a ? 0 : uint64_t(says_.m) * kTileRowBytes;
        batch_.count("tensor_memory.mma_bytes", cells * 4 * (adds_d_ ? 2 : 1) + in_tensor);
    }

    Batch& batch_;
    const MultiplyForm& form_;
    uint32_t lane_;
    InstructionDescriptor says_;
    uint32_t depth_;  // elements along K
    bool adds_d_;
    std::vector<double> a_, b_;  // M x K and N x K
    std::vector<uint32_t> blocks_;  // positions in the batch
    uint32_t rows_ = 0;   // per block
    TensorOperation operation_;
};

void multiply(Batch& batch, const Instruction& ins) {
    each_lane(batch, ins, [&](uint32_t lane) { Multiplication(batch, form_of<MultiplyForm>(ins), lane).run(); });
}

// Decode mma.cta_group::<n>.kind::<kind>[.block_scale[.scale_vec::<v>]].
void decode_multiply(Decoder& decoder, const Source& ins) {
    for (const char* name : {"sp", "ws", "ashift"})
        if (ins.has(name)) refuse(std::string(".") + name);
    if (ins.modifiers.size() < 5 || ins.modifiers[1] != "cta_group" || ins.modifiers[3] != "kind") refuse();
    MultiplyForm form;
    form.kind = ins.modifiers[4];
    form.ctas = parse_int(ins.modifiers[2]);
    const bool scaled = form.kind == "mxf8f6f4" || form.packed();
    const bool known =
        scaled || form.kind == "f16" || form.kind == "tf32" || form.kind == "f8f6f4" || form.kind == "i8";
    if (!known || (form.ctas != 1 && form.ctas != 2)) refuse();
    if (ins.has("block_scale") != scaled) refuse("block scaling");
    if (scaled) form.vector = form.kind == "mxf4nvf4" ? 16 : 32;
    for (size_t i = 5; scaled && i < ins.modifiers.size(); ++i) {
        const std::string& mark = ins.modifiers[i];
        if (mark == "1X" || mark == "2X" || mark == "block32") form.vector = 32;
        if (mark == "4X" || mark == "block16") form.vector = 16;
    }
    if (ins.operands.size() < 5) refuse();
    form.d = decoder.access(ins.operands[0], Space::kGeneric);
    const Operand& a = ins.operands[1];
    if (a.kind == OperandKind::kAddress) form.a_address = decoder.access(a, Space::kGeneric);
    else form.a = decoder.value(a, "b64");
    form.b = decoder.value(ins.operands[2], "b64");
    form.descriptor = decoder.value(ins.operands[3], "u32");
    size_t next = 4;
    const auto take = [&]() -> const Operand& {
        if (next >= ins.operands.size()) refuse();
        return ins.operands[next++];
    };
    if (form.vector) {
        form.scale_a = decoder.access(take(), Space::kGeneric);
        form.scale_b = decoder.access(take(), Space::kGeneric);
    }
    if (next < ins.operands.size() && ins.operands[next].kind == OperandKind::kVector) {
        for (const Operand& item : take().items) form.disabled.push_back(decoder.value(item, "u32"));
        if (form.disabled.size() != 4u * unsigned(form.ctas))
            refuse(std::to_string(form.disabled.size()) + " masks of lanes");
    }
    const Operand& enable = take();
    if (enable.kind == OperandKind::kInteger) form.enabled = enable.value != 0;
    else std::tie(form.enable, form.enable_inverted) = decoder.flag(enable);
    if (next < ins.operands.size()) {
        const Operand& shift = take();
        if (shift.kind != OperandKind::kInteger || shift.value < -1000 || shift.value > 1000) refuse();
        form.shift = int(shift.value);
    }
    if (next != ins.operands.size()) refuse();
    emit_form(decoder, multiply, std::move(form));
}

// --- cp: copy rows of a matrix in shared memory to lanes of tensor memory ---

struct CopyForm {
    uint32_t rows, row_bytes;
    std::vector<uint32_t> first_lanes;  // for each copy of the rows
    bool skips_quarter;  // rows 32 to 63 go to lanes from 64
    int ctas;
    Instruction address;
    Row descriptor;
};

void copy(Batch& batch, const Instruction& ins) {
    const auto& form = form_of<CopyForm>(ins);
    each_lane(batch, ins, [&](uint32_t lane) {
        if (form.ctas == 2) require_pair(batch);
        const uint32_t address = uint32_t(address_at(batch, form.address, lane)), words = form.row_bytes / 4;
        for (int i = 0; i < form.ctas; ++i) {
            const uint32_t block = batch.lane_block(lane) ^ uint32_t(i);
            TensorOperation operation;
            const auto tile = read_tile(batch, block, true, batch.value(form.descriptor, lane),
                                        {form.rows, form.row_bytes, 1}, &operation.places);
            Cells cells;
            for (const uint32_t first : form.first_lanes)
                for (uint32_t row = 0; row < form.rows; ++row)
                    for (uint32_t j = 0; j < words; ++j) {
                        const uint32_t step = form.rows == 4 ? 32 : 1;
                        const uint32_t to = form.skips_quarter ? row % 32 + row / 32 * 64 : row * step;
                        cells.push_back(cell_at(address, first + to, j));
                        cells.back().column = std::min(cells.back().column, kTensorColumns);
                    }
            operation.written.push_back({block, cells});
            batch.work().tensor.issue(batch, lane, operation);
            for (size_t cell = 0; cell < cells.size(); ++cell) {
                uint32_t word;
                std::memcpy(&word, &tile[cell % (form.rows * words) * 4], 4);
                batch.work().tensor.memories[block].put(cells[cell], word);
            }
            batch.count("tcgen05.shared_bytes", tile.size());
            batch.count("tensor_memory.copy_bytes", 4 * cells.size());
        }
    });
}

// Decode cp.cta_group::<n>.<shape>[.<multicast>]; Triton writes the multicast before the shape.
void decode_copy(Decoder& decoder, const Source& ins) {
    const Modifiers& modifiers = ins.modifiers;
    if (modifiers.size() < 4 || modifiers[1] != "cta_group") refuse();
    std::string shape, multicast;
    for (size_t i = 3; i < modifiers.size(); ++i) {
        const std::string& mark = modifiers[i];
        const bool is_shape =
            mark == "128x256b" || mark == "4x256b" || mark == "128x128b" || mark == "64x128b" || mark == "32x128b";
        if (is_shape && shape.empty()) shape = mark;
        else multicast += "." + mark;
    }
    CopyForm form{};
    form.rows = uint32_t(parse_int(shape.substr(0, shape.find('x'))));
    form.row_bytes = shape.find("256b") != std::string::npos ? 32 : 16;
    form.first_lanes = {0};
    form.ctas = modifiers[2] == "1" ? 1 : 2;
    if (shape == "64x128b" && multicast == ".warpx2.02_13") form.first_lanes = {0, 64};
    else if (shape == "64x128b" && multicast == ".warpx2.01_23") form.first_lanes = {0, 32}, form.skips_quarter = true;
    else if (shape == "32x128b" && multicast == ".warpx4") form.first_lanes = {0, 32, 64, 96};
    else if (shape.empty() || !multicast.empty() || shape == "64x128b" || shape == "32x128b") refuse();
    form.address = decoder.access(ins.operands[0], Space::kGeneric);
    form.descriptor = decoder.value(ins.operands[1], "b64");
    emit_form(decoder, copy, std::move(form));
}

// --- commit ---

struct CommitForm {
    Instruction barrier;
    Row mask;
};

void commit(Batch& batch, const Instruction& ins) {
    const auto& form = form_of<CommitForm>(ins);
    for (const LanePlace& use : barriers_of(batch, form.barrier)) {
        std::vector<SharedPlace> places{use.place};
        if (form.mask) {
            const uint32_t blocks = batch.cluster_blocks(), first = use.place.block / blocks * blocks;
            places.clear();
            for (uint32_t rank = 0; rank < blocks; rank++)
                if (batch.value(form.mask, use.lane) >> rank & 1) places.push_back({first + rank, use.place.byte});
        }
        batch.work().tensor.commit(batch, use.lane, std::move(places));
    }
}

const Registration kTcgen05({"tcgen05"}, [](Decoder& decoder, const Source& ins) {
    if (ins.modifiers.empty()) refuse();
    const std::string &kind = ins.modifiers[0], part = ins.modifiers.size() > 1 ? ins.modifiers[1] : "";
    const auto operands = [&](size_t count) {
        if (ins.operands.size() < count) refuse();
    };
    const Space space = ins.has("shared") ? Space::kShared : Space::kGeneric;
    if (kind == "ld" || kind == "st") {
        decode_move(decoder, ins);
    } else if (kind == "mma") {
        decode_multiply(decoder, ins);
    } else if (kind == "alloc") {
        operands(2);
        emit_form(decoder, allocate,
                  AllocateForm{decoder.access(ins.operands[0], space), decoder.value(ins.operands[1], "u32")});
    } else if (kind == "dealloc") {
        operands(2);
        const Row a = decoder.value(ins.operands[0], "u32"), b = decoder.value(ins.operands[1], "u32");
        decoder.emit(release, {}, a, b);
    } else if (kind == "relinquish_alloc_permit") {
        decoder.emit(relinquish);
    } else if (kind == "wait" && (part == "ld" || part == "st")) {
        decoder.emit(wait).mode = part == "ld";
    } else if (kind == "fence" && (part == "before_thread_sync" || part == "after_thread_sync")) {
        decoder.emit(fence).mode = part == "before_thread_sync";
    } else if (kind == "cp") {
        operands(2);
        decode_copy(decoder, ins);
    } else if (kind == "commit") {
        operands(ins.has("multicast") ? 2 : 1);
        CommitForm form{decoder.access(ins.operands[0], space), {}};
        if (ins.has("multicast")) form.mask = decoder.value(ins.operands[1], "u16");
        emit_form(decoder, commit, std::move(form));
    } else {
        refuse();
    }
});

}  // namespace
}  // namespace kernrec
