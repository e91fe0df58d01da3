// Values that no correct kernel uses: registers that nothing wrote, unwritten local memory, and results of shuffles
// from lanes that do not run them. Correct kernels may move, compute with and branch on such values, and then discard
// the results. An error is to store one to global memory, or to use one in an address.
#pragma once

#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include "batch.h"
#include "dispatch.h"

namespace kernrec {

// Tracks undefined values through the registers and the local memory of a batch.
class Definedness {
  public:
    explicit Definedness(const Batch& batch)
        : program_(batch.program),
          lanes_(batch.lanes),
          warps_(batch.warp_count),
          local_bytes_(batch.launch.local_bytes),
          undefined_(program_.registers.size() * warps_),
          origins_(program_.registers.size() * lanes_),
          written_(size_t(local_bytes_) * lanes_) {
        for (const Source& from : program_.sources) steps_.push_back(step_of(from));
    }

    void start_batch() {
        std::fill(undefined_.begin(), undefined_.end(), 0);
        std::fill(written_.begin(), written_.end(), false);
        any_undefined_ = !program_.unassigned.empty();
        for (const uint32_t id : program_.unassigned) {
            std::fill_n(undefined_.begin() + size_t(id) * warps_, warps_, ~0u);
            std::fill_n(origins_.begin() + size_t(id) * lanes_, lanes_, kUnset);
        }
    }

    // Propagate undefined values through an instruction that is about to run, and report uses that are errors.
    void before(Batch& batch, uint32_t source) {
        const Step& step = steps_[source];
        if (!any_undefined_ && step.rule != Rule::kShuffle) return;
        const Source& from = program_.sources[source];
        Instruction all, guarded;
        if (from.guard >= 0) {
            guarded.guard = program_.registers[from.guard];
            guarded.guard_inverted = from.guard_inverted;
        }
        for (uint32_t i = 0; i < batch.running; i++) {
            const uint32_t warp = batch.warps()[i], mask = batch.mask(i, guarded);
            const uint32_t guard = bits(step.guard, warp) & batch.mask(i, all);
            if (step.guard_is_used && guard) report(batch, step.guard, warp, guard, source);
            for (const uint32_t id : step.uses)
                if (const uint32_t lanes = bits(id, warp) & mask) report(batch, id, warp, lanes, source);
            if (step.writes.empty()) continue;
            uint32_t origins[kWarp], wrong;
            if (step.rule == Rule::kShuffle) {
                wrong = foreign_lanes(batch, step, source, warp, mask, origins);
            } else {
                wrong = undefined(batch, step, from, warp);
                for (const uint32_t id : step.reads)
                    for (const uint32_t lane : LanesOf(wrong & bits(id, warp)))
                        origins[lane] = origins_of(id, warp)[lane];
            }
            for (const uint32_t id : step.writes) set(id, warp, mask, wrong, origins);
            for (const uint32_t id : step.writes)
                if (guard) set(id, warp, guard, guard, origins_of(step.guard, warp));
        }
    }

    void access_local(uint32_t source, const Resolved& at, uint32_t bytes, bool write) {
        const Source& from = program_.sources[source];
        if (from.opcode != "ld" && from.opcode != "st") return;
        const Operands parts = elements(from.operands[write ? 1 : 0]);
        const uint32_t unit = bytes / uint32_t(parts.size());
        for (size_t part = 0; part < parts.size(); part++) {
            const uint32_t id = register_of(parts[part]), stored = write ? bits(id, at.warp) : 0;
            uint32_t unwritten = 0, origins[kWarp];
            for (const uint32_t lane : LanesOf(at.mask)) {
                const size_t first =
                    size_t(at.warp * kWarp + lane) * local_bytes_ + size_t(at.addresses[lane]) + part * unit;
                const auto begin = written_.begin() + int64_t(first), end = begin + unit;
                if (write) std::fill(begin, end, !(stored >> lane & 1));
                else if (std::find(begin, end, true) == end) unwritten |= 1u << lane;
                origins[lane] = source;
            }
            if (!write && id != kNoRegister) set(id, at.warp, at.mask, unwritten, origins);
        }
    }

