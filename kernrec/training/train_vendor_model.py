"""Train a model of stacks from what others recorded of them (`kernrec.model.vendor`).

    a card      trees of squared errors, then trees of absolute ones, so that the median is met and few strays are not
                chased; intervals from problems left out, and from whole sizes of the grid left out
    any card    fewer and shallower trees over ratios; each architecture left out in turn calibrates the interval

A problem is in the same fold on every card, in every data type, layout and stack, and in every recorded set. Power is
learned given the time: how long math, DRAM and L2 are busy in it.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from kernrec.gpu import find_gpu
from kernrec.model.learn.conformal import Interval, calibrate
from kernrec.model.learn.extent import Extent
from kernrec.model.vendor.bound import RATIOS, features, features_of, used
from kernrec.model.vendor.compact_trees import MOST_CUTS, Trees, compact
from kernrec.model.vendor.model import OTHER, STACK, RecordedSet, log_sizes
from kernrec.model.vendor.single_calls import fitted_floor
from kernrec.training.folds import group_folds
from kernrec.training.scores import median_of_log_errors
from kernrec.util.optional import import_optional

Array = np.ndarray

FOLDS = 5
_ROUNDS = (60, 160)
"""Trees of squared and of absolute errors."""
_LEAVES, _LEVELS, _RATE = 64, 8, 0.15
_POWER_ROUNDS, _POWER_LEAVES = (40, 60), 32
"""Power is recorded with more noise: more trees learn that."""
_ROWS_PER_LEAF = 60
_SHARED_ROUNDS, _SHARED_LEVELS, _SHARED_LEAVES = (80, 40), 5, 16
"""Of the trees for any card; deeper ones do worse on a card left out."""
_SHARED_ROWS = 40_000
"""Trees for any card learn from a sample of at most this many rows."""
_DIFFERENT = 1.1
"""Stacks whose times differ by less than this factor count as equally fast."""
_ABOVE_ROOF, _BEYOND_L2 = 1.05, 8.0
"""Rows that are faster than the data sheet's arithmetic allows by more than this factor contradict it, and those faster
than its DRAM that move so many times the bytes that L2 holds."""


@dataclass(frozen=True)
class Recording:
    """The rows of one recorded set; arrays (N,)."""

    recorded: RecordedSet
    gpu: Array
    stack: Array
    dtype: Array
    layout: Array
    dims: Mapping[str, Array]
    latency_s: Array
    power_w: Array
    """NaN where it was not recorded, or misread."""

    def __len__(self) -> int:
        return len(self.latency_s)


@dataclass(frozen=True)
class Table:
    """A recording as trees see it."""

    recording: Recording
    columns: Mapping[str, tuple[str, ...]]
    """Names of the columns, by quantity."""
    matrix: Mapping[str, Array]
    """By quantity, (N, F)."""
    target: Mapping[str, Array]
    """log(measured / bound) of latency, log(power / TDP) of power, (N,); NaN where it was not recorded, and where the
    time contradicts the data sheet."""
    problem: Array
    """A number for each row's problem, (N,), the same for the same sizes in all recordings of an op."""
    impossible: int
    """How many rows contradict the data sheet."""
    work_s: Array
    """`Bound.work_s` of each row, (N,); NaN for ops that have none."""

    @classmethod
    def of(cls, recording: Recording) -> "Table":
        """Features and targets of every row."""
        made = _Columns(recording)
        kinds = np.stack([recording.gpu, recording.dtype, recording.layout], axis=1)
        for kind in np.unique(kinds, axis=0):
            made.add(np.flatnonzero((kinds == kind).all(axis=1)), *map(str, kind))
        sizes = np.stack([recording.dims[name] for name in features_of(recording.recorded.op).DIMS], axis=1)
        impossible = made.least_s > _ABOVE_ROOF * recording.latency_s
        latency = np.where(impossible, np.nan, np.log(recording.latency_s / made.bound_s))
        target = {"latency": latency, "power": np.log(recording.power_w / made.tdp_w)}
        return cls(recording, made.columns, made.matrix, target, _numbers(sizes), int(impossible.sum()), made.work_s)

    def fold(self) -> Array:
        """The fold of each row, (N,)."""
        return self.problem % FOLDS

    def on(self, gpu: str, quantity: str) -> Array:
        """The rows of a card on which a quantity is known."""
        return np.flatnonzero((self.recording.gpu == gpu) & np.isfinite(self.target[quantity]))

    def carried(self, gpu: str, quantity: str) -> Array:
        """Those of `on` whose stacks are told of on other cards, too."""
        rows = self.on(gpu, quantity)
        return rows[~np.isin(self.recording.stack[rows], self.recording.recorded.local)]

    def gpus(self, quantity: str) -> list[str]:
        """The cards on which a quantity is known."""
        return sorted(set(self.recording.gpu[np.isfinite(self.target[quantity])].tolist()))

    def families(self, quantity: str) -> dict[str, list[str]]:
        """The cards on which a quantity is known of a stack that is told of on other cards, too, by architecture."""
        cards: dict[str, list[str]] = {}
        for gpu in self.gpus(quantity):
            if len(self.carried(gpu, quantity)):
                cards.setdefault(find_gpu(gpu).arch, []).append(gpu)
        return cards

    def ratios(self, quantity: str) -> Array:
        """The columns that trees for any card take."""
        return np.array([i for i, name in enumerate(self.columns[quantity]) if name.startswith((*RATIOS, STACK))])


