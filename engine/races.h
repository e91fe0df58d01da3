// Detects data races in shared memory: two threads access a byte with no barrier in between, and one of them writes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "program.h"

namespace kernrec {

struct Resolved;

constexpr uint32_t kPiece = 16;  // bytes tracked together

using Pieces = std::vector<uint32_t>;  // piece numbers of the batch's shared memory, ascending

// Tile that tensor cores are reading, and the warps that requested it.
struct TileRead {
    Pieces pieces;
    std::vector<uint32_t> warps;
};

// Reads of shared memory by tensor cores and bulk copies, through the async proxy (PTX ISA, section "Async proxy").
//
// These reads happen some time after the operation is issued, so no thread may write the bytes before some thread waits
// for the operation. A `fence.proxy.async` must make earlier stores of threads visible. Either the storing thread runs
// the fence, or another thread runs it after a barrier. Asynchronous copies (`cp.async`) count as visible, because
// compilers put no fence after them.
class TensorReads {
  public:
    TensorReads(uint32_t pieces_per_block, uint32_t blocks)
        : pieces_per_block_(pieces_per_block),
          readers_(size_t(pieces_per_block) * blocks),
          stored_(size_t(pieces_per_block) * blocks) {}

    void start_batch();
    void pass_barrier(uint32_t block);
    // Record a fence by warps. Tensor operations may then read the stores of these warps, and all stores of the block
    // before its last barrier.
    void fence(uint32_t block, const std::vector<uint32_t>& warps);
    // Record a warp's write; throw Fault if an operation may still read the data.
    void write(uint32_t source, size_t place, uint32_t warp, bool is_copy);
    // Begin to read; throw Fault if a store may not be visible.
    void begin(uint32_t source, const Pieces& pieces);
    void end(const Pieces& pieces);
    // Record that a bulk copy overwrote bytes, so earlier stores of threads need no fence.
    void fill(size_t first_byte, size_t end_byte);

    static Pieces pieces_of(size_t first_byte, size_t end_byte);
    Pieces pieces_of(const std::vector<size_t>& places) const;

  private:
    uint32_t pieces_per_block_;
    std::vector<int16_t> readers_;
    std::vector<int16_t> stored_;  // 0: visible; -1: stored before a barrier; n + 1: stored by warp n of the batch
    uint32_t in_flight_ = 0;
};

// Vector clock: the warp is ordered after events of warp u up to time `knowledge[u]` (see vector_clocks.h).
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
    // Throw Fault for a race. agree: whether all lanes that write to a place write the same value. is_copy: whether
    // the access is a cp.async.
    virtual void record(uint32_t source, const std::vector<Resolved>& all, uint32_t bytes, bool write, bool agree,
                        bool is_copy) = 0;
    // Begin or end a read of the elements at these places by tensor cores. `arrival` is the vector clock of the arrival
    // that reports the end, if any.
    virtual TileRead begin_tile(uint32_t source, const std::vector<size_t>& places, std::vector<uint32_t> warps) = 0;
    virtual void end_tile(const TileRead& tile, const Knowledge*) { tensor_reads.end(tile.pieces); }

    uint32_t stride() const { return stride_; }
    TensorReads tensor_reads;

  protected:
    // Return "warp <n> of block number <n>", and "race: <warp> writes byte <n> of shared memory".
    std::string warp_text(uint32_t warp) const;
    std::string access_text(uint32_t warp, bool write, size_t place) const;

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
