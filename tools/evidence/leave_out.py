"""The prior on recorded spaces that its constants were not fitted to: a kernel left out, a card left out.

Most of the prior's constants are published figures, and no fit moves them. Those of `CONSTANTS` were fitted to
recordings or assumed. Here they are fitted again, on a grid around their values, to all spaces but those of one kernel
(then: of one card), by the mean over spaces of the median error; and the spaces left out are predicted with what comes
out. The difference is what a figure owes to having been seen.
"""

import importlib
import itertools
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from unittest.mock import patch

import numpy as np
from front import Table

from kernrec.training import scores

from .profiled import Sample

Array = np.ndarray
CONSTANTS: Mapping[tuple[str, str], tuple[float, ...]] = {
    ("demand", "ISSUE_PER_CLK"): (4 * 0.8, 4 * 0.95),
    ("demand", "FLOATS_PER_CLK"): (4 * 0.55, 4 * 0.67, 4 * 0.8),
    ("launch_time", "_START_CLK"): (100.0, 300.0, 900.0),
    ("launch_time", "BARRIER_CLK"): (22.0, 44.0),
}
"""(module of `kernrec.model.prior`, constant) -> its values on the grid; that of the prior is among them."""


@contextmanager
def constants(values: Mapping[tuple[str, str], float]) -> Iterator[None]:
    """The prior with other constants."""
    with ExitStack() as stack:
        for (module, name), value in values.items():
            stack.enter_context(patch.object(importlib.import_module(f"kernrec.model.prior.{module}"), name, value))
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
    own = grid.index({key: _current(*key) for key in CONSTANTS})
    names = ", ".join(name.strip("_") for _, name in CONSTANTS)
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


def _current(module: str, name: str) -> float:
    return float(getattr(importlib.import_module(f"kernrec.model.prior.{module}"), name))
