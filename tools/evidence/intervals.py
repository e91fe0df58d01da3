"""The prior's 90 % intervals: how wide they have to be by what bounds a launch, and what they cover.

    tools/evidence prior --sources FOLDER --json prior.json
    tools/evidence intervals --errors prior.json

The error of a prediction, log(recorded / predicted), has a part common to a kernel on a card (its clock, its memory,
its compiler) and a part of the config's own: `whole` is the interval of a time, `own` that about the level of the
kernel on the card, and `ratio` that of the ratio of two configs. All are quantiles of the errors of `prior`, each
kernel with the same weight, and of it each card, with one more kernel added whose errors are the widest (hierarchical
conformal prediction: Dunn, Wasserman, Ramdas, JASA 2022). Then a kernel is left out with all its cards, and a card with
all its kernels, and the widths of the others are held against what was left out. The prior's own `INTERVAL` and `OWN`
are to be what is printed for all regimes together.
"""

import json
from collections.abc import Callable, Sequence
from math import log
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from front import Table

from kernrec.errors import UsageError
from kernrec.model.prior.launch_costs import NominalCosts
from kernrec.model.prior.launch_time import INTERVAL

Array = np.ndarray
LEVEL = 0.90
REGIMES = ("core", "DRAM", "launch", "power limit")
"""Bounds of a launch: the core's pipes, caches and latencies; DRAM; its start and end; the power limit."""
ALL = "all"
FEWEST = 12
"""Kernels that a regime needs for widths of its own; else it has those of all."""
Errors = Annotated[Path, typer.Option("--errors", help="what `tools/evidence prior --json` wrote")]


def regime(nominal: NominalCosts, capped: Array) -> Array:
    """Position in `REGIMES` of what bounds each of N launches.

    Args:
        nominal: their costs before any power limit, (N,).
        capped: whether the power limit lowers their clock, (N,).
    """
    core_s, dram_s, fixed_s = nominal.core_s, nominal.dram_s, nominal.fixed_s
    bound = np.where(fixed_s > np.maximum(core_s, dram_s), 2, np.where(dram_s > core_s, 1, 0))
    return np.where(capped, 3, bound)


def run(errors: Errors) -> None:
    """Print widths and coverage."""
    if not errors.is_file():
        raise UsageError(f"there is no file {errors}; `tools/evidence prior --json` writes one")
    document = json.loads(errors.read_text(encoding="utf-8"))
    if not document.get("errors"):
        raise UsageError(f"{errors} has no errors; `tools/evidence prior --json` writes them")
    rows = Rows.of(document["errors"])
    fitted = {name: rows.at(name) for name in (ALL, *REGIMES)}
    table = Table("90 % intervals as factors; whole: of a time, own: about the level of the kernel on the card")
    for name, part in fitted.items():
        cells: dict[str, object] = {"regime": name, "kernels": len(set(part.kernel)), "rows": len(part.error)}
        if len(part.error):
            cells |= {"whole": float(np.exp(part.whole())), "own": float(np.exp(part.own()))}
            cells |= {"ratio of two": float(np.exp(part.ratio())), "OWN": (part.own() / part.whole()) ** 2}
        table.row(cells)
    table = Table("\nleft out; how many of its rows lie inside the widths of the others, and inside those that ship")
    for kind in ("kernel", "card"):
        _coverage(rows, kind, table)


def _coverage(rows: "Rows", kind: str, table: Table) -> None:
    names = getattr(rows, kind)
    inside: dict[str, list[float]] = {"time": [], "ratio": [], "shipped": []}
    width = []
    for name in dict.fromkeys(names.tolist()):
        others, these = rows.part(names != name), rows.part(names == name)
        whole, ratio = others.by_regime(Rows.whole), others.ratio()
        width.append(float(np.mean(whole[these.regime])))
        inside["time"].append(float(np.mean(np.abs(these.error) <= whole[these.regime])))
        inside["shipped"].append(float(np.mean(np.abs(these.error) <= log(INTERVAL))))
        inside["ratio"].append(float(np.mean(these.pairs() <= ratio)))
    cells = {way: f"{np.mean(shares):.1%}" for way, shares in inside.items()}
    least = {f"least {way}": f"{np.min(shares):.0%}" for way, shares in inside.items()}
    table.row(
        {"left out": f"a {kind}", "groups": len(width), "factor": float(np.exp(np.mean(width))), **cells, **least}
    )


