// Computes the costs of all kernels' configs on one or more problems: which configs can run, which are promising, and
// their time and energy, without and with a power limit.
#include "costs.h"

#include <algorithm>

#include "learned_model.h"

namespace kernrec::query {

namespace {

// Times of a launch on a problem, for some configs of a kernel. Configs with the same variant and work share a column:
// on many problems, one in three configs is a duplicate.
struct LaunchTimes {
    std::vector<int64_t> places, columns;  // configs that perform the launch, and their columns of `times`
    Table<double> work, pipe_clk, times;

    void compute(const Launch& launch, Problem& problem, const int64_t* rows, int64_t count) {
        places.clear(), columns.clear(), rows_.clear(), variants_.clear();
        const Domain& groups = launch.space.domains[launch.domain];
        in_group_.assign(groups.first.size(), -1);
        for (int64_t place = 0; place < count; place++) {
            const int64_t row = rows[place];
            if (!launch.performed[row]) continue;
            int32_t& latest = in_group_[groups.index[row]];
            if (latest < 0 || !launch.alike(rows_[latest], row)) {
                latest = int32_t(rows_.size());
                rows_.push_back(row), variants_.push_back(launch.variant[row]);
            }
            places.push_back(place), columns.push_back(latest);
        }
        const int64_t size = int64_t(rows_.size()), work_rows = kLoops + 2 * launch.loops;
        if (size == 0) return;
        room_.resize(std::max(room_.size(), size_t((work_rows + kPipes + kTimes) * size)));
        work = {room_.data(), work_rows, size};
        pipe_clk = {room_.data() + work_rows * size, kPipes, size};
        times = {room_.data() + (work_rows + kPipes) * size, kTimes, size};
        launch.fill_work(launch.on(problem), rows_, work);
        launch_times(launch.demand, launch.device, launch.loops, variants_, work, pipe_clk, times);
    }

