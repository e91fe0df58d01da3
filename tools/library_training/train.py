"""Train a model of backends (`kernrec.model.baselines`) from other people's recordings.

Each recorded GPU has its own trees. Their intervals are calibrated on held-out problems, and on held-out sizes of
dimensions of which few sizes were recorded. All other GPUs share trees. To calibrate their interval, each architecture
is held out in turn.
"""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from kernrec.gpu import find_gpu
from kernrec.model.baselines.bound import features_of, power_base
from kernrec.model.baselines.compact_trees import Trees
from kernrec.model.baselines.recorded_set import OTHER, log_sizes
from kernrec.model.learn.conformal import Extent, Interval, calibrate
from kernrec.training.scores import median_of_log_errors
from library_training import trees as forests
from library_training.table import FOLDS, Recording, Table

Array = np.ndarray

_FLOORS = np.geomspace(5e-6, 1e-3, 100)
_CARRIED_ROWS = 3000
"""Maximum number of rows per GPU for training and evaluating trees for other GPUs."""
_RATIOS = np.geomspace(0.5, 4.0, 50)
_FIELDS = "name case alike_width dtypes layouts alike local kinds multiples origin"
"""Fields of a recorded set that its entry in the model card contains unchanged."""


def train_set(recording: Recording, folds: int = FOLDS) -> tuple[dict[str, Any], dict[str, Trees]]:
    """Train all trees of one recorded set. Return (the set's entry in the model card, the trees keyed by name). To
    calibrate intervals, hold out problems in `folds` rounds: a fifth of the problems each."""
    table, recorded, trees = Table.of(recording), recording.recorded, dict[str, Trees]()
    heads: dict[str, dict[str, Any]] = {quantity: {} for quantity in table.matrix}
    named: tuple[int, int] | None = None
    for quantity, of_quantity in heads.items():
        together = np.full(len(recording), np.nan)
        for gpu in table.gpus(quantity):
            left_out = forests.left_out_errors(table, quantity, gpu, folds)
            together = np.where(np.isfinite(left_out), left_out, together)
            head, own = _of_gpu(table, quantity, gpu, left_out)
            of_quantity[gpu], trees[head["trees"]] = head | {"folds left out": folds}, own
        if quantity == "latency":
            named = forests.fastest_named(table, together)
        _add_any_heads(table if quantity == "power" else _sustained(recording), quantity, of_quantity, trees)
    dims = {name: recording.dims[name] for name in features_of(recorded.op).DIMS}
    working_sets = recorded.timing.working_sets if np.isfinite(recorded.timing.working_sets) else None
    alone: dict[str, Any] = {}
    if recorded.timing.alone:
        work_s, alone["floors"] = table.work_s, {}
        for gpu in table.gpus("latency"):
            rows = np.flatnonzero((recording.gpu == gpu) & np.isfinite(work_s))
            alone["floors"][gpu] = fitted_floor(recording.latency_s[rows], work_s[rows])
        alone["work"] = _plain(Extent.of(np.log2(work_s)[:, None]))
    powers = {gpu: vars(power_base(find_gpu(gpu))).values() for gpu in table.gpus("power")}
    bases = {gpu: [round(watts, 2) for watts in each] for gpu, each in powers.items()}
    entry = {
        **{name: getattr(recorded, name) for name in _FIELDS.split()},
        "stacks": recorded.backends,
        "timing": {"launch_clk": recorded.timing.launch_clk, "working_sets": working_sets},
        "sizes": {name: np.unique(recording.dims[name]).tolist() for name in recorded.grid},
        "extent": _plain(Extent.of(log_sizes(dims))),
        **alone,
        "heads": heads,
        "fastest stack named, and problems where two differ": named,
        **({"power_bases": bases} if bases and getattr(features_of(recorded.op), "PHYSICAL_POWER", False) else {}),
        "problems": len(np.unique(table.problem)),
        "left out, faster than the data sheet": table.impossible,
    }
    return entry, trees


def _add_any_heads(table: Table, quantity: str, heads: dict[str, Any], trees: dict[str, Trees]) -> None:
    head, own = _of_any(table, quantity)
    heads[OTHER], trees[head["trees"]] = head, own
    siblings = table
    if quantity == "latency" and getattr(features_of(table.recording.recorded.op), "SUSTAINED_SIBLINGS", False):
        siblings, head = _at_sustained_rate(table.recording), head | {"sustained": True}
    for arch, gpus in table.families(quantity).items():
        shared = set.intersection(*(set(table.recording.backend[table.carried(gpu, quantity)]) for gpu in gpus))
        if quantity == "power" or (len(gpus) > 1 and shared and siblings.recording.recorded.timing.sustained):
            of_arch, own = _of_arch(siblings, quantity, gpus, head)
            of_arch["trees"] = f"{table.recording.recorded.name}.{quantity}.{arch}"
            heads[arch], trees[of_arch["trees"]] = of_arch, own


def _of_gpu(table: Table, quantity: str, gpu: str, left_out: Array) -> tuple[dict[str, Any], Trees]:
    """Train the trees of a recorded GPU. Return (entry in the model card, trees)."""
    recording, recorded, rows = table.recording, table.recording.recorded, table.on(gpu, quantity)
    between = forests.between_errors(table, quantity, gpu) if quantity == "latency" else np.full(len(left_out), np.nan)
    if recorded.case == "product" and not recorded.grid:
        between = np.where(recording.dims["n"] % 8 | recording.dims["k"] % 8, left_out, np.nan)
    tested, on_grid = np.flatnonzero(np.isfinite(left_out)), np.flatnonzero(np.isfinite(between))
    own = calibrate(left_out[tested], table.problem[tested], "problem")
    other = calibrate(between[on_grid], table.problem[on_grid], "problem") if len(on_grid) else own
    by_backend = {
        backend: left_out[recording.backend == backend] for backend, gpus in recorded.backends.items() if gpu in gpus
    }
    head = _head(f"{recorded.name}.{quantity}.{gpu}", table.columns[quantity], own, other) | {
        "rows": len(rows),
        "median error, problems left out": _median(left_out),
        "90th percentile, problems left out": _p90(left_out),
        "by stack": {backend: _median(errors) for backend, errors in by_backend.items() if np.isfinite(errors).any()},
        "coverage, problems left out": round(forests.coverage(left_out, table.problem), 3),
        **({"median error, sizes left out": _median(between)} if len(on_grid) else {}),
    }
    return head, forests.boost_gpu(table, quantity, gpu, rows).compact()


