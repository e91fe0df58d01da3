// Records the global memory sectors that watched thread blocks access, in order, for models of caches and DRAM.
#pragma once

#include <cstdint>
#include <iterator>
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
        Recent& recent = recent_[page % std::size(recent_)];
        if (page != recent.page || !recent.words) recent = {page, pages_[page].words};
        recent.words[first % kPageUnits / 64] |= ((uint64_t(1) << count) - 1) << first % 64;
    }
    // Return the numbers in ascending order, each multiplied by `factor`.
    std::vector<int64_t> numbers(int64_t factor) const;

  private:
    static constexpr uint64_t kPageUnits = 4096;
    struct Page {
        uint64_t words[kPageUnits / 64] = {};
    };
    struct Recent {
        uint64_t page = 0;
        uint64_t* words = nullptr;
    };
    std::unordered_map<uint64_t, Page> pages_;  // pages keep their address when others are added
    Recent recent_[64];                         // lanes often access different pages in turn
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

constexpr int64_t kNever = int64_t(1) << 40;
constexpr uint32_t kLineShift = 2;  // a cache line has 4 sectors

// Return for each request how many requests ago its unit was last requested, or `kNever`. A unit is a sector,
// or an aligned group of 2^`shift` sectors.
std::vector<int64_t> reuse_times(const int64_t* sectors, size_t count, uint32_t shift);

// Distances of a block's requests: the average number of distinct lines that the block requests between two requests of
// the same sector. A first request has an infinite distance.
struct Reuse {
    std::vector<double> by_request;
    std::vector<double> by_warp;  // longest distance of the sectors that a warp requests in one step
};
Reuse reuse(const int64_t* steps, const int64_t* warps, const int64_t* sectors, size_t count);

}  // namespace kernrec
