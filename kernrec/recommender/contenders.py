"""Find the configs that may be best for a problem (contenders), and the expected loss of the recommended config.

The prediction error of a config is the sum of three errors: an individual error (`costs.Estimates.own`), an error of
the kernel and an error of all kernels. The last two errors have equal variance. Comparisons between configs ignore the
error of all kernels.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from kernrec.model.search.joint_posterior import Contenders, JointPosterior, Measured
from kernrec.op import Problem
from kernrec.recommender.candidates import CandidateSet
from kernrec.recommender.estimate.costs import OWN, median
from kernrec.recommender.estimate.measured_rows import applies
from kernrec.recommender.request import Objective
from kernrec.store import Evidence, MeasuredAnswer
from kernrec.util.light_dataclass import dataclass
from kernrec.util.normal import DEVIATIONS

Array = np.ndarray

MOST = 48
"""Maximum number of contenders of a problem. They are the candidates of lowest expected cost."""
LISTED = 8
_FEATURES = 128
"""Maximum number of features in `side_by_side`. A random projection reduces a larger number."""
_LEAST_NOISE = 0.005
"""Minimum relative noise of a measurement. Repeated sessions with one config differ by this fraction."""

Key = tuple[str, tuple[tuple[str, int], ...]]
"""Kernel name, and sorted (tunable, value) pairs of a config."""


def key_of(kernel: str, config: Mapping[str, int]) -> Key:
    return kernel, tuple(sorted(config.items()))


@dataclass(frozen=True, eq=False)
class ProblemContenders:
    """Configs that may be best for one problem."""

    problem: Problem
    keys: tuple[Key, ...]
    """Kernel and config of each of the C contenders, lowest expected cost first."""
    expected: Array
    deviation: Array
    """Standard deviation of the error of each contender's logarithmic cost, (C,)."""
    own_deviation: Array
    """Standard deviation of the log-cost error that each contender does not share with others, (C,)."""
    weight: float = 1.0
    inputs: Array | None = None
    """Model features of each contender, without tunables, (C, F), or None if no model needs them."""

    @cached_property
    def kernel_deviation(self) -> float:
        """Standard deviation of the error that all configs of a kernel share, but other kernels do not."""
        common = np.maximum(self.deviation**2 - self.own_deviation**2, 0.0)
        return math.sqrt(0.5 * median(common))

    def place(self, key: Key) -> int | None:
        return self.keys.index(key) if key in self.keys else None


def contenders_of(
    candidates: CandidateSet,
    objective: Objective,
    weight: float = 1.0,
    among: Collection[Key] | None = None,
    always: Collection[Key] = (),
    with_inputs: bool = False,
) -> ProblemContenders:
    """Return the configs that may be best for a problem at the first operating point.

    Args:
        candidates: non-empty set. Its costs must not include measurements.
        objective: quantity to minimize. `pareto` raises `UsageError`.
        weight: importance of the problem in a `JointPosterior`.
        among: configs that may become contenders, or None for all configs.
        always: configs that always become contenders, such as measured configs.
        with_inputs: whether to fill `ProblemContenders.inputs`.
    """
    value = objective.value_of(candidates.latency_s[0], candidates.energy_j[0])
    chosen: list[int] = []
    keys: list[Key] = []
    missing = set(always)
    for position in np.argsort(value, kind="stable").tolist():
        if len(chosen) >= MOST and not missing:
            break
        _, kernel, own = candidates.locate(position)
        key = key_of(kernel.table.kernel.name, kernel.config(own))
        if key in missing or (len(chosen) < MOST and (among is None or key in among)):
            missing.discard(key)
            chosen.append(position)
            keys.append(key)
    estimates = [getattr(candidates.costs.at(0), quantity) for quantity in objective.quantities]
    # Half-widths of 90 % intervals in logarithms: of the whole error, and of the part that other configs do not share.
    widths = np.stack([np.stack([each.half_width, each.own])[:, chosen] for each in estimates])
    deviation, own = np.sqrt(np.sum(np.square(widths), axis=0)) / DEVIATIONS
    inputs = _inputs(candidates, chosen) if with_inputs else None
    return ProblemContenders(candidates.problem, tuple(keys), np.log(value[chosen]), deviation, own, weight, inputs)


