"""How good recommendations are on measured problems, by the definitions of quality, against simpler ways to choose.

For each measured problem on each GPU the measured configs of all kernels are the space; what it was trained on is held
out whole: by problem, GPU or kernel, never by row. Ways to choose, all on the same problems:

    learned      a model of the rest
    prior        the analytic model
    occupancy    most resident warps, of equals the largest block
    nearest      the costs measured on the nearest other problem of the same GPU; the prior for configs without one
    other GPU    the costs measured on another GPU; the prior for configs without one
    random       in expectation

Problems with fewer than `FEWEST` measured configs say nothing of a choice and are left out.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from kernrec.model import scores
from kernrec.model.dataset import Dataset, Group
from kernrec.model.intervals import Interval
from kernrec.model.learner import Model, Settings, train
from kernrec.model.prior import INTERVAL
from kernrec.recommender.learned import interval_of
from kernrec.recommender.pareto import pareto_front

Array = np.ndarray

FEWEST = 8
SPLITS = ("problem", "gpu", "kernel")
METHODS = ("learned", "prior", "occupancy", "nearest", "other GPU", "random")


@dataclass(frozen=True)
class Case:
    """One problem on one GPU: its groups side by side. predicted: cost by method and quantity, (C,).

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
    """The mean of one method on one quantity over `problems` problems; NaN where it does not apply."""

    method: str
    quantity: str
    problems: int
    efficiency: dict[int, float]
    accuracy: float
    reduction: float
    median_error: float = float("nan")
    coverage: float = float("nan")
    width: float = float("nan")
    front_recall: float = float("nan")
    energy_saved: float = float("nan")
    slowdown: float = float("nan")


def evaluate(
    groups: Sequence[Group], split: str, settings: Settings | None = None, tell: Callable[[str], None] = lambda _: None
) -> tuple[list[Score], list[Case], int]:
    """(scores, cases, held-out parts). With fewer than two parts nothing is learned and the other methods are
    scored."""
    parts = sorted({_part(group, split) for group in groups})
    models: dict[str, Model] = {}
    if len(parts) > 1:
        dealt = np.random.default_rng(0).permutation(len(parts)) % min(len(parts), 5)
        for fold in range(int(dealt.max()) + 1):
            outside = {part for part, number in zip(parts, dealt, strict=True) if number == fold}
            tell(f"fold {fold + 1}: {len(outside)} of {len(parts)} {split}s held out")
            model = train(Dataset(tuple(g for g in groups if _part(g, split) not in outside)), settings)
            models |= dict.fromkeys(outside, model)
    cases = []
    keys = sorted({(group.gpu, group.problem) for group in groups})
    for key in keys:
        members = [group for group in groups if (group.gpu, group.problem) == key]
        if sum(map(len, members)) >= FEWEST:
            cases.append(_case(members, groups, [models.get(_part(group, split)) for group in members]))
    return _scored(cases), cases, len(parts)


def _part(group: Group, split: str) -> str:
    return {"problem": group.problem, "gpu": group.gpu, "kernel": group.kernel}[split]


