"""Why a config costs what it is expected to cost: where its time goes, where its joules go, and what would change them.

Everything is computed from the same estimates that ranked the config; nothing is looked up in a list of good advice.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from kernrec.gpu import LIMITERS
from kernrec.model.prior.demand import events
from kernrec.model.prior.power import DRAM, LimitedCosts
from kernrec.recommender.power_sweep import Limited, Ranked

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
"""What the parts of the power model are called."""
_PRIOR = (("latency", "s"), ("energy", "j"), ("power", "w"))


@dataclass(frozen=True)
class Access:
    """How one buffer is read or written: 32-byte sectors moved by a request of a warp, and useful bytes of theirs."""

    buffer: str
    what: str
    sectors_per_request: float
    useful: float


@dataclass(frozen=True)
class LaunchDetail:
    """One launch of a config.

    capped_by: what keeps more blocks from an SM. waves: rounds of blocks over the whole GPU; tail: share of the last
    round's places that hold a block. time_s: seconds by resource, of which the longest limits. mix: share of issued
    instructions by class. conflicts: shared-memory wavefronts over what they were without bank conflicts.
    """

    entry: str
    blocks: int
    threads: int
    registers: int
    shared_bytes: int
    occupancy: float
    resident_blocks: int
    capped_by: str
    waves: float
    tail: float
    time_s: Mapping[str, float]
    mix: Mapping[str, float]
    accesses: tuple[Access, ...]
    conflicts: float


@dataclass(frozen=True)
class Roofline:
    """Operations and bytes past L2 of a config against what the GPU can do; `counted`: no op says the operations.

    flops: operations; intensity: of a byte; ridge: the intensity from which the peak is in reach.
    """

    flops: float
    counted: bool
    dram_bytes: float
    intensity: float
    achieved_flops: float
    peak_flops: float
    bandwidth: float

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
    """A config at a power limit, taken apart. figures: what is compared between configs, by name.

    prior: latency, energy and power as static analysis alone predicts them; the costs of `limited` may be measured, or
    corrected by measurements. `energy_j` adds up to the energy of `limited`, in the shares that are predicted; so are
    the times by resource and the traffic.
    """

    limited: Limited
    prior: Mapping[str, float]
    launches: tuple[LaunchDetail, ...]
    energy_j: Mapping[str, float]
    roofline: Roofline
    figures: Mapping[str, float]

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON; keys carry their unit."""
        roof = {f.name: getattr(self.roofline, f.name) for f in fields(self.roofline)}
        return {
            **self.limited.as_dict(),
            "prior": dict(self.prior),
            "launch_details": [
                {**vars(launch), "accesses": [vars(access) for access in launch.accesses]} for launch in self.launches
            ],
            "energy_by_part_j": dict(self.energy_j),
            "roofline": roof | {"ridge": self.roofline.ridge, "attainable_flops": self.roofline.attainable_flops},
            "figures": dict(self.figures),
        }


def explain(ranked: Ranked, position: int, limit: int = 0) -> Explanation:
    """The candidate at `position` of `ranked`, at its power limit number `limit`."""
    group, at, row = ranked.group, ranked.at, int(ranked.rows[position])
    performed = group.performed(at, row)
    counted = [group.counts(at, index, row) for index in performed]
    places = ranked.prediction.places(position)
    bandwidth = group.bandwidth
    dram_bytes = float(sum(ranked.prediction.times.dram_s[place] for place in places)) * bandwidth
    limited = ranked.choice(limit, position)
    launches = tuple(
        _detail(ranked, index, row, group.counts(at, index, row, asked=True), ranked.prediction.times.parts(place))
        for index, place in zip(performed, places, strict=True)
    )
    total: dict[str, float] = {}
    for counts in counted:
        for metric, value in counts.items():
            total[metric] = total.get(metric, 0.0) + value
    costs = ranked.limited[limit]
    one = LimitedCosts(*(np.array([getattr(costs, f.name)[position]]) for f in fields(LimitedCosts)))
    prior = {f"{what}_{unit}": float(getattr(one, f"{what}_{unit}")[0]) for what, unit in _PRIOR}
    scale = limited.choice.energy_j.value / prior["energy_j"]
    parts: dict[str, float] = {}
    for group_name, joules in group.power.breakdown({**events(total), DRAM: dram_bytes}, one).items():
        name = _PARTS.get(group_name, group_name)
        parts[name] = parts.get(name, 0.0) + float(np.ravel(joules)[0]) * scale
    return Explanation(
        limited=limited,
        prior=prior,
        launches=launches,
        energy_j=parts,
        roofline=_roofline(ranked, total, dram_bytes, bandwidth, limited.choice.latency_s.value),
        figures=_figures(total, dram_bytes, launches, limited),
    )


