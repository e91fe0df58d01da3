// Runs the basic blocks of a kernel for a batch of thread blocks.
//
// While all live lanes agree, a basic block runs for all of them. When they diverge, each lane has its own position.
// The lowest basic block then runs first, with its lanes, until all agree again. Compilers order basic blocks so that
// lanes reconverge at the end of an `if` or a loop. Each warp executes in the same order as if it ran alone, so its
// counts do not depend on other warps of the batch.
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

// Fill the mask of each warp with the lanes at a position.
constexpr auto kMasksAt = [](const int32_t* positions, uint32_t warps, int32_t position, uint32_t* masks)
                              __attribute__((always_inline)) {
                                  for (uint32_t warp = 0; warp < warps; warp++) {
                                      uint32_t mask = 0;
                                      for (uint32_t lane = 0; lane < kWarp; lane++)
                                          mask |= positions[warp * kWarp + lane] == position ? kLanes.bit[lane] : 0;
                                      masks[warp] = mask;
                                  }
                              };
constexpr ByCpu<kMasksAt> masks_at;

constexpr auto kLeast = [](const int32_t* positions, uint32_t lanes) __attribute__((always_inline)) {
    int32_t least = INT32_MAX;
    for (uint32_t lane = 0; lane < lanes; lane++) least = positions[lane] < least ? positions[lane] : least;
    return least;
};
constexpr ByCpu<kLeast> least_of;

// Set the positions of a warp: `taken` for the lanes of a mask, and `next` for all other running lanes.
constexpr auto kMove = [](int32_t* here, uint32_t all, int32_t next, uint32_t mask, int32_t taken)
                           __attribute__((always_inline)) {
                               for (uint32_t lane = 0; lane < kWarp; lane++) {
                                   const int32_t to = kLanes.bit[lane] & mask ? taken : next;
                                   here[lane] = kLanes.bit[lane] & all ? to : here[lane];
                               }
                           };
constexpr ByCpu<kMove> move_lanes;

constexpr uint32_t kLooksInVain = 2;  // failed trips through a spin loop before the launch counts as stuck

}  // namespace

void Batch::start(const int64_t* blocks, uint32_t count) {
    block_numbers_.assign(launch.blocks_per_batch, 0);
    std::copy_n(blocks, count, block_numbers_.begin());
    fill_specials();
    for (uint32_t id : program.unassigned) fill(program.registers[id], 0, lanes, 0);
    std::fill(shared_.begin(), shared_.end(), kPoisonByte);
    std::fill(local_.begin(), local_.end(), kPoisonByte);
    for (std::vector<Copies>& copies : pending) copies.clear();
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
    waiting_at_.assign(lanes, -1);
    any_waiting_ = false;
    barriers_.clear();
    const uint32_t threads = launch.block[0] * launch.block[1] * launch.block[2];
    for (uint32_t warp = 0; warp < warp_count; warp++) {
        const uint32_t first = warp % warps_per_block * kWarp;
        const uint32_t there = warp / warps_per_block < count ? std::min(threads - first, kWarp) : 0;
        live_[warp] = there == kWarp ? ~0u : (1u << there) - 1;
    }
    update_live();
    for (uint32_t lane = 0; lane < lanes; lane++)
        positions_[lane] = live_[lane / kWarp] >> lane % kWarp & 1 ? 0 : kExited;
    parked_.assign(lanes, 0);
    any_parked_ = false;
    tried_.assign(lanes, 0);
    step_ = turn_ = room_ = 0;
    watches_.clear();
    if (!watched) return;
    for (uint32_t block = 0; block < count; block++) {
        const auto place = watched->find(block_numbers_[block]);
        watches_.push_back(place == watched->end() ? nullptr : &place->second);
        if (watches_.back()) room_ = kMostKept;
    }
}

