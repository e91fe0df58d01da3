// Values that no correct kernel uses: registers that nothing wrote, unwritten local memory, and results of shuffles
// from lanes that do not run them. Correct kernels may move, compute with and branch on such values, and then discard
// the results. An error is to store one to global memory, or to use one in an address.
#pragma once

#include <cstdint>
#include <vector>

#include "program.h"

namespace kernrec {

class Batch;
struct Resolved;

// Tracks undefined values through the registers and the local memory of a batch.
class Definedness {
  public:
    explicit Definedness(const Batch& batch);

    void start_batch();
    // Propagate undefined values through an instruction that is about to run, and report uses that are errors.
    void before(Batch& batch, uint32_t source);
    void access_local(Batch& batch, uint32_t source, const Resolved& at, uint32_t bytes, bool write);

  private:
    enum class Rule : uint8_t { kNone, kDefined, kAny, kAll, kAnd, kOr, kSelect, kShuffle };
    struct Step {
        Rule rule = Rule::kNone;
        std::vector<uint32_t> reads, writes, uses;  // slots of tracked registers; kUntracked for other registers
        uint32_t guard = ~0u;                       // slot of the guard
        bool guard_is_used = false;
    };

    uint32_t slot(const Operand& operand) const;
    uint32_t bits(uint32_t slot, uint32_t warp) const { return slot == ~0u ? 0 : undefined_[slot * warps_ + warp]; }
    uint32_t undefined(Batch& batch, const Step& step, const Source& from, uint32_t warp) const;
    uint32_t foreign_lanes(Batch& batch, const Step& step, uint32_t source, uint32_t warp, uint32_t mask,
                           uint32_t (&origins)[32]) const;
    void set(uint32_t slot, uint32_t warp, uint32_t mask, uint32_t undefined, const uint32_t* origins);
    void report(Batch& batch, uint32_t slot, uint32_t warp, uint32_t lanes, uint32_t source) const;

    uint32_t lanes_, warps_, local_bytes_;
    std::vector<uint32_t> slots_;       // indexed by register
    std::vector<uint32_t> unassigned_;  // slots of registers without a value at the start
    std::vector<Step> steps_;           // indexed by instruction
    std::vector<uint32_t> undefined_;   // mask of lanes, indexed by slot and warp
    std::vector<uint32_t> origins_;     // instruction that made an undefined value, indexed by slot and lane
    std::vector<bool> written_;         // bytes of local memory, indexed by lane and address
};

}  // namespace kernrec
