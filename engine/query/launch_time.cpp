// Computes the time of launches at the boost clock; kernrec/model/analytical/launch_time.py describes the model.
#include "launch.h"

#include <algorithm>

namespace kernrec::query {
namespace {

// Return the clocks of a round: each of K users takes the pipes for `own` clocks, then waits for `wait`. busy: K * own.
//
// By mean value analysis, an arriving user finds (K - 1) / K of the total queue. On average, half of the current
// service remains, because each service takes the same time:
//
//     response = own (1 + (K - 1) / K (queue - use / 2)),   queue = K response / round,   use = K own / round
//
// With round = response + wait, this is a quadratic equation. A round takes at least `busy` and at least own + wait.
// For K = 1, it takes own + wait (Lazowska et al., chapter 6, approximate mean value analysis; Reiser, "A Queueing
// Network Analysis of Computer Communication Networks with Window Flow Control", 1979, for the remaining service).
KERNREC_INLINE double round_clk(double own, double wait, double busy) {
    const double longer = busy - wait - own;
    return maximum(busy, 0.5 * (busy + wait + std::sqrt(longer * longer + own * (own + 2.0 * wait))));
}

// Fraction of the arithmetic between matmuls of warpgroups (such as attention's softmax) that other matmuls never hide.
// In the first tile of a block, matmuls hide nothing. Fitted to FlashAttention-3 at head sizes 64, 128 and 256:
// published figures (arXiv 2407.08608, figure 5) and recordings on an H200. The rule for matmuls of single warps would
// predict 1.2 to 1.5 times too much speed for narrow heads.
constexpr double kGroupsShare = 0.5;
// Clocks to start a block, compute addresses and drain the last stores, for kernels that prefetch (fitted to the anchor
// conv2d_f32_ansor.csv).
constexpr double kBlockClk = 900.0;
// Clocks to start a block and to replace it by the next, for kernels that do not prefetch.
constexpr double kStartClk = 300.0;

KERNREC_INLINE double eighth_power(double value) {
    const double fourth = fourth_power(value);
    return fourth * fourth;
}
KERNREC_INLINE double eighth_root(double value) { return std::sqrt(fourth_root(value)); }

// Return the clocks for which `blocks` blocks occupy an SM's pipes.
//
// Each scheduler has its own pipes, so an uneven number of warps per scheduler costs time. On GPUs with few f64 lanes,
// all schedulers share the f64 pipe, which uneven numbers do not slow down. For instance, the kernel `hotspot` takes
// 20 clocks per f64 instruction on an RTX A4000, for any number of warps. shared_f64: time in a shared f64 pipe, or 0.
// by_scheduler: time of a block in the other pipes.
KERNREC_INLINE double occupied_clk(double blocks, double block_clk, double by_scheduler, double shared_f64,
                                   double warps) {
    const double resident = blocks * warps;
    const double uneven = std::ceil(resident * (1.0 / kSchedulers)) * kSchedulers / maximum(resident, 1.0);
    return shared_f64 > 0.0 ? blocks * maximum(block_clk, by_scheduler * uneven) : blocks * block_clk * uneven;
}

// Return the clocks that a block alone on an SM waits for DRAM beyond its load latency.
//
// The block is idle during its loads. So its time is `alone` plus the longer of two waits. `waited` is the load
// latency. `dram_clk` is the time to load the block's bytes at the SM's share of the DRAM bandwidth. Later, the block's
// time and its DRAM time are combined by a smooth maximum, and the result must be this sum.
KERNREC_INLINE double exposed_clk(double alone, double waited, double dram_clk) {
    const double total = alone + maximum(waited, dram_clk);
    const double rest = maximum(1.0 - overlap_power(dram_clk / total), 0.0);
    return maximum(total * overlap_root(rest) - alone - waited, 0.0);
}

// Return the smooth maximum `(a**p + b**p)**(1/p)`, without overflow or underflow.
KERNREC_INLINE double smooth_maximum(double a, double b) {
    const double high = maximum(a, b);
    return high * overlap_root(overlap_power(minimum(a, b) / high) + 1.0);
}

// Some launches of a demand: their work, and the quantities that are computed from it.
struct Block {
    Lanes work[kLoops];             // rows of `WorkRow`
    Lanes total[kQuantityCount];       // quantities of the whole grid
    Lanes trips, longer;            // trips of an average block, and additional trips of the longest block
    Lanes longer_clk, first_clk;    // clocks of `longer`, and of the first tile's arithmetic between matmuls
    Lanes each, barriers, peak, shares, block_clk, by_scheduler, shared_f64, most;
    Lanes pipe_clk[kPipes], times[kTimes];

