// Computes latency, power and energy of launches at the highest clock that keeps within a power limit.
//
// kernrec/model/analytical/power.py describes the model, throttle.py makes the tables of clocks.
#include <algorithm>

#include "launch.h"

namespace kernrec::query {

using namespace costs;

namespace {

// Values of the row `kRegime` besides `kCapped`: the resource that limits the speed of a launch.
constexpr double kCoreBound = 0.0, kDramBound = 1.0, kLaunchBound = 2.0;
// Clocks per table: 1/1024 of the range is finer than the 15 MHz steps of real GPUs.
constexpr int64_t kClocks = 1024;

// Power limits and highest clocks of P operating points, and values that depend only on them.
struct PowerLimits {
    Table<const double> limits_w;  // (P, N), or (P, 1) if all launches have the same limits
    // Properties of each point's highest clock, (4, P): clock / boost clock, power of board and leakage (W), power of
    // the clock tree at nominal voltage (W), (core voltage / core voltage at the boost clock)^2.
    Table<const double> highest;
    Row<const double> highest_hz;
    Row<const int64_t> first;  // column of each point's lowest clock in `table` and `search`
    // Properties of the `kClocks` lower clocks of each point, ascending, (4, clocks). The rows are those of `highest`.
    Table<const double> table;
    Row<const double> table_hz;
    // More properties of each clock in `table_hz`, (3, clocks): (boost clock / clock)^kOverlap, power without events
    // (W), (core voltage / core voltage at the boost clock)^2.
    Table<const double> search;

    // Return the costs of N launches, (kCostRows, P, N). `launches` (5, N) has a row per field of `NominalCosts`.
    std::vector<double> costs(const Table<const double>& launches) const {
        const int64_t count = launches.columns;
        require(launches.rows == 5 && (limits_w.columns == 1 || limits_w.columns == count),
                "launches: expected five figures, and one limit for all launches or one for each");
        std::vector<double> result(size_t(kCostRows * points() * count));
        limit(points(), launches, result.data());
        return result;
    }
    nb::object costs_array(const Table<const double>& launches) const {
        return numpy<double, 3>(costs(launches), {size_t(kCostRows), size_t(points()), size_t(launches.columns)});
    }
    int64_t points() const { return limits_w.rows; }
    // Return the latency of a single launch at the first operating point.
    double latency_s(const std::vector<double>& launch) const {
        require(points() > 0 && limits_w.columns == 1 && launch.size() == 5, "launch: expected five figures");
        double costs[kCostRows];
        limit(1, {launch.data(), 5, 1}, costs);
        return costs[kLatencyS];
    }

  private:
    // Fill the costs (kCostRows, points, N) of N launches at the first `points` operating points.
    void limit(int64_t points, const Table<const double>& launches, double* costs) const {
        Block block;
        for (int64_t start = 0; start < launches.columns; start += kLanes) {
            const int64_t lanes = std::min(kLanes, launches.columns - start);
            for (int64_t i = 0; i < kLanes; i++) {
                const int64_t column = start + std::min(i, lanes - 1);  // Spare lanes repeat the last one.
                for (int64_t row = 0; row < 5; row++) block.launch[row][i] = launches(row, column);
            }
            for (int64_t p = 0; p < points; p++) {
                for (int64_t i = 0; i < kLanes; i++)
                    block.limit_w[i] = limits_w(p, limits_w.columns > 1 ? start + std::min(i, lanes - 1) : 0);
                ByCpu<kLimit>()(this, p, &block);
                for (int64_t row = 0; row < kCostRows; row++) {
                    double* const out = costs + (row * points + p) * launches.columns + start;
                    lanes == kLanes ? std::copy_n(block.costs[row], kLanes, out)
                                    : std::copy_n(block.costs[row], lanes, out);
                }
            }
        }
    }

    struct Block {
        Lanes launch[5], limit_w, dram, costs[kCostRows], over;
        int64_t clocks[kLanes];
    };

    // Fill the costs of launch `i` at a clock. The last four arguments are a column of `highest` or `table`.
    KERNREC_INLINE static void fill_costs(Block& block, int64_t i, double clock, double static_w, double tree_w,
                                          double voltage) {
        const double core = overlap_power(block.launch[0][i] / clock);
        const double latency = overlap_root(core + block.dram[i]) + block.launch[2][i];
        const double static_j = static_w * latency;
        const double clocked_j = (tree_w * latency + block.launch[3][i]) * voltage;
        const double energy = static_j + clocked_j + block.launch[4][i];
        block.costs[kLatencyS][i] = latency, block.costs[kEnergyJ][i] = energy;
        block.costs[kPowerW][i] = energy / latency;
        block.costs[kStaticJ][i] = static_j, block.costs[kClockedJ][i] = clocked_j;
    }

    static constexpr auto kLimit = [](const auto* limits, int64_t p, auto* block)
                                       __attribute__((always_inline)) { limits->limit_inline(p, *block); };

