// Tensor memory of data-center Blackwell, and its tcgen05 instructions: see tensor_core.h.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <stdexcept>

#include "tensor_core.h"
#include "text.h"
#include "tile_multiply.h"

namespace kernrec {
namespace {

using Type = NumberType;

constexpr uint32_t kFewestColumns = 32;          // smallest allocation
constexpr uint32_t kUninitialized = 0xFFFFFFFF;  // value of an unwritten cell
constexpr int kMostMoveRegisters = 128;

const char* const kWhyNot[] = {
    "the kernel did not wait for a tcgen05.st to them (tcgen05.wait::st)",
    "the kernel did not wait for a tcgen05.ld of them (tcgen05.wait::ld)",
    "a tcgen05.mma or tcgen05.cp still writes them; the barrier of a tcgen05.commit must complete first",
    "a tcgen05.mma still reads them; the barrier of a tcgen05.commit must complete first",
};

[[noreturn]] void refuse(const std::string& text) { throw std::invalid_argument(text); }

bool is_narrow(Type type) { return type == Type::kE2m1 || type == Type::kE2m3 || type == Type::kE3m2; }

// Return the bytes of an element in shared memory; types below 8 bits take one byte.
uint32_t stored_bytes(Type type) { return is_narrow(type) ? 1 : uint32_t(number_bits(type)) / 8; }

// Return the lane of a row of D. If D has 64 rows, each warp has 16 of them.
uint32_t lane_of_row(uint32_t row, uint32_t rows) { return rows == kTensorLanes ? row : row / 16 * 32 + row % 16; }

// Decode a 32-byte row of A or B.
void decode_row(const TensorMultiply& form, Type type, const uint8_t* bytes, double* numbers) {
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

double sum_of_cell(Type type, uint32_t cell) {
    if (type == Type::kS32) return int32_t(cell);
    return to_double(type, type == Type::kF16 ? cell & 0xFFFF : cell);
}

}  // namespace

// --- Allocation and accesses ---

uint32_t TensorMemory::allocate(uint32_t columns, uint32_t source) {
    if (columns < kFewestColumns || columns > kTensorColumns || (columns & (columns - 1)))
        refuse(std::to_string(columns) + " columns, where a power of two from " + std::to_string(kFewestColumns) +
               " to 512 is expected");
    if (closed_) refuse("the block gave up allocating (tcgen05.relinquish_alloc_permit)");
    if (cells_.empty()) {
        cells_.assign(kTensorLanes * kTensorColumns, kUninitialized);
        for (auto& use : under_way_) use.assign(cells_.size(), 0);
    }
    uint32_t taken = 0;
    for (const Allocation& other : allocations_) taken += other.columns;
    for (uint32_t first = 0; first < kTensorColumns; first += columns) {
        const bool free = std::all_of(allocations_.begin(), allocations_.end(), [&](const Allocation& other) {
            return first + columns <= other.first || other.first + other.columns <= first;
        });
        if (!free) continue;
        allocations_.push_back({first, columns, source});
        return first;
    }
    refuse("deadlock: " + std::to_string(columns) + " more columns of tensor memory are requested, but " +
           std::to_string(taken) + " of 512 are taken");
}

void TensorMemory::release(uint32_t address, uint32_t columns) {
    const auto owned = std::find_if(allocations_.begin(), allocations_.end(),
                                    [&](const Allocation& allocation) { return allocation.first == address; });
    if (owned == allocations_.end() || owned->columns != columns) {
        const std::string had = owned == allocations_.end() ? "none" : std::to_string(owned->columns) + " columns";
        refuse(std::to_string(columns) + " columns at " + hex(address, 8) + ", where " + had + " were allocated");
    }
    Cells cells;
    for (uint32_t lane = 0; lane < kTensorLanes; ++lane)
        for (uint32_t column = address; column < address + columns; ++column) cells.push_back({lane, column});
    check(cells, {TensorUse::kStored, TensorUse::kLoaded, TensorUse::kComputed, TensorUse::kRead});
    allocations_.erase(owned);
}

std::optional<std::pair<uint32_t, std::string>> TensorMemory::unreleased() const {
    if (allocations_.empty()) return std::nullopt;
    const Allocation& left = allocations_.front();
    return std::make_pair(left.source, std::to_string(left.columns) + " columns of tensor memory from " +
                                           std::to_string(left.first) + " on were not released when the kernel ended");
}

void TensorMemory::check(const Cells& cells, std::initializer_list<TensorUse> hindrances) const {
    if (cells.empty()) return;
    uint32_t highest_lane = 0, first = cells[0].column, last = first;
    for (const Cell cell : cells) {
        highest_lane = std::max(highest_lane, cell.lane);
        first = std::min(first, cell.column);
        last = std::max(last, cell.column);
    }
    if (highest_lane >= kTensorLanes)
        refuse("lane " + std::to_string(highest_lane) + " of tensor memory, which has " + std::to_string(kTensorLanes));
    std::array<bool, kTensorColumns + 1> taken{};
    for (const Allocation& allocation : allocations_)
        std::fill_n(taken.begin() + allocation.first, allocation.columns, true);
    const std::string columns =
        "columns " + std::to_string(first) + " to " + std::to_string(last) + " of tensor memory";
    for (const Cell cell : cells)
        if (!taken[std::min(cell.column, kTensorColumns)]) refuse(columns + " are not all allocated");
    for (const TensorUse use : hindrances)
        for (const Cell cell : cells)
            if (under_way_[size_t(use)][index(cell)]) refuse(columns + ": " + kWhyNot[size_t(use)]);
}

void TensorMemory::load(const Cells& cells, uint32_t* values) {
    check(cells, {TensorUse::kStored, TensorUse::kComputed});
    for (size_t i = 0; i < cells.size(); ++i) {
        ++under_way_[size_t(TensorUse::kLoaded)][index(cells[i])];
        values[i] = value(cells[i]);
    }
}

void TensorMemory::store(const Cells& cells, const uint32_t* values) {
    check(cells, {TensorUse::kLoaded, TensorUse::kComputed, TensorUse::kRead});
    for (size_t i = 0; i < cells.size(); ++i) {
        under_way_[size_t(TensorUse::kStored)][index(cells[i])] = 1;
        put(cells[i], values[i]);
    }
}

void TensorMemory::finish(TensorUse use, const Cells& cells) {
    for (const Cell cell : cells) {
        int16_t& count = under_way_[size_t(use)][index(cell)];
        count = use == TensorUse::kStored ? int16_t(0) : int16_t(count - 1);
    }
}

void TensorMemory::begin_read(const Cells& cells) {
    check(cells, {TensorUse::kStored});
    for (const Cell cell : cells) ++under_way_[size_t(TensorUse::kRead)][index(cell)];
}

void TensorMemory::begin_write(const Cells& cells) {
    check(cells, {TensorUse::kStored, TensorUse::kLoaded});
    for (const Cell cell : cells) ++under_way_[size_t(TensorUse::kComputed)][index(cell)];
}

// --- tcgen05.ld and tcgen05.st (PTX ISA, section "Data Movement Shape") ---

TensorMove tensor_move_form(const Modifiers& modifiers) {
    // ld.sync.aligned.<shape>.x<N>[.pack::16b].b32
    if (modifiers.size() < 6 || modifiers[1] != "sync" || modifiers[2] != "aligned" || modifiers.back() != "b32")
        throw UnsupportedForm("");
    TensorMove form{modifiers[3], 0, false};
    const int times = modifiers[4].size() > 1 && modifiers[4][0] == 'x' ? parse_int(modifiers[4].substr(1)) : -1;
    const int of_one = form.shape == "32x32b" || form.shape == "16x32bx2" || form.shape == "16x64b" ? 1
                       : form.shape == "16x128b"                                                    ? 2
                       : form.shape == "16x256b"                                                    ? 4
                                                                                                    : 0;
    form.packed =
        modifiers.size() == 8 && modifiers[5] == (modifiers[0] == "ld" ? "pack" : "unpack") && modifiers[6] == "16b";
    if (!of_one || times < 1 || modifiers.size() != (form.packed ? 8u : 6u)) throw UnsupportedForm("");
    form.registers = of_one * std::min(times, 1024);
    if (form.registers > kMostMoveRegisters)
        throw UnsupportedForm(std::to_string(form.registers) + " registers, at most " +
                              std::to_string(kMostMoveRegisters));
    return form;
}

Cells tensor_move_cells(const TensorMove& form, uint32_t address, uint32_t split_columns) {
    Cells cells;
    const uint32_t first_lane = address >> 16, first_column = address & 0xFFFF;
    for (uint32_t t = 0; t < kWarp; ++t)
        for (uint32_t r = 0; r < uint32_t(form.registers); ++r) {
            uint32_t lane = 0, column = 0, split = 0;
            if (form.shape == "32x32b") lane = t, column = r;
            else if (form.shape == "16x32bx2") lane = t % 16, column = r, split = t / 16 * split_columns;
            else if (form.shape == "16x64b") lane = t / 4 + 8 * (t % 2), column = t / 2 % 2 + 2 * r;
            else if (form.shape == "16x128b") lane = t / 4 + 8 * (r % 2), column = t % 4 + 4 * (r / 2);
            else lane = t / 4 + 8 * (r / 2 % 2), column = 2 * (t % 4) + r % 2 + 8 * (r / 4);
            const uint32_t columns = form.packed ? 2 : 1;
            for (uint32_t i = 0; i < columns; ++i)
                cells.push_back({first_lane + lane, first_column + column * columns + split + i});
        }
    return cells;
}

// --- tcgen05.mma ---

TensorMultiply tensor_multiply_form(const Modifiers& modifiers) {
    // mma.cta_group::<n>.kind::<kind>[.block_scale[.scale_vec::<v>]]
    const auto has = [&](const std::string& name) {
        return std::find(modifiers.begin(), modifiers.end(), name) != modifiers.end();
    };
    for (const char* name : {"sp", "ws", "ashift"})
        if (has(name)) throw UnsupportedForm(std::string(".") + name);
    if (modifiers.size() < 5 || modifiers[1] != "cta_group" || modifiers[3] != "kind") throw UnsupportedForm("");
    TensorMultiply form{modifiers[4], parse_int(modifiers[2]), 0};
    const bool scaled = form.kind == "mxf8f6f4" || form.packed();
    const bool known =
        scaled || form.kind == "f16" || form.kind == "tf32" || form.kind == "f8f6f4" || form.kind == "i8";
    if (!known || (form.ctas != 1 && form.ctas != 2)) throw UnsupportedForm("");
    if (has("block_scale") != scaled) throw UnsupportedForm("block scaling");
    if (!scaled) return form;
    form.vector = form.kind == "mxf4nvf4" ? 16 : 32;
    for (size_t i = 5; i < modifiers.size(); ++i) {
        if (modifiers[i] == "1X" || modifiers[i] == "2X" || modifiers[i] == "block32") form.vector = 32;
        if (modifiers[i] == "4X" || modifiers[i] == "block16") form.vector = 16;
    }
    return form;
}

InstructionDescriptor instruction_descriptor(uint32_t bits, const TensorMultiply& form) {
    const auto field = [bits](int low, int count) { return bits >> low & ((1u << count) - 1); };
    const auto error = [&](const std::string& what) {
        refuse("instruction descriptor " + hex(bits, 8) + " of .kind::" + form.kind + " " + what);
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
    says.m = int(field(24, 5) << 4), says.n = int(field(17, 6) << 3);
    const int step = says.m == 64 * form.ctas ? (form.ctas == 1 ? 8 : 16) : says.m == 128 * form.ctas ? 16 : 0;
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
        says.first_scale_a = int(field(29, 2)), says.first_scale_b = int(field(4, 2));
    }
    return says;
}

namespace {

// One `tcgen05.mma`: collects the inputs, checks them, then multiplies.
class TensorMultiplication {
  public:
    TensorMultiplication(Memory& memory, const TensorMultiply& form, const InstructionDescriptor& says,
                         const TensorOperands& operands, const std::vector<std::pair<uint32_t, TensorMemory*>>& blocks,
                         const IssueOperation& issue)
        : memory_(memory),
          form_(form),
          says_(says),
          operands_(operands),
          blocks_(blocks),
          issue_(issue),
          rows_(uint32_t(says.m) / uint32_t(blocks.size())),
          depth_(kTileRowBytes / stored_bytes(says.a) * (form.packed() ? 2 : 1)) {}

