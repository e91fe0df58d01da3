// Tensor memory of data-center Blackwell, and the tcgen05 instructions in flight (PTX ISA, section "Tensor Memory").
#pragma once

#include <array>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "batch.h"

namespace kernrec {

constexpr uint32_t kTensorLanes = 128;
constexpr uint32_t kTensorColumns = 512;

struct Cell {
    uint32_t lane;
    uint32_t column;
};
using Cells = std::vector<Cell>;

// Operation in flight that uses cells: tcgen05.st, tcgen05.ld, the output and an input of a matrix operation.
enum class TensorUse : uint8_t { kStored, kLoaded, kComputed, kRead };

// Tensor memory of one thread block, with operations in flight.
class TensorMemory {
  public:
    explicit TensorMemory(Batch& batch) : batch_(&batch) {}

    uint32_t allocate(uint32_t columns);
    void release(uint32_t address, uint32_t columns);
    void relinquish() { closed_ = true; }
    // Fail if columns were not released at the end of the kernel.
    void check_released() const;

    // Start an operation on cells, and finish it. Fail if an operation in flight hinders it.
    void begin(TensorUse use, const Cells& cells);
    void finish(TensorUse use, const Cells& cells);

    uint32_t value(Cell cell) const { return cells_[index(cell)]; }
    void put(Cell cell, uint32_t value) { cells_[index(cell)] = value; }

  private:
    struct Allocation {
        uint32_t first, columns, source;
    };
    static size_t index(Cell cell) { return size_t(cell.lane) * kTensorColumns + cell.column; }
    void check(const Cells& cells, const std::vector<TensorUse>& hindrances) const;

    Batch* batch_;
    std::vector<uint32_t> cells_;
    std::array<std::vector<int16_t>, 4> under_way_;
    std::vector<Allocation> allocations_;
    bool closed_ = false;
};

// Times at which each warp used parts of tensor memory, and executed fences (PTX ISA, section "tcgen05.fence"). Before
// a warp uses cells that another warp used, both must execute a fence. Compilers that omit all fences rely on barriers,
// so only kernels with fences are checked.
class TensorFences {
  public:
    void start_batch(const Batch& batch);
    void fence(uint32_t warp, bool before) { (before ? before_ : after_)[warp] = now_; }
    void tick() { now_++; }
    // `use` is kLoaded, kStored or kComputed.
    void note(uint32_t warp, TensorUse use, uint32_t block, const Cells& cells);
    // Fail if the current use is not ordered after the writes of the cells by other warps. A write must also be ordered
    // after their loads.
    void check(const Batch& batch, uint32_t warp, TensorUse now, uint32_t block, const Cells& cells) const;

  private:
    static constexpr size_t kParts = 4 * kTensorColumns;  // a part is a column of 32 lanes
    static size_t part_of(Cell cell) { return size_t(cell.lane) / 32 * kTensorColumns + cell.column; }
    size_t index(TensorUse use, uint32_t block, uint32_t warp) const {
        return ((size_t(use) * blocks_ + block) * cluster_warps_ + warp % cluster_warps_) * kParts;
    }
    uint32_t blocks_ = 0, cluster_warps_ = 0;
    std::vector<int64_t> used_;  // time, indexed by (use, block, warp of the cluster, part)
    std::vector<int64_t> before_, after_;  // indexed by warp
    int64_t now_ = 0;
};

struct TensorOperation {
    struct BlockCells {
        uint32_t block;  // position in the batch
        Cells cells;
    };
    std::vector<BlockCells> read;
    std::vector<BlockCells> written;
    std::vector<size_t> places;  // bytes of the batch's shared memory: the start of each element
};

// tcgen05 instructions in flight. A `tcgen05.commit` makes a barrier track all earlier matrix operations of its thread.
// Until the barrier's arrival, the cells of these operations are busy, and their tiles must not be written.
class TensorOperations {
  public:
    void start_batch(Batch& batch);
    // Begin to use cells.
    void begin(const Batch& batch, uint32_t warp, TensorUse use, uint32_t block, const Cells& cells);
    // Start an operation of a thread. `begin` must have been called for the cells that the operation reads.
    void issue(Batch& batch, uint32_t lane, const TensorOperation& operation);
    void commit(Batch& batch, uint32_t lane, std::vector<SharedPlace> places);
    // Start a warp's loads or stores, and finish all of them.
    void move(const Batch& batch, uint32_t warp, TensorUse use, Cells cells);
    void wait(const Batch& batch, uint32_t warp, TensorUse use);

    std::vector<TensorMemory> memories;  // indexed by block of the batch
    TensorFences fences;

  private:
    struct Issued {
        TensorOperation operation;
        std::optional<AsyncRead> read;
    };
    std::map<uint32_t, std::vector<Issued>> issued_;  // keyed by lane: operations that are not committed yet
    std::map<std::pair<uint32_t, TensorUse>, std::vector<Cells>> moves_;  // keyed by warp: loads and stores
};

}  // namespace kernrec
