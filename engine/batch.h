// A batch of thread blocks that run together: registers, memories, lane positions and counters.
#pragma once

#include <array>
#include <cstring>
#include <memory>
#include <optional>
#include <utility>

#include "checks.h"
#include "counts.h"
#include "instruction_sets.h"
#include "program.h"
#include "races.h"
#include "watch.h"

namespace kernrec {

// Resolved access of one warp: the address of each lane, and the location of its bytes.
struct Resolved {
    Resolved() {}  // leaves the arrays uninitialized

    uint32_t warp = 0, mask = 0;
    Space space = Space::kGlobal;
    uint32_t buffer = 0;
    // Address in the state space, or byte of the batch's shared memory. Inactive lanes have that of an active lane.
    int64_t addresses[kWarp];
    uint8_t* places[kWarp];
};

struct WarpMask {
    uint32_t warp, mask;
};

// Call a function with (warp, byte of the batch's shared memory) for each lane that accesses shared memory.
template <class Each>
void each_shared_lane(const std::vector<Resolved>& all, Each each) {
    for (const Resolved& at : all) {
        if (at.space != Space::kShared) continue;
        for (const uint32_t bit : LanesOf(at.mask)) each(at.warp, size_t(at.addresses[bit]));
    }
}

struct Pending;
struct PhaseTest;
class Handovers;

constexpr uint8_t kPoisonByte = 0xFF;  // unwritten shared and local memory: NaN as a float, -1 as an integer

using Position = std::array<int64_t, 3>;  // x, y and z of a block or thread
Position position_of(int64_t number, const uint32_t (&extents)[3]);
// Return the text "(x, y, z)" for the linear number of a block or thread.
std::string position_text(int64_t number, const uint32_t (&extents)[3]);

class Batch {
  public:
    Batch(const Program& program, const Launch& launch);
    ~Batch();
    Batch(const Batch&) = delete;

    // Run thread blocks. blocks: linear block numbers.
    void run(const int64_t* blocks, uint32_t count);

    // The operations of a kernel call these functions.

    template <class T>
    T* row(const Row& row) {
        return reinterpret_cast<T*>(arena_.data()->bytes + size_t(row.index) * lanes);
    }
    uint32_t* flags(const Row& row) { return this->row<uint32_t>(row); }

    // Warps that run the current instruction, and the lanes of each.
    uint32_t running = 0;
    const uint32_t* warps() const { return running_warps_.data(); }
    uint32_t mask(uint32_t position, const Instruction& ins) {
        return running_masks_[position] & guarded(ins, running_warps_[position]);
    }
    // Return the lanes for which the guard of an instruction or basic block is true.
    template <class Guarded>
    uint32_t guarded(const Guarded& ins, uint32_t warp) {
        if (!ins.guard) return ~0u;
        return ins.guard_inverted ? ~flags(ins.guard)[warp] : flags(ins.guard)[warp];
    }
    // Whether all lanes of the batch run. If they do, operations use a single loop over all lanes.
    bool all_full = false;
    uint32_t lanes = 0, warp_count = 0, warps_per_block = 0;
    // Return the number of instructions that the batch ran before the current one.
    uint64_t clock() const { return executed_ + source - first_of_block_; }
    Counts counts;
    const Program& program;
    const Launch& launch;

    // Resolve and check an instruction's access for all running warps, before any data moves. `lanes_of_warp` is a mask
    // of the lanes that may take part.
    const std::vector<Resolved>& access(const Instruction& ins, uint32_t bytes, AccessKind kind,
                                        uint32_t lanes_of_warp = ~0u);
    // Resolve the access of some lanes of some warps, without the instruction's guard.
    std::vector<Resolved> access_of(const Instruction& ins, uint32_t bytes, AccessKind kind,
                                    const std::vector<WarpMask>& lanes);
    // Call a function while only some lanes of some warps run.
    template <class Call>
    auto with_lanes(const std::vector<WarpMask>& lanes, Call call) {
        std::vector<uint32_t> warps, masks;
        for (const auto& [warp, mask] : lanes) {
            warps.push_back(warp);
            masks.push_back(mask);
        }
        const uint32_t before = std::exchange(running, uint32_t(lanes.size()));
        running_warps_.swap(warps);
        running_masks_.swap(masks);
        auto result = call();
        running = before;
        running_warps_.swap(warps);
        running_masks_.swap(masks);
        return result;
    }
    // Fail if an instruction for whole warps runs with only some lanes of a warp.
    void require_whole_warps(const Instruction& ins);
    // Count accesses, and record those of watched blocks. bytes: size per lane.
    void record(const Instruction& ins, const std::vector<Resolved>& all, uint32_t bytes, AccessKind kind,
                bool merges = false, bool rows_of_matrices = false);
    // Count a load from shared memory whose result is not needed, if all lanes of the batch load from one address.
    // Return false otherwise.
    bool count_uniform_load(const Instruction& ins, uint32_t bytes);
    void check_races(const Instruction& ins, const std::vector<Resolved>& all, uint32_t bytes, bool write, bool agree,
                     bool is_copy = false);
    Checks* checks() { return checks_.get(); }
    RaceDetector* races() { return races_.get(); }
    // Return the detector of global memory races between blocks that use release and acquire, or null.
    Handovers* handovers() { return handovers_.get(); }
    Pending& work() { return *work_; }

