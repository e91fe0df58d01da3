#include "watch.h"

#include <algorithm>

#include "batch.h"
#include "cost.h"

namespace kernrec {

std::vector<int64_t> UnitSet::numbers(int64_t factor) const {
    std::vector<uint64_t> pages;
    for (const auto& page : pages_) pages.push_back(page.first);
    std::sort(pages.begin(), pages.end());
    std::vector<int64_t> numbers;
    for (const uint64_t page : pages) {
        const Page& here = pages_.at(page);
        for (uint32_t word = 0; word < kPageUnits / 64; word++)
            for (uint64_t rest = here.words[word]; rest; rest &= rest - 1)
                numbers.push_back(int64_t(page * kPageUnits + 64 * word + uint32_t(__builtin_ctzll(rest))) * factor);
    }
    return numbers;
}

BlockWatch* Batch::watch_of(uint32_t warp) {
    const uint32_t block = block_of(warp);
    return block < watches_.size() ? watches_[block] : nullptr;
}

void Batch::touch(BlockWatch& watch, uint32_t buffer, AccessKind kind, int64_t address, uint32_t bytes) {
    const uint64_t place = uint64_t(address) & ((uint64_t(1) << kBufferShift) - 1);
    const uint32_t unit = launch.buffers[buffer].size <= kFineBytes ? kWordBytes : kSectorBytes;
    for (int written = kind == AccessKind::kWrite; written <= (kind != AccessKind::kRead); written++)
        watch.touched[{buffer, written != 0}].add(place / unit, std::max((bytes + unit - 1) / unit, 1u));
}

void Batch::watch_sectors(BlockWatch& watch, uint32_t warp, std::vector<int64_t>& sectors, bool read) {
    std::sort(sectors.begin(), sectors.end());
    sectors.erase(std::unique(sectors.begin(), sectors.end()), sectors.end());
    watch.sectors.insert(watch.sectors.end(), sectors.begin(), sectors.end());
    watch.steps.resize(watch.sectors.size(), turn_);
    watch.warps.resize(watch.sectors.size(), warp % warps_per_block);
    watch.reads.resize(watch.sectors.size(), read);
}

void Batch::watch_bulk(const std::vector<Moved>& moved, uint32_t lane, AccessKind kind) {
    BlockWatch* watch = watch_of(lane / kWarp);
    if (!watch) return;
    const uint32_t buffer = uint32_t((moved[0].address >> kBufferShift) - 1);
    std::vector<int64_t> sectors;
    for (const Moved& part : moved) {
        const uint64_t end = part.address + part.bytes;
        for (uint64_t at = part.address; at < end;) {  // count each sector of the copy
            const uint64_t stop = std::min(end, (at / kSectorBytes + 1) * kSectorBytes);
            touch(*watch, buffer, kind, int64_t(at), uint32_t(stop - at));
            if (sectors.empty() || sectors.back() != int64_t(at / kSectorBytes))
                sectors.push_back(int64_t(at / kSectorBytes));
            at = stop;
        }
    }
    watch_request(lane / kWarp, sectors, kind == AccessKind::kRead ? kind : AccessKind::kWrite);
}

void Batch::watch_request(uint32_t warp, std::vector<int64_t> places, AccessKind kind) {
    BlockWatch* watch = watch_of(warp);
    if (room_ <= 0 || !watch) return;
    if (kind == AccessKind::kAtomic) watch->atomics.insert(watch->atomics.end(), places.begin(), places.end());
    else watch_sectors(*watch, warp, places, kind == AccessKind::kRead);
    room_ -= int64_t(places.size());
}

void Batch::watch(const std::vector<Resolved>& all, uint32_t bytes, uint32_t unit, AccessKind kind) {
    if (!launch.watch) return;
    // Count L1's work for one instruction of all warps. L1 shares the banks of shared memory, and compares four tags of
    // 128-byte lines per clock (G. Smith of NVIDIA, forums.developer.nvidia.com, topic 49571).
    std::map<uint32_t, std::pair<uint64_t, uint64_t>> work;  // wavefronts and lines, keyed by buffer
    std::vector<int64_t> sectors;
    const bool keeps = room_ > 0;
    for (const Resolved& at : all) {
        if (at.space != Space::kGlobal) continue;
        auto& [waves, lines] = work[at.buffer];
        uint32_t aligned = 1;
        while (aligned < bytes) aligned *= 2;
        waves += wavefronts(at.addresses, at.mask, aligned, true, false).count;
        lines += distinct(at.addresses, at.mask, 7);
        if (kind == AccessKind::kAtomic)
            counts.buffers[at.buffer][kTurns].add(atomic_turns(at.addresses, at.mask, unit));
        BlockWatch* watch = watch_of(at.warp);
        sectors.clear();
        for (const uint32_t bit : LanesOf(at.mask)) {
            const int64_t address = at.addresses[bit];
            if (watch) touch(*watch, at.buffer, kind, address, bytes);
            sectors.push_back(kind == AccessKind::kAtomic ? address : address / kSectorBytes);
        }
        if (!keeps) continue;
        if (kind == AccessKind::kAtomic) {
            room_ -= int64_t(sectors.size());
            if (watch) watch->atomics.insert(watch->atomics.end(), sectors.begin(), sectors.end());
        } else if (watch) {
            const size_t before = watch->sectors.size();
            watch_sectors(*watch, at.warp, sectors, kind == AccessKind::kRead);
            room_ -= int64_t(watch->sectors.size() - before);
        } else {
            room_ -= distinct(at.addresses, at.mask, 5);
        }
    }
    if (launch.count)
        for (const auto& [buffer, done] : work)
            counts.buffers[buffer][kPasses + size_t(kind)].add(std::max(done.first, (done.second + 3) / 4));
}

}  // namespace kernrec
