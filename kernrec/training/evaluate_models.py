"""Score methods of recommending configs on measured problems, for `kernrec evaluate`.

All methods are scored on the same held-out problems. They are trained without the measurements of these problems or, on
request, without any measurements of their GPU or kernel.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from kernrec.errors import unknown
from kernrec.model.analytical.spread import SPREAD
from kernrec.recommender.select import pareto_front
from kernrec.training import scores
from kernrec.training.boosting import TrainingSettings
from kernrec.training.held_out_predictions import FEWEST, SPLITS, HeldOutProblem, held_out_problems
from kernrec.training.load_measurements import MeasurementRequest, load_measurements
from kernrec.util.optional import require_optional

Array = np.ndarray

METHODS = ("learned", "calibrated", "predicted", "occupancy", "random")
QUANTITIES = ("latency", "energy", "edp")
TOPS = (1, 5, 10)
"""Values of k for the score `efficiency`."""
MOST_SLOWDOWN = 0.03
"""Maximum predicted slowdown of a low-energy config, relative to the fastest config."""
_NAN = float("nan")


@dataclass(frozen=True)
class MethodScore:
    """Scores of one method for one quantity, as means over problems. A score that does not apply is NaN."""

    method: str
    quantity: str
    problems: int
    efficiency: dict[int, float]
    """Best cost of all configs / best cost of the first k recommendations, keyed by k."""
    accuracy: float
    """Fraction of problems whose top recommendation costs at most 5 % more than the best config."""
    reduction: float
    """Fraction of configs after the first good config, in the recommended order. A good config costs at most 5 % more
    than the best config."""
    rank_correlation: float = _NAN
    """Spearman's rank correlation of predicted and measured costs."""
    median_error: float = _NAN
    """Median over a problem's configs of |predicted / measured - 1|."""
    coverage: float = _NAN
    """Fraction of measured values inside their 90 % interval."""
    width: float = _NAN
    """Upper / lower end of the 90 % interval, as a geometric mean over configs."""
    front_recall: float = _NAN
    """Hypervolume of the recommended Pareto front / hypervolume of the true front, both in measured costs."""
    energy_saved: float = _NAN
    """Fraction of energy that the top recommendation saves relative to the config of highest occupancy."""
    slowdown: float = _NAN
    """Fraction by which the top recommendation is slower than the config of highest occupancy."""
    lowest_energy_saved: float = _NAN
    """Fraction of energy that a low-energy config saves relative to the fastest config. Its predicted slowdown is at
    most `MOST_SLOWDOWN`."""
    lowest_energy_slowdown: float = _NAN
    """Fraction by which the low-energy config is slower than the fastest config."""


@dataclass(frozen=True)
class Evaluation:
    """Scores of all methods, with the scored predictions."""

    parts: int
    """Number of problems, GPUs or kernels that can be held out."""
    scores: list[MethodScore]
    problems: list[HeldOutProblem]
    notes: list[str]


def evaluate(
    request: MeasurementRequest, split: str = "problem", progress: Callable[[str], None] = lambda _: None
) -> Evaluation:
    """Score all methods on held-out measured problems. Groups of the kind `split` are held out as a whole. `progress`
    receives a sentence for each fold. Raise `UsageError` if there is no measurement."""
    if split not in SPLITS:
        raise unknown("split", split, SPLITS)
    require_optional(("xgboost", "sklearn", "scipy"), "evaluating models", "train")
    # Stored calibrations may contain held-out measurements, so new calibrations are fitted without them.
    measurements = load_measurements(request, calibrated=False)
    problems, parts = held_out_problems(measurements.groups, split, TrainingSettings(), progress)
    notes = list(measurements.notes)
    if parts < 2:
        notes.append(
            f"there is only one {split}: nothing can be held out, so no learned estimate is scored"
            f" ({2 - parts} more needed)"
        )
    if not problems:
        notes.append(f"no problem has {FEWEST} measured configs: too few to compare rankings")
    else:
        sizes = [len(problem.latency_s) for problem in problems]
        span = f"{min(sizes)} to {max(sizes)}" if min(sizes) < max(sizes) else f"{min(sizes)}"
        notes.append(f"the measured configs of a problem count as its whole space: {span} configs")
    return Evaluation(parts, score_methods(problems), problems, notes)


