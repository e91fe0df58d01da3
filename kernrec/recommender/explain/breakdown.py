"""Why a config costs what it is expected to cost: where its time and its joules go, how it accesses memory.

Everything is computed from the same estimates that ranked the config; nothing comes from a list of rules.
"""

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

import numpy as np

from kernrec.gpu import LIMITERS
from kernrec.model.prior.demand import events
from kernrec.model.prior.power import DRAM
from kernrec.recommender.candidates import CandidateSet, KernelCandidates
from kernrec.recommender.choices import build_choice
from kernrec.recommender.result import Choice
from kernrec.util.light_dataclass import dataclass

TAIL = "tail-wave utilization"
POWER_LIMIT = "power limit"
HELD = 0.95
"""Share of the boost clock below which a limit is what holds a launch back."""
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
"""Names of the parts of the power model."""


@dataclass(frozen=True)
class BufferAccess:
    """How one buffer is read or written."""

    buffer: str
    what: str
    """`read`, `write` or `atomic`."""
    sectors_per_request: float
    """32-byte sectors that a request of a warp moves."""
    useful: float
    """Share of the sectors' bytes that the warp asked for."""


@dataclass(frozen=True)
class LaunchDetail:
    """One launch of a config."""

    entry: str
    blocks: int
    threads: int
    """Of a block, as `shared_bytes`."""
    registers: int
    """Of a thread."""
    shared_bytes: int
    occupancy: float
    """Resident warps over the most an SM holds."""
    resident_blocks: int
    """Of an SM."""
    capped_by: str
    """The resource that keeps more blocks from an SM."""
    waves: float
    """Rounds of blocks over the whole GPU."""
    tail: float
    """Tail-wave utilization: share of the GPU that the last round of blocks fills."""
    time_s: Mapping[str, float]
    """Seconds by resource; the longest is the bottleneck."""
    in_turn_s: float
    """Seconds that pass because its blocks need resources in turn, and too few of them share an SM to use what is idle
    meanwhile."""
    mix: Mapping[str, float]
    """Share of issued instructions by class, the largest first."""
    accesses: tuple[BufferAccess, ...]
    conflicts: float
    """Shared-memory wavefronts over those without bank conflicts."""


@dataclass(frozen=True)
class Roofline:
    """Operations and DRAM bytes of a config against what the GPU can do."""

    flops: float
    counted: bool
    """Whether they were counted in the profile, for no op states them."""
    dram_bytes: float
    intensity: float
    """Operations per byte."""
    achieved_flops: float
    """Operations per second, as `peak_flops`."""
    peak_flops: float
    bandwidth: float
    """Bytes per second past L2."""

    @property
    def ridge(self) -> float:
        """Operations per byte from which on compute limits."""
        return self.peak_flops / self.bandwidth

    @property
    def attainable_flops(self) -> float:
        """Operations per second under the roof at this intensity."""
        return min(self.peak_flops, self.intensity * self.bandwidth)


