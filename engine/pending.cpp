#include "pending.h"

#include <algorithm>
#include <stdexcept>

namespace kernrec {

std::vector<LanePlace> barriers_of(Batch& batch, const Instruction& access, bool changes) {
    const std::vector<LanePlace> places = batch.shared_places(access, 8);
    if (PhaseRaces* races = batch.phase_races(); races && !places.empty()) {
        std::vector<PhaseRaces::BarrierUse> uses;
        for (const LanePlace& use : places) uses.push_back({use.warp(), batch.flat(use.place)});
        changes ? races->initialize(access.source, uses) : races->use(access.source, uses);
    }
    return places;
}

// --- Registers ---

void RegisterPool::move(Batch& batch, uint32_t warp, uint32_t registers, bool grows) {
    if (registers % 8 || registers < 24 || registers > 256)
        batch.fail(std::to_string(registers) + " registers, where a multiple of 8 from 24 to 256 is expected");
    const auto entry = held_.find(warp);
    const uint32_t held = entry == held_.end() ? batch.launch.registers : entry->second;
    if (held && (grows ? held > registers : held < registers))
        batch.fail(std::to_string(registers) + " registers are " + (grows ? "fewer" : "more") + " than the " +
                   std::to_string(held) + " that each thread has");
    held_[warp] = registers;
    if (grows) raised_[warp] = batch.source;
}

void RegisterPool::check_granted(const Batch& batch) const {
    if (!batch.launch.registers) return;
    const uint32_t there = batch.launch.registers * batch.warps_per_block;
    for (const auto& [warp, source] : raised_) {
        const uint32_t first = warp / batch.warps_per_block * batch.warps_per_block;
        uint32_t wanted = 0;
        for (uint32_t other = first; other < first + batch.warps_per_block; other++) {
            const auto entry = held_.find(other);
            wanted += entry == held_.end() ? batch.launch.registers : entry->second;
        }
        if (wanted > there)
            throw Fault(FaultKind::kEmulation, source,
                        "deadlock: the warps of a block ask for " + std::to_string(wanted * kWarp) +
                            " registers in total, but the block has only " + std::to_string(there * kWarp));
    }
}

// --- Warpgroups ---

namespace {

bool overlap(const std::vector<uint32_t>& a, const std::vector<uint32_t>& b) {
    for (size_t i = 0, j = 0; i < a.size() && j < b.size();) {
        if (a[i] == b[j]) return true;
        a[i] < b[j] ? i++ : j++;
    }
    return false;
}

bool has(const std::vector<uint32_t>& sorted, uint32_t number) {
    return std::binary_search(sorted.begin(), sorted.end(), number);
}

}  // namespace

void WarpgroupOperations::start_batch(Batch& batch) {
    const uint32_t per_block = (batch.warps_per_block + 3) / 4;
    groups_.assign(size_t(per_block) * batch.launch.blocks_per_batch, Group());
}

void WarpgroupOperations::touch(uint32_t number, const std::vector<Row>& rows, const std::vector<uint32_t>& sources) {
    Group& group = groups_[number];
    for (const InFlight& entry : group.in_flight) {
        uint32_t first = ~0u;
        for (size_t i = 0; i < rows.size(); i++)
            if (sources[i] < first &&
                (has(entry.form->accumulator_rows, rows[i].index) || has(entry.form->input_rows, rows[i].index)))
                first = sources[i];
        if (first != ~0u)
            throw Fault(
                FaultKind::kEmulation, first,
                "accesses a register that " + named(entry.source) + " still uses; a wgmma.wait_group must come first");
    }
    group.any_touched = true;
    for (const Row& row : rows) {
        if (group.touched.size() <= row.index) group.touched.resize(row.index + 1);
        group.touched[row.index] = true;
    }
}

void WarpgroupOperations::fence(uint32_t number) {
    Group& group = groups_[number];
    group.fenced = true;
    if (group.any_touched) std::fill(group.touched.begin(), group.touched.end(), false);
    group.any_touched = false;
}

void WarpgroupOperations::start(Batch& batch, uint32_t number, const WgmmaForm& form,
                                const std::vector<size_t>& places) {
    Group& group = groups_[number];
    if (!group.fenced) batch.fail("the kernel executed no wgmma.fence before this");
    if (group.any_touched)
        for (const std::vector<uint32_t>* rows : {&form.accumulator_rows, &form.input_rows})
            for (const uint32_t row : *rows)
                if (row < group.touched.size() && group.touched[row])
                    batch.fail("the kernel executed no wgmma.fence after the last access to its registers");
    for (const InFlight& other : group.in_flight) {
        const WgmmaForm& before = *other.form;
        const bool sums = &before == &form || overlap(form.accumulator_rows, before.accumulator_rows);
        if ((sums && form.name != before.name) || overlap(form.input_rows, before.accumulator_rows) ||
            overlap(form.accumulator_rows, before.input_rows))
            batch.fail("uses registers that " + named(other.source) +
                       " still uses; a wgmma.wait_group must come first");
    }
    std::optional<TileRead> read;
    if (RaceDetector* races = batch.race_detector()) {
        const uint32_t groups = (batch.warps_per_block + 3) / 4;
        const uint32_t first = number / groups * batch.warps_per_block + number % groups * 4;
        read = races->begin_tile(batch.source, places, {first, first + 1, first + 2, first + 3});
    }
    group.in_flight.push_back({batch.source, &form, group.committed, std::move(read)});
}

void WarpgroupOperations::wait(Batch& batch, uint32_t number, int64_t allowed) {
    Group& group = groups_[number];
    std::vector<InFlight> left;
    for (InFlight& entry : group.in_flight) {
        if (entry.group >= group.committed - allowed) left.push_back(std::move(entry));
        else if (entry.read) batch.race_detector()->end_tile(*entry.read, nullptr);
    }
    group.in_flight = std::move(left);
}

// --- Tensor memory ---

void TensorFences::start_batch(Batch& batch) {
    const bool watch = batch.races() && batch.program.has_tensor_fences;
    const size_t of_cluster = size_t(batch.warps_per_block) * batch.cluster_blocks();
    used_.assign(watch ? 3 * batch.launch.blocks_per_batch * of_cluster * 4 * kTensorColumns : 0, 0);
    before_.assign(batch.warp_count, 0);
    after_.assign(batch.warp_count, 0);
    now_ = 0;
}

namespace {

size_t kind_of(TensorUse use) { return use == TensorUse::kLoaded ? 0 : use == TensorUse::kStored ? 1 : 2; }

}  // namespace

size_t TensorFences::index(Batch& batch, size_t kind, uint32_t block, uint32_t warp_of_cluster,
                           uint32_t quarter) const {
    const size_t of_cluster = size_t(batch.warps_per_block) * batch.cluster_blocks();
    return (((kind * batch.launch.blocks_per_batch + block) * of_cluster + warp_of_cluster) * 4 + quarter) *
           kTensorColumns;
}

void TensorFences::note(Batch& batch, uint32_t warp, TensorUse use, uint32_t block, const Cells& cells) {
    if (used_.empty()) return;
    const uint32_t of_cluster = batch.warps_per_block * batch.cluster_blocks();
    for (const Cell cell : cells)
        used_[index(batch, kind_of(use), block, warp % of_cluster, cell.lane / 32) + cell.column] = now_;
}

void TensorFences::check(Batch& batch, uint32_t warp, std::initializer_list<TensorUse> uses, uint32_t block,
                         const Cells& cells) {
    if (used_.empty() || cells.empty()) return;
    const uint32_t of_cluster = batch.warps_per_block * batch.cluster_blocks(), first = warp / of_cluster * of_cluster;
    bool quarters[4] = {};
    std::vector<bool> columns(kTensorColumns);
    uint32_t low = kTensorColumns, high = 0;
    for (const Cell cell : cells) {
        if (cell.column >= kTensorColumns) continue;
        quarters[cell.lane / 32 % 4] = true;
        columns[cell.column] = true;
        low = std::min(low, cell.column);
        high = std::max(high, cell.column);
    }
    constexpr const char* kDid[] = {"loaded", "stored", "computed"};
    for (const TensorUse use : uses) {
        std::vector<int64_t> last(of_cluster);
        for (uint32_t other = 0; other < of_cluster; other++) {
            if (other == warp % of_cluster) continue;
            for (uint32_t quarter = 0; quarter < 4; quarter++)
                for (uint32_t column = low; quarters[quarter] && column <= high; column++)
                    if (columns[column])
                        last[other] =
                            std::max(last[other], used_[index(batch, kind_of(use), block, other, quarter) + column]);
        }
        for (const bool before : {true, false})
            for (uint32_t other = 0; other < of_cluster; other++) {
                const int64_t fenced = !before                       ? after_[warp]
                                       : use == TensorUse::kComputed ? now_
                                                                     : before_[first + other];
                if (last[other] > fenced)
                    batch.fail("race: columns " + std::to_string(low) + " to " + std::to_string(high) +
                               " of tensor memory, which warp " + std::to_string(other % batch.warps_per_block) + " " +
                               kDid[kind_of(use)] + " with no tcgen05.fence::" + (before ? "before" : "after") +
                               "_thread_sync since");
            }
    }
}

void TensorOperations::start_batch(Batch& batch) {
    memories.assign(batch.launch.blocks_per_batch, TensorMemory());
    fences.start_batch(batch);
    issued_.clear();
    loads_.clear();
    stores_.clear();
}

void TensorOperations::issue(Batch& batch, uint32_t lane, const TensorOperation& operation) {
    std::optional<TileRead> read;
    if (RaceDetector* races = batch.race_detector()) {
        std::vector<size_t> places;
        for (size_t i = 0; i < operation.blocks.size(); i++)
            for (const uint32_t byte : operation.shared_bytes[i])
                places.push_back(batch.flat({operation.blocks[i], byte}));
        read = races->begin_tile(batch.source, places, {lane / kWarp});
    }
    for (const auto& [block, cells] : operation.read) memories[block].begin_read(cells);
    for (const auto& [block, cells] : operation.written) memories[block].begin_write(cells);
    using Use = TensorUse;
    for (const auto& [block, cells] : operation.read)
        fences.check(batch, lane / kWarp, {Use::kStored, Use::kComputed}, block, cells);
    for (const auto& [block, cells] : operation.written)
        fences.check(batch, lane / kWarp, {Use::kLoaded, Use::kStored, Use::kComputed}, block, cells);
    issued_[lane].push_back({operation, std::move(read)});
}

void TensorOperations::commit(Batch& batch, uint32_t lane, std::vector<SharedPlace> places) {
    auto issued = std::make_shared<std::vector<Issued>>(std::move(issued_[lane]));
    issued_.erase(lane);
    PhaseRaces* phases = batch.phase_races();
    auto snapshot = std::make_shared<Knowledge>(phases ? phases->clocks.snapshot(lane / kWarp) : Knowledge());
    const uint32_t source = batch.source;
    batch.work().engine.start(
        [this, &batch, lane, places, issued, snapshot, phases, source] {
            const AsInstruction as(batch, source);
            for (const Issued& entry : *issued) {
                const TensorOperation& operation = entry.operation;
                fences.tick();
                for (const auto* parts : {&operation.read, &operation.written})
                    for (const auto& [block, cells] : *parts) {
                        memories[block].finish(parts == &operation.read ? TensorUse::kRead : TensorUse::kComputed,
                                               cells);
                        fences.note(batch, lane / kWarp, TensorUse::kComputed, block, cells);
                    }
                if (entry.read) batch.race_detector()->end_tile(*entry.read, phases ? snapshot.get() : nullptr);
            }
            std::vector<LanePlace> barriers;
            for (const SharedPlace place : places) {
                if (phases) phases->clocks.arrive(*snapshot, batch.flat(place));
                barriers.push_back({lane, place});
            }
            each_barrier(batch, barriers,
                         [&](uint32_t, SharedPlace place) { batch.work().mbarriers.arrive(place, 1); });
        },
        {});
}

void TensorOperations::wait(Batch& batch, uint32_t warp, TensorUse use) {
    auto& all = use == TensorUse::kLoaded ? loads_ : stores_;
    const std::vector<Cells> done = std::move(all[warp]);
    all.erase(warp);
    const uint32_t block = batch.block_of(warp);
    for (const Cells& cells : done) memories[block].finish(use, cells);
    fences.tick();
    for (const Cells& cells : done) fences.note(batch, warp, use, block, cells);
}

// --- All of it ---

Pending::Pending(Batch& batch)
    : batch(batch),
      mbarriers([&batch](SharedPlace place) { return batch.bytes_at(place); },
                [&batch](SharedPlace place) {
                    if (PhaseRaces* races = batch.phase_races()) races->clocks.complete(batch.flat(place));
                }) {}

void Pending::start_batch() {
    mbarriers.start_batch();
    engine.clear();
    bulk.clear();
    maps.clear();
    registers.start_batch();
    warpgroups.start_batch(batch);
    tensor.start_batch(batch);
    under_way_.clear();
}

void Pending::begin(BulkCopy& copy) {
    PhaseRaces* races = batch.phase_races();
    if (!races) return;
    const uint32_t warp = copy.lane / kWarp;
    if (copy.source_span) {
        const Span span{copy.source_span->first, copy.source_span->second};
        copy.reading = races->begin_read(copy.site, warp, span);
        copy.on_fetch = [races, warp, span, pieces = copy.reading] { races->end_read(warp, span, pieces); };
    }
    if (copy.reduction == Reduction::kNone)
        for (size_t i = 0; i < copy.barriers.size(); i++)
            races->begin_write(copy.site, warp, {copy.target_spans[i].first, copy.target_spans[i].second},
                               batch.flat(copy.barriers[i]));
}

void Pending::start_copy(BulkCopy copy) {
    begin(copy);
    const auto lane = copy.lane;
    bulk.start(lane, std::move(copy));
}

void Pending::start_tracked(std::shared_ptr<BulkCopy> copy) {
    begin(*copy);
    under_way_.push_back(std::move(copy));
}

void Pending::finish_tracked(BulkCopy& copy) {
    copy.store();
    if (PhaseRaces* races = batch.phase_races(); races && copy.reduction == Reduction::kNone)
        for (size_t i = 0; i < copy.barriers.size(); i++)
            races->end_write({copy.target_spans[i].first, copy.target_spans[i].second}, batch.flat(copy.barriers[i]));
    under_way_.remove_if([&](const std::shared_ptr<BulkCopy>& other) { return other.get() == &copy; });
}

void Pending::end_batch() {
    if (batch.races()) {
        const BulkCopy* copy = under_way_.empty() ? bulk.unfinished() : under_way_.front().get();
        if (copy) {
            batch.source = copy->site;
            batch.fail("block " + batch.block_text(copy->lane) + " ended before the copy of thread " +
                       batch.thread_text(copy->lane) + " was waited for");
        }
    }
    while (engine.finish_one()) {
    }
    bulk.finish_all();
    for (const TensorMemory& memory : tensor.memories)
        if (const auto left = memory.unreleased()) throw Fault(FaultKind::kEmulation, left->first, left->second);
    registers.check_granted(batch);
}

}  // namespace kernrec
