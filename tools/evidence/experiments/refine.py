"""Measure how soon refining finds the best configs of many problems, by replaying Triton's matmuls on two GPUs.

Refining starts from a model of the other GPU. For comparison, the same number of measurements is spread evenly over the
problems. Held-out problems of the other GPU give the error that refining assumes. It depends on the predicted distance
between a config and the best config. `--half 0` and `--half 1` evaluate two sets of problems that share no shape.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from itertools import pairwise
from typing import Annotated

import numpy as np
import typer
from front import DATA, Data, Table
from train_triton_model import COLUMNS, FILES, SETTINGS, recorded_groups

from evidence.cases import Array
from kernrec.model.learn.features import matrix
from kernrec.model.search.joint_posterior import DEGREES, Contenders, JointPosterior, Measured
from kernrec.model.search.refinement import Costs, Refinement
from kernrec.op import problem_from_key
from kernrec.training.boosting import HeadData, train_head
from kernrec.training.dataset import Dataset, RowGroup
from kernrec.training.train_model import train

BUDGETS = (0, 1, 2, 4)
"""Average number of measurements per problem."""
AIMS = (0.965, 0.98, 0.99, 0.995)
"""Mean efficiency to reach after each budget."""
MOST, NOISE = 24, 0.01
"""Maximum number of contenders (configs that may be the best) per problem, and relative deviation of a measurement."""
GAPS = (0.0, 0.02, 0.05, 0.1, 0.2, 0.4)
"""Logarithmic distances between a prediction and the best prediction, for which prediction errors are estimated."""
_FEWEST, _SCALED_ON = 10, 200
_MEDIAN = 0.7407
"""Median of the absolute value of Student's t distribution with four degrees of freedom."""


@dataclass(frozen=True)
class Problem:
    """Problem to refine, with its contenders (configs that may be the best) and their recorded log times."""

    contenders: Contenders
    log_s: Array
    best_log_s: float
    """Logarithm of the lowest recorded time of all configs of the problem."""


def run(
    data: Data = DATA, problems: int = 300, seeds: int = 3,
    half: Annotated[int | None, typer.Option(min=0, max=1)] = None,
) -> None:  # fmt: skip
    """Print a table for each GPU. `half` selects half of the shapes, or all if it is None."""
    groups = {gpu: [g for g in recorded_groups(data, gpu)[1] if len(g) >= _FEWEST] for gpu in FILES}

    def in_half(group: RowGroup) -> bool:
        return half is None or sha256(group.dims.encode()).digest()[-1] % 2 == half

    wanted = {gpu: list(filter(in_half, own)) for gpu, own in groups.items()}
    pairs = (tuple(FILES), tuple(FILES)[::-1])
    predicted = {target: contended(groups[source], wanted[target]) for source, target in pairs}
    for source, target in pairs:
        # A model has more regret on another GPU than on its training GPU. Assume that the ratio
        # of the regrets is the same in both directions between two GPUs.
        lost, (own, elsewhere) = predicted[target][1][0], predicted[source][1]
        every = scaled(predicted[target][0], lost * elsewhere / own)
        samples = [_sample(every, problems, seed) for seed in range(seeds)]
        count = f"{min(problems, len(every))} of {len(every)} problems, {seeds} seeds"
        table = Table(f"\n{target} from a model of {source}: {count}; measurements a problem")
        for label, evenly in (("refine", False), ("spread evenly", True)):
            curves = np.mean([refine(some, seed, evenly) for seed, some in enumerate(samples)], axis=0)
            for name, row in zip(("efficiency", "true regret, %", "stated regret, %"), curves, strict=True):
                cells = {str(k): f"{value:.4g}" for k, value in zip(BUDGETS, row, strict=True)}
                table.row({"": f"{name}, {label}", **cells})
        table.row({"": "efficiency, aim", **{str(k): f"{aim:g}" for k, aim in zip(BUDGETS, AIMS, strict=True)}})


def _sample(every: Sequence[Problem], count: int, seed: int) -> list[Problem]:
    return [every[number] for number in np.random.default_rng(seed).permutation(len(every))[:count].tolist()]


def scaled(problems: Sequence[Problem], regret: float) -> list[Problem]:
    """Scale the standard deviations of all predictions so that `JointPosterior` computes the mean regret `regret`."""

    def times(problem: Problem, factor: float) -> Problem:
        each = problem.contenders
        deviation, features = factor * each.deviation, factor * each.features
        return replace(problem, contenders=replace(each, deviation=deviation, features=features))

    factors, some = np.geomspace(0.5, 8.0, 17), _sample(problems, _SCALED_ON, 0)
    stated = [JointPosterior([times(p, factor).contenders for p in some]).mean_regret() for factor in factors]
    return [times(problem, float(np.interp(regret, stated, factors))) for problem in problems]


