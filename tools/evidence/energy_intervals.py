"""The 90 % intervals of the prior's energies: how wide they have to be, and what they cover.

    tools/evidence prior --sources FOLDER --json prior.json
    tools/evidence power --json power.json
    tools/evidence energy-intervals --errors prior.json --power power.json

Energy is power for a time, so its error has two parts. A wrong time makes energy wrong by less than itself: the energy
of what is computed stays, and what is drawn whatever runs is drawn for longer or shorter; at a power limit all of it.
That part follows from recorded times (`energy by free` of the file of errors). The other is that of power for the
recorded time, by coefficients that were fitted without the card. Few recordings have both a time and an energy of a
kernel that can be analyzed, so the two are taken to be independent, and the width is the quantile of their sum: kernels
weigh the same in each, and of them cards, and to the fewer of both kernels one more is added that errs as before
anything was recorded, by `INTERVAL`. The same of the ratio of two configs, of pairs of a kernel on a problem and card,
and of pairs of loads at one clock (loads of a recording differ more than configs of a kernel do, so this errs on the
wide side).

Then a kernel is left out, of either file, and a card of both; the widths of the others are held against it. Last are
kernels whose energy was recorded itself (`joules, free`): with the widths of the other kernels.
"""

import json
from collections.abc import Iterator
from math import sqrt
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from front import Table

from kernrec.errors import UsageError
from kernrec.model.learn.conformal import LEVEL
from kernrec.model.prior.spread import REGIMES, SPREADS
from kernrec.recommender.estimate.estimates import OWN

from .intervals import FEWEST, UNKNOWN, Array, Errors, Rows, normal_share, read_errors

_STEPS = 30
"""Halvings of the range in which a width is searched."""
_MOST = np.log(8.0)
Power = Annotated[Path, typer.Option("--power", help="what `tools/evidence power --json` wrote")]


def run(errors: Errors, power: Power, locked: bool = False) -> None:
    """Print widths and coverage; locked: of predictions at the clock that a recording held, where it is known."""
    entries, clock = read_errors(errors), "error" if locked else "free"
    both = TwoParts(Rows.of(entries, f"energy by {clock}"), power_rows(power))
    table = Table("90 % intervals of energies as factors: of an energy, and of the ratio of two configs")
    energy, ratio = both.by_regime("energy"), both.by_regime("ratio")
    for number, name in enumerate(REGIMES):
        part, ships = both.time.part(both.time.regime == number), SPREADS[number]
        cells: dict[str, object] = {"regime": name, "kernels": part.kernels, "rows": len(part.error)}
        cells |= {"widths of": "all regimes" if part.kernels < FEWEST else name}
        cells |= {"energy": float(np.exp(energy[number])), "ratio": float(np.exp(ratio[number]))}
        table.row(cells | {"ship": f"{ships.energy:g}, {ships.energy_ratio:g}"})
    alone = {"by a wrong time alone": both.time, "by power alone, for the recorded time": both.power}
    table = Table("\nthe parts alone, as factors")
    for title, rows in alone.items():
        cells = {"": title, "kernels": rows.kernels, "cards": len(set(rows.card.tolist())), "rows": len(rows.error)}
        table.row(cells | {"energy": float(np.exp(rows.time())), "ratio": float(np.exp(rows.ratio()))})
    table = Table("\nleft out; share of its energies inside the widths of the others, and inside those that ship")
    for kind in ("kernel", "card"):
        for cells in coverage(both, kind):
            table.row(cells)
    _recorded(both, [entry for entry in entries if np.isfinite(_joules(entry, clock))], clock)


class TwoParts:
    """Errors of energy by a wrong time, and errors of power for a recorded time; their sum is an energy's error."""

    def __init__(self, time: Rows, power: Rows) -> None:
        self.time, self.power = time, power

    def without(self, kind: str, name: str) -> "TwoParts":
        """All but a kernel, or a card."""
        return TwoParts(*(rows.part(getattr(rows, kind) != name) for rows in (self.time, self.power)))

    def only(self, kind: str, name: str) -> "TwoParts":
        """A kernel or a card; of a part that does not have it, all."""
        parts = [(rows, rows.part(getattr(rows, kind) == name)) for rows in (self.time, self.power)]
        return TwoParts(*(own if len(own.error) else rows for rows, own in parts))

    def by_regime(self, what: str) -> Array:
        """A width for each regime; that of all where too few kernels were recorded in it."""
        parts = (self.time.part(self.time.regime == number) for number in range(len(REGIMES)))
        of_all = self.width(what, self.time)
        return np.array([self.width(what, part) if part.kernels >= FEWEST else of_all for part in parts])

    def width(self, what: str, time: Rows) -> float:
        """The logarithmic half-width of an `energy`, or of a `ratio` of two, that reaches the level."""
        sides = [_scores(rows, what) for rows in (time, self.power)]
        unknown = UNKNOWN * (sqrt(2.0 * OWN) if what == "ratio" else 1.0)
        more = 1.0 / (min(time.kernels, self.power.kernels) + 1)
        low, high = 0.0, float(_MOST)
        for _ in range(_STEPS):
            middle = 0.5 * (low + high)
            inside, weight = _inside(sides, middle)
            beyond = float(normal_share(np.array([middle]), unknown)[0])
            reached = (1.0 - more) * inside / weight + more * beyond if weight > 0.0 else beyond
            low, high = (low, middle) if reached >= LEVEL else (middle, high)
        return high

    def covered(self, what: str, widths: Array) -> float:
        """The share of the sums inside widths by regime; NaN without pairs."""
        shares, weights = 0.0, 0.0
        for number, width in enumerate(widths.tolist()):
            part = self.time.part(self.time.regime == number)
            inside, weight = _inside([_scores(rows, what) for rows in (part, self.power)], width)
            share = len(part.error) / len(self.time.error)
            if weight > 0.0:
                shares, weights = shares + share * inside / weight, weights + share
        return shares / weights if weights else float("nan")