def score_methods(problems: Sequence[HeldOutProblem]) -> list[MethodScore]:
    """Return the scores of each method and quantity, averaged over problems."""
    method_scores = []
    for quantity in QUANTITIES:
        measured = [problem for problem in problems if np.isfinite(problem.measured(quantity)).all()]
        for method in METHODS:
            applicable = [
                problem for problem in measured if method == "random" or problem.expected(method, quantity) is not None
            ]
            if applicable:
                method_scores.append(_mean_score(method, quantity, applicable))
    return method_scores


def _mean_score(method: str, quantity: str, problems: list[HeldOutProblem]) -> MethodScore:
    rows = [_problem_scores(method, quantity, problem) for problem in problems]
    mean = {}
    for name in dict.fromkeys(name for row in rows for name in row):
        values = [row[name] for row in rows if np.isfinite(row.get(name, _NAN))]
        mean[name] = float(np.mean(values)) if values else _NAN
    efficiency = {k: mean.pop(f"efficiency@{k}") for k in TOPS}
    return MethodScore(method, quantity, len(problems), efficiency, **mean)


def _problem_scores(method: str, quantity: str, problem: HeldOutProblem) -> dict[str, float]:
    """Return a method's scores on one problem, keyed by field of `MethodScore` or `efficiency@<k>`."""
    measured = problem.measured(quantity)
    expected = problem.expected(method, quantity)
    if expected is None:  # Compute the expected scores of a random order for the method `random`.
        near = (measured <= measured.min() * (1.0 + scores.NEAR)).mean()
        values = {f"efficiency@{k}": scores.expected_random(measured, k)[0] for k in TOPS}
        return values | {"accuracy": float(near), "reduction": scores.expected_random(measured, 1)[1]}
    order = scores.order_of(expected)
    values = {f"efficiency@{k}": scores.efficiency_at(measured, order, k) for k in TOPS}
    values |= {
        "accuracy": float(scores.hit(measured, order)),
        "reduction": scores.reduction(measured, order),
        "rank_correlation": scores.rank_correlation(expected, measured),
    }
    if method in ("learned", "calibrated", "predicted"):
        values["median_error"] = scores.median_error(measured, expected)
        if quantity != "edp":
            factor = SPREAD.time if quantity == "latency" else SPREAD.energy
            low, high = expected / factor, expected * factor
            if method == "learned":
                low, high = problem.low[quantity], problem.high[quantity]
            values |= {"coverage": scores.coverage(measured, low, high), "width": scores.mean_width(low, high)}
    if quantity == "energy":
        values |= _savings(method, problem, order)
    return values


def _savings(method: str, problem: HeldOutProblem, order: Array) -> dict[str, float]:
    """Return the scores that need measured energy. `order` sorts configs by predicted energy."""
    costs = problem.predicted[method]
    front = pareto_front(costs["latency"], costs["energy"])
    values = {"front_recall": scores.front_recall(problem.latency_s, problem.energy_j, front)}
    occupancy = problem.predicted["occupancy"]["latency"]
    if np.isfinite(occupancy).all():
        saved = scores.savings(problem.latency_s, problem.energy_j, int(order[0]), int(occupancy.argmin()))
        values["energy_saved"], values["slowdown"] = saved
    if method != "occupancy":  # `occupancy` ranks energy like latency.
        fast = np.flatnonzero(costs["latency"] <= costs["latency"].min() * (1.0 + MOST_SLOWDOWN))
        lowest_energy = int(fast[costs["energy"][fast].argmin()])
        saved = scores.savings(problem.latency_s, problem.energy_j, lowest_energy, int(problem.latency_s.argmin()))
        values["lowest_energy_saved"], values["lowest_energy_slowdown"] = saved
    return values
