// Detects data races in shared memory.
//
// For every byte, the detector records the last write, and the last read by each warp of the cluster: the warp, and the
// time on its vector clock (vector_clocks.h). An access races if it is not ordered after a conflicting access. Barriers
// of a block, of a cluster and in shared memory order warps. Lanes of one warp are not tracked, because bar.warp.sync
// and shuffles order them.
//
// Tensor cores and bulk copies read shared memory through the async proxy (PTX ISA, section "Async proxy"), some time
// after the operation is issued. No thread may write the bytes before some thread waits for the operation. A
// `fence.proxy.async` must make earlier stores of threads visible. Either the storing thread runs the fence, or another
// thread runs it after a barrier. Asynchronous copies (`cp.async`) count as visible, because compilers put no fence
// after them.
//
// While a bulk copy is in flight, any access to its target races. Afterwards, only warps that waited for the copy's
// barrier may access the target.
//
// Other blocks of the cluster must not access a block's shared memory after the block's last thread exits. Unless a
// warp of the exiting block synchronized with such an access, the access is a race (PTX ISA, section 5.1.7.1).
#pragma once

#include <cstdlib>
#include <map>
#include <memory>

#include "vector_clocks.h"

namespace kernrec {

struct Resolved;

constexpr uint32_t kPiece = 16;  // bytes tracked together

using Pieces = std::vector<uint32_t>;  // piece numbers of the batch's shared memory

// Read of shared memory by tensor cores or a bulk copy, and the warps that requested it.
struct AsyncRead {
    Pieces pieces;
    std::vector<uint32_t> warps;
};

// Access by a warp, or by the copies that a barrier counts: a column of `VectorClocks`, and the time there.
struct Access {
    uint32_t by = 0;
    int32_t time = 0;
};

// Warp at a time: its vector clock, and the lowest time that the clock has for any warp of the cluster.
struct Observer {
    uint32_t warp;
    const int32_t* seen;
    int32_t least;

    Access access() const { return {warp, seen[warp]}; }
    bool is_after(Access access) const { return access.time <= seen[access.by]; }
};

// Last reads of all bytes, or of all pieces.
class Readers {
  public:
    Readers(size_t places, uint32_t warps_per_cluster);

    static constexpr uint32_t kNobody = ~0u, kSeveral = ~1u;  // instead of the number of a warp

    void start_batch() { last_.assign(places_, {}); }
    void add(const Observer& reader, size_t place) {
        Access& last = last_[place];
        const int32_t time = reader.seen[reader.warp];
        if (last.by == reader.warp && last.time == time) return;
        int32_t& own = times(reader.warp)[place];
        own = std::max(own, time);
        const bool is_only = last.by == reader.warp || (last.by != kSeveral && reader.is_after(last));
        last = is_only ? Access{reader.warp, own} : Access{kSeveral, std::max(last.time, own)};
    }
    // Forget the readers of a place when it is written. Accesses after the write are also after these reads.
    void clear(size_t place) { last_[place] = {}; }
    // Return a warp that read a place and that is not ordered before the observer, or kSeveral, or kNobody.
    uint32_t unordered(const Observer& observer, size_t place) const {
        const Access last = last_[place];
        if (last.by != kSeveral) return observer.is_after(last) ? kNobody : last.by;
        return last.time <= observer.least ? kNobody : unordered_among_all(observer, place);
    }
    // Return the time of a warp's last read of each place.
    int32_t* times(uint32_t warp) const { return times_.get() + warp % warps_ * places_; }

  private:
    uint32_t unordered_among_all(const Observer& observer, size_t place) const;

    struct Free {
        void operator()(void* memory) const { std::free(memory); }
    };
    size_t places_;
    uint32_t warps_;
    std::vector<Access> last_;  // the last read, or kSeveral and the last time
    std::unique_ptr<int32_t, Free> times_;
};

// A place is a byte of the batch's shared memory.
class RaceDetector {
  public:
    RaceDetector(uint32_t shared_bytes, uint32_t blocks, uint32_t warps_per_block, uint32_t cluster_blocks)
        : clocks(warps_per_block * blocks),
          stride_((shared_bytes + kPiece - 1) / kPiece * kPiece),
          blocks_(blocks),
          warps_per_block_(warps_per_block),
          cluster_blocks_(cluster_blocks) {}

