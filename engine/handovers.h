// Races in global memory between threads that hand over what they stored by `.release` and `.acquire` of a scope that
// spans blocks (PTX ISA, section 8, "Memory consistency model").
//
// For every word of a buffer that a kernel may write: who wrote it last, and when, in the times of vector_clocks.h. A
// load of what another warp wrote, or a store over it, is a race if the warp does not know of it: by barriers, or by an
// acquire at the word where a release brought that knowledge. Accesses that are strong by themselves (`.relaxed`,
// `.volatile`, atomic ones) race with nobody. Not followed: stores after loads, elements of fewer than four bytes,
// copies in bulk.
//
// A thread may see late what another one stored: the first look of a warp at what was released finds what was there
// before, and brings no knowledge. So a wait that looks only once is found, whatever the order of blocks.
#pragma once

#include <map>
#include <set>

#include "batch.h"
#include "vector_clocks.h"

namespace kernrec {

class Handovers {
   public:
    Handovers(Batch& batch, VectorClocks& clocks) : batch_(batch), clocks_(clocks) {}

    // Whether blocks of a kernel order what they do in global memory by accesses that release and acquire. Fences order
    // accesses, too, but of any later access: kernels that have them are not looked at.
    static bool hands_over(const Program& program);

    void start_batch(const std::vector<int64_t>& block_numbers);
    // Lanes are about to store: keep what was there before a release.
    void keep(const Instruction& ins, const Resolved& at, uint32_t bytes);
    // The bytes that a lane sees that does not see the last release yet; null if it sees memory.
    const uint8_t* overlooked(const Instruction& ins, const Resolved& at, uint32_t lane_of_warp, uint32_t bytes) const;
    // Lanes access a buffer that may be written; throws Fault for a race.
    void record(const Instruction& ins, const std::vector<Resolved>& all, uint32_t bytes, bool write, bool is_atomic);

   private:
    using Place = std::pair<uint32_t, uint64_t>;  // buffer and byte
    using Past = std::map<int32_t, Knowledge>;    // knowledge of the warps of earlier batches, by batch
    struct Release {
        int32_t batch;
        Knowledge row;
        Past past;
    };
    struct Word {
        int32_t warp = -1, batch = 0, time = 0;
    };
    static void learn_past(Past& past, const Past& more);
    void release(uint32_t warp, const Place& place, bool is_atomic);
    void acquire(uint32_t warp, const Place& place);
    bool known(const Word& word, uint32_t warp) const;
    [[noreturn]] void fail(const Instruction& ins, uint32_t buffer, uint64_t word, uint32_t warp, bool write);

    Batch& batch_;
    VectorClocks& clocks_;
    int32_t number_ = 0;  // of the batch
    std::map<uint32_t, std::vector<Word>> words_;
    std::map<Place, Release> releases_;
    std::map<Place, std::vector<uint8_t>> before_;  // what was there before the last release
    std::set<std::tuple<int32_t, uint32_t, Place>> looked_;  // batch and warp that looked since
    std::vector<Past> past_;                        // by block of this batch
    std::vector<std::vector<int64_t>> blocks_;      // of every batch: the numbers of its blocks
};

}  // namespace kernrec
