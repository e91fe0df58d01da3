"""Rank changes of a config by expected gain: its neighbors in the space, and other power limits.

A measured config differs from its prediction by a factor, which is partly specific to it. If a slow measurement were
compared with predictions of unmeasured configs, every change would look like a gain. So an unmeasured config is assumed
to have the same factor as the measured config. The gain then compares two predictions.
"""

from collections.abc import Sequence

import numpy as np

from kernrec.model.prior.spread import SOURCES, Source
from kernrec.recommender.candidates import CandidateSet
from kernrec.recommender.explain.breakdown import Explanation, explain
from kernrec.recommender.json_form import JsonForm
from kernrec.recommender.notes import sources_of
from kernrec.recommender.request import Objective
from kernrec.util.light_dataclass import dataclass

_WORTH = 0.002
"""Minimum gain that is shown; smaller gains are far within the model's error."""
_PAIR_WORTH = 0.01
"""Minimum additional gain of a pair of changes, compared with the better single change."""
_SHOWN_CHANGES = 2
_COSTS = ("energy", "time", "power")
NEAR_ROOF = 0.7
"""Minimum fraction of the roof at which no config can gain much more: at most a factor of 1.4."""

_REMEDIES = {
    "issue": "fewer instructions for the same work, in the kernel itself",
    "fma": "it computes most of the time: a data type that tensor cores multiply does so several times faster",
    "int": "fewer index computations, in the kernel itself",
    "special": "fewer exponentials and divisions, or cheaper forms of them, in the kernel itself",
    "f64": "32-bit floats where they are precise enough: an SM with two f64 units computes them 32 or 64 times as fast",
    "tensor": "it computes most of the time: a narrower data type is what makes it faster",
    "LSU": "fewer and wider accesses, in the kernel itself",
    "shared memory": "a layout of shared memory without bank conflicts, in the kernel itself",
    "L1": "accesses that are contiguous within a warp, in the kernel itself",
    "L2": "fewer bytes: a narrower data type, or fusing it with the layer before or after it",
    "DRAM": "fewer bytes: a narrower data type, or fusing it with the layer before or after it",
    "latency": "more work at once: several small problems together, or a larger batch",
    "power limit": "fewer joules for the same work, by a narrower data type",
    "launch": "the launch itself takes longest: fuse it with a neighbor, batch calls, or use a CUDA graph",
}
"""Changes outside the kernel's tunables that help, by bottleneck."""


@dataclass(frozen=True)
class Change(JsonForm):
    """One change of a config or of the power limit, and its expected gain."""

    what: str
    """Description of the change, such as `tile_y 2 -> 4`."""
    gain: float
    """Saving of the objective, as a fraction."""
    energy: float
    """Relative change of the energy: -0.11 is 11 % less."""
    time: float
    """Relative change of the latency."""
    changes: dict[str, float]
    """Relative changes of the other figures that change most."""
    source: Source
    """Least certain source of these costs."""


def what_if(
    candidates: CandidateSet, position: int, point: int = 0, objective: Objective = Objective.ENERGY, top: int = 5
) -> list[Change]:
    """Return the changes of one tunable, two tunables or the power limit that gain most, best first.

    All values are estimates of the changed config, not rules.

    Args:
        candidates: a set of one kernel.
        position: the candidate to change.
        point: index of the operating point.
        objective: `energy`, `latency` or `edp`.
        top: maximum number of changes.
    """
    (kernel,) = candidates.kernels
    latency, energy = _comparable(candidates, position, point)
    costs = objective.value_of(latency, energy)
    now = costs[point, position]
    here = explain(candidates, position, point)
    columns = [column[kernel.rows] for column in kernel.table.space.columns.values()]
    differs = np.array([column != column[position] for column in columns], bool).reshape(len(columns), costs.shape[1])
    distance = differs.sum(axis=0)
    gains: list[tuple[float, int, int]] = []
    best_alone: dict[int, float] = {}
    for tunable in range(len(columns)):
        changed = np.flatnonzero((distance == 1) & differs[tunable])
        if len(changed):
            best = int(changed[costs[point, changed].argmin()])
            best_alone[tunable] = 1.0 - float(costs[point, best] / now)
            gains.append((best_alone[tunable], point, best))
    for second in range(len(columns)):
        for first in range(second):
            changed = np.flatnonzero((distance == 2) & differs[second] & differs[first])
            if len(changed):
                best = int(changed[costs[point, changed].argmin()])
                gain = 1.0 - float(costs[point, best] / now)
                if gain > max(best_alone.get(second, 0.0), best_alone.get(first, 0.0)) + _PAIR_WORTH:
                    gains.append((gain, point, best))
    lowest = int(costs[:, position].argmin())
    if lowest != point:
        gains.append((1.0 - float(costs[lowest, position] / now), lowest, position))
    gains.sort(key=lambda entry: -entry[0])
    return [
        _change(
            here,
            explain(candidates, other, there),
            gain,
            float(energy[there, other] / energy[point, position] - 1.0),
            float(latency[there, other] / latency[point, position] - 1.0),
        )
        for gain, there, other in gains[:top]
        if gain > _WORTH
    ]


