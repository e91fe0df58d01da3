#include "watch.h"

#include <algorithm>
#include <array>
#include <numeric>
#include <unordered_map>

#include "batch.h"

namespace kernrec {

const UnitSet::Recent& UnitSet::look_up(uint64_t page) {
    uint64_t* words = pages[page].data();
    if (pages.size() > recent_.size()) recent_.assign(4 * recent_.size(), {});
    return recent_[page & (recent_.size() - 1)] = {page, words};
}

const UnitSet::Page& UnitSet::page(uint64_t number) const {
    static const Page empty{};
    const auto entry = pages.find(number);
    return entry == pages.end() ? empty : entry->second;
}

bool UnitSet::has(int64_t unit) const {
    const uint64_t within = uint64_t(unit) % kPageUnits;
    return page(uint64_t(unit) / kPageUnits)[within / 64] >> within % 64 & 1;
}

std::vector<int64_t> UnitSet::groups(uint32_t group) const {
    std::vector<int64_t> numbers;
    for (const auto& [page, words] : pages)
        for (size_t i = 0; i < words.size(); i++)
            for (uint64_t rest = words[i]; rest;) {
                const uint32_t unit = uint32_t(__builtin_ctzll(rest)) / group * group;
                numbers.push_back(int64_t((page * kPageUnits + 64 * i + unit) / group));
                rest &= ~(((uint64_t(1) << group) - 1) << unit);
            }
    return numbers;
}

double Touched::new_bytes(const Touched& next) const {
    constexpr uint32_t per_sector = kSectorBytes / kWordBytes;
    uint64_t sectors = 0, words = 0, runs = 0;  // new sectors and words, and runs of consecutive new words
    uint64_t following = 0, preceding = 0;      // runs directly after and directly before a word of this block
    int64_t last = -2, last_sector = -1;        // last new word and sector
    for (const auto& [page, theirs] : next.units.pages) {
        const UnitSet::Page& own = units.page(page);
        for (size_t i = 0; i < own.size(); i++)
            for (uint64_t rest = theirs[i] & ~own[i]; rest; rest &= rest - 1) {
                const auto bit = uint32_t(__builtin_ctzll(rest));
                const auto word = int64_t(page * UnitSet::kPageUnits + 64 * i + bit);
                words++;
                if (word != last + 1) {
                    preceding += runs && units.has(last + 1);
                    runs++;
                    following += units.has(word - 1);
                }
                last = word;
                const bool is_new = !(own[i] >> bit / per_sector * per_sector & ((1u << per_sector) - 1));
                if (is_new && word / per_sector != last_sector) {
                    last_sector = word / per_sector;
                    sectors++;
                }
            }
    }
    if (!is_fine || !next.is_fine) return double(words) * kSectorBytes;
    if (!words) return 0;
    preceding += units.has(last + 1);
    const double share = double(std::max(following, preceding)) / double(runs);
    return share * double(words) * kWordBytes + (1.0 - share) * double(sectors) * kSectorBytes;
}

BlockWatch* Batch::watch_of(uint32_t warp) {
    const uint32_t block = block_of(warp);
    return block < watches_.size() ? watches_[block] : nullptr;
}

std::vector<uint32_t> reuse_times(const int64_t* sectors, size_t count, uint32_t shift) {
    constexpr int64_t kPageUnits = 512;
    using Page = std::array<uint32_t, kPageUnits>;  // 1 + index of the last request of each unit, or 0
    std::unordered_map<int64_t, Page> pages;        // pages keep their address when others are added
    std::pair<int64_t, Page*> recent[1024] = {};
    std::vector<uint32_t> times(count);
    for (uint32_t i = 0; i < count; i++) {
        const int64_t unit = sectors[i] >> shift, number = unit / kPageUnits;
        auto& [page, last] = recent[number % std::size(recent)];
        if (page != number || !last) page = number, last = &pages[number];
        uint32_t& at = (*last)[unit % kPageUnits];
        times[i] = at ? i + 1 - at : kNever;
        at = i + 1;
    }
    return times;
}

Reuse reuse(const int64_t* steps, const uint8_t* warps, const int64_t* sectors, const bool* loads, size_t count,
            const std::vector<double>& lines) {
    std::vector<uint32_t> repeats(count + 1);  // requests whose line was last requested n requests ago
    for (const uint32_t time : reuse_times(sectors, count, kLineShift)) repeats[std::min<size_t>(time, count)]++;
    std::vector<double> footprint(count + 1);  // average number of distinct lines in n consecutive requests
    size_t longer = count;                     // requests whose line was not among the last n requests
    for (size_t n = 0; n < count; n++) {
        longer -= repeats[n];
        footprint[n + 1] = footprint[n] + double(longer) / double(count);
    }
    std::vector<uint32_t> times = reuse_times(sectors, count, 0), by_warp;
    std::fill(repeats.begin(), repeats.end(), 0);  // loads whose sector was last requested at most n requests ago
    for (size_t i = 0; i < count; i++)
        if (loads[i] && times[i] != kNever) repeats[times[i]]++;
    std::partial_sum(repeats.begin(), repeats.end(), repeats.begin());
    std::map<uint8_t, std::pair<int64_t, size_t>> last;  // step and index in `by_warp` of each warp's last request
    auto request = last.end();
    for (size_t i = 0; i < count; i++) {
        // Warps that request a sector in the same step wait together for the first warp's request.
        if (times[i] <= i && steps[i - times[i]] == steps[i]) times[i] = times[i - times[i]];
        if (request == last.end() || request->first != warps[i]) request = last.try_emplace(warps[i], -1, 0).first;
        auto& [step, place] = request->second;
        if (step != steps[i]) {
            step = steps[i];
            place = by_warp.size();
            by_warp.push_back(0);
        }
        by_warp[place] = std::max(by_warp[place], times[i]);
    }
    Reuse made;
    made.warps = by_warp.size();
    for (const double size : lines) {  // the footprint grows with time, so all times up to a maximum hit
        const auto stop = uint32_t(std::upper_bound(footprint.begin(), footprint.end(), size) - footprint.begin());
        made.hits.push_back(stop ? repeats[stop - 1] : 0);
        const auto is_hit = [stop](uint32_t time) { return time < stop; };
        made.warp_hits.push_back(uint64_t(std::count_if(by_warp.begin(), by_warp.end(), is_hit)));
    }
    return made;
}

// A trace of this many sectors probably becomes as long as it may. Then it is not moved again.
constexpr size_t kLongTrace = 1 << 16, kReserved = size_t(kMostKept) + 4096;

void Batch::touch(BlockWatch& watch, uint32_t buffer, AccessKind kind, const int64_t* addresses, uint32_t mask,
                  uint32_t bytes) {
    const bool is_fine = launch.buffers[buffer].size <= kFineBytes;
    const uint32_t unit = is_fine ? kWordBytes : kSectorBytes;
    const uint32_t units = std::max((bytes + unit - 1) / unit, 1u);
    for (int written = kind == AccessKind::kWrite; written <= (kind != AccessKind::kRead); written++) {
        Touched& touched = watch.touched[{buffer, written != 0}];
        touched.is_fine = is_fine;
        int64_t previous = -1;
        for (const uint32_t lane : LanesOf(mask)) {
            if (addresses[lane] == previous) continue;  // lanes often read the same address
            previous = addresses[lane];
            touched.units.add((uint64_t(previous) & ((uint64_t(1) << kBufferShift) - 1)) / unit, units);
        }
    }
}

// Record a request of a warp: addresses of an atomic operation, or sectors of a load or store. Sorts the sectors.
void Batch::trace(uint32_t warp, int64_t* first, size_t count, AccessKind kind) {
    BlockWatch* watch = watch_of(warp);
    const bool is_atomic = kind == AccessKind::kAtomic;
    int64_t* end = first + count;
    if (!is_atomic) {
        if (!std::is_sorted(first, end)) std::sort(first, end);
        end = std::unique(first, end);
    }
    room_ -= end - first;
    if (!watch) return;
    if (is_atomic) {
        watch->atomics.insert(watch->atomics.end(), first, end);
        return;
    }
    if (watch->sectors.size() >= kLongTrace && watch->sectors.capacity() < kMostKept) {
        watch->steps.reserve(kReserved);
        watch->sectors.reserve(kReserved);
        watch->warps.reserve(kReserved);
        watch->reads.reserve(kReserved);
    }
    watch->sectors.insert(watch->sectors.end(), first, end);
    watch->steps.resize(watch->sectors.size(), turn_);
    watch->warps.resize(watch->sectors.size(), uint8_t(warp % warps_per_block));
    watch->reads.resize(watch->sectors.size(), kind == AccessKind::kRead);
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
            const int64_t first = int64_t(at);
            touch(*watch, buffer, kind, &first, 1, uint32_t(stop - at));
            if (sectors.empty() || sectors.back() != int64_t(at / kSectorBytes))
                sectors.push_back(int64_t(at / kSectorBytes));
            at = stop;
        }
    }
    watch_request(lane / kWarp, sectors, kind == AccessKind::kRead ? kind : AccessKind::kWrite);
}

