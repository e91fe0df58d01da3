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
    for (const TensorMemory& memory : tensor.memories) memory.check_released();
    registers.check_granted(batch);
}

}  // namespace kernrec
