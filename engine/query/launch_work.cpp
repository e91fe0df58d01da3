// Launches of configs on a problem: work from expression values, costs, and quick costs.
#include "launch.h"
#include "program.h"

namespace kernrec::query {

Demand::Demand(Rates rates_of, bool grouped, bool stretched)
    : rates(rates_of.data()), variants(int64_t(rates_of.shape(0))), terms(int64_t(rates_of.shape(1))),
      quantities(int64_t(rates_of.shape(2))), grouped(grouped), stretched(stretched), kept_(rates_of) {
    require(terms > 0 && quantities >= (stretched ? kQuantityCount : kInTurn), "rates: expected (variants, terms, Q)");
}

namespace {

constexpr double kNotKnown = std::numeric_limits<double>::quiet_NaN();

// Add one launch of configs to their costs before any power limit.
//
// places: columns of the configs in `nominal`, each once, (N,). byte_j: DRAM joules per byte. nominal: fields of
// `NominalCosts` as rows, (5, C). longest: for the longest launch of each config so far, seconds of core or DRAM and
// its `kResource`, (2, C).
void add_launch(const Row<const int64_t>& places, const Table<const double>& times, const Table<const double>& work,
                double byte_j, const Table<double>& nominal, const Table<double>& longest) {
    require(nominal.rows == 5 && longest.rows == 2 && longest.columns == nominal.columns && times.rows == kTimes &&
                times.columns == places.size && work.columns == places.size && work.rows >= kLoops &&
                all_within(places, 0, nominal.columns),
            "places: expected places in the costs");
    for (int64_t i = 0; i < places.size; i++) {
        const int64_t place = places[i];
        nominal(0, place) += times(kCoreTime, i);
        nominal(1, place) += times(kDramTime, i);
        nominal(2, place) += kLaunchS;
        nominal(3, place) += times(kCoreJoules, i);
        nominal(4, place) += work(kDramBytes, i) * byte_j;
        const double part_s = maximum(times(kCoreTime, i), times(kDramTime, i));
        longest(1, place) = part_s > longest(0, place) ? times(kResource, i) : longest(1, place);
        longest(0, place) = maximum(part_s, longest(0, place));
    }
}

void checked_launch_times(const Demand& demand, const Device& device, int64_t loops,
                          Array<const int64_t, 1> variants_of, Array<const double, 2> work_of,
                          Array<double, 2> pipe_clk_of, Array<double, 2> times_of) {
    const Row<const int64_t> variants(variants_of);
    const Table<const double> work(work_of);
    const Table<double> pipe_clk(pipe_clk_of), times(times_of);
    const int64_t count = variants.size;
    require(loops >= 0 && loops < demand.terms && work.rows >= kLoops + 2 * loops && work.columns == count &&
                pipe_clk.rows == kPipes && pipe_clk.columns == count && times.rows == kTimes &&
                times.columns == count && all_within(variants, 0, demand.variants),
            "launches: expected variants of the demand, and as many columns everywhere");
    launch_times(demand, device, loops, variants, work, pipe_clk, times);
}

// A launch of configs on any problem: locations of its values in a program, and its tensors.
class LaunchPlan {
   public:
    // registers: register and index of the blocks, of the tiles that they visit (-1: one each), of the longest block's
    // waits, of trips and depth of each loop, of the extent of each step of the grid's order (-1: 1), and of the
    // elements of each tensor (-1: the problem provides the bytes). variant: row in the demand of every config,
    // (configs,). geometry: blocks per SM, warps and prefetch of every config, (3, configs).
    LaunchPlan(nb::object program, Array<const int64_t, 1> registers, int64_t loops, nb::object access,
               nb::object demand, nb::object device, Array<const int64_t, 1> variant)
        : kept_{program, access, demand, device}, program_(nb::cast<const Program&>(program)),
          registers_(copied(Row<const int64_t>(registers))), loops_(loops),
          access_(nb::cast<const Access&>(access)), demand_(nb::cast<const Demand&>(demand)),
          device_(nb::cast<const Device&>(device)), variant_(copied(Row<const int64_t>(variant))) {
        require(loops >= 0 && loops < demand_.terms &&
                    registers_.size() == 2 * size_t(3 + 2 * loops + access_.steps) + 2 * access_.scratch.size(),
                "registers: expected two numbers of each figure");
        require(demand_.variants > 0 && all_within(Row<const int64_t>(variant), 0, demand_.variants),
                "variant: expected variants of the demand");
        require(program_.configs == int64_t(variant_.size()), "variant: expected one of each config");
        for (size_t i = 0; i < registers_.size(); i += 2)
            require(registers_[i] == -1 || program_.readable(registers_[i], registers_[i + 1], program_.configs),
                    "registers: expected those of the program");
        for (const size_t figure : {0, 4}) require(registers_[figure] >= 0, "registers: expected blocks and waits");
        for (size_t i = 6; i < size_t(6 + 4 * loops); i += 2)
            require(registers_[i] >= 0, "registers: expected trips of each loop");
    }