    // Return the shared memory locations that the running lanes access. Throw Fault for any other address.
    std::vector<LanePlace> shared_places(const Instruction& ins, uint32_t bytes, bool write = false);
    // Resolve an access of one lane at an address that an operation computed.
    Resolved resolve_lane(Space space, uint64_t address, uint32_t bytes, uint32_t lane, bool write);
    SharedPlace shared_place(const Resolved& at, uint32_t lane) const;
    size_t flat(SharedPlace place) const { return size_t(place.block) * shared_stride_ + place.byte; }
    uint32_t shared_stride() const { return shared_stride_; }
    uint8_t* bytes_at(SharedPlace place) { return shared_.data() + flat(place); }
    std::string place_name(SharedPlace place) const;
    uint32_t cluster_blocks() const { return launch.cluster_blocks(); }
    uint32_t lane_block(uint32_t lane) const { return lane / (warps_per_block * kWarp); }
    int64_t block_number(uint32_t block) const { return block_numbers_[block]; }
    // Return a lane's value, zero-extended to 64 bits.
    uint64_t value(const Row& row, uint32_t lane);
    void put_value(const Row& row, uint32_t lane, uint64_t value);
    // Fail with a message that starts with the lane's block and thread.
    [[noreturn]] void fail_lane(uint32_t lane, const std::string& text) const;
    // Contiguous part of a bulk copy in global memory.
    struct Moved {
        uint64_t address, bytes;
    };
    void count_bulk(std::vector<Moved> moved, uint32_t lane, AccessKind kind);
    void count_bulk_shared(uint64_t bytes, AccessKind kind);

    BlockWatch* watch_of(uint32_t warp);
    void touch(BlockWatch& watch, uint32_t buffer, AccessKind kind, const int64_t* addresses, uint32_t mask,
               uint32_t bytes);
    void watch_bulk(const std::vector<Moved>& moved, uint32_t lane, AccessKind kind);
    // Record one request of a warp. `places` are addresses for atomic operations, and sectors for loads and stores.
    void watch_request(uint32_t warp, std::vector<int64_t> places, AccessKind kind);
    std::map<int64_t, BlockWatch>* watched = nullptr;  // keyed by block number; batches do not share blocks

    // Unfinished copy (cp.async) of a lane. Its bytes reach shared memory only when the thread waits for the copy, so a
    // kernel without a wait reads the previous contents.
    struct LaneCopy {
        uint32_t lane, group;  // lane of the warp; number of groups that the lane committed before
        uint32_t bytes;
        uint8_t* place;
        uint8_t data[16];  // zeros after the bytes that the lane reads
    };
    std::vector<std::vector<LaneCopy>> pending;  // indexed by warp, oldest first
    std::vector<uint32_t> committed;  // number of groups that each lane committed

    // Return the shared memory of the thread block at a batch position.
    uint8_t* shared(uint32_t block) { return shared_.data() + size_t(block) * shared_stride_; }
    uint32_t block_of(uint32_t warp) const { return warp / warps_per_block; }
    // Add to a counter by name, such as `mma.f16`.
    void count(const char* metric, uint64_t by) { counts.named[metric] += by; }
    // Fail the current instruction with "<kernel>, PTX line <n>: <text>".
    [[noreturn]] void fail(const std::string& text) const;
    std::string block_text(uint32_t lane) const { return position_text(block_number(lane_block(lane)), launch.grid); }
    std::string thread_text(uint32_t lane) const {
        return position_text(lane % (warps_per_block * kWarp), launch.block);
    }
    std::string coordinates(uint32_t lane) const {
        return "block " + block_text(lane) + " thread " + thread_text(lane);
    }
    uint32_t source = 0;  // current instruction

  private:
    // Fill a row for `count` lanes from lane `first` on. Fill a predicate row for whole warps.
    void fill(const Row& row, uint32_t first, uint32_t count, uint64_t bits);
    void fill_specials();
    int64_t special(const std::string& name, uint32_t lane) const;

