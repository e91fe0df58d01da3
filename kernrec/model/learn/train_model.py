"""Boosted trees for what the prior misses: the log of measured over predicted latency, and the same for power.

    held-out groups   K folds; the fewest trees of about the least held-out loss are taken, and the held-out residuals
                      calibrate the intervals: of a fold by as many trees as the other folds find best, for a number
                      that suits its own rows best would make them look surer than they are
    held-out GPUs     each GPU (and each kernel) is held out, problems and all, which says how far what was learned
    and kernels       carries to one that nobody measured
    final model       all rows, as many trees as all folds together find best

Everything is seeded and the number of threads is fixed, so the same rows give the same file. XGBoost is imported here
and only when something is trained; asking a model takes `model.forest`.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from kernrec.errors import UsageError
from kernrec.model.learn import scores
from kernrec.model.learn.conformal import NEW_GPU, NEW_KERNEL, Extent, Interval, calibrate
from kernrec.model.learn.dataset import HEADS, Dataset
from kernrec.model.learn.features import ModelInputs, matrix, parts
from kernrec.model.learn.forest import Forest
from kernrec.model.learn.loss_weights import SHARPNESS, loss_weights
from kernrec.util.optional import import_optional

Array = np.ndarray

_MANY_ROWS = 50_000  # from here on fewer folds do
_FEWEST_ROWS = 8  # a head with fewer is not trained
_LOOKED_AT = 30_000  # rows, where GPUs or kernels are held out: two models each
_SAME_LOSS = 0.005
_MOST_APART = 5  # more GPUs or kernels are held out several at a time


@dataclass(frozen=True)
class Settings:
    """How trees are grown. Chosen on the recorded convolution spaces; depth and rounds also by what a query can
    afford."""

    rounds: int = 200
    depth: int = 5
    rate: float = 0.08
    patience: int = 20
    row_share: float = 0.8
    column_share: float = 0.5
    child_weight: float = 5.0
    sharpness: float = SHARPNESS
    seed: int = 0
    threads: int = 2


@dataclass(frozen=True)
class Model:
    """A trained model: trees by head as XGBoost's UBJSON, and what is needed to use and to judge them.

    intervals: by quantity (`latency`, `energy`), then by GPU, `*` for all of them, `new GPU`, `new kernel`. scores: on
    held-out groups. gpus, kernels (name: hash), ops: what it was trained on. helps_new_kernels: whether it was better
    than the prior on every kernel that was held out; False where there was one alone.
    """

    columns: tuple[str, ...]
    trees: Mapping[str, bytes]
    extent: Extent
    intervals: Mapping[str, Mapping[str, Interval]]
    scores: Mapping[str, float | str]
    gpus: tuple[str, ...]
    kernels: Mapping[str, str]
    ops: tuple[str, ...]
    helps_new_kernels: bool = False
    forests: Mapping[str, Forest] = field(repr=False, default_factory=dict)

    def rows(self, inputs: ModelInputs) -> Array:
        """The features of candidates that this model looks at, (C, F)."""
        return matrix(inputs, self.columns)

    def log_ratio(self, rows: Array) -> tuple[dict[str, Array], Array]:
        """(log(expected / prior) by head, distance from what was trained on) of rows of features; arrays (C,)."""
        return {head: forest.predict(rows) for head, forest in self.forests.items()}, self.extent.distance(rows)


def train(data: Dataset, settings: Settings | None = None) -> Model:
    """The model of a dataset; a head with too few measurements is left out, `UsageError` where that is latency's."""
    settings = settings or Settings()
    if (measured := int(np.isfinite(data.residual["latency"]).sum())) < _FEWEST_ROWS:
        raise UsageError(f"{measured} measured config{'s' * (measured != 1)} to learn from, {_FEWEST_ROWS} are needed")
    kind, groups = data.held_out
    heads = {}
    for head in HEADS:
        known = np.flatnonzero(np.isfinite(data.residual[head]))
        if len(known) >= _FEWEST_ROWS:
            heads[head] = _Head(data, head, known, groups, settings)
    out_of_fold = {head: found.out_of_fold for head, found in heads.items()}
    residual = _by_quantity(data, out_of_fold)
    by_problem = kind == "problem"
    distance = _held_out_distance(data, _folds(groups, settings, len(data)))
    scores = _scores(data, out_of_fold, residual, kind, groups)
    intervals: dict[str, dict[str, Interval]] = {quantity: {} for quantity in residual}
    for quantity, error in residual.items() if by_problem else ():
        intervals[quantity] = _intervals(data, error, groups, distance)
    helps = False
    for name, key, fields in (("GPU", NEW_GPU, ("gpu",)), ("kernel", NEW_KERNEL, ("kernel", "kernel_hash"))):
        apart = data.numbers(*fields)
        if apart.max() < 1:
            continue
        left_out, far = _left_out(data, heads, apart, groups if by_problem else None, settings)
        errors = _by_quantity(data, left_out)
        for quantity, error in errors.items():
            rows = np.isfinite(error)
            intervals[quantity][key] = calibrate(error[rows], apart[rows], name, far[rows])
        scores |= _apart_scores(name, apart, errors["latency"], data.residual["latency"])
        if name == "kernel":
            helps = _helps(apart, errors["latency"], data.residual["latency"])
    return Model(
        data.columns,
        {head: found.trees for head, found in heads.items()},
        Extent.of(data.matrix, parts(data.columns)),
        intervals,
        scores,
        tuple(sorted({group.gpu for group in data.groups})),
        {group.kernel: group.kernel_hash for group in data.groups},
        tuple(sorted({group.op for group in data.groups})),
        helps,
        {head: Forest.parse(found.trees, f"the {head} model") for head, found in heads.items()},
    )