def _detail(
    ranked: Ranked, index: int, row: int, counts: Mapping[str, float], parts: Mapping[str, float]
) -> LaunchDetail:
    group, at = ranked.group, ranked.at
    registers, shared, held = group.held(at, index, row)
    spec = group.kernel.launches[index]
    rows = np.array([row])
    blocks, threads = (int((at.column(e, rows) + np.zeros(1, np.int64))[0]) for e in (spec.blocks, spec.threads))
    waves = blocks / (held.blocks * ranked.gpu.sms)
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
        occupancy=held.fraction,
        resident_blocks=held.blocks,
        capped_by=LIMITERS[held.limiter],
        waves=waves,
        tail=waves / np.ceil(waves) if waves > 1 else waves,
        time_s=dict(parts),
        mix=dict(sorted(mix.items(), key=lambda item: -item[1])),
        accesses=tuple(_accesses(counts)),
        conflicts=moved / ideal if ideal else 1.0,
    )


def _accesses(counts: Mapping[str, float]) -> Sequence[Access]:
    found = []
    for metric, requests in counts.items():
        if metric.startswith("global.") and metric.endswith("_requests") and requests:
            buffer, _, what = metric.removeprefix("global.").removesuffix("_requests").rpartition(".")
            base = metric.removesuffix("_requests")
            sectors, useful = counts.get(f"{base}_sectors", 0.0), counts.get(f"{base}_bytes", 0.0)
            moved = max(sectors * _SECTOR_BYTES, 1.0)
            found.append(Access(buffer, what, sectors / requests, min(useful / moved, 1.0)))
    return found


def _roofline(
    ranked: Ranked, total: Mapping[str, float], dram_bytes: float, bandwidth: float, latency_s: float
) -> Roofline:
    flops = float(ranked.problem.flops)
    counted = flops <= 0
    tensor = sum(value for metric, value in total.items() if metric.startswith("mma."))
    if counted:
        flops = tensor + 2.0 * _WARP * sum(total.get(f"issue.{kind}", 0.0) for kind in ("fma32", "f16", "f64"))
    dtype = ranked.problem.dtype
    peak = ranked.gpu.peak_flops(dtype, tensor > 0) or ranked.gpu.peak_flops("f32")
    moved = max(dram_bytes, 1.0)
    return Roofline(flops, counted, dram_bytes, flops / moved, flops / latency_s, peak, bandwidth)


def _figures(
    total: Mapping[str, float], dram_bytes: float, launches: Sequence[LaunchDetail], limited: Limited
) -> dict[str, float]:
    """What of two configs is compared; each a number of which less or more can be said."""
    sectors = sum(v for m, v in total.items() if m.startswith("global.") and m.endswith("_sectors"))
    wavefronts = sum(v for m, v in total.items() if m.startswith("shared.") and m.endswith("_wavefronts"))
    main = max(launches, key=lambda launch: max(launch.time_s.values()))
    return {
        "DRAM traffic": dram_bytes,
        "L2 traffic": sectors * _SECTOR_BYTES,
        "shared-memory wavefronts": wavefronts,
        "instructions": total.get("issue", 0.0),
        "occupancy": main.occupancy,
        "places filled in the last wave": main.tail,
        "energy": limited.choice.energy_j.value,
        "time": limited.choice.latency_s.value,
        "power": limited.choice.power_w,
    }
