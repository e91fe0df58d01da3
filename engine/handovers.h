// Detects races in global memory between threads that hand over data with `.release` and `.acquire` across blocks (PTX
// ISA, section 8, "Memory consistency model").
//
// For every word that a kernel may write, the detector records the warp of the last write and the time on this warp's
// vector clock. A load or store by another warp is a race if the other warp is not ordered after the write. Barriers
// create this order, and so does an acquire that observes a release. Strong accesses (`.relaxed`, `.volatile`, atomic)
// never race. The detector does not track stores after loads, elements below four bytes, or bulk copies.
//
// A thread may observe a store late. So a warp's first read of a released word returns the previous value and does not
// order the warp after the release. So the detector reports kernels that read a flag only once instead of in a loop.
#pragma once

#include <map>
#include <set>

#include "batch.h"
#include "vector_clocks.h"

namespace kernrec {

class Handovers {
  public:
    Handovers(Batch& batch, VectorClocks& clocks) : batch_(batch), clocks_(clocks) {}

    // Return whether blocks of a kernel order global memory accesses by release and acquire. Kernels with fences are
    // not checked, because a fence orders any later access.
    static bool hands_over(const Program& program);

    void start_batch(const std::vector<int64_t>& block_numbers);
    // Save the values that a release is about to overwrite.
    void keep(const Instruction& ins, const Resolved& at, uint32_t bytes);
    // Return the value before the last release if the lane does not observe the release yet, or else null.
    const uint8_t* overlooked(const Instruction& ins, const Resolved& at, uint32_t lane_of_warp, uint32_t bytes) const;
    // Record accesses to a writable buffer; throw Fault for a race.
    void record(const Instruction& ins, const std::vector<Resolved>& all, uint32_t bytes, bool write, bool is_atomic);

  private:
    using Place = std::pair<uint32_t, uint64_t>;  // buffer and byte
    using Clocks = std::map<int32_t, Knowledge>;  // keyed by batch: clocks of its warps
    struct Word {
        int32_t warp = -1, batch = 0, time = 0;
    };
    struct State {
        Clocks released;  // clocks at the last release; empty before
        std::vector<uint8_t> before;  // value before the last release
        std::set<std::pair<int32_t, uint32_t>> looked;  // batch and warp of each reader since the last release
    };
    void release(uint32_t warp, State& state, bool is_atomic);
    void acquire(uint32_t warp, const State& state);
    bool known(const Word& word, uint32_t warp) const;
    [[noreturn]] void fail(const Instruction& ins, uint32_t buffer, uint64_t word, uint32_t warp, bool write);

    Batch& batch_;
    VectorClocks& clocks_;
    int32_t number_ = 0;  // batch number
    std::map<uint32_t, std::vector<Word>> words_;
    std::map<Place, State> states_;
    std::vector<Clocks> past_;  // from earlier batches, indexed by block of the batch
    std::vector<std::vector<int64_t>> blocks_;  // block numbers of every batch
};

}  // namespace kernrec
