// Data of one launch of a kernel's configs, and the analytical model of the launch's time.
#pragma once

#include "arrays.h"

namespace kernrec::query {

// Rows of a demand (kernrec/model/analytical/demand.py): clocks of each pipe, then other quantities. The last two pipes
// are shared memory and L1. Both use one port, and the row `kPort` counts its clocks.
enum Quantity : int64_t {
    kF64 = 4,
    kShared = 7,
    kPipes = 9,
    kPort = 9,
    kSectors,
    kBarriers,
    kCoreJ,
    kBetween,
    kBetweenGroups,
    kAlone,
    kInTurn,
    kQuantityCount,
};

// Rows of `LaunchWork` (kernrec/model/analytical/launch_time.py). From `kLoops` on, each loop has two rows: its trips
// over all blocks, and in the longest block.
enum WorkRow : int64_t {
    kBlocks,
    kConcurrent,
    kWarps,
    kPrefetch,
    kDramBytes,
    kDramSlowdown,
    kSerialClk,
    kWaitRounds,
    kOverlapped,
    kLoneWaits,
    kLoops,
};
// Rows of `LaunchTime.rows`; the last is the index of the bottleneck in `RESOURCES`.
enum TimeRow : int64_t { kCoreTime, kDramTime, kCoreJoules, kBusy, kLatency, kL2Time, kInTurnTime, kResource, kTimes };

// Overhead of each launch: 2 to 3 us on every generation (fitted to the small shapes of the anchor
// conv2d_f32_ansor.csv).
constexpr double kLaunchS = 2.5e-6;
// Additional overhead of the first launch of an op: an idle stream, a cold instruction cache and cold address
// translation (fitted to the smallest shapes of the anchor matmul_f16_rtx3090.csv, timed launch by launch).
constexpr double kStartS = 2.5e-6;
// Cost of a block-wide barrier, without its instructions: clocks lost by the last warp, and SM clocks per arriving
// warp. Zhang et al., "A Study of Single and Multi-device Synchronization Methods in Nvidia GPUs" (arXiv 2004.05371),
// V100: 22 cycles, 0.475 warps per cycle.
constexpr double kBarrierClk = 22.0, kBarrierWarpClk = 2.1;
constexpr double kSchedulers = 4.0;  // per SM, for all GPUs of the catalog
// Exponent p of the smooth maximum of overlapping parts, `(core_s**p + memory_s**p)**(1/p)`: two equal parts take
// 2**(1/4) = 1.19 times the time of one. As a power of two, it needs only squares and square roots.
constexpr double kOverlap = 4.0;

// Figures of a GPU that affect a launch, at the boost clock.
struct Device {
    double clock_hz, sms, l2_bytes;
    double dram_byte_s;  // seconds per byte
    double memory_clk;   // latency of a load from DRAM
    double l2_clk_per_sector, l2_latency_clk;
    bool few_f64;  // fewer f64 lanes than schedulers per SM
    double core_time, dram_time;  // calibration factors for times of the core's clock domain, and of DRAM
};

// Demand of a launch's variants, (variants, terms, quantities): of a block, then of a trip of each loop.
using Demand = nb::ndarray<const double, nb::shape<-1, -1, kQuantityCount>, nb::c_contig, nb::device::cpu>;

// Tensors that a launch reads and writes. For each read tensor, `axes` marks the grid's steps that change its tile.
struct Access {
    std::vector<int64_t> reads, writes;
    std::vector<uint8_t> axes;     // whether a step selects a read tensor's tiles, (reads, steps)
    std::vector<uint8_t> scratch;  // whether a tensor only exists between launches
    int64_t steps;
};

// Fill `pipe_clk` (kPipes, N) and `times` (kTimes, N) of N launches.
void launch_times(const Demand& demand, const Device& device, int64_t loops, const Row<const int64_t>& variants,
                  const Table<const double>& work, const Table<double>& pipe_clk, const Table<double>& times);

// Costs under a power limit.
namespace costs {

// Rows of `LimitedCosts.costs` (kernrec/model/analytical/launch_costs.py).
enum CostRow : int64_t { kLatencyS, kPowerW, kEnergyJ, kClockHz, kStaticJ, kClockedJ, kRegime, kCostRows };
constexpr double kCapped = 3.0;  // value of the row `kRegime`: the power limit lowers the clock
// Maximum power of a GPU while the power limit stops its clock, as a fraction of this limit (an estimate). During long
// stops, a GPU also lowers its memory clock. This bound matters only for very low limits: an RTX 3090 accepts 100 W,
// but its board and memory draw 104 W at the full memory clock.
constexpr double kResting = 0.75;

}  // namespace costs

// Return the costs of launches at the operating points of a `PowerLimits`, (kCostRows, points, N). `launches`
// (5, N) has one row per field of `NominalCosts`, and one column per launch.
std::vector<double> limited_costs(nb::handle limits, const Table<const double>& launches, int64_t points);

KERNREC_INLINE double overlap_root(double value) { return fourth_root(value); }
KERNREC_INLINE double overlap_power(double value) { return fourth_power(value); }

}  // namespace kernrec::query
