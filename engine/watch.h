// Which sectors of global memory watched thread blocks touch, and in which order: what caches and DRAM make of them.
#pragma once

#include <cstdint>
#include <map>
#include <unordered_map>
#include <utility>
#include <vector>

namespace kernrec {

// A set of units of a buffer: a bit for each, in pages of 4096.
class UnitSet {
   public:
    // Add `count` units from `first` on, at most 8 that no multiple of 8 parts.
    void add(uint64_t first, uint32_t count) {
        const uint64_t page = first / kPageUnits;
        if (page != last_number_ || !last_) {
            last_ = pages_[page].words;
            last_number_ = page;
        }
        last_[first % kPageUnits / 64] |= ((uint64_t(1) << count) - 1) << first % 64;
    }
    // The numbers in ascending order, each multiplied by `factor`.
    std::vector<int64_t> numbers(int64_t factor) const;

   private:
    static constexpr uint64_t kPageUnits = 4096;
    struct Page {
        uint64_t words[kPageUnits / 64] = {};
    };
    std::unordered_map<uint64_t, Page> pages_;  // a page stays where it is when others are added
    uint64_t last_number_ = 0;
    uint64_t* last_ = nullptr;
};

constexpr int64_t kMostKept = 1 << 18;  // sectors of a batch of blocks: of a longer one its beginning
constexpr uint32_t kSectorBytes = 32, kWordBytes = 4;
constexpr uint64_t kFineBytes = uint64_t(1) << 30;  // words of a larger buffer are not told apart, only sectors

// What one thread block did.
struct BlockWatch {
    // Distinct sectors of each warp's loads and stores, in order: the run of a piece of code that the request was part
    // of, the warp of the block, address / 32, and whether it was a load.
    std::vector<int64_t> steps, warps, sectors;
    std::vector<uint8_t> reads;
    std::vector<int64_t> atomics;  // addresses of atomic operations
    std::map<std::pair<uint32_t, bool>, UnitSet> touched;  // by buffer, and whether written
};

}  // namespace kernrec