class _Columns:
    """Collects the features of a recording, kind by kind."""

    def __init__(self, recording: Recording) -> None:
        count = len(recording)
        self._recording = recording
        self.bound_s, self.least_s, self.tdp_w = np.empty(count), np.empty(count), np.empty(count)
        self.work_s = np.full(count, np.nan)
        self.columns: dict[str, tuple[str, ...]] = {}
        self.matrix: dict[str, Array] = {}

    def add(self, rows: Array, card: str, dtype: str, layout: str) -> None:
        """The features of rows of one kind."""
        recording, gpu = self._recording, find_gpu(card)
        dims = {name: sizes[rows] for name, sizes in recording.dims.items()}
        bound, made = features(recording.recorded.op, gpu, dtype, layout, dims, recording.recorded.timing)
        self.bound_s[rows], self.tdp_w[rows] = bound.total_s, gpu.tdp_w
        if bound.work_s is not None:
            self.work_s[rows] = bound.work_s
        beyond_l2 = bound.parts["dram"] * gpu.memory_bandwidth > _BEYOND_L2 * gpu.l2_bytes
        self.least_s[rows] = np.maximum(bound.parts["math"], np.where(beyond_l2, bound.parts["dram"], 0.0))
        stacks = tuple(recording.recorded.stacks)
        of_stack = {STACK + name: recording.stack[rows] == name for name in stacks if len(stacks) > 1}
        self._fill("latency", rows, made | of_stack)
        if np.isfinite(recording.power_w).any():  # given its time, a stack's power differs by how it was read
            self._fill("power", rows, made | used(bound, recording.latency_s[rows]))

    def _fill(self, quantity: str, rows: Array, made: Mapping[str, Array]) -> None:
        if quantity not in self.matrix:
            self.columns[quantity] = tuple(made)
            self.matrix[quantity] = np.full((len(self.bound_s), len(made)), np.nan, dtype=np.float32)
        for number, name in enumerate(self.columns[quantity]):
            self.matrix[quantity][rows, number] = made[name]


def _numbers(sizes: Array) -> Array:
    """A number for each row of sizes (N, D), equal for equal ones, and spread evenly."""
    number = np.zeros(len(sizes), dtype=np.uint64)
    for column in sizes.T.astype(np.uint64):
        number = (number ^ column) * np.uint64(0x9E3779B97F4A7C15)
        number ^= number >> np.uint64(29)
    return np.asarray((number >> np.uint64(2)).astype(np.int64))


@dataclass(frozen=True)
class Boosted:
    """Trees over some columns of a table."""

    columns: Array
    boosters: Sequence[Any]
    base: float

    def predict(self, matrix: Array) -> Array:
        """Predicted log ratios of the rows of a matrix with all columns."""
        part = matrix[:, self.columns]
        return np.asarray(self.base + sum(booster.inplace_predict(part) for booster in self.boosters))

    def compact(self) -> Trees:
        """The trees as a model file has them."""
        trees: list[Any] = []
        for booster in self.boosters:
            learner = json.loads(booster.save_raw("json"))["learner"]
            trees += learner["gradient_booster"]["model"]["trees"]
        return compact(trees, len(self.columns), self.base)


