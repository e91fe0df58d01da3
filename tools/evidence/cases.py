"""Compare recorded and predicted times. A loader creates `Cases`. `Cases.parts` or `held_out` splits them into parts.
`report` prints a table with a row per part. Metrics are functions from cases to the cells of a row."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from front import Table

from kernrec.errors import UsageError
from kernrec.training import scores

Array = np.ndarray
Files = Annotated[list[Path], typer.Option("--cases", help="files that `tools/evidence analytical --json` wrote")]


@dataclass(frozen=True)
class Cases:
    """Recorded and predicted times (or another quantity) of N launches.

    Cases have the columns `kernel`, `gpu`, `problem`, `recorded` and `predicted` (times in seconds), and further ones,
    such as the ends `low_s` and `high_s` of the 90 % interval.
    """

    columns: Mapping[str, Array]
    """Columns, (N,) each, keyed by name."""

    @classmethod
    def of(cls, **columns: Any) -> "Cases":
        """Create cases from columns, (N,) each or one value for all N cases."""
        arrays = [np.asarray(column, object if isinstance(column, str) else None) for column in columns.values()]
        return cls(dict(zip(columns, np.broadcast_arrays(*arrays), strict=True)))

    def __len__(self) -> int:
        return len(self["recorded"])

    def __getitem__(self, name: str) -> Array:
        return self.columns[name]

    @property
    def error(self) -> Array:
        """Logarithm of recorded time over predicted time, or the column `error`, (N,)."""
        return np.asarray(self.columns.get("error", np.log(self["recorded"] / self["predicted"])))

    def take(self, rows: Array) -> "Cases":
        """Return the cases of some rows, given by their indices or by a mask."""
        return Cases({name: column[rows] for name, column in self.columns.items()})

    def rows(self, *names: str) -> dict[tuple[object, ...], Array]:
        """Return the indices of cases, keyed by the values in the columns `names`, in order of appearance."""
        rows: dict[tuple[object, ...], list[int]] = {}
        for row, key in enumerate(zip(*(self[name].tolist() for name in names), strict=True)):
            rows.setdefault(key, []).append(row)
        return {key: np.array(members) for key, members in rows.items()}

    def parts(self, *names: str) -> Iterator[tuple[dict[str, object], "Cases"]]:
        """Yield (values keyed by column, cases) for each combination of values in the columns."""
        for key, rows in self.rows(*names).items():
            yield dict(zip(names, key, strict=True)), self.take(rows)

    def write(self, path: Path) -> None:
        path.write_text(json.dumps({name: column.tolist() for name, column in self.columns.items()}))


def joined(parts: Sequence[Cases]) -> Cases:
    """Concatenate cases. Keep the columns that all parts have."""
    names = [name for name in parts[0].columns if all(name in part.columns for part in parts)]
    return Cases({name: np.concatenate([part[name] for part in parts]) for name in names})


def read_cases(paths: Sequence[Path]) -> Cases:
    """Read cases from files that `Cases.write` wrote. Raises `UsageError` if a file is missing or has no cases."""
    parts = []
    for path in paths:
        if not path.is_file():
            raise UsageError(f"there is no file {path}; `tools/evidence analytical --json` writes one")
        parts.append(Cases({name: np.array(column) for name, column in json.loads(path.read_text()).items()}))
        if not len(parts[-1].columns.get("recorded", ())):
            raise UsageError(f"{path} has no cases; `tools/evidence analytical --json` writes them")
    return joined(parts)


Metric = Callable[[Cases], Mapping[str, object]]
"""Function that computes the cells of a table row from cases."""


def report(title: str, cases: Cases, by: Sequence[str], *metrics: Metric) -> None:
    """Print a table with one row for each combination of values in the columns `by`."""
    table = Table(title)
    for names, part in cases.parts(*by):
        table.row(names | {name: cell for metric in metrics for name, cell in metric(part).items()})


def ordered(names: list[str]) -> list[int]:
    """Return the indices of names in an order that is random, but depends only on the names."""
    digests = [sha256(name.encode()).digest() for name in names]
    return sorted(range(len(digests)), key=digests.__getitem__)


FEWEST = 5
"""Minimum number of configs of a problem whose ranking is scored."""
THREADS = 256
"""Block size in threads that people commonly choose without tuning."""


def geometric_mean(ratio: Array) -> float:
    return float(np.exp(np.log(ratio).mean()))


def agreement(cases: Cases) -> dict[str, object]:
    """Return table cells. `ratio` is the geometric mean of predicted / recorded time. `no level` is the median error
    after division by the median ratio. An unknown clock makes all times of a recording wrong by the same factor."""
    recorded, predicted = cases["recorded"], cases["predicted"]
    level = float(np.exp(np.median(cases.error)))
    return {
        "rows": len(cases),
        "rank": scores.rank_correlation(predicted, recorded),
        "error": f"{scores.median_error(recorded, predicted):.1%}",
        "no level": f"{scores.median_error(recorded, level * predicted):.1%}",
        "ratio": geometric_mean(predicted / recorded),
    }


def spread(cases: Cases) -> dict[str, object]:
    """Return the 10 % and 90 % quantiles of predicted / recorded time, and the fraction outside a factor of 1.5."""
    ratio = cases["predicted"] / cases["recorded"]
    low, high = (float(np.quantile(ratio, q)) for q in (0.1, 0.9))
    return {"10 %": low, "90 %": high, "beyond x1.5": f"{np.mean(np.abs(np.log(ratio)) > np.log(1.5)):.1%}"}


def recommendations(cases: Cases) -> dict[str, object]:
    """Return ranking scores over problems with at least `FEWEST` configs. The first three scores are the mean
    efficiency (lowest recorded time / time of the config) of the best of the top 1, 3 and 5 recommendations."""
    rows = []
    for _, part in cases.parts("gpu", "problem"):
        if len(part) >= FEWEST:
            order, recorded = scores.order_of(part["predicted"]), part["recorded"]
            tops = [scores.efficiency_at(recorded, order, count) for count in (1, 3, 5)]
            near = scores.hit(recorded, order)
            rank = scores.rank_correlation(part["predicted"], recorded)
            rows.append([*tops, near, rank, scores.expected_random(recorded, 1)[0]])
    if not rows:
        return {}
    names = ("first", "of 3", "of 5", "within 5 %", "rank in a problem", "random")
    return {name: f"{value:.3f}" for name, value in zip(names, np.mean(rows, axis=0).tolist(), strict=True)}


def heuristics(cases: Cases) -> dict[str, object]:
    """Return the efficiency of two rules that need no model, for the configs of one problem. One rule chooses the
    config with the highest occupancy. The other chooses the block size nearest to 256 threads."""
    threads, occupancy = cases["threads"], cases["occupancy"]
    ways = {
        "occupancy": -(np.round(occupancy, 6) * 4096.0 + threads),
        str(THREADS): np.round(np.abs(np.log(threads / THREADS)), 6),
    }
    best = cases["recorded"].min()
    return {way: f"{(best / cases['recorded'][bad == bad.min()]).mean():.3f}" for way, bad in ways.items()}


def coverage(cases: Cases) -> dict[str, object]:
    """Return the fraction of recorded times inside the 90 % interval, and the mean ratio of the interval's ends."""
    low, high = cases["low_s"], cases["high_s"]
    if not np.isfinite(low).all():
        return {"inside": None, "width": None}
    share = scores.coverage(cases["recorded"], low, high)
    return {"inside": f"{share:.1%}", "width": scores.mean_width(low, high)}
