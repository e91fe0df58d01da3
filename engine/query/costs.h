// Launches of a kernel's configs on any problem, and their costs.
#pragma once

#include <memory>

#include "launch.h"
#include "space.h"

namespace kernrec::query {

// One launch of a kernel: expressions and arrays from which the work of each config is computed.
class Launch {
  public:
    // figures: expressions of the number of blocks, the number of visited tiles (None: one per block), the waits of the
    // longest block, the rows of each loop in `WorkRow`, and the extent of each step of the grid (None: 1).
    // tensors: name, expression of the elements (None: the problem provides the bytes), bytes of an element.
    // variant: each config's row in `demand`. performed: whether each config performs this launch.
    // geometry: blocks per SM, warps and prefetch of each config, (3, configs).
    // quick: quick costs, which select promising configs, (1 + loops, 3, configs): clocks of the busiest pipe, clocks
    // of a block that is alone on an SM, joules of the core. start_clk: overhead in quick costs.
    // given: the work of each config on the only problem, (rows, configs); replaces the expressions.
    Launch(nb::object space, nb::object access, nb::object demand, nb::object device, int64_t loops, nb::list figures,
           nb::list tensors, Array<const int64_t, 1> variant, Array<const bool, 1> performed,
           Array<const double, 2> geometry, Demand::Rates quick, double start_clk, bool counted,
           std::optional<Array<const double, 2>> given);

    int64_t loops() const { return loops_; }
    int64_t configs() const { return int64_t(variant_.size()); }
    bool performed(int64_t row) const { return performed_[size_t(row)]; }
    int64_t variant(int64_t row) const { return variant_[size_t(row)]; }
    // Combinations of the tunables that the work depends on, besides the geometry; null if each config has its own.
    const Domain* groups() const { return groups_ > 1 ? &space_.domain(groups_) : nullptr; }
    // Return whether two configs with the same combination have the same work and variant.
    bool alike(int64_t row, int64_t other) const {
        return variant(row) == variant(other) && geometry_(0, row) == geometry_(0, other) &&
               geometry_(1, row) == geometry_(1, other) && geometry_(2, row) == geometry_(2, other);
    }
    const Demand& demand() const { return demand_; }
    const Device& device() const { return device_; }

    // Values of a launch's expressions on one problem.
    struct Figures {
        std::vector<std::optional<Reader>> readers;
        std::vector<double> sizes;  // bytes of a tensor, or of its elements

        bool has(size_t figure) const { return readers[figure].has_value(); }
        double operator()(size_t figure, int64_t row) const { return (*readers[figure])(row); }
    };
    Figures on(Problem& problem) const;
    // Fill `work` (kLoops + 2 * loops, N) for the configs in `rows` (N,).
    void fill_work(const Figures& figures, const std::vector<int64_t>& rows, const Table<double>& work) const;
    // Add the approximate clocks (N,) and core joules (N,) of the configs in `rows` (N,), without DRAM.
    void add_quick(const Figures& figures, const std::vector<int64_t>& rows, std::vector<double>& clocks,
                   std::vector<double>& joules) const;
    double blocks(const Figures& figures, int64_t row) const {
        return kept_given_ ? given_(kBlocks, row) : figures(0, row);
    }

  private:
    nb::object kept_[4];
    Space& space_;
    const Access& access_;
    const Demand& demand_;
    const Device& device_;
    int64_t loops_;
    int32_t groups_ = 0;
    std::vector<int32_t> figures_;        // nodes; -1 for None
    std::vector<nb::object> tensors_;     // names of the problem's tensors; None for a workspace
    std::vector<int32_t> elements_;       // nodes of the elements; -1 for a tensor of the problem
    std::vector<double> element_bytes_;
    std::vector<int64_t> variant_;
    std::vector<uint8_t> performed_;
    Array<const double, 2> kept_geometry_;
    Demand::Rates quick_;
    std::optional<Array<const double, 2>> kept_given_;
    Table<const double> geometry_, given_;
    double start_clk_;
    bool counted_;
};

// Launches of a kernel on a GPU, and the configs that can run.
struct Kernel {
    nb::object kept_space;
    nb::list kept_launches;
    Space* space;
    std::vector<Launch*> launches;
    std::vector<int64_t> able;  // configs that are profiled and fit the GPU, ascending
    std::vector<double> occupancy;  // resident warps of the first launch, as a fraction of an SM's maximum
    // Scores of the occupancy heuristic, in the order of `cudaOccupancyMaxPotentialBlockSize`: most resident warps come
    // first, then the largest block, then the first config.
    std::vector<double> scores;
    Table<const int64_t> codes;  // warps per block and machine code of each launch, (configs, 1 + launches)
    bool call;  // a call of a Triton function, whose configs differ only in code and grid
    std::vector<double>
        shapes;  // threads, resident blocks, registers and shared bytes of the first launch, (4, configs)
    double clk_j;  // joules of static energy per clock, in quick costs
    double byte_j;  // joules per byte between L2 and DRAM

