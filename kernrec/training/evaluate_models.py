"""Scores of recommendations on measured problems, for `kernrec evaluate`.

Every way to choose a config (`kernrec.training.held_out_predictions`) is scored on the same problems, by the
definitions in `kernrec.training.scores`. Models and calibrations never see the problem, GPU or kernel that is scored.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from kernrec.errors import unknown
from kernrec.model.prior.spread import OF_ENERGY, OF_TIME, REGIMES, SPREADS
from kernrec.recommender.pareto import pareto_front
from kernrec.training import scores
from kernrec.training.boosting import TrainingSettings
from kernrec.training.held_out_predictions import FEWEST, SPLITS, HeldOutProblem, held_out_problems
from kernrec.training.load_measurements import MeasurementRequest, load_measurements
from kernrec.util.optional import require_optional

Array = np.ndarray

METHODS = ("learned", "calibrated", "prior", "occupancy", "nearest", "other GPU", "random")
QUANTITIES = ("latency", "energy", "edp")
TOPS = (1, 5, 10)
"""Numbers of recommendations of which the best one counts."""
MOST_SLOWDOWN = 0.03
"""How much slower than the fastest a config may be that is chosen for its energy."""
PUBLISHED = {
    "FlipFlop (arXiv 2601.13345)": {"accuracy": 0.83, "reduction": 0.934},
    "MIOpen's heuristics, their aim": {"efficiency@1": 0.90},
    "tritonBLAS, matmul": {"efficiency@1": 0.947},
}
"""Figures that others published, of other kernels on other GPUs; none of them was measured here."""

_NAN = float("nan")


@dataclass(frozen=True)
class MethodScore:
    """The mean scores of one method for one quantity; NaN where a score does not apply."""

    method: str
    quantity: str
    problems: int
    """Number of problems that the scores stand on."""
    efficiency: dict[int, float]
    """k -> best measured cost of the space over the best among the first k recommendations."""
    accuracy: float
    """Share of problems whose first recommendation is within 5 % of the best."""
    reduction: float
    """1 - (configs to measure, in recommended order, to come within 5 % of the best) / (configs)."""
    rank_correlation: float = _NAN
    """Spearman's rank correlation of predicted and measured costs."""
    median_error: float = _NAN
    """Median of |predicted / measured - 1|."""
    coverage: float = _NAN
    """Share of measured values inside the 90 % interval."""
    width: float = _NAN
    """Geometric mean of the interval's upper over its lower end."""
    front_recall: float = _NAN
    """Hypervolume of the recommended front's measured costs over that of the true front."""
    energy_saved: float = _NAN
    """Energy that the first choice saves against the occupancy heuristic's choice, as a fraction."""
    slowdown: float = _NAN
    """Slowdown of the first choice against the occupancy heuristic's choice."""
    frugal_saved: float = _NAN
    """Energy saved against the measured fastest config by the most frugal config that is predicted to be at most
    `MOST_SLOWDOWN` slower than the fastest."""
    frugal_slowdown: float = _NAN
    """Slowdown of that config."""


@dataclass(frozen=True)
class RegimeCoverage:
    """How much of what was measured lies inside the 90 % intervals of the prior, of what is bound alike."""

    regime: str
    """One of `prior.spread.REGIMES`."""
    configs: int
    time: float
    """Share of the times inside their interval."""
    time_factor: float
    """That interval, to either side."""
    pairs: int
    """Pairs of configs of a kernel on a problem and GPU, both in the regime."""
    ratio: float
    """Share of the ratios of two times inside the interval of a ratio; NaN without pairs."""
    ratio_factor: float
    """That interval, to either side."""
    energies: int
    """Configs whose energy was measured, too."""
    energy: float
    """Share of the energies inside their interval; NaN where none was measured."""
    energy_factor: float
    """That interval, to either side."""
    energy_ratio: float
    """Share of the ratios of two energies inside the interval of such a ratio; NaN without pairs."""
    energy_ratio_factor: float
    """That interval, to either side."""


@dataclass(frozen=True)
class Evaluation:
    """The scores of all methods and the predictions they stand on."""

    parts: int
    """Number of problems, GPUs or kernels that there are to hold out."""
    scores: list[MethodScore]
    """Scores of each quantity and each method that applies."""
    regimes: list[RegimeCoverage]
    """Coverage of the prior's intervals by what bounds a config."""
    problems: list[HeldOutProblem]
    notes: list[str]
    """Remarks for the user, a sentence each."""


