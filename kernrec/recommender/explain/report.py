"""Create the report of `kernrec explain`: costs of a config, comparison with another config, and the best changes."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from typing import Any

import numpy as np

from kernrec.errors import NoKernelError, UsageError, unknown
from kernrec.gpu import find_gpu
from kernrec.kernel import Kernel
from kernrec.model.analytical.spread import SOURCES, Source
from kernrec.recommender.candidates import CandidateSet, candidate_set
from kernrec.recommender.context import Context
from kernrec.recommender.explain.breakdown import Explanation, explain
from kernrec.recommender.infeasible import none_runs
from kernrec.recommender.json_form import JsonForm
from kernrec.recommender.notes import notes as notes_of
from kernrec.recommender.notes import of_conditions, sources_of
from kernrec.recommender.recommender import Recommender
from kernrec.recommender.request import Objective, Request, power_limits, sweep
from kernrec.util.light_dataclass import dataclass

_WORTH = 0.002
"""Minimum relative gain of a change to show. Smaller gains are far within the model's error."""
_PAIR_WORTH = 0.01
"""Minimum relative gain of two combined changes over the better single change."""
_SHOWN_CHANGES = 2
_COSTS = ("energy", "time", "power")
NEAR_ROOF = 0.7
"""Fraction of the roofline model's speed above which a config counts as fast."""

_REMEDIES = {
    "issue": "fewer instructions for the same work, in the kernel itself",
    "fma": "Use a data type that tensor cores multiply: they are several times as fast",
    "int": "Compute fewer indices in the kernel",
    "special": "Use fewer exponentials and divisions in the kernel, or cheaper forms of them",
    "f64": "Use f32 where it is precise enough: on an SM with two f64 units, it is 32 or 64 times as fast",
    "tensor": "Use a narrower data type",
    "LSU": "Make fewer and wider memory accesses in the kernel",
    "shared memory": "Lay out shared memory without bank conflicts",
    "L1": "Make the accesses of each warp contiguous",
    "L2": "Move fewer bytes: use a narrower data type, or fuse the kernel with the layer before or after it",
    "DRAM": "Move fewer bytes: use a narrower data type, or fuse the kernel with the layer before or after it",
    "latency": "Give the GPU more work at once: a larger batch, or several small problems together",
    "power limit": "Use a narrower data type, which takes less energy",
    "launch": "Launching takes longest: fuse the kernel with a neighbor, batch calls, or use a CUDA graph",
}
"""Advice for each bottleneck if no tunable helps."""


@dataclass(frozen=True)
class Change(JsonForm):
    """Change of a config or of the power limit, with its expected gain."""

    what: str
    gain: float
    """Fraction of the objective (such as energy) that the change saves."""
    energy: float
    """Relative change of the energy: -0.11 is 11 % less."""
    time: float
    """Relative change of the latency."""
    changes: dict[str, float]
    """Relative changes of the figures that change most, except energy, time and power, keyed by name."""
    source: Source
    """Source of the costs before or after the change, whichever is less certain."""


def what_if(
    candidates: CandidateSet, position: int, point: int = 0, objective: Objective = Objective.ENERGY, top: int = 5
) -> list[Change]:
    """Return at most `top` changes of a config, largest gain first.

    A change affects one tunable, two tunables or the power limit.

    Args:
        position: index of the config among the candidates.
        point: index of the operating point of the config.
    """
    (kernel,) = candidates.kernels
    latency, energy = _comparable(candidates, position, point)
    costs = objective.value_of(latency, energy)
    now = costs[point, position]
    columns = [column[kernel.rows] for column in kernel.table.space.columns.values()]
    differs = np.array([column != column[position] for column in columns], bool).reshape(len(columns), costs.shape[1])
    distance = differs.sum(axis=0)
    gains: list[tuple[float, int, int]] = []
    best_alone = [0.0] * len(columns)
    for tunables in (*combinations(range(len(columns)), 1), *combinations(range(len(columns)), 2)):
        changed = np.flatnonzero((distance == len(tunables)) & differs[list(tunables)].all(axis=0))
        if not len(changed):
            continue
        best = int(changed[costs[point, changed].argmin()])
        gain = 1.0 - float(costs[point, best] / now)
        if len(tunables) == 1:
            best_alone[tunables[0]] = gain
        elif gain <= max(0.0, *(best_alone[tunable] for tunable in tunables)) + _PAIR_WORTH:
            continue
        gains.append((gain, point, best))
    lowest = int(costs[:, position].argmin())
    if lowest != point:
        gains.append((1.0 - float(costs[lowest, position] / now), lowest, position))
    gains.sort(key=lambda entry: -entry[0])
    here, changes = explain(candidates, position, point), []
    for gain, there, other in gains[:top]:
        if gain > _WORTH:
            more = (float(each[there, other] / each[point, position] - 1.0) for each in (energy, latency))
            changes.append(_change(here, explain(candidates, other, there), gain, *more))
    return changes


