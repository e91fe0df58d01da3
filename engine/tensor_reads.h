// Shared memory that tensor cores and bulk copies read through the async proxy (PTX ISA, section "Async proxy").
//
// They read some time after they were issued. So nobody may write a tile until its operation was waited for, and what
// threads stored must be made visible by `fence.proxy.async`: of the thread that stored it, or of another one past a
// barrier. Asynchronous copies (`cp.async`) count as visible: compilers put no fence behind them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace kernrec {

using std::size_t;

constexpr uint32_t kPiece = 16;  // bytes that are watched together

using Pieces = std::vector<uint32_t>;  // numbers of pieces of the batch's shared memory, ascending

// A tile that tensor cores read at present, and the warps that asked for it.
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
    // Threads of a block passed a barrier.
    void pass_barrier(uint32_t block);
    // Warps of a block make visible what they stored, and what others stored before a barrier.
    void fence(uint32_t block, const std::vector<uint32_t>& warps);
    // A warp writes; throws Fault if an operation may still read it.
    void write(uint32_t source, size_t place, uint32_t warp, bool is_copy);
    // Begin to read; throws Fault if some of it may not be visible.
    void begin(uint32_t source, const Pieces& pieces);
    void end(const Pieces& pieces);
    // A bulk copy wrote these pieces: what threads stored there is gone.
    void fill(size_t first_byte, size_t end_byte);

    static Pieces pieces_of(size_t first_byte, size_t end_byte);
    // The pieces that have one of these bytes.
    Pieces pieces_of(const std::vector<size_t>& places) const;

   private:
    uint32_t pieces_per_block_;
    std::vector<int16_t> readers_;
    std::vector<int16_t> stored_;  // 0: visible; -1: stored before a barrier; n + 1: stored by warp n of the batch
    uint32_t in_flight_ = 0;
};

}  // namespace kernrec
