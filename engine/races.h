// Data races in shared memory: two threads access one byte, at least one of them writes, with no barrier between.
#pragma once

#include <cstdint>
#include <vector>

#include "program.h"

namespace kernrec {

struct Resolved;

// For every byte of shared memory: which warp wrote it last and which read it last, or that several did, in the present
// barrier interval of its block. Lanes of one warp are ordered by bar.warp.sync and shuffles, which are not followed.
class RaceDetector {
   public:
    RaceDetector(uint32_t shared_bytes, uint32_t blocks, uint32_t warps_per_block);

    void start_batch(const std::vector<int64_t>& block_numbers);
    void pass_barrier(uint32_t block);
    // Throws Fault for a race; `agree`: lanes that write to one place write the same.
    void record(uint32_t source, const std::vector<Resolved>& all, uint32_t bytes, bool write, bool agree);

   private:
    [[noreturn]] void fail(uint32_t source, const std::vector<Resolved>& all, uint32_t bytes, bool write,
                           bool among_itself = false);

    uint32_t stride_, warps_per_block_;
    std::vector<int16_t> writer_, reader_;
    std::vector<int64_t> block_numbers_;
};

}  // namespace kernrec