class Rows:
    """N errors with their kernel, card, and position of their regime; each (N,)."""

    def __init__(self, kernel: Array, card: Array, regime: Array, error: Array) -> None:
        self.kernel, self.card, self.regime, self.error = kernel, card, regime, error

    @classmethod
    def of(cls, entries: Sequence[dict[str, object]]) -> "Rows":
        """The rows of a file of figures."""
        kernel, card = (np.array([str(entry[name]) for entry in entries]) for name in ("kernel", "card"))
        regime = np.array([REGIMES.index(str(entry["regime"])) for entry in entries])
        return cls(kernel, card, regime, np.array([float(str(entry["error"])) for entry in entries]))

    def part(self, chosen: Array) -> "Rows":
        """Some of the rows."""
        return Rows(self.kernel[chosen], self.card[chosen], self.regime[chosen], self.error[chosen])

    def at(self, name: str) -> "Rows":
        """The rows of a regime, or all."""
        return self if name == ALL else self.part(self.regime == REGIMES.index(name))

    @property
    def weight(self) -> Array:
        """Each kernel weighs the same, and of it each card, and of that each row; with one kernel more they make 1."""
        kernels = set(self.kernel.tolist())
        weight = np.empty(len(self.error))
        for kernel in kernels:
            of_kernel = self.kernel == kernel
            cards, place, counts = np.unique(self.card[of_kernel], return_inverse=True, return_counts=True)
            weight[of_kernel] = 1.0 / (len(cards) * counts[place])
        return weight / (len(kernels) + 1)

    def centred(self) -> Array:
        """Errors about the median of their kernel on their card."""
        own = np.empty(len(self.error))
        for group in self._groups():
            own[group] = self.error[group] - np.median(self.error[group])
        return own

    def whole(self) -> float:
        """The half-width that covers the errors."""
        return _quantile(np.abs(self.error), self.weight)

    def own(self) -> float:
        """The half-width that covers them about their level."""
        return _quantile(np.abs(self.centred()), self.weight)

    def ratio(self) -> float:
        """The half-width that covers the difference of two errors of a kernel on a card."""
        differences, weights = [], []
        weight = self.weight
        for group in self._groups():
            if (of_group := np.abs(_differences(self.error[group]))).size:
                differences.append(of_group)
                weights.append(np.full(of_group.size, weight[group].sum() / of_group.size))
        return _quantile(np.concatenate(differences), np.concatenate(weights)) if differences else 0.0

    def pairs(self) -> Array:
        """The absolute differences of two errors of a kernel on a card."""
        parts = [np.abs(_differences(self.error[group])) for group in self._groups()]
        return np.concatenate([part for part in parts if part.size] or [np.zeros(1)])

    def by_regime(self, width: Callable[["Rows"], float]) -> Array:
        """A width for each regime; that of all where too few kernels were recorded in it."""
        parts = (self.at(name) for name in REGIMES)
        return np.array([width(part if len(set(part.kernel.tolist())) >= FEWEST else self) for part in parts])

    def _groups(self) -> list[Array]:
        names = np.char.add(np.char.add(self.kernel, " on "), self.card)
        return [np.flatnonzero(names == name) for name in dict.fromkeys(names.tolist())]


def _differences(errors: Array) -> Array:
    first, second = np.triu_indices(len(errors), 1)
    return np.asarray(errors[first] - errors[second])


def _quantile(score: Array, weight: Array) -> float:
    """The least score up to which the weight reaches the level; the greatest where it does not."""
    ascending = np.argsort(score, kind="stable")
    reached = np.cumsum(weight[ascending])
    place = int(np.searchsorted(reached, LEVEL - 1e-12))
    return float(score[ascending[min(place, len(score) - 1)]])