def _scores(rows: Rows, what: str) -> tuple[Array, Array]:
    """(errors, or differences of two, ascending; their weights)."""
    scores, weight = rows.scores() if what == "energy" else rows.differences()
    order = np.argsort(scores, kind="stable")
    return scores[order], weight[order]


def _inside(sides: list[tuple[Array, Array]], width: float) -> tuple[float, float]:
    """(weight of the sums of a score of either side within a width, weight of all of them)."""
    (first, of_first), (second, of_second) = sides
    below = np.concatenate([[0.0], np.cumsum(of_second)])
    reached = below[np.searchsorted(second, width - first, side="right")]
    missed = below[np.searchsorted(second, -width - first, side="left")]
    return float(of_first @ (reached - missed)), float(of_first.sum() * of_second.sum())


def coverage(both: TwoParts, kind: str) -> Iterator[dict[str, object]]:
    """Cells of tables: widths without a kernel, of either part, or without a card, and what they cover of it."""
    ships = {
        what: np.log([getattr(spread, name) for spread in SPREADS])
        for what, name in (("energy", "energy"), ("ratio", "energy_ratio"))
    }
    for side in (both.time, both.power) if kind == "kernel" else (None,):
        names = side if side is not None else both.power
        cards = [*both.time.card.tolist(), *both.power.card.tolist()]
        groups = dict.fromkeys(names.kernel.tolist() if kind == "kernel" else cards)
        inside: dict[str, list[float]] = {name: [] for name in ("energy", "ratio", "energy, shipped", "ratio, shipped")}
        widths = []
        for name in groups:
            others, own = both.without(kind, name), both.only(kind, name)
            for what, shipped in ships.items():
                width = others.by_regime(what)
                widths.append(float(width.mean()))
                inside[what].append(own.covered(what, width))
                inside[f"{what}, shipped"].append(own.covered(what, shipped))
        part = {id(both.time): ", by its times", id(both.power): ", by its power"}.get(id(side), "")
        cells: dict[str, object] = {"left out": f"a {kind}{part}", "groups": len(groups)}
        cells |= {f"{what} x": float(np.exp(np.mean(widths[i::2]))) for i, what in enumerate(ships)}
        cells |= {way: f"{np.nanmean(shares):.1%}" for way, shares in inside.items()}
        yield cells | {f"least {way}": f"{np.nanmin(inside[way]):.0%}" for way in ("energy", "ratio")}


def _recorded(both: TwoParts, entries: list[dict[str, object]], clock: str) -> None:
    """Print what the widths of other kernels cover of energies that were recorded themselves."""
    if not entries:
        return
    table = Table("\nkernels whose energy was recorded, left out")
    direct = Rows.of(entries, f"joules, {clock}")
    for name in dict.fromkeys(direct.kernel.tolist()):
        others, own = both.without("kernel", name), direct.part(direct.kernel == name)
        widths = [others.by_regime(what) for what in ("energy", "ratio")]
        cells = {"kernel": name, "rows": len(own.error), "level": float(np.exp(np.median(own.error)))}
        table.row(cells | dict(zip(("energy", "ratio"), own.inside(*widths), strict=True)))


def _joules(entry: dict[str, object], clock: str) -> float:
    return float(str(entry.get(f"joules, {clock}", "nan")))


def power_rows(path: Path) -> Rows:
    """The errors of power of a file; `UsageError` where it has none."""
    if not path.is_file():
        raise UsageError(f"there is no file {path}; `tools/evidence power --json` writes one")
    entries = json.loads(path.read_text(encoding="utf-8")).get("power")
    if not entries:
        raise UsageError(f"{path} has no errors of power; `tools/evidence power --json` writes them")
    return Rows.of([entry | {"regime": REGIMES[0]} for entry in entries], "error")