void Batch::update_live() {
    live_count_ = live_warps_ = 0;
    for (uint32_t mask : live_) {
        live_count_ += __builtin_popcount(mask);
        live_warps_ += mask != 0;
    }
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

void Batch::run_all() {
    running = 0;
    all_full = live_count_ == lanes;
    for (uint32_t warp = 0; warp < warp_count; warp++) {
        if (!live_[warp]) continue;
        running_warps_[running] = warp;
        running_masks_[running++] = live_[warp];
    }
}

bool Batch::spinning(uint32_t lane) const {
    const int32_t position = positions_[lane];
    return position < kWaits && program.blocks[position].spins;
}

int32_t Batch::lowest() {
    while (true) {
        wake();
        int32_t lowest = kWaits;
        if (!paused_ && !has_spins_ && !any_parked_) {
            lowest = std::min(lowest, least_of(positions_.data(), lanes));
        } else {
            for (uint32_t lane = 0; lane < lanes; lane++)
                if (!parked_[lane] && !phase_waits_[lane].paused && !(has_spins_ && spinning(lane)))
                    lowest = std::min(lowest, positions_[lane]);
        }
        if (lowest < kWaits) return lowest;
        if (has_spins_ && !(paused_ && advance_work())) {
            for (uint32_t lane = 0; lane < lanes; lane++)
                if (!parked_[lane] && spinning(lane) && tried_[lane] < kLooksInVain)
                    lowest = std::min(lowest, positions_[lane]);
            if (lowest < kWaits) return lowest;
        }
        if (!paused_) fail_deadlocked();
        break_stall();
    }
}

// Select the lanes that may run a basic block; return false if none may.
bool Batch::select(int32_t position) {
    const BasicBlock& block = program.blocks[position];
    running = 0;
    all_full = false;
    masks_at(positions_.data(), warp_count, position, running_masks_.data());
    for (uint32_t warp = 0; warp < warp_count; warp++) {
        uint32_t mask = running_masks_[warp];
        if (!live_[warp] || !mask) continue;
        if (any_parked_)
            for (const uint32_t lane : LanesOf(mask)) parked_[warp * kWarp + lane] = 0;
        if (block.phase_test) {
            if (!(mask = ready(*block.phase_test, warp, mask))) continue;
        } else {
            bool waits = false;
            if (block.warpgroup_synchronous) {
                waits = incomplete_warpgroup(warp, position);
            } else if (block.warp_synchronous) {
                uint32_t named = block.mask ? 0 : ~0u;
                for (const uint32_t lane : LanesOf(block.mask ? mask : 0))
                    named |= row<uint32_t>(block.mask)[warp * kWarp + lane];
                waits = (named & live_[warp] & ~mask) != 0;
            }
            if (waits) {
                for (const uint32_t lane : LanesOf(mask)) parked_[warp * kWarp + lane] = any_parked_ = true;
                continue;
            }
        }
        running_warps_[running] = warp;
        running_masks_[running++] = mask;
    }
    return running > 0;
}

void Batch::run(const int64_t* blocks, uint32_t count) {
    start(blocks, count);
    int32_t position = 0;  // common basic block of all live lanes, or kDisagree: see `positions_`
    executed_ = 0;
    if (launch.watch) counts.by_warp.resize(program.blocks.size() * warps_per_block);
    while (live_count_) {
        const bool uniform = position != kDisagree;
        const uint32_t index = uniform ? position : lowest();
        if (index >= program.blocks.size()) throw Fault(FaultKind::kUnsupported, -1, "the end of the text");
        if (uniform) {
            if (program.blocks[index].phase_test && !all_ready(*program.blocks[index].phase_test, position)) {
                position = kDisagree;
                continue;
            }
            if (program.blocks[index].spins) {
                for (uint32_t lane = 0; lane < lanes; lane++)
                    if (live_[lane / kWarp] >> lane % kWarp & 1) positions_[lane] = position;
                position = kDisagree;
                continue;
            }
            run_all();
            counts.warps[index] += live_warps_;
            counts.lanes[index] += live_count_;
        } else {
            if (!select(index)) continue;
            uint32_t there = 0;
            for (uint32_t i = 0; i < running; i++) there += __builtin_popcount(running_masks_[i]);
            if (there == live_count_ && !program.blocks[index].spins && !program.blocks[index].phase_test) {
                position = index;
                continue;
            }
            counts.warps[index] += running;
            counts.lanes[index] += there;
        }
        for (uint32_t i = 0; launch.watch && i < running; i++)
            counts.by_warp[index * warps_per_block + running_warps_[i] % warps_per_block]++;
        const BasicBlock& block = program.blocks[index];
        step_++;
        if (!block.goes_on) turn_ = step_;
        first_of_block_ = block.first;
        execute(block);
        finish(block, index, uniform, position);
        executed_ += block.count;
        if (executed_ > launch.budget) throw Fault(FaultKind::kBudget, block.first, "");
    }
    work_->end_batch();
}

void Batch::finish(const BasicBlock& block, uint32_t index, bool uniform, int32_t& position) {
    source = block.end_source;
    auto on = [&](uint32_t i) { return running_masks_[i] & guarded(block, running_warps_[i]); };
    if (uniform) {
        if (block.end == End::kNone) {
            position++;
            return;
        }
        if (block.end == End::kBranch) {
            uint32_t taken = 0;
            if (!block.guard) {
                position = block.targets[0];
                return;
            }
            for (uint32_t i = 0; i < running; i++) taken += __builtin_popcount(on(i));
            if (taken == 0 || taken == live_count_) {
                position = taken ? int32_t(block.targets[0]) : position + 1;
                return;
            }
        }
        if (block.end == End::kBarrier && block.plain && barriers_.empty()) {
            for (uint32_t b = 0; b < launch.blocks_per_batch; b++) {
                bool alive = false;
                for (uint32_t warp = b * warps_per_block; warp < (b + 1) * warps_per_block; warp++)
                    alive |= live_[warp] != 0;
                if (!alive) continue;
                counts.barriers.add(1);
                if (races_) races_->pass_barrier(b);
                if (checks_) checks_->pass_barrier(b);
            }
            position++;
            return;
        }
    }
    position = kDisagree;
    const bool branches = block.end == End::kBranch;
    for (uint32_t i = 0; i < running; i++)
        move_lanes(&positions_[running_warps_[i] * kWarp], running_masks_[i], int32_t(index + 1), branches ? on(i) : 0,
                   branches ? int32_t(block.targets[0]) : 0);
    switch (block.end) {
        case End::kNone:
        case End::kBranch: break;
        case End::kIndexedBranch: {
            uint32_t most = 0;
            for (uint32_t i = 0; i < running; i++) {
                const uint32_t first = running_warps_[i] * kWarp;
                const uint32_t* chosen = row<uint32_t>(block.index) + first;
                for (const uint32_t lane : LanesOf(running_masks_[i])) {
                    most = std::max(most, chosen[lane]);
                    if (most < block.targets.size()) positions_[first + lane] = block.targets[chosen[lane]];
                }
            }
            if (most >= block.targets.size())
                fail(joined("index ", most, " is out of range: the branch has ", block.targets.size(), " targets"));
            break;
        }
        case End::kExit:
            for (uint32_t i = 0; i < running; i++) {
                const uint32_t gone = on(i);
                move_lanes(&positions_[running_warps_[i] * kWarp], gone, kExited, 0, 0);
                live_[running_warps_[i]] &= ~gone;
            }
            end_blocks(block);
            update_live();
            any_parked_ = false;
            std::fill(parked_.begin(), parked_.end(), 0);  // resume lanes that waited for exited lanes
            release();
            break;
        case End::kTrap:
            for (uint32_t i = 0; i < running; i++)
                if (const uint32_t trapped = on(i))
                    fail_lane(running_warps_[i] * kWarp + __builtin_ctz(trapped), "trapped");
            break;
        case End::kBarrier:
            for (uint32_t i = 0; i < running; i++) {
                const uint32_t mask = on(i), first = running_warps_[i] * kWarp;
                if (block.cluster_barrier) {
                    reach_cluster_barrier(block, running_warps_[i], mask, index + 1);
                    continue;
                }
                if (block.arrives && mask && races_)
                    races_->reach(block_of(running_warps_[i]), row<uint32_t>(block.number)[first], running_warps_[i]);
                const uint32_t* number = row<uint32_t>(block.number) + first;
                const uint32_t* threads = block.threads ? row<uint32_t>(block.threads) + first : nullptr;
                for (const uint32_t lane : LanesOf(mask)) {
                    const std::pair<uint32_t, int64_t> key{block_of(running_warps_[i]), number[lane]};
                    if (block.arrives) {
                        barriers_[key].arrived++;
                    } else {
                        positions_[first + lane] = kWaits;
                        resume_[first + lane] = index + 1;
                        waiting_at_[first + lane] = number[lane];
                        any_waiting_ = true;
                    }
                    if (threads) barriers_[key].expected = threads[lane];
                }
            }
            release();
            break;
    }
    if (!has_spins_ || uniform) return;
    bool again = block.spins;
    for (uint32_t i = 0; i < running && again; i++)
        for (const uint32_t bit : LanesOf(running_masks_[i]))
            again &= positions_[running_warps_[i] * kWarp + bit] == int32_t(index);
    if (!again) {
        std::fill(tried_.begin(), tried_.end(), 0);
        return;
    }
    for (uint32_t i = 0; i < running; i++)
        for (const uint32_t bit : LanesOf(running_masks_[i])) tried_[running_warps_[i] * kWarp + bit]++;
}

void Batch::release() {
    release_blocks();
    release_clusters();
}

void Batch::release_blocks() {
    if (!any_waiting_) return;
    const uint32_t per_block = warps_per_block * kWarp;
    any_waiting_ = false;
    for (uint32_t block = 0; block < launch.blocks_per_batch; block++) {
        std::map<int32_t, std::vector<uint32_t>> waiting;  // lanes by barrier
        uint32_t everyone = 0;
        for (uint32_t lane = block * per_block; lane < (block + 1) * per_block; lane++) {
            if (waiting_at_[lane] >= 0) waiting[waiting_at_[lane]].push_back(lane);
            everyone += live_[lane / kWarp] >> lane % kWarp & 1;
        }
        for (const auto& [number, lanes_there] : waiting) {
            const auto entry = barriers_.try_emplace({block, number}).first;
            const auto [arrived, expected] = entry->second;
            const int64_t needed = expected.value_or(everyone);
            if (int64_t(lanes_there.size()) + arrived < needed) {
                any_waiting_ = true;
                continue;
            }
            barriers_.erase(entry);
            open(block, number, lanes_there);
            std::vector<uint32_t> warps;
            for (const uint32_t lane : lanes_there)
                if (warps.empty() || warps.back() != lane / kWarp) warps.push_back(lane / kWarp);
            // Warps that only arrived may have run on, so the barrier does not order their later accesses.
            if (races_ && needed >= everyone && !arrived) races_->pass_barrier(block);
            else if (races_) races_->pass_some(block, uint32_t(number), warps);
            if (checks_) checks_->pass_barrier(block);
        }
    }
}

void Batch::open(uint32_t block, int32_t number, const std::vector<uint32_t>& waiting) {
    if (checks_) checks_->open(*this, block, number, waiting_at_, resume_);
    const BasicBlock* at = nullptr;
    uint32_t yes = 0, all = 0;
    for (const uint32_t lane : waiting) {
        const BasicBlock& here = program.blocks[resume_[lane] - 1];
        if (!here.reduction) continue;
        at = &here;
        all++;
        yes += (value(here.reduced, lane) != 0) != here.reduced_inverted;
    }
    for (const uint32_t lane : waiting) {
        if (at && at->reduction == 1) {
            row<uint32_t>(at->result)[lane] = yes;
        } else if (at) {
            const bool holds = at->reduction == 2 ? yes == all : yes > 0;
            put_bits(flags(at->result)[lane / kWarp], holds ? ~0u : 0, 1u << lane % kWarp);
        }
        positions_[lane] = resume_[lane];
        waiting_at_[lane] = -1;
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
        if (parked_[lane])
            fail_at(program.blocks[positions_[lane]].first, lane,
                    " waits for lanes of its warp that the mask names and that never arrive");
    uint32_t lane = 0;
    while (lane + 1 < lanes && waiting_at_[lane] < 0) lane++;
    const uint32_t per_block = warps_per_block * kWarp, first = lane / per_block * per_block;
    uint32_t live = 0, here = 0;
    for (uint32_t other = first; other < first + per_block; other++) {
        live += live_[other / kWarp] >> other % kWarp & 1;
        here += waiting_at_[other] == waiting_at_[lane];
    }
    const BasicBlock& at = program.blocks[resume_[lane] - 1];
    source = at.end_source;
    fail(joined("deadlock: ", here, " of ", live, " live threads of block ", block_text(lane), " wait at barrier ",
                waiting_at_[lane], ", thread ", thread_text(lane), " among them, and the others never arrive"));
}

}  // namespace kernrec
