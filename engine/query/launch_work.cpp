// Work and quick costs of a launch's configs on a problem, from the values of expressions.
#include <algorithm>

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
               Array<const double, 2> geometry, Demand::Rates quick, double start_clk, bool counted,
               std::optional<Array<const double, 2>> given)
    : kept_{space, access, demand, device},
      space_(nb::cast<Space&>(space)),
      access_(nb::cast<const Access&>(access)),
      demand_(nb::cast<const Demand&>(demand)),
      device_(nb::cast<const Device&>(device)),
      loops_(loops),
      variant_(copied(Row<const int64_t>(variant))),
      kept_geometry_(geometry),
      quick_(quick),
      kept_given_(given),
      geometry_(geometry),
      start_clk_(start_clk),
      counted_(counted) {
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
    if (kept_given_) {
        given_ = Table<const double>(*given);
        require(given_.rows == kLoops + 2 * loops && given_.columns == configs, "launch: expected work of each config");
        return;
    }
    for (size_t figure = 0; figure < size_t(3 + 2 * loops); figure++)
        require(figures_[figure] >= 0 || figure == 1, "launch: expected blocks, waits and trips");
    uint64_t support = 0;
    for (const auto* nodes : {&figures_, &elements_})
        for (const int32_t node : *nodes) support |= node < 0 ? 0 : space_.node(node).support;
    groups_ = space_.domain_of(support);
}

Launch::Figures Launch::on(Problem& problem) const {
    require(&problem.space() == &space_, "launch: expected a problem of the space");
    Figures figures;
    if (kept_given_) return figures;
    figures.readers.reserve(figures_.size() + tensors_.size()), figures.sizes.reserve(tensors_.size());
    const auto read = [&](int32_t node) {
        figures.readers.push_back(node < 0 ? std::nullopt : std::optional(space_.read(node, &problem)));
    };
    for (const int32_t node : figures_) read(node);
    for (size_t tensor = 0; tensor < tensors_.size(); tensor++) {
        read(elements_[tensor]);
        figures.sizes.push_back(elements_[tensor] < 0 ? problem.tensor_bytes(tensors_[tensor])
                                                      : element_bytes_[tensor]);
    }
    return figures;
}

void Launch::fill_work(const Figures& figures, const std::vector<int64_t>& rows, const Table<double>& work) const {
    const int64_t count = int64_t(rows.size()), tensors = int64_t(tensors_.size());
    if (kept_given_) {
        for (int64_t each = 0; each < given_.rows; each++)
            for (int64_t i = 0; i < count; i++) work(each, i) = given_(each, rows[size_t(i)]);
        return;
    }
    const auto fill = [&](size_t figure, double* out) { figures.readers[figure]->fill(rows.data(), count, out); };
    // Rows of `room`: visited tiles, concurrent blocks of the GPU, extents of the grid's steps, sizes of the tensors.
    std::vector<double> room(size_t((2 + access_.steps + tensors) * count), 1.0);
    double *const visits = room.data(), *const together = visits + count, *next = together + count;
    double *const blocks = &work(kBlocks, 0), *const rounds = &work(kWaitRounds, 0);
    fill(0, blocks);
    fill(figures.has(1) ? 1 : 0, visits);
    fill(2, &work(kLoneWaits, 0));
    for (int64_t i = 0; i < count; i++) {
        for (int64_t row = 0; row < 3; row++) work(kConcurrent + row, i) = geometry_(row, rows[size_t(i)]);
        together[i] = work(kConcurrent, i) * device_.sms;
        if (figures.has(1)) together[i] = minimum(together[i], blocks[i]);
    }
    std::fill_n(rounds, count, 0.0);
    for (int64_t loop = 0; loop < loops_; loop++) {
        double* const trips = &work(kLoops + 2 * loop, 0);
        fill(size_t(3 + 2 * loop), trips);
        fill(size_t(4 + 2 * loop), &work(kLoops + 2 * loop + 1, 0));
        for (int64_t i = 0; i < count; i++) rounds[i] = rounds[i] + trips[i];
    }
    for (int64_t i = 0; i < count; i++) rounds[i] = rounds[i] / blocks[i];
    std::fill_n(&work(kDramSlowdown, 0), count, 1.0);
    std::fill_n(&work(kSerialClk, 0), count, 0.0);
    std::fill_n(&work(kOverlapped, 0), count, std::numeric_limits<double>::quiet_NaN());
    const Table<const double> extents(next, access_.steps, count, count, 1);
    size_t figure = size_t(3 + 2 * loops_);
    for (int64_t step = 0; step < access_.steps; step++, figure++, next += count)
        if (figures.has(figure)) fill(figure, next);
    const Table<const double> sizes(next, tensors, count, count, 1);
    for (const double size : figures.sizes) {
        if (figures.has(figure)) fill(figure, next);
        for (int64_t i = 0; i < count; i++) next[i] = next[i] * size;
        figure++, next += count;
    }
    access_.fill_moved({visits, count}, {together, count}, extents, sizes, device_.l2_bytes, work[kDramBytes]);
}

