// Detects races in kernels that order warps and copies by barriers in shared memory.
//
// For every byte, the detector records the last writer, the time of its write, and the time of the last read by each
// warp of the cluster. Times are those of vector clocks. An access races if it is not ordered after a conflicting
// access. While a bulk copy is in flight, any access to its target races. Afterwards, only warps that waited for the
// copy's barrier may access the target. No thread may write the source of a bulk copy before the copying thread waits
// for it. No thread may write an operand of a tensor core operation before some thread waits for the operation.
//
// Other blocks of the cluster must not access a block's shared memory after the block's last thread exits. Unless a
// warp of the exiting block synchronized with such an access, the access is a race (PTX ISA, section 5.1.7.1).
#pragma once

#include <cstdlib>
#include <map>
#include <memory>

#include "races.h"
#include "vector_clocks.h"

namespace kernrec {

class PhaseRaces : public RaceDetector {
  public:
    PhaseRaces(uint32_t shared_bytes, uint32_t blocks, uint32_t warps_per_block, uint32_t cluster_blocks);

    void start_batch(const std::vector<int64_t>& block_numbers) override;
    void pass_barrier(uint32_t block) override { join(block, 1); }
    void pass_some(uint32_t block, uint32_t number, const std::vector<uint32_t>& warps) override;
    void reach(uint32_t block, uint32_t number, uint32_t warp) override;
    void pass_cluster_barrier(uint32_t first, uint32_t count) override { join(first, count); }
    void record(uint32_t source, const std::vector<Resolved>& all, uint32_t bytes, bool write, bool agree,
                bool is_copy) override;
    TileRead begin_tile(uint32_t source, const std::vector<size_t>& places, std::vector<uint32_t> warps) override;
    void end_tile(const TileRead& tile, const Knowledge* arrival) override;

    // Record events of a barrier in shared memory. An arrival releases. Observing a complete phase acquires.
    void release(uint32_t warp, size_t place);
    void acquire(uint32_t warp, size_t place) { clocks.acquire(warp, place); }
    struct Touch {
        uint32_t warp;
        size_t place;
    };
    void initialize(uint32_t source, const std::vector<Touch>& uses);
    void use(uint32_t source, const std::vector<Touch>& uses);
    // Record the blocks in which lanes observed a complete phase.
    void pass_phase(const std::vector<uint32_t>& blocks);
    // Record that the last thread of a block exits.
    void end_block(uint32_t source, uint32_t block);

    // Record a bulk copy that a lane of a warp started.
    void begin_write(uint32_t source, uint32_t warp, Span span, size_t barrier);
    void end_write(Span span, size_t barrier);
    Pieces begin_read(uint32_t source, uint32_t warp, Span span);
    void end_read(uint32_t warp, Span span, const Pieces& pieces);

    VectorClocks clocks;

  private:
    void join(uint32_t first, uint32_t count);
    void check(uint32_t source, const std::vector<Touch>& touches, size_t bytes, bool write);
    int32_t* read_of(uint32_t warp) { return read_.get() + warp % warps_per_cluster_ * size_; }
    int32_t* tile_read_of(uint32_t warp) { return tile_read_.data() + warp % warps_per_cluster_ * (size_ / kPiece); }
    [[noreturn]] void fail_at(uint32_t source, uint32_t warp, size_t place, uint32_t other, bool write,
                              bool other_wrote);
    [[noreturn]] void fail_ended(uint32_t source, size_t place, int64_t reader);

    struct Free {
        void operator()(void* memory) const { std::free(memory); }
    };
    uint32_t cluster_blocks_, warps_per_cluster_, blocks_;
    size_t size_;  // bytes of all shared memory
    std::vector<uint32_t> writer_;  // last writer of each byte: a column of `VectorClocks`
    std::vector<int32_t> written_;  // time of the last write of each byte
    std::unique_ptr<int32_t, Free> read_;  // last read of each byte by each warp of the cluster
    std::vector<int32_t> tile_read_;  // time of the last read by tensor cores, by warp and piece
    std::vector<bool> ended_;  // indexed by block
    std::map<std::pair<uint32_t, uint32_t>, std::vector<Knowledge>>
        reached_;  // keyed by block and barrier: clocks of warps that arrived without waiting
};

}  // namespace kernrec