    // Fill `variants` and `work` of the launches `first` to `last` - 1, which belong to one problem.
    void fill_work(const Execution& execution, const Row<const int64_t>& rows, const Table<const double>& geometry,
                   const Row<const double>& sizes, int64_t first, int64_t last, const Row<int64_t>& variants,
                   const Table<double>& work) const {
        check(execution, rows, geometry, first, last);
        require(sizes.size == int64_t(access_.scratch.size()) && variants.size == rows.size &&
                    work.columns == rows.size && work.rows == kLoops + 2 * loops_,
                "work: expected a column of each launch");
        std::vector<double> room(access_.room());
        for (int64_t i = first; i < last; i++) {
            const int64_t row = rows[i];
            size_t next = 0;
            const auto figure = [&] { return execution.value(registers_[next], registers_[next + 1], row); };
            variants[i] = variant_[size_t(row)];
            const double blocks = figure();
            work(kBlocks, i) = blocks;
            work(kConcurrent, i) = geometry(0, row);
            work(kWarps, i) = geometry(1, row);
            work(kPrefetch, i) = geometry(2, row);
            next = 2;
            double visits = blocks, together = geometry(0, row) * device_.sms;
            if (registers_[next] >= 0) visits = figure(), together = minimum(together, blocks);
            next = 4;
            work(kLoneWaits, i) = figure();
            next = 6;
            double total = 0.0;
            for (int64_t loop = 0; loop < loops_; loop++) {
                const double trips = figure();
                total = total + trips;
                work(kLoops + 2 * loop, i) = trips;
                next += 2;
                work(kLoops + 2 * loop + 1, i) = figure();
                next += 2;
            }
            work(kDramSlowdown, i) = 1.0;
            work(kSerialClk, i) = 0.0;
            work(kWaitRounds, i) = total / blocks;
            work(kOverlapped, i) = kNotKnown;
            for (int64_t step = 0; step < access_.steps; step++, next += 2)
                room[size_t(step)] = registers_[next] >= 0 ? figure() : 1.0;
            for (int64_t tensor = 0; tensor < sizes.size; tensor++, next += 2)
                room[size_t(2 * access_.steps + tensor)] =
                    registers_[next] >= 0 ? figure() * sizes[tensor] : sizes[tensor];
            work(kDramBytes, i) = access_.moved_bytes(visits, together, room, device_.l2_bytes);
        }
    }

    // Add the approximate clocks and core joules of launches, without DRAM.
    //
    // rates: `LaunchGeometry.quick`, (terms, 3, configs). start_clk: overhead clocks of each launch. places: columns of
    // the configs in `clocks` and `joules`, each once, (N,).
    void add_quick(const Execution& execution, const Row<const int64_t>& rows, const Table<const double>& geometry,
                   Array<const double, 3> rates_of, double start_clk, int64_t first, int64_t last,
                   const Row<const int64_t>& places, const Row<double>& clocks, const Row<double>& joules) const {
        check(execution, rows, geometry, first, last);
        require(int64_t(rates_of.shape(0)) > loops_ && rates_of.shape(1) == 3 &&
                    int64_t(rates_of.shape(2)) == geometry.columns && places.size == rows.size &&
                    all_within(places, 0, clocks.size) && joules.size == clocks.size,
                "quick costs: expected rates of each config, and a place of each launch");
        const auto rates = rates_of.view();
        for (int64_t i = first; i < last; i++) {
            const int64_t row = rows[i], place = places[i];
            const size_t config = size_t(row);
            const auto figure = [&](size_t next) {
                return execution.value(registers_[next], registers_[next + 1], row);
            };
            const double blocks = figure(0);
            double busiest = rates(0, 0, config), alone = rates(0, 1, config), trips = 0.0;
            double dynamic = rates(0, 2, config) * blocks;
            for (int64_t loop = 0; loop < loops_; loop++) {
                const size_t next = size_t(6 + 4 * loop), term = size_t(loop + 1);
                const double depth = figure(next + 2);
                trips = trips + depth;
                busiest = busiest + rates(term, 0, config) * depth;
                alone = alone + rates(term, 1, config) * depth;
                dynamic = dynamic + rates(term, 2, config) * figure(next);
            }
            const double waits = trips * (device_.memory_clk / maximum(geometry(2, row), 1.0));
            const double per_sm = std::ceil(blocks / device_.sms);
            const double rounds = std::ceil(per_sm / geometry(0, row));
            clocks[place] = clocks[place] + start_clk +
                            maximum(per_sm * busiest, rounds * (maximum(alone, waits) + device_.memory_clk));
            joules[place] = joules[place] + dynamic;
        }
    }

