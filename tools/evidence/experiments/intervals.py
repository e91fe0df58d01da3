"""Compute widths and coverage of 90 % intervals of times, energies, and their ratios between two configs.

    tools/evidence analytical --sources FOLDER --json cases.json
    tools/evidence power --json power.json
    tools/evidence intervals --cases cases.json [--power power.json]

Widths are quantiles of errors at the recorded clock or, with `--free`, the clock that a GPU should hold. The error of
an energy has two independent parts. The first part is the effect of the error in time. The second part is the error of
the power for the recorded time, with coefficients that were fitted without the GPU. To test the widths, each kernel and
each GPU is held out. `kernrec.model.analytical.spread.SPREAD` contains widths that this tool printed.

All configs of a kernel on a GPU share a part of their error. So all kernels, and all GPUs of a kernel, have equal
weights. Hierarchical conformal prediction (`kernrec.model.learn.conformal`) adds an assumed kernel to the recorded
kernels. The 90 % interval of the assumed kernel is `INTERVAL`, and a fraction `OWN` of the variance differs by config.
All bottlenecks share a width.
"""

from collections.abc import Sequence
from math import erf, log, sqrt
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from front import Table

from evidence.cases import Array, Cases, Files, read_cases
from kernrec.model.analytical.spread import INTERVAL, SPREAD
from kernrec.model.learn.conformal import LEVEL
from kernrec.recommender.estimate.costs import OWN
from kernrec.util.normal import DEVIATIONS

_UNKNOWN = log(INTERVAL) / DEVIATIONS
"""Standard deviation of the logarithmic error that is assumed for a kernel without recordings."""
_MOST, _HALVINGS = float(np.log(8.0)), 40


Parts = Sequence[Cases]
"""Cases with independent parts of an error."""


def _scores(cases: Cases, pairs: bool) -> tuple[Array, Array]:
    """Return (errors in ascending order, weights). With `pairs`, the errors are differences between two configs."""
    score, weight = _pairs(cases) if pairs else (cases.error, _weights(cases, np.ones(len(cases), dtype=bool)))
    order = np.argsort(score, kind="stable")
    return score[order], weight[order]


def _pairs(cases: Cases) -> tuple[Array, Array]:
    groups = [group for group in cases.rows("kernel", "gpu", "problem").values() if len(group) > 1]
    counted = np.isin(np.arange(len(cases)), np.concatenate([[], *groups]))
    error, weight = cases.error, _weights(cases, counted)
    apart, weights = [np.zeros(0)], [np.zeros(0)]
    for group in groups:
        first, second = np.triu_indices(len(group), 1)
        apart.append(error[group][first] - error[group][second])
        weights.append(np.full(len(first), weight[group].sum() / len(first)))
    return np.concatenate(apart), np.concatenate(weights)


def _weights(cases: Cases, counted: Array) -> Array:
    """Return the weight of each row, (N,). All kernels, all GPUs of a kernel and all rows of a GPU have equal weights.
    Rows outside the mask `counted` have weight 0."""
    weight = np.zeros(len(cases))
    for kernel in set(cases["kernel"].tolist()):
        rows = (cases["kernel"] == kernel) & counted
        _, place, counts = np.unique(cases["gpu"][rows].astype(str), return_inverse=True, return_counts=True)
        weight[rows] = 1.0 / (len(counts) * counts[place]) if len(counts) else 0.0
    return weight


def covered(parts: Parts, pairs: bool, width: float) -> float:
    """Return the fraction of errors inside a logarithmic half-width, or NaN if there are no errors. If `pairs`, count
    the differences of two errors."""
    inside, weight = _inside([_scores(part, pairs) for part in parts], width)
    return inside / weight if weight > 0.0 else float("nan")


def half_width(parts: Parts, pairs: bool) -> float:
    """Return the logarithmic half-width of the 90 % interval of errors, or of differences between errors if `pairs`."""
    sides = [_scores(part, pairs) for part in parts]
    more = 1.0 / (min(len(set(part["kernel"].tolist())) for part in parts) + 1)
    unknown = _UNKNOWN * (sqrt(2.0 * OWN) if pairs else 1.0)
    low, high = 0.0, _MOST
    for _ in range(_HALVINGS):
        middle = 0.5 * (low + high)
        inside, weight = _inside(sides, middle)
        beyond = erf(middle / (unknown * sqrt(2.0)))
        reached = (1.0 - more) * inside / weight + more * beyond if weight > 0.0 else beyond
        low, high = (low, middle) if reached >= LEVEL - 1e-12 else (middle, high)
    return high