    TensorOperation run() {
        const size_t count = blocks_.size();
        operation_.shared_bytes.resize(count);
        for (size_t i = 0; i < count; ++i) {
            operation_.blocks.push_back(blocks_[i].first);
            operation_.written.push_back({blocks_[i].first, cells_of_d()});
        }
        a_.resize(size_t(says_.m) * depth_), b_.resize(size_t(says_.n) * depth_);
        for (size_t i = 0; i < count; ++i) read_a(i);
        for (size_t i = 0; i < count; ++i)
            read_shared(i, operands_.b_descriptor, uint32_t(says_.n) / uint32_t(count), says_.b, says_.b_mn_major, b_);
        if (form_.vector) {
            note_scales(says_.first_scale_a, operands_.scale_a_address, uint32_t(says_.m), count);
            note_scales(says_.first_scale_b, operands_.scale_b_address, uint32_t(says_.n), 1);
        }
        issue_(operation_);
        for (size_t i = 0; i < count && operands_.a_in_tensor_memory; ++i) decode_tensor_a(i);
        if (form_.vector) {
            scale(a_, says_.first_scale_a, operands_.scale_a_address, uint32_t(says_.m), count);
            scale(b_, says_.first_scale_b, operands_.scale_b_address, uint32_t(says_.n), 1);
        }
        multiply();
        count_events();
        return std::move(operation_);
    }

