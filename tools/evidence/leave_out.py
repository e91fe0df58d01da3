"""The prior corrected by a model of all kernels, and fitted again: kernels and cards left out.

    tools/evidence prior --sources FOLDER --json prior.json
    tools/evidence leave-out --errors prior.json [--errors another.json]

**A model of all kernels** learns log(recorded / predicted) from the errors of `prior`; its features are the prior's own
terms over its time, what bounds a launch, and how full the card is. Each kernel weighs the same, and of it each card.
Printed are means over kernels, and in a kernel over cards: rank and first choice among the configs of a problem, and
the median error. `half` adds half of the correction.

**Constants fitted again** (`tools/evidence prior --leave-out`): most of the prior's constants are published figures,
and no fit moves them. Those of `CONSTANTS` were fitted to recordings or assumed. Here they are fitted again, on a grid
around their values, to all spaces but those of one kernel (then: of one card), by the mean over spaces of the median
error; and the spaces left out are predicted with what comes out. The difference is what a figure owes to having been
seen.
"""

import importlib
import itertools
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import numpy as np
from front import Table

from kernrec.errors import UsageError
from kernrec.model.prior.spread import REGIMES
from kernrec.training import scores
from kernrec.util import compiled

from .intervals import Errors, read_errors
from .profiled import Sample

Array = np.ndarray
MODULES = tuple(importlib.import_module(f"kernrec.model.prior.{name}") for name in ("core", "demand", "launch_time"))
CONSTANTS: Mapping[str, tuple[float, ...]] = {
    "ISSUE_PER_CLK": (4 * 0.8, 4 * 0.95),
    "FLOATS_PER_CLK": (4 * 0.55, 4 * 0.67, 4 * 0.8),
    "START_CLK": (100.0, 300.0, 900.0),
    "BARRIER_CLK": (22.0, 44.0),
}
"""Constants of `MODULES` -> their values on the grid; those of the prior are among them."""


@contextmanager
def constants(values: Mapping[str, float]) -> Iterator[None]:
    """The prior with other constants; its core runs as Python, for a compiled one keeps its own."""
    with ExitStack() as stack:
        stack.enter_context(patch.dict(os.environ, {compiled.CHOICE: "python"}))
        stack.callback(compiled.core.cache_clear)
        compiled.core.cache_clear()
        for (name, value), module in itertools.product(values.items(), MODULES):
            if hasattr(module, name):
                stack.enter_context(patch.object(module, name, value))
        yield


def left_out(samples: Sequence[Sample]) -> None:
    """Print each space with the prior's constants, then with those fitted without it."""
    grid = [dict(zip(CONSTANTS, values, strict=True)) for values in itertools.product(*CONSTANTS.values())]
    errors, ranks = (np.zeros((len(grid), len(samples))) for _ in range(2))
    for row, values in enumerate(grid):
        with constants(values):
            for column, sample in enumerate(samples):
                measured, predicted = sample.times()
                errors[row, column] = scores.median_error(measured, predicted)
                ranks[row, column] = scores.rank_correlation(predicted, measured)
    own = grid.index({name: _current(name) for name in CONSTANTS})
    names = ", ".join(CONSTANTS)
    table = Table(f"\nleft out: {names} fitted again ({len(grid)} combinations) without the kernel, without the card")
    picked: dict[str, set[int]] = {"kernel": set(), "card": set()}
    for column, sample in enumerate(samples):
        figures = {"as it is": own}
        for kind in picked:
            others = [
                i
                for i, other in enumerate(samples)
                if (sample.set != other.set if kind == "kernel" else sample.gpu.name != other.gpu.name)
            ]
            figures[f"no {kind}"] = int(errors[:, others].mean(axis=1).argmin()) if others else own
            picked[kind].add(figures[f"no {kind}"])
        cells: dict[str, object] = {"set": sample.set, "card": sample.card}
        for title, i in figures.items():
            cells |= {f"rank {title}": float(ranks[i, column]), f"error {title}": f"{errors[i, column]:.1%}"}
        table.row(cells)
    for kind, rows in picked.items():
        fits = "; ".join(", ".join(f"{v:.4g}" for v in grid[row].values()) for row in sorted(rows))
        print(f"constants without a {kind}: {fits}")


def _current(name: str) -> float:
    return next(float(getattr(module, name)) for module in MODULES if hasattr(module, name))


FEWEST = 5
"""Configs of a problem that are put in an order."""