class _Head:
    """One head's training: its trees, and what trees that did not see a row's group say of it (`out_of_fold`, (N,))."""

    def __init__(self, data: Dataset, head: str, known: Array, groups: Array, settings: Settings) -> None:
        # Threads that wait for one another give the processor away, where others need it.
        os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
        self._data, self._settings = data, settings
        self._target = data.residual[head]
        cost = data.latency_s if head == "latency" else data.energy_j
        self._weights = loss_weights(cost, data.numbers("gpu", "problem", "op"), settings.sharpness)
        self.known = np.zeros(len(data), dtype=bool)
        self.known[known] = True
        self.out_of_fold = np.full(len(data), np.nan)
        fold = _folds(groups[known], settings, len(known))
        if fold.max() > 0:
            boosted, losses = [], []
            for number in range(int(fold.max()) + 1):
                outside = known[fold == number]
                booster, loss = self._boost(known[fold != number], settings.rounds, outside)
                boosted.append((outside, booster))
                losses.append(loss * len(outside))
            total = np.sum(losses, axis=0)
            self.rounds = _fewest(total)
            for (outside, booster), loss in zip(boosted, losses, strict=True):
                count = min(_fewest(total - loss), booster.num_boosted_rounds())
                self.out_of_fold[outside] = booster.inplace_predict(data.matrix[outside], iteration_range=(0, count))
        else:
            self.out_of_fold[known] = np.average(self._target[known], weights=self._weights[known])
            self.rounds = max(settings.rounds // 4, 1)
        self.trees = bytes(self._boost(known, self.rounds, None)[0].save_raw("ubj"))

    def without(self, chosen: Array, outside: Array) -> Array:
        """What trees of the rows `chosen` say of the rows `outside`."""
        return self._boost(chosen, self.rounds, None)[0].inplace_predict(self._data.matrix[outside])

    def _boost(self, chosen: Array, rounds: int, held_out: Array | None) -> tuple[Any, Array]:
        """(trees of the rows `chosen`, mean squared error on rows held out after each round)."""
        xgboost = import_optional("xgboost", "training a model", "train")

        settings, target, weights = self._settings, self._target, self._weights

        def matrix(rows: Array, like: Any = None) -> Any:
            return xgboost.QuantileDMatrix(
                self._data.matrix[rows], target[rows], weight=weights[rows], ref=like, nthread=settings.threads
            )

        inside = matrix(chosen)
        watched: dict[str, Any] = {}
        if held_out is not None:
            watched = {"evals": [(matrix(held_out, inside), "held_out")], "early_stopping_rounds": settings.patience}
        parameters = {
            "objective": "reg:squarederror",
            "tree_method": "hist",
            "max_depth": settings.depth,
            "eta": settings.rate,
            "subsample": settings.row_share,
            "colsample_bytree": settings.column_share,
            "min_child_weight": settings.child_weight,
            "base_score": float(np.average(target[chosen], weights=weights[chosen])),
            "nthread": settings.threads,
            "seed": settings.seed,
        }
        told: dict[str, Any] = {}
        booster = xgboost.train(parameters, inside, rounds, verbose_eval=False, evals_result=told, **watched)
        loss = np.square(told["held_out"]["rmse"]) if told else np.zeros(rounds)
        return booster, np.pad(loss, (0, rounds - len(loss)), mode="edge")  # it had not fallen for long


def _fewest(loss: Array) -> int:
    """The fewest trees whose loss is about the least: a query pays for each."""
    return int(np.argmax(loss <= loss.min() * (1.0 + _SAME_LOSS))) + 1


def _by_quantity(data: Dataset, found: Mapping[str, Array]) -> dict[str, Array]:
    """log(measured / predicted) of latency and energy, from what was predicted of each head."""
    errors = {"latency": data.residual["latency"] - found["latency"]}
    if "power" in found:
        errors["energy"] = errors["latency"] + data.residual["power"] - found["power"]
    return errors


def _folds(groups: Array, settings: Settings, rows: int) -> Array:
    """The fold of each row: groups shuffled and dealt out, so that no group is in two."""
    numbers, place = np.unique(groups, return_inverse=True)
    count = min(len(numbers), 3 if rows >= _MANY_ROWS else 5)
    dealt = np.empty(len(numbers), dtype=np.int64)
    dealt[np.random.default_rng(settings.seed).permutation(len(numbers))] = np.arange(len(numbers)) % count
    return dealt[place]


def _held_out_distance(data: Dataset, fold: Array) -> Array:
    """How far each row lies outside of the other folds: as far as a new one does that the model is asked about."""
    found = np.zeros(len(data))
    if fold.max() > 0:
        for number in range(int(fold.max()) + 1):
            outside = fold == number
            found[outside] = Extent.of(data.matrix[~outside], parts(data.columns)).distance(data.matrix[outside])
    return found


def _left_out(
    data: Dataset, heads: Mapping[str, _Head], apart: Array, groups: Array | None, settings: Settings
) -> tuple[dict[str, Array], Array]:
    """(predictions by head, distance) of rows by models that saw nothing of their number in `apart`; else NaN.

    Nor did they see the row's problem, where `groups` tells problems apart: one that nobody measured on a new GPU or
    kernel is what will be asked about. Of many rows a few thousand are looked at, the same of each group.
    """
    draw = np.random.default_rng(settings.seed)
    looked = np.ones(len(data), dtype=bool)
    if len(data) > _LOOKED_AT:
        looked[draw.permutation(len(data))[_LOOKED_AT:]] = False
    numbers = np.unique(apart)
    part = (
        np.zeros(len(data), dtype=np.int64) if groups is None else draw.permutation(int(groups.max()) + 1)[groups] % 2
    )
    held = np.empty(len(numbers), dtype=np.int64)
    held[draw.permutation(len(numbers))] = np.arange(len(numbers)) % min(len(numbers), _MOST_APART)
    fold = held[np.searchsorted(numbers, apart)]
    found = {head: np.full(len(data), np.nan) for head in heads}
    far = np.zeros(len(data))
    for number in range(int(fold.max()) + 1):
        for half in np.unique(part):
            outside = looked & (fold == number) & (part == half)
            # Problems of this half stay out of training; where that leaves nothing, they were measured here alone.
            inside = looked & (fold != number) & ((part != half) if groups is not None else True)
            if not outside.any() or inside.sum() < _FEWEST_ROWS:
                continue
            far[outside] = Extent.of(data.matrix[inside], parts(data.columns)).distance(data.matrix[outside])
            for head, trained in heads.items():
                chosen, asked = np.flatnonzero(inside & trained.known), np.flatnonzero(outside & trained.known)
                if len(chosen) >= _FEWEST_ROWS and len(asked):
                    found[head][asked] = trained.without(chosen, asked)
    return found, far


def _intervals(data: Dataset, error: Array, groups: Array, distance: Array) -> dict[str, Interval]:
    """The interval of all GPUs together (`*`), and of each that has groups enough for one of its own."""
    known = np.isfinite(error)
    gpu = np.repeat([group.gpu for group in data.groups], [len(group) for group in data.groups])
    found = {"*": calibrate(error[known], groups[known], "problem", distance[known])}
    for name in sorted(set(gpu)):
        rows = known & (gpu == name)
        if not (interval := calibrate(error[rows], groups[rows], "problem", distance[rows])).pooled:
            found[str(name)] = interval
    return found


def _apart_scores(name: str, apart: Array, error: Array, prior: Array) -> dict[str, float | str]:
    """Median errors of latency on held-out GPUs or kernels, of the model and of the prior."""
    rows = np.isfinite(error)
    if not rows.any():
        return {}
    return {
        f"held-out {name}s": float(len(np.unique(apart[rows]))),
        f"median latency error on held-out {name}s": float(np.median(np.abs(np.expm1(-error[rows])))),
        f"median latency error of the prior on held-out {name}s": float(np.median(np.abs(np.expm1(-prior[rows])))),
    }


def _helps(apart: Array, error: Array, prior: Array) -> bool:
    """Whether the model's error on each that was held out is less than the prior's."""
    held = [rows for number in np.unique(apart) if (rows := np.isfinite(error) & (apart == number)).any()]
    better = [np.median(np.abs(error[rows])) < np.median(np.abs(prior[rows])) for rows in held]
    return len(better) > 1 and all(better)


def _scores(
    data: Dataset, out_of_fold: Mapping[str, Array], residual: Mapping[str, Array], kind: str, groups: Array
) -> dict[str, float | str]:
    """What the held-out rows say of the model."""
    predicted = data.prior["latency"] * np.exp(out_of_fold["latency"])
    problems = data.numbers("gpu", "problem", "op")
    ranks, firsts = [], []
    for number in np.unique(problems):
        rows = np.flatnonzero(problems == number)
        ranks.append(scores.rank_correlation(predicted[rows], data.latency_s[rows]))
        firsts.append(scores.efficiency_at(data.latency_s[rows], scores.order_of(predicted[rows]), 1))
    found: dict[str, float | str] = {
        "held out by": kind,
        "held-out groups": float(len(np.unique(groups))),
        "median latency error": scores.median_error(data.latency_s, predicted),
        "median latency error of the prior": scores.median_error(data.latency_s, data.prior["latency"]),
        "rank correlation": float(np.mean(ranks)),
        "efficiency@1": float(np.mean(firsts)),
    }
    if "energy" in residual:
        found["median energy error"] = float(np.nanmedian(np.abs(np.expm1(-residual["energy"]))))
    return found