def boost_card(table: Table, quantity: str, rows: Array) -> Boosted:
    """Trees for one card."""
    rounds, most = (_POWER_ROUNDS, _POWER_LEAVES) if quantity == "power" else (_ROUNDS, _LEAVES)
    leaves = int(np.clip(len(rows) / _ROWS_PER_LEAF, 8, most))
    settings = {"max_depth": _LEVELS, "max_leaves": leaves, "colsample_bytree": 0.5}
    columns = np.arange(len(table.columns[quantity]))
    return _boosted(table, quantity, rows, np.ones(len(rows)), columns, settings, rounds)


def boost_any(table: Table, quantity: str, rows: Array) -> Boosted:
    """Trees for cards that were not recorded. Every stack on every card of `rows` has the same weight."""
    rows = np.random.default_rng(0).permutation(rows)[:_SHARED_ROWS]
    source = np.char.add(table.recording.gpu[rows].astype(str), table.recording.stack[rows].astype(str))
    _, number, count = np.unique(source, return_inverse=True, return_counts=True)
    weight = len(rows) / len(count) / count[number]
    settings = {"max_depth": _SHARED_LEVELS, "max_leaves": _SHARED_LEAVES, "min_child_weight": 30}
    return _boosted(table, quantity, rows, weight, table.ratios(quantity), settings, _SHARED_ROUNDS)


def _boosted(
    table: Table,
    quantity: str,
    rows: Array,
    weight: Array,
    columns: Array,
    settings: Mapping[str, Any],
    rounds: tuple[int, int],
) -> Boosted:
    xgboost = import_optional("xgboost", "training a model", "train")
    target, matrix = table.target[quantity][rows], table.matrix[quantity][rows][:, columns]
    base = float(np.median(target))
    common = {
        "tree_method": "hist", "grow_policy": "lossguide", "eta": _RATE, "subsample": 0.8, "colsample_bytree": 0.8,
        "nthread": 1, "seed": 0, "base_score": 0.0, "max_bin": MOST_CUTS - 1,
    }  # fmt: skip
    boosters, left = [], target - base
    for objective, count in zip(("reg:squarederror", "reg:absoluteerror"), rounds, strict=True):
        if count:
            data = xgboost.QuantileDMatrix(matrix, left, weight=weight, max_bin=MOST_CUTS - 1, nthread=1)
            boosters.append(xgboost.train({**common, **settings, "objective": objective}, data, count))
            left = left - boosters[-1].inplace_predict(matrix)
    return Boosted(columns, boosters, base)


def left_out_errors(table: Table, quantity: str, gpu: str, folds: int = FOLDS) -> Array:
    """log(measured / predicted) of a card's rows (N,), each by trees that did not see its problem; NaN elsewhere, and
    in all but the first `folds` of the five folds."""
    rows, fold = table.on(gpu, quantity), table.fold()
    return _errors_without(table, quantity, rows, (fold[rows] == number for number in range(folds)))


def between_errors(table: Table, quantity: str, gpu: str) -> Array:
    """As `left_out_errors`, by trees that saw no problem of the row's size in one of the grid's dimensions; NaN also
    where no size of the row was left out: a fifth of the sizes of each dimension are, at once."""
    rows = table.on(gpu, quantity)
    folds = [group_folds(table.recording.dims[name], FOLDS, seed=7) for name in table.recording.recorded.grid]
    return _errors_without(table, quantity, rows, [np.any([fold[rows] == 0 for fold in folds], axis=0)] * bool(folds))


def _errors_without(table: Table, quantity: str, rows: Array, left_out: Iterable[Array]) -> Array:
    """Errors of those of a card's `rows` that each mask leaves out, by trees of the others, (N,); NaN elsewhere."""
    errors = np.full(len(table.recording), np.nan)
    for mask in left_out:
        trees, held_out = boost_card(table, quantity, rows[~mask]), rows[mask]
        errors[held_out] = table.target[quantity][held_out] - trees.predict(table.matrix[quantity][held_out])
    return errors