  private:
    std::vector<int64_t> rows_, variants_;  // config and variant of each column
    std::vector<int32_t> in_group_;         // latest column of each group
    std::vector<double> room_;
};

thread_local LaunchTimes launched;  // keeps its memory between calls

// Map a cost to an integer with the same order; NaN counts as infinite.
uint64_t ordered(double cost) {
    const uint64_t mapped = uint64_t(bits(cost == cost ? cost + 0.0 : kInfinity));
    return mapped >> 63 ? ~mapped : mapped | uint64_t(1) << 63;
}

// Return the key at index `rank` of the sorted keys. Only the keys of one bucket of a histogram are sorted.
uint64_t lowest(const std::vector<uint64_t>& keys, size_t rank) {
    constexpr uint64_t kBuckets = 1024;
    uint64_t low = keys[0], high = keys[0];
    for (const uint64_t key : keys) low = std::min(low, key), high = std::max(high, key);
    int shift = 0;
    while ((high - low) >> shift >= kBuckets) shift++;
    uint32_t counts[kBuckets] = {};
    for (const uint64_t key : keys) counts[(key - low) >> shift]++;
    uint64_t bucket = 0;
    while (rank >= counts[bucket]) rank -= counts[bucket++];
    std::vector<uint64_t> inside;
    for (const uint64_t key : keys)
        if ((key - low) >> shift == bucket) inside.push_back(key);
    std::nth_element(inside.begin(), inside.begin() + std::ptrdiff_t(rank), inside.end());
    return inside[rank];
}

}  // namespace

std::vector<uint8_t> promising(const double* latency, const double* energy, const std::vector<int64_t>& starts,
                               int64_t count) {
    std::vector<uint8_t> chosen(size_t(starts.back()), 0);
    for (size_t problem = 0; problem + 1 < starts.size(); problem++) {
        const int64_t first = starts[problem], end = starts[problem + 1];
        if (end - first <= count) {
            std::fill(chosen.begin() + first, chosen.begin() + end, uint8_t(1));
            continue;
        }
        std::vector<uint64_t> keys(size_t(end - first));
        for (const double* costs : {latency, energy}) {
            std::transform(costs + first, costs + end, keys.begin(), ordered);
            const uint64_t least = lowest(keys, size_t(count / 2));  // key of the first unmarked candidate
            int64_t left = count / 2;
            for (const uint64_t key : keys) left -= key < least;
            uint8_t* const marks = chosen.data() + first;
            for (size_t i = 0; i < keys.size(); i++) marks[i] = uint8_t(marks[i] | (keys[i] < least));
            for (size_t i = 0; i < keys.size() && left > 0; i++)
                if (keys[i] == least) marks[i] = 1, left--;
        }
    }
    return chosen;
}

Costs::Costs(const std::vector<Arguments>& kernels, nb::handle limits, int64_t points, int64_t most) {
    for (const auto& [kernel, problems, given, can, ran, epilogues] : kernels) {
        Part part{kernel, count, {}, {}, {}, {0}, {}};
        require(kernel != nullptr && (!can || can->size == kernel->space.count()), "able: expected one of each config");
        require(!epilogues || (epilogues->rows == int64_t(problems.size()) && epilogues->columns == 4),
                "epilogues: expected four figures of each problem");
        const std::vector<int64_t> able = can ? true_places(*can) : std::vector<int64_t>();
        for (const auto& [names, tensor_bytes, too_large, flops, bytes] : problems) {
            part.problems.push_back(
                std::make_shared<Problem>(kernel->space, names, tensor_bytes, too_large, flops, bytes));
            choose(part, can ? able : kernel->able, given, ran, most);
        }
        count += part.size();
        parts.push_back(std::move(part));
    }
    figures.resize(size_t(5 * count)), longest.resize(size_t(2 * count));
    std::fill_n(figures.begin() + 2 * count, count, kStartS);
    for (size_t kernel = 0; kernel < parts.size(); kernel++) estimate(parts[kernel], std::get<5>(kernels[kernel]));
    if (limits.is_none()) return;
    require(points > 0, "points: expected at least one");
    limited = limited_costs(limits, nominal(0, count), 1);
    this->points = points;
}

// Choose the configs of a kernel to estimate on its last problem.
void Costs::choose(Part& part, const std::vector<int64_t>& able, const Places& given, const Places& ran, int64_t most) {
    const Kernel& kernel = *part.kernel;
    Problem& problem = *part.problems.back();
    std::vector<int64_t>& rows = part.runnable.emplace_back();
    if (given) {
        require(all_within(*given, 0, kernel.space.count()), "rows: expected configs of the space");
        rows = copied(*given);
    } else if (!problem.too_large) {
        rows = kernel.space.valid(&problem, able);
    }
    int64_t pick = 0;
    double best = -kInfinity;
    for (size_t i = 0; i < rows.size(); i++)
        if (const double score = kernel.scores[rows[i]]; score > best) pick = int64_t(i), best = score;
    if (given || most <= 0 || int64_t(rows.size()) <= most) {
        part.rows.insert(part.rows.end(), rows.begin(), rows.end());
    } else {
        std::vector<double> clocks(rows.size()), joules(rows.size());
        for (const Launch* launch : kernel.launches) launch->add_quick(launch->on(problem), rows, clocks, joules);
        for (size_t i = 0; i < rows.size(); i++) joules[i] += clocks[i] * kernel.clk_j;
        std::vector<uint8_t> chosen = promising(clocks.data(), joules.data(), {0, int64_t(rows.size())}, most);
        chosen[pick] = 1;
        for (int64_t i = 0; ran && i < ran->size; i++) {
            const auto place = std::lower_bound(rows.begin(), rows.end(), (*ran)[i]);
            if (place != rows.end() && *place == (*ran)[i]) chosen[place - rows.begin()] = 1;
        }
        pick = std::count(chosen.begin(), chosen.begin() + pick, uint8_t(1));
        size_t size = part.rows.size();
        part.rows.resize(size + chosen.size());
        for (size_t i = 0; i < chosen.size(); i++) part.rows[size] = rows[i], size += chosen[i];
        part.rows.resize(size);
    }
    part.starts.push_back(part.size());
    part.picks.push_back(pick);
}

// Add the launches of a kernel to the costs of its configs.
void Costs::estimate(Part& part, const std::optional<Table<const double>>& epilogues) {
    const Kernel& kernel = *part.kernel;
    const Table<double> nominal = this->nominal(0, count), longest(this->longest.data(), 2, count);
    for (size_t problem = 0; problem < part.problems.size(); problem++) {
        const int64_t start = part.starts[problem], size = part.starts[problem + 1] - start;
        for (const Launch* launch : kernel.launches) {
            launched.compute(*launch, *part.problems[problem], part.rows.data() + start, size);
            const Table<const double> work = launched.work, times = launched.times;
            const int64_t *const places = launched.places.data(), *const columns = launched.columns.data();
            for (size_t i = 0, performed = launched.places.size(); i < performed; i++) {
                const int64_t place = part.first + start + places[i], column = columns[i];
                const double core_s = times(kCoreTime, column), dram_s = times(kDramTime, column);
                nominal(0, place) += core_s;
                nominal(1, place) += dram_s;
                nominal(2, place) += kLaunchS;
                nominal(3, place) += times(kCoreJoules, column);
                nominal(4, place) += work(kDramBytes, column) * kernel.byte_j;
                const double part_s = maximum(core_s, dram_s);
                longest(1, place) = part_s > longest(0, place) ? times(kResource, column) : longest(1, place);
                longest(0, place) = maximum(part_s, longest(0, place));
            }
        }
        for (int64_t place = start; epilogues && place < start + size; place++)
            for (int64_t figure = 0; figure < 4; figure++)  // all fields except the launch overhead
                nominal(figure < 2 ? figure : figure + 1, part.first + place) += (*epilogues)(int64_t(problem), figure);
    }
}

void Costs::fill(const Part& part, int64_t first, const Row<const int64_t>& positions,
                 const Table<const double>& limited, const Table<double>& quantities) {
    require(first >= 0 && first <= part.size() &&
                all_within(positions, 0, std::min(part.size() - first, limited.columns)) &&
                limited.rows == costs::kCostRows && quantities.rows == features::kQuantities &&
                quantities.columns == positions.size,
            "positions: expected candidates of the kernel");
    const Kernel& kernel = *part.kernel;
    const Launch& first_launch = *kernel.launches[0];
    std::vector<int64_t> rows;
    for (int64_t i = 0; i < positions.size;) {
        const auto end = std::upper_bound(part.starts.begin(), part.starts.end(), first + positions[i]);
        Problem& problem = *part.problems[size_t(end - part.starts.begin()) - 1];
        const Launch::Figures on_problem = first_launch.on(problem);
        const int64_t start = i;
        rows.clear();
        for (; i < positions.size && first + positions[i] >= end[-1] && first + positions[i] < *end; i++) {
            const int64_t position = first + positions[i], row = part.rows[position];
            const Table<const double> nominal = this->nominal(part.first + position, 1);
            rows.push_back(row);
            for (int64_t cost = 0; cost < limited.rows; cost++) quantities(cost, i) = limited(cost, positions[i]);
            for (int64_t cost = 0; cost < 5; cost++) quantities(features::kCoreS + cost, i) = nominal(cost, 0);
            for (int64_t shape = 0; shape < 4; shape++)
                quantities(features::kThreads + shape, i) = kernel.shapes(shape, row);
            quantities(features::kFlops, i) = problem.flops;
            quantities(features::kBytes, i) = problem.bytes;
            quantities(features::kBlocks, i) = on_problem.readers[0](row);
            for (int64_t each = features::kBusyS; each < features::kOne; each++) quantities(each, i) = 0.0;
        }
        for (const Launch* launch : kernel.launches) {
            launched.compute(*launch, problem, rows.data(), int64_t(rows.size()));
            for (size_t place = 0; place < launched.places.size(); place++)
                features::add_times(launched.pipe_clk, launched.times, launched.columns[place], quantities,
                                    start + launched.places[place]);
        }
    }
}

namespace {

// Return the pipe clocks (kPipes, 1), times (kTimes, 1) and DRAM bytes (1,) of each launch that the config at a
// position performs. Positions count from the kernel's first config.
nb::list launches(const Costs& costs, size_t kernel, int64_t position) {
    const Costs::Part& part = costs.parts.at(kernel);
    require(position >= 0 && position < part.size(), "position: expected a config of the kernel");
    const auto end = std::upper_bound(part.starts.begin(), part.starts.end(), position);
    Problem& problem = *part.problems[size_t(end - part.starts.begin()) - 1];
    const auto column = [](const Table<const double>& of) {
        return numpy<double, 2>({of.data, of.data + of.rows}, {size_t(of.rows), 1});
    };
    nb::list result;
    LaunchTimes times;
    for (const Launch* launch : part.kernel->launches) {
        times.compute(*launch, problem, &part.rows[position], 1);
        if (times.places.empty()) continue;
        result.append(nb::make_tuple(column(times.pipe_clk), column(times.times),
                                     numpy(std::vector<double>{times.work(kDramBytes, 0)})));
    }
    return result;
}

const Binding kBinding([](nb::module_& module) {
    nb::class_<Kernel>(module, "Kernel")
        .def(
            "__init__",
            [](Kernel* self, Space& space, std::vector<Launch*> launches, const Row<const bool>& able,
               const Row<const double>& occupancy, const Table<const double>& shapes, const Table<const int64_t>& codes,
               bool call, double clk_j, double byte_j) {
                const int64_t configs = space.count();
                require(!launches.empty() && able.size == configs && occupancy.size == configs && shapes.rows == 4 &&
                            shapes.columns == configs && codes.rows == configs && codes.columns > 0,
                        "kernel: expected launches, and figures of each config");
                for (const Launch* launch : launches)
                    require(launch != nullptr && launch->geometry.columns == configs, "kernel: expected its launches");
                std::vector<double> scores;
                for (int64_t row = 0; row < configs; row++)
                    scores.push_back(occupancy[row] * 4096.0 + double(codes(row, 0)));
                new (self) Kernel{space,  std::move(launches), true_places(able), occupancy, shapes, codes, call, clk_j,
                                  byte_j, std::move(scores)};
            },
            nb::keep_alive<1, 2>(), nb::keep_alive<1, 3>(), nb::keep_alive<1, 5>(), nb::keep_alive<1, 6>(),
            nb::keep_alive<1, 7>());
    nb::class_<Costs>(module, "Costs")
        .def(nb::init<const std::vector<Costs::Arguments>&, nb::handle, int64_t, int64_t>(), nb::arg(),
             nb::arg().none(), nb::arg(), nb::arg(), nb::keep_alive<1, 2>())
        .def_prop_ro("nominal", [](Costs& of) { return view_of(of.nominal(0, of.count)); })
        // For each kernel: starts and picks of `Part`, and the number of runnable configs of each problem.
        .def_prop_ro("kernels",
                     [](const Costs& of) {
                         nb::list result;
                         for (const Costs::Part& part : of.parts) {
                             std::vector<size_t> counts;
                             for (const auto& rows : part.runnable) counts.push_back(rows.size());
                             result.append(nb::make_tuple(part.starts, part.picks, counts));
                         }
                         return result;
                     })
        .def("rows", [](const Costs& of, size_t kernel) { return numpy(of.parts.at(kernel).rows); })
        .def("runnable", [](const Costs& of, size_t kernel,
                            size_t problem) { return numpy(of.parts.at(kernel).runnable.at(problem)); })
        .def("launches", &launches)
        .def("fill", [](Costs& of, size_t kernel, int64_t first, const Row<const int64_t>& positions,
                        const Table<const double>& limited, const Table<double>& quantities) {
            of.fill(of.parts.at(kernel), first, positions, limited, quantities);
        });
});

}  // namespace
}  // namespace kernrec::query
