#include "checks.h"

#include <algorithm>
#include <cstring>
#include <new>

#include "batch.h"

namespace kernrec {

namespace {

constexpr size_t kMostFindings = 100;
constexpr uint32_t kNoLane = ~0u;
constexpr int32_t kSeveral = -1;
// Values of `Granule::read_lane` for bytes that a block read in several lanes of one warp, or in several warps.
constexpr uint32_t kSeveralLanes = 1u << 31, kSeveralWarps = ~0u;

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
      stride_(batch.launch.shared_bytes),
      warps_per_block_(batch.warps_per_block),
      cells_(watch_.shared_memory ? size_t(stride_) * batch.launch.blocks_per_batch : 0),
      written_(cells_.size()),
      block_epoch_(batch.launch.blocks_per_batch),
      warp_epoch_(batch.warp_count),
      block_time_(batch.launch.blocks_per_batch),
      warp_time_(batch.warp_count) {
    if (watch_.roles.empty())
        for (const Source& source : batch.program.sources) {
            const auto has = [&](std::initializer_list<const char*> marks) {
                return std::any_of(marks.begin(), marks.end(), [&](const char* mark) { return source.has(mark); });
            };
            const auto named = [&](std::initializer_list<const char*> opcodes) {
                return std::any_of(opcodes.begin(), opcodes.end(),
                                   [&](const char* each) { return source.opcode == each; });
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

void Checks::start_batch(const std::vector<int64_t>& block_numbers) {
    block_numbers_ = block_numbers;
    if (definedness_) definedness_->start_batch();
    std::fill(written_.begin(), written_.end(), false);
    for (uint32_t& epoch : block_epoch_) epoch++;
    std::fill(block_time_.begin(), block_time_.end(), time_);
    for (Cell& cell : cells_) cell.in_flight = false;
}

void Checks::before(Batch& batch, const BasicBlock& block, const Instruction& ins, bool is_first) {
    const uint8_t roles = watch_.roles[ins.source];
    if (roles & kGathers) pass_warps(batch, block, ins.source);
    if (is_first && definedness_) definedness_->before(batch, ins.source);
    if (!(roles & kDivides) || !ins.b) return;
    for (uint32_t i = 0; i < batch.running; i++)
        for (const uint32_t bit : LanesOf(batch.mask(i, ins))) {
            const uint32_t lane = batch.warps()[i] * kWarp + bit;
            if (!batch.value(ins.b, lane)) report("division-by-zero", batch, ins, lane, -1, kNoLane, "", 0, 0);
        }
}

void Checks::start_copies(const std::vector<Resolved>& targets, uint32_t bytes) {
    each_shared_lane(targets, [&](uint32_t, size_t place) {
        for (size_t byte = place; byte < std::min(place + bytes, cells_.size()); byte++) cells_[byte].in_flight = true;
    });
}

void Checks::end_copy(uint32_t lane, size_t place, uint32_t bytes) {
    const uint32_t warp = lane / kWarp, block = warp / warps_per_block_;
    for (size_t byte = place; byte < std::min(place + bytes, cells_.size()); byte++) {
        const uint32_t source = cells_[byte].write_source;
        Cell& cell = cells_[byte] = Cell{};
        cell.epoch = block_epoch_[block];
        cell.writer = int32_t(lane - block * warps_per_block_ * kWarp);
        cell.write_epoch = warp_epoch_[warp];
        cell.write_source = source;
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
            definedness_->access_local(batch, ins.source, at, bytes, kind == AccessKind::kWrite);
        if (at.space == Space::kGlobal) global(batch, ins, at, bytes, kind, plain);
    }
}

const SharedArray* Checks::array_at(int64_t address) const {
    for (const SharedArray& array : watch_.arrays)
        if (address >= array.start && address < int64_t(array.start) + array.size) return &array;
    return nullptr;
}

void Checks::shared(Batch& batch, const Instruction& ins, const Resolved& at, uint32_t bytes, AccessKind kind,
                    bool plain) {
    const uint32_t block = at.warp / warps_per_block_, warp_of_block = at.warp % warps_per_block_;
    const size_t base = size_t(block) * stride_;
    const bool write = kind == AccessKind::kWrite, compare = can_compare(ins, bytes, kind);
    const uint32_t epoch = block_epoch_[block], warp_epoch = warp_epoch_[at.warp];
    // wmma.load reads whole tiles, including padding that a correct kernel may leave uninitialized.
    const bool whole_matrix = batch.program.sources[ins.source].opcode == "wmma";
    const SharedArray* array = nullptr;
    for (const uint32_t bit : LanesOf(at.mask)) {
        const uint32_t lane = at.warp * kWarp + bit;
        const int64_t address = at.addresses[bit];
        const int32_t thread = int32_t(warp_of_block * kWarp + bit);
        if (!watch_.arrays.empty()) {
            const auto holds = [&](int64_t byte) {
                return array && byte >= array->start && byte < int64_t(array->start) + array->size;
            };
            if (!holds(address)) array = array_at(address);
            if (!holds(address) || !holds(address + bytes - 1)) {
                const SharedArray* before = array;
                for (const SharedArray& each : watch_.arrays)
                    if (each.start <= address && (!before || each.start > before->start)) before = &each;
                if (!before) before = &watch_.arrays.front();
                report("outside-array", batch, ins, lane, -1, kNoLane, before->name, address - before->start, bytes);
                continue;
            }
        }
        const std::string memory = array ? array->name : "shared memory";
        bool reported = false;
        for (uint32_t k = 0; k < bytes; k++) {
            const size_t place = base + size_t(address) + k;
            Cell& cell = cells_[place];
            const auto find = [&](const char* finding, int64_t other, uint32_t other_lane) {
                if (!reported)
                    report(finding, batch, ins, lane, other, other_lane, memory,
                           address + k - (array ? array->start : 0), bytes);
                reported = true;
            };
            if (!write && !written_[place] && !whole_matrix) find("uninitialized-shared", -1, kNoLane);
            if (kind != AccessKind::kRead) written_[place] = true;
            if (cell.in_flight && !write) find("async-copy", cell.write_source, kNoLane);
            if (!plain && kind != AccessKind::kAtomic) continue;
            if (cell.epoch != epoch) {
                const Cell before = cell;
                cell = Cell{};
                cell.epoch = epoch;
                cell.in_flight = before.in_flight;
                cell.write_source = before.write_source;
            }
            const auto in_warp = [&](int32_t other) { return other / int32_t(kWarp) == int32_t(warp_of_block); };
            const auto apart = [&](int32_t other, uint32_t other_epoch) {  // no barrier is between the two accesses
                return other >= 0 && other != thread && (!in_warp(other) || other_epoch == warp_epoch);
            };
            const auto lane_of = [&](int32_t other) { return block * warps_per_block_ * kWarp + uint32_t(other); };
            const bool after_write = apart(cell.writer, cell.write_epoch);
            if (kind == AccessKind::kAtomic) {
                if (after_write) find("race-atomic", cell.write_source, lane_of(cell.writer));
                continue;
            }
            bool same = write && compare && batch.shared(block)[address + k] == stored_byte(batch, ins, lane, k);
            if (!reported && after_write) {
                if (write && cell.write_time == time_)
                    same = compare &&
                           stored_byte(batch, ins, lane_of(cell.writer), cell.byte) == stored_byte(batch, ins, lane, k);
                if (!same)
                    find(in_warp(cell.writer) ? "race-warp" : "race-shared", cell.write_source, lane_of(cell.writer));
            }
            if (write) {
                const bool many =
                    cell.reader >= 0 &&
                    (cell.many_warps || (cell.many_lanes && in_warp(cell.reader) && cell.read_epoch == warp_epoch));
                if (!same && (many || apart(cell.reader, cell.read_epoch)))
                    find(!cell.many_warps && in_warp(cell.reader) ? "race-warp" : "race-shared", cell.read_source,
                         cell.reader == thread ? kNoLane : lane_of(cell.reader));
                cell.writer = thread;
                cell.write_epoch = warp_epoch;
                cell.write_source = ins.source;
                cell.write_time = time_;
                cell.byte = uint8_t(k);
            } else {
                const bool other_warp = cell.reader >= 0 && !in_warp(cell.reader);
                cell.many_warps |= other_warp;
                if (cell.reader >= 0 && !other_warp) {
                    if (cell.read_epoch != warp_epoch) cell.many_lanes = false;
                    else cell.many_lanes |= cell.reader != thread;
                }
                cell.reader = thread;
                cell.read_epoch = warp_epoch;
                cell.read_source = ins.source;
            }
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
    const uint32_t lane_block = at.warp / warps_per_block_;
    const int32_t block = int32_t(block_numbers_[lane_block]) + 1;
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
        bool same = compare;
        for (uint32_t k = 0; same && k < bytes; k++)
            same = region.bytes[offset + k] == stored_byte(batch, ins, lane, k);
        for (int64_t place = offset / watch_.granule; place <= (offset + bytes - 1) / watch_.granule; place++) {
            Watch::Granule& touched = shadow.granules[place];
            const uint32_t reader = touched.read_lane & ~kSeveralLanes;
            const auto may_race = [&](uint32_t other, uint32_t time) {
                return other != lane && unordered(lane, other, time);
            };
            const bool own_write = touched.writer == block, own_read = touched.reader == block;
            if (kind == AccessKind::kAtomic) {
                if (touched.writer && (!own_write || may_race(touched.write_lane, touched.write_time)))
                    watch_.add({"race-atomic", ins.source, touched.write_source, batch.block_text(lane),
                                batch.thread_text(lane), "", own_write ? batch.thread_text(touched.write_lane) : "",
                                region.name, offset, bytes});
                continue;
            }
            const bool after_write = touched.writer && (!own_write || may_race(touched.write_lane, touched.write_time));
            bool after_read = write && touched.reader && !own_read;
            if (write && own_read)
                after_read = touched.read_lane == kSeveralWarps  ? touched.read_time > block_time_[lane_block]
                             : touched.read_lane & kSeveralLanes ? unordered(lane, reader, touched.read_time)
                                                                 : may_race(reader, touched.read_time);
            bool alike = false;  // another thread stores the same value concurrently
            if (compare && after_write && touched.write_time == time_) {
                alike = true;
                for (uint32_t k = 0; alike && k < bytes; k++)
                    alike = stored_byte(batch, ins, touched.write_lane, k) == stored_byte(batch, ins, lane, k);
            }
            if ((after_write || after_read) && !same && !alike) {
                const int32_t other = after_write ? touched.writer : touched.reader;
                const int64_t source = after_write ? touched.write_source : touched.read_source;
                const bool one_block = other == block;
                const bool one_lane = after_write || touched.read_lane < kSeveralLanes;
                watch_.add({one_block ? "race-block" : "race-global", ins.source, source, batch.block_text(lane),
                            batch.thread_text(lane),
                            other == kSeveral ? "" : position_text(other - 1, batch.launch.grid),
                            one_block && one_lane ? batch.thread_text(after_write ? touched.write_lane : reader) : "",
                            region.name, offset, bytes});
            }
            if (write && !same) {
                touched.writer = block;
                touched.write_source = ins.source;
                touched.write_lane = lane;
                touched.write_time = time_;
            } else if (!write) {
                uint32_t now = lane;
                if (own_read && touched.read_lane == kSeveralWarps && touched.read_time > block_time_[lane_block]) {
                    now = kSeveralWarps;
                } else if (own_read && touched.read_lane != kSeveralWarps &&
                           unordered(lane, reader, touched.read_time)) {
                    if (reader / kWarp != lane / kWarp) now = kSeveralWarps;
                    else if (touched.read_lane != lane) now = lane | kSeveralLanes;
                }
                const bool several = touched.reader && touched.reader != block;
                touched.reader = several ? kSeveral : block;
                touched.read_source = ins.source;
                touched.read_lane = now;
                touched.read_time = time_;
            }
        }
    }
}

void Checks::pass_warps(Batch& batch, const BasicBlock& block, uint32_t source) {
    for (uint32_t i = 0; i < batch.running; i++) {
        const uint32_t warp = batch.warps()[i];
        warp_epoch_[warp]++;
        warp_time_[warp] = time_;
        if (!block.mask || source != block.first) continue;
        const uint32_t* masks = batch.row<uint32_t>(block.mask) + warp * kWarp;
        Instruction unguarded;
        unguarded.source = block.first;
        for (const uint32_t lane : LanesOf(batch.mask(i, unguarded))) {
            if (!(masks[lane] >> lane & 1))
                report("mask", batch, unguarded, warp * kWarp + lane, -1, kNoLane, "", masks[lane], 0);
        }
    }
}

void Checks::open(const Batch& batch, uint32_t block, int32_t number, const std::vector<int32_t>& waiting_at,
                  const std::vector<int32_t>& resume) {
    for (uint32_t warp = block * warps_per_block_; warp < (block + 1) * warps_per_block_; warp++) {
        int32_t place = -1;
        for (uint32_t lane = warp * kWarp; lane < (warp + 1) * kWarp; lane++) {
            if (waiting_at[lane] != number) continue;
            if (place < 0) place = resume[lane];
            if (resume[lane] == place) continue;
            const auto source = [&](int32_t at) { return int64_t(batch.program.blocks[at - 1].end_source); };
            watch_.add({"barrier", source(resume[lane]), source(place), batch.block_text(lane), batch.thread_text(lane),
                        "", batch.thread_text(warp * kWarp), "", 0, 0});
            break;
        }
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
