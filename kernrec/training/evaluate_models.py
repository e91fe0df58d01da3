"""Score recommendations on measured problems, for `kernrec evaluate`.

Every method (`kernrec.training.held_out_predictions`) is scored on the same problems with the definitions of
`kernrec.training.scores`. Models and calibrations never see the scored problem, GPU or kernel.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from kernrec.errors import unknown
from kernrec.model.analytical.spread import OF_ENERGY, OF_TIME
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
"""Numbers k of top recommendations; the best of the first k is scored."""
MOST_SLOWDOWN = 0.03
"""Maximum slowdown, relative to the fastest, of a config that is selected for its energy."""
_NAN = float("nan")


@dataclass(frozen=True)
class MethodScore:
    """Mean scores of one method for one quantity; NaN if a score does not apply."""

    method: str
    quantity: str
    problems: int
    """Number of scored problems."""
    efficiency: dict[int, float]
    """Ratio of the best measured cost of the space to the best cost among the first k recommendations, by k."""
    accuracy: float
    """Fraction of problems whose top recommendation is within 5 % of the best."""
    reduction: float
    """1 - (configs to measure, in recommended order, to come within 5 % of the best) / (configs)."""
    rank_correlation: float = _NAN
    """Spearman's rank correlation of predicted and measured costs."""
    median_error: float = _NAN
    """Median of |predicted / measured - 1|."""
    coverage: float = _NAN
    """Fraction of measured values inside the 90 % interval."""
    width: float = _NAN
    """Geometric mean of the interval's upper end over its lower end."""
    front_recall: float = _NAN
    """Hypervolume of the recommended front's measured costs, as a fraction of the true front's."""
    energy_saved: float = _NAN
    """Energy that the top recommendation saves, relative to the occupancy heuristic's config."""
    slowdown: float = _NAN
    """Slowdown of the top recommendation relative to the occupancy heuristic's config."""
    lowest_energy_saved: float = _NAN
    """Energy saved, relative to the measured fastest config, by the config of lowest energy among the configs that are
    predicted to be at most `MOST_SLOWDOWN` slower than the fastest.
    """
    lowest_energy_slowdown: float = _NAN
    """Slowdown of the config of `lowest_energy_saved`, relative to the measured fastest config."""


@dataclass(frozen=True)
class Evaluation:
    """Scores of all methods, and their predictions."""

    parts: int
    """Number of problems, GPUs or kernels that can be held out."""
    scores: list[MethodScore]
    """Scores of each quantity and each applicable method."""
    problems: list[HeldOutProblem]
    notes: list[str]
    """Notes for the user, one sentence each."""


def evaluate(
    request: MeasurementRequest,
    split: str = "problem",
    settings: TrainingSettings | None = None,
    progress: Callable[[str], None] = lambda _: None,
) -> Evaluation:
    """Score all methods on the measured problems of databases.

    Stored calibrations are not used, because they were fitted to held-out data. Coefficients are fitted again to the
    remaining data.

    Args:
        request: The measured problems.
        split: Kind of group that is held out, one of `held_out_predictions.SPLITS`.
        settings: Settings for growing trees.
        progress: Called with a sentence for each fold.

    Raises:
        UsageError: The split is unknown, or there is no measurement.
        KernrecError: A library of the extra `train` is missing.
    """
    if split not in SPLITS:
        raise unknown("split", split, SPLITS)
    require_optional(("xgboost", "sklearn", "scipy"), "evaluating models", "train")
    measurements = load_measurements(request, calibrated=False)
    problems, parts = held_out_problems(measurements.groups, split, settings or TrainingSettings(), progress)
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
    """Return the scores of each quantity and method, over the problems to which the method applies."""
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
    """Return the scores of a method on one problem, by field names of `MethodScore`."""
    measured = problem.measured(quantity)
    expected = problem.expected(method, quantity)
    if expected is None:  # Without predictions, score a random order in expectation.
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
            widths = OF_TIME if quantity == "latency" else OF_ENERGY
            factor = widths.factors.take(np.maximum(problem.regime, 0))  # Without a profile, the bottleneck is unknown.
            low, high = expected / factor, expected * factor
            if method == "learned":
                low, high = problem.low[quantity], problem.high[quantity]
            values |= {"coverage": scores.coverage(measured, low, high), "width": scores.mean_width(low, high)}
    if quantity == "energy":
        values |= _savings(method, problem, order)
    return values


def _savings(method: str, problem: HeldOutProblem, order: Array) -> dict[str, float]:
    """Return the savings of the configs that a method selects, and the fraction of the front that it finds."""
    costs = problem.predicted[method]
    front = pareto_front(costs["latency"], costs["energy"])
    values = {"front_recall": scores.front_recall(problem.latency_s, problem.energy_j, front)}
    occupancy = problem.predicted["occupancy"]["latency"]
    if np.isfinite(occupancy).all():
        saved = scores.savings(problem.latency_s, problem.energy_j, int(order[0]), int(occupancy.argmin()))
        values["energy_saved"], values["slowdown"] = saved
    if method != "occupancy":  # Its rank is equal for energy and latency.
        fast = np.flatnonzero(costs["latency"] <= costs["latency"].min() * (1.0 + MOST_SLOWDOWN))
        lowest_energy = int(fast[costs["energy"][fast].argmin()])
        saved = scores.savings(problem.latency_s, problem.energy_j, lowest_energy, int(problem.latency_s.argmin()))
        values["lowest_energy_saved"], values["lowest_energy_slowdown"] = saved
    return values