  private:
    Cells cells_of_d() const {
        const uint32_t lane = operands_.d_address >> 16, column = operands_.d_address & 0xFFFF, n = uint32_t(says_.n);
        const bool halves = rows_ == kTensorLanes / 2 && blocks_.size() == 2;
        Cells cells;
        for (uint32_t row = 0; row < rows_; ++row)
            for (uint32_t j = 0; j < n; ++j) {
                if (halves) cells.push_back({lane + row + j / (n / 2) * 64, column + j % (n / 2)});
                else cells.push_back({lane + lane_of_row(row, rows_), column + j});
            }
        return cells;
    }

    void read_a(size_t i) {
        if (!operands_.a_in_tensor_memory) {
            read_shared(i, operands_.a, rows_, says_.a, says_.a_mn_major, a_);
            return;
        }
        if (is_narrow(says_.a) && !form_.packed())
            refuse(std::string(number_name(says_.a)) + " numbers in tensor memory are not supported");
        const uint32_t lane = uint32_t(operands_.a) >> 16, column = uint32_t(operands_.a) & 0xFFFF;
        Cells cells;
        for (uint32_t row = 0; row < rows_; ++row)
            for (uint32_t j = 0; j < kTileRowBytes / 4; ++j)
                cells.push_back({lane + (blocks_.size() == 2 ? row : lane_of_row(row, rows_)), column + j});
        operation_.read.push_back({blocks_[i].first, std::move(cells)});
    }