    // Add the demand of all loops of one launch.
    KERNREC_INLINE void add_loops(const Demand& demand, int64_t loops, int64_t variant, const Table<const double>& all,
                                  int64_t column, int64_t i) {
        const double* const rates = demand.data() + variant * int64_t(demand.shape(1)) * kQuantityCount;
        const double blocks = all(kBlocks, column), warps = all(kWarps, column);
        const double share = 1.0 / blocks, barrier_clk = maximum(kBarrierClk, kBarrierWarpClk * warps);
        double sums[kQuantityCount], counted = 0.0, beyond = 0.0, beyond_clk = 0.0, between_clk = 0.0;
        for (int64_t q = 0; q < kQuantityCount; q++) sums[q] = rates[q] * blocks;
        for (int64_t loop = 1; loop <= loops; loop++) {
            const double* const of_loop = rates + loop * kQuantityCount;
            const double count = all(kLoops + 2 * (loop - 1), column);
            for (int64_t q = 0; q < kQuantityCount; q++) sums[q] = sums[q] + of_loop[q] * count;
            const double average = count * share;
            const double more = all(kLoops + 2 * (loop - 1) + 1, column) - average;
            counted = counted + average;
            beyond = beyond + more;
            between_clk = between_clk + of_loop[kBetweenGroups] * minimum(average, 1.0);
            beyond_clk = beyond_clk + (of_loop[kAlone] / warps + of_loop[kBarriers] * barrier_clk) * more;
        }
        for (int64_t q = 0; q < kQuantityCount; q++) total[q][i] = sums[q];
        each[i] = share, trips[i] = counted, longer[i] = beyond, longer_clk[i] = beyond_clk, first_clk[i] = between_clk;
    }

    // Combine the pipes of an average block by a smooth maximum. Warps in different phases use different pipes, so two
    // pipes of equal time take 2**(1/8) = 1.09 times the time of one. This fits recorded spaces better than the
    // factor 1.19 of core and DRAM.
    KERNREC_INLINE void combine_pipes(const Device& device) {
        for (int64_t q = 0; q < kPipes; q++)
            for (int64_t i = 0; i < kLanes; i++) pipe_clk[q][i] = total[q][i] * each[i];
        // Replace the pipes of shared memory and L1 by their common port.
        const auto clk = [&](int64_t q, int64_t i) { return total[q < kShared ? q : int64_t(kPort)][i] * each[i]; };
        const bool few_f64 = device.few_f64;
        for (int64_t i = 0; i < kLanes; i++) peak[i] = clk(0, i), shares[i] = 0.0;
        for (int64_t q = 1; q <= kShared; q++)
            for (int64_t i = 0; i < kLanes; i++) peak[i] = maximum(peak[i], clk(q, i));
        for (int64_t q = 0; q <= kShared; q++)
            for (int64_t i = 0; i < kLanes; i++) shares[i] = shares[i] + eighth_power(clk(q, i) / peak[i]);
        for (int64_t i = 0; i < kLanes; i++) {
            barriers[i] = total[kBarriers][i] * each[i];
            const double in_barriers = barriers[i] * (kBarrierWarpClk * work[kWarps][i]);
            block_clk[i] = maximum(peak[i] * eighth_root(shares[i]), in_barriers);
            by_scheduler[i] = block_clk[i], shared_f64[i] = 0.0;
            if (!few_f64) continue;
            shared_f64[i] = eighth_power(total[kF64][i] * each[i] / peak[i]);
            by_scheduler[i] = maximum(peak[i] * eighth_root(maximum(shares[i] - shared_f64[i], 0.0)), in_barriers);
        }
    }