void Batch::watch_request(uint32_t warp, std::vector<int64_t> places, AccessKind kind) {
    if (room_ > 0 && watch_of(warp)) trace(warp, places.data(), places.size(), kind);
}

void Batch::watch(const Instruction& ins, const std::vector<Resolved>& all, uint32_t bytes, AccessKind kind) {
    // Count L1's work for one instruction of all warps. L1 shares the banks of shared memory, and compares four tags of
    // 128-byte lines per clock (G. Smith of NVIDIA, forums.developer.nvidia.com, topic 49571).
    std::map<uint32_t, std::pair<uint64_t, uint64_t>> work;  // wavefronts and lines, keyed by buffer
    const bool keeps = room_ > 0, is_atomic = kind == AccessKind::kAtomic;
    uint32_t aligned = 1;
    while (aligned < bytes) aligned *= 2;
    for (const Resolved& at : all) {
        if (at.space != Space::kGlobal) continue;
        if (BlockWatch* watch = watch_of(at.warp)) touch(*watch, at.buffer, kind, at.addresses, at.mask, bytes);
        if (!launch.count) continue;
        auto& [waves, lines] = work[at.buffer];
        waves += wavefronts(at.addresses, at.mask, aligned, true, false).count;
        lines += distinct(at.addresses, 7);
        if (is_atomic) counts.buffers[at.buffer][kTurns].add(atomic_turns(at.addresses, at.mask, ins.unit));
        if (!keeps) continue;
        int64_t places[kWarp];
        size_t count = 0;
        for (const uint32_t lane : LanesOf(at.mask)) {
            const int64_t place = is_atomic ? at.addresses[lane] : at.addresses[lane] / kSectorBytes;
            if (is_atomic || !count || place != places[count - 1]) places[count++] = place;
        }
        trace(at.warp, places, count, kind);
    }
    for (const auto& [buffer, done] : work)
        counts.buffers[buffer][kPasses + size_t(kind)].add(std::max(done.first, (done.second + 3) / 4));
}

}  // namespace kernrec
