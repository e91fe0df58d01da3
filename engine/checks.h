// Detects behavior that no correct kernel has: data races, reads of unwritten memory, accesses beyond an array of
// shared memory, wrong masks, barriers in divergent code. The checks collect findings, and the launch continues.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "memory.h"

namespace kernrec {

class Batch;
class Definedness;
struct BasicBlock;
struct Instruction;
struct Resolved;

struct Finding {
    const char* kind;
    int64_t source, other;  // PTX instructions of this access and of the conflicting access (or -1)
    std::string block, thread, other_block, other_thread;
    std::string memory;  // name of the buffer, or of the array in shared memory
    int64_t offset;      // byte offset of the access in this memory
    uint32_t bytes;      // size of the access in bytes
};

struct SharedArray {
    std::string name;
    uint32_t start, size;

    bool holds(int64_t address) const { return address >= start && address < int64_t(start) + size; }
};

// Data that one instruction moved: sectors of global memory, or wavefronts of shared memory.
struct SiteCounts {
    uint64_t requests = 0, lanes = 0, bytes = 0, moved = 0, ideal = 0, atomics = 0;
};

// Bits of `Watch::roles`: a volatile, relaxed or similar access; a warp-level instruction; an integer division.
constexpr uint8_t kSynchronizes = 1, kGathers = 2, kDivides = 4;

// Checks of a launch, and their findings. Batches run one after another.
struct Watch {
    // Last write and last read of a granule: a byte of shared memory, or a few adjacent bytes of global memory. Writer
    // and reader are block numbers, from 1 on. Lanes are numbered within the batch. A time is the number of earlier
    // accesses of the batch. Marks in `read_lane` tell whether other lanes or warps read the granule, too.
    struct Granule {
        int32_t writer, reader;
        uint32_t write_source, read_source, write_time, read_time, write_lane, read_lane;
    };
    struct Shadow {
        std::unique_ptr<Granule[], decltype(&std::free)> granules{nullptr, &std::free};
        std::vector<bool> written;  // for each byte; empty if the buffer was initialized
    };

    std::vector<SharedArray> arrays;
    std::vector<uint32_t> uninitialized;  // numbers of the buffers that were not initialized
    bool shared_memory = true, global_races = true, values = true;
    std::vector<Shadow> shadows;
    std::vector<uint8_t> roles;      // for each instruction: a combination of kSynchronizes, kGathers and kDivides
    int64_t granule = 4;             // bytes; 1 for a kernel with accesses smaller than words
    std::vector<Finding> findings;
    std::vector<SiteCounts> sites;  // indexed by instruction

    SiteCounts& site(uint32_t source) {
        if (source >= sites.size()) sites.resize(source + 1);
        return sites[source];
    }
    void add(Finding finding);
};

class Checks {
  public:
    explicit Checks(const Batch& batch);
    ~Checks();

    void start_batch(const std::vector<int64_t>& block_numbers);
    void record(Batch& batch, const Instruction& ins, const std::vector<Resolved>& all, uint32_t bytes,
                AccessKind kind);
    void pass_barrier(uint32_t block) { block_time_[block] = time_; }
    // Record that an operation runs. Lanes of a warp may converge there. `is_first` marks the first of
    // the operations of a PTX instruction.
    void before(Batch& batch, const BasicBlock& block, const Instruction& ins, bool is_first);
    // Record that asynchronous copies to shared memory start, or that the copy of one lane to `place` ends.
    void start_copies(const std::vector<Resolved>& targets, uint32_t bytes);
    void end_copy(uint32_t lane, size_t place, uint32_t bytes);
    // Check a completed barrier: the lanes of a warp must have waited at the same instruction.
    // waiting: lanes at the barrier, in ascending order.
    void open(const Batch& batch, const std::vector<Waiting>& waiting);

  private:
    void pass_warps(Batch& batch, const BasicBlock& block, uint32_t source);
    // Earlier access that races with the current access.
    struct Conflict {
        int32_t block;  // from 1 on, or kSeveral
        uint32_t source, lane;
        bool one_lane, one_warp;  // no other lane or warp read the granule
    };
    // Record an access to a granule, and return a conflict. agrees: a write does not conflict, because all values are
    // equal. records: whether to record a write. across_blocks: whether accesses of other blocks conflict. In shared
    // memory of a cluster, they do not, because barriers of the cluster may order them.
    std::optional<Conflict> touch(Watch::Granule& granule, uint32_t source, uint32_t lane, AccessKind kind, bool agrees,
                                  bool records, bool across_blocks);
    void shared(Batch& batch, const Instruction& ins, const Resolved& at, uint32_t bytes, AccessKind kind, bool plain);
    void global(Batch& batch, const Instruction& ins, const Resolved& at, uint32_t bytes, AccessKind kind, bool plain);
    // Return the number of a lane's block, from 1 on.
    int32_t block_of(uint32_t lane) const { return int32_t(block_numbers_[lane / kWarp / warps_per_block_]) + 1; }
    // Return whether no barrier separates the access of `other` at `time` from the current access of `lane`.
    bool unordered(uint32_t lane, uint32_t other, uint32_t time) const;
    void report(const char* kind, Batch& batch, const Instruction& ins, uint32_t lane, int64_t other,
                uint32_t other_lane, const std::string& memory, int64_t offset, uint32_t bytes);
    // Return the array that contains an address, or else the last array before the address.
    const SharedArray& array_at(int64_t address) const;

    Watch& watch_;
    std::unique_ptr<Definedness> definedness_;  // null if values are not checked
    uint32_t warps_per_block_;
    // Byte of shared memory. in_flight: an asynchronous copy to it has not ended.
    struct Cell : Watch::Granule {
        bool written, in_flight;
    };
    std::vector<Cell> cells_;
    std::vector<uint32_t> block_time_, warp_time_;  // time of the last barrier
    std::vector<int64_t> block_numbers_;
    uint32_t time_ = 0;  // number of accesses so far
};

}  // namespace kernrec
