"""Break down the expected costs of a config: time by resource, energy by component, and memory accesses."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from kernrec.gpu import LIMITERS
from kernrec.model.analytical.demand import events
from kernrec.model.analytical.launch_time import LaunchTime
from kernrec.model.analytical.power import DRAM
from kernrec.recommender.answer import build_recommendation
from kernrec.recommender.candidates import CandidateSet, KernelCandidates
from kernrec.recommender.json_form import JsonForm
from kernrec.recommender.result import Recommendation
from kernrec.util.light_dataclass import dataclass

_SECTOR_BYTES = 32
_WARP = 32
_PARTS = {
    "static": "static",
    "clock": "clock tree",
    "issue": "arithmetic",
    "mma": "tensor cores",
    "shared": "shared memory",
    "l1": "L1",
    "l2": "L2",
    "dram": "DRAM",
}


@dataclass(frozen=True)
class BufferAccess(JsonForm):
    """Pattern of the reads, the writes or the atomic operations on a buffer."""

    buffer: str
    what: str
    """Kind of access: `read`, `write` or `atomic`."""
    sectors_per_request: float
    """Mean number of 32-byte sectors that a request of a warp moves."""
    useful: float
    """Fraction of the moved bytes that threads requested."""


@dataclass(frozen=True)
class LaunchDetail(JsonForm):
    entry: str
    blocks: int
    threads: int
    registers: int
    shared_bytes: int
    occupancy: float
    resident_blocks: int
    capped_by: str
    """Resource that limits the number of resident blocks per SM."""
    waves: float
    """Number of blocks divided by the number of blocks that the whole GPU can run at once."""
    tail: float
    """Mean utilization of the GPU over all waves, as a fraction. The last wave may leave a part of the GPU idle."""
    time_s: Mapping[str, float]
    """Seconds that each resource is busy. The busiest resource is the bottleneck."""
    in_turn_s: float
    """Seconds in which blocks wait or use resources one after another, because too few blocks run at once."""
    mix: Mapping[str, float]
    """Fraction of issued instructions, keyed by instruction class, largest first."""
    accesses: tuple[BufferAccess, ...]
    conflicts: float
    """Ratio of shared-memory wavefronts to the number that would be needed without bank conflicts."""


@dataclass(frozen=True)
class Roofline(JsonForm):
    """Operations, DRAM traffic and peak rates that place a config in the roofline model."""

    JSON = "flops counted dram_bytes intensity achieved_flops peak_flops bandwidth ridge attainable_flops"

    flops: float
    counted: bool
    """Whether the operations were counted in the kernel's profile, because the op does not define their number."""
    dram_bytes: float
    intensity: float
    """Operations per byte of DRAM traffic."""
    achieved_flops: float
    peak_flops: float
    bandwidth: float
    """Bandwidth of the memory behind the L2 cache, in bytes per second."""

    @property
    def ridge(self) -> float:
        """Minimum number of operations per byte of DRAM traffic at which a kernel is compute bound."""
        return self.peak_flops / self.bandwidth

    @property
    def attainable_flops(self) -> float:
        """Maximum operations per second in the roofline model for the config's `intensity`."""
        return min(self.peak_flops, self.intensity * self.bandwidth)


@dataclass(frozen=True)
class Explanation(JsonForm):
    """Breakdown of the costs of a config at an operating point."""

    JSON = "predicted=analytical launch_details=launches energy_by_part_j=energy_j roofline figures"

    recommendation: Recommendation
    """Explained config. Its costs may include measurements."""
    analytical: Mapping[str, float]
    """Predictions without any measurements: `latency_s`, `energy_j` and `power_w`."""
    launches: tuple[LaunchDetail, ...]
    energy_j: Mapping[str, float]
    """Energy in joules of each component, scaled so that the sum is the recommendation's energy."""
    roofline: Roofline
    figures: Mapping[str, float]
    """Figures to compare between configs, keyed by name, such as `DRAM traffic`."""

    def as_dict(self) -> dict[str, Any]:
        return self.recommendation.as_dict() | super().as_dict()


def explain(candidates: CandidateSet, position: int, point: int = 0) -> Explanation:
    """Break down the costs of one candidate at an operating point."""
    (kernel,) = candidates.kernels
    table, on_problem, row = kernel.table, kernel.on_problem, int(kernel.rows[position])
    performed = table.performed(on_problem, row)
    launch_times = kernel.launch_times(position)
    dram_bytes = float(sum(times.dram_bytes[0] for times in launch_times))
    recommendation = build_recommendation(candidates, point, position)
    limited = kernel.limited.at(point).part(slice(position, position + 1))
    # Scale the model's times to the expected latency, and its core times from the boost clock to the expected clock.
    scale = recommendation.latency_s.value / float(limited.latency_s[0])
    core_scale = scale * table.power.boost_hz / recommendation.clock_hz
    launches = tuple(
        _detail(kernel, index, row, times, core_scale, scale)
        for index, times in zip(performed, launch_times, strict=True)
    )
    total = defaultdict[str, float](float)
    for index in performed:
        for metric, value in table.counts(on_problem, index, row).items():
            total[metric] += value
    analytical = {name: float(getattr(limited, name)[0]) for name in ("latency_s", "energy_j", "power_w")}
    energy_scale = recommendation.energy_j.value / analytical["energy_j"]
    parts = defaultdict[str, float](float)
    for component, joules in table.power.breakdown({**events(total), DRAM: dram_bytes}, limited).items():
        parts[_PARTS.get(component, component)] += float(np.ravel(joules)[0]) * energy_scale
    return Explanation(
        recommendation=recommendation,
        analytical=analytical,
        launches=launches,
        energy_j=parts,
        roofline=_roofline(recommendation, total, dram_bytes, table.bandwidth),
        figures=_figures(recommendation, total, dram_bytes, launches),
    )