    // Add the waits of blocks, and the work that is not spread evenly.
    template <bool in_turn>
    KERNREC_INLINE void add_waits(const Device& device) {
        const double clock_hz = device.clock_hz, memory_clk = device.memory_clk, sms = device.sms;
        const double dram_byte_s = device.dram_byte_s, slower = device.core_time, dram_time = device.dram_time;
        const double l2_clk = device.l2_clk_per_sector, l2_latency_clk = device.l2_latency_clk;
        for (int64_t i = 0; i < kLanes; i++) {
            const double warps = work[kWarps][i];
            // Users of the pipes: whole blocks if barriers keep their warps together, otherwise warps.
            const double overlapped = work[kOverlapped][i], ahead = work[kPrefetch][i];
            double together_part = minimum(barriers[i] / maximum(work[kWaitRounds][i], 1.0), 1.0);
            together_part = overlapped == overlapped ? 1.0 - overlapped : together_part;
            const double own = block_clk[i] * (together_part + (1.0 - together_part) / warps);
            // Latency of an average block: its instructions in order, barriers, and loads that prefetching does not
            // hide.
            const double barrier_clk = maximum(kBarrierClk, kBarrierWarpClk * warps);
            const double alone = maximum(total[kAlone][i] * (each[i] / warps) + barriers[i] * barrier_clk, own);
            const double wait_clk = memory_clk / maximum(ahead, 1.0);
            const bool none_ahead = ahead == 0.0;
            const double late = maximum(trips[i] * wait_clk - (none_ahead ? 0.0 : alone), 0.0);
            const double start_clk = none_ahead ? kStartClk : memory_clk + kBlockClk;
            const double wait = alone - own + late + start_clk;
            const double dram_s = work[kDramBytes][i] * work[kDramSlowdown][i] * dram_byte_s;
            // In a round, an SM runs `together` blocks. While a block waits, other blocks use the pipes. So a round
            // takes the pipe time of one block, plus the longer of the waits of this block and the pipe time of the
            // others.
            const double per_sm = std::ceil(work[kBlocks][i] / sms);
            const double together = minimum(work[kConcurrent][i], per_sm);
            const double full = std::floor(per_sm / together), rest = per_sm - full * together;
            const double uneven = rest > 0.0 ? 1.0 : 0.0;
            const double busy = occupied_clk(together, block_clk[i], by_scheduler[i], shared_f64[i], warps);
            const double busy_rest = occupied_clk(rest, block_clk[i], by_scheduler[i], shared_f64[i], warps);
            // While a scheduler runs one warp's arithmetic between tensor instructions, its tensor core is idle. A
            // block of warpgroups has no work before its first tiles arrive, so no matmul hides the arithmetic then.
            double between = total[kBetween][i] * (4.0 * each[i] / warps);
            const double unhidden =
                kGroupsShare * (total[kBetweenGroups][i] * each[i]) + (1.0 - kGroupsShare) * first_clk[i] + start_clk;
            between = first_clk[i] > 0.0 ? between + unhidden : between;
            const double least = busy + between, least_rest = maximum(busy_rest + between, own);
            const auto rounds_clk = [&](double waited) __attribute__((always_inline)) {
                return full * round_clk(own, waited, least) + uneven * round_clk(own, waited, least_rest);
            };
            double waited = wait;
            if (in_turn) {  // Add the waits of blocks whose warps wait for DRAM or one pipe, while other pipes idle.
                const double turns_clk = total[kInTurn][i] * each[i];
                const double longest = maximum(alone, own + maximum(turns_clk - block_clk[i], 0.0) * together_part);
                const double exposed = exposed_clk(longest, wait - (alone - own), dram_s * (clock_hz * sms) * each[i]);
                waited = wait + (longest - alone) + (turns_clk > 0.0 ? exposed * together_part : 0.0);
            }
            const double in_turns = rounds_clk(waited), sm_clk = rounds_clk(wait);
            // Add the time for which the longest block runs after all other blocks have ended.
            const double clk =
                in_turns + maximum(longer_clk[i], longer[i] * wait_clk) + work[kLoneWaits][i] * l2_latency_clk;
            const double l2_s = maximum(total[kSectors][i] * l2_clk, work[kSerialClk][i]) * (1.0 / clock_hz);
            times[kCoreTime][i] = smooth_maximum(clk / clock_hz, l2_s) * slower;
            times[kDramTime][i] = dram_s * dram_time;
            times[kCoreJoules][i] = total[kCoreJ][i];
            times[kBusy][i] = (full * busy + busy_rest) / clock_hz * slower;
            times[kLatency][i] = (full + uneven) * (own + waited) / clock_hz * slower;
            times[kL2Time][i] = l2_s * slower;
            times[kInTurnTime][i] = (in_turns - sm_clk) / clock_hz * slower;
        }
    }

