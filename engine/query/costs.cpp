// Computes the costs of all kernels' configs on one or more problems: which configs can run, which are promising, and
// their time and energy, without and with a power limit.
#include "costs.h"

#include <algorithm>

#include "features.h"

namespace kernrec::query {

Kernel::Kernel(nb::object space_of, nb::list launches_of, Array<const bool, 1> able_of,
               Array<const double, 1> occupancy_of, Array<const double, 2> shapes_of, Array<const int64_t, 2> codes_of,
               bool call, double clk_j, double byte_j)
    : kept_space(space_of),
      kept_launches(launches_of),
      space(&nb::cast<Space&>(space_of)),
      codes(codes_of),
      call(call),
      clk_j(clk_j),
      byte_j(byte_j),
      kept_codes_(codes_of) {
    for (const nb::handle launch : launches_of) launches.push_back(&nb::cast<Launch&>(launch));
    able = true_places(Row<const bool>(able_of));
    const Table<const double> of_launch(shapes_of);
    occupancy = copied(Row<const double>(occupancy_of));
    for (int64_t shape = 0; shape < of_launch.rows; shape++)
        for (int64_t row = 0; row < of_launch.columns; row++) shapes.push_back(of_launch(shape, row));
    const size_t configs = size_t(space->count());
    require(!launches.empty() && able_of.shape(0) == configs && occupancy.size() == configs && of_launch.rows == 4 &&
                of_launch.columns == int64_t(configs) && codes.rows == int64_t(configs) && codes.columns > 0,
            "kernel: expected launches, and figures of each config");
    for (size_t row = 0; row < configs; row++)
        scores.push_back(occupancy[row] * 4096.0 + double(codes(int64_t(row), 0)));
    for (const Launch* launch : launches)
        require(launch->configs() == int64_t(configs), "kernel: expected its launches");
}

namespace {

// Return an array that views `figures` and keeps them alive.
nb::object view(const Costs::Figures& figures, std::vector<size_t> shape) {
    const nb::capsule owner(new Costs::Figures(figures),
                            [](void* p) noexcept { delete static_cast<Costs::Figures*>(p); });
    return nb::cast(nb::ndarray<nb::numpy, double>(figures.get(), shape.size(), shape.data(), owner));
}

// The launch whose times were computed last. `Costs::fill` needs the times of the last kernel again.
thread_local LaunchTimes launched;

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

std::vector<uint8_t> promising(const Kernel& kernel, Problem& problem, const std::vector<int64_t>& rows, int64_t most) {
    std::vector<double> clocks(rows.size(), 0.0), joules(rows.size(), 0.0);
    for (const Launch* launch : kernel.launches) launch->add_quick(launch->on(problem), rows, clocks, joules);
    for (size_t i = 0; i < rows.size(); i++) joules[i] += clocks[i] * kernel.clk_j;
    std::vector<uint8_t> chosen(rows.size(), 0);
    mark_promising(clocks.data(), joules.data(), int64_t(rows.size()), most, chosen.data());
    return chosen;
}

}  // namespace

void mark_promising(const double* latency, const double* energy, int64_t size, int64_t count, uint8_t* chosen) {
    if (size <= count) {
        std::fill(chosen, chosen + size, uint8_t(1));
        return;
    }
    std::vector<uint64_t> keys(static_cast<size_t>(size));
    for (const double* costs : {latency, energy}) {
        std::transform(costs, costs + size, keys.begin(), ordered);
        const uint64_t least = lowest(keys, size_t(count / 2));  // key of the first unmarked candidate
        int64_t left = count / 2;
        for (const uint64_t key : keys) left -= key < least;
        for (size_t i = 0; i < keys.size(); i++) chosen[i] = uint8_t(chosen[i] | (keys[i] < least));
        for (size_t i = 0; i < keys.size() && left > 0; i++)
            if (keys[i] == least) chosen[i] = 1, left--;
    }
}

Costs::Costs(nb::list kernels, nb::handle limits, int64_t points, int64_t most) {
    for (const nb::handle each : kernels) add(nb::cast<nb::tuple>(each), most);
    const size_t count = size_t(count_);
    nominal_ = Figures(new double[5 * count]());
    longest_ = Figures(new double[2 * count]());
    std::fill_n(nominal_.get() + 2 * count, count, kStartS);
    for (Part& part : parts_) estimate(part);
    if (limits.is_none()) return;
    require(points > 0, "points: expected at least one");
    limited_ = limited_costs(limits, nominal(0, count_), 1);
    points_ = points;
}

nb::object Costs::nominal_array() const { return view(nominal_, {5, size_t(count_)}); }
nb::object Costs::longest_array() const { return view(longest_, {2, size_t(count_)}); }

nb::list Costs::kernels() const {
    nb::list result;
    for (const Part& part : parts_) {
        nb::list picks;
        for (const int64_t pick : part.picks) picks.append(pick < 0 ? nb::none() : nb::object(nb::int_(pick)));
        nb::list counts;
        for (const auto& rows : part.runnable) counts.append(rows.size());
        result.append(nb::make_tuple(nb::cast(part.starts), picks, counts));
    }
    return result;
}

nb::list Costs::launches(size_t kernel, int64_t position) const {
    const Part& part = parts_.at(kernel);
    require(position >= 0 && position < int64_t(part.rows.size()), "position: expected a config of the kernel");
    const auto end = std::upper_bound(part.starts.begin(), part.starts.end(), position);
    Problem& problem = *part.problems[size_t(end - part.starts.begin()) - 1];
    const auto column = [](const double* figures, size_t count) {
        return numpy<double, 2>({figures, figures + count}, {count, 1});
    };
    nb::list result;
    LaunchTimes times;
    for (const Launch* launch : part.kernel->launches) {
        times.compute(*launch, problem, &part.rows[size_t(position)], 1);
        if (times.places.empty()) continue;
        result.append(nb::make_tuple(column(times.pipe_clk.data, kPipes), column(times.times.data, kTimes),
                                     numpy(std::vector<double>{times.work(kDramBytes, 0)})));
    }
    return result;
}

void Costs::fill(const Part& part, int64_t first, const Row<const int64_t>& positions,
                 const Table<const double>& limited, const Table<double>& quantities) const {
    const int64_t count = int64_t(part.rows.size());
    require(first >= 0 && first <= count && all_within(positions, 0, std::min(count - first, limited.columns)) &&
                limited.rows == features::kRegime + 1 && quantities.rows == features::kQuantities &&
                quantities.columns == positions.size,
            "positions: expected candidates of the kernel");
    const size_t configs = size_t(part.kernel->space->count());
    const Launch& first_launch = *part.kernel->launches[0];
    std::vector<int64_t> rows;
    for (int64_t i = 0; i < positions.size;) {
        const auto end = std::upper_bound(part.starts.begin(), part.starts.end(), first + positions[i]);
        const size_t problem = size_t(end - part.starts.begin()) - 1;
        const Launch::Figures on_problem = first_launch.on(*part.problems[problem]);
        const int64_t start = i;
        rows.clear();
        for (; i < positions.size && first + positions[i] >= part.starts[problem] && first + positions[i] < *end; i++) {
            const int64_t position = first + positions[i], row = part.rows[size_t(position)];
            rows.push_back(row);
            for (int64_t cost = 0; cost < limited.rows; cost++) quantities(cost, i) = limited(cost, positions[i]);
            for (size_t cost = 0; cost < 5; cost++)
                quantities(features::kCoreS + int64_t(cost), i) =
                    nominal_[int64_t(cost) * count_ + part.first + position];
            for (size_t shape = 0; shape < 4; shape++)
                quantities(features::kThreads + int64_t(shape), i) = part.kernel->shapes[shape * configs + size_t(row)];
            quantities(features::kFlops, i) = part.problems[problem]->flops;
            quantities(features::kBytes, i) = part.problems[problem]->bytes;
            quantities(features::kBlocks, i) = first_launch.blocks(on_problem, row);
            for (int64_t each = features::kBusyS; each < features::kOne; each++) quantities(each, i) = 0.0;
        }
        for (const Launch* launch : part.kernel->launches) {
            launched.compute(*launch, *part.problems[problem], rows.data(), int64_t(rows.size()));
            for (size_t place = 0; place < launched.places.size(); place++)
                features::add_times(launched.pipe_clk, launched.times, launched.columns[place], quantities,
                                    start + launched.places[place]);
        }
    }
}

void Costs::add(nb::tuple each, int64_t most) {
    require(each.size() == 6, "kernels: expected six parts");
    Part part;
    part.kept = each;
    part.kernel = &nb::cast<const Kernel&>(each[0]);
    part.first = count_;
    using Places = Array<const int64_t, 1>;
    std::optional<Row<const int64_t>> given;
    Row<const int64_t> kept_rows;
    if (!each[2].is_none()) given = Row<const int64_t>(nb::cast<Places>(each[2], false));
    std::optional<std::vector<int64_t>> able;
    if (!each[3].is_none()) {
        const auto can = nb::cast<Array<const bool, 1>>(each[3], false);
        require(int64_t(can.shape(0)) == part.kernel->space->count(), "able: expected one of each config");
        able = true_places(Row<const bool>(can));
    }
    if (!each[4].is_none()) kept_rows = Row<const int64_t>(nb::cast<Places>(each[4], false));
    if (!each[5].is_none()) part.epilogues = nb::cast<Array<const double, 2>>(each[5], false);
    const nb::list problems = nb::cast<nb::list>(each[1]);
    for (const nb::handle problem : problems) {
        const nb::tuple of = nb::cast<nb::tuple>(problem);
        require(of.size() == 5, "problems: expected five parts");
        part.problems.push_back(std::make_shared<Problem>(part.kernel->kept_space, nb::cast<nb::dict>(of[0]),
                                                          nb::cast<nb::dict>(of[1]), nb::cast<bool>(of[2]),
                                                          nb::cast<double>(of[3]), nb::cast<double>(of[4])));
        choose(part, able ? *able : part.kernel->able, given, kept_rows, most);
    }
    require(!part.epilogues || (part.epilogues->shape(0) == part.problems.size() && part.epilogues->shape(1) == 4),
            "epilogues: expected four figures of each problem");
    count_ += int64_t(part.rows.size());
    parts_.push_back(std::move(part));
}

// Choose the configs of a kernel to estimate on its last problem.
void Costs::choose(Part& part, const std::vector<int64_t>& able, const std::optional<Row<const int64_t>>& given,
                   const Row<const int64_t>& kept_rows, int64_t most) {
    const Kernel& kernel = *part.kernel;
    Problem& problem = *part.problems.back();
    std::vector<int64_t>& rows = part.runnable.emplace_back();
    if (given) {
        require(all_within(*given, 0, kernel.space->count()), "rows: expected configs of the space");
        rows = copied(*given);
    } else if (!problem.too_large()) {
        rows = kernel.space->valid(&problem, able);
    }
    int64_t pick = rows.empty() ? -1 : 0;
    double best = -kInfinity;
    for (size_t i = 0; i < rows.size(); i++)
        if (const double score = kernel.scores[size_t(rows[i])]; score > best) pick = int64_t(i), best = score;
    if (given || most <= 0 || int64_t(rows.size()) <= most) {
        part.rows.insert(part.rows.end(), rows.begin(), rows.end());
    } else {
        std::vector<uint8_t> chosen = promising(kernel, problem, rows, most);
        chosen[size_t(pick)] = 1;
        for (int64_t i = 0; i < kept_rows.size; i++) {
            const auto place = std::lower_bound(rows.begin(), rows.end(), kept_rows[i]);
            if (place != rows.end() && *place == kept_rows[i]) chosen[size_t(place - rows.begin())] = 1;
        }
        pick = std::count(chosen.begin(), chosen.begin() + pick, uint8_t(1));
        size_t count = part.rows.size();
        part.rows.resize(count + chosen.size());
        for (size_t i = 0; i < chosen.size(); i++) part.rows[count] = rows[i], count += chosen[i];
        part.rows.resize(count);
    }
    part.starts.push_back(int64_t(part.rows.size()));
    part.picks.push_back(pick);
}

void LaunchTimes::compute(const Launch& launch, Problem& problem, const int64_t* rows, int64_t count) {
    if (&launch == launch_ && problem.number == problem_ && std::equal(rows, rows + count, all_.begin(), all_.end()))
        return;
    launch_ = nullptr;
    places.clear(), columns.clear(), rows_.clear(), variants_.clear(), columns_.clear();
    const Domain* const groups = launch.groups();
    if (groups != nullptr) in_group_.assign(size_t(groups->size), -1);
    for (int64_t place = 0; place < count; place++) {
        const int64_t row = rows[place];
        if (!launch.performed(row)) continue;
        int32_t none = -1, &first = groups == nullptr ? none : in_group_[size_t(groups->index[size_t(row)])];
        if (first < 0 || !launch.alike(rows_[size_t(first)], row)) first = int32_t(rows_.size()), rows_.push_back(row);
        places.push_back(place), columns.push_back(first);
    }
    const int64_t size = int64_t(rows_.size()), work_rows = kLoops + 2 * launch.loops();
    if (size == 0) return;
    const size_t figures = size_t((work_rows + kPipes + kTimes) * size);
    if (room_.size() < figures) room_.resize(figures);
    const Table<double> filled(room_.data(), work_rows, size, size, 1);
    launch.fill_work(launch.on(problem), rows_, filled);
    latest_.assign(1024, -1);
    for (int64_t i = 0; i < size; i++) {
        // Configs whose digests differ count as different: a missed duplicate only costs time.
        const int64_t variant = launch.variant(rows_[size_t(i)]);
        uint64_t digest = uint64_t(variant) ^ uint64_t(bits(filled(kDramBytes, i)));
        for (int64_t row = kLoops; row < work_rows; row++)
            digest = ((digest << 9) | (digest >> 55)) ^ uint64_t(bits(filled(row, i)));
        digest = (digest ^ (digest >> 32)) * 0x9E3779B97F4A7C15;
        int32_t& latest = latest_[digest >> 54];
        bool same = latest >= 0 && variants_[size_t(latest)] == variant;
        for (int64_t row = 0; same && row < work_rows; row++) same = bits(filled(row, latest)) == bits(filled(row, i));
        if (!same) {
            latest = int32_t(variants_.size());
            variants_.push_back(variant);
            for (int64_t row = 0; row < work_rows; row++) filled(row, latest) = filled(row, i);
        }
        columns_.push_back(latest);
    }
    for (int64_t& column : columns) column = columns_[size_t(column)];
    const int64_t different = int64_t(variants_.size());
    work = {filled.data, work_rows, different, size, 1};
    const Table<double> pipes(filled.data + work_rows * size, kPipes, different, size, 1);
    const Table<double> all_times(pipes.data + kPipes * size, kTimes, different, size, 1);
    launch_times(launch.demand(), launch.device(), launch.loops(), {variants_.data(), different}, work, pipes,
                 all_times);
    pipe_clk = {pipes.data, kPipes, different, size, 1};
    times = {all_times.data, kTimes, different, size, 1};
    launch_ = &launch, problem_ = problem.number, all_.assign(rows, rows + count);
}

// Add the launches of a kernel to the costs of its configs.
void Costs::estimate(Part& part) {
    const Kernel& kernel = *part.kernel;
    const Table<double> nominal(nominal_.get(), 5, count_, count_, 1);
    const Table<double> longest(longest_.get(), 2, count_, count_, 1);
    LaunchTimes& done = launched;
    for (size_t problem = 0; problem < part.problems.size(); problem++) {
        const int64_t start = part.starts[problem], count = part.starts[problem + 1] - start;
        for (const Launch* launch : kernel.launches) {
            done.compute(*launch, *part.problems[problem], part.rows.data() + start, count);
            const Table<const double> work = done.work, times = done.times;
            const int64_t *const places = done.places.data(), *const columns = done.columns.data();
            for (size_t i = 0, size = done.places.size(); i < size; i++) {
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
    }
    if (!part.epilogues) return;
    const Table<const double> epilogues(*part.epilogues);
    for (size_t problem = 0; problem < part.problems.size(); problem++)
        for (int64_t place = part.starts[problem]; place < part.starts[problem + 1]; place++)
            for (int64_t figure = 0; figure < 4; figure++)  // all fields except the launch overhead
                nominal(figure < 2 ? figure : figure + 1, part.first + place) += epilogues(int64_t(problem), figure);
}

void bind_costs(nb::module_& module) {
    const auto exact = [] { return nb::arg().noconvert(); };
    nb::class_<Kernel>(module, "Kernel")
        .def(nb::init<nb::object, nb::list, Array<const bool, 1>, Array<const double, 1>, Array<const double, 2>,
                      Array<const int64_t, 2>, bool, double, double>(),
             nb::arg(), nb::arg(), exact(), exact(), exact(), exact(), nb::arg(), nb::arg(), nb::arg());
    nb::class_<Costs>(module, "Costs")
        .def(nb::init<nb::list, nb::handle, int64_t, int64_t>(), nb::arg(), nb::arg().none(), nb::arg(), nb::arg())
        .def_prop_ro("nominal", &Costs::nominal_array)
        .def_prop_ro("longest", &Costs::longest_array)
        .def_prop_ro("kernels", &Costs::kernels)
        .def("rows", &Costs::rows)
        .def("runnable", &Costs::runnable)
        .def("launches", &Costs::launches)
        .def(
            "fill",
            [](const Costs& self, size_t kernel, int64_t first, Array<const int64_t, 1> positions,
               Array<const double, 2> limited, Array<double, 2> quantities) {
                self.fill(self.parts().at(kernel), first, positions, limited, quantities);
            },
            nb::arg(), nb::arg(), exact(), exact(), exact());
}

}  // namespace kernrec::query