    void decode_tensor_a(size_t i) {
        for (uint32_t row = 0; row < rows_; ++row) {
            uint32_t words[kTileRowBytes / 4];
            for (uint32_t j = 0; j < kTileRowBytes / 4; ++j)
                words[j] = blocks_[i].second->value(operation_.read[i].cells[row * (kTileRowBytes / 4) + j]);
            decode_row(form_, says_.a, reinterpret_cast<const uint8_t*>(words), &a_[(i * rows_ + row) * depth_]);
        }
    }

    // Read the part of A or B in a block's shared memory.
    void read_shared(size_t i, uint64_t descriptor, uint32_t extent, Type type, bool mn_major,
                     std::vector<double>& numbers) {
        const uint32_t size = stored_bytes(type);
        if (mn_major && is_narrow(type)) refuse(std::string(number_name(type)) + " numbers must be K-major");
        std::vector<uint32_t> addresses;
        const auto tile = read_tile(memory_, blocks_[i].first, true, descriptor,
                                    {extent, kTileRowBytes / size, size, mn_major}, &addresses);
        auto& all = operation_.shared_bytes[i];
        all.insert(all.end(), addresses.begin(), addresses.end());
        elements_read_ += addresses.size();
        for (uint32_t row = 0; row < extent; ++row)
            decode_row(form_, type, &tile[row * kTileRowBytes], &numbers[(i * extent + row) * depth_]);
    }

