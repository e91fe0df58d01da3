"""The prior's 90 % intervals: how wide they have to be by what bounds a launch, and what they cover.

    tools/evidence prior --sources FOLDER --json prior.json
    tools/evidence intervals --errors prior.json [--errors another.json]

The error of a prediction, log(recorded / predicted), has a part common to a kernel on a card (its clock, its memory,
its compiler) and a part of the config's own: `time` is the interval of a time, `ratio` that of the ratio of two configs
of a kernel on a problem and card, to which own parts alone add. Both are quantiles of the errors of `prior`, each
kernel with the same weight, and of it each card, with one more kernel added that errs as before anything was recorded,
by `INTERVAL`, of it `OWN` by itself (hierarchical conformal prediction, as in `kernrec.model.learn.conformal`). A
regime with few kernels has the widths of all. The clock is the one that a card is taken to hold where nobody states
it; `--locked` takes the recorded one, where it is known. Then a kernel is left out with all its cards, and a card with
all its kernels, and the widths of the others are held against what was left out.
`kernrec.model.prior.spread.SPREADS` are widths printed here.
"""

import json
from collections.abc import Callable, Sequence
from math import erf, log, sqrt
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from front import Table

from kernrec.errors import UsageError
from kernrec.model.learn.conformal import LEVEL, groups_needed
from kernrec.model.prior.spread import INTERVAL, REGIMES, SPREADS
from kernrec.recommender.estimate.estimates import OWN
from kernrec.util.normal import DEVIATIONS

Array = np.ndarray
FEWEST = groups_needed(LEVEL)
"""Kernels that a regime needs for widths of its own; else it has those of all."""
UNKNOWN = log(INTERVAL) / DEVIATIONS
"""Standard deviation of the errors of a kernel of which nothing is recorded."""
Errors = Annotated[list[Path], typer.Option("--errors", help="what `tools/evidence prior --json` wrote")]


def run(errors: Errors, locked: bool = False) -> None:
    """Print widths and coverage; locked: of predictions at the clock that a recording held, where it is known."""
    rows = Rows.of(read_errors(errors), "error" if locked else "free")
    table = Table("90 % intervals as factors: of a time, and of the ratio of two configs")
    widths = rows.by_regime(Rows.time), rows.by_regime(Rows.ratio)
    for number, name in enumerate(REGIMES):
        part, ships = rows.part(rows.regime == number), SPREADS[number]
        few = part.kernels < FEWEST
        cells: dict[str, object] = {"regime": name, "kernels": part.kernels, "rows": len(part.error)}
        cells |= {"widths of": "all regimes" if few else name, "time": float(np.exp(widths[0][number]))}
        table.row(cells | {"ratio": float(np.exp(widths[1][number])), "ship": f"{ships.time:g}, {ships.ratio:g}"})
    table = Table("\nrecordings; share of their rows, and of their pairs, inside the widths that ship")
    for names in dict.fromkeys(zip(rows.kernel.tolist(), rows.card.tolist(), strict=True)):
        part = rows.part((rows.kernel == names[0]) & (rows.card == names[1]))
        cells = {"kernel": names[0], "card": names[1], "rows": len(part.error), "level": float(np.median(part.error))}
        table.row(cells | {way: f"{share:.0%}" for way, share in zip(("time", "ratio"), _shipped(part), strict=True)})
    table = Table("\nleft out; how many of its rows lie inside the widths of the others, and inside those that ship")
    for kind in ("kernel", "card"):
        table.row(coverage(rows, kind))


def read_errors(errors: Sequence[Path]) -> list[dict[str, object]]:
    """The errors of all files; `UsageError` where one has none."""
    entries: list[dict[str, object]] = []
    for path in errors:
        if not path.is_file():
            raise UsageError(f"there is no file {path}; `tools/evidence prior --json` writes one")
        document = json.loads(path.read_text(encoding="utf-8"))
        if not document.get("errors"):
            raise UsageError(f"{path} has no errors; `tools/evidence prior --json` writes them")
        entries += document["errors"]
    return entries


def coverage(rows: "Rows", kind: str) -> dict[str, object]:
    """Cells of a table: widths without a kernel, or without a card, and what they cover of it; means over all."""
    names = getattr(rows, kind)
    inside: dict[str, list[float]] = {"time": [], "ratio": [], "time, shipped": [], "ratio, shipped": []}
    widths = []
    for name in dict.fromkeys(names.tolist()):
        others, these = rows.part(names != name), rows.part(names == name)
        time, ratio = others.by_regime(Rows.time), others.by_regime(Rows.ratio)
        widths.append([float(np.mean(width[these.regime])) for width in (time, ratio)])
        shares = *these.inside(time, ratio), *_shipped(these)
        for share, column in zip(shares, inside.values(), strict=True):
            column.append(share)
    cells: dict[str, object] = {"left out": f"a {kind}", "groups": len(widths)}
    cells |= dict(zip(("time x", "ratio x"), np.exp(np.mean(widths, axis=0)).tolist(), strict=True))
    cells |= {way: f"{np.nanmean(shares):.1%}" for way, shares in inside.items()}
    return cells | {f"least {way}": f"{np.nanmin(inside[way]):.0%}" for way in ("time", "ratio")}


def _shipped(rows: "Rows") -> tuple[float, float]:
    return rows.inside(*(np.log([getattr(each, name) for each in SPREADS]) for name in ("time", "ratio")))


