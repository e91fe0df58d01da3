// Tensor memory of data-center Blackwell, and the tcgen05 instructions in flight (PTX ISA, section "Tensor Memory").
#pragma once

#include <array>
#include <map>
#include <optional>
#include <tuple>
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

// Kind of operation that uses cells: tcgen05.st, tcgen05.ld, the output and an input of a matrix operation.
enum class TensorUse : uint8_t { kStored, kLoaded, kComputed, kRead };

// Use of a thread block's cells by an operation of a warp.
struct CellUse {
    TensorUse kind;
    uint32_t warp, block;  // numbers in the batch
    Cells cells;
};

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

struct TensorOperation {
    std::vector<CellUse> uses;  // of the output, then of inputs
    Pieces pieces;  // of the batch's shared memory
};

// tcgen05 instructions in flight. A `tcgen05.commit` makes a barrier track all earlier matrix operations of its thread.
// Until the barrier's arrival, the cells of these operations are busy, and their tiles must not be written.
//
// Before a warp uses cells that another warp used, both must execute a fence (PTX ISA, section "tcgen05.fence").
// Compilers that omit all fences rely on barriers, so only kernels with fences are checked.
class TensorOperations {
  public:
    explicit TensorOperations(Batch& batch) : batch_(batch) {}

    void start_batch();
    // Begin to use cells. Fail if an operation in flight conflicts with the use. Also fail if no fence orders the use
    // after other warps' writes of the cells, or a write after their loads.
    void begin(const CellUse& use);
    // Start an operation of a thread. `begin` must have been called for the cells that the operation reads.
    void issue(uint32_t lane, const TensorOperation& operation);
    void commit(uint32_t lane, std::vector<SharedPlace> places);
    // Start a load or store of a warp. `wait` finishes all loads, or all stores, of the warp.
    void move(const CellUse& use);
    void wait(uint32_t warp, TensorUse kind);
    void fence(uint32_t warp, bool before) { (before ? before_ : after_)[warp] = now_; }
    void tick() { now_++; }

    std::vector<TensorMemory> memories;  // indexed by block of the batch

  private:
    static constexpr size_t kParts = 4 * kTensorColumns;  // a part is a column of 32 lanes
    static size_t part_of(Cell cell) { return size_t(cell.lane) / 32 * kTensorColumns + cell.column; }
    void check_fences(const CellUse& use) const;
    void finish(const CellUse& use);

    struct Issued {
        TensorOperation operation;
        std::optional<AsyncRead> read;
    };
    Batch& batch_;
    std::map<uint32_t, std::vector<Issued>> issued_;  // keyed by lane: operations that are not committed yet
    std::map<std::pair<uint32_t, TensorUse>, std::vector<CellUse>> moves_;  // loads and stores in flight
    bool checks_fences_ = false;
    using User = std::tuple<TensorUse, uint32_t, uint32_t>;  // kStored, kLoaded or kComputed, block, warp
    std::map<User, std::array<int64_t, kParts>> used_;       // time of the last use of each part
    std::vector<int64_t> before_, after_;  // times of fences, indexed by warp
    int64_t now_ = 0;
};

}  // namespace kernrec
