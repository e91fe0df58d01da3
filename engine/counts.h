// Counters of a batch of thread blocks, and the cost of one warp's memory access: sectors of global memory, wavefronts
// of shared memory.
//
// The rules follow the CUDA Programming Guide and the metrics of Nsight Compute. A request moves the distinct 32-byte
// sectors that its lanes access. Shared memory has 32 banks of 4 bytes. Lanes that read the same word share it.
// Accesses of 8 bytes per lane run for half a warp at a time, and accesses of 16 bytes for a quarter. These groups are
// twice as large in loads where lanes n and n^1, or n and n^2, read the same address (NVIDIA developer forum,
// "Unexpected shared memory bank conflict"). Lanes of atomic operations never share a word (Gomez-Luna et al., IEEE
// TPDS 24(11), 2013).
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "memory.h"

namespace kernrec {

// Return the number of distinct values of `addresses >> shift`.
uint32_t distinct(const int64_t* addresses, uint32_t shift);

struct Wavefronts {
    uint32_t count, ideal;
};

Wavefronts wavefronts(const int64_t* addresses, uint32_t mask, uint32_t bytes, bool load, bool atomic);

// Return the number of serial steps of an atomic operation on elements of `bytes` bytes. Lanes that update the same
// element run one after another. Lanes that update different elements of a sector run in the same step.
uint32_t atomic_turns(const int64_t* addresses, uint32_t mask, uint32_t bytes);

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
