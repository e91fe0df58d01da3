// Runs the basic blocks of a kernel for a batch of thread blocks.
//
// While all live lanes agree, they have a common position, the next basic block. After they diverge, each lane has its
// own position, and all lanes at the lowest position run first. Compilers order basic blocks so that lanes reconverge
// at the end of an `if` or a loop. Each warp executes in the same order as if it ran alone, so its counts do not depend
// on other warps of the batch.
//
// `bar.sync` holds a lane until all threads of its block that have not exited arrive. Warp-synchronous instructions
// wait for the live lanes in their mask. Lanes in a spin loop run only if no other lane can.
#include <algorithm>

#include "batch.h"
#include "handovers.h"
#include "lanes.h"
#include "pending.h"
#include "text.h"

namespace kernrec {

namespace {

constexpr int32_t kExited = INT32_MAX, kWaits = INT32_MAX - 1, kDisagree = -1;

// Return the lanes of a warp that are at a position. here: positions of the lanes.
uint32_t lanes_at(const int32_t* here, int32_t position) {
    uint32_t mask = 0;
    for (uint32_t lane = 0; lane < kWarp; lane++) mask |= here[lane] == position ? kLanes.bit[lane] : 0;
    return mask;
}

// Move the lanes of a mask to a position.
void move_lanes(int32_t* here, uint32_t mask, int32_t position) {
    for (uint32_t lane = 0; lane < kWarp; lane++) here[lane] = kLanes.bit[lane] & mask ? position : here[lane];
}

constexpr uint32_t kLooksInVain = 2;  // failed trips through a spin loop before the launch counts as stuck

}  // namespace

void Batch::start(const int64_t* blocks, uint32_t count) {
    block_numbers_.assign(launch.blocks_per_batch, 0);
    std::copy_n(blocks, count, block_numbers_.begin());
    fill_specials();
    for (uint32_t id : program.unassigned) fill(program.registers[id], 0, lanes, 0);
    shared_.assign(size_t(shared_stride_) * launch.blocks_per_batch + 16, kPoisonByte);
    local_.assign(size_t(local_stride_) * lanes + 16, kPoisonByte);
    pending.assign(warp_count, {});
    running_warps_.assign(warp_count, 0);  // after an error, the list may be shorter
    running_masks_.assign(warp_count, 0);
    committed.assign(lanes, 0);
    if (races_) races_->start_batch(block_numbers_);
    if (checks_) checks_->start_batch(block_numbers_);
    if (handovers_) handovers_->start_batch(block_numbers_);
    work_->start_batch();
    phase_waits_.assign(lanes, {});
    paused_ = expiries_ = 0;
    cluster_arrivals_.assign(lanes, 0);
    cluster_waits_.assign(lanes, 0);
    cluster_waiting_.assign(lanes, 0);
    cluster_waiters_ = 0;
    barriers_.clear();
    live_.assign(warp_count, 0);
    resume_.assign(lanes, 0);
    const uint32_t threads = launch.block[0] * launch.block[1] * launch.block[2];
    for (uint32_t warp = 0; warp < warp_count; warp++) {
        const uint32_t first = warp % warps_per_block * kWarp;
        const uint32_t there = warp / warps_per_block < count ? std::min(threads - first, kWarp) : 0;
        live_[warp] = there == kWarp ? ~0u : (1u << there) - 1;
    }
    count_live();
    positions_.assign(lanes, kExited);
    common_ = 0;
    parked_.assign(warp_count, 0);
    tried_.assign(lanes, 0);
    executed_ = 0;
    if (launch.watch) counts.by_warp.resize(program.blocks.size() * warps_per_block);
    step_ = turn_ = room_ = 0;
    watches_.clear();
    if (!watched) return;
    for (uint32_t block = 0; block < count; block++) {
        const auto place = watched->find(block_numbers_[block]);
        watches_.push_back(place == watched->end() ? nullptr : &place->second);
        if (watches_.back()) room_ = kMostKept;
    }
}

void Batch::count_live() {
    live_count_ = 0;
    for (const uint32_t mask : live_) live_count_ += uint32_t(__builtin_popcount(mask));
}

// Give each live lane its own position.
void Batch::diverge() {
    for (uint32_t warp = 0; warp < warp_count; warp++) move_lanes(&positions_[warp * kWarp], live_[warp], common_);
    common_ = kDisagree;
}

void Batch::execute(const BasicBlock& block) {
    const Instruction* previous = nullptr;
    for (const Instruction& ins : block.code) {
        source = ins.source;
        if (checks_) checks_->before(*this, block, ins, !previous || previous->source != source);
        ins.run(*this, ins);
        previous = &ins;
    }
}

bool Batch::spinning(uint32_t lane) const {
    const int32_t position = positions_[lane];
    return position < kWaits && program.blocks[position].spins;
}

int32_t Batch::lowest() {
    const auto lowest_of = [&](auto may_run) {
        int32_t lowest = kWaits;
        for (uint32_t lane = 0; lane < lanes; lane++)
            lowest = may_run(lane) ? std::min(lowest, positions_[lane]) : lowest;
        return lowest;
    };
    const auto is_parked = [&](uint32_t lane) { return parked_[lane / kWarp] >> lane % kWarp & 1; };
    while (true) {
        wake();
        const bool any_parked = std::any_of(parked_.begin(), parked_.end(), [](uint32_t mask) { return mask != 0; });
        const bool all_may_run = !paused_ && !has_spins_ && !any_parked;
        int32_t lowest = lowest_of([&](uint32_t lane) {
            return all_may_run || (!is_parked(lane) && !phase_waits_[lane].paused && !(has_spins_ && spinning(lane)));
        });
        if (lowest < kWaits) return lowest;
        if (has_spins_ && !(paused_ && advance_work())) {
            lowest = lowest_of(
                [&](uint32_t lane) { return !is_parked(lane) && spinning(lane) && tried_[lane] < kLooksInVain; });
            if (lowest < kWaits) return lowest;
        }
        if (!paused_) fail_deadlocked();
        break_stall();
    }
}

// Return whether lanes at the start of a basic block must wait for other lanes of their warp or warpgroup.
bool Batch::must_wait(const BasicBlock& block, uint32_t warp, uint32_t mask, int32_t position) {
    if (block.warpgroup_synchronous) return incomplete_warpgroup(warp, position);
    if (!block.warp_synchronous) return false;
    uint32_t members = block.mask ? 0 : ~0u;
    for (const uint32_t lane : LanesOf(block.mask ? mask : 0))
        members |= row<uint32_t>(block.mask)[warp * kWarp + lane];
    return (members & live_[warp] & ~mask) != 0;
}

// Select the lanes that may run a basic block. Return their number.
uint32_t Batch::select(int32_t position) {
    const BasicBlock& block = program.blocks[position];
    uint32_t selected = 0;
    running = 0;
    for (uint32_t warp = 0; warp < warp_count; warp++) {
        uint32_t mask = common_ == kDisagree ? lanes_at(&positions_[warp * kWarp], position) : live_[warp];
        if (!mask) continue;
        parked_[warp] &= ~mask;
        if (block.phase_test) {
            mask = ready(*block.phase_test, warp, mask);
        } else if (common_ == kDisagree && must_wait(block, warp, mask, position)) {
            parked_[warp] |= mask;
            mask = 0;
        }
        if (!mask) continue;
        selected += __builtin_popcount(mask);
        running_warps_[running] = warp;
        running_masks_[running++] = mask;
    }
    all_full = selected == lanes;
    const bool agree = selected == live_count_ && !block.spins;
    if (agree) common_ = position;
    else if (common_ != kDisagree) diverge();
    return selected;
}

void Batch::run(const int64_t* blocks, uint32_t count) {
    start(blocks, count);
    while (live_count_) {
        const uint32_t index = common_ == kDisagree ? lowest() : common_;
        if (index >= program.blocks.size()) throw Fault(FaultKind::kUnsupported, -1, "the end of the text");
        const uint32_t selected = select(index);
        if (!selected) continue;
        counts.warps[index] += running;
        counts.lanes[index] += selected;
        for (uint32_t i = 0; launch.watch && i < running; i++)
            counts.by_warp[index * warps_per_block + running_warps_[i] % warps_per_block]++;
        const BasicBlock& block = program.blocks[index];
        step_++;
        if (!block.goes_on) turn_ = step_;
        first_of_block_ = block.first;
        execute(block);
        finish(block, index);
        executed_ += block.count;
        if (executed_ > launch.budget) throw Fault(FaultKind::kBudget, block.first, "");
    }
    work_->end_batch();
}

// Move the lanes that ran a basic block to their next positions.
void Batch::finish(const BasicBlock& block, int32_t index) {
    source = block.end_source;
    if (common_ != kDisagree) {
        uint32_t taken = 0;
        for (uint32_t i = 0; i < running && block.end == End::kBranch; i++)
            taken += uint32_t(__builtin_popcount(running_masks_[i] & guarded(block, running_warps_[i])));
        if (block.end == End::kNone || (block.end == End::kBranch && (!taken || taken == live_count_))) {
            common_ = taken ? int32_t(block.targets[0]) : index + 1;
            return;
        }
        common_ = kDisagree;
    }
    uint32_t most = 0;  // highest index into the targets
    bool again = block.spins;  // whether all lanes stay in a spin loop
    for (uint32_t i = 0; i < running; i++) {
        const uint32_t warp = running_warps_[i], first = warp * kWarp;
        const uint32_t mask = running_masks_[i], on = mask & guarded(block, warp);
        int32_t* here = &positions_[first];
        move_lanes(here, mask, index + 1);
        switch (block.end) {
            case End::kNone: break;
            case End::kBranch: move_lanes(here, on, int32_t(block.targets[0])); break;
            case End::kIndexedBranch:
                each_distinct(row<uint32_t>(block.index) + first, mask, [&](uint32_t chosen, uint32_t choosing) {
                    most = std::max(most, chosen);
                    if (chosen < block.targets.size()) move_lanes(here, choosing, int32_t(block.targets[chosen]));
                });
                break;
            case End::kExit:
                move_lanes(here, on, kExited);
                live_[warp] &= ~on;
                break;
            case End::kTrap:
                if (on) fail_lane(first + __builtin_ctz(on), "trapped");
                break;
            case End::kBarrier:
                if (block.cluster_barrier) reach_cluster_barrier(block, warp, on, index + 1);
                else reach_barrier(block, warp, on, index + 1);
                break;
        }
        again = again && (lanes_at(here, index) & mask) == mask;
    }
    if (block.end == End::kIndexedBranch && most >= block.targets.size())
        fail(joined("index ", most, " is out of range: the branch has ", block.targets.size(), " targets"));
    if (block.end == End::kExit) {
        count_live();
        end_blocks(block);
        std::fill(parked_.begin(), parked_.end(), 0);  // resume lanes that waited for exited lanes
    }
    if (block.end == End::kExit || block.end == End::kBarrier) {
        release_barriers();
        release_clusters();
    }
    if (has_spins_ && !again) std::fill(tried_.begin(), tried_.end(), 0);
    for (uint32_t i = 0; i < running && again; i++)
        for (const uint32_t bit : LanesOf(running_masks_[i])) tried_[running_warps_[i] * kWarp + bit]++;
}

void Batch::reach_barrier(const BasicBlock& block, uint32_t warp, uint32_t mask, int32_t after) {
    const uint32_t first = warp * kWarp;
    const uint32_t* numbers = row<uint32_t>(block.number) + first;
    if (block.arrives && mask && races_) races_->reach(block_of(warp), numbers[0], warp);
    each_distinct(numbers, mask, [&](uint32_t number, uint32_t arriving) {
        Barrier& barrier = barriers_[{block_of(warp), number}];
        if (block.threads)
            barrier.expected = row<uint32_t>(block.threads)[first + 31u - uint32_t(__builtin_clz(arriving))];
        if (block.arrives) {
            barrier.arrived += __builtin_popcount(arriving);
            return;
        }
        move_lanes(&positions_[first], arriving, kWaits);
        barrier.waiting.push_back({warp, arriving, after});
    });
}

void Batch::release_barriers() {
    for (auto entry = barriers_.begin(); entry != barriers_.end();) {
        const auto [block, number] = entry->first;
        Barrier& barrier = entry->second;
        int64_t everyone = 0, waiting = 0;
        for (uint32_t warp = block * warps_per_block; warp < (block + 1) * warps_per_block; warp++)
            everyone += __builtin_popcount(live_[warp]);
        for (const Waiting& lanes_there : barrier.waiting) waiting += __builtin_popcount(lanes_there.mask);
        const int64_t needed = barrier.expected.value_or(everyone);
        if (!waiting || waiting + barrier.arrived < needed) {
            ++entry;
            continue;
        }
        std::sort(barrier.waiting.begin(), barrier.waiting.end(), [](const Waiting& a, const Waiting& b) {
            return std::pair(a.warp, __builtin_ctz(a.mask)) < std::pair(b.warp, __builtin_ctz(b.mask));
        });
        open(barrier);
        std::vector<uint32_t> warps;
        for (const Waiting& lanes_there : barrier.waiting)
            if (warps.empty() || warps.back() != lanes_there.warp) warps.push_back(lanes_there.warp);
        // Warps that arrived without waiting may have continued, so the barrier does not order their later accesses.
        if (races_ && needed >= everyone && !barrier.arrived) races_->pass_barrier(block);
        else if (races_) races_->pass_some(block, number, warps);
        if (checks_) checks_->pass_barrier(block);
        entry = barriers_.erase(entry);
    }
}

// Resume the lanes that wait at a barrier.
void Batch::open(const Barrier& barrier) {
    if (checks_) checks_->open(*this, barrier.waiting);
    const BasicBlock* reducing = nullptr;
    uint32_t yes = 0, all = 0;
    for (const auto& [warp, mask, after] : barrier.waiting) {
        const BasicBlock& block = program.blocks[after - 1];
        if (!block.reduction) continue;
        reducing = &block;
        all += __builtin_popcount(mask);
        yes += __builtin_popcount(mask &
                                  (block.reduced_inverted ? ~flags(block.reduced)[warp] : flags(block.reduced)[warp]));
    }
    for (const auto& [warp, mask, after] : barrier.waiting) {
        if (reducing && reducing->reduction == 1) {
            for (const uint32_t lane : LanesOf(mask)) row<uint32_t>(reducing->result)[warp * kWarp + lane] = yes;
        } else if (reducing) {
            const bool holds = reducing->reduction == 2 ? yes == all : yes > 0;
            put_bits(flags(reducing->result)[warp], holds ? ~0u : 0, mask);
        }
        move_lanes(&positions_[warp * kWarp], mask, after);
    }
    counts.barriers.add(1);
}

void Batch::fail_deadlocked() {
    const auto fail_at = [&](uint32_t instruction, uint32_t lane, const char* reason) {
        source = instruction;
        fail("deadlock: " + coordinates(lane) + reason);
    };
    for (uint32_t lane = 0; lane < lanes && has_spins_; lane++)
        if (spinning(lane))
            fail_at(program.blocks[positions_[lane]].first, lane,
                    " waits for what another thread stores, and all threads that run together with it wait, too");
    for (uint32_t lane = 0; lane < lanes && cluster_waiters_; lane++)
        if (cluster_waiting_[lane])
            fail_at(program.blocks[resume_[lane] - 1].end_source, lane,
                    " waits at the barrier of its cluster, and others never arrive");
    for (uint32_t lane = 0; lane < lanes; lane++)
        if (parked_[lane / kWarp] >> lane % kWarp & 1)
            fail_at(program.blocks[positions_[lane]].first, lane,
                    " waits for lanes of its warp that the mask names and that never arrive");
    uint32_t lane = ~0u, after = 0, here = 0;
    int64_t number = 0;
    for (const auto& [key, barrier] : barriers_) {
        uint32_t waiting = 0;
        for (const Waiting& lanes_there : barrier.waiting) waiting += __builtin_popcount(lanes_there.mask);
        for (const Waiting& lanes_there : barrier.waiting) {
            const uint32_t first = lanes_there.warp * kWarp + uint32_t(__builtin_ctz(lanes_there.mask));
            if (first < lane)
                std::tie(lane, after, here, number) = std::tuple(first, lanes_there.after, waiting, key.second);
        }
    }
    const uint32_t block = lane_block(lane);
    uint32_t live = 0;
    for (uint32_t warp = block * warps_per_block; warp < (block + 1) * warps_per_block; warp++)
        live += __builtin_popcount(live_[warp]);
    source = program.blocks[after - 1].end_source;
    fail(joined("deadlock: ", here, " of ", live, " live threads of block ", block_text(lane), " wait at barrier ",
                number, ", thread ", thread_text(lane), " among them, and the others never arrive"));
}

}  // namespace kernrec