    // Add launches to their costs, from the values of `fill_work`. Fill `pipe_clk` (kPipes, N) and `times` (kTimes, N).
    void add_costs(Array<const int64_t, 1> variants, Array<const double, 2> work, Array<const int64_t, 1> places,
                   double byte_j, Array<double, 2> pipe_clk, Array<double, 2> times, Array<double, 2> nominal,
                   Array<double, 2> longest) const {
        checked_launch_times(demand_, device_, loops_, variants, work, pipe_clk, times);
        const Table<double> filled(times);
        add_launch(places, {filled.data, filled.rows, filled.columns, filled.row_step, filled.step}, work, byte_j,
                   nominal, longest);
    }

   private:
    void check(const Execution& execution, const Row<const int64_t>& rows, const Table<const double>& geometry,
               int64_t first, int64_t last) const {
        const int64_t configs = program_.configs;
        require(geometry.rows == 3 && geometry.columns == configs && 0 <= first && first <= last &&
                    last <= rows.size && all_within(rows, 0, configs),
                "rows: expected configs of the space");
        require(&execution.program() == &program_, "execution: expected the plan's program");
    }

    nb::object kept_[4];
    const Program& program_;
    std::vector<int64_t> registers_;
    int64_t loops_;
    const Access& access_;
    const Demand& demand_;
    const Device& device_;
    std::vector<int64_t> variant_;
};

}  // namespace

void bind_launches(nb::module_& module) {
    const auto exact = [] { return nb::arg().noconvert(); };
    using Rows = Array<const int64_t, 1>;
    using Doubles = Array<const double, 2>;
    nb::class_<Device>(module, "Device")
        .def("__init__",
             [](Device* self, double clock_hz, double sms, double l2_bytes, double dram_byte_s, double memory_clk,
                double l2_clk_per_sector, double l2_latency_clk, bool few_f64, double core_time, double dram_time) {
                 new (self) Device{clock_hz, sms, l2_bytes, dram_byte_s, memory_clk, l2_clk_per_sector, l2_latency_clk,
                                   few_f64, core_time, dram_time};
             });
    nb::class_<Demand>(module, "Demand").def(nb::init<Demand::Rates, bool, bool>(), exact(), nb::arg(),
                                             nb::arg());
    nb::class_<LaunchPlan>(module, "LaunchPlan")
        .def(nb::init<nb::object, Rows, int64_t, nb::object, nb::object, nb::object, Rows>(), nb::arg(), exact(),
             nb::arg(), nb::arg(), nb::arg(), nb::arg(), exact())
        .def("fill_work",
             [](const LaunchPlan& plan, const Execution& execution, Rows rows, Doubles geometry,
                Array<const double, 1> sizes, int64_t first, int64_t last, Array<int64_t, 1> variants,
                Array<double, 2> work) {
                 plan.fill_work(execution, rows, geometry, sizes, first, last, variants, work);
             },
             nb::arg(), exact(), exact(), exact(), nb::arg(), nb::arg(), exact(), exact())
        .def("add_quick",
             [](const LaunchPlan& plan, const Execution& execution, Rows rows, Doubles geometry,
                Array<const double, 3> rates, double start_clk, int64_t first, int64_t last, Rows places,
                Array<double, 1> clocks, Array<double, 1> joules) {
                 plan.add_quick(execution, rows, geometry, rates, start_clk, first, last, places, clocks, joules);
             },
             nb::arg(), exact(), exact(), exact(), nb::arg(), nb::arg(), nb::arg(), exact(), exact(), exact())
        .def("add_costs", &LaunchPlan::add_costs, exact(), exact(), exact(), nb::arg(), exact(), exact(), exact(),
             exact());
    module.def("launch_times", &checked_launch_times, nb::arg(), nb::arg(), nb::arg(), exact(), exact(), exact(),
               exact());
    module.def("round_clk", &round_clk);
    module.def("add_launch",
               [](Rows places, Doubles times, Doubles work, double byte_j, Array<double, 2> nominal,
                  Array<double, 2> longest) { add_launch(places, times, work, byte_j, nominal, longest); },
               exact(), exact(), exact(), nb::arg(), exact(), exact());
    for (const auto& [name, value] : {std::pair{"LAUNCH_S", kLaunchS}, {"START_S", kStartS},
                                      {"BARRIER_CLK", kBarrierClk}, {"BARRIER_WARP_CLK", kBarrierWarpClk},
                                      {"SCHEDULERS", kSchedulers}, {"OVERLAP", kOverlap}})
        module.attr(name) = value;
}

}  // namespace kernrec::query
