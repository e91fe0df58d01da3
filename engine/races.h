// Data races in shared memory: two threads access one byte, at least one of them writes, with no barrier between.
#pragma once

#include <cstdint>
#include <vector>

#include "program.h"
#include "tensor_reads.h"

namespace kernrec {

struct Resolved;

// How far a warp knows the others (vector_clocks.h).
using Knowledge = std::vector<int32_t>;

// What the detectors have in common. A place is a byte of the shared memory of the batch.
class RaceDetector {
   public:
    RaceDetector(uint32_t shared_bytes, uint32_t blocks, uint32_t warps_per_block);
    virtual ~RaceDetector() = default;

    virtual void start_batch(const std::vector<int64_t>& block_numbers);
    virtual void pass_barrier(uint32_t block) = 0;
    // Some warps of a block waited at a barrier, at which others arrived that did not wait.
    virtual void pass_some(uint32_t block, uint32_t number, const std::vector<uint32_t>& warps) = 0;
    virtual void reach(uint32_t, uint32_t, uint32_t) {}
    // All blocks of a cluster, from `first` on, passed its barrier.
    virtual void pass_cluster_barrier(uint32_t first, uint32_t count);
    // Throws Fault for a race; `agree`: lanes that write to one place write the same; `is_copy`: cp.async.
    virtual void record(uint32_t source, const std::vector<Resolved>& all, uint32_t bytes, bool write, bool agree,
                        bool is_copy) = 0;
    // Tensor cores begin to read the elements at these places, and have read them; `arrival`: the knowledge of the
    // arrival that tells of it, if one does.
    virtual TileRead begin_tile(uint32_t source, const std::vector<size_t>& places, std::vector<uint32_t> warps) = 0;
    virtual void end_tile(const TileRead& tile, const Knowledge*) { tensor_reads.end(tile.pieces); }

    uint32_t stride() const { return stride_; }
    TensorReads tensor_reads;

   protected:
    uint32_t stride_, warps_per_block_;
    std::vector<int64_t> block_numbers_;
};

// For every byte of shared memory: which warp wrote it last and which read it last, or that several did, in the present
// barrier interval of its block. Lanes of one warp are ordered by bar.warp.sync and shuffles, which are not followed.
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