class Rows:
    """N errors with their kernel, card, problem, and position of their regime; each (N,)."""

    def __init__(self, kernel: Array, card: Array, problem: Array, regime: Array, error: Array) -> None:
        self.kernel, self.card, self.problem, self.regime, self.error = kernel, card, problem, regime, error

    @classmethod
    def of(cls, entries: Sequence[dict[str, object]], error: str) -> "Rows":
        """The rows of a file of figures, with the errors of this name."""
        kernel, card, problem = (
            np.array([str(entry[name]) for entry in entries]) for name in ("kernel", "card", "problem")
        )
        regime = np.array([REGIMES.index(str(entry["regime"])) for entry in entries])
        return cls(kernel, card, problem, regime, np.array([float(str(entry[error])) for entry in entries]))

    def part(self, chosen: Array) -> "Rows":
        """Some of the rows."""
        columns = self.kernel, self.card, self.problem, self.regime, self.error
        return Rows(*(column[chosen] for column in columns))

    @property
    def kernels(self) -> int:
        """How many kernels there are."""
        return len(set(self.kernel.tolist()))

    def scores(self) -> tuple[Array, Array]:
        """(errors, their weights)."""
        return self.error, self._weight(np.ones(len(self.error)))

    def differences(self) -> tuple[Array, Array]:
        """(differences of two errors of a kernel on a problem and card, their weights)."""
        apart, paired, weights = [np.zeros(0)], np.zeros(len(self.error)), [np.zeros(0)]
        groups = [group for group in self._groups() if len(group) > 1]
        for group in groups:
            paired[group] = 1.0
            apart.append(_differences(self.error[group]))
        weight = self._weight(paired)
        for group in groups:
            pairs = len(group) * (len(group) - 1) // 2
            weights.append(np.full(pairs, weight[group].sum() / pairs))
        return np.concatenate(apart), np.concatenate(weights)

    def time(self) -> float:
        """The half-width that covers the errors."""
        return _quantile(*self.scores(), UNKNOWN)

    def ratio(self) -> float:
        """The half-width that covers the difference of two errors of a kernel on a problem and card."""
        apart, weight = self.differences()
        return _quantile(apart, weight, UNKNOWN * sqrt(2.0 * OWN)) if len(apart) else 0.0

    def pairs(self, own: Array) -> tuple[Array, Array]:
        """(absolute differences of two errors of a kernel on a problem and card, widths of these by rows' own ones)."""
        apart, widths = [np.zeros(0)], [np.zeros(0)]
        for group in self._groups():
            first, second = np.triu_indices(len(group), 1)
            apart.append(np.abs(_differences(self.error[group])))
            widths.append(np.hypot(own[group][first], own[group][second]))
        return np.concatenate(apart), np.concatenate(widths)

    def inside(self, time: Array, ratio: Array) -> tuple[float, float]:
        """Shares of the errors and of their pairs inside logarithmic half-widths by regime, (4,) each; NaN without
        pairs."""
        apart, own = self.pairs((ratio / sqrt(2.0))[self.regime])
        pairs = float(np.mean(apart <= own)) if len(apart) else float("nan")
        return float(np.mean(np.abs(self.error) <= time[self.regime])), pairs

    def by_regime(self, width: Callable[["Rows"], float]) -> Array:
        """A width for each regime; that of all where too few kernels were recorded in it."""
        parts = (self.part(self.regime == number) for number in range(len(REGIMES)))
        return np.array([width(part if part.kernels >= FEWEST else self) for part in parts])

    def _weight(self, counted: Array) -> Array:
        """Each kernel weighs the same, and of it each card, and of that each counted row; with one kernel more they
        make 1."""
        weight, kernels = np.zeros(len(self.error)), 0
        for kernel in set(self.kernel.tolist()):
            of_kernel = (self.kernel == kernel) & (counted > 0)
            cards, place, counts = np.unique(self.card[of_kernel], return_inverse=True, return_counts=True)
            if len(cards):
                kernels += 1
                weight[of_kernel] = 1.0 / (len(cards) * counts[place])
        return weight / (kernels + 1)

    def _groups(self) -> list[Array]:
        """Rows of each kernel on a problem and card."""
        keys = np.array(list(map("\n".join, zip(self.kernel, self.card, self.problem, strict=True))))
        _, number = np.unique(keys, return_inverse=True)
        order = np.argsort(number, kind="stable")
        return np.split(order, np.flatnonzero(np.diff(number[order])) + 1)


def _differences(errors: Array) -> Array:
    first, second = np.triu_indices(len(errors), 1)
    return np.asarray(errors[first] - errors[second])


def normal_share(width: Array, deviation: float) -> Array:
    """The share of normal errors of a standard deviation within half-widths."""
    return np.array([erf(value / (deviation * sqrt(2.0))) for value in width.tolist()])


def _quantile(error: Array, weight: Array, unknown: float) -> float:
    """The least half-width up to which the weight reaches the level; the greatest where it does not.

    The rest of the weights to 1 is that of a kernel with normal errors of the standard deviation `unknown`.
    """
    ascending = np.argsort(np.abs(error), kind="stable")
    width = np.abs(error)[ascending]
    reached = np.cumsum(weight[ascending]) + (1.0 - weight.sum()) * normal_share(width, unknown)
    return float(width[min(int(np.searchsorted(reached, LEVEL - 1e-12)), len(width) - 1)])