def _comparable(candidates: CandidateSet, position: int, point: int) -> tuple[np.ndarray, np.ndarray]:
    """Return latency and energy of all candidates, as two arrays of shape (points, candidates).

    Scale predictions by (measured cost / predicted cost) of the candidate at `position` if this candidate was measured.
    """
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
        source=min(map(Source, sources_of([before, after])), key=SOURCES.index),
    )


def difference(before: Explanation, after: Explanation) -> dict[str, float]:
    """Return the relative change of each figure, keyed by name. A change from zero counts as 1."""
    new = after.figures
    return {name: new[name] / old - 1.0 if old else float(new[name] > 0) for name, old in before.figures.items()}


def advice(subject: Explanation, changes: Sequence[Change], objective: str) -> str:
    """Return a sentence that recommends the best change. Without changes, recommend a remedy for the bottleneck."""
    if changes:
        best = changes[0]
        counted = {"latency": "time", "edp": "energy x time"}.get(objective, objective)
        text = f"change {best.what}: {100 * best.gain:.1f} % less {counted}"
        if best.source == "measured":
            return f"{text}, as measured"
        return f"{text} is expected, which is within the prediction error; measure both"
    roof, recommendation = subject.roofline, subject.recommendation
    reached = f"no tunable of this kernel helps; it is limited by {recommendation.bottleneck}"
    # The roofline model assumes that each tensor is read or written only once.
    seconds = max(roof.flops / roof.peak_flops, recommendation.problem.bytes / roof.bandwidth)
    if (share := min(seconds / recommendation.latency_s.value, 1.0)) >= NEAR_ROOF:
        reached += f", at {100 * share:.0f} % of the roof"
    return f"{reached}. {_REMEDIES[recommendation.bottleneck]}."


def explainable(
    request: Request, context: Context, kernel: Kernel | None = None
) -> tuple[CandidateSet, Mapping[str, int]]:
    """Return the candidates of one kernel at several power limits, and the config to explain by default.

    The default power limit comes first, then the requested limit, then a range of limits. For an op, return the kernel
    and the config of the top recommendation. For a kernel, return an empty config. `kernel` is as for `report`.

    Raises:
        UsageError: a name is unknown, or the objective is `pareto`.
        KernrecError: nothing can run the problem, or there are no profiles to predict from.
    """
    gpu, query = find_gpu(request.gpu), request.query
    best = None
    if request.kernel is not None:
        kernel = kernel or context.kernel(request.kernel)
        problem = request.problem_of(kernel)
    else:
        answer = Recommender(context=context).answer(replace(request, query=replace(query, top=1)))
        if not answer.recommendations:
            raise NoKernelError(str(answer.no_kernel))
        best, problem = answer.best, answer.best.problem
    wanted = [] if query.power_limit_w is None else [query.power_limit_w]
    limits = sweep(gpu, [*wanted, *power_limits(gpu)])
    points = [point._replace(clock_hz=query.clock_hz) for point in limits]
    space = context.on(gpu, query.conditions).space(problem, kernel, whole=True)
    candidates = candidate_set(space, problem, points)
    if not candidates.kernels:
        raise none_runs(candidates.considered[0])
    if best is None:
        return candidates, {}
    names = [each.table.kernel.name for each in candidates.kernels]
    return candidates.only(names.index(best.kernel.name)), best.config


_PAIR = re.compile(r"\s*([A-Za-z_]\w*)\s*=\s*(-?[0-9]{1,10})\s*")


def tunables_of(name: str, text: str | None) -> dict[str, int]:
    """Parse values of tunables, such as `block_m=128,stages=3`. Raise `UsageError` if they are invalid."""
    pairs = {}
    for part in text.split(",") if text else ():
        match = _PAIR.fullmatch(part)
        if not match:
            raise UsageError(f"{name} {part!r:.40}: expected name=value pairs, such as block_m=128,stages=3")
        pairs[match[1]] = int(match[2])
    return pairs