    // Set the resource that takes longest.
    KERNREC_INLINE void find_bottleneck() {
        for (int64_t i = 0; i < kLanes; i++) times[kResource][i] = 0.0, most[i] = pipe_clk[0][i];
        for (int64_t q = 1; q < kPipes; q++)
            for (int64_t i = 0; i < kLanes; i++) {
                times[kResource][i] = pipe_clk[q][i] > most[i] ? double(q) : times[kResource][i];
                most[i] = maximum(most[i], pipe_clk[q][i]);
            }
        // The pipes count with the time for which any pipe is busy.
        for (int64_t i = 0; i < kLanes; i++) most[i] = most[i] > 0.0 ? times[kBusy][i] : 0.0;
        constexpr int64_t kOthers[] = {kLatency, kL2Time, kDramTime};
        for (int64_t other = 0; other < 3; other++)
            for (int64_t i = 0; i < kLanes; i++) {
                const double part = times[kOthers[other]][i];
                times[kResource][i] = part > most[i] ? double(kPipes + other) : times[kResource][i];
                most[i] = maximum(part, most[i]);
            }
        for (int64_t i = 0; i < kLanes; i++)
            times[kResource][i] = most[i] < kStartS + kLaunchS ? double(kPipes + 3) : times[kResource][i];
    }
};

// Fill a block with the launches in some columns of `work` and `variants`, and compute their times.
constexpr auto kCompute = [](Block* block, const Demand* demand, const Device* device, int64_t loops,
                             Row<const int64_t> variants, Table<const double> work,
                             int64_t first) __attribute__((always_inline)) {
    for (int64_t i = 0; i < kLanes; i++) {
        const int64_t column = std::min(first + i, variants.size - 1);  // Spare lanes repeat the last one.
        for (int64_t row = 0; row < kLoops; row++) block->work[row][i] = work(row, column);
        block->add_loops(*demand, loops, variants[column], work, column, i);
    }
    block->combine_pipes(*device);
    const Lanes& turns = block->total[kInTurn];
    if (std::any_of(turns, turns + kLanes, [](double turn_clk) { return turn_clk > 0.0; }))
        block->add_waits<true>(*device);
    else block->add_waits<false>(*device);
    block->find_bottleneck();
};

}  // namespace

void launch_times(const Demand& demand, const Device& device, int64_t loops, const Row<const int64_t>& variants,
                  const Table<const double>& work, const Table<double>& pipe_clk, const Table<double>& times) {
    Block block;
    for (int64_t first = 0; first < variants.size; first += kLanes) {
        const int64_t count = std::min(kLanes, variants.size - first);
        ByCpu<kCompute>()(&block, &demand, &device, loops, variants, work, first);
        for (int64_t q = 0; q < kPipes; q++)
            for (int64_t i = 0; i < count; i++) pipe_clk(q, first + i) = block.pipe_clk[q][i];
        for (int64_t row = 0; row < kTimes; row++)
            for (int64_t i = 0; i < count; i++) times(row, first + i) = block.times[row][i];
    }
}

}  // namespace kernrec::query
