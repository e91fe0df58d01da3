// Asynchronous work of a batch: copies, arrivals at barriers, and matmuls of warpgroups and tensor memory.
#pragma once

#include <list>
#include <map>
#include <memory>
#include <optional>

#include "batch.h"
#include "tensor_memory.h"

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

struct WgmmaForm;

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
