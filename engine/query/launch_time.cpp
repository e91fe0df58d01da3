// Computes the time of launches at the boost clock; kernrec/model/analytical/launch_time.py describes the model.
#include "launch.h"

namespace kernrec::query {

// Return the clocks of a round: K = busy / own users take turns at the pipes, for `own` clocks each, and wait in
// between.
//
// By mean value analysis, an arriving user finds (K - 1) / K of the total queue. On average, half of the current
// service remains, because each service takes the same time:
//
//     response = own (1 + (K - 1) / K (queue - use / 2)),   queue = K response / round,   use = K own / round
//
// With round = response + wait, this is a quadratic equation. A round is never shorter than `busy`, nor than own +
// wait, which it equals for K = 1 (Lazowska et al., chapter 6, approximate mean value analysis; Reiser, "A Queueing
// Network Analysis of Computer Communication Networks with Window Flow Control", 1979, for the remaining service).
double round_clk(double own, double wait, double busy) {
    const double longer = busy - wait - own;
    return maximum(busy, 0.5 * (busy + wait + std::sqrt(longer * longer + own * (own + 2.0 * wait))));
}

namespace {

// Fraction of the arithmetic between matmuls of warpgroups (such as attention's softmax) that other matmuls never hide.
// In the first tile of a block, nothing is hidden. Fitted to published figures of FlashAttention-3 (arXiv 2407.08608,
// figure 5) and its recordings on an H200, at head sizes 64, 128 and 256. With the rule for warp-level instructions
// (the total time of one warp), narrow heads would be 1.2 to 1.5 times too fast.
constexpr double kGroupsShare = 0.5;
// Clocks to start a block, compute addresses and drain the last stores, for kernels that prefetch (fitted to the anchor
// conv2d_f32_ansor.csv).
constexpr double kBlockClk = 900.0;
// Clocks to start a block and to replace it by the next, for kernels with counted memory waits.
constexpr double kStartClk = 300.0;

double eighth_power(double value) {
    const double fourth = fourth_power(value);
    return fourth * fourth;
}
double eighth_root(double value) { return std::sqrt(fourth_root(value)); }

// Return the clocks for which `blocks` blocks occupy an SM's pipes. An uneven number of warps per scheduler costs time.
//
// A pipe that all schedulers share, such as two f64 lanes, is an exception (`shared_f64` is its time, or 0): recorded
// hotspot on an RTX A4000 takes 20 clocks per f64 instruction, for any number of warps. `by_scheduler` is the time of a
// block in all other pipes.
double occupied_clk(double blocks, double block_clk, double by_scheduler, double shared_f64, double warps) {
    const double resident = blocks * warps;
    const double uneven = std::ceil(resident * (1.0 / kSchedulers)) * kSchedulers / maximum(resident, 1.0);
    return shared_f64 > 0.0 ? blocks * maximum(block_clk, by_scheduler * uneven) : blocks * block_clk * uneven;
}

// Return the clocks that a block alone on an SM waits for DRAM beyond its load latency.
//
// The block is idle during its loads. So its time is the sum of `alone` and the longer of two waits: the load latency
// `waited`, and `dram_clk`, the DRAM time of its bytes at the SM's share of bandwidth. The smooth maximum with DRAM,
// which comes last, must equal this sum.
double exposed_clk(double alone, double waited, double dram_clk) {
    const double total = alone + maximum(waited, dram_clk);
    const double rest = maximum(1.0 - overlap_power(dram_clk / total), 0.0);
    return maximum(total * overlap_root(rest) - alone - waited, 0.0);
}

// Return the smooth maximum `(a**p + b**p)**(1/p)`, without overflow or underflow.
double smooth_maximum(double a, double b) {
    const double high = maximum(a, b);
    return high * overlap_root(overlap_power(minimum(a, b) / high) + 1.0);
}

uint64_t bits(double value) {
    uint64_t result;
    std::memcpy(&result, &value, sizeof result);
    return result;
}

// Finds earlier launches with the same variant and work.
class Twins {
  public:
    Twins(const Row<const int64_t>& variants, const Table<const double>& work) : variants_(variants), work_(work) {
        seen_.assign(kPlaces, -1);
    }