    void start(const int64_t* blocks, uint32_t count);
    // Memory that contains an address: name and start, or no name if there is none.
    struct Memory {
        const char* name = nullptr;
        int64_t start = 0;
        uint64_t size = 0;
        uint8_t* bytes = nullptr;
        bool writable = false;
    };
    Memory memory_at(Space space, int64_t address) const;
    // Return the location of a shared address that block `own` uses, or no value if it is in no block of the cluster.
    std::optional<SharedPlace> place_in_cluster(uint32_t own, int64_t address, uint32_t bytes) const;
    bool resolve(const Instruction& ins, uint32_t bytes, bool write, Resolved& at);
    [[noreturn]] void fail_access(const Instruction& ins, uint32_t bytes, uint32_t lane);

    void count_access(const Instruction& ins, const Resolved& at, uint32_t bytes, AccessKind kind, bool merges,
                      bool rows_of_matrices);
    void watch(const Instruction& ins, const std::vector<Resolved>& all, uint32_t bytes, AccessKind kind);
    void trace(uint32_t warp, int64_t* first, size_t count, AccessKind kind);

    // Scheduling
    struct Barrier {
        int64_t arrived = 0;  // threads that arrived without waiting
        std::optional<int64_t> expected;  // threads; no value: all threads of the block
        std::vector<Waiting> waiting;
    };
    void count_live();
    void diverge();
    void execute(const BasicBlock& block);
    int32_t lowest();
    bool must_wait(const BasicBlock& block, uint32_t warp, uint32_t mask, int32_t position);
    uint32_t select(int32_t position);
    void finish(const BasicBlock& block, int32_t index);
    void reach_barrier(const BasicBlock& block, uint32_t warp, uint32_t mask, int32_t after);
    void open(const Barrier& barrier);
    [[noreturn]] void fail_deadlocked();
    bool spinning(uint32_t lane) const;
    bool incomplete_warpgroup(uint32_t warp, int32_t position) const;
    // Return the lanes of `mask` that may test a barrier phase now. Pause the other lanes of `mask`.
    uint32_t ready(const PhaseTest& test, uint32_t warp, uint32_t mask);
    void wake();
    bool advance_work();
    void break_stall();
    [[noreturn]] void fail_stalled();
    void reach_cluster_barrier(const BasicBlock& block, uint32_t warp, uint32_t mask, uint32_t after);
    void release_barriers();
    void release_clusters();
    void end_blocks(const BasicBlock& block);

    struct alignas(64) Line {
        uint8_t bytes[64];
    };
    std::vector<Line> arena_;  // all rows
    std::vector<uint32_t> running_warps_, running_masks_;
    std::vector<uint8_t> shared_, local_, argument_;
    uint32_t shared_stride_ = 0, local_stride_ = 0, argument_stride_ = 0;
    std::vector<int64_t> block_numbers_;
    std::vector<uint32_t> live_;  // mask of the live lanes of each warp
    uint32_t live_count_ = 0;
    int32_t common_ = 0;  // next basic block of all live lanes, or kDisagree
    std::vector<int32_t> positions_;  // next basic block of each lane, while lanes disagree
    std::vector<uint32_t> parked_;  // mask of the lanes of each warp that wait for other lanes of the warp
    uint64_t executed_ = 0;  // number of instructions before the current basic block
    uint32_t first_of_block_ = 0;
    std::vector<int32_t> resume_;  // basic block of each lane after a cluster barrier
    std::map<std::pair<uint32_t, int64_t>, Barrier> barriers_;  // keyed by block and number
    std::vector<uint32_t> tried_;  // failed trips of each lane through a spin loop
    bool has_spins_ = false;
    bool has_specials_ = false;  // whether the constant rows of special registers are filled
    std::vector<Resolved> resolved_;
    std::unique_ptr<RaceDetector> races_;
    std::unique_ptr<Checks> checks_;
    std::vector<BlockWatch*> watches_;  // recorded accesses of each block of the batch, or null
    int64_t step_ = 0, turn_ = 0;  // number of basic blocks run: now, and when the current step began (see watch.h)
    int64_t room_ = 0;  // number of sectors that the batch may still record
    std::unique_ptr<Handovers> handovers_;
    std::unique_ptr<Pending> work_;
    // State of a lane that waits for phases of barriers in shared memory.
    struct PhaseWait {
        bool paused = false;  // the phase was incomplete at the last test
        bool expired = false;  // the wait timed out, so the next test runs even if the phase is incomplete
        int64_t tried = -1;  // barrier whose first test already failed; set only by race checks
        const PhaseTest* test = nullptr;
        SharedPlace awaited{};
    };
    std::vector<PhaseWait> phase_waits_;
    uint32_t paused_ = 0;  // number of paused lanes
    uint64_t completed_ = 0;  // number of completed phases when lanes were last woken
    uint32_t expiries_ = 0;  // timeouts since the last completed phase
    std::vector<int64_t> cluster_arrivals_, cluster_waits_;
    std::vector<uint8_t> cluster_waiting_;
    uint32_t cluster_waiters_ = 0;
};

}  // namespace kernrec
