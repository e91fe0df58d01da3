// Tracks reads of shared memory by tensor cores and bulk copies, through the async proxy (PTX ISA, section "Async
// proxy").
//
// These reads happen some time after the operation is issued, so no thread may write a tile before one waits for the
// operation. A `fence.proxy.async` must make stores of threads visible; the storing thread executes it, or another
// thread after a barrier. Asynchronous copies (`cp.async`) count as visible, because compilers put no fence after them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace kernrec {

using std::size_t;

constexpr uint32_t kPiece = 16;  // bytes tracked together

using Pieces = std::vector<uint32_t>;  // piece numbers of the batch's shared memory, ascending

// Tile that tensor cores are reading, and the warps that requested it.
struct TileRead {
    Pieces pieces;
    std::vector<uint32_t> warps;
};

class TensorReads {
  public:
    TensorReads(uint32_t pieces_per_block, uint32_t blocks)
        : pieces_per_block_(pieces_per_block),
          readers_(size_t(pieces_per_block) * blocks),
          stored_(size_t(pieces_per_block) * blocks) {}

    void start_batch();
    // Record that the threads of a block passed a barrier.
    void pass_barrier(uint32_t block);
    // Record that warps of a block make visible their own stores, and those of other warps before a barrier.
    void fence(uint32_t block, const std::vector<uint32_t>& warps);
    // Record a warp's write; throw Fault if an operation may still read the data.
    void write(uint32_t source, size_t place, uint32_t warp, bool is_copy);
    // Begin to read; throw Fault if a store may not be visible.
    void begin(uint32_t source, const Pieces& pieces);
    void end(const Pieces& pieces);
    // Record that a bulk copy overwrote these pieces, including earlier stores of threads.
    void fill(size_t first_byte, size_t end_byte);

    static Pieces pieces_of(size_t first_byte, size_t end_byte);
    // Return the pieces that contain these bytes.
    Pieces pieces_of(const std::vector<size_t>& places) const;

  private:
    uint32_t pieces_per_block_;
    std::vector<int16_t> readers_;
    std::vector<int16_t> stored_;  // 0: visible; -1: stored before a barrier; n + 1: stored by warp n of the batch
    uint32_t in_flight_ = 0;
};

}  // namespace kernrec
