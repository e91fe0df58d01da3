// Detects data races in shared memory: two threads access a byte with no barrier in between, and one of them writes.
#pragma once

#include <cstdint>
#include <vector>

#include "program.h"
#include "tensor_reads.h"

namespace kernrec {

struct Resolved;

// Time up to which a warp is ordered after each other warp (vector_clocks.h).
using Knowledge = std::vector<int32_t>;

// Interface of the race detectors. A place is a byte of the batch's shared memory.
class RaceDetector {
  public:
    RaceDetector(uint32_t shared_bytes, uint32_t blocks, uint32_t warps_per_block);
    virtual ~RaceDetector() = default;

    virtual void start_batch(const std::vector<int64_t>& block_numbers);
    virtual void pass_barrier(uint32_t block) = 0;
    // Record that some warps of a block waited at a barrier, and that others arrived without waiting.
    virtual void pass_some(uint32_t block, uint32_t number, const std::vector<uint32_t>& warps) = 0;
    virtual void reach(uint32_t, uint32_t, uint32_t) {}
    // Record that all blocks of a cluster, starting with `first`, passed the barrier of the cluster.
    virtual void pass_cluster_barrier(uint32_t first, uint32_t count);
    // Throw Fault for a race. `agree` is true if lanes that write to one place write the same value; `is_copy` is true
    // for cp.async.
    virtual void record(uint32_t source, const std::vector<Resolved>& all, uint32_t bytes, bool write, bool agree,
                        bool is_copy) = 0;
    // Begin or end a read of the elements at these places by tensor cores. `arrival` is the vector clock of the arrival
    // that reports the end, if any.
    virtual TileRead begin_tile(uint32_t source, const std::vector<size_t>& places, std::vector<uint32_t> warps) = 0;
    virtual void end_tile(const TileRead& tile, const Knowledge*) { tensor_reads.end(tile.pieces); }

    uint32_t stride() const { return stride_; }
    TensorReads tensor_reads;

  protected:
    uint32_t stride_, warps_per_block_;
    std::vector<int64_t> block_numbers_;
};

// The last writing and last reading warp of every byte of shared memory since the block's last barrier, or a mark for
// several warps. Lanes of one warp are not tracked, because bar.warp.sync and shuffles order them.
class BarrierRaces : public RaceDetector {
  public:
    BarrierRaces(uint32_t shared_bytes, uint32_t blocks, uint32_t warps_per_block);

    void start_batch(const std::vector<int64_t>& block_numbers) override;
    void pass_barrier(uint32_t block) override;
    void pass_some(uint32_t block, uint32_t, const std::vector<uint32_t>&) override { pass_barrier(block); }
    void record(uint32_t source, const std::vector<Resolved>& all, uint32_t bytes, bool write, bool agree,
                bool is_copy) override;
    TileRead begin_tile(uint32_t source, const std::vector<size_t>& places, std::vector<uint32_t> warps) override;

  private:
    [[noreturn]] void fail(uint32_t source, const std::vector<Resolved>& all, uint32_t bytes, bool write,
                           bool among_itself = false);

    std::vector<int16_t> writer_, reader_;
};

}  // namespace kernrec
