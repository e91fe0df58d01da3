#include "decoder.h"

#include <algorithm>
#include <set>

#include "lanes.h"
#include "number_formats.h"

namespace kernrec {

bool Source::has(std::string_view name) const {
    return std::find(modifiers.begin(), modifiers.end(), name) != modifiers.end();
}

std::map<std::string, Builder>& builders() {
    static std::map<std::string, Builder> all;
    return all;
}

void refuse(const std::string& text) { throw Unsupported(text); }

uint32_t width_of(std::string_view type) {
    static const std::map<std::string_view, uint32_t> widths = {
        {"pred", 1},    {"b8", 8},     {"u8", 8},     {"s8", 8},     {"b16", 16},   {"u16", 16},
        {"s16", 16},    {"b32", 32},   {"u32", 32},   {"s32", 32},   {"b64", 64},   {"u64", 64},
        {"s64", 64},    {"u16x2", 32}, {"s16x2", 32}, {"f16", 16},   {"f16x2", 32}, {"bf16", 16},
        {"bf16x2", 32}, {"tf32", 32},  {"f32", 32},   {"f32x2", 64}, {"f64", 64},
    };
    const auto found = widths.find(type);
    if (found == widths.end()) refuse("." + std::string(type) + " is not a type that it computes with");
    return found->second;
}

namespace {

// Return the bits of a literal of a PTX type. Bits above the width of the type are arbitrary.
uint64_t literal_bits(const Operand& literal, std::string_view type) {
    const uint32_t width = width_of(type);
    const bool is_integer = literal.kind == OperandKind::kInteger;
    const bool is_half = type == "f16" || type == "f16x2";
    const bool floats = type[0] == 'f', plain = type == "b16" || type == "b32" || type == "b64";
    if (is_integer && (!floats || is_half)) return width == 1 ? literal.value != 0 : uint64_t(literal.value);
    if (!floats && !plain) refuse("a floating-point literal of type ." + std::string(type));
    const bool is_f32 = literal.kind == OperandKind::kF32Bits;
    if (is_f32 && width == 32) return uint64_t(literal.value);
    if (type.find("x2") != std::string_view::npos)
        refuse("a literal of type ." + std::string(type) + " is not supported");
    const double number = is_integer ? double(literal.value)
                          : is_f32   ? bit_cast<float>(uint32_t(literal.value))
                                     : bit_cast<double>(literal.value);
    if (width == 64) return bit_cast<uint64_t>(number);
    return width == 32 ? bit_cast<uint32_t>(float(number)) : f64_to_f16(number);
}

void require_fit(const Row& row, std::string_view type) {
    const uint32_t width = width_of(type);
    if (row.width < width || (width == 1) != (row.width == 1))
        refuse("a ." + std::string(type) + " operand does not fit a " + std::to_string(row.width) + "-bit register");
}

bool is_clock(const std::string& name) { return name.rfind("%clock", 0) == 0 || name.rfind("%globaltimer", 0) == 0; }

template <class T>
void read_clock(Batch& batch, const Instruction& ins) {
    std::fill_n(batch.row<T>(ins.d), batch.lanes, T(batch.clock() >> ins.mode));
}

}  // namespace

Run cast_run(uint32_t from, uint32_t to, bool is_signed) {
    return for_width(from, [&](auto source) {
        return for_width(to, [&](auto result) -> Run {
            using D = decltype(result);
            using S = decltype(source);
            return is_signed ? Lanewise<kSame, D, std::make_signed_t<S>>::run : Lanewise<kSame, D, S>::run;
        });
    });
}

Decoder::Decoder(Program& program, const Launch& launch, std::vector<uint32_t> register_widths)
    : program_(program), launch_(launch), widths_(std::move(register_widths)), registers_(widths_.size()) {}

Row Decoder::new_row(uint32_t width) {
    const Row row{width, program_.row_bytes};
    program_.row_bytes += std::max(width / 8, 1u);  // a predicate takes a byte, so that all rows are aligned
    return row;
}

Row Decoder::constant(uint32_t width, uint64_t bits) {
    const auto [entry, is_new] = constants_.try_emplace({width, bits});
    if (is_new) {
        entry->second = new_row(width);
        program_.constants.push_back({entry->second, bits});
    }
    return entry->second;
}

Row Decoder::scratch(uint32_t width) {
    const auto [entry, is_new] = scratch_.try_emplace({width, used_scratch_[width]++});
    if (is_new) entry->second = new_row(width);
    return entry->second;
}

Row Decoder::carry(uint32_t which) {
    if (!carries_[which]) carries_[which] = new_row(32);
    return carries_[which];
}

Row Decoder::clock(const Operand& operand, const std::string& name) {
    const uint32_t width = uint32_t(operand.value);
    const Row row = scratch(width);
    Instruction& ins = emit(width == 64 ? read_clock<uint64_t> : read_clock<uint32_t>);
    ins.guard = {};
    ins.d = row;
    ins.mode = name.size() > 3 && name.substr(name.size() - 3) == "_hi" ? 32 : 0;
    return row;
}

Row Decoder::register_row(uint32_t id) {
    Row& row = registers_[id];
    if (!row) row = new_row(widths_[id]);
    return row;
}

Row Decoder::plain(const Operand& operand) {
    if (operand.kind == OperandKind::kRegister) return register_row(operand.id);
    if (operand.kind == OperandKind::kSpecial) {
        if (const std::string& name = launch_.special_names[operand.id]; is_clock(name)) return clock(operand, name);
        if (const int64_t fixed = launch_.special_values[operand.id]; fixed >= 0)
            return constant(uint32_t(operand.value), uint64_t(fixed));
        Row& row = specials_[operand.id];
        if (!row) {
            row = new_row(uint32_t(operand.value));
            program_.specials.push_back({row, operand.id});
        }
        return row;
    }
    refuse("an operand that is not a register");
}

Row Decoder::read(const Operand& operand, std::string_view type) {
    const uint32_t width = width_of(type);
    switch (operand.kind) {
        case OperandKind::kRegister:
        case OperandKind::kSpecial: break;
        case OperandKind::kInteger:
        case OperandKind::kF32Bits:
        case OperandKind::kF64Bits:
        case OperandKind::kDecimal: return constant(width, literal_bits(operand, type));
        case OperandKind::kSymbol: return constant(width, uint64_t(launch_.symbols[operand.id] + operand.value));
        default: refuse("an operand that is not a value");
    }
    const Row row = plain(operand);
    if (row.width == width) return row;
    require_fit(row, type);
    const Row cut = scratch(width);
    emit(cast_run(row.width, width, false), cut, row).guard = {};
    return cut;
}

Row Decoder::write(const Operand& operand, std::string_view type) {
    const uint32_t width = width_of(type);
    if (operand.kind != OperandKind::kRegister) refuse("a destination that is not a register");
    const Row row = plain(operand);
    if (row.width == width) return row;
    require_fit(row, type);
    const Row narrow = scratch(width);
    const bool is_signed = type[0] == 's' && type.find("x2") == std::string_view::npos;
    after_.push_back({cast_run(width, row.width, is_signed), row, narrow});
    return narrow;
}

std::pair<Row, bool> Decoder::flag(const Operand& operand) {
    if (operand.kind == OperandKind::kNegated) return {read(operand.items[0], "pred"), true};
    return {read(operand, "pred"), false};
}

std::pair<Row, int64_t> Decoder::address(const Operand& operand) {
    if (operand.kind != OperandKind::kAddress) refuse("an operand that is not an address");
    const Operand& base = operand.items[0];
    if (base.kind == OperandKind::kRegister || base.kind == OperandKind::kSpecial) {
        const Row row = plain(base);
        if (row.width < 32) refuse("an address of " + std::to_string(row.width) + " bits");
        return {row, operand.value};
    }
    if (base.kind == OperandKind::kSymbol)
        return {constant(64, uint64_t(launch_.symbols[base.id])), operand.value + base.value};
    return {constant(64, 0), operand.value + base.value};
}

Instruction& Decoder::emit(Run run, Row d, Row a, Row b, Row c, Row e) {
    Instruction& ins = block_->code.emplace_back();
    ins.run = run;
    ins.source = source;
    guard(ins.guard, ins.guard_inverted);
    std::tie(ins.d, ins.a, ins.b, ins.c, ins.e) = std::tie(d, a, b, c, e);
    return ins;
}

void Decoder::guard(Row& predicate, bool& inverted) {
    const Source& from = program_.sources[source];
    if (from.guard < 0) return;
    predicate = register_row(uint32_t(from.guard));
    if (predicate.width != 1) refuse("a guard that is not a predicate");
    inverted = from.guard_inverted;
}

Row Decoder::value(const Operand& operand, std::string_view type) {
    if (operand.kind != OperandKind::kRegister && operand.kind != OperandKind::kSpecial) return read(operand, type);
    const Row row = plain(operand);
    require_fit(row, type);
    return row;
}

void Decoder::emit_typed(Run run, const std::vector<std::string_view>& types) {
    const Operands& operands = ins().operands;
    if (operands.size() != types.size()) refuse(std::to_string(operands.size()) + " operands");
    Row rows[4];
    for (size_t i = 1; i < types.size(); i++) rows[i - 1] = read(operands[i], types[i]);
    emit(run, write(operands[0], types[0]), rows[0], rows[1], rows[2], rows[3]);
}

Instruction& Decoder::emit_access(Run run, const Operand& address, Space space, std::vector<Row> registers) {
    Instruction made = access(address, space);
    made.run = run;
    made.list = std::move(registers);
    return block_->code.emplace_back(std::move(made));
}

Instruction Decoder::access(const Operand& address, Space space) {
    Instruction made;
    made.source = source;
    std::tie(made.a, made.immediate) = this->address(address);
    made.space = space;
    guard(made.guard, made.guard_inverted);
    return made;
}

void add_registers(const Operand& operand, std::vector<uint32_t>& ids) {
    if (operand.kind == OperandKind::kRegister) ids.push_back(operand.id);
    for (const Operand& item : operand.items) add_registers(item, ids);
}

RegistersOf registers_of(const Source& source) {
    static const std::set<std::string> no_result = {"st", "bra", "brx",  "exit",  "ret",  "bar",    "barrier",
                                                    "cp", "red", "sust", "sured", "trap", "membar", "fence"};
    RegistersOf result;
    const bool is_address = !source.operands.empty() && (source.operands[0].kind == OperandKind::kAddress ||
                                                         source.operands[0].kind == OperandKind::kTexel);
    const std::string first = source.modifiers.empty() ? "" : source.modifiers[0];
    const bool writes = !no_result.count(source.opcode) && !is_address && first != "store" && first != "dealloc";
    for (size_t i = 0; i < source.operands.size(); i++) {
        if (i || !writes || (source.opcode == "wgmma" && first == "mma_async"))
            add_registers(source.operands[i], result.reads);
        if (!i && writes) add_registers(source.operands[i], result.writes);
    }
    if (source.guard >= 0) result.reads.push_back(uint32_t(source.guard));
    return result;
}

bool Decoder::result_is_read() const {
    const Source& present = ins();
    if (present.opcode == "red" || present.operands[0].kind != OperandKind::kRegister) return false;
    const uint32_t id = present.operands[0].id;
    return std::any_of(program_.sources.begin(), program_.sources.end(), [&](const Source& other) {
        const std::vector<uint32_t> reads = registers_of(other).reads;
        return std::find(reads.begin(), reads.end(), id) != reads.end();
    });
}

void Decoder::instruction() {
    const Source& from = ins();
    auto builder = builders().end();
    if (!from.modifiers.empty()) builder = builders().find(from.opcode + "." + from.modifiers[0]);
    if (builder == builders().end()) builder = builders().find(from.opcode);
    if (builder == builders().end()) refuse("the engine does not know it");
    if (from.modifiers.empty()) refuse("without a type");  // the last modifier is the type
    used_scratch_.clear();
    after_.clear();
    builder->second(*this, from);
    for (const Cast& later : after_) emit(later.run, later.to, later.from);
}

// Keep only what counts events of the current instruction. `first` is its first operation.
void Decoder::drop_result(size_t first) {
    static const std::set<std::string> counted = {"ld", "ldu", "mma"};
    if (!counted.count(ins().opcode)) return block_->code.resize(first);
    for (size_t i = first; i < block_->code.size(); i++) block_->code[i].list.clear();
}

// No instruction may access registers of a wgmma.mma_async in flight. A single operation checks all registers
// that a basic block accesses between two wgmma instructions.
void Decoder::watch_warpgroup_registers(uint32_t first, uint32_t stop) {
    std::vector<Row> rows;
    std::vector<uint32_t> sources;
    std::set<uint32_t> seen;
    for (uint32_t number = first; number < stop && program_.sources[number].opcode != "wgmma"; number++) {
        std::vector<uint32_t> ids;
        for (const Operand& operand : program_.sources[number].operands) add_registers(operand, ids);
        for (uint32_t id : ids) {
            if (!watched_[id] || !seen.insert(id).second) continue;
            rows.push_back(register_row(id));
            sources.push_back(number);
        }
    }
    if (rows.empty()) return;
    Instruction& made = emit(touch_warpgroup_registers);
    made.guard = {};
    made.list = std::move(rows);
    made.modes = std::move(sources);
}

void Decoder::end(BasicBlock& block) {
    const Source& from = ins();
    block.end_source = source;
    guard(block.guard, block.guard_inverted);
    if (from.opcode == "bra") {
        if (from.operands.empty() || from.operands[0].kind != OperandKind::kLabel) refuse("a branch without a label");
        block.end = End::kBranch;
        block.targets.push_back(uint32_t(from.operands[0].value));
    } else if (from.opcode == "brx") {
        if (from.operands.size() != 2 || from.operands[1].kind != OperandKind::kVector || from.guard >= 0)
            refuse("a branch without a table");
        block.end = End::kIndexedBranch;
        for (const Operand& label : from.operands[1].items) block.targets.push_back(uint32_t(label.value));
        block.index = read(from.operands[0], "u32");
    } else if (from.opcode == "exit" || from.opcode == "ret") {
        block.end = End::kExit;
    } else if (from.opcode == "trap") {
        block.end = End::kTrap;
    } else if (from.opcode == "barrier" && !from.modifiers.empty() && from.modifiers[0] == "cluster") {
        if (!from.has("arrive") && !from.has("wait")) refuse();
        block.end = End::kBarrier;
        block.cluster_barrier = from.has("arrive") ? 1 : 2;
    } else if (from.opcode == "call") {
        refuse("the function is a pointer, calls itself, has no body or launches a kernel");
    } else if (from.opcode == "bar" || from.opcode == "barrier") {
        const bool reduces = from.has("red");
        Operands operands = from.operands;
        block.end = End::kBarrier;
        if (reduces) {
            if (operands.size() < 3 || operands.size() > 4)
                refuse(std::to_string(operands.size()) + " operands, 3 or 4 expected");
            block.reduction = from.has("popc") ? 1 : from.has("and") ? 2 : 3;
            block.result = plain(operands.front());
            if (block.result.width != (block.reduction == 1 ? 32u : 1u)) refuse("the type of the result");
            std::tie(block.reduced, block.reduced_inverted) = flag(operands.back());
            operands.erase(operands.begin());
            operands.pop_back();
        }
        block.arrives = from.has("arrive");
        block.number = read(operands[0], "u32");
        if (operands.size() > 1) block.threads = read(operands[1], "u32");
        block.plain = !reduces && !block.arrives && from.guard < 0 && from.operands.size() == 1 &&
                      from.operands[0].kind == OperandKind::kInteger;
    } else {
        refuse("the engine does not know it");
    }
}

void Decoder::refuse_when_run(const std::string& text) {
    program_.unsupported[source] = text;
    Instruction& made = block_->code.emplace_back();
    made.source = source;
    made.run = [](Batch& batch, const Instruction& ins) {
        throw Fault(FaultKind::kUnsupported, ins.source, batch.program.unsupported.at(ins.source));
    };
}

void Decoder::decode() {
    watched_.resize(widths_.size());
    program_.lane_address = new_row(64);
    bool watches = false;
    for (const Source& from : program_.sources) {
        program_.has_tensor_fences |=
            from.opcode == "tcgen05" && !from.modifiers.empty() && from.modifiers[0] == "fence";
        if (from.opcode != "wgmma" || !from.has("mma_async")) continue;
        std::vector<uint32_t> ids;
        for (size_t i = 0; i < std::min<size_t>(2, from.operands.size()); i++)
            if (from.operands[i].kind == OperandKind::kVector) add_registers(from.operands[i], ids);
        for (uint32_t id : ids) watches = watched_[id] = true;
    }
    for (BasicBlock& block : program_.blocks) {
        block_ = &block;
        block.warpgroup_synchronous = program_.sources[block.first].opcode == "wgmma";
        const uint32_t stop = block.first + block.count;
        for (source = block.first; source < stop; source++) {
            if (watches && (source == block.first || program_.sources[source - 1].opcode == "wgmma"))
                watch_warpgroup_registers(source, stop);
            const bool last = source + 1 == stop && block.end != End::kNone;
            const size_t before = block.code.size();
            try {
                if (last) {
                    used_scratch_.clear();
                    end(block);
                } else {
                    instruction();
                    if (ins().unneeded) drop_result(before);
                }
            } catch (const Unsupported& error) {
                block.code.resize(before);
                refuse_when_run(error.what());
                if (last) block.end = End::kNone;
            }
        }
        source = block.first;
        const Source& first = ins();
        if (block.warp_synchronous && !first.has("aligned") && !first.operands.empty()) {
            const Operand& mask = first.operands.back();
            if (mask.kind == OperandKind::kRegister || mask.kind == OperandKind::kSpecial) {
                block.mask = plain(mask);
                if (block.mask.width != 32) {
                    block.mask = {};
                    block.code.clear();
                    refuse_when_run("a mask that is not of 32 bits");
                }
            } else if (mask.kind == OperandKind::kInteger && uint32_t(mask.value) != ~0u) {
                block.mask = constant(32, uint32_t(mask.value));
            }
        }
    }
    program_.registers = registers_;
    const auto is_unused = [&](uint32_t id) { return !registers_.at(id); };
    std::vector<uint32_t>& unassigned = program_.unassigned;
    unassigned.erase(std::remove_if(unassigned.begin(), unassigned.end(), is_unused), unassigned.end());
}

}  // namespace kernrec
