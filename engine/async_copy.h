// Asynchronous copies, tensor maps, barriers in shared memory, and cluster addresses.
//
// Sources: PTX ISA, sections "cp.async.bulk", "cp.async.bulk.tensor", "Tensors", "mbarrier", "Distributed shared
// memory" (`mapa`) and "tensormap.replace". Functions throw std::invalid_argument with the reason; callers add the
// instruction.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "memory.h"
#include "number_formats.h"

namespace kernrec {

// --- Addresses in a cluster (PTX ISA, sections "mapa" and "getctarank") ---

// A shared address below 2^24 is in the block's own memory. For another block, `mapa` adds the block's rank plus one
// above these bits. NVIDIA does not publish how a GPU encodes the rank.
constexpr uint32_t kRankShift = 24;
constexpr uint32_t kRankBits = 5;

uint64_t map_to_rank(uint64_t address, uint32_t rank);
uint32_t rank_of_address(uint64_t address, uint32_t own_rank);

// Byte of the shared memory of a batch of thread blocks.
struct SharedPlace {
    uint32_t block;  // number of the block in the batch
    uint32_t byte;

    uint64_t key() const { return uint64_t(block) << 32 | byte; }
    bool operator==(const SharedPlace& other) const { return key() == other.key(); }
    bool operator<(const SharedPlace& other) const { return key() < other.key(); }
};

// --- mbarrier (PTX ISA, section "mbarrier") ---

constexpr int64_t kMostArrivals = (1 << 20) - 1;  // maximum number of arrivals per phase, and of pending bytes

// State of a barrier. Its 8 bytes are opaque in PTX. Here, bits 0 to 19 hold pending arrivals, 20 to 39 expected
// arrivals, 40 to 60 the transaction count, and 61 the parity. The two highest bits are 01 if the barrier is
// initialized.
struct BarrierPhase {
    int64_t pending;
    int64_t expected;
    int64_t bytes;    // announced bytes that have not arrived; negative if bytes arrive first
    uint32_t parity;  // 0 in the first phase, then alternates

    uint64_t word() const;
};
// Decode a word; throw if it is not an initialized barrier.
BarrierPhase barrier_phase(uint64_t word);
inline uint32_t parity_of_token(uint64_t token) { return uint32_t(token >> 61 & 1); }

// Barriers in the shared memory of a batch of thread blocks.
class Mbarriers {
  public:
    // `word_at` returns the 8 bytes at a place, and the barriers call `on_completion` when a phase completes.
    Mbarriers(std::function<uint8_t*(SharedPlace)> word_at, std::function<void(SharedPlace)> on_completion)
        : word_at_(std::move(word_at)), on_completion_(std::move(on_completion)) {}

    void initialize(SharedPlace place, int64_t count);
    void invalidate(SharedPlace place);
    // Add to the transaction count: positive for announced bytes, negative for bytes that arrived.
    void expect(SharedPlace place, int64_t bytes);
    // Count arrivals; return the previous word. `drops` is for mbarrier.arrive_drop, and `completes` is false for
    // .noComplete.
    uint64_t arrive(SharedPlace place, int64_t count, bool drops = false, bool completes = true);
    // Increase the number of arrivals for which this phase waits (cp.async.mbarrier.arrive without .noinc).
    void await_more(SharedPlace place, int64_t count);
    // Return whether the phase with this parity is complete.
    bool passed(SharedPlace place, uint32_t parity) const;
    BarrierPhase phase(SharedPlace place) const { return barrier_phase(load(place)); }
    uint64_t completed_phases() const { return completed_; }
    // Forget the barriers of the last batch, but continue to count phases.
    void start_batch() { initialized_.clear(); }

  private:
    uint64_t load(SharedPlace place) const;
    void store(SharedPlace place, uint64_t word);
    void settle(SharedPlace place, BarrierPhase phase);

    std::function<uint8_t*(SharedPlace)> word_at_;
    std::function<void(SharedPlace)> on_completion_;
    std::unordered_set<uint64_t> initialized_;
    uint64_t completed_ = 0;
};

// --- Tensor maps (PTX ISA, sections "Tensor-map" and "tensormap.replace") ---

constexpr uint32_t kTensorMapBytes = 128;
constexpr uint32_t kMostRank = 5;

enum class TensorElement : uint8_t {
    kU8,
    kU16,
    kU32,
    kS32,
    kU64,
    kS64,
    kF16,
    kF32,
    kF32Ftz,
    kF64,
    kBf16,
    kTf32,
    kTf32Ftz
};

const char* tensor_element_name(TensorElement type);  // without `.ftz`

// Tensor in global memory, and the box that one copy moves; dimension 0 is contiguous.
struct TensorMap {
    uint64_t address = 0;
    uint32_t rank = 1;
    TensorElement type = TensorElement::kU8;
    uint32_t interleave_bytes = 0;
    uint32_t swizzle_bytes = 0;  // span in which 16-byte pieces of shared memory are permuted: 0, 32, 64 or 128
    bool fill_nan = false;       // whether elements outside of the tensor are NaN, not zero
    std::array<uint32_t, kMostRank> extents{};
    std::array<uint64_t, kMostRank - 1> strides_bytes{};
    std::array<uint32_t, kMostRank> box{};
    std::array<uint32_t, kMostRank> steps{};  // element stride of each dimension

