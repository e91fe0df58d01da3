"""90 % intervals of energies and of ratios of two energies: how wide they have to be, and how much they cover.

    tools/evidence prior --sources FOLDER --json prior.json
    tools/evidence power --json power.json
    tools/evidence energy-intervals --cases prior.json --power power.json

Energy is power for a time, so its error has two parts: what a wrong time does to it (`energy at free` of the cases),
and the error of power for the recorded time, by coefficients that were fitted without the GPU. Few recordings have
both, so the parts are assumed to be independent, and a width is the quantile of their sum: kernels weigh the same in
each part, and to the fewer kernels of both one more is added that is off as before anything was recorded. Loads of a
recording differ more than configs of a kernel do, so the width of a ratio is on the wide side.

Then a kernel of either part is held out, and a GPU of both. Last are kernels whose energy was recorded itself.
"""

from math import sqrt
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from front import Table

from evidence.cases import Array, Cases, Files, read_cases
from evidence.splits import held_out
from evidence.widths import FEWEST, UNKNOWN, Errors, normal_share
from kernrec.model.learn.conformal import LEVEL
from kernrec.model.prior.spread import REGIMES, SPREADS
from kernrec.recommender.estimate.estimates import OWN

WHAT = {"energy": "energy", "ratio": "energy_ratio"}
"""Quantities and the fields of a shipped spread that hold their widths."""
_MOST, _HALVINGS = float(np.log(8.0)), 30
Power = Annotated[Path, typer.Option("--power", help="file that `tools/evidence power --json` wrote")]
Parts = tuple[Errors, Errors]
"""Errors of energy by a wrong time, and errors of power for the recorded time."""


def run(cases: Files, power: Power, locked: bool = False) -> None:
    """Print widths and coverage; locked: of predictions at the clock that a recording held."""
    rows, loads = read_cases(cases), read_cases([power])
    name = "predicted" if locked else "free"
    both = (Errors.of_cases(rows, rows.more[f"energy at {name}"]), _power_errors(loads))
    table, widths = Table("90 % intervals as factors: of an energy, and of the ratio of two configs"), _by_regime(both)
    for number, regime in enumerate(REGIMES):
        part, ships = both[0].take(both[0].regime == number), SPREADS[number]
        cells: dict[str, object] = {"regime": regime, "kernels": part.kernels, "rows": len(part.error)}
        cells |= {"widths of": "all regimes" if part.kernels < FEWEST else regime}
        cells |= {what: float(np.exp(widths[what][number])) for what in WHAT}
        table.row(cells | {"ship": f"{ships.energy:g}, {ships.energy_ratio:g}"})
    table = Table("\neach part by itself, as factors")
    for title, part in zip(("by a wrong time", "by power for the recorded time"), both, strict=True):
        cells = {"": title, "kernels": part.kernels, "GPUs": len(set(part.gpu.tolist())), "rows": len(part.error)}
        table.row(cells | {"energy": float(np.exp(part.time())), "ratio": float(np.exp(part.ratio()))})
    table = Table("\nheld out; share of its energies inside the widths of the others, and inside those that ship")
    for title, column, sides in (
        ("a kernel, by its times", "kernel", (rows,)), ("a kernel, by its power", "kernel", (loads,)),
        ("a GPU", "gpu", (rows, loads)),
    ):  # fmt: skip
        table.row({"held out": title} | _coverage(both, column, sides))
    recorded = rows.take(np.isfinite(rows.more["recorded_j"]))
    for kernel, mask in held_out(recorded, "kernel") if len(recorded) else ():
        own = recorded.take(mask)
        predicted_j = own.more["predicted_j" if locked else "free_j"]
        errors = Errors.of_cases(own, np.log(own.more["recorded_j"] / predicted_j))
        widths = _by_regime(_without(both, "kernel", kernel))
        inside = errors.inside(*widths.values())
        table = Table(f"\n{kernel}: its energy was recorded; inside the widths of other kernels")
        level = float(np.exp(np.median(errors.error)))
        table.row({"rows": len(own), "level": level} | {w: f"{s:.0%}" for w, s in zip(WHAT, inside, strict=True)})