def pick_config(candidates: CandidateSet, tunables: Mapping[str, int], objective: Objective, point: int) -> int:
    """Return the index of the best candidate with the given values of tunables.

    Raise `UsageError` if there is no such candidate.
    """
    (kernel,) = candidates.kernels
    spec, columns, problem = kernel.table.kernel, kernel.table.space.columns, candidates.problem
    matches = np.ones(len(kernel.rows), dtype=bool)
    for name, value in tunables.items():
        if name not in columns:
            raise unknown(f"tunable of {spec.name}", name, columns)
        values = next(tunable.values for tunable in spec.tunables if tunable.name == name)
        if value not in values:
            raise UsageError(f"{spec.name}: {name} is {value}; expected {', '.join(map(str, values))}")
        matches &= columns[name][kernel.rows] == value
    among = np.flatnonzero(matches)
    if not len(among):
        wanted = ", ".join(f"{name}={value}" for name, value in tunables.items())
        reason: str | None = None
        if len(tunables) == len(columns):
            row = int(kernel.table.space.find([tunables])[0])
            if misfit := spec.misfit(tunables, problem, candidates.gpu.limits):
                reason = f"it violates {misfit!r}"
            elif row in kernel.measured_rows.failed:
                reason = "it failed when it was measured"
            elif row >= 0:
                reason = kernel.table.too_large(kernel.on_problem, row)
        raise UsageError(
            f"{spec.name} with {wanted} cannot run {problem.title} on {candidates.gpu.name}"
            f"{f': {reason}' if reason else ''}"
        )
    risk = 1.0 if candidates.risk is None else candidates.risk[among]
    latency, energy = risk * candidates.latency_s[point, among], risk * candidates.energy_j[point, among]
    return int(among[objective.value_of(latency, energy).argmin()])


@dataclass(frozen=True)
class Report(JsonForm):
    """Report on a config: its explanation, a comparison and recommended changes."""

    JSON = "advice=changes what_to_do notes"

    candidates: CandidateSet
    point: int
    subject: Explanation
    other: Explanation | None
    changes: tuple[Change, ...]
    notes: tuple[str, ...]
    objective: str

    @property
    def what_to_do(self) -> str:
        """Sentence that recommends what to do, even if no change of the config helps."""
        return advice(self.subject, self.changes, self.objective)

    @property
    def difference(self) -> dict[str, float]:
        """Relative change of each figure if `subject` replaces `other`. Empty if there is no other config."""
        return difference(self.other, self.subject) if self.other else {}

    def as_dict(self) -> dict[str, Any]:
        answer = {"problem": self.candidates.problem.key, **self.subject.as_dict(), **super().as_dict()}
        if self.other is not None:
            answer |= {"against": self.other.as_dict(), "difference": self.difference}
        return answer


def report(
    request: Request,
    context: Context,
    config: Mapping[str, int],
    against: Mapping[str, int] | None = None,
    top: int = 5,
    kernel: Kernel | None = None,
) -> Report:
    """Explain the best config with the given values of tunables.

    Args:
        request: request whose objective is `latency`, `energy` or `edp`.
        config: values of tunables of the config to explain.
        against: values of tunables of the config to compare with, or None for no comparison.
        top: maximum number of recommended changes.
        kernel: kernel to explain, or None for the newest kernel with the request's name.

    Raises:
        UsageError: a name is unknown, or no config has these values.
        KernrecError: nothing can run the problem, or there are no profiles to predict from.
    """
    candidates, default = explainable(request, context, kernel)
    objective, limit_w = request.query.objective, request.query.power_limit_w
    point = 0 if limit_w is None else [point.power_limit_w for point in candidates.points].index(limit_w)
    position = pick_config(candidates, config or default, objective, point)
    subject, other = explain(candidates, position, point), None
    changes = what_if(candidates, position, point, objective, top)
    if against is not None:
        other = explain(candidates, pick_config(candidates, against, objective, point), point)
    shown = [subject.recommendation, *([other.recommendation] if other else [])]
    notes = [*context.models.warnings(), *of_conditions(request.query.conditions), *notes_of(candidates, shown)]
    if any(recommendation.measurement for recommendation in shown):
        notes.append("times by resource, traffic and shares of energy are predicted, not measured")
    return Report(candidates, point, subject, other, tuple(changes), tuple(notes), objective)