    KERNREC_INLINE void limit_inline(int64_t p, Block& block) const {
        const double clock = highest(0, p), static_w = highest(1, p), tree_w = highest(2, p);
        const double voltage = highest(3, p), hz = highest_hz[p];
        const Lanes &core_s = block.launch[0], &dram_s = block.launch[1], &fixed_s = block.launch[2];
        auto& costs = block.costs;
        for (int64_t i = 0; i < kLanes; i++) {
            block.dram[i] = overlap_power(dram_s[i]);
            fill_costs(block, i, clock, static_w, tree_w, voltage);
            costs[kClockHz][i] = hz;
            block.over[i] = costs[kPowerW][i] > block.limit_w[i] ? 1.0 : 0.0;
            const double bound = dram_s[i] > core_s[i] ? kDramBound : kCoreBound;
            const double regime = fixed_s[i] > maximum(core_s[i], dram_s[i]) ? kLaunchBound : bound;
            costs[kRegime][i] = block.over[i] > 0.0 ? kCapped : regime;
        }
        if (*std::max_element(block.over, block.over + kLanes) == 0.0) return;
        find_clocks(first[p], block);
        Lanes rates[4];  // column of `highest` or `table` of each launch
        const auto select = [&](const double* at_clock, double at_highest, Lanes& selected) {
            for (int64_t i = 0; i < kLanes; i++)
                selected[i] = block.over[i] > 0.0 ? at_clock[block.clocks[i]] : at_highest;
        };
        for (int64_t row = 0; row < 4; row++) select(&table(row, 0), highest(row, p), rates[row]);
        select(&table_hz[0], hz, costs[kClockHz]);
        for (int64_t i = 0; i < kLanes; i++) fill_costs(block, i, rates[0][i], rates[1][i], rates[2][i], rates[3][i]);
        for (int64_t i = 0; i < kLanes; i++) {
            // If the lowest clock still exceeds the limit, the GPU pauses its clock between pulses. Only board and
            // leakage draw power during a pause. Pauses are long enough that the mean power equals the limit.
            const double limit_w = block.limit_w[i], resting_w = minimum(rates[1][i], kResting * limit_w);
            const double latency = costs[kLatencyS][i], energy = costs[kEnergyJ][i], static_j = costs[kStaticJ][i];
            const bool pauses = costs[kPowerW][i] > limit_w;
            const double paused_s = maximum(energy - limit_w * latency, 0.0) / (limit_w - resting_w);
            costs[kLatencyS][i] = pauses ? latency + paused_s : latency;
            costs[kStaticJ][i] = pauses ? static_j + resting_w * paused_s : static_j;
            costs[kEnergyJ][i] = pauses ? limit_w * (latency + paused_s) : energy;
            costs[kPowerW][i] = minimum(costs[kPowerW][i], limit_w);
        }
    }

    // Find the highest clock at which each launch keeps its limit, from column `lowest` of a table on. Power increases
    // with the clock, so each round of a search halves the range.
    KERNREC_INLINE void find_clocks(int64_t lowest, Block& block) const {
        const Lanes &core_s = block.launch[0], &fixed_s = block.launch[2];
        const Lanes &core_j = block.launch[3], &dram_j = block.launch[4];
        const double *const faster = &search(0, 0), *const idle_w = &search(1, 0), *const voltage = &search(2, 0);
        Lanes core;
        const auto fits = [&](int64_t i, int64_t tried) {
            // A clock fits if the launch takes long enough to spread the energy of its events. This test needs no root
            // and no division. No clock fits if the power without events exceeds the limit.
            const double spare_w = block.limit_w[i] - idle_w[tried];
            const double beyond_j = maximum(voltage[tried] * core_j[i] + dram_j[i] - fixed_s[i] * spare_w, 0.0);
            const double overlapped = faster[tried] * core[i] + block.dram[i];
            const bool enough = overlapped * overlap_power(spare_w) >= overlap_power(beyond_j);
            return enough && spare_w > 0.0 ? 1.0 : 0.0;
        };
        int64_t clocks[kLanes];
        for (int64_t i = 0; i < kLanes; i++) core[i] = overlap_power(core_s[i]), clocks[i] = lowest;
        for (int64_t step = kClocks / 2; step > 0; step /= 2)
            for (int64_t i = 0; i < kLanes; i++) clocks[i] += int64_t(fits(i, clocks[i] + step)) * step;
        std::copy_n(clocks, kLanes, block.clocks);
    }
};

const Binding kBinding([](nb::module_& module) {
    using Doubles = Table<const double>;
    nb::class_<PowerLimits>(module, "PowerLimits")
        .def(
            "__init__",
            [](PowerLimits* self, const Doubles& limits_w, const Doubles& highest, const Row<const double>& highest_hz,
               const Row<const int64_t>& first, const Doubles& table, const Row<const double>& table_hz,
               const Doubles& search) {
                const int64_t points = limits_w.rows, clocks = table_hz.size;
                require(highest.rows == 4 && highest.columns == points && highest_hz.size == points &&
                            first.size == points && table.rows == 4 && search.rows == 3 && table.columns == clocks &&
                            search.columns == clocks && search.step == 1 && table.step == 1 && table_hz.step == 1 &&
                            limits_w.columns > 0 && all_within(first, 0, clocks - kClocks + 1),
                        "limits: expected as many points everywhere, and the clocks below each");
                new (self) PowerLimits{limits_w, highest, highest_hz, first, table, table_hz, search};
            },
            nb::keep_alive<1, 2>(), nb::keep_alive<1, 3>(), nb::keep_alive<1, 4>(), nb::keep_alive<1, 5>(),
            nb::keep_alive<1, 6>(), nb::keep_alive<1, 7>(), nb::keep_alive<1, 8>())
        .def("latency_s", &PowerLimits::latency_s)
        .def("costs", &PowerLimits::costs_array);
    module.attr("CLOCKS") = kClocks;
    module.attr("RESTING") = kResting;
    module.attr("CAPPED") = kCapped;
});

}  // namespace

std::vector<double> limited_costs(nb::handle limits, const Table<const double>& launches, int64_t points) {
    const PowerLimits& power = nb::cast<const PowerLimits&>(limits);
    require(power.points() == points, "limits: expected as many operating points");
    return power.costs(launches);
}

}  // namespace kernrec::query
