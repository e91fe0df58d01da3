// Races in kernels whose warps and copies are ordered by barriers in shared memory.
//
// For every byte: who wrote it last and when, and when each warp of the cluster read it last, in the times of
// vector_clocks.h. An access is part of a race if it does not know of one that conflicts with it. The target of a bulk
// copy is known to nobody while it is under way, and to those who waited for its barrier afterwards; its source must not
// be written before its thread waited for its group. Tensor cores have read a tile when their operation was waited for.
//
// With the last thread of a block its shared memory is gone: some warp of it must know by then of everything that other
// blocks of its cluster did there, and nobody may do anything there afterwards (PTX ISA, section 5.1.7.1).
#pragma once

#include <cstdlib>
#include <map>
#include <memory>

#include "races.h"
#include "vector_clocks.h"

namespace kernrec {

// Bytes of the batch's shared memory.
struct Span {
    size_t first, end;
};

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

    // A warp arrives at a barrier in shared memory, saw a phase of it complete, or initializes or uses it.
    void release(uint32_t warp, size_t place);
    void acquire(uint32_t warp, size_t place);
    struct BarrierUse {
        uint32_t warp;
        size_t place;
    };
    void initialize(uint32_t source, const std::vector<BarrierUse>& uses);
    void use(uint32_t source, const std::vector<BarrierUse>& uses);
    // Blocks in which lanes saw a phase complete.
    void pass_phase(const std::vector<uint32_t>& blocks);
    // The last thread of a block exits.
    void end_block(uint32_t source, uint32_t block);

    // A bulk copy that a lane of a warp started.
    void begin_write(uint32_t source, uint32_t warp, Span span, size_t barrier);
    void end_write(Span span, size_t barrier);
    Pieces begin_read(uint32_t source, uint32_t warp, Span span);
    void end_read(uint32_t warp, Span span, const Pieces& pieces);

    VectorClocks clocks;

   private:
    struct Touch {
        uint32_t warp;
        size_t place;
    };
    void join(uint32_t first, uint32_t count);
    void check(uint32_t source, const std::vector<Touch>& touches, size_t bytes, bool write);
    int32_t* read_of(uint32_t warp) { return read_.get() + warp % warps_per_cluster_ * size_; }
    int32_t* tile_read_of(uint32_t warp) { return tile_read_.data() + warp % warps_per_cluster_ * (size_ / kPiece); }
    [[noreturn]] void fail_at(uint32_t source, uint32_t warp, size_t place, uint32_t other, bool write, bool other_wrote);
    [[noreturn]] void fail_ended(uint32_t source, size_t place, int64_t reader);

    struct Free {
        void operator()(void* memory) const { std::free(memory); }
    };
    uint32_t cluster_blocks_, warps_per_cluster_, blocks_;
    size_t size_;                                  // bytes of all shared memory
    std::vector<uint32_t> writer_;                 // column of the clocks
    std::vector<int32_t> written_;                 // its time
    std::unique_ptr<int32_t, Free> read_;          // by warp of the cluster; most of it is never looked at
    std::vector<int32_t> tile_read_;               // the same by piece, of tensor cores
    std::vector<bool> ended_;                      // by block
    std::map<std::pair<uint32_t, uint32_t>, std::vector<Knowledge>> reached_;  // of those that did not wait
};

}  // namespace kernrec