def contended(source: Sequence[RowGroup], target: Sequence[RowGroup]) -> tuple[list[Problem], tuple[float, float]]:
    """Return (problems of the target GPU, mean regrets) of a model that was trained on the source GPU.

    The regrets are those of the top recommendations: on held-out problems of the source GPU, and on the target GPU."""
    data = Dataset(tuple(source))
    head = train_head(HeadData.of(data, "latency", SETTINGS), data.held_out[1], SETTINGS)
    held_out = np.log(data.analytical["latency"]) + head.out_of_fold
    starts = np.cumsum([len(group) for group in source])[:-1]
    parts = list(zip(np.split(held_out, starts), [np.log(group.latency_s) for group in source], strict=True))
    error = errors(parts)
    lost = float(np.mean([log_s[predicted.argmin()] - log_s.min() for predicted, log_s in parts]))
    model = train(data, replace(SETTINGS, rounds=1))
    rows = [group.inputs.tunables[name] for group in target for name in COLUMNS]
    values = [np.unique(np.concatenate(rows[place :: len(COLUMNS)])) for place in range(len(COLUMNS))]
    dims = [problem_from_key(group.problem).sizes for group in target]
    sizes = np.log2([[each[name] for name in "mnk"] for each in dims])
    context = np.column_stack((np.ones(len(sizes)), (sizes - sizes.mean(axis=0)) / (2.0 * sizes.std(axis=0))))
    problems = []
    for group, about in zip(target, context, strict=True):
        ratios, _ = model.log_ratio(group.inputs, gpu_known=False)
        predicted = np.log(group.inputs.latency_s) + ratios["latency"]
        chosen = np.argsort(predicted)[:MOST]
        tunables = [group.inputs.tunables[name][chosen] for name in COLUMNS]
        one_hot = np.column_stack([t[:, None] == v for t, v in zip(tunables, values, strict=True)]).astype(float)
        shared = (one_hot[:, :, None] * about).reshape(len(chosen), -1) / np.sqrt(2.0 * len(COLUMNS))
        deviation = np.interp(predicted[chosen] - predicted.min(), GAPS, error)
        points = np.log2(1.0 + np.column_stack(tunables)) / np.sqrt(len(COLUMNS))
        of_kernel = np.tile(error[0] * about / np.sqrt(2.0), (len(chosen), 1))
        features = np.column_stack((deviation[:, None] * shared, of_kernel))
        kernels, inputs = np.zeros(len(chosen), int), matrix(group.inputs, model.columns)[chosen].astype(np.float64)
        contenders = Contenders(predicted[chosen], deviation, features, points, kernels, float(error[0]), inputs=inputs)
        logs = np.log(group.latency_s)
        problems.append(Problem(contenders, logs[chosen], float(logs.min())))
    elsewhere = [p.log_s[0] - p.best_log_s for p in problems]
    return problems, (lost, float(np.mean(elsewhere)))


def errors(parts: Sequence[tuple[Array, Array]]) -> Array:
    """Return the stated error of held-out predictions for each distance in `GAPS`, without the error that all configs
    of a problem share. Errors have long tails. Therefore, the stated error is the standard deviation of the Student's t
    distribution that has the same median. `parts` are the predicted and recorded log times of each problem."""
    gap = np.concatenate([predicted - predicted.min() for predicted, _ in parts])
    residual = np.concatenate([
        log_s - predicted - np.average(log_s - predicted, weights=np.exp(-5.0 * (predicted - predicted.min())))
        for predicted, log_s in parts
    ])  # fmt: skip
    bins = pairwise((*GAPS, np.inf))
    medians = np.array([np.median(np.abs(residual[(gap >= low) & (gap < high)])) for low, high in bins])
    return np.asarray(medians / _MEDIAN * np.sqrt(DEGREES / (DEGREES - 2.0)))


def refine(problems: Sequence[Problem], seed: int, evenly: bool) -> list[list[float]]:
    """Return efficiency, true regret and stated regret (in %) after each budget. With `evenly`, all problems get the
    same number of measurements."""
    draw, posterior = np.random.default_rng(seed), JointPosterior([p.contenders for p in problems], seed)
    policy, measured, rows = Refinement(posterior, Costs(0.0, 1.0), NOISE), 0, []
    for budget in BUDGETS:
        while measured < budget * len(problems):
            others = set(range(len(problems))) - {measured % len(problems)} if evenly else ()
            if evenly:
                policy.look(measured % len(problems))
            if (visit := policy.next(without=others)) is not None:
                contender, value = visit.contenders[0], NOISE * draw.standard_normal()
                value += float(problems[visit.problem].log_s[contender])
                policy.take(visit.problem, Measured(contender, value, NOISE))
            measured += 1
        posterior.rescale()
        regret = np.array([p.log_s[posterior.choice(number)] - p.best_log_s for number, p in enumerate(problems)])
        rows.append([float(np.exp(-regret).mean()), 100.0 * float(regret.mean()), 100.0 * posterior.mean_regret()])
    return [list(column) for column in zip(*rows, strict=True)]