def card_left_out_errors(table: Table, quantity: str, families: Mapping[str, Sequence[str]]) -> dict[str, Array]:
    """log(measured / predicted) of each card's rows by trees of the cards of the other architectures in `families`."""
    errors = {}
    for arch, cards in families.items() if len(families) > 1 else ():
        others = [gpu for other, gpus in families.items() if other != arch for gpu in gpus]
        trees = boost_any(table, quantity, np.concatenate([table.carried(gpu, quantity) for gpu in others]))
        for gpu in cards:
            rows = table.carried(gpu, quantity)
            errors[gpu] = table.target[quantity][rows] - trees.predict(table.matrix[quantity][rows])
    return errors


def card_interval(errors: Mapping[str, Array]) -> Interval:
    """The interval for a card that was not recorded, from the errors of cards left out, an architecture a group."""
    by_arch = _by_architecture(errors)
    groups = np.repeat(np.arange(len(by_arch)), [len(part) for part in by_arch.values()])
    residual = np.concatenate([*by_arch.values(), np.zeros(0)])
    return calibrate(residual, groups, "GPU")


def _by_architecture(errors: Mapping[str, Array]) -> dict[str, Array]:
    parts: dict[str, list[Array]] = {}
    for gpu, error in errors.items():
        parts.setdefault(find_gpu(gpu).arch, []).append(error)
    return {arch: np.concatenate(part) for arch, part in parts.items()}


def coverage(errors: Array, problem: Array) -> float:
    """Share of rows inside the interval that the other half of the problems gives.

    Args:
        errors: log(measured / predicted), (N,), NaN where nothing was predicted.
        problem: the number of each row's problem, (N,).
    """
    rows = np.flatnonzero(np.isfinite(errors))
    half = group_folds(problem[rows], 2, seed=3)
    inside = np.zeros(len(rows), dtype=bool)
    for part in (0, 1):
        others = rows[half != part]
        width = calibrate(errors[others], problem[others], "problem").width
        inside[half == part] = np.abs(errors[rows[half == part]]) <= width
    return float(inside.mean())


def coverage_of_cards(errors: Mapping[str, Array]) -> dict[str, float]:
    """For each architecture, the share of its rows inside the interval that the errors of the others give."""
    by_arch = _by_architecture(errors)
    shares = {}
    for arch, rows in by_arch.items():
        width = card_interval({gpu: part for gpu, part in errors.items() if find_gpu(gpu).arch != arch}).width
        shares[arch] = round(float((np.abs(rows) <= width).mean()), 3)
    return shares


def fastest_named(table: Table, errors: Array) -> tuple[int, int]:
    """(how often the stack predicted as fastest is, of how many problems on a card whose two fastest stacks differ).

    Args:
        table: of the recording.
        errors: log(measured / predicted) of latency, (N,), NaN where nothing was predicted.
    """
    groups: dict[tuple[str, str, int], list[int]] = {}
    rows = np.flatnonzero(np.isfinite(errors))
    of_row = (table.recording.gpu[rows], table.recording.dtype[rows], table.problem[rows])
    for row, key in zip(rows.tolist(), zip(*of_row, strict=True), strict=True):
        groups.setdefault(key, []).append(row)
    measured_s, stack = table.recording.latency_s, table.recording.stack
    predicted_s = measured_s / np.exp(errors)
    right = count = 0
    for group in groups.values():
        first = min(group, key=measured_s.__getitem__)
        others = [measured_s[row] for row in group if stack[row] != stack[first]]
        if others and min(others) >= _DIFFERENT * measured_s[first]:
            count += 1
            right += int(stack[min(group, key=predicted_s.__getitem__)] == stack[first])
    return right, count


