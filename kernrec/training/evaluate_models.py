"""How good recommendations are on measured problems, by the definitions of quality, against simpler ways to choose.

For each measured problem on each GPU the measured configs of all kernels are the space; what it was trained on is held
out whole: by problem, GPU or kernel, never by row. Ways to choose, all on the same problems:

    learned      a model of the rest
    calibrated   the analytic model with coefficients fitted to the rest, where that helps there (`model.calibrate`)
    prior        the analytic model with the data sheet's coefficients
    occupancy    most resident warps, of equals the largest block
    nearest      the costs measured on the nearest other problem of the same GPU; the prior for configs without one
    other GPU    the costs measured on another GPU; the prior for configs without one
    random       in expectation

The groups are those of the prior that is not calibrated, or what is held out would have been seen. Problems with fewer
than `FEWEST` measured configs say nothing of a choice and are left out. What was measured of a problem counts as its
space.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from kernrec.errors import KernrecError, UsageError
from kernrec.model.learn.conformal import Interval
from kernrec.model.learn.model import Model
from kernrec.model.prior.calibration import Calibration
from kernrec.model.prior.launch_time import INTERVAL
from kernrec.recommender.estimate.correction import interval_of
from kernrec.recommender.pareto import pareto_front
from kernrec.training import scores
from kernrec.training.boosting import TrainingSettings
from kernrec.training.dataset import Dataset, RowGroup
from kernrec.training.fit_calibration import fit, predicted
from kernrec.training.train_model import train

Array = np.ndarray

FEWEST = 8
SPLITS = ("problem", "gpu", "kernel")
METHODS = ("learned", "calibrated", "prior", "occupancy", "nearest", "other GPU", "random")
QUANTITIES = ("latency", "energy", "edp")
TOPS = (1, 5, 10)
SLOWER = 0.03
"""How much slower than the fastest a config may be that is chosen for its energy."""
PUBLISHED = {
    "FlipFlop (arXiv 2601.13345)": {"accuracy": 0.83, "reduction": 0.934},
    "MIOpen's heuristics, their aim": {"efficiency@1": 0.90},
    "tritonBLAS, matmul": {"efficiency@1": 0.947},
}
"""What others report, of other kernels on other cards: nothing of it was measured here."""


@dataclass(frozen=True)
class Case:
    """One problem on one GPU: its groups side by side. predicted: latency and energy by method, (C,).

    low, high: the learned interval by quantity.
    """

    gpu: str
    problem: str
    latency_s: Array
    energy_j: Array
    predicted: dict[str, dict[str, Array]] = field(default_factory=dict)
    low: dict[str, Array] = field(default_factory=dict)
    high: dict[str, Array] = field(default_factory=dict)


@dataclass(frozen=True)
class Score:
    """The mean of one method on one quantity over `problems` problems; NaN where it does not apply.

    energy_saved, slowdown: of the first choice against the occupancy heuristic's. frugal_saved, frugal_slowdown: of the
    most frugal config that is predicted to be at most `SLOWER` slower than the fastest, against the measured fastest.
    """

    method: str
    quantity: str
    problems: int
    efficiency: dict[int, float]
    accuracy: float
    reduction: float
    rank_correlation: float = float("nan")
    median_error: float = float("nan")
    coverage: float = float("nan")
    width: float = float("nan")
    front_recall: float = float("nan")
    energy_saved: float = float("nan")
    slowdown: float = float("nan")
    frugal_saved: float = float("nan")
    frugal_slowdown: float = float("nan")


def evaluate(
    groups: Sequence[RowGroup],
    split: str,
    settings: TrainingSettings | None = None,
    tell: Callable[[str], None] = lambda _: None,
) -> tuple[list[Score], list[Case], int]:
    """(scores, cases, held-out parts). With fewer than two parts nothing is learned and the other methods are
    scored."""
    parts = sorted({_part(group, split) for group in groups})
    models: dict[str, Model] = {}
    fitted: dict[str, dict[str, Calibration]] = {}
    if len(parts) > 1:
        dealt = np.random.default_rng(0).permutation(len(parts)) % min(len(parts), 5)
        for fold in range(int(dealt.max()) + 1):
            outside = {part for part, number in zip(parts, dealt, strict=True) if number == fold}
            tell(f"fold {fold + 1}: {len(outside)} of {len(parts)} {split}s held out")
            rest = [group for group in groups if _part(group, split) not in outside]
            try:
                models |= dict.fromkeys(outside, train(Dataset(tuple(rest)), settings))
            except UsageError as error:
                tell(f"fold {fold + 1}: no learned estimate is scored: the other folds have {error}")
            fitted |= dict.fromkeys(outside, _calibrations(rest))
    cases = []
    keys = sorted({(group.gpu, group.problem) for group in groups})
    for key in keys:
        members = [group for group in groups if (group.gpu, group.problem) == key]
        if sum(map(len, members)) >= FEWEST:
            case = _case(members, groups, [models.get(_part(group, split)) for group in members])
            _calibrate(case, members, [fitted.get(_part(g, split), {}).get(g.inputs.gpu.arch) for g in members])
            cases.append(case)
    return _scored(cases), cases, len(parts)


def _part(group: RowGroup, split: str) -> str:
    return {"problem": group.problem, "gpu": group.gpu, "kernel": group.kernel}[split]


def _case(members: list[RowGroup], groups: Sequence[RowGroup], models: list[Model | None]) -> Case:
    def side(values: Callable[[RowGroup], Array]) -> Array:
        return np.concatenate([values(group) for group in members])

    case = Case(members[0].gpu, members[0].problem, side(lambda g: g.latency_s), side(lambda g: g.energy_j))
    prior = {
        "latency": side(lambda g: g.inputs.latency_s),
        "energy": side(lambda g: g.inputs.latency_s * g.inputs.power_w),
    }
    if np.ptp(prior["latency"]) > 0:  # of a kernel without source it says the same of every config
        case.predicted["prior"] = prior
    case.predicted["occupancy"] = dict.fromkeys(("latency", "energy"), side(_by_occupancy))
    nearest = {g.kernel: _nearest(g, groups) for g in members}
    if any(nearest.values()):
        case.predicted["nearest"] = _borrowed(members, prior, nearest)
    elsewhere = {
        g.kernel: [o for o in groups if _same(o, g) and o.problem == g.problem and o.gpu != g.gpu] for g in members
    }
    if any(elsewhere.values()):
        case.predicted["other GPU"] = _borrowed(members, prior, elsewhere)
    if all(models):
        _learn(case, members, [model for model in models if model])
    return case


def _calibrations(groups: Sequence[RowGroup]) -> dict[str, Calibration]:
    try:
        return {one.arch: one.calibration for one in fit(groups) if one.calibration}
    except KernrecError:  # too few to calibrate
        return {}


def _calibrate(case: Case, members: list[RowGroup], found: list[Calibration | None]) -> None:
    """The calibrated prior of a case, where it was calibrated for some of it."""
    if not any(found):
        return
    given = [
        predicted(group, one)
        if one and group.inputs.core_s is not None
        else {"latency": group.inputs.latency_s, "energy": group.inputs.latency_s * group.inputs.power_w}
        for group, one in zip(members, found, strict=True)
    ]
    case.predicted["calibrated"] = {q: np.concatenate([one[q] for one in given]) for q in ("latency", "energy")}


def _learn(case: Case, members: list[RowGroup], models: list[Model]) -> None:
    parts: dict[str, list[Array]] = {}
    for group, model in zip(members, models, strict=True):
        ratios, distance = model.log_ratio(model.rows(group.inputs))
        latency = group.inputs.latency_s * np.exp(ratios["latency"])
        energy = latency * group.inputs.power_w * np.exp(ratios.get("power", 0.0))
        for quantity, value in (("latency", latency), ("energy", energy)):
            low, high = _interval(model, quantity, group).around(value, distance)
            for name, column in (("value", value), ("low", low), ("high", high)):
                parts.setdefault(f"{quantity} {name}", []).append(column)
    joined = {name: np.concatenate(columns) for name, columns in parts.items()}
    case.predicted["learned"] = {q: joined[f"{q} value"] for q in ("latency", "energy")}
    for quantity in ("latency", "energy"):
        case.low[quantity], case.high[quantity] = joined[f"{quantity} low"], joined[f"{quantity} high"]


def _interval(model: Model, quantity: str, group: RowGroup) -> Interval:
    """What a query would state: of a GPU or kernel that the model was not trained on, that for new ones."""
    known = model.kernels.get(group.kernel) == group.kernel_hash
    return interval_of(model, quantity, group.gpu if group.gpu in model.gpus else None, known)


def _by_occupancy(group: RowGroup) -> Array:
    """A cost that is least where most warps are resident, of equals where the block is largest."""
    inputs = group.inputs
    if inputs.threads is None or inputs.resident is None:
        return np.full(len(group), np.nan)
    warps = np.ceil(inputs.threads / 32.0)
    return 1.0 / (inputs.resident * warps * 4096.0 + warps + 1.0)


def _same(a: RowGroup, b: RowGroup) -> bool:
    return (a.kernel, a.kernel_hash) == (b.kernel, b.kernel_hash)


def _nearest(group: RowGroup, groups: Sequence[RowGroup]) -> list[RowGroup]:
    """The group of the same kernel and GPU whose problem is nearest in arithmetic and traffic; empty without
    another."""
    others = [o for o in groups if _same(o, group) and o.gpu == group.gpu and o.problem != group.problem]

    def apart(other: RowGroup) -> tuple[float, str]:
        a, b = group.inputs, other.inputs
        return float(np.hypot(np.log(a.flops / b.flops), np.log(a.bytes / b.bytes))), other.problem

    return [min(others, key=apart)] if others else []


def _borrowed(members: list[RowGroup], prior: dict[str, Array], sources: dict[str, list[RowGroup]]) -> dict[str, Array]:
    """Costs measured elsewhere, put on the scale of the prior here, which stands where nothing was measured there."""
    found = {quantity: values.copy() for quantity, values in prior.items()}
    start = 0
    for group in members:
        for source in sources[group.kernel][:1]:
            there = {config: at for at, config in enumerate(_configs(source))}
            both = [(start + at, there[config]) for at, config in enumerate(_configs(group)) if config in there]
            if not both:
                continue
            here, at = np.array(both).T
            for quantity, values in (("latency", source.latency_s), ("energy", source.energy_j)):
                known = np.isfinite(values[at])
                if known.any():
                    place, costs = here[known], values[at][known]
                    found[quantity][place] = costs * np.exp(np.median(np.log(prior[quantity][place] / costs)))
        start += len(group)
    return found


def _configs(group: RowGroup) -> list[tuple[float, ...]]:
    tunables = group.inputs.tunables
    columns = [np.asarray(tunables[name], dtype=np.float64) for name in sorted(tunables)]
    return [tuple(row) for row in np.stack(columns, axis=1).tolist()] if columns else [()] * len(group)


def _scored(cases: Sequence[Case]) -> list[Score]:
    found = []
    for quantity in QUANTITIES:
        usable = [case for case in cases if np.isfinite(_measured(case, quantity)).all()]
        for method in METHODS:
            of_method = [case for case in usable if method == "random" or _known(case, method, quantity)]
            if of_method:
                found.append(_score(method, quantity, of_method))
    return found


def _measured(case: Case, quantity: str) -> Array:
    return {"latency": case.latency_s, "energy": case.energy_j, "edp": case.latency_s * case.energy_j}[quantity]


def _predicted(case: Case, method: str, quantity: str) -> Array:
    costs = case.predicted[method]
    if quantity == "edp":
        # The heuristic ranks, and ranks by nothing but itself.
        return costs["latency"] if method == "occupancy" else costs["latency"] * costs["energy"]
    return costs[quantity]


def _known(case: Case, method: str, quantity: str) -> bool:
    return method in case.predicted and bool(np.isfinite(_predicted(case, method, quantity)).all())


def _score(method: str, quantity: str, cases: list[Case]) -> Score:
    rows = [_one(method, quantity, case) for case in cases]
    with np.errstate(all="ignore"):
        mean = {
            name: float(np.nanmean([row[name] for row in rows])) if _some(rows, name) else float("nan")
            for name in rows[0]
        }
    efficiency = {k: mean.pop(f"efficiency@{k}") for k in TOPS}
    return Score(method, quantity, len(cases), efficiency, **mean)


def _some(rows: list[dict[str, float]], name: str) -> bool:
    return bool(np.isfinite([row[name] for row in rows]).any())


def _one(method: str, quantity: str, case: Case) -> dict[str, float]:
    measured = _measured(case, quantity)
    if method == "random":
        near = (measured <= measured.min() * (1.0 + scores.NEAR)).mean()
        found = {f"efficiency@{k}": scores.expected_random(measured, k)[0] for k in TOPS}
        return found | {"accuracy": float(near), "reduction": scores.expected_random(measured, 1)[1]}
    expected = _predicted(case, method, quantity)
    order = scores.order_of(expected)
    found = {f"efficiency@{k}": scores.efficiency_at(measured, order, k) for k in TOPS}
    found |= {
        "accuracy": float(scores.hit(measured, order)),
        "reduction": scores.reduction(measured, order),
        "rank_correlation": scores.rank_correlation(expected, measured),
    }
    if method in ("learned", "calibrated", "prior"):
        found["median_error"] = scores.median_error(measured, expected)
        if quantity != "edp":
            low, high = expected / INTERVAL, expected * INTERVAL
            if method == "learned":
                low, high = case.low[quantity], case.high[quantity]
            found |= {"coverage": scores.coverage(measured, low, high), "width": scores.mean_width(low, high)}
    if quantity == "energy":
        found |= _savings(method, case, order)
    return found


def _savings(method: str, case: Case, order: Array) -> dict[str, float]:
    costs = case.predicted[method]
    front = pareto_front(costs["latency"], costs["energy"])
    found = {"front_recall": scores.front_recall(case.latency_s, case.energy_j, front)}
    occupancy = case.predicted["occupancy"]["latency"]
    if np.isfinite(occupancy).all():
        saved = scores.savings(case.latency_s, case.energy_j, int(order[0]), int(occupancy.argmin()))
        found["energy_saved"], found["slowdown"] = saved
    if method != "occupancy":  # which tells no energy from a latency
        fast = np.flatnonzero(costs["latency"] <= costs["latency"].min() * (1.0 + SLOWER))
        frugal = int(fast[costs["energy"][fast].argmin()])
        saved = scores.savings(case.latency_s, case.energy_j, frugal, int(case.latency_s.argmin()))
        found["frugal_saved"], found["frugal_slowdown"] = saved
    return found