    void start_batch(const std::vector<int64_t>& block_numbers);
    // Record that all warps of a block, or of the blocks of a cluster, passed a barrier.
    void pass_barrier(uint32_t first_block, uint32_t blocks = 1);
    // Record that some warps of a block passed a barrier. `reach` records an earlier arrival without waiting.
    void pass_some(uint32_t block, uint32_t number, const std::vector<uint32_t>& warps);
    void reach(uint32_t block, uint32_t number, uint32_t warp) {
        reached_[{block, number}].push_back(clocks.snapshot(warp));
    }
    // Record a `fence.proxy.async` by a warp. Asynchronous operations may then read its stores, and all stores of the
    // block before the last barrier.
    void fence(uint32_t warp);
    // Throw Fault for a race. agree: whether all lanes that write to a place write the same value. is_copy: whether
    // the access is a cp.async.
    void record(uint32_t source, const std::vector<Resolved>& all, uint32_t bytes, bool write, bool agree,
                bool is_copy);

    // Record uses of barriers in shared memory. `changes` is true if the lanes initialize or invalidate them.
    void use_barriers(uint32_t source, const std::vector<LanePlace>& uses, bool changes);
    // Record that a warp arrives at a barrier (`release`), or observes that a phase is complete (`acquire`).
    void release(uint32_t warp, size_t place);
    void acquire(uint32_t warp, size_t place);

    // Begin or end a read by tensor cores or a bulk copy. `arrival` is the vector clock of the arrival that reports the
    // end, if any. Throw Fault if a store may not be visible.
    AsyncRead begin_read(uint32_t source, Pieces pieces, std::vector<uint32_t> warps);
    void end_read(const AsyncRead& read, const Knowledge* arrival = nullptr);
    // Begin or end a write by a bulk copy that a warp started and that a barrier counts.
    void begin_write(uint32_t source, uint32_t warp, Span span, size_t barrier);
    void end_write(Span span, size_t barrier);
    // Record that the last thread of a block exits.
    void end_block(uint32_t source, uint32_t block);

    static Pieces pieces_of(Span span);

    VectorClocks clocks;

  private:
    Observer observer(uint32_t warp) const;
    void check(uint32_t source, const Observer& observer, Span span, bool write) const;
    void write(Span span, Access access);
    void check_async_readers(uint32_t source, size_t piece) const;
    // Replace values of `stored_` in a block.
    template <class Change>
    void change_stores(uint32_t block, Change change);
    void make_stores_old(uint32_t block);
    std::string warp_text(uint32_t warp) const;
    [[noreturn]] void fail_at(uint32_t source, uint32_t warp, size_t place, uint32_t other, bool write,
                              bool other_wrote) const;
    [[noreturn]] void fail_ended(uint32_t source, size_t place, uint32_t user) const;

    uint32_t stride_, blocks_, warps_per_block_, cluster_blocks_;
    uint32_t warps_per_cluster_ = warps_per_block_ * cluster_blocks_;
    size_t size_ = size_t(stride_) * blocks_;  // bytes of all shared memory
    std::vector<int64_t> block_numbers_;
    std::vector<Access> writes_;  // last write of each byte
    std::multimap<size_t, Access> agreed_;  // writes of equal values by other warps at the same time, keyed by byte
    Readers reads_{size_, warps_per_cluster_};  // by threads, of each byte
    Readers async_reads_{size_ / kPiece, warps_per_cluster_};  // by finished asynchronous operations, of each piece
    std::vector<int16_t> reading_;  // number of asynchronous operations in flight that read each piece
    // Stores to each piece. 0: visible to asynchronous operations; -1: stored before a barrier; n + 1: stored by warp
    // n.
    std::vector<int16_t> stored_;
    std::vector<bool> ended_;  // indexed by block
    std::map<std::pair<uint32_t, uint32_t>, std::vector<Knowledge>>
        reached_;  // keyed by block and barrier: clocks of warps that arrived without waiting
};

}  // namespace kernrec
