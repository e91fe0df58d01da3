#include "pending.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "text.h"

namespace kernrec {

// --- mbarrier ---

namespace {

constexpr int64_t kMostArrivals = (1 << 20) - 1;  // maximum number of arrivals per phase, and of pending bytes

}  // namespace

template <class... Parts>
void Mbarriers::fail(const LanePlace& use, const Parts&... parts) const {
    batch_.fail_lane(use.lane, joined("uses the barrier at ", batch_.place_name(use.place), ", ", parts...));
}

BarrierPhase Mbarriers::load(SharedPlace place) const {
    BarrierPhase phase;
    std::memcpy(&phase, batch_.bytes_at(place), sizeof phase);
    return phase;
}

void Mbarriers::store(SharedPlace place, BarrierPhase phase) {
    std::memcpy(batch_.bytes_at(place), &phase, sizeof phase);
}

BarrierPhase Mbarriers::phase(const LanePlace& use) const {
    const BarrierPhase phase = load(use.place);
    if (phase.is_valid != 1) fail(use, "which holds no initialized barrier");
    return phase;
}

void Mbarriers::initialize(const LanePlace& use, int64_t count) {
    if (initialized_.count(use.place.key()) && load(use.place).is_valid == 1)
        fail(use, "which is initialized already, with no mbarrier.inval since");
    initialized_.insert(use.place.key());
    if (count < 1 || count > kMostArrivals)
        fail(use, "which it initializes with ", count, " arrivals; expected 1 to ", kMostArrivals);
    store(use.place, {uint64_t(count), uint64_t(count), 0, 0, 1});
}

void Mbarriers::invalidate(const LanePlace& use) {
    phase(use);
    initialized_.erase(use.place.key());
    store(use.place, {});
}

void Mbarriers::expect(const LanePlace& use, int64_t bytes) {
    BarrierPhase state = phase(use);
    const int64_t left = state.bytes + bytes;
    if (left < -kMostArrivals || left > kMostArrivals)
        fail(use, "whose transaction count would be ", left, ", beyond ", kMostArrivals, " bytes");
    state.bytes = left;
    settle(use.place, state);
}

uint64_t Mbarriers::arrive(const LanePlace& use, int64_t count, bool drops, bool completes) {
    const BarrierPhase before = phase(use);
    BarrierPhase state = before;
    if (count < 1 || count > int64_t(before.pending))
        fail(use, "whose phase still expects ", int64_t(before.pending), " arrivals, but ", count, " came");
    if (!completes && count == int64_t(before.pending) && !before.bytes)
        fail(use, "whose phase an arrival with .noComplete would complete");
    if (drops && int64_t(before.expected) < count)
        fail(use, "that expects ", int64_t(before.expected), " arrivals, of which ", count, " would be dropped");
    if (drops) state.expected -= uint64_t(count);
    state.pending -= uint64_t(count);
    settle(use.place, state);
    return bit_cast<uint64_t>(before);
}

void Mbarriers::await_more(const LanePlace& use, int64_t count) {
    BarrierPhase state = phase(use);
    const int64_t pending = int64_t(state.pending) + count;
    if (pending > kMostArrivals) fail(use, "whose pending arrivals would be ", pending);
    state.pending = uint64_t(pending);
    store(use.place, state);
}

void Mbarriers::settle(SharedPlace place, BarrierPhase state) {
    if (state.pending || state.bytes) return store(place, state);
    ++completed_;
    if (RaceDetector* races = batch_.races()) races->clocks.complete(batch_.flat(place));
    store(place, {state.expected, state.expected, 0, state.parity ^ 1u, 1});
}

std::vector<LanePlace> barriers_of(Batch& batch, const Instruction& access, bool changes) {
    const std::vector<LanePlace> places = batch.shared_places(access, 8);
    if (RaceDetector* races = batch.races()) races->use_barriers(access.source, places, changes);
    return places;
}

// --- Bulk copies ---

std::vector<uint8_t> CopySide::read() const {
    std::vector<uint8_t> data;
    for (const auto& [offset, bytes, inside] : runs) {
        if (inside) data.insert(data.end(), start + offset, start + offset + bytes);
        for (uint32_t i = 0; i < bytes && !inside; i++) data.push_back(uint8_t(fill >> 8 * (i % element_bytes)));
    }
    return data;
}

void CopySide::write(const std::vector<uint8_t>& data, Reduction reduction, NumberType type) const {
    const uint8_t* values = data.data();
    for (const auto& [offset, bytes, inside] : runs) {
        uint8_t* const to = start + offset;
        if (inside && reduction == Reduction::kNone) std::memcpy(to, values, bytes);
        for (uint32_t i = 0; i < bytes && inside && reduction != Reduction::kNone; i += element_bytes) {
            uint64_t old = 0, value = 0;
            std::memcpy(&old, to + i, element_bytes);
            std::memcpy(&value, values + i, element_bytes);
            const uint64_t result = reduce(reduction, type, old, value);
            std::memcpy(to + i, &result, element_bytes);
        }
        values += bytes;
    }
}

void CopySide::count(Batch& batch, uint32_t lane, AccessKind kind) const {
    std::vector<Batch::Moved> moved;
    uint64_t total = 0;
    for (const auto& [offset, bytes, inside] : runs) {
        if (!inside) continue;
        moved.push_back({address + uint64_t(offset), bytes});
        total += bytes;
    }
    is_shared ? batch.count_bulk_shared(total, kind) : batch.count_bulk(moved, lane, kind);
}

// --- Asynchronous operations ---

void Pending::start_batch() {
    mbarriers.start_batch();
    groups_.clear();
    maps.clear();
    registers.assign(batch.warp_count, batch.launch.registers);
    raised.clear();
    warpgroups.clear();
    tensor.start_batch();
    under_way_.clear();
}

void Pending::start(std::function<void()> finish, const std::vector<LanePlace>& barriers,
                    std::shared_ptr<const BulkCopy> copy) {
    under_way_.push_back({batch.source, std::move(finish), barriers, std::move(copy)});
}

bool Pending::finish_one(const std::set<SharedPlace>& awaited) {
    if (under_way_.empty()) return false;
    auto next = std::find_if(under_way_.begin(), under_way_.end(), [&](const Operation& operation) {
        return std::any_of(operation.barriers.begin(), operation.barriers.end(),
                           [&](const LanePlace& use) { return awaited.count(use.place) != 0; });
    });
    if (next == under_way_.end()) next = under_way_.begin();
    const Operation operation = std::move(*next);
    under_way_.erase(next);
    const uint32_t before = batch.source;
    batch.source = operation.source;  // for error messages
    operation.finish();
    batch.source = before;
    return true;
}

void Pending::start(const std::vector<std::shared_ptr<BulkCopy>>& copies) {
    std::vector<LanePlace> barriers;
    std::shared_ptr<const BulkCopy> unfetched;
    for (const auto& copy : copies) {
        begin(*copy);
        if (copy->barriers.empty()) groups_[copy->lane].copies.push_back({groups_[copy->lane].committed, copy});
        else if (!copy->fetched && !unfetched) unfetched = copy;
        barriers.insert(barriers.end(), copy->barriers.begin(), copy->barriers.end());
    }
    const auto finish_all = [this, copies] {
        for (const auto& copy : copies) finish(*copy);
    };
    if (!barriers.empty()) start(finish_all, barriers, unfetched);
}

void Pending::begin(BulkCopy& copy) {
    copy.site = batch.source;
    RaceDetector* races = batch.races();
    if (!races) return;
    const uint32_t warp = copy.lane / kWarp;
    if (copy.source.is_shared) {
        const Pieces pieces = RaceDetector::pieces_of(copy.source.span);
        copy.read = races->begin_read(copy.site, pieces, {warp});
    }
    for (size_t i = 0; i < copy.barriers.size() && copy.reduction == Reduction::kNone; i++)
        races->begin_write(copy.site, warp, copy.targets[i].span, batch.flat(copy.barriers[i].place));
}

void Pending::fetch(BulkCopy& copy) {
    if (copy.fetched) return;
    copy.data = copy.source.read();
    copy.fetched = true;
    if (copy.read) batch.races()->end_read(*copy.read);
}

void Pending::finish(BulkCopy& copy) {
    fetch(copy);
    for (const CopySide& target : copy.targets) target.write(copy.data, copy.reduction, copy.type);
    if (RaceDetector* races = batch.races(); races && copy.reduction == Reduction::kNone)
        for (size_t i = 0; i < copy.barriers.size(); i++)
            races->end_write(copy.targets[i].span, batch.flat(copy.barriers[i].place));
    for (const LanePlace& use : copy.barriers) mbarriers.expect(use, -int64_t(copy.bytes));
}

void Pending::wait_for_groups(uint32_t thread, size_t allowed, bool only_read) {
    Groups& groups = groups_[thread];
    for (const auto& [group, copy] : groups.copies)
        if (groups.committed - group > allowed) only_read ? fetch(*copy) : finish(*copy);
    while (!only_read && !groups.copies.empty() && groups.committed - groups.copies.front().first > allowed)
        groups.copies.pop_front();
}

// Throw Fault if the warps of a block requested more registers than the block had at launch.
void Pending::check_registers() const {
    const uint32_t there = batch.launch.registers * batch.warps_per_block;
    for (const auto& [warp, source] : raised) {
        const auto first = registers.begin() + warp / batch.warps_per_block * batch.warps_per_block;
        const uint32_t wanted = std::accumulate(first, first + batch.warps_per_block, 0u);
        if (there && wanted > there)
            throw Fault(FaultKind::kEmulation, source,
                        joined("deadlock: the warps of a block ask for ", wanted * kWarp,
                               " registers in total, but the block has only ", there * kWarp));
    }
}

void Pending::end_batch() {
    if (batch.races()) {
        const BulkCopy* copy = nullptr;
        for (const auto& [thread, groups] : groups_)
            for (const auto& [group, other] : groups.copies)
                if (!copy && !other->fetched && other->source.is_shared) copy = other.get();
        for (auto operation = under_way_.rbegin(); operation != under_way_.rend(); ++operation)
            if (operation->copy) copy = operation->copy.get();
        if (copy) {
            batch.source = copy->site;
            batch.fail("block " + batch.block_text(copy->lane) + " ended before the copy of thread " +
                       batch.thread_text(copy->lane) + " was waited for");
        }
    }
    while (finish_one()) {
    }
    for (const auto& [thread, groups] : groups_)
        for (const auto& [group, copy] : groups.copies) finish(*copy);
    for (const TensorMemory& memory : tensor.memories) memory.check_released();
    check_registers();
}

}  // namespace kernrec
