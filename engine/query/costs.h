// Launches of a kernel's configs on any problem, and their costs.
#pragma once

#include <memory>

#include "launch.h"
#include "space.h"

namespace kernrec::query {

// One launch of a kernel: expressions and arrays from which the work of each config is computed.
struct Launch {
    // Values of a launch's expressions on one problem.
    struct Figures {
        std::vector<Reader> readers;
        std::vector<double> sizes;  // bytes of a tensor, or of its elements

        bool has(size_t figure) const { return readers[figure].values != nullptr; }
    };

    Figures on(Problem& problem) const;
    // Fill `work` (kLoops + 2 * loops, N) for the configs in `rows` (N,).
    void fill_work(const Figures& figures, const std::vector<int64_t>& rows, const Table<double>& work) const;
    // Add the approximate clocks (N,) and core joules (N,) of the configs in `rows` (N,), without DRAM.
    void add_quick(const Figures& figures, const std::vector<int64_t>& rows, std::vector<double>& clocks,
                   std::vector<double>& joules) const;
    // Return whether two configs with the same combination of `domain` have the same work and variant.
    bool alike(int64_t row, int64_t other) const {
        return variant[row] == variant[other] && geometry(0, row) == geometry(0, other) &&
               geometry(1, row) == geometry(1, other) && geometry(2, row) == geometry(2, other);
    }

    struct Tensor {
        nb::object name;   // of a tensor of the problem; None for a workspace
        int32_t elements;  // node; -1 for a tensor of the problem
        double element_bytes;
    };

    Space& space;
    const Access& access;
    Demand demand;
    const Device& device;
    int64_t loops;
    // Nodes of the number of blocks, the number of visited tiles (-1: one per block), the waits of the longest block,
    // the rows of each loop in `WorkRow`, and the extent of each step of the grid (-1: 1).
    std::vector<int32_t> figures;
    std::vector<Tensor> tensors;
    std::vector<int64_t> variant;    // each config's row in `demand`
    std::vector<uint8_t> performed;  // whether each config performs this launch
    Table<const double> geometry;    // blocks per SM, warps and prefetch of each config, (3, configs)
    // Quick costs, which select promising configs, (3 * (1 + loops), configs): clocks of the busiest pipe, clocks of a
    // block that is alone on an SM, joules of the core.
    Table<const double> quick;
    double start_clk;  // overhead in quick costs
    bool counted;
    // Work of each config, (rows, configs), if there is only one problem. Replaces the expressions.
    std::optional<Table<const double>> given;
    int32_t domain = kEveryRow;  // of the tunables that the work depends on, besides the geometry
};

// Launches of a kernel on a GPU, and the configs that can run.
struct Kernel {
    Space& space;
    std::vector<Launch*> launches;
    std::vector<int64_t> able;  // configs that are profiled and fit the GPU, ascending
    Row<const double> occupancy;  // resident warps of the first launch, as a fraction of an SM's maximum
    // Threads, resident blocks, registers and shared bytes of the first launch, (4, configs).
    Table<const double> shapes;
    Table<const int64_t> codes;  // warps per block and machine code of each launch, (configs, 1 + launches)
    bool call;  // a call of a Triton function, whose configs differ only in code and grid
    double clk_j;  // joules of static energy per clock, in quick costs
    double byte_j;  // joules per byte between L2 and DRAM
    // Scores of the occupancy heuristic, in the order of `cudaOccupancyMaxPotentialBlockSize`: most resident warps come
    // first, then the largest block, then the first config.
    std::vector<double> scores;
};

// Costs of all kernels' configs on one or more problems: which configs can run, which are promising, and their time and
// energy, without and with a power limit.
struct Costs {
    // Estimated configs of a kernel, ordered by problem.
    struct Part {
        const Kernel* kernel;
        int64_t first;  // index of the first config among those of all kernels
        std::vector<std::shared_ptr<Problem>> problems;
        std::vector<std::vector<int64_t>> runnable;
        // Configs of problem i are those from starts[i] to starts[i + 1]. The occupancy heuristic picks config picks[i]
        // of these (0 if there is none).
        std::vector<int64_t> rows, starts{0}, picks;

        int64_t size() const { return int64_t(rows.size()); }
    };

    // Arguments that describe a kernel:
    //   (1) `Kernel`;
    //   (2) problems: the arguments of `Problem` after `space`;
    //   (3) configs to estimate; None for all runnable configs;
    //   (4) whether each config can run; None to use `Kernel::able`;
    //   (5) configs that are always estimated, or None;
    //   (6) costs of a separate epilogue per problem, (problems, 4), or None: `NominalCosts` without the overhead.
    using Places = std::optional<Row<const int64_t>>;
    using Arguments = std::tuple<const Kernel*, std::vector<std::tuple<nb::dict, nb::dict, bool, double, double>>,
                                 Places, std::optional<Row<const bool>>, Places, std::optional<Table<const double>>>;

    // limits: operating points or None. most: maximum number of configs to estimate per kernel and problem.
    Costs(const std::vector<Arguments>& kernels, nb::handle limits, int64_t points, int64_t most);

    // Fields of `NominalCosts` of the configs from `first` on, (5, N).
    Table<double> nominal(int64_t first, int64_t size) { return {figures.data() + first, 5, size, count, 1}; }
    // Fill the input rows of `quantities` (Q, N) for N candidates of a kernel. positions: indices of the candidates,
    // minus `first`. limited: costs under a power limit, (7, C); column 0 is the candidate with index `first`.
    void fill(const Part& part, int64_t first, const Row<const int64_t>& positions, const Table<const double>& limited,
              const Table<double>& quantities);

    std::vector<Part> parts;
    int64_t count = 0, points = 0;
    std::vector<double> figures;  // fields of `NominalCosts`, (5, configs)
    std::vector<double> longest;  // seconds of each config's longest launch, and index of its bottleneck, (2, configs)
    std::vector<double> limited;  // costs at the first operating point, (7, configs); empty without a power limit

  private:
    void choose(Part& part, const std::vector<int64_t>& able, const Places& given, const Places& ran, int64_t most);
    void estimate(Part& part, const std::optional<Table<const double>>& epilogues);
};

// Mark the `count / 2` candidates of each problem with the lowest latency and the `count / 2` with the lowest energy.
// Mark all if there are at most `count`. NaN counts as infinite. Of equal candidates, mark the first. starts: first
// candidate of each problem, then the number of all candidates.
std::vector<uint8_t> promising(const double* latency, const double* energy, const std::vector<int64_t>& starts,
                               int64_t count);

}  // namespace kernrec::query