def _of_any(table: Table, quantity: str) -> tuple[dict[str, Any], Trees]:
    """Train the trees for any unrecorded GPU. Return (entry in the model card, trees)."""
    families = table.families(quantity)
    errors, added = forests.gpu_left_out_errors(table, quantity, families), dict[str, float]()
    # If calls were timed one at a time, their times include the host's time, which `in_a_stream` has already removed.
    if quantity == "latency" and errors and not table.recording.recorded.timing.alone:
        delayed = forests.gpu_left_out_errors(table, quantity, families, add_overheads=True)
        if np.mean([*map(_median, delayed.values())]) < np.mean([*map(_median, errors.values())]):
            errors, added = delayed, forests.overheads_s(table, [gpu for gpus in families.values() for gpu in gpus])
    boosted = forests.boost_any(table.with_overheads(added), quantity, families)
    interval = forests.gpu_interval(errors, forests.arch_of)
    name, columns = f"{table.recording.recorded.name}.{quantity}.any", table.columns[quantity]
    bound = {gpu: table.target[quantity][table.carried(gpu, quantity)] for gpu in errors}
    head = _head(name, [columns[i] for i in boosted.columns], interval, interval) | {
        **({"sustained": True} if table.recording.recorded.timing.sustained else {}),
        **({"overheads_s": _rounded(added)} if added else {}),
        "share of the trees": boosted.share,
        "median error, card left out": {gpu: _median(error) for gpu, error in errors.items()},
        "90th percentile, card left out": {gpu: _p90(error) for gpu, error in errors.items()},
        "median error of the bound": {gpu: _median(error) for gpu, error in bound.items()},
        "coverage, card left out": forests.coverage_of_gpus(errors),
    }
    return head, boosted.compact()


def _of_arch(
    table: Table, quantity: str, gpus: Sequence[str], other: Mapping[str, Any]
) -> tuple[dict[str, Any], Trees]:
    """Train the trees for unrecorded GPUs of a recorded architecture. Return (entry in the model card, trees)."""
    added = forests.overheads_s(table, gpus) if "overheads_s" in other else {}
    boosted = forests.boost_shared(table.with_overheads(added), quantity, table.carried_by(gpus, quantity))
    head = {name: other[name] for name in ("columns", "recorded", "between", "sustained") if name in other}
    if quantity == "latency":
        errors = {}
        for gpu in gpus:
            others = [each for each in gpus if each != gpu]
            shifted = table.with_overheads(forests.overheads_s(table, others)) if added else table
            trees = forests.boost_shared(shifted, quantity, table.carried_by(others, quantity))
            errors[gpu] = trees.errors(shifted, quantity, table.carried(gpu, quantity))
        head |= {"overheads_s": _rounded(added)} if added else {}
        interval = vars(forests.gpu_interval(errors, str))
        head |= {"recorded": interval, "between": interval}
        head["median error, GPU held out"] = {gpu: _median(error) for gpu, error in errors.items()}
    return head, boosted.compact()


def _sustained(recording: Recording) -> Table:
    order = np.random.default_rng(0).permutation(len(recording))
    of_gpus = [order[recording.gpu[order] == gpu][:_CARRIED_ROWS] for gpu in sorted(set(recording.gpu.tolist()))]
    sample = recording.take(np.sort(np.concatenate(of_gpus)))
    sustained = getattr(features_of(recording.recorded.op), "SUSTAINED", False)
    return _at_sustained_rate(sample) if sustained else Table.of(sample)


def _at_sustained_rate(recording: Recording) -> Table:
    timing = replace(recording.recorded.timing, sustained=True)
    return Table.of(replace(recording, recorded=replace(recording.recorded, timing=timing)))


def fitted_floor(latency_s: Array, work_s: Array) -> tuple[float, float]:
    """Fit `floor + ratio * work` to times of calls (N,) and their work (N,), in seconds, by mean absolute logarithmic
    error. Return the floor and the ratio."""
    grid = itertools.product(_FLOORS.tolist(), _RATIOS.tolist())
    floor_s, ratio = min(grid, key=lambda pair: np.abs(np.log(latency_s / (pair[0] + pair[1] * work_s))).mean())
    return max(floor_s, float(latency_s.min())), ratio


def _plain(extent: Extent) -> dict[str, list[float]]:
    return {key: getattr(extent, key).tolist() for key in ("low", "high", "spread")}


def _head(name: str, columns: Sequence[str], recorded: Interval, between: Interval) -> dict[str, Any]:
    return {"trees": name, "columns": list(columns), "recorded": vars(recorded), "between": vars(between)}


def _rounded(overheads_s: Mapping[str, float]) -> dict[str, float]:
    return {backend: round(seconds, 8) for backend, seconds in overheads_s.items()}


def _median(error: Array) -> float:
    return round(median_of_log_errors(error), 4)


def _p90(error: Array) -> float:
    finite = error[np.isfinite(error)]
    return round(float(np.quantile(np.abs(np.expm1(-finite)), 0.9)), 4)