def _inside(sides: Sequence[tuple[Array, Array]], width: float) -> tuple[float, float]:
    """Return (weight of the errors within a width, weight of all errors).

    With two `sides`, each error of the first side is added to each error of the second side."""
    (first, weight), (second, other) = sides if len(sides) > 1 else (*sides, (np.zeros(1), np.ones(1)))
    below = np.concatenate([[0.0], np.cumsum(other)])
    reached = below[np.searchsorted(second, width - first, side="right")]
    missed = below[np.searchsorted(second, -width - first, side="left")]
    return float(weight @ (reached - missed)), float(weight.sum() * other.sum())


def run(
    cases: Files, power: Annotated[Path | None, typer.Option(help="file that `power --json` wrote")] = None,
    free: bool = False,
) -> None:  # fmt: skip
    rows, clock = read_cases(cases), "free" if free else "predicted"
    time = rows if not free else _with_error(rows, np.log(rows["recorded"] / rows["free_s"]))
    quantities: dict[str, tuple[Parts, bool]] = {"time": ([time], False), "ratio": ([time], True)}
    loads = [] if power is None else [read_cases([power])]
    if loads:
        both = [_with_error(rows, rows[f"energy at {clock}"]), loads[0]]
        quantities |= {"energy": (both, False), "energy_ratio": (both, True)}
    shipped = {what: float(np.log(getattr(SPREAD, what))) for what in quantities}
    table = Table("half-widths of 90 % intervals as factors")
    for what, quantity in quantities.items():
        width = float(np.exp(half_width(*quantity)))
        table.row({"of": what, "rows": len(time), "width": width, "ships": f"{np.exp(shipped[what]):g}"})
    table = Table("\nrecordings; share of their rows, and of their pairs, inside the widths that ship")
    for names, part in time.parts("kernel", "gpu"):
        inside = {what: covered([part], pairs, shipped[what]) for what, pairs in (("time", False), ("ratio", True))}
        cells = names | {"rows": len(part), "level": float(np.median(part.error))}
        table.row(cells | {what: f"{share:.0%}" for what, share in inside.items()})
    table = Table("\nheld out; share inside the widths of the others, inside those that ship, and the least share")
    for what, quantity in quantities.items():
        sides = {"a kernel": ("kernel", [rows]), "a GPU": ("gpu", [rows])}
        if "energy" in what:
            sides = {"a kernel, by its times": ("kernel", [rows]), "a kernel, by its power": ("kernel", loads)}
            sides["a GPU"] = "gpu", [rows, *loads]
        for title, (column, some) in sides.items():
            table.row({"held out": title, "of": what} | _coverage(quantity, column, some, shipped[what]))
    recorded = rows.take(np.isfinite(rows["recorded_j"]) if loads else np.zeros(len(rows), dtype=bool))
    for (kernel,), mask in recorded.rows("kernel").items():
        own = recorded.take(mask)
        direct = _with_error(own, np.log(own["recorded_j"] / own["free_j" if free else "predicted_j"]))
        table = Table(f"\n{kernel}: its energy was recorded; inside the widths of other kernels")
        cells = {"rows": len(own), "level": float(np.exp(np.median(direct.error)))}
        for what in ("energy", "energy_ratio"):
            parts, pairs = quantities[what]
            width = half_width(_without(parts, "kernel", str(kernel)), pairs)
            cells[what] = f"{covered([direct], pairs, width):.0%}"
        table.row(cells)


def _with_error(cases: Cases, error: np.ndarray) -> Cases:
    return Cases({**cases.columns, "error": error})


def _without(parts: Parts, column: str, name: str) -> Parts:
    return [part.take(_names(part, column) != name) for part in parts]


def _names(part: Cases, column: str) -> np.ndarray:
    names = part[column]  # A label of the recording follows the name of a GPU.
    return np.array([name.split()[0] for name in names]) if column == "gpu" else names


def _coverage(quantity: tuple[Parts, bool], column: str, sides: list[Cases], shipped: float) -> dict[str, object]:
    """Hold out each value of a column. Return table cells: mean width from the other values, and fraction of the errors
    of the held-out value inside this width."""
    parts, pairs = quantity
    names = dict.fromkeys(name for side in sides for name in _names(side, column).tolist())
    factors, shares = [], []
    for name in names:
        some = [(part, part.take(_names(part, column) == name)) for part in parts]
        own = [only if len(only) else part for part, only in some]
        width = half_width(_without(parts, column, name), pairs)
        factors.append(width)
        shares.append((covered(own, pairs, width), covered(own, pairs, shipped)))
    (mean, ships), least = np.nanmean(shares, axis=0), np.nanmin(shares, axis=0)[0]
    cells: dict[str, object] = {"groups": len(names), "factor": float(np.exp(np.mean(factors)))}
    return cells | {"inside": f"{mean:.1%}", "shipped": f"{ships:.1%}", "least": f"{least:.0%}"}
