#include "definedness.h"

#include <algorithm>
#include <set>
#include <string>

#include "batch.h"
#include "dispatch.h"

namespace kernrec {

namespace {

constexpr uint32_t kUntracked = ~0u;
constexpr uint32_t kUnset = ~0u;  // origin of a register that nothing wrote

bool is_in(const std::string& opcode, const std::set<std::string>& opcodes) { return opcodes.count(opcode) != 0; }

// An opcode in `kOfAny` has an undefined result if any operand is undefined. Opcodes in `kOfAll` combine parts of
// operands, so their result is undefined only if all operands are.
const std::set<std::string> kOfAny{"cvt", "add", "sub",  "mul", "mad", "fma",   "neg", "abs",  "min",  "max", "not",
                                   "shl", "shr", "setp", "set", "ex2", "lg2",   "rcp", "sqrt", "sin",  "cos", "tanh",
                                   "div", "rem", "popc", "clz", "sad", "rsqrt", "bfe", "brev", "cvta", "and", "testp"};
const std::set<std::string> kOfAll{"mov", "or", "xor", "bfi", "prmt", "lop3", "copysign", "shf", "slct"};

bool loads_local(const Source& from, uint32_t local_bytes) {
    if (from.opcode != "ld" || !local_bytes) return false;
    return from.has("local") || !(from.has("global") || from.has("shared") || from.has("const") || from.has("param"));
}

}  // namespace

Definedness::Definedness(const Batch& batch)
    : lanes_(batch.lanes),
      warps_(batch.warp_count),
      local_bytes_(batch.launch.local_bytes),
      slots_(batch.program.registers.size(), kUntracked),
      steps_(batch.program.sources.size()) {
    const Program& program = batch.program;
    uint32_t count = 0;
    bool grows = false;
    const auto track = [&](uint32_t id) {
        if (slots_[id] != kUntracked) return;
        slots_[id] = count++;
        grows = true;
    };
    for (uint32_t id : program.unassigned) track(id), unassigned_.push_back(slots_[id]);
    std::vector<RegistersOf> registers;
    for (const Source& from : program.sources) {
        registers.push_back(registers_of(from));
        if (from.opcode == "shfl" || loads_local(from, local_bytes_))
            for (uint32_t id : registers.back().writes) track(id);
    }
    const auto is_tracked = [&](uint32_t id) { return slots_[id] != kUntracked; };
    while (std::exchange(grows, false)) {
        for (size_t i = 0; i < program.sources.size(); i++) {
            const std::string& opcode = program.sources[i].opcode;
            if (!is_in(opcode, kOfAny) && !is_in(opcode, kOfAll) && opcode != "selp" && opcode != "shfl") continue;
            if (std::any_of(registers[i].reads.begin(), registers[i].reads.end(), is_tracked))
                for (uint32_t id : registers[i].writes) track(id);
        }
    }
    for (size_t i = 0; i < program.sources.size(); i++) {
        const Source& from = program.sources[i];
        const std::string& opcode = from.opcode;
        Step& step = steps_[i];
        for (uint32_t id : registers[i].writes)
            if (is_tracked(id)) step.writes.push_back(slots_[id]);
        if (from.guard >= 0) step.guard = slots_[from.guard];
        const bool stores = opcode == "st" || opcode == "red" || opcode == "atom";
        step.guard_is_used = stores;
        std::vector<uint32_t> used;
        for (size_t k = 0; k < from.operands.size(); k++) {
            const bool is_address = from.operands[k].kind == OperandKind::kAddress;
            if ((is_address && (stores || opcode == "ld")) || (stores && !from.has("shared") && !from.has("local")))
                add_registers(from.operands[k], used);
        }
        for (uint32_t id : used)
            if (is_tracked(id) &&
                !(opcode == "atom" && std::count(registers[i].writes.begin(), registers[i].writes.end(), id)))
                step.uses.push_back(slots_[id]);
        const bool has_two = from.operands.size() == 3;
        if (opcode == "shfl" && from.operands.size() > 3) {
            step.rule = Rule::kShuffle;
            step.reads = {slot(from.operands[1])};
        } else if (opcode == "selp" && from.operands.size() == 4) {
            step.rule = Rule::kSelect;
            step.reads = {slot(from.operands[1]), slot(from.operands[2]), slot(from.operands[3])};
        } else if ((opcode == "and" || opcode == "or") && has_two && from.has("pred")) {
            step.rule = opcode == "and" ? Rule::kAnd : Rule::kOr;
            step.reads = {slot(from.operands[1]), slot(from.operands[2])};
        } else if (is_in(opcode, kOfAny) || is_in(opcode, kOfAll)) {
            step.rule = is_in(opcode, kOfAny) ? Rule::kAny : Rule::kAll;
            for (uint32_t id : registers[i].reads)
                if (int32_t(id) != from.guard) step.reads.push_back(slots_[id]);
            const bool any =
                std::any_of(step.reads.begin(), step.reads.end(), [](uint32_t s) { return s != kUntracked; });
            if (!any) step.rule = Rule::kDefined;
        } else {
            step.rule = Rule::kDefined;
        }
        const bool local = loads_local(from, local_bytes_) || (opcode == "st" && local_bytes_);
        if (step.writes.empty() && step.uses.empty() && !(step.guard_is_used && step.guard != kUntracked) && !local)
            step.rule = Rule::kNone;
    }
    undefined_.resize(size_t(count) * warps_);
    origins_.resize(size_t(count) * lanes_);
    written_.resize(size_t(local_bytes_) * lanes_);
}

uint32_t Definedness::slot(const Operand& operand) const {
    if (operand.kind == OperandKind::kNegated) return slot(operand.items[0]);
    return operand.kind == OperandKind::kRegister ? slots_[operand.id] : kUntracked;
}

void Definedness::start_batch() {
    std::fill(undefined_.begin(), undefined_.end(), 0);
    std::fill(written_.begin(), written_.end(), false);
    for (uint32_t slot : unassigned_) {
        std::fill_n(undefined_.begin() + size_t(slot) * warps_, warps_, ~0u);
        std::fill_n(origins_.begin() + size_t(slot) * lanes_, lanes_, kUnset);
    }
}

// Return the lanes of a warp for which the result of an instruction is undefined.
uint32_t Definedness::undefined(Batch& batch, const Step& step, const Source& from, uint32_t warp) const {
    const auto flags = [&](const Operand& operand) -> uint32_t {
        if (operand.kind == OperandKind::kNegated)
            return ~batch.flags(batch.program.registers[operand.items[0].id])[warp];
        if (operand.kind == OperandKind::kRegister) return batch.flags(batch.program.registers[operand.id])[warp];
        return operand.value ? ~0u : 0;
    };
    switch (step.rule) {
        case Rule::kAny: {
            uint32_t any = 0;
            for (uint32_t slot : step.reads) any |= bits(slot, warp);
            return any;
        }
        case Rule::kAll: {
            uint32_t all = ~0u;
            for (uint32_t slot : step.reads) all &= bits(slot, warp);
            return all;
        }
        case Rule::kAnd:
        case Rule::kOr: {
            const uint32_t a = bits(step.reads[0], warp), b = bits(step.reads[1], warp);
            if (!(a | b)) return 0;
            const uint32_t flip = step.rule == Rule::kAnd ? ~0u : 0;
            const uint32_t decided = (~a & (flags(from.operands[1]) ^ flip)) | (~b & (flags(from.operands[2]) ^ flip));
            return (a | b) & ~decided;
        }
        case Rule::kSelect: {
            const uint32_t a = bits(step.reads[0], warp), b = bits(step.reads[1], warp), p = bits(step.reads[2], warp);
            if (!(a | b | p)) return 0;
            const uint32_t chosen = flags(from.operands[3]);
            return p | (a & chosen) | (b & ~chosen);
        }
        default: return 0;
    }
}

// Return the lanes whose shuffle reads an undefined value or a lane that does not run the shuffle.
uint32_t Definedness::foreign_lanes(Batch& batch, const Step& step, uint32_t source, uint32_t warp, uint32_t mask,
                                    uint32_t (&origins)[32]) const {
    const Source& from = batch.program.sources[source];
    const auto value = [&](const Operand& operand, uint32_t lane) -> uint32_t {
        return operand.kind == OperandKind::kRegister ? uint32_t(batch.value(batch.program.registers[operand.id], lane))
                                                      : uint32_t(operand.value);
    };
    const auto mode = Shuffle(
        std::find_if(std::begin(kShuffles), std::end(kShuffles) - 1, [&](const char* name) { return from.has(name); }) -
        kShuffles);
    const uint32_t before = bits(step.reads[0], warp);
    uint32_t wrong = 0;
    for (const uint32_t lane : LanesOf(mask)) {
        const uint32_t place = warp * kWarp + lane;
        const uint32_t other =
            shuffle_source(mode, lane, value(from.operands[2], place), value(from.operands[3], place)).first;
        const uint32_t members = from.operands.size() > 4 ? value(from.operands[4], place) : ~0u;
        if (!((mask & members) >> other & 1)) {
            wrong |= 1u << lane;
            origins[lane] = source;
        } else if (before >> other & 1) {
            wrong |= 1u << lane;
            origins[lane] = origins_[size_t(step.reads[0]) * lanes_ + warp * kWarp + other];
        }
    }
    return wrong;
}

void Definedness::set(uint32_t slot, uint32_t warp, uint32_t mask, uint32_t undefined, const uint32_t* origins) {
    uint32_t& bits = undefined_[size_t(slot) * warps_ + warp];
    bits = (bits & ~mask) | (undefined & mask);
    for (const uint32_t lane : LanesOf(undefined & mask)) {
        origins_[size_t(slot) * lanes_ + warp * kWarp + lane] = origins[lane];
    }
}

void Definedness::before(Batch& batch, uint32_t source) {
    const Step& step = steps_[source];
    if (step.rule == Rule::kNone) return;
    const Source& from = batch.program.sources[source];
    Instruction all, guarded;
    if (from.guard >= 0) {
        guarded.guard = batch.program.registers[from.guard];
        guarded.guard_inverted = from.guard_inverted;
    }
    for (uint32_t i = 0; i < batch.running; i++) {
        const uint32_t warp = batch.warps()[i], mask = batch.mask(i, guarded), running = batch.mask(i, all);
        const uint32_t guard = bits(step.guard, warp) & running;
        if (step.guard_is_used && guard) report(batch, step.guard, warp, guard, source);
        for (uint32_t slot : step.uses)
            if (const uint32_t lanes = bits(slot, warp) & mask) report(batch, slot, warp, lanes, source);
        if (step.writes.empty()) continue;
        uint32_t origins[kWarp];
        uint32_t wrong;
        if (step.rule == Rule::kShuffle) {
            wrong = foreign_lanes(batch, step, source, warp, mask, origins);
        } else {
            wrong = undefined(batch, step, from, warp);
            for (uint32_t slot : step.reads)
                for (const uint32_t lane : LanesOf(wrong & bits(slot, warp))) {
                    origins[lane] = origins_[size_t(slot) * lanes_ + warp * kWarp + lane];
                }
        }
        for (uint32_t slot : step.writes) set(slot, warp, mask, wrong, origins);
        if (!guard) continue;
        for (uint32_t slot : step.writes)
            set(slot, warp, guard, guard, &origins_[size_t(step.guard) * lanes_ + warp * kWarp]);
    }
}

void Definedness::access_local(Batch& batch, uint32_t source, const Resolved& at, uint32_t bytes, bool write) {
    const Source& from = batch.program.sources[source];
    if ((from.opcode != "ld" && from.opcode != "st") || from.operands.size() < 2) return;
    const Operands parts = elements(from.operands[write ? 1 : 0]);
    const uint32_t unit = bytes / uint32_t(parts.size());
    for (size_t part = 0; part < parts.size(); part++) {
        const uint32_t slot = this->slot(parts[part]), stored = write ? bits(slot, at.warp) : 0;
        uint32_t unwritten = 0, origins[kWarp];
        for (const uint32_t lane : LanesOf(at.mask)) {
            const size_t first =
                size_t(at.warp * kWarp + lane) * local_bytes_ + size_t(at.addresses[lane]) + part * unit;
            const auto begin = written_.begin() + first, end = begin + unit;
            if (write) std::fill(begin, end, !(stored >> lane & 1));
            else if (std::find(begin, end, true) == end) unwritten |= 1u << lane;
            origins[lane] = source;
        }
        if (!write && slot != kUntracked) set(slot, at.warp, at.mask, unwritten, origins);
    }
}

void Definedness::report(Batch& batch, uint32_t slot, uint32_t warp, uint32_t lanes, uint32_t source) const {
    const uint32_t lane = warp * kWarp + __builtin_ctz(lanes), origin = origins_[size_t(slot) * lanes_ + lane];
    const bool unset = origin == kUnset;
    const char* kind = unset                                            ? "uninitialized-register"
                       : batch.program.sources[origin].opcode == "shfl" ? "shuffle"
                                                                        : "uninitialized-local";
    batch.launch.checks->add({kind, unset ? source : origin, unset ? -1 : int64_t(source), batch.block_text(lane),
                              batch.thread_text(lane), "", "", "", 0, 0});
}

}  // namespace kernrec