namespace {

struct Quick {
    Lanes blocks, resident, prefetch, busiest, alone, trips, clocks;

    KERNREC_INLINE void add(const Device& device, double start_clk) {
        const double memory_clk = device.memory_clk, sms = device.sms;
        for (int64_t i = 0; i < kLanes; i++) {
            const double waits = trips[i] * (memory_clk / maximum(prefetch[i], 1.0));
            const double per_sm = std::ceil(blocks[i] / sms);
            const double rounds = std::ceil(per_sm / resident[i]);
            clocks[i] =
                clocks[i] + start_clk + maximum(per_sm * busiest[i], rounds * (maximum(alone[i], waits) + memory_clk));
        }
    }
};

constexpr auto kAdd = [](Quick* quick, const Device* device, double start_clk)
                          __attribute__((always_inline)) { quick->add(*device, start_clk); };

}  // namespace

void Launch::add_quick(const Figures& figures, const std::vector<int64_t>& rows, std::vector<double>& clocks,
                       std::vector<double>& joules) const {
    if (!counted_) {
        for (size_t place = 0; place < rows.size(); place++)
            if (performed(rows[place])) clocks[place] = clocks[place] + start_clk_;
        return;
    }
    const auto value = [&](int64_t loop, size_t offset, int64_t row) {
        return kept_given_ ? given_(kLoops + 2 * loop + int64_t(offset), row)
                           : figures(size_t(3 + 2 * loop) + offset, row);
    };
    Quick quick{};
    size_t places[kLanes];
    int64_t lanes = 0;
    const auto flush = [&] {
        ByCpu<kAdd>()(&quick, &device_, start_clk_);
        for (int64_t i = 0; i < lanes; i++) clocks[places[i]] = quick.clocks[i];
        lanes = 0;
    };
    for (size_t place = 0; place < rows.size(); place++) {
        const int64_t row = rows[place];
        if (!performed(row)) continue;
        const double* const rates = quick_.data() + row;
        const size_t step = size_t(configs());
        const double number = blocks(figures, row);
        double busiest = rates[0], alone = rates[step], trips = 0.0, dynamic = rates[2 * step] * number;
        for (int64_t loop = 0; loop < loops_; loop++) {
            const double* const of_loop = rates + size_t(3 * (loop + 1)) * step;
            const double total = value(loop, 0, row), depth = value(loop, 1, row);
            trips = trips + depth;
            busiest = busiest + of_loop[0] * depth;
            alone = alone + of_loop[step] * depth;
            dynamic = dynamic + of_loop[2 * step] * total;
        }
        quick.blocks[lanes] = number, quick.resident[lanes] = geometry_(0, row),
        quick.prefetch[lanes] = geometry_(2, row);
        quick.busiest[lanes] = busiest, quick.alone[lanes] = alone, quick.trips[lanes] = trips;
        quick.clocks[lanes] = clocks[place];
        joules[place] = joules[place] + dynamic;
        places[lanes++] = place;
        if (lanes == kLanes) flush();
    }
    if (lanes > 0) flush();
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
                      Array<const int64_t, 1>, Array<const bool, 1>, Array<const double, 2>, Demand::Rates, double,
                      bool, std::optional<Array<const double, 2>>>(),
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
