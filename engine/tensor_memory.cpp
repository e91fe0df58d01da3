// Tensor memory and tcgen05 instructions in flight: see the header.
#include "tensor_memory.h"

#include <algorithm>

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
    if (cells.empty()) return;
    uint32_t highest_lane = 0, first = cells[0].column, last = first;
    for (const Cell cell : cells) {
        highest_lane = std::max(highest_lane, cell.lane);
        first = std::min(first, cell.column);
        last = std::max(last, cell.column);
    }
    if (highest_lane >= kTensorLanes)
        batch_->fail(joined("lane ", highest_lane, " of tensor memory, which has ", kTensorLanes));
    std::array<bool, kTensorColumns + 1> taken{};
    for (const Allocation& allocation : allocations_)
        std::fill_n(taken.begin() + allocation.first, allocation.columns, true);
    const std::string columns = joined("columns ", first, " to ", last, " of tensor memory");
    for (const Cell cell : cells)
        if (!taken[std::min(cell.column, kTensorColumns)]) batch_->fail(columns + " are not all allocated");
    for (const TensorUse use : hindrances)
        for (const Cell cell : cells)
            if (under_way_[size_t(use)][index(cell)]) batch_->fail(columns + ": " + kWhyNot[size_t(use)]);
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

// --- Fences ---

void TensorFences::start_batch(const Batch& batch) {
    blocks_ = batch.launch.blocks_per_batch;
    cluster_warps_ = batch.warps_per_block * batch.cluster_blocks();
    const bool watch = batch.launch.check_races && batch.program.has_tensor_fences;
    used_.assign(watch ? size_t(3) * blocks_ * cluster_warps_ * kParts : 0, 0);
    before_.assign(batch.warp_count, 0);
    after_.assign(batch.warp_count, 0);
    now_ = 0;
}

void TensorFences::note(uint32_t warp, TensorUse use, uint32_t block, const Cells& cells) {
    if (used_.empty()) return;
    for (const Cell cell : cells) used_[index(use, block, warp) + part_of(cell)] = now_;
}

void TensorFences::check(const Batch& batch, uint32_t warp, TensorUse now, uint32_t block, const Cells& cells) const {
    if (used_.empty() || cells.empty()) return;
    std::array<bool, kParts> parts{};
    uint32_t low = kTensorColumns, high = 0;
    for (const Cell cell : cells) {
        parts[part_of(cell)] = true;
        low = std::min(low, cell.column);
        high = std::max(high, cell.column);
    }
    constexpr const char* kDid[] = {"stored", "loaded", "computed"};
    const uint32_t first = warp / cluster_warps_ * cluster_warps_;
    for (const TensorUse use : {TensorUse::kLoaded, TensorUse::kStored, TensorUse::kComputed}) {
        if (use == TensorUse::kLoaded && (now == TensorUse::kLoaded || now == TensorUse::kRead)) continue;
        std::vector<int64_t> last(cluster_warps_);
        for (uint32_t i = 0; i < cluster_warps_; i++)
            for (size_t part = 0; part < kParts && first + i != warp; part++)
                if (parts[part]) last[i] = std::max(last[i], used_[index(use, block, i) + part]);
        for (const bool before : {true, false})
            for (uint32_t other = first; other < first + cluster_warps_; other++) {
                const int64_t fenced = !before ? after_[warp] : use == TensorUse::kComputed ? now_ : before_[other];
                if (last[other - first] > fenced)
                    batch.fail(joined("race: columns ", low, " to ", high, " of tensor memory, which warp ",
                                      other % batch.warps_per_block, " ", kDid[size_t(use)],
                                      " with no tcgen05.fence::", before ? "before" : "after", "_thread_sync since"));
            }
    }
}

// --- Instructions in flight ---

void TensorOperations::start_batch(Batch& batch) {
    memories.assign(batch.launch.blocks_per_batch, TensorMemory(batch));
    fences.start_batch(batch);
    issued_.clear();
    moves_.clear();
}

void TensorOperations::begin(const Batch& batch, uint32_t warp, TensorUse use, uint32_t block, const Cells& cells) {
    memories[block].begin(use, cells);
    fences.check(batch, warp, use, block, cells);
}

void TensorOperations::issue(Batch& batch, uint32_t lane, const TensorOperation& operation) {
    std::optional<AsyncRead> read;
    if (RaceDetector* races = batch.races())
        read = races->begin_read(batch.source, races->pieces_of(operation.places), {lane / kWarp});
    for (const auto& [block, cells] : operation.written) begin(batch, lane / kWarp, TensorUse::kComputed, block, cells);
    issued_[lane].push_back({operation, std::move(read)});
}

void TensorOperations::commit(Batch& batch, uint32_t lane, std::vector<SharedPlace> places) {
    auto issued = std::make_shared<std::vector<Issued>>(std::move(issued_[lane]));
    issued_.erase(lane);
    RaceDetector* races = batch.races();
    auto snapshot = std::make_shared<Knowledge>(races ? races->clocks.snapshot(lane / kWarp) : Knowledge());
    batch.work().start(
        [this, &batch, lane, places, issued, snapshot, races] {
            for (const Issued& entry : *issued) {
                const TensorOperation& operation = entry.operation;
                fences.tick();
                for (const auto* parts : {&operation.read, &operation.written})
                    for (const auto& [block, cells] : *parts) {
                        memories[block].finish(parts == &operation.read ? TensorUse::kRead : TensorUse::kComputed,
                                               cells);
                        fences.note(lane / kWarp, TensorUse::kComputed, block, cells);
                    }
                if (entry.read) races->end_read(*entry.read, snapshot.get());
            }
            for (const SharedPlace place : places)
                if (races) races->clocks.arrive(*snapshot, batch.flat(place));
            for (const SharedPlace place : places) batch.work().mbarriers.arrive({lane, place}, 1);
        },
        {});
}

void TensorOperations::move(const Batch& batch, uint32_t warp, TensorUse use, Cells cells) {
    begin(batch, warp, use, batch.block_of(warp), cells);
    moves_[{warp, use}].push_back(std::move(cells));
}

void TensorOperations::wait(const Batch& batch, uint32_t warp, TensorUse use) {
    const std::vector<Cells> done = std::move(moves_[{warp, use}]);
    moves_.erase({warp, use});
    const uint32_t block = batch.block_of(warp);
    for (const Cells& cells : done) memories[block].finish(use, cells);
    fences.tick();
    for (const Cells& cells : done) fences.note(warp, use, block, cells);
}

}  // namespace kernrec
