"""How far the prior's predictions are off: 90 % intervals of a time and of a ratio of times, by what bounds a launch.

The error of a prediction, the logarithm of recorded over predicted time, has a part common to a kernel on a card (its
clock, its memory, its compiler) and a part of the config's own. `whole` covers both: it is the interval of a time.
`own` covers the second, about the level of the kernel on the card: it decides if one config is faster than another.

`intervals.toml` has both as logarithmic half-widths that cover 90 % of recordings of public kernels, each kernel with
the same weight, and of it each card, with one more kernel added whose errors are the widest (hierarchical conformal
prediction; `tools/evidence intervals` writes the file and prints how often kernels and cards that are left out lie
inside). A regime that fewer than `FEWEST` kernels were recorded in has the figures of all.
"""

import math
import tomllib
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from kernrec.model.prior.launch_costs import NominalCosts
from kernrec.util.light_dataclass import dataclass

Array = np.ndarray

FILE = Path(__file__).with_name("intervals.toml")
REGIMES = ("core", "DRAM", "launch", "power limit")
"""What bounds a launch: the core's pipes, caches and latencies; DRAM; its start and end; the power limit."""
ALL = "all"
FEWEST = 5


@dataclass(frozen=True, eq=False)
class Widths:
    """Logarithmic half-widths of 90 % intervals."""

    whole: Array
    """Of a time, by position in `REGIMES`, (4,)."""
    own: Array
    """Of the part of it that is a config's own, (4,)."""
    whole_of_all: float
    own_of_all: float
    """Of launches whatever bounds them."""


@cache
def widths() -> Widths:
    """The widths of `intervals.toml`."""
    entries: dict[str, dict[str, Any]] = tomllib.loads(FILE.read_text(encoding="utf-8"))
    of_all = entries[ALL]
    rows = [entries[name] if entries[name]["kernels"] >= FEWEST else of_all for name in REGIMES]
    whole, own = (np.array([row[part] for row in rows]) for part in ("whole", "own"))
    return Widths(whole, own, of_all["whole"], of_all["own"])


def regime(nominal: NominalCosts, capped: Array) -> Array:
    """Position in `REGIMES` of what bounds each of N launches.

    Args:
        nominal: their costs before any power limit, (N,).
        capped: whether the power limit lowers their clock, (N,) or (points, N), which the result is, too.
    """
    core_s, dram_s, fixed_s = nominal.core_s, nominal.dram_s, nominal.fixed_s
    bound = np.where(fixed_s > np.maximum(core_s, dram_s), 2, np.where(dram_s > core_s, 1, 0))
    return np.where(capped, 3, bound)


def own_share() -> float:
    """The share of a prediction's variance that is the config's own."""
    return min(1.0, (widths().own_of_all / widths().whole_of_all) ** 2)


def factor() -> float:
    """The factor of the interval of a time, whatever bounds it."""
    return math.exp(widths().whole_of_all)
