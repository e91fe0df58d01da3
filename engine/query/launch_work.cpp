// Work, DRAM traffic and quick costs of a launch's configs on a problem, from the values of expressions.
#include <algorithm>

#include "costs.h"

namespace kernrec::query {

Launch::Figures Launch::on(Problem& problem) const {
    require(&problem.space == &space, "launch: expected a problem of the space");
    Figures result;
    if (given) {
        const int32_t* const index = space.domains[kEveryRow].index.data();
        const auto read_row = [&](int64_t row) {
            result.readers.push_back({reinterpret_cast<const int64_t*>(&(*given)(row, 0)), index, true});
        };
        read_row(kBlocks), result.readers.emplace_back(), read_row(kLoneWaits);
        for (int64_t row = kLoops; row < given->rows; row++) read_row(row);
        return result;
    }
    result.readers.reserve(figures.size() + tensors.size()), result.sizes.reserve(tensors.size());
    const auto read = [&](int32_t node) { result.readers.push_back(node < 0 ? Reader() : space.read(node, &problem)); };
    for (const int32_t node : figures) read(node);
    for (const Tensor& each : tensors) {
        read(each.elements);
        result.sizes.push_back(each.elements < 0 ? problem.tensor_bytes(each.name) : each.element_bytes);
    }
    return result;
}

namespace {

// Fill `moved` (N,) with the bytes that N launches move between L2 and DRAM. extents: extent of each step, (steps, N).
// sizes: bytes of each tensor, (tensors, N). Overwrites `concurrent` (N,) and `extents`. Rows must be dense.
// kernrec/model/analytical/dram_traffic.py describes the model.
constexpr auto kFillMoved = [](const Access* access, const double* blocks, double* concurrent, Table<double> extents,
                               Table<const double> sizes, double l2_bytes,
                               double* moved) __attribute__((always_inline)) {
    const int64_t count = sizes.columns;
    std::vector<double> room(size_t(3 * count), 0.0);
    double *const miss = room.data(), *const waves = miss + count, *const loads = waves + count;
    for (int64_t tensor = 0; tensor < sizes.rows; tensor++) {
        const double* const size = &sizes(tensor, 0);
        for (int64_t i = 0; i < count; i++) miss[i] = miss[i] + size[i];
    }
    for (int64_t i = 0; i < count; i++) {
        miss[i] = maximum(1.0 - l2_bytes / miss[i], 0.0);
        concurrent[i] = minimum(concurrent[i], blocks[i]);
        waves[i] = blocks[i] / concurrent[i];
        moved[i] = 0.0;
    }
    // Replace the extent of each step by the fraction of it that a wave covers.
    for (int64_t step = 0; step < extents.rows; step++) {
        double* const extent = &extents(step, 0);
        for (int64_t i = 0; i < count; i++) {
            const double covered = minimum(concurrent[i], extent[i]) / extent[i];
            concurrent[i] = maximum(concurrent[i] / extent[i], 1.0);
            extent[i] = covered;
        }
    }
    for (size_t number = 0; number < access->reads.size(); number++) {
        const int64_t tensor = access->reads[number];
        const double* const size = &sizes(tensor, 0);
        const bool scratch = access->scratch[tensor];
        std::copy_n(waves, count, loads);  // loads of the tensor over all waves
        for (int64_t step = 0; step < extents.rows; step++) {
            if (!access->axes[number * size_t(extents.rows) + size_t(step)]) continue;
            const double* const covered = &extents(step, 0);
            for (int64_t i = 0; i < count; i++) loads[i] = loads[i] * covered[i];
        }
        for (int64_t i = 0; i < count; i++) {
            const double again = miss[i] * maximum(loads[i] - 1.0, 0.0);
            moved[i] = moved[i] + size[i] * ((scratch ? miss[i] : 1.0) + again);
        }
    }
    for (const int64_t tensor : access->writes) {
        const double* const size = &sizes(tensor, 0);
        const bool scratch = access->scratch[tensor];
        for (int64_t i = 0; i < count; i++) moved[i] = moved[i] + (scratch ? size[i] * miss[i] : size[i]);
    }
};

}  // namespace

void Launch::fill_work(const Figures& on_problem, const std::vector<int64_t>& rows, const Table<double>& work) const {
    const int64_t count = int64_t(rows.size()), tensor_count = int64_t(tensors.size());
    if (given) {
        for (int64_t each = 0; each < given->rows; each++)
            for (int64_t i = 0; i < count; i++) work(each, i) = (*given)(each, rows[i]);
        return;
    }
    const auto fill = [&](size_t figure, double* out) { on_problem.readers[figure].fill(rows.data(), count, out); };
    // Rows of `room`: visited tiles, concurrent blocks of the GPU, extents of the grid's steps, sizes of the tensors.
    std::vector<double> room(size_t((2 + access.steps + tensor_count) * count), 1.0);
    double *const visits = room.data(), *const together = visits + count, *next = together + count;
    double *const blocks = &work(kBlocks, 0), *const rounds = &work(kWaitRounds, 0);
    fill(0, blocks);
    fill(on_problem.has(1) ? 1 : 0, visits);
    fill(2, &work(kLoneWaits, 0));
    for (int64_t i = 0; i < count; i++) {
        for (int64_t row = 0; row < 3; row++) work(kConcurrent + row, i) = geometry(row, rows[i]);
        together[i] = work(kConcurrent, i) * device.sms;
        if (on_problem.has(1)) together[i] = minimum(together[i], blocks[i]);
    }
    std::fill_n(rounds, count, 0.0);
    for (int64_t loop = 0; loop < loops; loop++) {
        double* const trips = &work(kLoops + 2 * loop, 0);
        fill(size_t(3 + 2 * loop), trips);
        fill(size_t(4 + 2 * loop), &work(kLoops + 2 * loop + 1, 0));
        for (int64_t i = 0; i < count; i++) rounds[i] = rounds[i] + trips[i];
    }
    for (int64_t i = 0; i < count; i++) rounds[i] = rounds[i] / blocks[i];
    std::fill_n(&work(kDramSlowdown, 0), count, 1.0);
    std::fill_n(&work(kSerialClk, 0), count, 0.0);
    std::fill_n(&work(kOverlapped, 0), count, std::numeric_limits<double>::quiet_NaN());
    const Table<double> extents(next, access.steps, count);
    size_t figure = size_t(3 + 2 * loops);
    for (int64_t step = 0; step < access.steps; step++, figure++, next += count)
        if (on_problem.has(figure)) fill(figure, next);
    const Table<const double> sizes(next, tensor_count, count);
    for (const double size : on_problem.sizes) {
        if (on_problem.has(figure)) fill(figure, next);
        for (int64_t i = 0; i < count; i++) next[i] = next[i] * size;
        figure++, next += count;
    }
    ByCpu<kFillMoved>()(&access, visits, together, extents, sizes, device.l2_bytes, &work(kDramBytes, 0));
}

namespace {

constexpr auto kAddQuick = [](const Launch* launch, const Launch::Figures* on_problem, const std::vector<int64_t>* rows,
                              double* clocks, double* joules) __attribute__((always_inline)) {
    const Reader blocks = on_problem->readers[0], *const trips_of = on_problem->readers.data() + 3;
    const double sms = launch->device.sms, memory_clk = launch->device.memory_clk;
    const int64_t step = launch->quick.row_step;
    for (size_t place = 0; place < rows->size(); place++) {
        const int64_t row = (*rows)[place];
        if (!launch->performed[row]) continue;
        const double before_clk = clocks[place] + launch->start_clk;
        clocks[place] = before_clk;
        if (!launch->counted) continue;
        const double number = blocks(row);
        const double* rates = &launch->quick(0, row);
        double busiest = rates[0], alone = rates[step], trips = 0.0, dynamic = rates[2 * step] * number;
        for (int64_t loop = 0; loop < launch->loops; loop++) {
            const double total = trips_of[2 * loop](row), depth = trips_of[2 * loop + 1](row);
            rates += 3 * step, trips = trips + depth;
            busiest = busiest + rates[0] * depth;
            alone = alone + rates[step] * depth;
            dynamic = dynamic + rates[2 * step] * total;
        }
        const double per_sm = std::ceil(number / sms), rounds = std::ceil(per_sm / launch->geometry(0, row));
        const double waits = trips * (memory_clk / maximum(launch->geometry(2, row), 1.0));
        clocks[place] = before_clk + maximum(per_sm * busiest, rounds * (maximum(alone, waits) + memory_clk));
        joules[place] = joules[place] + dynamic;
    }
};

}  // namespace

void Launch::add_quick(const Figures& on_problem, const std::vector<int64_t>& rows, std::vector<double>& clocks,
                       std::vector<double>& joules) const {
    ByCpu<kAddQuick>()(this, &on_problem, &rows, clocks.data(), joules.data());
}

namespace {

// Create a launch. figures, tensors: expressions instead of nodes, or None for -1. tensors: name, elements, and bytes
// of an element.
void make_launch(Launch* self, Space& space, const Access& access, const Demand& demand, const Device& device,
                 int64_t loops, const std::vector<nb::object>& figures,
                 const std::vector<std::tuple<nb::object, nb::object, double>>& tensors,
                 const Row<const int64_t>& variants, const Row<const bool>& performed,
                 const Table<const double>& geometry, const Table<const double>& quick, double start_clk, bool counted,
                 const std::optional<Table<const double>>& given) {
    Launch launch{space, access,   demand, device,    loops,   {},   {}, copied(variants),
                  {},    geometry, quick,  start_clk, counted, given};
    const auto node = [&](const nb::object& expression) { return expression.is_none() ? -1 : space.add(expression); };
    for (int64_t row = 0; row < performed.size; row++) launch.performed.push_back(performed[row]);
    for (const nb::object& figure : figures) launch.figures.push_back(node(figure));
    for (const auto& [name, elements, element_bytes] : tensors)
        launch.tensors.push_back({elements.is_none() ? name : nb::none(), node(elements), element_bytes});
    const int64_t configs = space.count(), further = 3 + 2 * loops;
    require(loops >= 0 && loops < int64_t(demand.shape(1)) && int64_t(figures.size()) == further + access.steps &&
                tensors.size() == access.scratch.size(),
            "launch: expected the figures of its loops and the tensors of its access");
    require(int64_t(demand.shape(0)) > 0 && variants.size == configs &&
                all_within(variants, 0, int64_t(demand.shape(0))) && performed.size == configs,
            "launch: expected a variant of each config");
    require(geometry.rows == 3 && geometry.columns == configs && quick.rows == 3 * int64_t(demand.shape(1)) &&
                quick.columns == configs &&
                (!given || (given->rows == kLoops + 2 * loops && given->columns == configs && given->step == 1)),
            "launch: expected the geometry of each config");
    if (!given) {
        for (int64_t figure = 0; figure < further; figure++)
            require(launch.figures[figure] >= 0 || figure == 1, "launch: expected blocks, waits and trips");
        uint64_t support = 0;
        for (const int32_t each : launch.figures) support |= each < 0 ? 0 : space.nodes[each].support;
        for (const Launch::Tensor& each : launch.tensors)
            support |= each.elements < 0 ? 0 : space.nodes[each.elements].support;
        launch.domain = space.domain_of(support);
    }
    new (self) Launch(std::move(launch));
}

const Binding kBinding([](nb::module_& module) {
    nb::class_<Access>(module, "Access")
        .def("__init__", [](Access* self, const Row<const int64_t>& reads, const Table<const uint8_t>& axes,
                            const Row<const int64_t>& writes, const Row<const uint8_t>& scratch) {
            require(axes.columns > 0 && axes.rows == reads.size && all_within(reads, 0, scratch.size) &&
                        all_within(writes, 0, scratch.size),
                    "access: expected tensors that exist, and at least one step");
            new (self) Access{copied(reads), copied(writes), copied(axes), copied(scratch), axes.columns};
        });
    nb::class_<Device>(module, "Device")
        .def("__init__",
             [](Device* self, double clock_hz, double sms, double l2_bytes, double dram_byte_s, double memory_clk,
                double l2_clk_per_sector, double l2_latency_clk, bool few_f64, double core_time, double dram_time) {
                 new (self) Device{clock_hz,       sms,     l2_bytes,  dram_byte_s, memory_clk, l2_clk_per_sector,
                                   l2_latency_clk, few_f64, core_time, dram_time};
             });
    nb::class_<Launch>(module, "Launch")
        .def("__init__", &make_launch, nb::keep_alive<1, 2>(), nb::keep_alive<1, 3>(), nb::keep_alive<1, 5>(),
             nb::keep_alive<1, 11>(), nb::keep_alive<1, 12>(), nb::keep_alive<1, 15>());
    module.def("launch_times", [](const Demand& demand, const Device& device, int64_t loops,
                                  const Row<const int64_t>& variants, const Table<const double>& work,
                                  const Table<double>& pipe_clk, const Table<double>& times) {
        const int64_t count = variants.size;
        require(loops >= 0 && loops < int64_t(demand.shape(1)) && work.rows >= kLoops + 2 * loops &&
                    work.columns == count && pipe_clk.rows == kPipes && pipe_clk.columns == count &&
                    times.rows == kTimes && times.columns == count && all_within(variants, 0, int64_t(demand.shape(0))),
                "launches: expected variants of the demand, and equal numbers of columns");
        launch_times(demand, device, loops, variants, work, pipe_clk, times);
    });
    for (const auto& [name, value] : {std::pair{"LAUNCH_S", kLaunchS},
                                      {"START_S", kStartS},
                                      {"BARRIER_CLK", kBarrierClk},
                                      {"BARRIER_WARP_CLK", kBarrierWarpClk},
                                      {"SCHEDULERS", kSchedulers},
                                      {"OVERLAP", kOverlap}})
        module.attr(name) = value;
});

}  // namespace
}  // namespace kernrec::query
