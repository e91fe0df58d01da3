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
      stride_(batch.launch.shared_bytes),
      warps_per_block_(batch.warps_per_block),
      cells_(watch_.shared_memory ? size_t(stride_) * batch.launch.blocks_per_batch : 0),
      written_(cells_.size()),
      block_epoch_(batch.launch.blocks_per_batch),
      warp_epoch_(batch.warp_count) {
    if (watch_.synchronizes.empty())
        for (const Source& source : batch.program.sources) {
            const auto has = [&](std::initializer_list<const char*> marks) {
                return std::any_of(marks.begin(), marks.end(), [&](const char* mark) { return source.has(mark); });
            };
            const auto named = [&](std::initializer_list<const char*> opcodes) {
                return std::any_of(opcodes.begin(), opcodes.end(),
                                   [&](const char* each) { return source.opcode == each; });
            };
            watch_.synchronizes.push_back(has({"volatile", "relaxed", "acquire", "release", "mmio"}));
            watch_.gathers.push_back(named({"shfl", "vote", "match", "redux", "mma", "wmma", "ldmatrix", "stmatrix",
                                            "movmatrix", "elect"}) ||
                                     (source.opcode == "bar" && source.has("warp")));
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
    std::fill(written_.begin(), written_.end(), false);
    for (uint32_t& epoch : block_epoch_) epoch++;
}

void Checks::record(Batch& batch, const Instruction& ins, const std::vector<Resolved>& all, uint32_t bytes,
                    AccessKind kind, bool whole_matrix) {
    execution_++;
    const bool plain = kind != AccessKind::kAtomic && !watch_.synchronizes[ins.source];
    for (const Resolved& at : all) {
        if (at.space == Space::kShared && watch_.shared_memory)
            shared(batch, ins, at, bytes, kind, plain, whole_matrix);
        if (at.space == Space::kGlobal) global(batch, ins, at, bytes, kind, plain);
    }
}

const SharedArray* Checks::array_at(int64_t address) const {
    for (const SharedArray& array : watch_.arrays)
        if (address >= array.start && address < int64_t(array.start) + array.size) return &array;
    return nullptr;
}

void Checks::shared(Batch& batch, const Instruction& ins, const Resolved& at, uint32_t bytes, AccessKind kind,
                    bool plain, bool whole_matrix) {
    const uint32_t block = at.warp / warps_per_block_, warp_of_block = at.warp % warps_per_block_;
    const size_t base = size_t(block) * stride_;
    const bool write = kind == AccessKind::kWrite, compare = can_compare(ins, bytes, kind);
    const uint32_t epoch = block_epoch_[block], warp_epoch = warp_epoch_[at.warp];
    const SharedArray* array = nullptr;
    for (uint32_t rest = at.mask; rest; rest &= rest - 1) {
        const uint32_t bit = __builtin_ctz(rest), lane = at.warp * kWarp + bit;
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
        const int64_t start = array ? array->start : 0;
        bool reported = false;
        for (uint32_t k = 0; k < bytes; k++) {
            const size_t place = base + size_t(address) + k;
            if (!write && !whole_matrix && !written_[place] && !reported) {
                report("uninitialized-shared", batch, ins, lane, -1, kNoLane, memory, address + k - start, bytes);
                reported = true;
            }
            if (kind != AccessKind::kRead) written_[place] = true;
            if (!plain) continue;
            Cell& cell = cells_[place];
            if (cell.epoch != epoch) {
                cell = Cell{};
                cell.epoch = epoch;
            }
            const auto apart = [&](int32_t other, uint32_t other_epoch) {  // nothing orders the two accesses
                if (other < 0 || other == thread) return false;
                return other / int32_t(kWarp) != int32_t(warp_of_block) || other_epoch == warp_epoch;
            };
            const auto lane_of = [&](int32_t other) { return block * warps_per_block_ * kWarp + uint32_t(other); };
            bool same = write && compare && batch.shared(block)[address + k] == stored_byte(batch, ins, lane, k);
            if (!reported && apart(cell.writer, cell.write_epoch)) {
                if (write && cell.execution == execution_)
                    same = compare &&
                           stored_byte(batch, ins, lane_of(cell.writer), cell.byte) == stored_byte(batch, ins, lane, k);
                if (!same) {
                    const bool inside = cell.writer / int32_t(kWarp) == int32_t(warp_of_block);
                    report(inside ? "race-warp" : "race-shared", batch, ins, lane, cell.write_source,
                           lane_of(cell.writer), memory, address + k - start, bytes);
                    reported = true;
                }
            }
            if (write) {
                const bool many =
                    cell.reader >= 0 &&
                    (cell.many_warps || (cell.many_lanes && cell.reader / int32_t(kWarp) == int32_t(warp_of_block) &&
                                         cell.read_epoch == warp_epoch));
                if (!reported && !same && (many || apart(cell.reader, cell.read_epoch))) {
                    const bool inside = !cell.many_warps && cell.reader / int32_t(kWarp) == int32_t(warp_of_block);
                    report(inside ? "race-warp" : "race-shared", batch, ins, lane, cell.read_source,
                           cell.reader == thread ? kNoLane : lane_of(cell.reader), memory, address + k - start, bytes);
                    reported = true;
                }
                cell.writer = thread;
                cell.write_epoch = warp_epoch;
                cell.write_source = ins.source;
                cell.execution = execution_;
                cell.byte = uint8_t(k);
            } else {
                const bool other_warp = cell.reader >= 0 && cell.reader / int32_t(kWarp) != int32_t(warp_of_block);
                cell.many_warps |= other_warp;
                if (cell.reader >= 0 && !other_warp && cell.read_epoch != warp_epoch) cell.many_lanes = false;
                cell.many_lanes |=
                    cell.reader >= 0 && !other_warp && cell.reader != thread && cell.read_epoch == warp_epoch;
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
    const int32_t block = int32_t(block_numbers_[at.warp / warps_per_block_]) + 1;
    for (uint32_t rest = at.mask; rest; rest &= rest - 1) {
        const uint32_t bit = __builtin_ctz(rest), lane = at.warp * kWarp + bit;
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
        if (!plain || !shadow.granules) continue;
        bool same = compare;
        for (uint32_t k = 0; same && k < bytes; k++)
            same = region.bytes[offset + k] == stored_byte(batch, ins, lane, k);
        for (int64_t place = offset / watch_.granule; place <= (offset + bytes - 1) / watch_.granule; place++) {
            Watch::Granule& touched = shadow.granules[place];
            const bool after_write = touched.writer && touched.writer != block;
            const bool after_read = write && touched.reader && touched.reader != block;
            bool alike = false;  // another block stores the same value concurrently
            if (compare && after_write && touched.execution == execution_) {
                alike = true;
                for (uint32_t k = 0; alike && k < bytes; k++)
                    alike = stored_byte(batch, ins, touched.lane, k) == stored_byte(batch, ins, lane, k);
            }
            if ((after_write || after_read) && !same && !alike) {
                const int32_t other = after_write ? touched.writer : touched.reader;
                const int64_t source = after_write ? touched.write_source : touched.read_source;
                Finding finding{
                    "race-global", ins.source, source, batch.block_text(lane), batch.thread_text(lane), "", "",
                    region.name,   offset,     bytes};
                const int64_t number = other - 1, x = batch.launch.grid[0], y = batch.launch.grid[1];
                finding.other_block = other == kSeveral
                                          ? ""
                                          : "(" + std::to_string(number % x) + ", " + std::to_string(number / x % y) +
                                                ", " + std::to_string(number / (x * y)) + ")";
                watch_.add(std::move(finding));
            }
            if (write && !same) {
                touched.writer = block;
                touched.write_source = ins.source;
                touched.lane = lane;
                touched.execution = execution_;
            } else if (!write) {
                const bool several = touched.reader && touched.reader != block;
                touched.reader = several ? kSeveral : block;
                touched.read_source = ins.source;
            }
        }
    }
}

void Checks::pass_warps(Batch& batch, const BasicBlock& block, uint32_t source) {
    for (uint32_t i = 0; i < batch.running; i++) {
        const uint32_t warp = batch.warps()[i];
        warp_epoch_[warp]++;
        if (!block.mask || source != block.first) continue;
        const uint32_t* masks = batch.row<uint32_t>(block.mask) + warp * kWarp;
        Instruction every;  // without a guard
        every.source = block.first;
        for (uint32_t rest = batch.mask(i, every); rest; rest &= rest - 1) {
            const uint32_t lane = __builtin_ctz(rest);
            if (!(masks[lane] >> lane & 1))
                report("mask", batch, every, warp * kWarp + lane, -1, kNoLane, "", masks[lane], 0);
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
