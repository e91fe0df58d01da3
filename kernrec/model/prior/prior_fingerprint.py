"""Fingerprint of the analytical model: its predictions for a few made-up launches.

A trained model learns log(measured / analytical), so it only corrects the analytical model that it was trained with.
Its card keeps the fingerprint of that model. If an update of kernrec changes coefficients or formulas, today's
fingerprint differs and the trained model must be trained again.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

import kernrec.gpu
from kernrec.gpu import find_gpu
from kernrec.model.prior.constants import LAUNCH_S, START_S
from kernrec.model.prior.demand import demand
from kernrec.model.prior.launch_costs import NominalCosts
from kernrec.model.prior.launch_time import LaunchWork, launch_time
from kernrec.model.prior.power import PowerModel
from kernrec.util.cache import CacheEntry, cached
from kernrec.util.engine import module
from kernrec.util.files import files_hash

_GPUS = ("t4", "a100-sxm4-80gb", "rtx3090", "rtx4090", "h200-sxm", "rtx5090", "b200")
"""One GPU of each generation that has its own figures."""
_METRICS = (
    "issue", "issue.fma32", "issue.imad", "issue.alu", "issue.mufu", "issue.mma", "issue.ld_shared", "issue.ld_global",
    "mma.f16", "shared.load_wavefronts", "global.a.load_requests", "global.a.load_sectors", "barriers", "issue.cvt",
    "issue.i2f", "issue.f2i", "issue.f64", "issue.cvt64",
)  # fmt: skip
SAME_PRIOR = 0.005
"""Maximum relative change that counts as rounding, or as too small to matter."""


def prior_fingerprint() -> list[float]:
    """Return latency (us) and energy (mJ) of five made-up launches on a GPU of each generation, without calibration."""
    # The five variants are bound by arithmetic, tensor cores, shared memory, DRAM and conversions, with events of a
    # block and a trip. The last variant also states how many of its waits overlap.
    block = np.array([[90, 20, 12, 40, 2, 0, 4, 8, 0, 8, 8, 32, 2, 0, 0, 0, 0, 0]] * 5, dtype=np.float64)
    trip = np.array(
        [
            [90, 56, 12, 10, 4, 0, 4, 2, 0, 4, 2, 8, 1, 0, 0, 0, 0, 0],
            [40, 0, 4, 10, 0, 16, 8, 2, 65536, 16, 2, 8, 1, 0, 0, 0, 0, 0],
            [60, 8, 8, 10, 0, 0, 30, 2, 0, 90, 2, 8, 1, 0, 0, 0, 0, 0],
            [30, 4, 4, 6, 0, 0, 0, 16, 0, 0, 16, 64, 0, 0, 0, 0, 0, 0],
            [60, 8, 4, 6, 0, 0, 0, 2, 0, 0, 2, 8, 1, 6, 8, 8, 2, 4],
        ],
        dtype=np.float64,
    )
    fingerprint: list[float] = []
    for name in _GPUS:
        gpu = find_gpu(name)
        power = PowerModel.for_gpu(gpu)
        demanded = demand(gpu, power, _METRICS, ("block", "trip"), np.stack([block, trip], axis=2))
        blocks, trips = np.array([900.0, 2000.0, 300.0, 5000.0, 700.0]), np.array([64.0, 32.0, 128.0, 16.0, 96.0])
        work = LaunchWork.of(
            variants=np.arange(5),
            terms=(blocks, blocks * trips),
            depth=(trips,),
            concurrent=np.array([4.0, 2.0, 1.0, 8.0, 3.0]),
            warps=np.array([8.0, 4.0, 8.0, 4.0, 6.0]),
            prefetch=np.array([0.0, 2.0, 1.0, 0.0, 0.0]),
            dram_bytes=np.array([4e6, 2e7, 1e6, 4e8, 2e6]),
            dram_slowdown=np.ones(5),
            serial_clk=np.zeros(5),
            rounds=trips,
            overlapped=np.array([np.nan, np.nan, np.nan, np.nan, 0.5]),
        )
        times = launch_time(gpu, demanded, work)
        dram_j = times.dram_bytes * power.event_j("dram.bytes")
        nominal = NominalCosts(times.core_s, times.dram_s, LAUNCH_S + START_S, times.core_j, dram_j)
        limited = power.apply_power_limit(nominal)
        fingerprint += [float(f"{value:.6g}") for value in (*(limited.latency_s * 1e6), *(limited.energy_j * 1e3))]
    return fingerprint


def fingerprint_change(earlier: Sequence[float]) -> float:
    """Return the largest relative change of predictions since a fingerprint; infinity if not comparable."""
    now = _cached_fingerprint()
    if len(earlier) != len(now) or not all(isinstance(value, int | float) and value > 0 for value in earlier):
        return float("inf")
    return float(np.expm1(np.abs(np.log(np.array(now) / np.array(earlier))).max()))


def _cached_fingerprint() -> list[float]:
    """Return `prior_fingerprint`, cached until the analytical model, the engine or the GPU catalog changes."""

    def make() -> CacheEntry:
        return {"values": prior_fingerprint()}, {}

    folders = Path(__file__).parent, Path(kernrec.gpu.__file__).parent
    files = [file for folder in folders for file in folder.rglob("*") if file.suffix in (".py", ".toml")]
    sources = f"{files_hash(Path(kernrec.gpu.__file__).parents[1], files)} {module().__file__}"
    return list(cached("prior_fingerprint", sources.encode(), make)[0]["values"])
