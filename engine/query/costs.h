// Launches of a kernel's configs on any problem.
#pragma once

#include "launch.h"
#include "space.h"

namespace kernrec::query {

// Sources of the figures of one launch, for every config.
class Launch {
   public:
    // figures: expressions for the number of blocks, the tiles that they visit (None: one each), the longest block's
    // waits, trips and depth of each loop, and the extent of each step of the grid's order (None: 1). tensors: name,
    // expression of the elements (None: the problem provides the bytes) and bytes of an element. variant: row in the
    // demand of every config, (configs,). performed: whether a config performs the launch, (configs,). geometry: blocks
    // per SM, warps and prefetch of every config, (3, configs). quick: clocks of the busiest pipe and of a lone block,
    // and joules of the core, by term, (terms, 3, configs); start_clk: overhead clocks of the quick costs. given:
    // instead of expressions, the work of every config on the only problem, (rows, configs).
    Launch(nb::object space, nb::object access, nb::object demand, nb::object device, int64_t loops, nb::list figures,
           nb::list tensors, Array<const int64_t, 1> variant, Array<const bool, 1> performed,
           Array<const double, 2> geometry, Array<const double, 3> quick, double start_clk, bool counted,
           std::optional<Array<const double, 2>> given);

    int64_t loops() const { return loops_; }
    int64_t configs() const { return int64_t(variant_.size()); }
    bool performed(int64_t row) const { return performed_[size_t(row)]; }
    int64_t variant(int64_t row) const { return variant_[size_t(row)]; }
    const Demand& demand() const { return demand_; }
    const Device& device() const { return device_; }

    // Figures of the launch on one problem.
    struct Figures {
        std::vector<Reader> readers;  // -1 in `which` if nothing reads it
        std::vector<int32_t> which;
        std::vector<double> sizes, room;

        bool has(size_t figure) const { return which[figure] >= 0; }
        double operator()(size_t figure, int64_t row) const { return readers[size_t(which[figure])](row); }
    };
    Figures on(Problem& problem) const;
    // Fill column `i` of `work` (kLoops + 2 * loops, N) for a config.
    void fill_work(Figures& figures, int64_t row, const Table<double>& work, int64_t i) const;
    // Add the approximate clocks and core joules of a config, without DRAM.
    void add_quick(Figures& figures, int64_t row, double& clocks, double& joules) const;
    double blocks(const Figures& figures, int64_t row) const {
        return has_given_ ? given_(kBlocks, row) : figures(0, row);
    }

   private:
    nb::object kept_[4];
    Space& space_;
    const Access& access_;
    const Demand& demand_;
    const Device& device_;
    int64_t loops_;
    std::vector<int32_t> figures_;        // nodes; -1 for None
    std::vector<nb::object> tensors_;     // names of the problem's tensors; None for a workspace
    std::vector<int32_t> elements_;       // nodes of the elements; -1 for a tensor of the problem
    std::vector<double> element_bytes_;
    std::vector<int64_t> variant_;
    std::vector<uint8_t> performed_;
    Array<const double, 2> kept_geometry_;
    Array<const double, 3> kept_quick_;
    std::optional<Array<const double, 2>> kept_given_;
    Table<const double> geometry_, given_;
    double start_clk_;
    bool counted_, has_given_;
};

// Kernel on a GPU: its launches, and its configs that can run.
struct Kernel {
    nb::object kept_space;
    nb::list kept_launches;
    Space* space;
    std::vector<Launch*> launches;
    std::vector<uint8_t> able;   // whether a config is profiled and fits
    std::vector<double> score;   // pick of the occupancy heuristic
    std::vector<double> shapes;  // threads, resident blocks, registers and shared bytes of the first launch, (4, configs)
    double clk_j;                // static energy per clock of a quick cost, in joules
    double byte_j;               // joules per byte between L2 and DRAM

    Kernel(nb::object space, nb::list launches, Array<const bool, 1> able, Array<const double, 1> score,
           Array<const double, 2> shapes, double clk_j, double byte_j);
};

}  // namespace kernrec::query