    void note_scales(int first, uint32_t address, uint32_t extent, size_t count) {
        const int factors = int(depth_) / form_.vector;
        if (first + factors > 4)
            refuse(std::to_string(factors) + " scale factors from byte " + std::to_string(first) + " of a column on");
        for (size_t i = 0; i < count; ++i) {
            Cells cells;
            for (uint32_t row = 0; row < extent / count; ++row) cells.push_back(scale_cell(address, row));
            operation_.read.push_back({blocks_[i].first, std::move(cells)});
        }
    }

    static Cell scale_cell(uint32_t address, uint32_t row) {
        return {(address >> 16) + row % 32, (address & 0xFFFF) + row / 32};
    }

    void scale(std::vector<double>& numbers, int first, uint32_t address, uint32_t extent, size_t count) const {
        const uint32_t vector = uint32_t(form_.vector), per_block = extent / uint32_t(count);
        for (uint32_t row = 0; row < extent; ++row) {
            const uint32_t word = blocks_[row / per_block].second->value(scale_cell(address, row % per_block));
            for (uint32_t k = 0; k < depth_; ++k)
                numbers[row * depth_ + k] *= to_double(says_.scale, word >> 8 * (uint32_t(first) + k / vector) & 0xFF);
        }
    }

    void multiply() {
        std::vector<double> sums(size_t(says_.m) * 8), tile(8 * depth_);
        const double divisor = std::ldexp(1.0, -operands_.divide_by_power);
        for (int first = 0; first < says_.n; first += 8) {
            for (uint32_t column = 0; column < 8; ++column)
                for (uint32_t k = 0; k < depth_; ++k)
                    tile[8 * k + column] = b_[(uint32_t(first) + column) * depth_ + k];
            multiply_tile({a_.data(), says_.m, int(depth_), int(depth_)}, tile.data(), sums.data());
            for (int row = 0; row < says_.m; ++row)
                for (int j = 0; j < 8; ++j)
                    put_sum(uint32_t(row), uint32_t(first + j), says_.sign * sums[8 * size_t(row) + size_t(j)],
                            divisor);
        }
    }

    void put_sum(uint32_t row, uint32_t column, double sum, double divisor) {
        const size_t i = row / rows_;
        const Cell cell = operation_.written[i].cells[row % rows_ * uint32_t(says_.n) + column];
        TensorMemory& tensor = *blocks_[i].second;
        if (operands_.disabled && operands_.disabled[4 * i + cell.lane / 32] >> cell.lane % 32 & 1) return;
        if (operands_.adds_d) sum += sum_of_cell(says_.d, tensor.value(cell)) * divisor;
        tensor.put(cell, rounded_sum(says_.d, says_.saturates, sum));
    }

    void count_events() const {
        // Packed numbers are twice as many, and each takes half the time. Unpacked narrow numbers take a byte each.
        const Type counted = is_narrow(says_.a) ? Type::kE4m3 : says_.a;
        const uint64_t bytes = stored_bytes(says_.a), cells = uint64_t(says_.m) * uint64_t(says_.n);
        const uint64_t operations = 2 * cells * (kTileRowBytes / bytes);
        count_operations(memory_, "mma", counted, operations);
        count_operations(memory_, "tcgen05", counted, operations);
        memory_.count("tcgen05.shared_bytes", elements_read_ * bytes);
        const uint64_t in_tensor = operands_.a_in_tensor_memory ? uint64_t(says_.m) * kTileRowBytes : 0;
        memory_.count("tensor_memory.mma_bytes", cells * 4 * (operands_.adds_d ? 2 : 1) + in_tensor);
    }

