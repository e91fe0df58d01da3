// Asynchronous work of a batch: copies, arrivals at barriers, and matmuls that use warpgroups or tensor memory.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <unordered_set>

#include "batch.h"
#include "reductions.h"
#include "tensor_maps.h"
#include "tensor_memory.h"

namespace kernrec {

// --- mbarrier (PTX ISA, section "mbarrier") ---

// State of a barrier, in its 8 bytes, which are opaque in PTX.
struct BarrierPhase {
    uint64_t pending : 20, expected : 20;  // arrivals
    int64_t bytes : 21;    // announced bytes that have not arrived; negative if bytes arrive first
    uint64_t parity : 1;   // 0 in the first phase, then alternates
    uint64_t is_valid : 2;  // 1 if the barrier is initialized
};
static_assert(sizeof(BarrierPhase) == 8);

// Test whether a barrier's phase is complete. `wanted` is the state or the parity for which each lane waits.
struct PhaseTest {
    Instruction barrier;
    Row wanted;
    bool is_parity = false;

    uint32_t parity(Batch& batch, uint32_t lane) const {
        return uint32_t(batch.value(wanted, lane) >> (is_parity ? 0 : 61) & 1);
    }
};

// Barriers in the shared memory of a batch of thread blocks. Errors name the lane that uses a barrier.
class Mbarriers {
  public:
    explicit Mbarriers(Batch& batch) : batch_(batch) {}

    void initialize(const LanePlace& use, int64_t count);
    void invalidate(const LanePlace& use);
    // Add to the transaction count: positive for announced bytes, negative for bytes that arrived.
    void expect(const LanePlace& use, int64_t bytes);
    // Count arrivals. Return the previous state. drops: for mbarrier.arrive_drop. completes: false for .noComplete.
    uint64_t arrive(const LanePlace& use, int64_t count, bool drops = false, bool completes = true);
    // Increase the number of arrivals for which the current phase waits (cp.async.mbarrier.arrive without .noinc).
    void await_more(const LanePlace& use, int64_t count);
    bool passed(const LanePlace& use, uint32_t parity) const { return phase(use).parity != parity; }
    BarrierPhase phase(const LanePlace& use) const;
    uint64_t completed_phases() const { return completed_; }
    // Forget the barriers of the last batch, but continue to count phases.
    void start_batch() { initialized_.clear(); }

  private:
    template <class... Parts>
    [[noreturn]] void fail(const LanePlace& use, const Parts&... parts) const;
    BarrierPhase load(SharedPlace place) const;
    void store(SharedPlace place, BarrierPhase phase);
    void settle(SharedPlace place, BarrierPhase phase);

    Batch& batch_;
    std::unordered_set<uint64_t> initialized_;
    uint64_t completed_ = 0;
};

// Return the barriers in shared memory that lanes use. Throw Fault if a lane is not ordered after a barrier's
// initialization. `changes` is true if the lanes initialize or invalidate barriers.
std::vector<LanePlace> barriers_of(Batch& batch, const Instruction& access, bool changes = false);

// Complete all cp.async copies of some lanes, or all except the `allowed` newest groups.
void finish_copies(Batch& batch, uint32_t warp, uint32_t mask, std::optional<int64_t> allowed);

// --- Bulk copies (PTX ISA, sections "cp.async.bulk" and "cp.async.bulk.tensor") ---

// One side of a bulk copy: locations of its elements, in the order of the copy.
struct CopySide {
    struct Run {
        int64_t offset;  // bytes from `start` or `address`
        uint32_t bytes;
        bool inside = true;  // if false, reads return the fill value, and writes are dropped
    };
    uint8_t* start = nullptr;
    std::vector<Run> runs;
    uint32_t element_bytes = 1;
    uint64_t fill = 0;
    bool is_shared = false;
    Span span{};           // in shared memory
    uint64_t address = 0;  // in global memory

    std::vector<uint8_t> read() const;
    void write(const std::vector<uint8_t>& data, Reduction reduction, NumberType type) const;
    void count(Batch& batch, uint32_t lane, AccessKind kind) const;
};

struct BulkCopy {
    CopySide source;
    std::vector<CopySide> targets;    // for a multicast, one target per block, at equal offsets
    std::vector<LanePlace> barriers;  // barriers that count the bytes, one per target
    uint64_t bytes = 0;               // bytes that barriers count, including those outside of a tensor
    Reduction reduction = Reduction::kNone;
    NumberType type = NumberType::kU8;
    std::vector<uint8_t> data;
    bool fetched = false;
    std::optional<AsyncRead> read;  // of the source, for race checks
    uint32_t lane = 0, site = 0;    // thread of the batch, and instruction that started the copy
};

struct WgmmaForm;

// wgmma.mma_async operations of a warpgroup in flight, and its registers (PTX ISA, sections `wgmma.fence`,
// `wgmma.commit_group` and `wgmma.wait_group`). The engine multiplies when the instruction is issued.
struct Warpgroup {
    struct InFlight {
        uint32_t source;
        const WgmmaForm* form;
        int64_t group;
        std::optional<AsyncRead> read;
    };
    int64_t committed = 0;  // number of groups
    std::deque<InFlight> in_flight;
    bool fenced = false;
    std::vector<bool> touched;  // for each row: was it accessed since the last fence
};

// Asynchronous operations finish as late as possible: none until all threads wait, and then only the oldest one for
// which a thread waits.
struct Pending {
    explicit Pending(Batch& batch) : batch(batch), mbarriers(batch), tensor(batch) {}

    void start_batch();
    // After all threads ended: finish all copies. Throw Fault if a copy still uses shared memory.
    void end_batch();
    // Start an operation of the current instruction. `barriers` count the operation. `copy`: its bulk copy, or null.
    void start(std::function<void()> finish, const std::vector<LanePlace>& barriers,
               std::shared_ptr<const BulkCopy> copy = nullptr);
    // Start the copies of an instruction. A copy without barriers joins the open bulk group of its thread.
    void start(const std::vector<std::shared_ptr<BulkCopy>>& copies);
    void commit_group(uint32_t thread) { groups_[thread].committed++; }
    // Finish all bulk groups of a thread except the `allowed` newest. If `only_read`, only read their sources.
    void wait_for_groups(uint32_t thread, size_t allowed, bool only_read);
    // Finish the oldest operation that a barrier in `awaited` counts, or else the oldest of all. Return false if no
    // operation is in flight.
    bool finish_one(const std::set<SharedPlace>& awaited = {});

    Batch& batch;
    Mbarriers mbarriers;
    std::map<uint64_t, WrittenMap> maps;        // keyed by address
    std::map<uint32_t, Warpgroup> warpgroups;   // keyed by first warp
    std::vector<uint32_t> registers;            // current number of registers of each warp, 0 if unknown
    std::map<uint32_t, uint32_t> raised;        // keyed by warp: `setmaxnreg` that requested more registers
    TensorOperations tensor;

  private:
    struct Operation {
        uint32_t source;
        std::function<void()> finish;
        std::vector<LanePlace> barriers;
        std::shared_ptr<const BulkCopy> copy;
    };
    void check_registers() const;
    void begin(BulkCopy& copy);
    void fetch(BulkCopy& copy);
    void finish(BulkCopy& copy);
    // Copies in bulk groups of a thread, oldest first, each with the number of groups that the thread committed before.
    struct Groups {
        size_t committed = 0;
        std::deque<std::pair<size_t, std::shared_ptr<BulkCopy>>> copies;
    };
    std::map<uint32_t, Groups> groups_;  // keyed by thread number in the batch
    std::deque<Operation> under_way_;  // oldest first
};

}  // namespace kernrec