  private:
    static constexpr uint32_t kNoRegister = ~0u;
    static constexpr uint32_t kUnset = ~0u;  // origin of a register that nothing wrote

    // kAny: the result is undefined if any operand is. kAll: it is undefined only if all operands are.
    enum class Rule : uint8_t { kDefined, kAny, kAll, kAnd, kOr, kSelect, kShuffle };
    struct Step {
        Rule rule = Rule::kDefined;
        std::vector<uint32_t> reads, writes, uses;  // registers; kNoRegister for other operands
        uint32_t guard = kNoRegister;
        bool guard_is_used = false;
    };

    static Rule rule_of(const Source& from) {
        static const std::set<std::string> any{"cvt",   "add", "sub",  "mul",  "mad",  "fma",  "neg",  "abs", "min",
                                               "max",   "not", "shl",  "shr",  "setp", "set",  "ex2",  "lg2", "rcp",
                                               "sqrt",  "sin", "cos",  "tanh", "div",  "rem",  "popc", "clz", "sad",
                                               "rsqrt", "bfe", "brev", "cvta", "and",  "testp"};
        // These opcodes combine parts of operands.
        static const std::set<std::string> all{"mov", "or", "xor", "bfi", "prmt", "lop3", "copysign", "shf", "slct"};
        const std::string& opcode = from.opcode;
        const size_t operands = from.operands.size();
        if (opcode == "shfl" && operands > 3) return Rule::kShuffle;
        if (opcode == "selp" && operands == 4) return Rule::kSelect;
        if ((opcode == "and" || opcode == "or") && operands == 3 && from.has("pred"))
            return opcode == "and" ? Rule::kAnd : Rule::kOr;
        return any.count(opcode) ? Rule::kAny : all.count(opcode) ? Rule::kAll : Rule::kDefined;
    }

    Step step_of(const Source& from) const {
        Step step;
        step.rule = rule_of(from);
        const auto [reads, writes] = registers_of(from);
        step.writes = writes;
        if (from.guard >= 0) step.guard = uint32_t(from.guard);
        const bool stores = from.opcode == "st" || from.opcode == "red" || from.opcode == "atom";
        step.guard_is_used = stores && from.guard >= 0;
        std::vector<uint32_t> used;
        for (const Operand& operand : from.operands) {
            const bool is_address = operand.kind == OperandKind::kAddress;
            if ((is_address && (stores || from.opcode == "ld")) ||
                (stores && !from.has("shared") && !from.has("local")))
                add_registers(operand, used);
        }
        for (const uint32_t id : used)
            if (from.opcode != "atom" || !std::count(writes.begin(), writes.end(), id)) step.uses.push_back(id);
        if (step.rule == Rule::kAny || step.rule == Rule::kAll) {
            for (const uint32_t id : reads)
                if (int32_t(id) != from.guard) step.reads.push_back(id);
        } else if (step.rule != Rule::kDefined) {
            const size_t last = step.rule == Rule::kShuffle ? 1 : from.operands.size() - 1;
            for (size_t i = 1; i <= last; i++) step.reads.push_back(register_of(from.operands[i]));
        }
        return step;
    }

    static uint32_t register_of(const Operand& operand) {
        if (operand.kind == OperandKind::kNegated) return register_of(operand.items[0]);
        return operand.kind == OperandKind::kRegister ? operand.id : kNoRegister;
    }
    // Return the lanes of a warp for which a register is undefined.
    uint32_t bits(uint32_t id, uint32_t warp) const {
        return id == kNoRegister ? 0 : undefined_[size_t(id) * warps_ + warp];
    }
    // Return the origins of a register's undefined values in the lanes of a warp.
    uint32_t* origins_of(uint32_t id, uint32_t warp) { return &origins_[size_t(id) * lanes_ + warp * kWarp]; }

