"""What a model's residuals are residuals of: the prior's coefficients and formulas, as a few numbers it predicts.

A model learns log(measured / prior). Where the prior has changed since, with an update of kernrec or a calibration, its
corrections are of something else. So a model keeps what the prior said of a fixed set of made-up launches (`probe`),
and `drift` says by how much it says something else today.
"""

from collections.abc import Sequence

import numpy as np

from kernrec.gpu import find_gpu
from kernrec.model.prior.demand import demand
from kernrec.model.prior.launch_time import LAUNCH_S, START_S, LaunchWork, launch_time
from kernrec.model.prior.power import NominalCosts, PowerModel

_GPUS = ("t4", "a100-sxm4-80gb", "rtx3090", "rtx4090", "h200-sxm", "rtx5090", "b200")
"""One of each generation that has figures of its own."""
_METRICS = (
    "issue", "issue.fma32", "issue.alu", "issue.mufu", "issue.mma", "issue.ld_shared", "issue.ld_global", "mma.f16",
    "shared.load_wavefronts", "global.a.load_requests", "global.a.load_sectors", "barriers",
)  # fmt: skip
SAME = 0.005
"""Differences up to this fraction are rounding, or too small to matter."""


def probe() -> list[float]:
    """Latency (us) and energy (mJ) of four made-up launches on a GPU of each generation, by the uncalibrated prior."""
    # Four codes: bound by arithmetic, by tensor cores, by shared memory, by DRAM; per block, and per trip of a loop.
    block = np.array([[90, 20, 40, 2, 0, 4, 8, 0, 8, 8, 32, 2]] * 4, dtype=np.float64)
    trip = np.array(
        [
            [90, 64, 10, 4, 0, 4, 2, 0, 4, 2, 8, 1],
            [40, 0, 10, 0, 16, 8, 2, 65536, 16, 2, 8, 1],
            [60, 16, 10, 0, 0, 30, 2, 0, 90, 2, 8, 1],
            [30, 8, 6, 0, 0, 0, 16, 0, 0, 16, 64, 0],
        ],
        dtype=np.float64,
    )
    told: list[float] = []
    for name in _GPUS:
        gpu = find_gpu(name)
        power = PowerModel.for_gpu(gpu)
        asked = demand(gpu, power, _METRICS, ("block", "trip"), np.stack([block, trip], axis=2))
        blocks, trips = np.array([900.0, 2000.0, 300.0, 5000.0]), np.array([64.0, 32.0, 128.0, 16.0])
        work = LaunchWork(
            codes=np.arange(4),
            terms=(blocks, blocks * trips),
            depth=(trips,),
            concurrent=np.array([4.0, 2.0, 1.0, 8.0]),
            warps=np.array([8.0, 4.0, 8.0, 4.0]),
            prefetch=np.array([0.0, 2.0, 1.0, 0.0]),
            dram_bytes=np.array([4e6, 2e7, 1e6, 4e8]),
        )
        times = launch_time(gpu, asked, work)
        dram_j = work.dram_bytes * power.event_j("dram.bytes")
        nominal = NominalCosts(times.core_s, times.dram_s, LAUNCH_S + START_S, times.core_j, dram_j)
        limited = power.apply_power_limit(nominal)
        told += [float(f"{value:.6g}") for value in (*(limited.latency_s * 1e6), *(limited.energy_j * 1e3))]
    return told


def drift(then: Sequence[float]) -> float:
    """By what fraction the prior says something else today than in a probe of `then`; at most."""
    now = probe()
    if len(then) != len(now) or not all(isinstance(value, int | float) and value > 0 for value in then):
        return float("inf")
    return float(np.expm1(np.abs(np.log(np.array(now) / np.array(then))).max()))