@dataclass(frozen=True)
class Explanation:
    """A config at an operating point, taken apart."""

    choice: Choice
    """The config with its costs, which may be measured, or corrected by measurements."""
    prior: Mapping[str, float]
    """`latency_s`, `energy_j` and `power_w` as static analysis alone predicts them."""
    launches: tuple[LaunchDetail, ...]
    bottleneck: str
    """The part that takes longest at the clock held, or `power limit` where it holds back a core that takes longest."""
    energy_j: Mapping[str, float]
    """Energy by component: the energy of `choice`, in the shares that are predicted."""
    roofline: Roofline
    figures: Mapping[str, float]
    """The figures that are compared between configs, by name."""

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON; keys carry their unit."""
        roof = {f.name: getattr(self.roofline, f.name) for f in fields(self.roofline)}
        return {
            **self.choice.as_dict(),
            "prior": dict(self.prior),
            "bottleneck": self.bottleneck,
            "launch_details": [
                {**vars(launch), "accesses": [vars(access) for access in launch.accesses]} for launch in self.launches
            ],
            "energy_by_part_j": dict(self.energy_j),
            "roofline": roof | {"ridge": self.roofline.ridge, "attainable_flops": self.roofline.attainable_flops},
            "figures": dict(self.figures),
        }


def explain(candidates: CandidateSet, position: int, point: int = 0) -> Explanation:
    """The candidate at `position` of a set of one kernel, at operating point number `point`."""
    (kernel,) = candidates.kernels
    table, on_problem, row, prediction = (
        kernel.table,
        kernel.runnable.on_problem,
        int(kernel.rows[position]),
        kernel.prediction,
    )
    performed = table.performed(on_problem, row)
    places = prediction.performed(position)
    dram_bytes = float(sum(times.dram_bytes[place] for times, place in places))
    choice = build_choice(candidates, point, position)
    limited = kernel.limited.at(point).part(slice(position, position + 1))
    # Parts are those of the boost clock: core parts take longer at the clock held, and all are shares of one total.
    measured = choice.latency_s.value / float(limited.latency_s[0])
    slower = measured * table.power.boost_hz / choice.clock_hz
    launches = tuple(
        _detail(
            kernel,
            index,
            row,
            _at_clock(times.parts(place), slower, measured),
            slower * float(times.in_turn_s[place]),
        )
        for index, (times, place) in zip(performed, places, strict=True)
    )
    total: dict[str, float] = {}
    for index in performed:
        for metric, value in table.counts(on_problem, index, row).items():
            total[metric] = total.get(metric, 0.0) + value
    prior = {name: float(getattr(limited, name)[0]) for name in ("latency_s", "energy_j", "power_w")}
    scale = choice.energy_j.value / prior["energy_j"]
    parts: dict[str, float] = {}
    for component, joules in table.power.breakdown({**events(total), DRAM: dram_bytes}, limited).items():
        name = _PARTS.get(component, component)
        parts[name] = parts.get(name, 0.0) + float(np.ravel(joules)[0]) * scale
    return Explanation(
        choice=choice,
        prior=prior,
        launches=launches,
        energy_j=parts,
        bottleneck=_bottleneck(choice, launches, bool(limited.capped[0])),
        roofline=_roofline(choice, total, dram_bytes, table.bandwidth),
        figures=_figures(choice, total, dram_bytes, launches),
    )


def _at_clock(parts: Mapping[str, float], core: float, others: float) -> dict[str, float]:
    """Seconds by resource: those of the core times one factor, DRAM and launch times another."""
    return {name: seconds * (others if name in ("DRAM", "launch") else core) for name, seconds in parts.items()}


def _bottleneck(choice: Choice, launches: Sequence[LaunchDetail], capped: bool) -> str:
    times = max((launch.time_s for launch in launches), key=lambda parts: max(parts.values()))
    longest = max(times, key=times.__getitem__)
    core = longest not in ("DRAM", "launch")
    return POWER_LIMIT if capped and core and choice.clock_hz < HELD * choice.gpu.boost_clock_hz else longest


def _detail(
    kernel: KernelCandidates, index: int, row: int, parts: Mapping[str, float], in_turn_s: float
) -> LaunchDetail:
    table, on_problem = kernel.table, kernel.runnable.on_problem
    counts = table.counts(on_problem, index, row, requested=True)
    registers, shared, held = table.resources(on_problem, index, row)
    spec = table.kernel.launches[index]
    rows = np.array([row])
    blocks, threads = (
        int((on_problem.column(e, rows) + np.zeros(1, np.int64))[0]) for e in (spec.blocks, spec.threads)
    )
    resident = max(held.blocks, 1)  # of a config that another compiler fitted, which was measured
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
        time_s=dict(parts),
        in_turn_s=in_turn_s,
        mix=dict(sorted(mix.items(), key=lambda item: -item[1])),
        accesses=tuple(_accesses(counts)),
        conflicts=moved / ideal if ideal else 1.0,
    )


def _accesses(counts: Mapping[str, float]) -> Sequence[BufferAccess]:
    accesses = []
    for metric, requests in counts.items():
        if metric.startswith("global.") and metric.endswith("_requests") and requests:
            buffer, _, what = metric.removeprefix("global.").removesuffix("_requests").rpartition(".")
            base = metric.removesuffix("_requests")
            sectors, useful = counts.get(f"{base}_sectors", 0.0), counts.get(f"{base}_bytes", 0.0)
            moved = max(sectors * _SECTOR_BYTES, 1.0)
            accesses.append(BufferAccess(buffer, what, sectors / requests, min(useful / moved, 1.0)))
    return accesses


def _roofline(choice: Choice, total: Mapping[str, float], dram_bytes: float, bandwidth: float) -> Roofline:
    problem, gpu = choice.problem, choice.gpu
    flops = float(problem.flops)
    counted = flops <= 0
    tensor = sum(value for metric, value in total.items() if metric.startswith("mma."))
    if counted:
        flops = tensor + 2.0 * _WARP * sum(total.get(f"issue.{kind}", 0.0) for kind in ("fma32", "f16", "f64"))
    # The roof at the clock held, which on GeForce cards is above the data sheet's, and below it under a power limit.
    peak = gpu.peak_flops(problem.dtype, tensor > 0) or gpu.peak_flops("f32")
    peak *= choice.clock_hz / (gpu.tensor_clock_hz if tensor > 0 else gpu.boost_clock_hz)
    moved = max(dram_bytes, 1.0)
    return Roofline(flops, counted, dram_bytes, flops / moved, flops / choice.latency_s.value, peak, bandwidth)


def _figures(
    choice: Choice, total: Mapping[str, float], dram_bytes: float, launches: Sequence[LaunchDetail]
) -> dict[str, float]:
    """The figures by which two configs are compared."""
    sectors = sum(v for m, v in total.items() if m.startswith("global.") and m.endswith("_sectors"))
    wavefronts = sum(v for m, v in total.items() if m.startswith("shared.") and m.endswith("_wavefronts"))
    main = max(launches, key=lambda launch: max(launch.time_s.values()))
    return {
        "DRAM traffic": dram_bytes,
        "L2 traffic": sectors * _SECTOR_BYTES,
        "shared-memory wavefronts": wavefronts,
        "instructions": total.get("issue", 0.0),
        "occupancy": main.occupancy,
        TAIL: main.tail,
        "energy": choice.energy_j.value,
        "time": choice.latency_s.value,
        "power": choice.power_w,
    }