def _comparable(candidates: CandidateSet, position: int, point: int) -> tuple[np.ndarray, np.ndarray]:
    """Return latencies and energies that are comparable with the config at `position`, (points, C) each."""
    latency, energy, kernel = candidates.latency_s.copy(), candidates.energy_j.copy(), candidates.kernels[0]
    if kernel.measurements and position in (measured := kernel.measured(point)):
        others = np.setdiff1d(np.arange(latency.shape[1]), list(measured))
        costs, predicted, here = kernel.costs, kernel.measurements.predicted, (point, position)
        latency[point, others] *= costs.latency.value[here] / predicted.latency.value[here]
        energy[point, others] *= costs.energy.value[here] / predicted.energy.value[here]
    return latency, energy


def _change(here: Explanation, there: Explanation, gain: float, energy: float, time: float) -> Change:
    changes = difference(here, there)
    shown = sorted((name for name in changes if name not in _COSTS), key=lambda name: -abs(changes[name]))
    before, after = here.recommendation, there.recommendation
    sources = sources_of([before, after])
    parts = [
        f"{name} {value} -> {after.config[name]}"
        for name, value in before.config.items()
        if after.config[name] != value
    ]
    if after.power_limit_w != before.power_limit_w:
        parts.append(f"power limit {before.power_limit_w:g} W -> {after.power_limit_w:g} W")
    return Change(
        what=", ".join(parts),
        gain=gain,
        energy=energy,
        time=time,
        changes={name: changes[name] for name in shown[:_SHOWN_CHANGES] if abs(changes[name]) > _WORTH},
        source=min(map(Source, sources), key=SOURCES.index),
    )


def difference(before: Explanation, after: Explanation) -> dict[str, float]:
    """Return the relative change of each figure; 1 if the figure was zero."""
    changes = {}
    for name, value in before.figures.items():
        new = after.figures[name]
        changes[name] = new / value - 1.0 if value else float(new > 0)
    return changes


def roof_share(subject: Explanation) -> float:
    """Return the fraction of the roof that a config reaches, counting only the compulsory bytes."""
    roof, problem = subject.roofline, subject.recommendation.problem
    seconds = max(roof.flops / roof.peak_flops, problem.bytes / roof.bandwidth)
    return min(seconds / subject.recommendation.latency_s.value, 1.0)


def advice(subject: Explanation, changes: Sequence[Change], objective: str) -> str:
    """Return a sentence that recommends the best change of a config, or else a change for its bottleneck."""
    bottleneck = subject.bottleneck
    if changes:
        best = changes[0]
        counted = {"latency": "time", "edp": "energy x time"}.get(objective, objective)
        text = f"change {best.what}: {100 * best.gain:.1f} % less {counted}"
        if best.source == "measured":
            return f"{text}, as measured"
        return f"{text} is expected, which is within the prediction error; measure both"
    reached = f"nothing in this kernel's tunables; limited by {bottleneck}"
    if (share := roof_share(subject)) >= NEAR_ROOF:
        reached += f", at {100 * share:.0f} % of the roof, so no other config can gain much"
    return f"{reached}: {_REMEDIES[bottleneck]}"