    Kernel(nb::object space, nb::list launches, Array<const bool, 1> able, Array<const double, 1> occupancy,
           Array<const double, 2> shapes, Array<const int64_t, 2> codes, bool call, double clk_j, double byte_j);

  private:
    Array<const int64_t, 2> kept_codes_;  // keeps Python's array alive
};

// Times of a launch on a problem, for some configs of a kernel. Configs with the same variant and work share a column:
// on some problems, two in three configs are duplicates.
class LaunchTimes {
  public:
    std::vector<int64_t> places, columns;  // configs that perform the launch, and their columns of `times`
    Table<const double> work, pipe_clk, times;

    // Compute the times of a launch, unless the last call had the same arguments.
    void compute(const Launch& launch, Problem& problem, const int64_t* rows, int64_t count);

  private:
    // Arguments of the last call: launch, problem and all of its rows.
    const Launch* launch_ = nullptr;
    int64_t problem_ = 0;
    std::vector<int64_t> all_, rows_, variants_;
    std::vector<int32_t> in_group_, columns_;  // last row of each group, and column of each row
    std::vector<double> room_;
    std::vector<int32_t> latest_;  // columns by the first bits of their digests
};

// Costs of all kernels' configs on one or more problems: which configs can run, which are promising, and their time and
// energy, without and with a power limit.
class Costs {
  public:
    using Figures = std::shared_ptr<double[]>;

    // Estimated configs of a kernel, ordered by problem.
    struct Part {
        nb::object kept;
        const Kernel* kernel;
        std::vector<std::shared_ptr<Problem>> problems;
        std::vector<std::vector<int64_t>> runnable;
        std::vector<int64_t> rows, starts{0}, picks;
        std::optional<Array<const double, 2>> epilogues;
        int64_t first;  // index of the first config among those of all kernels
    };

    // kernels: one tuple per kernel:
    //   (1) `Kernel`;
    //   (2) problems: the arguments of `Problem` after `space`;
    //   (3) configs to estimate; None for all runnable configs;
    //   (4) whether each config can run; None to use `Kernel::able`;
    //   (5) configs that are always estimated, or None;
    //   (6) costs of a separate epilogue per problem, (problems, 4), or None: `NominalCosts` without the overhead.
    // limits: operating points or None. most: maximum number of configs to estimate per kernel and problem.
    Costs(nb::list kernels, nb::handle limits, int64_t points, int64_t most);

    int64_t count() const { return count_; }
    int64_t points() const { return points_; }
    const std::vector<Part>& parts() const { return parts_; }
    // Fields of `NominalCosts` of the configs from `first` on, (5, N).
    Table<const double> nominal(int64_t first, int64_t count) const {
        return {nominal_.get() + first, 5, count, count_, 1};
    }
    double longest_resource(int64_t column) const { return longest_[count_ + column]; }
    // Costs at the first operating point, (7, configs); empty without a power limit.
    const double* limited() const { return limited_.data(); }
    // Fill the input rows of `quantities` (Q, N) for N candidates of a kernel. positions: indices of the candidates,
    // minus `first`. limited: costs under a power limit, (7, C); column 0 is the candidate with index `first`.
    void fill(const Part& part, int64_t first, const Row<const int64_t>& positions, const Table<const double>& limited,
              const Table<double>& quantities) const;

    nb::object nominal_array() const;
    nb::object longest_array() const;
    // Return for each kernel (starts, picks, counts). Configs of problem i are those from starts[i] to starts[i + 1].
    // The heuristic picks config picks[i] of these (None: no config). counts[i] is the number of runnable configs.
    nb::list kernels() const;
    nb::object rows(size_t kernel) const { return numpy(parts_.at(kernel).rows); }
    nb::object runnable(size_t kernel, size_t problem) const { return numpy(parts_.at(kernel).runnable.at(problem)); }
    // Return the pipe clocks (kPipes, 1), times (kTimes, 1) and DRAM bytes (1,) of each launch that the config at a
    // position performs. Positions count from the kernel's first config.
    nb::list launches(size_t kernel, int64_t position) const;

  private:
    void add(nb::tuple each, int64_t most);
    void choose(Part& part, const std::vector<int64_t>& able, const std::optional<Row<const int64_t>>& given,
                const Row<const int64_t>& kept_rows, int64_t most);
    void estimate(Part& part);

    std::vector<Part> parts_;
    int64_t count_ = 0, points_ = 0;
    Figures nominal_, longest_;
    std::vector<double> limited_;
};

// Mark the `count / 2` candidates with the lowest latency and the `count / 2` with the lowest energy. Mark all if there
// are at most `count`. NaN counts as infinite. Of equal candidates, mark the first.
void mark_promising(const double* latency, const double* energy, int64_t size, int64_t count, uint8_t* chosen);

}  // namespace kernrec::query
