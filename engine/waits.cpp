// Waiting for phases of barriers in shared memory, at cluster barriers, and in warpgroups.
//
// Both `mbarrier.test_wait` and `.try_wait` wait until the phase completes, because a polling thread may be delayed
// arbitrarily. If nothing else can run, they time out and return false. With race checks, the first test of an
// incomplete phase returns false at once, to detect kernels that use a test as a wait (PTX ISA, section
// "mbarrier.test_wait").
#include <algorithm>

#include "batch.h"
#include "pending.h"
#include "text.h"

namespace kernrec {

namespace {

constexpr int32_t kWaits = INT32_MAX - 1;
constexpr uint32_t kMostExpiries = 64;  // consecutive timeouts of all waiting lanes before the launch counts as stuck

}  // namespace

bool Batch::incomplete_warpgroup(uint32_t warp, int32_t position) const {
    const uint32_t first = warp - warp % warps_per_block % 4;
    const uint32_t end = std::min(first + 4, (warp / warps_per_block + 1) * warps_per_block);
    for (uint32_t lane = first * kWarp; lane < end * kWarp; lane++)
        if ((live_[lane / kWarp] >> lane % kWarp & 1) && positions_[lane] != position) return true;
    return false;
}

uint32_t Batch::ready(const PhaseTest& test, uint32_t warp, uint32_t mask) {
    const uint32_t first = warp * kWarp;
    const uint32_t asks = mask & guarded(test.barrier, warp);
    uint32_t held = 0;
    if (asks) {
        const uint32_t before = std::exchange(source, test.barrier.source);  // for error messages
        const auto uses = with_lanes({{warp, asks}}, [&] { return barriers_of(*this, test.barrier); });
        source = before;
        uint32_t waiting = 0;
        for (const auto& [lane, place] : uses) {
            if (work_->mbarriers.passed({lane, place}, test.parity(*this, lane))) continue;
            PhaseWait& wait = phase_waits_[lane];
            waiting |= 1u << lane % kWarp;
            if (races_ && wait.tried != int64_t(flat(place))) {  // the first test fails at once
                wait.tried = int64_t(flat(place));
                continue;
            }
            if (wait.expired) continue;
            held |= 1u << lane % kWarp;
            wait.awaited = place;
            wait.test = &test;
        }
        if (races_)
            for (const uint32_t bit : LanesOf(mask & ~waiting)) phase_waits_[first + bit].tried = -1;
    }
    for (const uint32_t lane : LanesOf(mask)) {
        PhaseWait& wait = phase_waits_[first + lane];
        wait.expired = false;
        paused_ -= wait.paused;
        wait.paused = held >> lane & 1;
        paused_ += wait.paused;
    }
    return mask & ~held;
}

// Let lanes test again if a phase completed since they were last woken.
void Batch::wake() {
    if (work_->mbarriers.completed_phases() == completed_) return;
    completed_ = work_->mbarriers.completed_phases();
    expiries_ = 0;
    if (paused_)
        for (PhaseWait& wait : phase_waits_) wait.paused = false;
    paused_ = 0;
}

// Finish asynchronous work until a phase completes; return whether one did.
bool Batch::advance_work() {
    std::set<SharedPlace> awaited;
    for (const PhaseWait& wait : phase_waits_)
        if (wait.paused) awaited.insert(wait.awaited);
    while (work_->mbarriers.completed_phases() == completed_ && work_->finish_one(awaited)) {
    }
    return work_->mbarriers.completed_phases() != completed_;
}

// Let the waiting lanes time out if no lane can run and no asynchronous work completes a phase.
void Batch::break_stall() {
    if (advance_work()) return;
    if (++expiries_ > kMostExpiries) fail_stalled();
    for (PhaseWait& wait : phase_waits_) {
        wait.expired |= wait.paused;
        wait.paused = false;
    }
    paused_ = 0;
}

void Batch::fail_stalled() {
    // Prefer a lane that waits for bytes: missing bytes tell users more than missing arrivals.
    uint32_t chosen = lanes;
    for (uint32_t lane = 0; lane < lanes; lane++) {
        if (!phase_waits_[lane].paused) continue;
        const bool lacks_bytes = work_->mbarriers.phase({lane, phase_waits_[lane].awaited}).bytes != 0;
        if (chosen == lanes || lacks_bytes) chosen = lane;
        if (lacks_bytes) break;
    }
    const PhaseWait& wait = phase_waits_[chosen];
    const BarrierPhase phase = work_->mbarriers.phase({chosen, wait.awaited});
    std::string lacks;
    if (phase.pending) lacks = joined(phase.pending, " of ", phase.expected, " arrivals");
    if (phase.bytes)
        lacks += joined(lacks.empty() ? "" : " and ", std::abs(phase.bytes),
                        phase.bytes > 0 ? " bytes of copies" : " announced bytes");
    source = wait.test->barrier.source;
    fail("deadlock: " + coordinates(chosen) + " waits for the barrier at " + place_name(wait.awaited) +
         ", whose phase lacks " + (lacks.empty() ? "nothing" : lacks) + ", and all other threads wait, too");
}

// --- Cluster barriers; exited threads count as arrived (PTX ISA, section "barrier.cluster") ---

void Batch::reach_cluster_barrier(const BasicBlock& block, uint32_t warp, uint32_t mask, uint32_t after) {
    for (const uint32_t bit : LanesOf(mask)) {
        const uint32_t lane = warp * kWarp + bit;
        if (block.cluster_barrier == 1) {
            if (cluster_arrivals_[lane] != cluster_waits_[lane])
                throw Fault(FaultKind::kUnsupported, block.end_source,
                            "a thread that arrives twice and does not wait between");
            cluster_arrivals_[lane]++;
            continue;
        }
        if (cluster_arrivals_[lane] != cluster_waits_[lane] + 1)
            throw Fault(FaultKind::kUnsupported, block.end_source, "a thread that waits and did not arrive");
        positions_[lane] = kWaits;
        resume_[lane] = int32_t(after);
        cluster_waiters_ += !cluster_waiting_[lane];
        cluster_waiting_[lane] = 1;
    }
}

void Batch::release_clusters() {
    if (!cluster_waiters_) return;
    const uint32_t size = cluster_blocks() * warps_per_block * kWarp;
    for (uint32_t first = 0; first < lanes; first += size) {
        int64_t everyone = INT64_MAX;
        for (uint32_t lane = first; lane < first + size; lane++)
            if (live_[lane / kWarp] >> lane % kWarp & 1) everyone = std::min(everyone, cluster_arrivals_[lane]);
        bool any = false;
        for (uint32_t lane = first; lane < first + size; lane++) {
            if (!cluster_waiting_[lane] || everyone <= cluster_waits_[lane]) continue;
            any = true;
            positions_[lane] = resume_[lane];
            cluster_waits_[lane]++;
            cluster_waiting_[lane] = 0;
            cluster_waiters_--;
        }
        if (!any) continue;
        if (races_) races_->pass_barrier(lane_block(first), cluster_blocks());
        for (uint32_t i = 0; checks_ && i < cluster_blocks(); i++) checks_->pass_barrier(lane_block(first) + i);
    }
}

// Handle lanes that exited at the end of a basic block: a thread block without live lanes loses its shared memory.
void Batch::end_blocks(const BasicBlock& block) {
    if (!races_ || cluster_blocks() == 1) return;
    std::vector<uint32_t> gone;
    for (uint32_t i = 0; i < running; i++) {
        const uint32_t number = block_of(running_warps_[i]);
        bool left = false;
        for (uint32_t warp = number * warps_per_block; warp < (number + 1) * warps_per_block; warp++)
            left |= live_[warp] != 0;
        if (!left && (gone.empty() || gone.back() != number)) gone.push_back(number);
    }
    for (const uint32_t number : gone) races_->end_block(block.end_source, number);
}

}  // namespace kernrec
