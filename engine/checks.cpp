#include "checks.h"

#include <algorithm>
#include <cstring>
#include <new>

#include "batch.h"
#include "definedness.h"

namespace kernrec {

namespace {

constexpr size_t kMostFindings = 100;
constexpr uint32_t kNoLane = ~0u;
constexpr int32_t kSeveral = -1;
// Marks of `Granule::read_lane` for bytes that a block read in several lanes of one warp, or in several warps.
constexpr uint32_t kSeveralLanes = 1u << 31, kSeveralWarps = 1u << 30;

bool can_compare(const Instruction& ins, uint32_t bytes, AccessKind kind) {
    return kind == AccessKind::kWrite && ins.unit && ins.list.size() * ins.unit == bytes;
}

// Return byte `k` of a lane's stored value.
uint8_t stored_byte(Batch& batch, const Instruction& ins, uint32_t lane, uint32_t k) {
    return batch.row<uint8_t>(ins.list[k / ins.unit])[size_t(lane) * ins.unit + k % ins.unit];
}

}  // namespace

void Watch::add(Finding finding) {
    for (const Finding& other : findings)
        if (other.source == finding.source && !std::strcmp(other.kind, finding.kind) && other.memory == finding.memory)
            return;
    if (findings.size() < kMostFindings) findings.push_back(std::move(finding));
}

Checks::Checks(const Batch& batch)
    : watch_(*batch.launch.checks),
      definedness_(watch_.values ? std::make_unique<Definedness>(batch) : nullptr),
      warps_per_block_(batch.warps_per_block),
      cells_(watch_.shared_memory ? size_t(batch.shared_stride()) * batch.launch.blocks_per_batch : 0),
      block_time_(batch.launch.blocks_per_batch),
      warp_time_(batch.warp_count) {
    if (watch_.roles.empty())
        for (const Source& source : batch.program.sources) {
            const auto has = [&](std::initializer_list<const char*> marks) {
                return std::any_of(marks.begin(), marks.end(), [&](const char* mark) { return source.has(mark); });
            };
            const auto named = [&](std::initializer_list<const char*> opcodes) {
                return std::count(opcodes.begin(), opcodes.end(), source.opcode) != 0;
            };
            const bool gathers = named({"shfl", "vote", "match", "redux", "mma", "wmma", "ldmatrix", "stmatrix",
                                        "movmatrix", "elect"}) ||
                                 (source.opcode == "bar" && source.has("warp"));
            const bool divides = named({"div", "rem"}) && source.type()[0] != 'f';
            const bool synchronizes = has({"volatile", "relaxed", "acquire", "release", "mmio"});
            watch_.roles.push_back((synchronizes ? kSynchronizes : 0) | (gathers ? kGathers : 0) |
                                   (divides ? kDivides : 0));
            if (named({"ld", "ldu", "st"}) && !source.has("shared") && !source.has("param") &&
                has({"u8", "s8", "b8", "u16", "s16", "b16"}))
                watch_.granule = 1;
        }
    if (watch_.shadows.size() == batch.launch.buffers.size()) return;
    watch_.shadows.resize(batch.launch.buffers.size());
    for (size_t i = 0; i < watch_.shadows.size(); i++) {
        const uint64_t size = batch.launch.buffers[i].size;
        if (watch_.global_races && batch.launch.buffers[i].writable) {
            watch_.shadows[i].granules.reset(
                static_cast<Watch::Granule*>(std::calloc(size / watch_.granule + 1, sizeof(Watch::Granule))));
            if (!watch_.shadows[i].granules) throw std::bad_alloc();
        }
        if (std::count(watch_.uninitialized.begin(), watch_.uninitialized.end(), i))
            watch_.shadows[i].written.resize(size);
    }
}

Checks::~Checks() = default;

void Checks::start_batch(const std::vector<int64_t>& block_numbers) {
    block_numbers_ = block_numbers;
    if (definedness_) definedness_->start_batch();
    std::fill(cells_.begin(), cells_.end(), Cell{});
    std::fill(block_time_.begin(), block_time_.end(), time_);
}

void Checks::before(Batch& batch, const BasicBlock& block, const Instruction& ins, bool is_first) {
    const uint8_t roles = watch_.roles[ins.source];
    if (roles & kGathers) pass_warps(batch, block, ins.source);
    if (is_first && definedness_) definedness_->before(batch, ins.source);
    if (!(roles & kDivides) || !ins.b) return;
    each_lane(batch, ins, [&](uint32_t lane) {
        if (!batch.value(ins.b, lane)) report("division-by-zero", batch, ins, lane, -1, kNoLane, "", 0, 0);
    });
}

void Checks::start_copies(const std::vector<Resolved>& targets, uint32_t bytes) {
    each_shared_lane(targets, [&](uint32_t, size_t place) {
        for (size_t byte = place; byte < std::min(place + bytes, cells_.size()); byte++) cells_[byte].in_flight = true;
    });
}

void Checks::end_copy(uint32_t lane, size_t place, uint32_t bytes) {
    time_++;
    for (size_t byte = place; byte < std::min(place + bytes, cells_.size()); byte++) {
        Cell& cell = cells_[byte];
        cell = {{block_of(lane), 0, cell.write_source, 0, time_, 0, lane, 0}, cell.written, false};
    }
}

bool Checks::unordered(uint32_t lane, uint32_t other, uint32_t time) const {
    const uint32_t warp = lane / kWarp, block = warp / warps_per_block_;
    return time > block_time_[block] && (warp != other / kWarp || time > warp_time_[warp]);
}

void Checks::record(Batch& batch, const Instruction& ins, const std::vector<Resolved>& all, uint32_t bytes,
                    AccessKind kind) {
    time_++;
    const bool plain = kind != AccessKind::kAtomic && !(watch_.roles[ins.source] & kSynchronizes);
    for (const Resolved& at : all) {
        if (at.space == Space::kShared && watch_.shared_memory) shared(batch, ins, at, bytes, kind, plain);
        if (at.space == Space::kLocal && kind != AccessKind::kAtomic && definedness_)
            definedness_->access_local(ins.source, at, bytes, kind == AccessKind::kWrite);
        if (at.space == Space::kGlobal) global(batch, ins, at, bytes, kind, plain);
    }
}

const SharedArray& Checks::array_at(int64_t address) const {
    const SharedArray* nearest = &watch_.arrays.front();
    for (const SharedArray& array : watch_.arrays) {
        if (array.holds(address)) return array;
        if (array.start <= address && (nearest->start > address || array.start > nearest->start)) nearest = &array;
    }
    return *nearest;
}

std::optional<Checks::Conflict> Checks::touch(Watch::Granule& granule, uint32_t source, uint32_t lane, AccessKind kind,
                                              bool agrees, bool records, bool across_blocks) {
    const int32_t block = block_of(lane);
    const uint32_t barrier_time = block_time_[lane / kWarp / warps_per_block_];
    const uint32_t reader = granule.read_lane & ~(kSeveralLanes | kSeveralWarps);
    const bool by_lanes = granule.read_lane & kSeveralLanes, by_warps = granule.read_lane & kSeveralWarps;
    const bool own_read = granule.reader == block, same_warp = reader / kWarp == lane / kWarp;
    const auto may_race = [&](uint32_t other, uint32_t time) { return other != lane && unordered(lane, other, time); };
    std::optional<Conflict> conflict;
    if (granule.writer && (granule.writer != block ? across_blocks : may_race(granule.write_lane, granule.write_time)))
        conflict = Conflict{granule.writer, granule.write_source, granule.write_lane, true,
                            granule.write_lane / kWarp == lane / kWarp};
    if (kind == AccessKind::kAtomic) return conflict;
    if (kind == AccessKind::kWrite) {
        bool after_read = granule.reader && !own_read && across_blocks;
        if (own_read)
            after_read = by_warps   ? granule.read_time > barrier_time
                         : by_lanes ? unordered(lane, reader, granule.read_time)
                                    : may_race(reader, granule.read_time);
        if (after_read && !conflict)
            conflict =
                Conflict{granule.reader, granule.read_source, reader, !by_lanes && !by_warps, same_warp && !by_warps};
        if (records) {
            granule.writer = block;
            granule.write_source = source;
            granule.write_lane = lane;
            granule.write_time = time_;
        }
        return agrees ? std::nullopt : conflict;
    }
    uint32_t now = lane;
    if (own_read && by_warps) now |= granule.read_time > barrier_time ? kSeveralWarps : 0;
    else if (own_read && unordered(lane, reader, granule.read_time))
        now |= !same_warp ? kSeveralWarps : granule.read_lane != lane ? kSeveralLanes : 0;
    granule.reader = granule.reader && granule.reader != block ? kSeveral : block;
    granule.read_source = source;
    granule.read_lane = now;
    granule.read_time = time_;
    return conflict;
}

void Checks::shared(Batch& batch, const Instruction& ins, const Resolved& at, uint32_t bytes, AccessKind kind,
                    bool plain) {
    const bool write = kind == AccessKind::kWrite, compare = can_compare(ins, bytes, kind);
    // wmma.load reads whole tiles, including padding that a correct kernel may leave uninitialized.
    const bool whole_matrix = batch.program.sources[ins.source].opcode == "wmma";
    const SharedArray* array = nullptr;
    for (const uint32_t bit : LanesOf(at.mask)) {
        const uint32_t lane = at.warp * kWarp + bit;
        const auto first = size_t(at.addresses[bit]);
        const auto address = int64_t(first % batch.shared_stride());
        if (!watch_.arrays.empty()) {
            if (!array || !array->holds(address)) array = &array_at(address);
            if (!array->holds(address) || !array->holds(address + bytes - 1)) {
                report("outside-array", batch, ins, lane, -1, kNoLane, array->name, address - array->start, bytes);
                continue;
            }
        }
        const std::string memory = array ? array->name : "shared memory";
        bool reported = false;
        for (uint32_t k = 0; k < bytes; k++) {
            const size_t place = first + k;
            Cell& cell = cells_[place];
            const auto find = [&](const char* finding, int64_t other, uint32_t other_lane) {
                if (!reported)
                    report(finding, batch, ins, lane, other, other_lane, memory,
                           address + k - (array ? array->start : 0), bytes);
                reported = true;
            };
            if (!write && !cell.written && !whole_matrix) find("uninitialized-shared", -1, kNoLane);
            if (kind != AccessKind::kRead) cell.written = true;
            if (cell.in_flight && !write) find("async-copy", cell.write_source, kNoLane);
            if (!plain && kind != AccessKind::kAtomic) continue;
            bool agrees = compare && batch.shared(0)[place] == stored_byte(batch, ins, lane, k);
            if (cell.write_time == time_ && cell.write_lane != lane)  // another lane stores there at the same time
                agrees = compare && stored_byte(batch, ins, cell.write_lane, k) == stored_byte(batch, ins, lane, k);
            const std::optional<Conflict> conflict = touch(cell, ins.source, lane, kind, agrees, true, false);
            if (!conflict) continue;
            const char* race = conflict->one_warp ? "race-warp" : "race-shared";
            find(kind == AccessKind::kAtomic ? "race-atomic" : race, conflict->source,
                 conflict->lane == lane ? kNoLane : conflict->lane);
        }
    }
}

void Checks::global(Batch& batch, const Instruction& ins, const Resolved& at, uint32_t bytes, AccessKind kind,
                    bool plain) {
    Watch::Shadow& shadow = watch_.shadows[at.buffer];
    const bool write = kind == AccessKind::kWrite, compare = can_compare(ins, bytes, kind);
    if (!shadow.granules && shadow.written.empty()) return;
    const Region& region = batch.launch.buffers[at.buffer];
    const int64_t start = int64_t(at.buffer + 1) << kBufferShift;
    for (const uint32_t bit : LanesOf(at.mask)) {
        const uint32_t lane = at.warp * kWarp + bit;
        const int64_t offset = at.addresses[bit] - (at.addresses[bit] >> kBufferShift ? start : 0);
        if (!shadow.written.empty()) {
            bool is_written = true;
            for (uint32_t k = 0; k < bytes; k++) {
                is_written &= shadow.written[offset + k];
                if (kind != AccessKind::kRead) shadow.written[offset + k] = true;
            }
            if (!write && !is_written)
                report("uninitialized-global", batch, ins, lane, -1, kNoLane, region.name, offset, bytes);
        }
        if (!(plain || kind == AccessKind::kAtomic) || !shadow.granules) continue;
        // Return whether each byte that a lane stores equals a byte that `value_of` returns.
        const auto stores = [&](auto value_of) {
            bool same = compare;
            for (uint32_t k = 0; same && k < bytes; k++) same = value_of(k) == stored_byte(batch, ins, lane, k);
            return same;
        };
        const bool same = stores([&](uint32_t k) { return region.bytes[offset + k]; });
        for (int64_t place = offset / watch_.granule; place <= (offset + bytes - 1) / watch_.granule; place++) {
            Watch::Granule& granule = shadow.granules[place];
            const bool alike = granule.write_time == time_ && granule.write_lane != lane &&
                               stores([&](uint32_t k) { return stored_byte(batch, ins, granule.write_lane, k); });
            const std::optional<Conflict> conflict = touch(granule, ins.source, lane, kind, same || alike, !same, true);
            if (!conflict) continue;
            const bool one_block = conflict->block == block_of(lane), is_atomic = kind == AccessKind::kAtomic;
            watch_.add(
                {is_atomic   ? "race-atomic"
                 : one_block ? "race-block"
                             : "race-global",
                 ins.source, conflict->source, batch.block_text(lane), batch.thread_text(lane),
                 is_atomic || conflict->block == kSeveral ? "" : position_text(conflict->block - 1, batch.launch.grid),
                 one_block && conflict->one_lane ? batch.thread_text(conflict->lane) : "", region.name, offset, bytes});
        }
    }
}

void Checks::pass_warps(Batch& batch, const BasicBlock& block, uint32_t source) {
    Instruction first;
    first.source = block.first;
    each_warp(batch, first, [&](uint32_t warp, uint32_t first_lane, uint32_t running) {
        warp_time_[warp] = time_;
        if (!block.mask || source != block.first) return;
        const uint32_t* masks = batch.row<uint32_t>(block.mask) + first_lane;
        for (const uint32_t lane : LanesOf(running))
            if (!(masks[lane] >> lane & 1))
                report("mask", batch, first, first_lane + lane, -1, kNoLane, "", masks[lane], 0);
    });
}

void Checks::open(const Batch& batch, const std::vector<Waiting>& waiting) {
    const Waiting* first = nullptr;  // first waiting lanes of the current warp
    bool reported = false;
    const auto source = [&](const Waiting& lanes) { return int64_t(batch.program.blocks[lanes.after - 1].end_source); };
    for (const Waiting& lanes : waiting) {
        if (!first || first->warp != lanes.warp) {
            first = &lanes;
            reported = false;
        }
        if (reported || lanes.after == first->after) continue;
        const uint32_t lane = lanes.warp * kWarp + uint32_t(__builtin_ctz(lanes.mask));
        watch_.add({"barrier", source(lanes), source(*first), batch.block_text(lane), batch.thread_text(lane), "",
                    batch.thread_text(lanes.warp * kWarp), "", 0, 0});
        reported = true;
    }
}

void Checks::report(const char* kind, Batch& batch, const Instruction& ins, uint32_t lane, int64_t other,
                    uint32_t other_lane, const std::string& memory, int64_t offset, uint32_t bytes) {
    const bool two = other_lane != kNoLane;
    watch_.add({kind, ins.source, other, batch.block_text(lane), batch.thread_text(lane),
                two ? batch.block_text(other_lane) : "", two ? batch.thread_text(other_lane) : "", memory, offset,
                bytes});
}

}  // namespace kernrec