def _detail(
    kernel: KernelCandidates, index: int, row: int, times: LaunchTime, core_scale: float, scale: float
) -> LaunchDetail:
    """Describe one launch. `scale` multiplies the times of DRAM and launch, and `core_scale` all other times."""
    table, on_problem = kernel.table, kernel.on_problem
    counts = table.counts(on_problem, index, row, requested=True)
    registers, shared, held = table.resources(on_problem, index, row)
    spec = table.kernel.launches[index]
    rows = np.array([row])
    blocks, threads = (
        int((on_problem.column(e, rows) + np.zeros(1, np.int64))[0]) for e in (spec.blocks, spec.threads)
    )
    resident = max(held.blocks, 1)  # `blocks` is 0 for measured configs whose profiled code does not fit.
    waves = blocks / (resident * table.gpu.sms)
    issued = max(counts.get("issue", 0.0), 1.0)
    mix = {m.removeprefix("issue."): value / issued for m, value in counts.items() if m.startswith("issue.") and value}
    moved = sum(counts.get(f"shared.{what}_wavefronts", 0.0) for what in ("load", "store", "atomic"))
    ideal = sum(counts.get(f"shared.{what}_ideal", 0.0) for what in ("load", "store", "atomic"))
    return LaunchDetail(
        entry=spec.entry,
        blocks=blocks,
        threads=threads,
        registers=registers,
        shared_bytes=shared,
        occupancy=float(table.geometry(on_problem, index).occupancy[row]),
        resident_blocks=resident,
        capped_by=LIMITERS[held.limiter] if held.blocks else "registers",
        waves=waves,
        tail=waves / np.ceil(waves) if waves > 1 else waves,
        time_s={
            name: seconds * (scale if name in ("DRAM", "launch") else core_scale)
            for name, seconds in times.parts(0).items()
        },
        in_turn_s=core_scale * float(times.in_turn_s[0]),
        mix=dict(sorted(mix.items(), key=lambda item: -item[1])),
        accesses=tuple(_accesses(counts)),
        conflicts=moved / ideal if ideal else 1.0,
    )


def _accesses(counts: Mapping[str, float]) -> Iterator[BufferAccess]:
    for metric, requests in counts.items():
        if metric.startswith("global.") and metric.endswith("_requests") and requests:
            buffer, _, what = metric.removeprefix("global.").removesuffix("_requests").rpartition(".")
            base = metric.removesuffix("_requests")
            sectors, useful = counts.get(f"{base}_sectors", 0.0), counts.get(f"{base}_bytes", 0.0)
            moved = max(sectors * _SECTOR_BYTES, 1.0)
            yield BufferAccess(buffer, what, sectors / requests, min(useful / moved, 1.0))


def _roofline(
    recommendation: Recommendation, total: Mapping[str, float], dram_bytes: float, bandwidth: float
) -> Roofline:
    problem, gpu = recommendation.problem, recommendation.gpu
    flops = float(problem.flops)
    counted = flops <= 0
    tensor = sum(value for metric, value in total.items() if metric.startswith("mma."))
    if counted:
        flops = tensor + 2.0 * _WARP * sum(total.get(f"issue.{kind}", 0.0) for kind in ("fma32", "f16", "f64"))
    # The actual clock exceeds the data sheet's clock on GeForce GPUs, and may be lower under a power limit.
    peak = gpu.peak_flops(problem.dtype, tensor > 0) or gpu.peak_flops("f32")
    peak *= recommendation.clock_hz / (gpu.tensor_clock_hz if tensor > 0 else gpu.boost_clock_hz)
    moved = max(dram_bytes, 1.0)
    return Roofline(flops, counted, dram_bytes, flops / moved, flops / recommendation.latency_s.value, peak, bandwidth)


def _figures(
    recommendation: Recommendation, total: Mapping[str, float], dram_bytes: float, launches: Sequence[LaunchDetail]
) -> dict[str, float]:
    sectors = sum(v for m, v in total.items() if m.startswith("global.") and m.endswith("_sectors"))
    wavefronts = sum(v for m, v in total.items() if m.startswith("shared.") and m.endswith("_wavefronts"))
    main = max(launches, key=lambda launch: max(launch.time_s.values()))
    return {
        "DRAM traffic": dram_bytes,
        "L2 traffic": sectors * _SECTOR_BYTES,
        "shared-memory wavefronts": wavefronts,
        "instructions": total.get("issue", 0.0),
        "occupancy": main.occupancy,
        "tail-wave utilization": main.tail,
        "energy": recommendation.energy_j.value,
        "time": recommendation.latency_s.value,
        "power": recommendation.power_w,
    }
