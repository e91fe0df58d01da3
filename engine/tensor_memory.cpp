// Tensor memory and tcgen05 instructions in flight: see the header.
#include "tensor_memory.h"

#include <algorithm>
#include <set>

#include "pending.h"
#include "text.h"

namespace kernrec {
namespace {

constexpr uint32_t kFewestColumns = 32;          // smallest allocation
constexpr uint32_t kUninitialized = 0xFFFFFFFF;  // value of an unwritten cell

const char* const kWhyNot[] = {
    "the kernel did not wait for a tcgen05.st to them (tcgen05.wait::st)",
    "the kernel did not wait for a tcgen05.ld of them (tcgen05.wait::ld)",
    "a tcgen05.mma or tcgen05.cp still writes them; the barrier of a tcgen05.commit must complete first",
    "a tcgen05.mma still reads them; the barrier of a tcgen05.commit must complete first",
};

std::string columns_text(const Cells& cells) {
    const auto [first, last] =
        std::minmax_element(cells.begin(), cells.end(), [](Cell a, Cell b) { return a.column < b.column; });
    return joined("columns ", first->column, " to ", last->column, " of tensor memory");
}

}  // namespace

uint32_t TensorMemory::allocate(uint32_t columns) {
    if (columns < kFewestColumns || columns > kTensorColumns || (columns & (columns - 1)))
        batch_->fail(joined(columns, " columns, where a power of two from ", kFewestColumns, " to 512 is expected"));
    if (closed_) batch_->fail("the block gave up allocating (tcgen05.relinquish_alloc_permit)");
    if (cells_.empty()) {
        cells_.assign(kTensorLanes * kTensorColumns, kUninitialized);
        for (auto& use : under_way_) use.assign(cells_.size(), 0);
    }
    uint32_t taken = 0;
    for (const Allocation& other : allocations_) taken += other.columns;
    for (uint32_t first = 0; first < kTensorColumns; first += columns) {
        const bool free = std::all_of(allocations_.begin(), allocations_.end(), [&](const Allocation& other) {
            return first + columns <= other.first || other.first + other.columns <= first;
        });
        if (!free) continue;
        allocations_.push_back({first, columns, batch_->source});
        return first;
    }
    batch_->fail(joined("deadlock: ", columns, " more columns of tensor memory are requested, but ", taken,
                        " of 512 are taken"));
}

void TensorMemory::release(uint32_t address, uint32_t columns) {
    const auto owned = std::find_if(allocations_.begin(), allocations_.end(),
                                    [&](const Allocation& allocation) { return allocation.first == address; });
    if (owned == allocations_.end() || owned->columns != columns) {
        const std::string had = owned == allocations_.end() ? "none" : joined(owned->columns, " columns");
        batch_->fail(joined(columns, " columns at ", hex(address, 8), ", where ", had, " were allocated"));
    }
    Cells cells;
    for (uint32_t lane = 0; lane < kTensorLanes; ++lane)
        for (uint32_t column = address; column < address + columns; ++column) cells.push_back({lane, column});
    check(cells, {TensorUse::kStored, TensorUse::kLoaded, TensorUse::kComputed, TensorUse::kRead});
    allocations_.erase(owned);
}

void TensorMemory::check_released() const {
    if (allocations_.empty()) return;
    const Allocation& left = allocations_.front();
    throw Fault(FaultKind::kEmulation, left.source,
                joined(left.columns, " columns of tensor memory from ", left.first,
                       " on were not released when the kernel ended"));
}

void TensorMemory::check(const Cells& cells, const std::vector<TensorUse>& hindrances) const {
    const auto by_lane = [](Cell a, Cell b) { return a.lane < b.lane; };
    const uint32_t highest = std::max_element(cells.begin(), cells.end(), by_lane)->lane;
    if (highest >= kTensorLanes) batch_->fail(joined("lane ", highest, " of tensor memory, which has ", kTensorLanes));
    for (const Cell cell : cells)
        if (std::none_of(allocations_.begin(), allocations_.end(), [&](const Allocation& allocation) {
                return cell.column >= allocation.first && cell.column < allocation.first + allocation.columns;
            }))
            batch_->fail(columns_text(cells) + " are not all allocated");
    for (const TensorUse use : hindrances)
        for (const Cell cell : cells)
            if (under_way_[size_t(use)][index(cell)]) batch_->fail(columns_text(cells) + ": " + kWhyNot[size_t(use)]);
}

void TensorMemory::begin(TensorUse use, const Cells& cells) {
    using Use = TensorUse;
    static const std::vector<Use> kHindrances[] = {{Use::kLoaded, Use::kComputed, Use::kRead},
                                                   {Use::kStored, Use::kComputed},
                                                   {Use::kStored, Use::kLoaded},
                                                   {Use::kStored}};
    check(cells, kHindrances[size_t(use)]);
    for (const Cell cell : cells) under_way_[size_t(use)][index(cell)]++;
}

void TensorMemory::finish(TensorUse use, const Cells& cells) {
    for (const Cell cell : cells) under_way_[size_t(use)][index(cell)]--;
}

// --- Instructions in flight ---

void TensorOperations::start_batch() {
    memories.assign(batch_.launch.blocks_per_batch, TensorMemory(batch_));
    issued_.clear();
    moves_.clear();
    checks_fences_ = batch_.launch.check_races && batch_.program.has_tensor_fences;
    used_.clear();
    before_.assign(batch_.warp_count, 0);
    after_.assign(batch_.warp_count, 0);
    now_ = 0;
}

void TensorOperations::check_fences(const CellUse& use) const {
    std::set<size_t> parts;
    for (const Cell cell : use.cells) parts.insert(part_of(cell));
    constexpr const char* kDid[] = {"stored", "loaded", "computed"};
    for (const TensorUse kind : {TensorUse::kLoaded, TensorUse::kStored, TensorUse::kComputed}) {
        if (kind == TensorUse::kLoaded && (use.kind == TensorUse::kLoaded || use.kind == TensorUse::kRead)) continue;
        for (const bool before : {true, false})
            for (const auto& [user, times] : used_) {
                const auto [did, block, warp] = user;
                if (did != kind || block != use.block || warp == use.warp) continue;
                int64_t last = 0;
                for (const size_t part : parts) last = std::max(last, times[part]);
                const int64_t fenced = !before ? after_[use.warp] : kind == TensorUse::kComputed ? now_ : before_[warp];
                if (last > fenced)
                    batch_.fail(joined("race: ", columns_text(use.cells), ", which warp ",
                                       warp % batch_.warps_per_block, " ", kDid[size_t(kind)],
                                       " with no tcgen05.fence::", before ? "before" : "after", "_thread_sync since"));
            }
    }
}

void TensorOperations::begin(const CellUse& use) {
    memories[use.block].begin(use.kind, use.cells);
    if (checks_fences_) check_fences(use);
}

void TensorOperations::finish(const CellUse& use) {
    memories[use.block].finish(use.kind, use.cells);
    if (!checks_fences_) return;
    auto& times = used_[{use.kind == TensorUse::kRead ? TensorUse::kComputed : use.kind, use.block, use.warp}];
    for (const Cell cell : use.cells) times[part_of(cell)] = now_;
}

void TensorOperations::issue(uint32_t lane, const TensorOperation& operation) {
    std::optional<AsyncRead> read;
    if (RaceDetector* races = batch_.races()) read = races->begin_read(batch_.source, operation.pieces, {lane / kWarp});
    for (const CellUse& use : operation.uses)
        if (use.kind == TensorUse::kComputed) begin(use);
    issued_[lane].push_back({operation, std::move(read)});
}

void TensorOperations::commit(uint32_t lane, std::vector<SharedPlace> places) {
    RaceDetector* races = batch_.races();
    const Knowledge snapshot = races ? races->clocks.snapshot(lane / kWarp) : Knowledge();
    batch_.work().start(
        [this, lane, places, issued = std::exchange(issued_[lane], {}), snapshot, races] {
            for (const Issued& entry : issued) {
                tick();
                for (const CellUse& use : entry.operation.uses) finish(use);
                if (entry.read) races->end_read(*entry.read, &snapshot);
            }
            for (const SharedPlace place : places)
                if (races) races->clocks.arrive(snapshot, batch_.flat(place));
            for (const SharedPlace place : places) batch_.work().mbarriers.arrive({lane, place}, 1);
        },
        {});
}

void TensorOperations::move(const CellUse& use) {
    begin(use);
    moves_[{use.warp, use.kind}].push_back(use);
}

void TensorOperations::wait(uint32_t warp, TensorUse kind) {
    tick();
    for (const CellUse& use : moves_[{warp, kind}]) finish(use);
    moves_.erase({warp, kind});
}

}  // namespace kernrec
