// Records the global memory sectors that watched thread blocks access, in order, for models of caches and DRAM.
#pragma once

#include <cstdint>
#include <map>
#include <unordered_map>
#include <utility>
#include <vector>

namespace kernrec {

// Set of units of a buffer, as bits in pages of 4096.
class UnitSet {
  public:
    // Add `count` units from `first`: at most 8, within an aligned group of 8.
    void add(uint64_t first, uint32_t count) {
        const uint64_t page = first / kPageUnits;
        if (page != last_number_ || !last_) {
            last_ = pages_[page].words;
            last_number_ = page;
        }
        last_[first % kPageUnits / 64] |= ((uint64_t(1) << count) - 1) << first % 64;
    }
    // Return the numbers in ascending order, each multiplied by `factor`.
    std::vector<int64_t> numbers(int64_t factor) const;

  private:
    static constexpr uint64_t kPageUnits = 4096;
    struct Page {
        uint64_t words[kPageUnits / 64] = {};
    };
    std::unordered_map<uint64_t, Page> pages_;  // pages keep their address when others are added
    uint64_t last_number_ = 0;
    uint64_t* last_ = nullptr;
};

constexpr int64_t kMostKept = 1 << 20;  // maximum sectors per batch of blocks; later sectors are dropped
constexpr uint32_t kSectorBytes = 32, kWordBytes = 4;
constexpr uint64_t kFineBytes = uint64_t(1) << 30;  // larger buffers are tracked by sector, not by word

struct BlockWatch {
    // Distinct sectors of each warp's loads and stores, in order of execution. A step is the number of basic blocks
    // that the batch ran before. Warps are numbered within the block. A sector is an address / 32. `reads` marks loads.
    std::vector<int64_t> steps, warps, sectors;
    std::vector<uint8_t> reads;
    std::vector<int64_t> atomics;  // addresses of atomic operations
    std::map<std::pair<uint32_t, bool>, UnitSet> touched;  // keyed by (buffer, whether it was written)
};

}  // namespace kernrec
