// Work and quick costs of a launch's configs on a problem, from the values of expressions.
#include "costs.h"

namespace kernrec::query {

Demand::Demand(Rates rates_of, bool grouped, bool stretched)
    : rates(rates_of.data()),
      variants(int64_t(rates_of.shape(0))),
      terms(int64_t(rates_of.shape(1))),
      quantities(int64_t(rates_of.shape(2))),
      grouped(grouped),
      stretched(stretched),
      kept_(rates_of) {
    require(terms > 0 && quantities >= (stretched ? kQuantityCount : kInTurn), "rates: expected (variants, terms, Q)");
}

Launch::Launch(nb::object space, nb::object access, nb::object demand, nb::object device, int64_t loops,
               nb::list figures, nb::list tensors, Array<const int64_t, 1> variant, Array<const bool, 1> performed,
               Array<const double, 2> geometry, Array<const double, 3> quick, double start_clk, bool counted,
               std::optional<Array<const double, 2>> given)
    : kept_{space, access, demand, device},
      space_(nb::cast<Space&>(space)),
      access_(nb::cast<const Access&>(access)),
      demand_(nb::cast<const Demand&>(demand)),
      device_(nb::cast<const Device&>(device)),
      loops_(loops),
      variant_(copied(Row<const int64_t>(variant))),
      kept_geometry_(geometry),
      kept_quick_(quick),
      kept_given_(given),
      geometry_(geometry),
      start_clk_(start_clk),
      counted_(counted),
      has_given_(given.has_value()) {
    const Row<const bool> some(performed);
    for (int64_t row = 0; row < some.size; row++) performed_.push_back(some[row]);
    for (const nb::handle figure : figures) figures_.push_back(figure.is_none() ? -1 : space_.add(figure));
    for (const nb::handle tensor : tensors) {
        const bool own = !nb::object(tensor[1]).is_none();
        tensors_.push_back(own ? nb::none() : nb::object(tensor[0]));
        elements_.push_back(own ? space_.add(tensor[1]) : -1);
        element_bytes_.push_back(nb::cast<double>(tensor[2]));
    }
    const int64_t configs = space_.count();
    require(loops >= 0 && loops < demand_.terms && int64_t(figures_.size()) == 3 + 2 * loops + access_.steps &&
                tensors_.size() == access_.scratch.size(),
            "launch: expected the figures of its loops and the tensors of its access");
    require(demand_.variants > 0 && int64_t(variant_.size()) == configs &&
                all_within(Row<const int64_t>(variant), 0, demand_.variants) && int64_t(performed_.size()) == configs,
            "launch: expected a variant of each config");
    require(geometry_.rows == 3 && geometry_.columns == configs && int64_t(quick.shape(0)) == demand_.terms &&
                quick.shape(1) == 3 && int64_t(quick.shape(2)) == configs,
            "launch: expected the geometry of each config");
    if (has_given_) {
        given_ = Table<const double>(*given);
        require(given_.rows == kLoops + 2 * loops && given_.columns == configs, "launch: expected work of each config");
        return;
    }
    for (size_t figure = 0; figure < size_t(3 + 2 * loops); figure++)
        require(figures_[figure] >= 0 || figure == 1, "launch: expected blocks, waits and trips");
}

Launch::Figures Launch::on(Problem& problem) const {
    require(&problem.space() == &space_, "launch: expected a problem of the space");
    Figures figures;
    if (has_given_) return figures;
    figures.room.resize(access_.room());
    const auto read = [&](int32_t node) {
        figures.which.push_back(node < 0 ? -1 : int32_t(figures.readers.size()));
        if (node >= 0) figures.readers.push_back(space_.read(node, &problem));
    };
    for (const int32_t node : figures_) read(node);
    for (size_t tensor = 0; tensor < tensors_.size(); tensor++) {
        read(elements_[tensor]);
        figures.sizes.push_back(elements_[tensor] < 0 ? problem.tensor_bytes(tensors_[tensor])
                                                      : element_bytes_[tensor]);
    }
    return figures;
}

void Launch::fill_work(Figures& figures, int64_t row, const Table<double>& work, int64_t i) const {
    if (has_given_) {
        for (int64_t each = 0; each < given_.rows; each++) work(each, i) = given_(each, row);
        return;
    }
    const double blocks = figures(0, row);
    work(kBlocks, i) = blocks;
    work(kConcurrent, i) = geometry_(0, row);
    work(kWarps, i) = geometry_(1, row);
    work(kPrefetch, i) = geometry_(2, row);
    double visits = blocks, together = geometry_(0, row) * device_.sms;
    if (figures.has(1)) visits = figures(1, row), together = minimum(together, blocks);
    work(kLoneWaits, i) = figures(2, row);
    double total = 0.0;
    size_t next = 3;
    for (int64_t loop = 0; loop < loops_; loop++) {
        const double trips = figures(next++, row);
        total = total + trips;
        work(kLoops + 2 * loop, i) = trips;
        work(kLoops + 2 * loop + 1, i) = figures(next++, row);
    }
    work(kDramSlowdown, i) = 1.0;
    work(kSerialClk, i) = 0.0;
    work(kWaitRounds, i) = total / blocks;
    work(kOverlapped, i) = std::numeric_limits<double>::quiet_NaN();
    std::vector<double>& room = figures.room;
    for (int64_t step = 0; step < access_.steps; step++, next++)
        room[size_t(step)] = figures.has(next) ? figures(next, row) : 1.0;
    for (size_t tensor = 0; tensor < figures.sizes.size(); tensor++, next++)
        room[size_t(2 * access_.steps) + tensor] =
            figures.has(next) ? figures(next, row) * figures.sizes[tensor] : figures.sizes[tensor];
    work(kDramBytes, i) = access_.moved_bytes(visits, together, room, device_.l2_bytes);
}

void Launch::add_quick(Figures& figures, int64_t row, double& clocks, double& joules) const {
    if (!counted_) {
        clocks = clocks + start_clk_;
        return;
    }
    const auto rates = kept_quick_.view();
    const size_t config = size_t(row);
    const double number = blocks(figures, row);
    double busiest = rates(0, 0, config), alone = rates(0, 1, config), trips = 0.0;
    double dynamic = rates(0, 2, config) * number;
    for (int64_t loop = 0; loop < loops_; loop++) {
        const size_t next = size_t(3 + 2 * loop), term = size_t(loop + 1);
        const double total = has_given_ ? given_(kLoops + 2 * loop, row) : figures(next, row);
        const double depth = has_given_ ? given_(kLoops + 2 * loop + 1, row) : figures(next + 1, row);
        trips = trips + depth;
        busiest = busiest + rates(term, 0, config) * depth;
        alone = alone + rates(term, 1, config) * depth;
        dynamic = dynamic + rates(term, 2, config) * total;
    }
    const double waits = trips * (device_.memory_clk / maximum(geometry_(2, row), 1.0));
    const double per_sm = std::ceil(number / device_.sms);
    const double rounds = std::ceil(per_sm / geometry_(0, row));
    clocks = clocks + start_clk_ + maximum(per_sm * busiest, rounds * (maximum(alone, waits) + device_.memory_clk));
    joules = joules + dynamic;
}

namespace {

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

}  // namespace

void bind_launches(nb::module_& module) {
    const auto exact = [] { return nb::arg().noconvert(); };
    nb::class_<Device>(module, "Device")
        .def("__init__",
             [](Device* self, double clock_hz, double sms, double l2_bytes, double dram_byte_s, double memory_clk,
                double l2_clk_per_sector, double l2_latency_clk, bool few_f64, double core_time, double dram_time) {
                 new (self) Device{clock_hz,       sms,     l2_bytes,  dram_byte_s, memory_clk, l2_clk_per_sector,
                                   l2_latency_clk, few_f64, core_time, dram_time};
             });
    nb::class_<Demand>(module, "Demand").def(nb::init<Demand::Rates, bool, bool>(), exact(), nb::arg(), nb::arg());
    nb::class_<Launch>(module, "Launch")
        .def(nb::init<nb::object, nb::object, nb::object, nb::object, int64_t, nb::list, nb::list,
                      Array<const int64_t, 1>, Array<const bool, 1>, Array<const double, 2>, Array<const double, 3>,
                      double, bool, std::optional<Array<const double, 2>>>(),
             nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg(), exact(), exact(), exact(),
             exact(), nb::arg(), nb::arg(), nb::arg().none().noconvert());
    module.def("launch_times", &checked_launch_times, nb::arg(), nb::arg(), nb::arg(), exact(), exact(), exact(),
               exact());
    module.def("round_clk", &round_clk);
    for (const auto& [name, value] : {std::pair{"LAUNCH_S", kLaunchS},
                                      {"START_S", kStartS},
                                      {"BARRIER_CLK", kBarrierClk},
                                      {"BARRIER_WARP_CLK", kBarrierWarpClk},
                                      {"SCHEDULERS", kSchedulers},
                                      {"OVERLAP", kOverlap}})
        module.attr(name) = value;
}

}  // namespace kernrec::query
