// Counts memory accesses and their costs, and merges the counters of batches.
#include "counts.h"

#include <algorithm>

#include "batch.h"

namespace kernrec {

namespace {

constexpr const char* kBufferNames[] = {"read_sectors",   "write_sectors",   "atomic_sectors", "read_requests",
                                        "write_requests", "atomic_requests", "read_bytes",     "write_bytes",
                                        "atomic_bytes",   "read_passes",     "write_passes",   "atomic_passes"};
constexpr const char* kSharedNames[] = {
    "shared.load_wavefronts", "shared.store_wavefronts", "shared.atomic_wavefronts", "shared.load_ideal",
    "shared.store_ideal",     "shared.atomic_ideal",     "shared.atomic_repeats",    "atomic.shared"};

// Return the number of distinct units (address >> shift) of a warp, or 0 if a unit is below that of the previous lane.
constexpr auto kDistinct = [](const int64_t* addresses, uint32_t shift) __attribute__((always_inline)) {
    uint64_t number = 1, descends = 0;
    for (uint32_t lane = 1; lane < kWarp; lane++) {
        const int64_t step = (addresses[lane] >> shift) - (addresses[lane - 1] >> shift);
        number += step != 0;
        descends |= uint64_t(step) >> 63;
    }
    return descends ? 0 : uint32_t(number);
};
constexpr ByCpu<kDistinct> distinct_ascending;

// Pattern of the units that a warp accesses.
struct Pattern {
    int64_t span;    // from the first to the last unit
    uint64_t apart;  // bits in which the units differ
    bool ascends;    // each unit is above that of the previous lane
};
constexpr auto kPattern = [](const int64_t* units) __attribute__((always_inline)) {
    int64_t low = units[0], high = units[0];
    uint64_t apart = 0, descends = 0;
    for (uint32_t lane = 1; lane < kWarp; lane++) {
        low = std::min(low, units[lane]);
        high = std::max(high, units[lane]);
        apart |= uint64_t(units[lane] ^ units[0]);
        descends |= uint64_t(units[lane] - units[lane - 1] - 1) >> 63;
    }
    return Pattern{high - low, apart, !descends};
};
constexpr ByCpu<kPattern> pattern_of;

constexpr auto kAllEqual = [](const uint32_t* values, uint32_t count) __attribute__((always_inline)) {
    uint32_t apart = 0;
    for (uint32_t i = 0; i < count; i++) apart |= values[i] ^ values[0];
    return apart == 0;
};
constexpr ByCpu<kAllEqual> all_equal;

uint32_t distinct_sorted(int64_t* values, uint32_t count) {
    std::sort(values, values + count);
    return uint32_t(std::unique(values, values + count) - values);
}

// Return the number of distinct units (address / bank width) in the busiest bank. If `every`, count lanes, not units.
uint32_t busiest_bank(const int64_t* units, uint32_t mask, uint32_t banks, bool every) {
    int64_t of_bank[kWarp][kWarp];
    uint8_t load[kWarp] = {};
    uint32_t most = 0;
    for (const uint32_t lane : LanesOf(mask)) {
        const uint32_t bank = uint32_t(units[lane]) & (banks - 1);
        int64_t* const end = of_bank[bank] + load[bank];
        if (!every && std::find(of_bank[bank], end, units[lane]) != end) continue;
        *end = units[lane];
        most = std::max<uint32_t>(most, ++load[bank]);
    }
    return most;
}

bool paired(const int64_t* units, uint32_t mask, uint32_t distance) {
    for (uint32_t lane = 0; lane < kWarp; lane++)
        if ((mask >> lane & 1) && (mask >> (lane ^ distance) & 1) && units[lane] != units[lane ^ distance])
            return false;
    return true;
}

// Return the number of sectors of an access to local memory, where words of the lanes are interleaved.
uint32_t local_sectors(const int64_t* addresses, uint32_t mask, uint32_t bytes) {
    const uint32_t words = std::max(1u, bytes / 4);
    int64_t units[kWarp * 8];
    uint32_t count = 0;
    for (const uint32_t lane : LanesOf(mask))
        for (uint32_t word = 0; word < words && count < std::size(units); word++)
            units[count++] = ((addresses[lane] >> 2) + word) * 4 + lane / 8;
    return distinct_sorted(units, count);
}

}  // namespace

uint32_t distinct(const int64_t* addresses, uint32_t shift) {
    if (const uint32_t number = distinct_ascending(addresses, shift)) return number;
    int64_t units[kWarp];
    for (uint32_t lane = 0; lane < kWarp; lane++) units[lane] = addresses[lane] >> shift;
    return distinct_sorted(units, kWarp);
}

Wavefronts wavefronts(const int64_t* addresses, uint32_t mask, uint32_t bytes, bool load, bool atomic) {
    const uint32_t unit = std::max(bytes, 4u), banks = 128 / unit, shift = uint32_t(__builtin_ctz(unit));
    int64_t units[kWarp];
    for (uint32_t lane = 0; lane < kWarp; lane++) units[lane] = int64_t(uint64_t(addresses[lane]) >> shift);
    const Pattern all = pattern_of(units);
    uint32_t group = banks;
    if (load && unit > 4 && (!all.apart || paired(units, mask, 1) || paired(units, mask, 2))) group = 2 * banks;
    // Any `banks` consecutive units are in different banks.
    const bool consecutive = all.ascends && all.span == kWarp - 1;
    if (mask == ~0u && (consecutive || (!atomic && all.span < int64_t(banks)))) return {kWarp / group, kWarp / group};
    const bool one_bank = !(all.apart & (banks - 1));
    if (all.ascends && one_bank) return {kWarp, kWarp / group};
    Wavefronts result{0, 0};
    for (uint32_t first = 0; first < kWarp; first += group) {
        const uint32_t part = mask >> first & (~0u >> (kWarp - group));
        if (!part) continue;
        result.count += busiest_bank(units + first, part, banks, atomic || all.ascends);
        result.ideal++;
    }
    return result;
}

uint32_t atomic_turns(const int64_t* addresses, uint32_t mask, uint32_t bytes) {
    std::vector<int64_t> values;
    for (const uint32_t lane : LanesOf(mask)) values.push_back(addresses[lane]);
    std::sort(values.begin(), values.end());
    uint32_t turns = 0, most = 0, same = 0;
    for (size_t i = 0; i < values.size(); i++) {
        const bool new_sector = i > 0 && values[i] >> 5 != values[i - 1] >> 5;
        const bool new_element = i > 0 && values[i] / bytes != values[i - 1] / bytes;
        if (new_sector) turns += std::exchange(most, 0);
        same = new_element ? 1 : same + 1;
        most = std::max(most, same);
    }
    return turns + most;
}

void Counts::merge(const Counts& other) {
    const auto add = [](Counter* to, const Counter* from, size_t count) {
        for (size_t i = 0; i < count; i++) {
            to[i].value += from[i].value;
            to[i].present |= from[i].present;
        }
    };
    const auto add_all = [](std::vector<uint64_t>& to, const std::vector<uint64_t>& from) {
        to.resize(std::max(to.size(), from.size()));
        for (size_t i = 0; i < from.size(); i++) to[i] += from[i];
    };
    for (size_t i = 0; i < buffers.size(); i++) add(buffers[i].data(), other.buffers[i].data(), kBufferCounters);
    add(local.data(), other.local.data(), kBufferCounters);
    add(shared.data(), other.shared.data(), kSharedCounters);
    add(&barriers, &other.barriers, 1);
    for (const auto& [name, value] : other.named) named[name] += value;
    add_all(warps, other.warps);
    add_all(lanes, other.lanes);
    add_all(by_warp, other.by_warp);
}

std::map<std::string, uint64_t> Counts::by_name(const std::vector<std::string>& buffer_names) const {
    std::map<std::string, uint64_t> result = named;
    const auto put = [&](const std::string& name, const Counter& counter) {
        if (counter.present) result[name] = counter.value;
    };
    const auto put_buffer = [&](const std::string& memory, const std::string& name, const BufferCounts& counts) {
        for (size_t i = 0; i < std::size(kBufferNames); i++) put(memory + "." + kBufferNames[i], counts[i]);
        put("atomic." + name, counts[kAtomics]);
        put(memory + ".atomic_turns", counts[kTurns]);
    };
    for (size_t i = 0; i < buffers.size(); i++) put_buffer("global." + buffer_names[i], buffer_names[i], buffers[i]);
    put_buffer("local", "local", local);
    for (size_t i = 0; i < std::size(kSharedNames); i++) put(kSharedNames[i], shared[i]);
    return result;
}

void Batch::record(const Instruction& ins, const std::vector<Resolved>& all, uint32_t bytes, AccessKind kind,
                   bool merges, bool rows_of_matrices) {
    if (launch.count)
        for (const Resolved& at : all) count_access(ins, at, bytes, kind, merges, rows_of_matrices);
    if (launch.watch) watch(ins, all, bytes, kind);
}

void Batch::count_access(const Instruction& ins, const Resolved& at, uint32_t bytes, AccessKind kind, bool merges,
                         bool rows_of_matrices) {
    const size_t which = size_t(kind);
    const uint32_t active = __builtin_popcount(at.mask);
    SiteCounts unused, &site = launch.checks ? launch.checks->site(ins.source) : unused;
    site.requests++;
    site.lanes += active;
    site.bytes += uint64_t(active) * bytes;
    const bool is_atomic = kind == AccessKind::kAtomic;
    site.atomics += is_atomic ? active : 0;
    const auto add = [&](BufferCounts& to, uint64_t sectors) {
        to[kSectors + which].add(sectors);
        to[kRequests + which].add(1);
        to[kBytes + which].add(uint64_t(active) * bytes);
    };
    if (at.space == Space::kGlobal) {
        BufferCounts& buffer = counts.buffers[at.buffer];
        const uint32_t sectors = distinct(at.addresses, 5);
        site.moved += sectors;
        add(buffer, sectors);
        if (is_atomic) buffer[kAtomics].add(active);
    } else if (at.space == Space::kShared) {
        const bool load = kind == AccessKind::kRead && !rows_of_matrices;
        const Wavefronts waves = wavefronts(at.addresses, at.mask, bytes, load, is_atomic && !merges);
        if (merges)
            counts.shared[kRepeats].add(wavefronts(at.addresses, at.mask, bytes, load, true).count - waves.count);
        site.moved += waves.count;
        site.ideal += waves.ideal;
        counts.shared[kWavefronts + which].add(waves.count);
        counts.shared[kIdeal + which].add(waves.ideal);
        if (is_atomic) counts.shared[kSharedAtomics].add(active);
    } else if (at.space == Space::kLocal) {
        if (is_atomic) counts.local[kAtomics].add(active);
        else add(counts.local, local_sectors(at.addresses, at.mask, bytes));
    }
}

bool Batch::count_uniform_load(const Instruction& ins, uint32_t bytes) {
    if (!all_full || ins.guard || ins.space != Space::kShared || ins.a.width != 32) return false;
    if (checks_ || races_ || handovers_ || !all_equal(row<uint32_t>(ins.a), lanes)) return false;
    const uint32_t warps = std::exchange(running, 1);
    access(ins, bytes, AccessKind::kRead);
    running = warps;
    if (launch.count) {  // each group of lanes takes one wavefront (see `wavefronts`)
        const uint32_t unit = std::max(bytes, 4u), group = 128 / unit * (unit > 4 ? 2 : 1);
        counts.shared[kWavefronts].add(uint64_t(kWarp / group) * warps);
        counts.shared[kIdeal].add(uint64_t(kWarp / group) * warps);
    }
    return true;
}

void Batch::count_bulk(std::vector<Moved> moved, uint32_t lane, AccessKind kind) {
    if (moved.empty()) return;
    std::sort(moved.begin(), moved.end(), [](const Moved& a, const Moved& b) { return a.address < b.address; });
    if (launch.watch) watch_bulk(moved, lane, kind);
    if (!launch.count) return;
    uint64_t sectors = 0, bytes = 0, next = 0;  // next: first sector not counted yet
    for (const Moved& part : moved) {
        const uint64_t first = std::max(part.address >> 5, next), end = ((part.address + part.bytes - 1) >> 5) + 1;
        if (end > first) sectors += end - first, next = end;
        bytes += part.bytes;
    }
    BufferCounts& buffer = counts.buffers[(moved[0].address >> kBufferShift) - 1];
    buffer[kSectors + size_t(kind)].add(sectors);
    buffer[kRequests + size_t(kind)].add(1);
    buffer[kBytes + size_t(kind)].add(bytes);
}

void Batch::count_bulk_shared(uint64_t bytes, AccessKind kind) {
    constexpr const char* names[] = {"bulk.shared_read_bytes", "bulk.shared_write_bytes", "bulk.shared_atomic_bytes"};
    if (launch.count) counts.named[names[size_t(kind)]] += bytes;
}

}  // namespace kernrec