    uint32_t element_bytes() const;
    uint32_t moved(uint32_t axis) const { return (box[axis] + steps[axis] - 1) / steps[axis]; }
    uint64_t elements() const;
    uint64_t box_bytes() const { return elements() * element_bytes(); }
    // Return the bytes between rows of the box in shared memory: with a swizzle, its whole span.
    uint32_t row_pitch() const { return swizzle_bytes ? swizzle_bytes : moved(0) * element_bytes(); }
    uint64_t shared_bytes() const { return elements() / moved(0) * row_pitch(); }
    uint64_t fill() const;  // bits of elements outside of the tensor
    void check() const;     // throw if no copy can use the map
};

// Decode and check 128 bytes in the layout of `kernrec.ptx.TensorMap`, because the driver's layout is not published.
TensorMap decode_tensor_map(const uint8_t* bytes);

// `tensormap.replace`: replace one field of a map in memory.
void replace_tensor_map_field(uint8_t* bytes, const std::string& field, int64_t ordinal, uint64_t value);

// Swap the 16-byte pieces of an address in shared memory (PTX ISA, section "Swizzling modes").
inline uint32_t swizzled(uint32_t address, uint32_t span_bytes) {
    return span_bytes ? address ^ (address >> 3 & (span_bytes - 16)) : address;
}

// Contiguous part of a copy.
struct CopyRun {
    int64_t offset;  // bytes from the start of the tensor, or of shared memory
    uint32_t bytes;
    bool inside = true;  // if false, reads return the fill value, and writes are dropped
};
// Return the box whose first element has these coordinates, dimension 0 fastest. Before the call, compare
// `shared_bytes()` with the size of shared memory, because malicious maps describe terabytes.
std::vector<CopyRun> box_runs(const TensorMap& map, const std::array<int32_t, kMostRank>& corner);
// Return four rows of a matrix (.tile::gather4, .tile::scatter4); coordinates are a column and four rows.
std::vector<CopyRun> row_runs(const TensorMap& map, const std::array<int32_t, kMostRank>& column_and_rows);
// Return the locations of a box's elements in shared memory, starting at byte `start`.
std::vector<CopyRun> shared_runs(const TensorMap& map, uint32_t start);
TensorMap with_four_rows(TensorMap map);

// Type and operation of cp.reduce.async.bulk.
enum class Reduction : uint8_t { kNone, kAdd, kMin, kMax, kInc, kDec, kAnd, kOr, kXor };
Reduction reduction_of(const std::string& name);  // kNone if there is no such reduction
// Return the new bits of an element in memory.
uint64_t reduce(Reduction reduction, NumberType type, uint64_t old, uint64_t value);
NumberType reducible_type(TensorElement type, bool& reducible);

// One side of a bulk copy: locations of its elements, in the order of the copy.
struct CopySide {
    struct Run {
        uint8_t* at;  // null if the element is outside of the tensor
        uint32_t bytes;
    };
    std::vector<Run> runs;
    uint32_t element_bytes = 1;
    uint64_t fill = 0;

    std::vector<uint8_t> read() const;
    void write(const std::vector<uint8_t>& data, Reduction reduction, NumberType type) const;
};

// Copy that a thread started.
struct BulkCopy {
    CopySide source;
    std::vector<CopySide> targets;      // for a multicast, one target per block, at equal offsets
    std::vector<SharedPlace> barriers;  // barriers that count the bytes, one per target
    uint64_t bytes = 0;                 // bytes that barriers count, including those outside of a tensor
    Reduction reduction = Reduction::kNone;
    NumberType type = NumberType::kU8;
    std::vector<uint8_t> data = {};
    bool fetched = false;
    std::function<void()> on_fetch = {};  // called after the source was read
    uint32_t lane = 0, site = 0;          // thread of the batch, and instruction that started the copy
    // Ranges of the batch's shared memory that the copy reads and writes: first byte and end.
    std::optional<std::pair<size_t, size_t>> source_span = {};
    std::vector<std::pair<size_t, size_t>> target_spans = {};
    std::vector<uint32_t> reading = {};  // with race checks: pieces of the source

    void fetch();
    void store();
};

// Bulk groups of each thread (cp.async.bulk.commit_group, .wait_group), indexed by thread number in the batch.
class BulkGroups {
  public:
    void start(uint32_t thread, BulkCopy copy) { open_[thread].push_back(std::move(copy)); }
    void commit(uint32_t thread);
    // Finish all groups of a thread except the `allowed` newest. If `only_read`, only read the sources of the groups.
    void wait(uint32_t thread, size_t allowed, bool only_read);
    void finish_all();
    // Return a copy with race checks that is still reading, or null.
    const BulkCopy* unfinished() const;
    void clear() { open_.clear(), committed_.clear(); }

  private:
    std::map<uint32_t, std::vector<BulkCopy>> open_;
    std::map<uint32_t, std::deque<std::vector<BulkCopy>>> committed_;
};

// Asynchronous operations of a batch, oldest first. They finish as late as possible: only when all threads wait, the
// oldest operation that any of them waits for finishes.
class AsyncEngine {
  public:
    void start(std::function<void()> finish, std::vector<SharedPlace> barriers);
    // Finish the oldest operation that one of these barriers counts, or else the oldest of all. Return false if there
    // is none.
    bool finish_one(const std::set<SharedPlace>& awaited = {});
    void clear() { under_way_.clear(); }

  private:
    struct Operation {
        std::function<void()> finish;
        std::vector<SharedPlace> barriers;
    };
    std::deque<Operation> under_way_;
};

// Fences of tensor maps that a kernel wrote to global memory (PTX ISA, section "fence.proxy.tensormap").
class MapFences {
  public:
    void write(uint64_t address, bool released);
    void release();
    void acquire(uint64_t address, uint32_t block);
    // Return the fence that a block needs before its copies may use a map, or an empty text if it needs none.
    std::string missing(uint64_t address, uint32_t block) const;
    void clear() { released_.clear(), acquired_.clear(); }

  private:
    std::map<uint64_t, bool> released_;
    std::set<std::pair<uint64_t, uint32_t>> acquired_;
};

}  // namespace kernrec