    // Return the lanes of a warp for which the result of an instruction is undefined.
    uint32_t undefined(Batch& batch, const Step& step, const Source& from, uint32_t warp) const {
        const auto flags = [&](const Operand& operand) -> uint32_t {
            if (operand.kind == OperandKind::kNegated)
                return ~batch.flags(program_.registers[operand.items[0].id])[warp];
            if (operand.kind == OperandKind::kRegister) return batch.flags(program_.registers[operand.id])[warp];
            return operand.value ? ~0u : 0;
        };
        uint32_t any = 0, all = ~0u;
        for (const uint32_t id : step.reads) {
            any |= bits(id, warp);
            all &= bits(id, warp);
        }
        if (!any) return 0;
        if (step.rule == Rule::kAny) return any;
        if (step.rule == Rule::kAll) return all;
        const uint32_t a = bits(step.reads[0], warp), b = bits(step.reads[1], warp);
        if (step.rule == Rule::kSelect) {
            const uint32_t chosen = flags(from.operands[3]);
            return bits(step.reads[2], warp) | (a & chosen) | (b & ~chosen);
        }
        // A defined operand decides the result if it is false (and), or true (or).
        const uint32_t flip = step.rule == Rule::kAnd ? ~0u : 0;
        return any & ~((~a & (flags(from.operands[1]) ^ flip)) | (~b & (flags(from.operands[2]) ^ flip)));
    }

    // Return the lanes whose shuffle reads an undefined value or a lane that does not run the shuffle.
    uint32_t foreign_lanes(Batch& batch, const Step& step, uint32_t source, uint32_t warp, uint32_t mask,
                           uint32_t (&origins)[kWarp]) {
        const Source& from = program_.sources[source];
        const auto value = [&](const Operand& operand, uint32_t lane) -> uint32_t {
            return operand.kind == OperandKind::kRegister ? uint32_t(batch.value(program_.registers[operand.id], lane))
                                                          : uint32_t(operand.value);
        };
        const auto mode = Shuffle(std::find_if(std::begin(kShuffles), std::end(kShuffles) - 1,
                                               [&](const char* name) { return from.has(name); }) -
                                  kShuffles);
        const uint32_t before = bits(step.reads[0], warp);
        uint32_t wrong = 0;
        for (const uint32_t lane : LanesOf(mask)) {
            const uint32_t place = warp * kWarp + lane;
            const uint32_t other =
                shuffle_source(mode, lane, value(from.operands[2], place), value(from.operands[3], place)).first;
            const uint32_t members = from.operands.size() > 4 ? value(from.operands[4], place) : ~0u;
            const bool runs = (mask & members) >> other & 1, is_undefined = before >> other & 1;
            if (runs && !is_undefined) continue;
            wrong |= 1u << lane;
            origins[lane] = runs ? origins_of(step.reads[0], warp)[other] : source;
        }
        return wrong;
    }

    void set(uint32_t id, uint32_t warp, uint32_t mask, uint32_t undefined, const uint32_t* origins) {
        put_bits(undefined_[size_t(id) * warps_ + warp], undefined, mask);
        any_undefined_ |= (undefined & mask) != 0;
        for (const uint32_t lane : LanesOf(undefined & mask)) origins_of(id, warp)[lane] = origins[lane];
    }

    void report(Batch& batch, uint32_t id, uint32_t warp, uint32_t lanes, uint32_t source) {
        const uint32_t bit = uint32_t(__builtin_ctz(lanes)), lane = warp * kWarp + bit;
        const uint32_t origin = origins_of(id, warp)[bit];
        const bool unset = origin == kUnset;
        const char* kind = unset                                       ? "uninitialized-register"
                           : program_.sources[origin].opcode == "shfl" ? "shuffle"
                                                                       : "uninitialized-local";
        batch.launch.checks->add({kind, unset ? source : origin, unset ? -1 : int64_t(source), batch.block_text(lane),
                                  batch.thread_text(lane), "", "", "", 0, 0});
    }

    const Program& program_;
    uint32_t lanes_, warps_, local_bytes_;
    bool any_undefined_ = false;       // whether a register has been undefined in this batch
    std::vector<Step> steps_;          // indexed by instruction
    std::vector<uint32_t> undefined_;  // mask of lanes, indexed by register and warp
    std::vector<uint32_t> origins_;    // instruction that made an undefined value, indexed by register and lane
    std::vector<bool> written_;        // bytes of local memory, indexed by lane and address
};

}  // namespace kernrec