def _case(members: list[Group], groups: Sequence[Group], models: list[Model | None]) -> Case:
    def side(values: Callable[[Group], Array]) -> Array:
        return np.concatenate([values(group) for group in members])

    case = Case(members[0].gpu, members[0].problem, side(lambda g: g.latency_s), side(lambda g: g.energy_j))
    prior = {
        "latency": side(lambda g: g.facts.latency_s),
        "energy": side(lambda g: g.facts.latency_s * g.facts.power_w),
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


def _learn(case: Case, members: list[Group], models: list[Model]) -> None:
    parts: dict[str, list[Array]] = {}
    for group, model in zip(members, models, strict=True):
        ratios, distance = model.log_ratio(model.rows(group.facts))
        latency = group.facts.latency_s * np.exp(ratios["latency"])
        energy = latency * group.facts.power_w * np.exp(ratios.get("power", 0.0))
        for quantity, value in (("latency", latency), ("energy", energy)):
            low, high = _interval(model, quantity, group).around(value, distance)
            for name, column in (("value", value), ("low", low), ("high", high)):
                parts.setdefault(f"{quantity} {name}", []).append(column)
    joined = {name: np.concatenate(columns) for name, columns in parts.items()}
    case.predicted["learned"] = {q: joined[f"{q} value"] for q in ("latency", "energy")}
    for quantity in ("latency", "energy"):
        case.low[quantity], case.high[quantity] = joined[f"{quantity} low"], joined[f"{quantity} high"]


def _interval(model: Model, quantity: str, group: Group) -> Interval:
    """What a query would state: of a GPU or kernel that the model was not trained on, that for new ones."""
    known = model.kernels.get(group.kernel) == group.kernel_hash
    return interval_of(model, quantity, group.gpu if group.gpu in model.gpus else None, known)


def _by_occupancy(group: Group) -> Array:
    """A cost that is least where most warps are resident, of equals where the block is largest."""
    facts = group.facts
    if facts.threads is None or facts.resident is None:
        return np.full(len(group), np.nan)
    warps = np.ceil(facts.threads / 32.0)
    return 1.0 / (facts.resident * warps * 4096.0 + warps + 1.0)


def _same(a: Group, b: Group) -> bool:
    return (a.kernel, a.kernel_hash) == (b.kernel, b.kernel_hash)


def _nearest(group: Group, groups: Sequence[Group]) -> list[Group]:
    """The group of the same kernel and GPU whose problem is nearest in arithmetic and traffic; empty without
    another."""
    others = [o for o in groups if _same(o, group) and o.gpu == group.gpu and o.problem != group.problem]

    def apart(other: Group) -> tuple[float, str]:
        a, b = group.facts, other.facts
        return float(np.hypot(np.log(a.flops / b.flops), np.log(a.bytes / b.bytes))), other.problem

    return [min(others, key=apart)] if others else []


def _borrowed(members: list[Group], prior: dict[str, Array], sources: dict[str, list[Group]]) -> dict[str, Array]:
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


def _configs(group: Group) -> list[tuple[float, ...]]:
    tunables = group.facts.tunables
    columns = [np.asarray(tunables[name], dtype=np.float64) for name in sorted(tunables)]
    return [tuple(row) for row in np.stack(columns, axis=1).tolist()] if columns else [()] * len(group)


def _scored(cases: Sequence[Case]) -> list[Score]:
    found = []
    for quantity in ("latency", "energy"):
        usable = [c for c in cases if np.isfinite(c.energy_j if quantity == "energy" else c.latency_s).all()]
        for method in METHODS:
            of_method = [c for c in usable if method == "random" or _known(c, method, quantity)]
            if of_method:
                found.append(_score(method, quantity, of_method))
    return found


def _known(case: Case, method: str, quantity: str) -> bool:
    return method in case.predicted and bool(np.isfinite(case.predicted[method][quantity]).all())


def _score(method: str, quantity: str, cases: list[Case]) -> Score:
    rows = [_one(method, quantity, case) for case in cases]
    with np.errstate(all="ignore"):
        mean = {
            name: float(np.nanmean([row[name] for row in rows])) if _some(rows, name) else float("nan")
            for name in rows[0]
        }
    efficiency = {k: mean.pop(f"efficiency@{k}") for k in (1, 5, 10)}
    return Score(method, quantity, len(cases), efficiency, **mean)


def _some(rows: list[dict[str, float]], name: str) -> bool:
    return bool(np.isfinite([row[name] for row in rows]).any())


def _one(method: str, quantity: str, case: Case) -> dict[str, float]:
    measured = case.energy_j if quantity == "energy" else case.latency_s
    if method == "random":
        near = (measured <= measured.min() * (1.0 + scores.NEAR)).mean()
        found = {f"efficiency@{k}": scores.expected_random(measured, k)[0] for k in (1, 5, 10)}
        return found | {"accuracy": float(near), "reduction": scores.expected_random(measured, 1)[1]}
    predicted = case.predicted[method][quantity]
    order = scores.order_of(predicted)
    found = {f"efficiency@{k}": scores.efficiency_at(measured, order, k) for k in (1, 5, 10)}
    found |= {
        "accuracy": float(scores.hit(measured, order)),
        "reduction": scores.reduction(measured, order),
    }
    if method in ("learned", "prior"):
        found["median_error"] = scores.median_error(measured, predicted)
        low, high = predicted / INTERVAL, predicted * INTERVAL
        if method == "learned":
            low, high = case.low[quantity], case.high[quantity]
        found |= {"coverage": scores.coverage(measured, low, high), "width": scores.mean_width(low, high)}
    if quantity == "energy":
        costs = case.predicted[method]
        front = pareto_front(costs["latency"], costs["energy"])
        found["front_recall"] = scores.front_recall(case.latency_s, case.energy_j, front)
        occupancy = case.predicted["occupancy"]["latency"]
        if np.isfinite(occupancy).all():
            saved = scores.savings(case.latency_s, case.energy_j, int(order[0]), int(occupancy.argmin()))
            found["energy_saved"], found["slowdown"] = saved
    return found