def _inputs(candidates: CandidateSet, chosen: Sequence[int]) -> Array:
    """Return the model's features of the chosen candidates, without tunables, (len(chosen), F)."""
    from kernrec.model.learn import features

    located = [candidates.locate(position) for position in chosen]
    result = np.empty((len(chosen), len(features.names())))
    for number, kernel in enumerate(candidates.kernels):
        rows = [row for row, (kernel_number, _, _) in enumerate(located) if kernel_number == number]
        if rows:
            positions = np.array([located[row][2] for row in rows], dtype=np.int64)
            result[rows] = features.matrix(kernel.model_inputs(positions), features.names())
    return result


def unpredicted(problem: Problem, keys: Sequence[Key], deviation: float, weight: float = 1.0) -> ProblemContenders:
    """Return contenders with equal expected costs, for a problem without predictions.

    `deviation` is the standard deviation of the log-cost error that each config does not share with others.
    """
    own = np.full(len(keys), deviation)
    return ProblemContenders(problem, tuple(keys), np.zeros(len(keys)), own / math.sqrt(OWN), own, weight)


def side_by_side(problems: Sequence[ProblemContenders]) -> list[Contenders]:
    """Combine the contenders of several problems for a `JointPosterior`.

    Errors on two problems are correlated if the problems have similar sizes and the contenders are similar.
    """
    # Each pair of a term and a dimension has a column. A term is (kernel,) or (kernel, tunable, value).
    columns: dict[tuple[object, ...], dict[str, int]] = {}
    width = 0
    entries = []
    for contenders, sizes in zip(problems, _sizes([each.problem for each in problems]), strict=True):
        rows: list[tuple[list[int], list[float]]] = []
        context = [("", 1.0), *sizes]
        for deviation, (kernel, config) in zip(contenders.own_deviation.tolist(), contenders.keys, strict=True):
            share = deviation / math.sqrt(max(1, len(config)))
            terms = [((kernel,), contenders.kernel_deviation), *(((kernel, *pair), share) for pair in config)]
            numbers: list[int] = []
            for term, _ in terms:
                if (by_size := columns.get(term)) is None:
                    by_size = columns[term] = {}
                for name, _ in context:
                    if (number := by_size.get(name)) is None:
                        number = by_size[name] = width
                        width += 1
                    numbers.append(number)
            rows.append((numbers, [length * value for _, length in terms for _, value in context]))
        entries.append(rows)
    projection = None
    if width > _FEATURES:
        projection = np.random.default_rng(0).standard_normal((width, _FEATURES)) / math.sqrt(_FEATURES)
    result = []
    for contenders, rows, inputs in zip(problems, entries, _tree_inputs(problems), strict=True):
        features = np.zeros((len(rows), width))
        for row, (numbers, values) in enumerate(rows):
            features[row, numbers] = values
        kernels = {name: i for i, name in enumerate(dict.fromkeys(kernel for kernel, _ in contenders.keys))}
        result.append(
            Contenders(
                expected=contenders.expected,
                deviation=contenders.own_deviation,
                features=features if projection is None else features @ projection,
                coordinates=_coordinates(contenders.keys),
                kernel=np.array([kernels[kernel] for kernel, _ in contenders.keys]),
                of_kernel=contenders.kernel_deviation,
                weight=contenders.weight,
                inputs=inputs,
            )
        )
    return result


def _tree_inputs(problems: Sequence[ProblemContenders]) -> list[Array] | list[None]:
    """Return each problem's decision-tree inputs, array of shape (configs, inputs), or only None if any are missing."""
    inputs = [each.inputs for each in problems if each.inputs is not None]
    if len(inputs) < len(problems):
        return [None] * len(problems)
    columns: dict[str, int] = {}
    for contenders in problems:
        for kernel, config in contenders.keys:
            for name in (f"kernel {kernel}", *(name for name, _ in config)):
                columns.setdefault(name, len(columns))
    result = []
    for contenders, features in zip(problems, inputs, strict=True):
        own = np.full((len(contenders.keys), len(columns)), np.nan)
        for row, (kernel, config) in enumerate(contenders.keys):
            own[row, columns[f"kernel {kernel}"]] = 1.0
            for name, value in config:
                own[row, columns[name]] = math.log2(1 + max(0, value))
        result.append(np.column_stack((features, own)))
    return result