def evaluate(
    request: MeasurementRequest,
    split: str = "problem",
    settings: TrainingSettings | None = None,
    progress: Callable[[str], None] = lambda _: None,
) -> Evaluation:
    """Score all methods on the measured problems of databases.

    Stored calibrations are not used, because they have seen what is held out; coefficients are fitted anew to the rest.

    Args:
        request: the measured problems.
        split: the kind of group that is held out whole: one of `held_out_predictions.SPLITS`.
        settings: how trees are grown.
        progress: called with a sentence for each fold.

    Raises:
        UsageError: an unknown split, or no measurement.
        KernrecError: a library of the extra `train` is missing.
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
        notes.append(f"no problem has {FEWEST} measured configs: there is too little to choose from")
    else:
        sizes = [len(problem.latency_s) for problem in problems]
        span = f"{min(sizes)} to {max(sizes)}" if min(sizes) < max(sizes) else f"{min(sizes)}"
        notes.append(f"the measured configs of a problem count as its whole space: {span} configs")
    return Evaluation(parts, score_methods(problems), regime_coverage(problems), problems, notes)


def regime_coverage(problems: Sequence[HeldOutProblem]) -> list[RegimeCoverage]:
    """Coverage of the prior's intervals over configs with a profile, a row for each regime that occurs."""
    errors: dict[str, list[list[Array]]] = {quantity: [[] for _ in REGIMES] for quantity in ("latency", "energy")}
    apart: dict[str, list[list[Array]]] = {quantity: [[] for _ in REGIMES] for quantity in errors}
    for problem in problems:
        if "prior" not in problem.predicted:
            continue
        kernels = np.array(problem.kernel)
        for quantity in errors:
            error = np.log(problem.measured(quantity) / problem.predicted["prior"][quantity])
            for number in set(problem.regime.tolist()) - {-1}:
                bound = (problem.regime == number) & np.isfinite(error)
                errors[quantity][number].append(error[bound])
                for kernel in dict.fromkeys(kernels[bound].tolist()):
                    of_kernel = error[bound & (kernels == kernel)]
                    first, second = np.triu_indices(len(of_kernel), 1)
                    apart[quantity][number].append(np.abs(of_kernel[first] - of_kernel[second]))
    rows = []
    for number, (name, spread) in enumerate(zip(REGIMES, SPREADS, strict=True)):
        if errors["latency"][number]:
            time, times = _inside(errors["latency"][number], spread.time)
            ratio, pairs = _inside(apart["latency"][number], spread.ratio)
            energy, energies = _inside(errors["energy"][number], spread.energy)
            energy_ratio, _ = _inside(apart["energy"][number], spread.energy_ratio)
            rows.append(
                RegimeCoverage(
                    name, times, time, spread.time, pairs, ratio, spread.ratio,
                    energies, energy, spread.energy, energy_ratio, spread.energy_ratio,
                )
            )  # fmt: skip
    return rows


def _inside(errors: Sequence[Array], factor: float) -> tuple[float, int]:
    """(share of logarithmic errors within a factor, NaN without any; how many there are)."""
    every = np.abs(np.concatenate([np.zeros(0), *errors]))
    return (float((every <= np.log(factor)).mean()) if len(every) else _NAN), len(every)


def score_methods(problems: Sequence[HeldOutProblem]) -> list[MethodScore]:
    """The scores of each quantity and method, over the problems to which the method applies."""
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
    """The scores of a method on one problem, by the names of the fields of `MethodScore`."""
    measured = problem.measured(quantity)
    expected = problem.expected(method, quantity)
    if expected is None:  # the random order, in expectation
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
    if method in ("learned", "calibrated", "prior"):
        values["median_error"] = scores.median_error(measured, expected)
        if quantity != "edp":
            widths = OF_TIME if quantity == "latency" else OF_ENERGY
            factor = widths.factors.take(np.maximum(problem.regime, 0))  # without a profile nothing says what bounds it
            low, high = expected / factor, expected * factor
            if method == "learned":
                low, high = problem.low[quantity], problem.high[quantity]
            values |= {"coverage": scores.coverage(measured, low, high), "width": scores.mean_width(low, high)}
    if quantity == "energy":
        values |= _savings(method, problem, order)
    return values


def _savings(method: str, problem: HeldOutProblem, order: Array) -> dict[str, float]:
    """Savings by the choices of a method, and the share of the front that it finds."""
    costs = problem.predicted[method]
    front = pareto_front(costs["latency"], costs["energy"])
    values = {"front_recall": scores.front_recall(problem.latency_s, problem.energy_j, front)}
    occupancy = problem.predicted["occupancy"]["latency"]
    if np.isfinite(occupancy).all():
        saved = scores.savings(problem.latency_s, problem.energy_j, int(order[0]), int(occupancy.argmin()))
        values["energy_saved"], values["slowdown"] = saved
    if method != "occupancy":  # its rank is the same for energy and latency
        fast = np.flatnonzero(costs["latency"] <= costs["latency"].min() * (1.0 + MOST_SLOWDOWN))
        frugal = int(fast[costs["energy"][fast].argmin()])
        saved = scores.savings(problem.latency_s, problem.energy_j, frugal, int(problem.latency_s.argmin()))
        values["frugal_saved"], values["frugal_slowdown"] = saved
    return values
