// Bulk copies, tensor maps, and addresses in a cluster.
//
// Sources: PTX ISA, sections "cp.async.bulk", "cp.async.bulk.tensor", "Tensors", "Distributed shared memory" (`mapa`)
// and "tensormap.replace".
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "batch.h"
#include "number_formats.h"
#include "reductions.h"

namespace kernrec {

// --- Addresses in a cluster (PTX ISA, sections "mapa" and "getctarank") ---

uint64_t map_to_rank(uint64_t address, uint32_t rank);
uint32_t rank_of_address(uint64_t address, uint32_t own_rank);

// --- Tensor maps (PTX ISA, sections "Tensor-map" and "tensormap.replace") ---

constexpr uint32_t kTensorMapBytes = 128;
constexpr uint32_t kMostRank = 5;

struct TensorElement {
    const char* name;  // without `.ftz`
    uint32_t bytes;
    uint64_t nan;  // bits of elements outside of the tensor, if the map asks for NaN
    std::optional<NumberType> reducible;  // type of reductions, if there are any
};

// Tensor in global memory, and the box that one copy moves. Dimension 0 is contiguous.
struct TensorMap {
    uint64_t address = 0;
    uint32_t rank = 1;
    const TensorElement* element = nullptr;
    uint32_t interleave_bytes = 0;
    uint32_t swizzle_bytes = 0;  // span in which 16-byte pieces of shared memory are permuted: 0, 32, 64 or 128
    bool fill_nan = false;       // whether elements outside of the tensor are NaN, not zero
    std::array<uint32_t, kMostRank> extents{};
    std::array<uint64_t, kMostRank - 1> strides_bytes{};
    std::array<uint32_t, kMostRank> box{};
    std::array<uint32_t, kMostRank> steps{};  // element stride of each dimension

    uint32_t moved(uint32_t axis) const { return (box[axis] + steps[axis] - 1) / steps[axis]; }
    uint64_t elements() const;
    uint64_t box_bytes() const { return elements() * element->bytes; }
    // Distance in bytes between the starts of two rows of the box in shared memory.
    uint32_t row_pitch() const { return swizzle_bytes ? swizzle_bytes : moved(0) * element->bytes; }
    uint64_t shared_bytes() const { return elements() / moved(0) * row_pitch(); }
    void check() const;  // throw if no copy can use the map
};

// Decode and check the 128 bytes of a tensor map, in the layout of `kernrec.ptx.TensorMap`. NVIDIA does not publish the
// driver's layout. Throw std::invalid_argument with the reason if the bytes are invalid.
TensorMap decode_tensor_map(const uint8_t* bytes);
// Return the tensor map at a lane's generic address; throw Fault if no copy can use it.
TensorMap tensor_map_at(Batch& batch, uint32_t lane, uint64_t address);

// `tensormap.replace`: replace one field of a map in memory. Return whether the field exists.
bool replace_tensor_map_field(uint8_t* bytes, const std::string& field, int64_t ordinal, uint64_t value);

struct CopyRun {
    int64_t offset;  // bytes from the start of the tensor, or of shared memory
    uint32_t bytes;
    bool inside = true;  // if false, reads return the fill value, and writes are dropped
};
// Return the locations of a box, dimension 0 fastest. `corner` is the position of the first element. The box must fit
// in shared memory: a malicious map may describe terabytes, and a list of all locations would fill the CPU's memory.
std::vector<CopyRun> box_runs(const TensorMap& map, const std::array<int32_t, kMostRank>& corner);
// Return the locations of four rows of a matrix (.tile::gather4, .tile::scatter4).
std::vector<CopyRun> row_runs(TensorMap map, const std::array<int32_t, kMostRank>& column_and_rows);
// Return the locations of a box's elements in shared memory, starting at byte `start`.
std::vector<CopyRun> shared_runs(const TensorMap& map, uint32_t start);

uint64_t reduce(Reduction reduction, NumberType type, uint64_t old, uint64_t value);

// One side of a bulk copy: locations of its elements, in the order of the copy.
struct CopySide {
    struct Run {
        uint8_t* at;  // null if the element is outside of the tensor
        uint32_t bytes;
    };
    std::vector<Run> runs;
    uint32_t element_bytes = 1;
    uint64_t fill = 0;
    uint64_t bytes = 0;               // bytes inside the tensor
    bool is_shared = false;
    SharedPlace place{};              // in shared memory
    Span span{};                      // in shared memory
    std::vector<Batch::Moved> moved;  // accessed ranges of global memory

    std::vector<uint8_t> read() const;
    void write(const std::vector<uint8_t>& data, Reduction reduction, NumberType type) const;
    void count(Batch& batch, uint32_t lane, AccessKind kind) const {
        if (is_shared) batch.count_bulk_shared(bytes, kind);
        else batch.count_bulk(moved, lane, kind);
    }
};

struct BulkCopy {
    CopySide source;
    std::vector<CopySide> targets;    // for a multicast, one target per block, at equal offsets
    std::vector<LanePlace> barriers;  // barriers that count the bytes, one per target
    uint64_t bytes = 0;               // bytes that barriers count, including those outside of a tensor
    Reduction reduction = Reduction::kNone;
    NumberType type = NumberType::kU8;
    std::vector<uint8_t> data;
    bool fetched = false;
    std::function<void()> on_fetch;  // called after the source was read
    uint32_t lane = 0, site = 0;     // thread of the batch, and instruction that started the copy

    void fetch();
    void store();
};

// Bulk groups of each thread (cp.async.bulk.commit_group, .wait_group), indexed by thread number in the batch.
class BulkGroups {
  public:
    void start(std::shared_ptr<BulkCopy> copy);
    void commit(uint32_t thread);
    // Finish all groups of a thread except the `allowed` newest. If `only_read`, only read the sources of the groups.
    void wait(uint32_t thread, size_t allowed, bool only_read);
    void finish_all();
    // Return a copy that is still reading shared memory, or null.
    const BulkCopy* unfinished() const;
    void clear() { groups_.clear(); }

  private:
    using Group = std::vector<std::shared_ptr<BulkCopy>>;
    // Groups of copies of each thread, oldest first. New copies join the last group. Threads may have no entry.
    std::map<uint32_t, std::deque<Group>> groups_;
};

// Fences of tensor maps that a kernel wrote to global memory (PTX ISA, section "fence.proxy.tensormap").
class MapFences {
  public:
    void write(uint64_t address, bool released);
    void release();
    void acquire(uint64_t address, uint32_t block);
    // Return the fence that a block needs before its copies may use a map, or an empty text if it needs none.
    std::string missing(uint64_t address, uint32_t block) const;
    void clear() { maps_.clear(); }

  private:
    struct State {
        bool released;
        std::vector<uint32_t> acquired;  // blocks that acquired the map since the last write
    };
    std::map<uint64_t, State> maps_;
};

}  // namespace kernrec