def _power_errors(loads: Cases) -> Errors:
    return Errors(loads.kernel, loads.gpu, loads.problem, np.zeros(len(loads), dtype=int), loads.error)


def _without(both: Parts, column: str, name: str) -> Parts:
    first, second = (part.take(getattr(part, column) != name) for part in both)
    return first, second


def _by_regime(both: Parts) -> dict[str, Array]:
    """Half-widths of each quantity by regime, (R,)."""
    time, power = both
    widths = {}
    for what in WHAT:
        parts = (time.take(time.regime == number) for number in range(len(REGIMES)))
        overall = _width(what, time, power)
        widths[what] = np.array([_width(what, p, power) if p.kernels >= FEWEST else overall for p in parts])
    return widths


def _width(what: str, time: Errors, power: Errors) -> float:
    """The half-width of the sum of both parts that reaches the level."""
    sides = [_scores(part, what) for part in (time, power)]
    unknown, more = (
        UNKNOWN * (sqrt(2.0 * OWN) if what == "ratio" else 1.0),
        1.0 / (min(time.kernels, power.kernels) + 1),
    )
    low, high = 0.0, _MOST
    for _ in range(_HALVINGS):
        middle = 0.5 * (low + high)
        inside, weight = _inside(sides, middle)
        beyond = float(normal_share(np.array([middle]), unknown)[0])
        reached = (1.0 - more) * inside / weight + more * beyond if weight > 0.0 else beyond
        low, high = (low, middle) if reached >= LEVEL else (middle, high)
    return high


def _scores(part: Errors, what: str) -> tuple[Array, Array]:
    """(Errors, or differences of two, ascending; their weights.)"""
    score, weight = part.single() if what == "energy" else part.pairs()
    order = np.argsort(score, kind="stable")
    return score[order], weight[order]


def _inside(sides: list[tuple[Array, Array]], width: float) -> tuple[float, float]:
    """(Weight of the sums of a score of either side within a width, weight of all sums.)"""
    (first, weight), (second, other) = sides
    below = np.concatenate([[0.0], np.cumsum(other)])
    reached = below[np.searchsorted(second, width - first, side="right")]
    missed = below[np.searchsorted(second, -width - first, side="left")]
    return float(weight @ (reached - missed)), float(weight.sum() * other.sum())


def _covered(what: str, both: Parts, widths: Array) -> float:
    """The share of the sums inside widths by regime; NaN without pairs."""
    time, power = both
    shares, weights = 0.0, 0.0
    for number, width in enumerate(widths.tolist()):
        part = time.take(time.regime == number)
        inside, weight = _inside([_scores(each, what) for each in (part, power)], width)
        if weight > 0.0:
            shares += len(part.error) / len(time.error) * inside / weight
            weights += len(part.error) / len(time.error)
    return shares / weights if weights else float("nan")


def _coverage(both: Parts, column: str, sides: tuple[Cases, ...]) -> dict[str, object]:
    """Mean widths without each value of a column, and what they cover of it."""
    names = dict.fromkeys(name for side in sides for name in side.column(column).tolist())
    shipped = {what: np.log([getattr(each, name) for each in SPREADS]) for what, name in WHAT.items()}
    factors: dict[str, list[float]] = {what: [] for what in WHAT}
    shares: dict[str, list[float]] = {name: [] for name in (*WHAT, *(f"{what}, shipped" for what in WHAT))}
    for name in names:
        parts = [(part, part.take(getattr(part, column) == name)) for part in both]
        own = tuple(only if len(only.error) else part for part, only in parts)
        for what, width in _by_regime(_without(both, column, name)).items():
            factors[what].append(float(width.mean()))
            shares[what].append(_covered(what, (own[0], own[1]), width))
            shares[f"{what}, shipped"].append(_covered(what, (own[0], own[1]), shipped[what]))
    cells: dict[str, object] = {"groups": len(names)}
    cells |= {f"{what} x": float(np.exp(np.mean(each))) for what, each in factors.items()}
    cells |= {way: f"{np.nanmean(each):.1%}" for way, each in shares.items()}
    return cells | {f"least {what}": f"{np.nanmin(shares[what]):.0%}" for what in WHAT}
