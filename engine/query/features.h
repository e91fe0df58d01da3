// Rows of the quantities from which features of models are computed.
#pragma once

#include "arrays.h"

namespace kernrec::query::features {

// Rows of quantities, in the order of `QUANTITIES` in kernrec/model/learn/features.py: inputs, then figures of the GPU
// (`kOne` to `kL2Bytes`), then values derived from both.
enum Quantity : int64_t {
    kLatencyS, kPowerW, kEnergyJ, kClockHz, kStaticJ, kClockedJ, kRegime, kCoreS, kDramS, kFixedS, kCoreJ, kDramJ,
    kThreads, kResident, kRegisters, kSharedBytes, kFlops, kBytes, kBlocks, kBusyS, kWaitS, kL2S,
    kFirstPipeS, kPipes = 9,
    kOne = kFirstPipeS + kPipes, kSms, kMaxWarps, kMaxRegisters, kSmemPerSm, kTdpW, kL2Bytes,
    kSomeFlops, kComputeS, kTrafficS, kRooflineS, kWarps, kLanes, kAllThreads, kSomeResident, kResidentWarps,
    kResidentBytes, kWaves, kRounds, kSomeBusyS, kQuantities,
};

// Add the times of one launch to the quantities of a candidate. pipe_clk, times: arrays of `LaunchTime`.
void add_times(const Table<const double>& pipe_clk, const Table<const double>& times, int64_t place,
               const Table<double>& quantities, int64_t candidate);

}  // namespace kernrec::query::features
