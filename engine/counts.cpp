// Counts accesses to memory, and merges the counters of batches.
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

constexpr auto kAllEqual = [](const uint32_t* values, uint32_t count) __attribute__((always_inline)) {
    uint32_t apart = 0;
    for (uint32_t i = 0; i < count; i++) apart |= values[i] ^ values[0];
    return apart == 0;
};
constexpr ByCpu<kAllEqual> all_equal;

}  // namespace

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

Wavefronts wavefronts(const Resolved& at, uint32_t bytes, bool load, bool atomic) {
    if (!at.same || atomic) return wavefronts(at.addresses, at.mask, bytes, load, atomic);
    const uint32_t unit = std::max(bytes, 4u), group = 128 / unit * (load && unit > 4 ? 2 : 1);
    return {kWarp / group, kWarp / group};
}

void Batch::count_access(const Instruction& ins, const Resolved& at, uint32_t bytes, AccessKind kind, bool merges,
                         bool rows_of_matrices) {
    if (!launch.count) return;
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
        const uint64_t sectors = at.same ? 1
                                 : at.consecutive && bytes <= 32
                                     ? uint64_t((at.addresses[kWarp - 1] >> 5) - (at.addresses[0] >> 5) + 1)
                                     : distinct(at.addresses, at.mask, 5);
        site.moved += sectors;
        add(buffer, sectors);
        if (is_atomic) buffer[kAtomics].add(active);
    } else if (at.space == Space::kShared) {
        const bool load = kind == AccessKind::kRead && !rows_of_matrices;
        const Wavefronts waves = wavefronts(at, bytes, load, is_atomic && !merges);
        if (merges) counts.shared[kRepeats].add(wavefronts(at, bytes, load, true).count - waves.count);
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
    const Resolved& at = access(ins, bytes, AccessKind::kRead)[0];
    running = warps;
    if (at.same && launch.count) {
        const Wavefronts waves = wavefronts(at, bytes, true, false);
        counts.shared[kWavefronts].add(uint64_t(waves.count) * warps);
        counts.shared[kIdeal].add(uint64_t(waves.ideal) * warps);
    }
    return at.same;
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