    // Return the index of an earlier launch with equal values, or -1.
    int64_t earlier(int64_t i) {
        uint64_t digest = uint64_t(variants_[i]), factor = 1;
        for (int64_t row = 0; row < work_.rows; row++) {
            factor += 0x9E3779B97F4A7C16;
            digest += bits(work_(row, i)) * factor;
        }
        digest ^= digest >> 32;
        digest *= 0x9E3779B97F4A7C15;
        int64_t& seen = seen_[(digest >> 32) & (kPlaces - 1)];
        const int64_t other = seen;
        seen = i;
        if (other < 0 || variants_[other] != variants_[i]) return -1;
        for (int64_t row = 0; row < work_.rows; row++)
            if (bits(work_(row, other)) != bits(work_(row, i))) return -1;
        return other;
    }

  private:
    static constexpr size_t kPlaces = 1024;  // a power of two
    Row<const int64_t> variants_;
    Table<const double> work_;
    std::vector<int64_t> seen_;
};

}  // namespace

void launch_times(const Demand& demand, const Device& device, int64_t loops, const Row<const int64_t>& variants,
                  const Table<const double>& work, const Table<double>& pipe_clk, const Table<double>& times) {
    Twins twins(variants, work);
    std::vector<double> totals(size_t(demand.quantities));
    double* const total = totals.data();
    const double clock_hz = device.clock_hz, sms = device.sms;
    for (int64_t i = 0; i < variants.size; i++) {
        if (const int64_t twin = twins.earlier(i); twin >= 0) {
            for (int64_t q = 0; q < kPipes; q++) pipe_clk(q, i) = pipe_clk(q, twin);
            for (int64_t row = 0; row < kTimes; row++) times(row, i) = times(row, twin);
            continue;
        }
        const double* rates = demand.of(variants[i]);
        const double blocks = work(kBlocks, i), warps = work(kWarps, i);
        const double each = 1.0 / blocks;
        const double barrier_clk = maximum(kBarrierClk, kBarrierWarpClk * warps);
        // Sum over the loops: quantities of the whole grid, and the work of the longest block beyond the average block.
        for (int64_t q = 0; q < demand.quantities; q++) total[q] = rates[q] * blocks;
        double trips = 0.0, longer = 0.0, longer_clk = 0.0, first_clk = 0.0;
        for (int64_t loop = 1; loop <= loops; loop++) {
            const double* of_loop = rates + loop * demand.quantities;
            const double count = work(kLoops + 2 * (loop - 1), i);
            for (int64_t q = 0; q < demand.quantities; q++) total[q] = total[q] + of_loop[q] * count;
            const double average = count * each;
            const double beyond = work(kLoops + 2 * (loop - 1) + 1, i) - average;
            trips = trips + average;
            longer = longer + beyond;
            if (demand.grouped) first_clk = first_clk + of_loop[kBetweenGroups] * minimum(average, 1.0);
            longer_clk = longer_clk + (of_loop[kAlone] / warps + of_loop[kBarriers] * barrier_clk) * beyond;
        }
        // Combine the pipes of an average block by a smooth maximum. Warps in different phases use different pipes, so
        // two pipes of equal time take 2**(1/8) = 1.09 times the time of one. This fits recorded spaces better than the
        // factor 1.19 of core and DRAM.
        for (int64_t q = 0; q < kPipes; q++) pipe_clk(q, i) = total[q] * each;
        const double barriers = total[kBarriers] * each;
        const double barriers_clk = barriers * (kBarrierWarpClk * warps);
        double peak = total[0] * each;
        for (int64_t q = 1; q < kShared; q++) peak = maximum(peak, total[q] * each);
        peak = maximum(peak, total[kPort] * each);
        double shares = eighth_power(total[0] * each / peak);
        for (int64_t q = 1; q < kShared; q++) shares = shares + eighth_power(total[q] * each / peak);
        shares = shares + eighth_power(total[kPort] * each / peak);
        const double block_clk = maximum(peak * eighth_root(shares), barriers_clk);
        // Clocks of the pipes that belong to one scheduler.
        double by_scheduler = block_clk, shared_f64 = 0.0;
        if (device.few_f64) {
            shared_f64 = eighth_power(total[kF64] * each / peak);
            by_scheduler = maximum(peak * eighth_root(maximum(shares - shared_f64, 0.0)), barriers_clk);
        }
        // Users of the pipes: whole blocks if barriers keep their warps together, otherwise warps.
        const double overlapped = work(kOverlapped, i), ahead = work(kPrefetch, i);
        double together_share = minimum(barriers / maximum(work(kWaitRounds, i), 1.0), 1.0);
        together_share = overlapped == overlapped ? 1.0 - overlapped : together_share;
        const double own_clk = block_clk * (together_share + (1.0 - together_share) / warps);
        // Latency of an average block: its instructions in order, barriers, and loads that prefetching does not hide.
        const double alone = maximum(total[kAlone] * (each / warps) + barriers * barrier_clk, own_clk);
        const double wait_clk = device.memory_clk / maximum(ahead, 1.0);
        const bool none_ahead = ahead == 0.0;
        const double late = maximum(trips * wait_clk - (none_ahead ? 0.0 : alone), 0.0);
        const double start_clk = none_ahead ? kStartClk : device.memory_clk + kBlockClk;
        double wait = alone - own_clk + late + start_clk;
        const double dram_s = work(kDramBytes, i) * work(kDramSlowdown, i) * device.dram_byte_s;
        // In a round, an SM finishes `concurrent` blocks. It takes the pipe time of one block, plus the longer of that
        // block's waits and the other blocks' pipe time.
        const double per_sm = std::ceil(blocks / sms);
        const double together = minimum(work(kConcurrent, i), per_sm);
        const double full = std::floor(per_sm / together);
        const double rest = per_sm - full * together;
        const double uneven = rest > 0.0 ? 1.0 : 0.0;
        const double busy = occupied_clk(together, block_clk, by_scheduler, shared_f64, warps);
        const double busy_rest = occupied_clk(rest, block_clk, by_scheduler, shared_f64, warps);
        // While a scheduler runs one warp's arithmetic between tensor instructions, its tensor core is idle.
        double between = total[kBetween] * (4.0 * each / warps);
        if (demand.grouped) {
            // A block of warpgroups has no work before its first tiles arrive, so no matmul hides the arithmetic then.
            const double exposed =
                kGroupsShare * (total[kBetweenGroups] * each) + (1.0 - kGroupsShare) * first_clk + start_clk;
            between = first_clk > 0.0 ? between + exposed : between;
        }
        const double least = busy + between;
        const double least_rest = maximum(busy_rest + between, own_clk);
        double sm_clk = full * round_clk(own_clk, wait, least) + uneven * round_clk(own_clk, wait, least_rest);
        double in_turn_s = 0.0;
        if (demand.stretched) {
            const double in_turn_clk = total[kInTurn] * each;
            const double in_turn = own_clk + maximum(in_turn_clk - block_clk, 0.0) * together_share;
            const double longest = maximum(alone, in_turn);
            const double exposed = exposed_clk(longest, wait - (alone - own_clk), dram_s * (clock_hz * sms) * each);
            wait = wait + (longest - alone) + (in_turn_clk > 0.0 ? exposed * together_share : 0.0);
            const double in_turns =
                full * round_clk(own_clk, wait, least) + uneven * round_clk(own_clk, wait, least_rest);
            in_turn_s = (in_turns - sm_clk) / clock_hz;
            sm_clk = in_turns;
        }
        sm_clk = sm_clk + maximum(longer_clk, longer * wait_clk);  // the tail after all other blocks
        sm_clk = sm_clk + work(kLoneWaits, i) * device.l2_latency_clk;
        const double l2_s = maximum(total[kSectors] * device.l2_clk_per_sector, work(kSerialClk, i)) * (1.0 / clock_hz);
        const double slower = device.core_time;
        times(kCoreTime, i) = smooth_maximum(sm_clk / clock_hz, l2_s) * slower;
        times(kDramTime, i) = dram_s * device.dram_time;
        times(kCoreJoules, i) = total[kCoreJ];
        times(kBusy, i) = (full * busy + busy_rest) / clock_hz * slower;
        times(kLatency, i) = (full + uneven) * (own_clk + wait) / clock_hz * slower;
        times(kL2Time, i) = l2_s * slower;
        times(kInTurnTime, i) = in_turn_s * slower;
        double most = pipe_clk(0, i), resource = 0.0;
        const auto longest_so_far = [&](double part, double number) {
            resource = part > most ? number : resource;
            most = maximum(part, most);
        };
        for (int64_t q = 1; q < kPipes; q++) {
            resource = pipe_clk(q, i) > most ? double(q) : resource;
            most = maximum(most, pipe_clk(q, i));
        }
        most = most > 0.0 ? times(kBusy, i) : 0.0;  // the pipes are busy as long as the busiest pipe
        longest_so_far(times(kLatency, i), kPipes);
        longest_so_far(times(kL2Time, i), kPipes + 1);
        longest_so_far(times(kDramTime, i), kPipes + 2);
        times(kResource, i) = most < kStartS + kLaunchS ? double(kPipes + 3) : resource;
    }
}

}  // namespace kernrec::query
