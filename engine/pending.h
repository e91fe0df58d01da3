// Asynchronous work of a batch: copies, arrivals at barriers, and matmuls of warpgroups and tensor memory.
#pragma once

#include <list>
#include <map>
#include <memory>
#include <optional>

#include "batch.h"
#include "tensor_core.h"

namespace kernrec {

// Test whether a barrier's phase is complete: an access of 8 bytes, and the state or parity for which each lane waits.
struct PhaseTest {
    Instruction barrier;
    Row wanted;
    bool is_parity = false;
};

// While an object of this class exists, attribute errors to another instruction.
class AsInstruction {
  public:
    AsInstruction(Batch& batch, uint32_t source) : batch_(batch), before_(batch.source) { batch.source = source; }
    ~AsInstruction() { batch_.source = before_; }

  private:
    Batch& batch_;
    uint32_t before_;
};

// Return a placeholder that Python replaces by the name and line of an instruction.
inline std::string named(uint32_t source) { return "\x01" + std::to_string(source) + "\x01"; }

// Return the barriers in shared memory that lanes use. Throw Fault if a lane is not ordered after a barrier's
// initialization. `changes` is true if the lanes initialize or invalidate barriers.
std::vector<LanePlace> barriers_of(Batch& batch, const Instruction& access, bool changes = false);
// Call `act(lane, place)` for each barrier; errors name lane and barrier.
template <class Act>
void each_barrier(Batch& batch, const std::vector<LanePlace>& barriers, Act act) {
    for (const LanePlace& use : barriers) {
        try {
            act(use.lane, use.place);
        } catch (const std::invalid_argument& error) {
            batch.fail_lane(use.lane, "uses the barrier at " + batch.place_name(use.place) + ", " + error.what());
        }
    }
}

// Complete the cp.async copies of some lanes, except their `allowed` newest groups (none if not given).
void finish_copies(Batch& batch, uint32_t warp, uint32_t mask, std::optional<int64_t> allowed);

// `setmaxnreg` (PTX ISA, section "setmaxnreg"): warps of a block share the registers that they had at launch.
class RegisterPool {
  public:
    void start_batch() { held_.clear(), raised_.clear(); }
    void move(Batch& batch, uint32_t warp, uint32_t registers, bool grows);
    // Call this when all threads ended. Throw Fault if the warps of a block requested more registers than it has.
    void check_granted(const Batch& batch) const;

  private:
    std::map<uint32_t, uint32_t> held_;    // keyed by warp: current number of registers
    std::map<uint32_t, uint32_t> raised_;  // keyed by warp: instruction that requested more registers
};

// Operands of one wgmma.mma_async.
struct WgmmaForm {
    WgmmaMultiply multiply;
    Modifiers name;
    std::vector<Row> accumulators, inputs;          // registers of D, and of A if A is not in shared memory
    std::vector<uint32_t> accumulator_rows, input_rows;  // row numbers, ascending
    Row a, b;                                       // descriptors
    Row scale_d;                                    // predicate; none for `adds_d`
    bool scale_d_inverted = false, adds_d = true;
    bool a_mn_major = false, b_mn_major = false;
    int sign = 1;
};

// Each warpgroup's wgmma.mma_async operations in flight, and their registers (PTX ISA, sections `wgmma.fence`,
// `wgmma.commit_group` and `wgmma.wait_group`). The engine multiplies when the instruction is issued.
class WarpgroupOperations {
  public:
    void start_batch(Batch& batch);
    // Record a warpgroup's register accesses: row numbers, and the first instruction that accesses each.
    void touch(uint32_t group, const std::vector<Row>& rows, const std::vector<uint32_t>& sources);
    void fence(uint32_t group);
    // Start an operation that reads these bytes of the batch's shared memory.
    void start(Batch& batch, uint32_t group, const WgmmaForm& form, const std::vector<size_t>& places);
    void commit(uint32_t group) { groups_[group].committed++; }
    void wait(Batch& batch, uint32_t group, int64_t allowed);

  private:
    struct InFlight {
        uint32_t source;
        const WgmmaForm* form;
        int64_t group;
        std::optional<TileRead> read;
    };
    struct Group {
        int64_t committed = 0;
        std::vector<InFlight> in_flight;
        bool fenced = false;
        std::vector<bool> touched;  // for each row: was it accessed since the last fence
        bool any_touched = false;
    };
    std::vector<Group> groups_;
};

// Times at which each warp used parts of tensor memory, and executed fences (PTX ISA, section "tcgen05.fence"). Before
// a warp uses cells that another warp used, both must execute a fence. Compilers that omit all fences rely on barriers,
// so only kernels with fences are checked.
class TensorFences {
  public:
    void start_batch(Batch& batch);
    void fence(uint32_t warp, bool before) { (before ? before_ : after_)[warp] = now_; }
    void tick() { now_++; }
    // `use` is kLoaded, kStored or kComputed.
    void note(Batch& batch, uint32_t warp, TensorUse use, uint32_t block, const Cells& cells);
    void check(Batch& batch, uint32_t warp, std::initializer_list<TensorUse> uses, uint32_t block, const Cells& cells);

  private:
    size_t index(Batch& batch, size_t kind, uint32_t block, uint32_t warp_of_cluster, uint32_t quarter) const;
    std::vector<int64_t> used_;  // time, indexed by (kind, block, warp of the cluster, quarter of the lanes, column)
    std::vector<int64_t> before_, after_;  // indexed by warp
    int64_t now_ = 0;
};

// tcgen05 instructions in flight. A `tcgen05.commit` makes a barrier track all earlier matrix operations of its thread.
// Until the barrier's arrival, the cells of these operations are busy, and their tiles must not be written.
class TensorOperations {
  public:
    void start_batch(Batch& batch);
    // Issue an operation of a thread in the tensor memories of the operation's blocks.
    void issue(Batch& batch, uint32_t lane, const TensorOperation& operation);
    void commit(Batch& batch, uint32_t lane, std::vector<SharedPlace> places);
    void note_load(uint32_t warp, Cells cells) { loads_[warp].push_back(std::move(cells)); }
    void note_store(uint32_t warp, Cells cells) { stores_[warp].push_back(std::move(cells)); }
    void wait(Batch& batch, uint32_t warp, TensorUse use);

    std::vector<TensorMemory> memories;  // indexed by block of the batch
    TensorFences fences;

  private:
    struct Issued {
        TensorOperation operation;
        std::optional<TileRead> read;
    };
    std::map<uint32_t, std::vector<Issued>> issued_;  // keyed by lane: operations that are not committed yet
    std::map<uint32_t, std::vector<Cells>> loads_, stores_;  // keyed by warp
};

struct Pending {
    explicit Pending(Batch& batch);

    void start_batch();
    // Call this when all threads exited. Finish remaining work; throw Fault if a copy still uses shared memory.
    void end_batch();
    // Start or finish a bulk copy.
    void start_copy(BulkCopy copy);
    void start_tracked(std::shared_ptr<BulkCopy> copy);
    void finish_tracked(BulkCopy& copy);

    Batch& batch;
    Mbarriers mbarriers;
    AsyncEngine engine;
    BulkGroups bulk;
    MapFences maps;
    RegisterPool registers;
    WarpgroupOperations warpgroups;
    TensorOperations tensor;

  private:
    void begin(BulkCopy& copy);
    std::list<std::shared_ptr<BulkCopy>> under_way_;  // copies for which barriers wait
};

}  // namespace kernrec