def train_set(recording: Recording, folds: int = FOLDS) -> tuple[dict[str, Any], dict[str, Trees]]:
    """Train the heads of one recorded set.

    Args:
        recording: its rows.
        folds: how many of the five folds of problems calibrate the intervals.

    Returns:
        Its entry in the card of the model, and the trees by name.
    """
    table, recorded = Table.of(recording), recording.recorded
    heads: dict[str, dict[str, Any]] = {}
    trees: dict[str, Trees] = {}
    together = np.full(len(recording), np.nan)
    for quantity in table.matrix:
        gpus = table.gpus(quantity)
        heads[quantity] = {}
        for gpu in gpus:
            left_out, rows = left_out_errors(table, quantity, gpu, folds), table.on(gpu, quantity)
            between = between_errors(table, quantity, gpu) if quantity == "latency" else np.full(len(left_out), np.nan)
            if quantity == "latency":
                together = np.where(np.isfinite(left_out), left_out, together)
            tested, on_grid = np.flatnonzero(np.isfinite(left_out)), np.flatnonzero(np.isfinite(between))
            own = calibrate(left_out[tested], table.problem[tested], "problem")
            other = calibrate(between[on_grid], table.problem[on_grid], "problem") if len(on_grid) else own
            name = f"{recorded.name}.{quantity}.{gpu}"
            trees[name] = boost_card(table, quantity, rows).compact()
            heads[quantity][gpu] = _head(name, table.columns[quantity], own, other) | {
                "rows": len(rows),
                "median error, problems left out": _median(left_out),
                "by stack": {
                    stack: _median(left_out[recording.stack == stack])
                    for stack, cards in recorded.stacks.items()
                    if gpu in cards and np.isfinite(left_out[recording.stack == stack]).any()
                },
                "coverage, problems left out": round(coverage(left_out, table.problem), 3),
                **({"median error, sizes left out": _median(between)} if len(on_grid) else {}),
            }
        errors = card_left_out_errors(table, quantity, table.families(quantity))
        name = f"{recorded.name}.{quantity}.any"
        boosted = boost_any(table, quantity, np.concatenate([table.carried(gpu, quantity) for gpu in gpus]))
        trees[name] = boosted.compact()
        interval = card_interval(errors)
        heads[quantity][OTHER] = _head(
            name, [table.columns[quantity][i] for i in boosted.columns], interval, interval
        ) | {
            "median error, card left out": {gpu: _median(error) for gpu, error in errors.items()},
            "coverage, card left out": coverage_of_cards(errors),
        }
    dims = features_of(recorded.op).DIMS
    extent = Extent.of(log_sizes({name: recording.dims[name] for name in dims}))
    working_sets = recorded.timing.working_sets
    finite_sets = working_sets if np.isfinite(working_sets) else None
    entry = {
        **{name: getattr(recorded, name) for name in ("name", "case", "alike_width")},
        **{name: list(getattr(recorded, name)) for name in ("dtypes", "layouts", "alike", "local")},
        "stacks": {stack: dict(cards) for stack, cards in recorded.stacks.items()},
        "kinds": {stack: {gpu: list(names) for gpu, names in cards.items()} for stack, cards in recorded.kinds.items()},
        "multiples": {stack: dict(steps) for stack, steps in recorded.multiples.items()},
        "timing": {"launch_clk": recorded.timing.launch_clk, "working_sets": finite_sets},
        "origin": dict(recorded.origin),
        "sizes": {name: np.unique(recording.dims[name]).tolist() for name in recorded.grid},
        "extent": _plain(extent),
        **(floors_and_work(table) if recorded.timing.alone else {}),
        "heads": heads,
        "fastest stack named, and problems where two differ": fastest_named(table, together),
        "problems": len(np.unique(table.problem)),
        "left out, faster than the data sheet": table.impossible,
    }
    return entry, trees


def floors_and_work(table: Table) -> dict[str, Any]:
    """Of calls that were timed alone: the floor of each card's recorder, and the recorded region of the card's work."""
    recording = table.recording
    on = {gpu: np.flatnonzero((recording.gpu == gpu) & np.isfinite(table.work_s)) for gpu in table.gpus("latency")}
    floors = {gpu: fitted_floor(recording.latency_s[rows], table.work_s[rows]) for gpu, rows in on.items()}
    return {"floors": floors, "work": _plain(Extent.of(np.log2(table.work_s)[:, None]))}


def _plain(extent: Extent) -> dict[str, list[float]]:
    return {key: getattr(extent, key).tolist() for key in ("low", "high", "spread")}


def _head(name: str, columns: Sequence[str], recorded: Interval, between: Interval) -> dict[str, Any]:
    return {"trees": name, "columns": list(columns), "recorded": vars(recorded), "between": vars(between)}


def _median(error: Array) -> float:
    """The median relative error of log(measured / predicted), rounded to a hundredth of a percent."""
    return round(median_of_log_errors(error), 4)
