// Records the global memory sectors that watched thread blocks access, in order, for models of caches and DRAM.
#pragma once

#include <array>
#include <cstdint>
#include <iterator>
#include <map>
#include <utility>
#include <vector>

namespace kernrec {

// Set of units of a buffer, as bits in pages of 4096.
class UnitSet {
  public:
    static constexpr uint64_t kPageUnits = 4096;
    using Page = std::array<uint64_t, kPageUnits / 64>;

    // Add `count` units from `first`: at most 8, within an aligned group of 8.
    void add(uint64_t first, uint32_t count) {
        const uint64_t page = first / kPageUnits;
        const Recent* recent = &recent_[page & (recent_.size() - 1)];
        if (page != recent->page || !recent->words) recent = &look_up(page);
        recent->words[first % kPageUnits / 64] |= ((uint64_t(1) << count) - 1) << first % 64;
    }
    bool has(int64_t unit) const;
    // Return the numbers of aligned groups of `group` units that contain a unit of the set, ascending. group: at
    // most 8.
    std::vector<int64_t> groups(uint32_t group) const;
    // Return the bits of a page.
    const Page& page(uint64_t number) const;
    std::map<uint64_t, Page> pages;  // pages keep their address when others are added

  private:
    struct Recent {
        uint64_t page = 0;
        uint64_t* words = nullptr;
    };
    const Recent& look_up(uint64_t page);
    std::vector<Recent> recent_ = std::vector<Recent>(16);  // lanes often access different pages in turn
};

constexpr int64_t kMostKept = 1 << 20;  // maximum sectors per batch of blocks; later sectors are dropped
constexpr uint32_t kSectorBytes = 32, kWordBytes = 4;
constexpr uint64_t kFineBytes = uint64_t(1) << 30;  // larger buffers are tracked by sector, not by word

// Set of 4-byte words of a buffer. For a large buffer, it is the set of 32-byte sectors.
struct Touched {
    UnitSet units;
    bool is_fine = true;  // whether the units are words

    std::vector<int64_t> sectors() const { return units.groups(is_fine ? kSectorBytes / kWordBytes : 1); }
    // Return the additional bytes that the next block moves, which touches `next`. A new word next to a word of this
    // block counts as 4 bytes: later blocks probably access the rest of its sector. Any other new word counts as a
    // whole sector.
    double new_bytes(const Touched& next) const;
};

struct BlockWatch {
    // Distinct sectors of each warp's loads and stores, in order of execution. A step is the number of basic blocks
    // that the batch ran before. Warps are numbered within the block. A sector is an address / 32. `reads` marks loads.
    std::vector<int64_t> steps, sectors;
    std::vector<uint8_t> warps, reads;
    std::vector<int64_t> atomics;  // addresses of atomic operations
    std::map<std::pair<uint32_t, bool>, Touched> touched;  // keyed by (buffer, whether it was written)
};

constexpr uint32_t kNever = ~0u;
constexpr uint32_t kLineShift = 2;  // a cache line has 4 sectors

// Return for each request how many requests ago its unit was last requested, or `kNever`. A unit is a sector,
// or an aligned group of 2^`shift` sectors.
std::vector<uint32_t> reuse_times(const int64_t* sectors, size_t count, uint32_t shift);

// Hits of a block's loads in LRU caches. A request hits if the average number of distinct lines that the block requests
// since its last request of the sector is at most the size of the cache. The first request of a sector never hits.
struct Reuse {
    std::vector<uint64_t> hits;  // requests that hit in a cache of each size
    std::vector<uint64_t> warp_hits;  // warps' steps of which all requests hit, by size
    uint64_t warps = 0;                // steps in which a warp requests sectors, in total over all warps
};
Reuse reuse(const int64_t* steps, const uint8_t* warps, const int64_t* sectors, const bool* loads, size_t count,
            const std::vector<double>& lines);

}  // namespace kernrec
