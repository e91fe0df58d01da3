"""The prior on recorded spaces that its constants were not fitted to: a kernel left out, a card left out.

Most of the prior's constants are published figures, and no fit moves them. Those of `CONSTANTS` were fitted to
recordings or assumed. Here they are fitted again, on a grid around their values, to all spaces but those of one kernel
(then: of one card), by the mean over spaces of the median error; and the spaces left out are predicted with what comes
out. The difference between both lines is what a figure owes to having been seen.
"""

import importlib
import itertools
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Protocol

import numpy as np

from kernrec.gpu import GPU
from kernrec.training import scores

Array = np.ndarray

CONSTANTS: Mapping[tuple[str, str], tuple[float, ...]] = {
    ("demand", "ISSUE_PER_CLK"): (4 * 0.8, 4 * 0.95),
    ("demand", "FLOATS_PER_CLK"): (4 * 0.55, 4 * 0.67, 4 * 0.8),
    ("launch_time", "_START_CLK"): (100.0, 300.0, 900.0),
    ("launch_time", "BARRIER_CLK"): (22.0, 44.0),
}
"""(module of `kernrec.model.prior`, constant) -> its values on the grid; that of the prior is among them."""


class RecordedSample(Protocol):
    """Configs of one recorded space."""

    @property
    def set(self) -> str:
        """Name of the kernel's set."""

    @property
    def card(self) -> str:
        """The card, as it is printed."""

    @property
    def gpu(self) -> GPU:
        """The card."""

    def times(self) -> tuple[Array, Array]:
        """Measured and predicted times, (N,) each."""


@contextmanager
def constants(values: Mapping[tuple[str, str], float]) -> Iterator[None]:
    """The prior with other constants."""
    modules = {module: importlib.import_module(f"kernrec.model.prior.{module}") for module, _ in values}
    before = {(module, name): getattr(modules[module], name) for module, name in values}
    try:
        for (module, name), value in values.items():
            setattr(modules[module], name, value)
        yield
    finally:
        for (module, name), value in before.items():
            setattr(modules[module], name, value)


def grid() -> list[dict[tuple[str, str], float]]:
    """Every combination of the values of `CONSTANTS`."""
    return [dict(zip(CONSTANTS, values, strict=True)) for values in itertools.product(*CONSTANTS.values())]


def left_out(samples: Sequence[RecordedSample]) -> Iterator[str]:
    """The lines of the report: each space with the prior's constants, then with those fitted without it."""
    combinations = grid()
    errors, ranks = (np.zeros((len(combinations), len(samples))) for _ in range(2))
    for row, values in enumerate(combinations):
        with constants(values):
            for column, sample in enumerate(samples):
                measured, predicted = sample.times()
                errors[row, column] = scores.median_error(measured, predicted)
                ranks[row, column] = scores.rank_correlation(predicted, measured)
    own = combinations.index({key: _current(key) for key in CONSTANTS})
    names = ", ".join(name.strip("_") for _, name in CONSTANTS)
    yield f"\nleft out: {names} fitted again ({len(combinations)} combinations) without the kernel, without the card"
    yield f"{'':38} {'as it is':^13}   {'no kernel':^13}   {'no card':^13}"
    yield f"{'set':13} {'card':24}" + f" {'rank':>6} {'error':>6}  " * 3
    picked: dict[str, set[int]] = {"kernel": set(), "card": set()}
    for column, sample in enumerate(samples):
        figures = [own]
        for what in picked:
            kept = [i for i, other in enumerate(samples) if not _same(sample, other, what)]
            best = int(errors[:, kept].mean(axis=1).argmin()) if kept else own
            picked[what].add(best)
            figures.append(best)
        shown = "".join(f" {ranks[i, column]:6.2f} {errors[i, column]:6.1%}  " for i in figures)
        yield f"{sample.set:13} {sample.card:24}{shown}"
    for what, rows in picked.items():
        fits = "; ".join(", ".join(f"{v:.4g}" for v in combinations[row].values()) for row in sorted(rows))
        yield f"constants without a {what}: {fits}"


def _same(sample: RecordedSample, other: RecordedSample, what: str) -> bool:
    return sample.set == other.set if what == "kernel" else sample.gpu.name == other.gpu.name


def _current(key: tuple[str, str]) -> float:
    module, name = key
    return float(getattr(importlib.import_module(f"kernrec.model.prior.{module}"), name))
