// Tensor cores of data-center Blackwell: `tcgen05` (PTX ISA, section "TensorCore 5th Generation Family Instructions").
// tensor_memory.h tracks operations in flight.
#include <algorithm>
#include <array>
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

// Operands: `a` and `immediate` say where to store the allocated address, and `b` is the number of columns.
void allocate(Batch& batch, const Instruction& ins) {
    batch.require_whole_warps(ins);
    each_warp(batch, ins, [&](uint32_t warp, uint32_t lane, uint32_t) {
        const uint32_t address = memory_of(batch, lane).allocate(uint32_t(batch.value(ins.b, lane)));
        const std::vector<Resolved> all = batch.access_of(ins, 4, AccessKind::kWrite, {{warp, 1}});
        for (const Resolved& at : all) std::memcpy(at.places[0], &address, 4);
        batch.record(ins, all, 4, AccessKind::kWrite);
        batch.check_races(ins, all, 4, true, false);
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
    const uint64_t warps = each_warp(batch, ins, [&](uint32_t warp, uint32_t, uint32_t) {
        batch.work().tensor.wait(warp, ins.mode ? TensorUse::kLoaded : TensorUse::kStored);
    });
    batch.count("tcgen05.waits", warps);
}

void fence(Batch& batch, const Instruction& ins) {
    batch.work().tensor.tick();
    each_warp(batch, ins, [&](uint32_t warp, uint32_t, uint32_t) { batch.work().tensor.fence(warp, ins.mode); });
}

// --- ld and st ---

// Shapes of PTX ISA, section "Data Movement Shape": registers of `.x1`, and the cell of a register of a thread.
struct MoveShape {
    const char* name;
    uint32_t registers;
    Cell (*cell)(uint32_t thread, uint32_t number);
};
constexpr MoveShape kMoveShapes[] = {
    {"32x32b", 1, [](uint32_t t, uint32_t r) { return Cell{t, r}; }},
    {"16x32bx2", 1, [](uint32_t t, uint32_t r) { return Cell{t % 16, r}; }},
    {"16x64b", 1, [](uint32_t t, uint32_t r) { return Cell{t / 4 + 8 * (t % 2), t / 2 % 2 + 2 * r}; }},
    {"16x128b", 2, [](uint32_t t, uint32_t r) { return Cell{t / 4 + 8 * (r % 2), t % 4 + 4 * (r / 2)}; }},
    {"16x256b", 4,
     [](uint32_t t, uint32_t r) { return Cell{t / 4 + 8 * (r / 2 % 2), 2 * (t % 4) + r % 2 + 8 * (r / 4)}; }}};

constexpr size_t kMostMoveRegisters = 128;

struct MoveForm {
    const MoveShape* shape;
    bool store, packed;  // packed: .pack::16b, .unpack::16b
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
    if (first_lane != 32 * within && (form.shape == &kMoveShapes[0] || first_lane != 32 * within + 16))
        batch.fail(joined("lane ", first_lane, " of tensor memory is out of reach: warp ", within,
                          " of a warpgroup can only access lanes from ", 32 * within, " on"));
    const uint32_t columns = form.packed ? 2 : 1;
    Cells cells;
    for (uint32_t t = 0; t < kWarp; ++t)
        for (uint32_t r = 0; r < form.registers.size(); ++r) {
            const auto [lane, column] = form.shape->cell(t, r);
            for (uint32_t i = 0; i < columns; ++i)
                cells.push_back({first_lane + lane, first_column + column * columns + t / 16 * form.split_columns + i});
        }
    return cells;
}

void move(Batch& batch, const Instruction& ins) {
    const auto& form = form_of<MoveForm>(ins);
    batch.require_whole_warps(ins);
    const uint32_t halves = form.packed ? 2 : 1;
    const uint64_t warps = each_warp(batch, ins, [&](uint32_t warp, uint32_t first, uint32_t) {
        const Cells cells = cells_of(batch, form, warp);
        batch.work().tensor.move(
            {form.store ? TensorUse::kStored : TensorUse::kLoaded, warp, batch.block_of(warp), cells});
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
    const bool store = modifiers[0] == "st";
    const bool packed = modifiers.size() == 8 && modifiers[5] == (store ? "unpack" : "pack") && modifiers[6] == "16b";
    const MoveShape& shape = entry_of(kMoveShapes, [&](const MoveShape& each) { return modifiers[3] == each.name; });
    const int times = modifiers[4].size() > 1 && modifiers[4][0] == 'x' ? parse_int(modifiers[4].substr(1)) : -1;
    if (modifiers[1] != "sync" || modifiers[2] != "aligned" || modifiers.back() != "b32" || times < 1 ||
        modifiers.size() != (packed ? 8u : 6u))
        refuse();
    const size_t registers = shape.registers * size_t(std::min(times, 1024));
    if (registers > kMostMoveRegisters) refuse(joined(registers, " registers, at most ", kMostMoveRegisters));
    // Operands of a store: address, distance of the halves (only 16x32bx2), registers. A load has the registers first.
    const Operands& operands = ins.operands;
    const bool splits = std::string(shape.name) == "16x32bx2";
    MoveForm form{&shape, store, packed};
    form.address = decoder.access(operands[store ? 0 : 1], Space::kGeneric);
    if (splits) {
        const int64_t split = literal(operands[store ? 1 : 2], "a distance of the halves that is no literal");
        if (split < 0 || split > 0xFFFF) refuse("a distance of the halves that is no literal");
        form.split_columns = uint32_t(split);
    }
    if (operands.size() != 2u + splits) refuse();
    const Operands items = elements(operands[store ? 1u + splits : 0]);
    if (items.size() != registers) refuse(joined(items.size(), " registers where ", registers, " are expected"));
    for (const Operand& item : items)
        form.registers.push_back(store ? decoder.read(item, "b32") : decoder.write(item, "b32"));
    emit_form(decoder, move, std::move(form));
}

// --- mma ---

void require_pair(Batch& batch) {
    if (batch.cluster_blocks() % 2)
        batch.fail(joined("a pair of thread blocks in a cluster of ", batch.cluster_blocks()));
}

// Kind of `tcgen05.mma`: types by their codes in the instruction descriptor (PTX ISA, section "Instruction
// descriptor").
constexpr Type kNone{};
struct Kind {
    const char* name;
    bool packed;  // two 4-bit numbers per byte
    uint32_t vector;  // numbers along K per scale factor; 0 for no scaling
    std::array<Type, 8> operands;
    std::array<Type, 4> results;
};
constexpr std::array<Type, 8> kSmall = {Type::kE4m3, Type::kE5m2, kNone, Type::kE2m3, Type::kE3m2, Type::kE2m1};
constexpr std::array<Type, 8> kPacked = {kNone, Type::kE2m1};
constexpr std::array<Type, 4> kOnlyF32 = {Type::kF32, Type::kF32, Type::kF32, Type::kF32};
constexpr Kind kKinds[] = {{"f16", false, 0, {Type::kF16, Type::kBf16}, {Type::kF16, Type::kF32}},
                           {"tf32", false, 0, {kNone, kNone, Type::kTf32}, {kNone, Type::kF32}},
                           {"i8", false, 0, {Type::kU8, Type::kS8}, {kNone, kNone, Type::kS32}},
                           {"f8f6f4", false, 0, kSmall, {Type::kF16, Type::kF32}},
                           {"mxf8f6f4", false, 32, kSmall, kOnlyF32},
                           {"mxf4", true, 32, kPacked, kOnlyF32},
                           {"mxf4nvf4", true, 16, kPacked, kOnlyF32}};

struct MultiplyForm {
    Kind kind;
    int ctas;  // thread blocks that multiply together
    Instruction d, a_address, scale_a, scale_b;
    Row a, b, descriptor;  // matrix descriptors (without `a`, A is in tensor memory), and the instruction descriptor
    std::vector<Row> disabled;  // masks of lanes of D that keep their values: 4 words per block
    Row enable;
    bool enable_inverted = false;
    int shift = 0;  // D is first divided by 2^shift
};

struct InstructionDescriptor {
    uint32_t m, n;
    Type a, b, d;
    bool a_mn_major, b_mn_major;
    int sign;
    bool saturates;
    Type scale;  // type of scale factors, for block-scaled kinds
    uint32_t first_scale_a, first_scale_b;
};

InstructionDescriptor instruction_descriptor(Batch& batch, uint32_t bits, const MultiplyForm& form) {
    const auto field = [bits](int low, int count) { return bits >> low & ((1u << count) - 1); };
    const auto error = [&](const std::string& what) {
        batch.fail(joined("instruction descriptor ", hex(bits, 8), " of .kind::", form.kind.name, " ", what));
    };
    const bool scaled = form.kind.vector != 0;
    const bool reserved = scaled ? field(3, 1) || field(6, 1) : field(6, 1) || field(23, 1) || field(29, 1);
    if (reserved) error("has a reserved bit");
    if (field(0, 3)) error("asks for a sparse matrix A, which the emulator does not support");
    if (field(31, 1) || (!scaled && field(30, 1)))
        error("asks for more along K, or for a shift, which the emulator does not support");
    InstructionDescriptor says{};
    says.a = form.kind.operands[field(7, 3)];
    says.b = form.kind.operands[field(10, 3)];
    says.d = form.kind.results[field(4, 2)];
    if (says.a == kNone || says.b == kNone || says.d == kNone)
        error(joined("has the types A = ", field(7, 3), ", B = ", field(10, 3), " and D = ", field(4, 2),
                     ", of which at least one does not exist"));
    says.m = field(24, 5) << 4;
    says.n = field(17, 6) << 3;
    const uint32_t ctas = uint32_t(form.ctas);
    const uint32_t step = says.m == 64 * ctas ? (ctas == 1 ? 8 : 16) : says.m == 128 * ctas ? 16 : 0;
    if (!step || says.n % step || says.n < step || says.n > 256 || (scaled && says.m == 64))
        error(joined("has M = ", says.m, " and N = ", says.n, ", a shape that does not exist"));
    const bool mixed = says.d == Type::kF16 && (says.a == Type::kBf16 || says.b == Type::kBf16);
    if (mixed || (says.d != Type::kS32 && field(3, 1)))
        error("has a type of D or a saturation that its types of A and B do not have");
    says.a_mn_major = field(15, 1);
    says.b_mn_major = field(16, 1);
    says.sign = field(13, 1) ^ field(14, 1) ? -1 : 1;
    says.saturates = field(3, 1);
    says.scale = field(23, 1) ? Type::kUe8m0 : Type::kUe4m3;
    says.first_scale_a = field(29, 2);
    says.first_scale_b = field(4, 2);
    return says;
}

// Return the bytes of an element in shared memory; types below 8 bits take one byte.
uint32_t stored_bytes(Type type) { return uint32_t(element_bits(type)) / 8; }

// Return the lane of a row of D. If D has 64 rows, each warp has 16 of them.
uint32_t lane_of_row(uint32_t row, uint32_t rows) { return rows == kTensorLanes ? row : row / 16 * 32 + row % 16; }

Cell cell_at(uint32_t address, uint32_t lane, uint32_t column) {
    return {(address >> 16) + lane, (address & 0xFFFF) + column};
}

// Decode the numbers of a row. Each 16-byte piece of unpacked narrow numbers contains 16 numbers and padding.
void decode_row(const MultiplyForm& form, Type type, const uint8_t* bytes, double* numbers) {
    const int bits = number_bits(type), count = is_narrow(type) && !form.kind.packed ? 16 : 128 / bits;
    for (uint32_t piece = 0; piece < kTileRowBytes / 16; ++piece)
        decode(type, bits, bytes + 16 * piece, count, numbers + int(piece) * count);
}

// Return the thread blocks that take part in a multiplication.
std::vector<uint32_t> blocks_of(Batch& batch, int ctas, uint32_t lane) {
    const uint32_t block = batch.lane_block(lane);
    if (ctas == 1) return {block};
    require_pair(batch);
    return {block & ~1u, block | 1u};
}

// One `tcgen05.mma` of one thread. It fails if its accesses conflict with an operation in flight.
struct Multiplication {
    Batch& batch;
    const MultiplyForm& form;
    uint32_t lane;
    InstructionDescriptor says = instruction_descriptor(batch, uint32_t(batch.value(form.descriptor, lane)), form);
    uint32_t depth = kTileRowBytes / stored_bytes(says.a) * (form.kind.packed ? 2 : 1);  // elements along K
    bool adds_d = bool(batch.value(form.enable, lane)) != form.enable_inverted;
    std::vector<double> a = std::vector<double>(size_t(says.m) * depth);  // M x K
    std::vector<double> b = std::vector<double>(size_t(says.n) * depth);  // N x K
    std::vector<uint32_t> blocks = blocks_of(batch, form.ctas, lane);     // positions in the batch
    uint32_t rows = says.m / uint32_t(blocks.size());                     // per block
    TensorOperation operation = {};
    uint64_t shared_bytes = 0;

    void run() {
        const uint32_t count = uint32_t(blocks.size());
        for (const uint32_t block : blocks)
            operation.uses.push_back({TensorUse::kComputed, lane / kWarp, block, cells_of_d()});
        for (uint32_t i = 0; i < count; ++i)
            if (form.a) read_shared(i, form.a, rows, says.a, says.a_mn_major, a);
            else read_tensor_a(i);
        for (uint32_t i = 0; i < count; ++i) read_shared(i, form.b, says.n / count, says.b, says.b_mn_major, b);
        if (form.kind.vector) {
            scale(a, says.first_scale_a, form.scale_a, says.m, count);
            scale(b, says.first_scale_b, form.scale_b, says.n, 1);
        }
        batch.work().tensor.issue(lane, operation);
        multiply();
        count_events();
    }

    uint32_t address(const Instruction& access) const { return uint32_t(address_at(batch, access, lane)); }
    TensorMemory& memory(size_t i) const { return batch.work().tensor.memories[blocks[i]]; }

    Cells cells_of_d() const {
        const uint32_t d = address(form.d), n = says.n;
        const bool halves = rows == kTensorLanes / 2 && blocks.size() == 2;
        Cells cells;
        for (uint32_t row = 0; row < rows; ++row)
            for (uint32_t j = 0; j < n; ++j)
                cells.push_back(halves ? cell_at(d, row + j / (n / 2) * 64, j % (n / 2))
                                       : cell_at(d, lane_of_row(row, rows), j));
        return cells;
    }

    // Begin to read cells, and return their values.
    std::vector<uint32_t> read_cells(size_t i, const Cells& cells) {
        operation.uses.push_back({TensorUse::kRead, lane / kWarp, blocks[i], cells});
        batch.work().tensor.begin(operation.uses.back());
        std::vector<uint32_t> words;
        for (const Cell cell : cells) words.push_back(memory(i).value(cell));
        return words;
    }

    void read_tensor_a(size_t i) {
        if (is_narrow(says.a) && !form.kind.packed)
            batch.fail(joined(number_name(says.a), " numbers in tensor memory are not supported"));
        constexpr uint32_t kWords = kTileRowBytes / 4;
        Cells cells;
        for (uint32_t row = 0; row < rows; ++row)
            for (uint32_t j = 0; j < kWords; ++j)
                cells.push_back(cell_at(address(form.a_address), blocks.size() == 2 ? row : lane_of_row(row, rows), j));
        const std::vector<uint32_t> words = read_cells(i, cells);
        for (uint32_t row = 0; row < rows; ++row)
            decode_row(form, says.a, reinterpret_cast<const uint8_t*>(&words[row * kWords]),
                       &a[(i * rows + row) * depth]);
    }

    void read_shared(size_t i, const Row& descriptor, uint32_t extent, Type type, bool mn_major,
                     std::vector<double>& numbers) {
        const uint32_t size = stored_bytes(type);
        if (mn_major && is_narrow(type)) batch.fail(joined(number_name(type), " numbers must be K-major"));
        const auto tile = read_tile(batch, blocks[i], true, batch.value(descriptor, lane),
                                    {extent, kTileRowBytes / size, size, mn_major}, operation.pieces);
        for (uint32_t row = 0; row < extent; ++row)
            decode_row(form, type, &tile[row * kTileRowBytes], &numbers[(i * extent + row) * depth]);
        shared_bytes += tile.size();
    }

    // Multiply rows of A or B by their scale factors, which `count` thread blocks hold.
    void scale(std::vector<double>& numbers, uint32_t first, const Instruction& access, uint32_t extent,
               uint32_t count) {
        const uint32_t factors = depth / form.kind.vector, height = extent / count;
        if (first + factors > 4) batch.fail(joined(factors, " scale factors from byte ", first, " of a column on"));
        for (uint32_t i = 0; i < count; ++i) {
            Cells cells;
            for (uint32_t row = 0; row < height; ++row) cells.push_back(cell_at(address(access), row % 32, row / 32));
            const std::vector<uint32_t> words = read_cells(i, cells);
            for (uint32_t row = 0; row < height; ++row)
                for (uint32_t k = 0; k < depth; ++k)
                    numbers[(i * height + row) * depth + k] *=
                        to_double(says.scale, words[row] >> 8 * (first + k / form.kind.vector) & 0xFF);
        }
    }

    void multiply() {
        std::vector<double> sums(size_t(says.m) * 8), tile(8 * depth);
        std::vector<uint32_t> disabled;
        for (const Row& row : form.disabled) disabled.push_back(uint32_t(batch.value(row, lane)));
        const double divisor = std::ldexp(1.0, -form.shift);
        for (uint32_t first = 0; first < says.n; first += 8) {
            transpose(&b[first * depth], int(depth), tile.data());
            multiply_tile({a.data(), int(says.m), int(depth), int(depth)}, tile.data(), false, sums.data());
            for (uint32_t row = 0; row < says.m; ++row)
                for (uint32_t j = 0; j < 8; ++j) {
                    const size_t i = row / rows;
                    const Cell cell = operation.uses[i].cells[row % rows * says.n + first + j];
                    if (!disabled.empty() && disabled[4 * i + cell.lane / 32] >> cell.lane % 32 & 1) continue;
                    double sum = says.sign * sums[8 * size_t(row) + j];
                    if (adds_d) sum += to_double(says.d, memory(i).value(cell)) * divisor;
                    memory(i).put(cell, uint32_t(rounded_sum(says.d, says.saturates, sum)));
                }
        }
    }

    void count_events() const {
        // Count two packed 4-bit numbers as one, because both together take as long. Unpacked numbers take a byte each.
        const uint64_t cells = uint64_t(says.m) * says.n,
                       operations = 2 * cells * (kTileRowBytes / stored_bytes(says.a));
        count_operations(batch, "mma", says.a, operations);
        count_operations(batch, "tcgen05", says.a, operations);
        batch.count("tcgen05.shared_bytes", shared_bytes);
        const uint64_t in_tensor = form.a ? 0 : uint64_t(says.m) * kTileRowBytes;
        batch.count("tensor_memory.mma_bytes", cells * 4 * (adds_d ? 2 : 1) + in_tensor);
    }
};

void multiply(Batch& batch, const Instruction& ins) {
    each_lane(batch, ins, [&](uint32_t lane) { Multiplication{batch, form_of<MultiplyForm>(ins), lane}.run(); });
}

// Decode mma.cta_group::<n>.kind::<kind>[.block_scale[.scale_vec::<v>]].
void decode_multiply(Decoder& decoder, const Source& ins) {
    for (const char* name : {"sp", "ws", "ashift"})
        if (ins.has(name)) refuse(std::string(".") + name);
    const Kind& kind = entry_of(kKinds, [&](const Kind& each) { return ins.modifiers[4] == each.name; });
    const int ctas = parse_int(ins.modifiers[2]);
    if (ins.modifiers[1] != "cta_group" || ins.modifiers[3] != "kind" || (ctas != 1 && ctas != 2)) refuse();
    MultiplyForm form{kind, ctas};
    const bool scaled = kind.vector != 0;
    if (ins.has("block_scale") != scaled) refuse("block scaling");
    if (scaled && (ins.has("1X") || ins.has("2X") || ins.has("block32"))) form.kind.vector = 32;
    if (scaled && (ins.has("4X") || ins.has("block16"))) form.kind.vector = 16;
    const Operands& operands = ins.operands;
    form.d = decoder.access(operands[0], Space::kGeneric);
    if (operands[1].kind == OperandKind::kAddress) form.a_address = decoder.access(operands[1], Space::kGeneric);
    else form.a = decoder.value(operands[1], "b64");
    form.b = decoder.value(operands[2], "b64");
    form.descriptor = decoder.value(operands[3], "u32");
    size_t next = 4;
    if (scaled) {
        form.scale_a = decoder.access(operands[next++], Space::kGeneric);
        form.scale_b = decoder.access(operands[next++], Space::kGeneric);
    }
    if (operands[next].kind == OperandKind::kVector) {
        for (const Operand& item : operands[next++].items) form.disabled.push_back(decoder.value(item, "u32"));
        if (form.disabled.size() != 4u * unsigned(ctas)) refuse(joined(form.disabled.size(), " masks of lanes"));
    }
    std::tie(form.enable, form.enable_inverted) = decoder.flag(operands[next++]);
    if (next < operands.size()) {
        const int64_t shift = literal(operands[next++]);
        if (shift < -1000 || shift > 1000) refuse();
        form.shift = int(shift);
    }
    if (next != operands.size()) refuse();
    emit_form(decoder, multiply, std::move(form));
}

// --- cp: copy rows of a matrix in shared memory to lanes of tensor memory ---

struct CopyShape {
    const char *shape, *multicast;
    uint32_t rows, row_bytes;
    uint32_t first_lanes[4], copies;  // first lane of each copy of the rows
    uint32_t group, distance;         // rows per group of adjacent lanes, and lanes between starts of groups
};
constexpr CopyShape kCopyShapes[] = {{"128x256b", "", 128, 32, {0}, 1, 32, 32},
                                     {"4x256b", "", 4, 32, {0}, 1, 1, 32},
                                     {"128x128b", "", 128, 16, {0}, 1, 32, 32},
                                     {"64x128b", ".warpx2.02_13", 64, 16, {0, 64}, 2, 32, 32},
                                     {"64x128b", ".warpx2.01_23", 64, 16, {0, 32}, 2, 32, 64},
                                     {"32x128b", ".warpx4", 32, 16, {0, 32, 64, 96}, 4, 32, 32}};

struct CopyForm {
    CopyShape shape;
    int ctas;
    Instruction address;
    Row descriptor;
};

void copy(Batch& batch, const Instruction& ins) {
    const auto& form = form_of<CopyForm>(ins);
    const CopyShape& shape = form.shape;
    each_lane(batch, ins, [&](uint32_t lane) {
        if (form.ctas == 2) require_pair(batch);
        const uint32_t address = uint32_t(address_at(batch, form.address, lane)), words = shape.row_bytes / 4;
        for (int i = 0; i < form.ctas; ++i) {
            const uint32_t block = batch.lane_block(lane) ^ uint32_t(i);
            TensorOperation operation;
            const auto tile = read_tile(batch, block, true, batch.value(form.descriptor, lane),
                                        {shape.rows, shape.row_bytes, 1}, operation.pieces);
            Cells cells;
            for (uint32_t copy = 0; copy < shape.copies; ++copy)
                for (uint32_t row = 0; row < shape.rows; ++row)
                    for (uint32_t j = 0; j < words; ++j) {
                        const uint32_t to = row % shape.group + row / shape.group * shape.distance;
                        cells.push_back(cell_at(address, shape.first_lanes[copy] + to, j));
                        cells.back().column = std::min(cells.back().column, kTensorColumns);
                    }
            operation.uses = {{TensorUse::kComputed, lane / kWarp, block, cells}};
            batch.work().tensor.issue(lane, operation);
            for (size_t cell = 0; cell < cells.size(); ++cell) {
                uint32_t word;
                std::memcpy(&word, &tile[cell % (shape.rows * words) * 4], 4);
                batch.work().tensor.memories[block].put(cells[cell], word);
            }
            batch.count("tcgen05.shared_bytes", tile.size());
            batch.count("tensor_memory.copy_bytes", 4 * cells.size());
        }
    });
}

// Decode cp.cta_group::<n>.<shape>[.<multicast>]; Triton writes the multicast before the shape.
void decode_copy(Decoder& decoder, const Source& ins) {
    if (ins.modifiers[1] != "cta_group") refuse();
    const CopyShape& shape = entry_of(kCopyShapes, [&](const CopyShape& each) {
        std::string multicast;
        for (size_t i = 3; i < ins.modifiers.size(); ++i)
            if (ins.modifiers[i] != each.shape) multicast += "." + ins.modifiers[i];
        return ins.has(each.shape) && multicast == each.multicast;
    });
    emit_form(decoder, copy,
              CopyForm{shape, ins.modifiers[2] == "1" ? 1 : 2, decoder.access(ins.operands[0], Space::kGeneric),
                       decoder.value(ins.operands[1], "b64")});
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
        batch.work().tensor.commit(use.lane, std::move(places));
    }
}

const Registration kTcgen05({"tcgen05"}, [](Decoder& decoder, const Source& ins) {
    const std::string &kind = ins.modifiers[0], part = ins.modifiers.size() > 1 ? ins.modifiers[1] : "";
    const Space space = ins.has("shared") ? Space::kShared : Space::kGeneric;
    if (kind == "ld" || kind == "st") {
        decode_move(decoder, ins);
    } else if (kind == "mma") {
        decode_multiply(decoder, ins);
    } else if (kind == "alloc") {
        const Row columns = decoder.value(ins.operands[1], "u32");
        decoder.emit_access(allocate, ins.operands[0], space, {}).b = columns;
    } else if (kind == "dealloc") {
        const Row a = decoder.value(ins.operands[0], "u32"), b = decoder.value(ins.operands[1], "u32");
        decoder.emit(release, {}, a, b);
    } else if (kind == "relinquish_alloc_permit") {
        decoder.emit(relinquish);
    } else if (kind == "wait" && (part == "ld" || part == "st")) {
        decoder.emit(wait).mode = part == "ld";
    } else if (kind == "fence" && (part == "before_thread_sync" || part == "after_thread_sync")) {
        decoder.emit(fence).mode = part == "before_thread_sync";
    } else if (kind == "cp") {
        decode_copy(decoder, ins);
    } else if (kind == "commit") {
        CommitForm form{decoder.access(ins.operands[0], space), {}};
        if (ins.has("multicast")) form.mask = decoder.value(ins.operands[1], "u16");
        emit_form(decoder, commit, std::move(form));
    } else {
        refuse();
    }
});

}  // namespace
}  // namespace kernrec
