// Counters of a batch of thread blocks.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace kernrec {

struct Counter {
    uint64_t value = 0;
    bool present = false;
    void add(uint64_t by) {
        value += by;
        present = true;
    }
};

// Counters of a buffer, or of local memory. `kSectors`, `kRequests`, `kBytes` and `kPasses` start arrays, indexed by
// AccessKind. `kPasses` (clocks of the L1 cache) and `kTurns` (serial steps of atomics) are 0 without `Batch::watched`.
enum BufferCounter { kSectors = 0, kRequests = 3, kBytes = 6, kPasses = 9, kAtomics = 12, kTurns, kBufferCounters };
using BufferCounts = std::array<Counter, kBufferCounters>;

// Counters of shared memory. `kWavefronts` and `kIdeal` start arrays, indexed by AccessKind. `kRepeats` counts the
// wavefronts that atomic operations save because lanes with the same address are merged.
enum SharedCounter { kWavefronts = 0, kIdeal = 3, kRepeats = 6, kSharedAtomics, kSharedCounters };

struct Counts {
    std::vector<BufferCounts> buffers;
    BufferCounts local;
    std::array<Counter, kSharedCounters> shared;
    Counter barriers;
    std::map<std::string, uint64_t> named;
    std::vector<uint64_t> warps, lanes;  // indexed by basic block
    std::vector<uint64_t> by_warp;       // indexed by (basic block, warp), only in watched launches

    Counts(size_t buffer_count, size_t blocks) : buffers(buffer_count), warps(blocks), lanes(blocks) {}
    void merge(const Counts& other);
    // Return all present counters of memory and all named counters.
    std::map<std::string, uint64_t> by_name(const std::vector<std::string>& buffer_names) const;
};

}  // namespace kernrec