    Memory& memory_;
    const TensorMultiply& form_;
    const InstructionDescriptor& says_;
    const TensorOperands& operands_;
    const std::vector<std::pair<uint32_t, TensorMemory*>>& blocks_;
    const IssueOperation& issue_;
    uint32_t rows_;   // per block
    uint32_t depth_;  // elements along K
    uint64_t elements_read_ = 0;
    std::vector<double> a_, b_;  // M x K and N x K
    TensorOperation operation_;
};

}  // namespace

TensorOperation tcgen05_mma(Memory& memory, const TensorMultiply& form, const InstructionDescriptor& descriptor,
                            const TensorOperands& operands,
                            const std::vector<std::pair<uint32_t, TensorMemory*>>& blocks,
                            const IssueOperation& issue) {
    return TensorMultiplication(memory, form, descriptor, operands, blocks, issue).run();
}

// --- tcgen05.cp ---

TensorCopy tensor_copy_form(const Modifiers& modifiers) {
    // cp.cta_group::<n>.<shape>[.<multicast>]; Triton writes the multicast before the shape.
    if (modifiers.size() < 4 || modifiers[1] != "cta_group") throw UnsupportedForm("");
    std::string shape, multicast;
    for (size_t i = 3; i < modifiers.size(); ++i) {
        const std::string& mark = modifiers[i];
        const bool is_shape =
            mark == "128x256b" || mark == "4x256b" || mark == "128x128b" || mark == "64x128b" || mark == "32x128b";
        if (is_shape && shape.empty()) shape = mark;
        else multicast += "." + mark;
    }
    TensorCopy form{0, shape.find("256b") != std::string::npos ? 32u : 16u, {0}, 1, false, modifiers[2] == "1" ? 1 : 2};
    form.rows = uint32_t(parse_int(shape.substr(0, shape.find('x'))));
    form.lane_step = form.rows == 4 ? 32 : 1;
    if (shape == "64x128b" && multicast == ".warpx2.02_13") form.first_lanes = {0, 64};
    else if (shape == "64x128b" && multicast == ".warpx2.01_23") form.first_lanes = {0, 32}, form.skips_quarter = true;
    else if (shape == "32x128b" && multicast == ".warpx4") form.first_lanes = {0, 32, 64, 96};
    else if (shape.empty() || !multicast.empty() || shape == "64x128b" || shape == "32x128b") throw UnsupportedForm("");
    return form;
}

TensorOperation tcgen05_cp(Memory& memory, const TensorCopy& form, uint32_t address, uint64_t descriptor,
                           const std::vector<std::pair<uint32_t, TensorMemory*>>& blocks, const IssueOperation& issue) {
    TensorOperation operation;
    for (const auto& [block, tensor] : blocks) {
        std::vector<uint32_t> addresses;
        const auto tile = read_tile(memory, block, true, descriptor, {form.rows, form.row_bytes, 1}, &addresses);
        const uint32_t words = form.row_bytes / 4;
        Cells cells;
        for (const uint32_t first : form.first_lanes)
            for (uint32_t row = 0; row < form.rows; ++row)
                for (uint32_t j = 0; j < words; ++j) {
                    const uint32_t lane = form.skips_quarter ? row % 32 + row / 32 * 64 : row * form.lane_step;
                    cells.push_back({(address >> 16) + first + lane, std::min((address & 0xFFFF) + j, kTensorColumns)});
                }
        const TensorOperation one{{}, {{block, cells}}, {block}, {addresses}};
        issue(one);
        for (size_t i = 0; i < cells.size(); ++i) {
            uint32_t word;
            std::memcpy(&word, &tile[i % (form.rows * words) * 4], 4);
            tensor->put(cells[i], word);
        }
        memory.count("tcgen05.shared_bytes", tile.size());
        memory.count("tensor_memory.copy_bytes", 4 * cells.size());
        operation.written.push_back({block, std::move(cells)});
    }
    return operation;
}

}  // namespace kernrec