def run(errors: Errors) -> None:
    """Print the prior beside its corrections by models that did not see the kernel, or the card."""
    entries = read_errors(errors)
    if "shares" not in entries[0]:
        raise UsageError(f"{errors[0]} has no shares; run `tools/evidence prior --json` again")
    names = {
        name: np.array([str(entry[name]) for entry in entries]) for name in ("kernel", "card", "problem", "regime")
    }
    bound = [names["regime"] == regime for regime in REGIMES]
    features = np.column_stack([np.array([entry["shares"] for entry in entries], dtype=np.float64), *bound])
    residual = np.array([float(str(entry["error"])) for entry in entries])
    predicted = np.array([float(str(entry["predicted_s"])) for entry in entries])
    weight = _weights(names["kernel"], names["card"])
    for kind in ("kernel", "card"):
        table = Table(f"\na {kind} left out: {len(set(names['kernel'].tolist()))} kernels, {len(entries)} rows")
        table.row({"": "prior"} | _scores(names, residual, predicted, np.zeros(len(entries))))
        for name, model in _models().items():
            correction = np.empty(len(entries))
            for part in set(names[kind].tolist()):
                out = names[kind] == part
                fitted = model()
                fitted.fit(features[~out], residual[~out], **{_weight_name(fitted): weight[~out]})
                correction[out] = fitted.predict(features[out])
            for share, title in ((1.0, name), (0.5, f"{name}, half")):
                table.row({"": title} | _scores(names, residual, predicted, share * correction))


def _models() -> dict[str, Callable[[], Any]]:
    from sklearn.ensemble import ExtraTreesRegressor
    from sklearn.linear_model import Ridge
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler
    from xgboost import XGBRegressor

    # Few trees on binned features; hundreds that are grown exactly take a quarter of an hour.
    boosted = {"n_estimators": 60, "max_depth": 4, "learning_rate": 0.1, "subsample": 0.8, "min_child_weight": 5}
    return {
        "ridge": lambda: make_pipeline(StandardScaler(), Ridge(alpha=1.0)),
        "extremely randomized trees": lambda: ExtraTreesRegressor(200, min_samples_leaf=5, random_state=0),
        "boosted trees": lambda: XGBRegressor(**boosted, tree_method="hist", max_bin=64, n_jobs=1, random_state=0),
    }


def _weight_name(model: Any) -> str:
    return "ridge__sample_weight" if hasattr(model, "steps") else "sample_weight"


def _weights(kernel: Array, card: Array) -> Array:
    """Each kernel weighs the same, and of it each card; 1 in the mean."""
    weight = np.empty(len(kernel))
    for name in set(kernel.tolist()):
        of_kernel = kernel == name
        cards, place, counts = np.unique(card[of_kernel], return_inverse=True, return_counts=True)
        weight[of_kernel] = 1.0 / (len(cards) * counts[place])
    return np.asarray(weight / weight.mean())


def _scores(names: Mapping[str, Array], residual: Array, predicted: Array, correction: Array) -> dict[str, object]:
    """Rank, first choice and median error: means over kernels of means over their cards."""
    measured, corrected = predicted * np.exp(residual), predicted * np.exp(correction)
    ranks: list[float] = []
    firsts: list[float] = []
    errors: list[float] = []
    for kernel in dict.fromkeys(names["kernel"].tolist()):
        by_card: list[list[float]] = [[], [], []]
        for card in dict.fromkeys(names["card"][names["kernel"] == kernel].tolist()):
            rows = np.flatnonzero((names["kernel"] == kernel) & (names["card"] == card))
            by_card[2].append(scores.median_error(measured[rows], corrected[rows]))
            problems = names["problem"][rows]
            groups = [rows[problems == problem] for problem in dict.fromkeys(problems.tolist())]
            if groups := [group for group in groups if len(group) >= FEWEST]:
                of_groups = [
                    (
                        scores.rank_correlation(corrected[group], measured[group]),
                        scores.efficiency_at(measured[group], scores.order_of(corrected[group]), 1),
                    )
                    for group in groups
                ]
                for column, values in zip(by_card, zip(*of_groups, strict=True), strict=False):
                    column.append(float(np.nanmean(values)))
        for means, column in zip((ranks, firsts, errors), by_card, strict=True):
            means += [float(np.mean(column))] if column else []
    cells: dict[str, object] = {"rank": f"{np.mean(ranks):.3f}", "first": f"{np.mean(firsts):.3f}"}
    return cells | {"error": f"{np.mean(errors):.1%}", "kernels": len(ranks)}