def _sizes(problems: Sequence[Problem]) -> list[list[tuple[str, float]]]:
    """Return (dimension, standardized logarithm of the size) pairs for each problem."""
    by_op: dict[str, list[Problem]] = {}
    for problem in problems:
        by_op.setdefault(problem.op, []).append(problem)
    scales: dict[tuple[str, str], tuple[float, float]] = {}
    for op, members in by_op.items():
        for name in members[0].dim:
            logs = [math.log2(max(1, problem.dim[name])) for problem in members]
            spread = float(np.std(logs))
            if spread > 0.0:
                scales[op, name] = float(np.mean(logs)), 2.0 * spread
    return [
        [
            (name, (math.log2(max(1, value)) - scales[problem.op, name][0]) / scales[problem.op, name][1])
            for name, value in problem.dim.items()
            if (problem.op, name) in scales
        ]
        for problem in problems
    ]


def _coordinates(keys: Sequence[Key]) -> Array:
    names = list(dict.fromkeys(name for _, config in keys for name, _ in config))
    configs = [dict(config) for _, config in keys]
    values = np.array([[math.log2(1 + max(0, config.get(name, 0))) for name in names] for config in configs])
    values = values.reshape(len(keys), len(names))
    spread = values.std(axis=0)
    used = spread > 1e-9
    points: Array = (values - values.mean(axis=0))[:, used] / spread[used] / math.sqrt(max(1, int(used.sum())))
    return points


def measured_of(contenders: ProblemContenders, rows: Sequence[MeasuredAnswer], objective: Objective) -> list[Measured]:
    """Return the measured costs of contenders for a `JointPosterior`."""
    result = []
    for row in rows:
        place = contenders.place(key_of(row.kernel, row.config))
        if place is None or (row.energy_j is None and objective is not Objective.LATENCY):
            continue
        cost = objective.value_of(row.latency_s, row.energy_j or math.nan)
        low, high = row.energy_low_j, row.energy_high_j
        if objective is Objective.LATENCY:
            low, high = row.latency_low_s, row.latency_high_s
        result.append(Measured(place, math.log(cost), noise_between(low, high)))
    return result


def noise_between(low: float | None, high: float | None) -> float:
    """Return the standard deviation of a measured cost's logarithm, given the ends of its 90 % interval."""
    stated = math.log(high / low) / (2.0 * DEVIATIONS) if low and high else 0.0
    return max(_LEAST_NOISE, stated)


@dataclass(frozen=True)
class Regret:
    """Expected loss from running the current recommendation instead of the best config."""

    objective: Objective
    expected: float
    contenders: tuple[tuple[Key, float, float], ...]
    """Most promising configs, each with its expected cost in SI units and its probability of being the best."""

    def as_dict(self) -> dict[str, Any]:
        return {
            "expected": self.expected,
            "contenders": [
                {"kernel": kernel, "config": dict(config), "cost": cost, "probability_best": probability}
                for (kernel, config), cost, probability in self.contenders
            ],
        }


def answer_regrets(candidates: CandidateSet, evidence: Evidence, objective: Objective) -> tuple[Regret, ...]:
    """Return the expected loss from running the recommended config instead of the best config.

    For `pareto`, return one loss for latency and one for energy. `candidates` must have one operating point, and its
    costs must not include measurements.
    """
    hashes = {kernel.table.kernel.name: kernel.table.kernel.hash for kernel in candidates.kernels}
    rows = [
        row
        for row in evidence.measured
        if row.kernel_hash == hashes.get(row.kernel) and applies(row, candidates.gpu, candidates.points[0])
    ]
    always = [key_of(row.kernel, row.config) for row in rows]
    scalars = (Objective.LATENCY, Objective.ENERGY) if objective is Objective.PARETO else (objective,)
    regrets = []
    for scalar in scalars:
        contenders = contenders_of(candidates, scalar, always=always)
        posterior = JointPosterior(side_by_side([contenders]))
        for measured in measured_of(contenders, rows, scalar):
            posterior.add(0, measured)
        mean, _ = posterior.expectation(0)
        expected, best = posterior.prospects(0)
        order = np.argsort(mean, kind="stable")[:LISTED].tolist()
        listed = tuple((contenders.keys[i], math.exp(mean[i]), float(best[i])) for i in order)
        regrets.append(Regret(scalar, expected, listed))
    return tuple(regrets)
