"""How far the prior's costs may be from true ones: an error common to a kernel on a card, and one of each config's own.

The common part is that of the card's clock and memory, of the compiler and of what the model has wrong about a kernel;
it moves all configs of the kernel on a problem by about one factor. The own part is what is left of a config. So there
are two 90 % intervals: that of a time is as wide as both parts together, and that of a ratio of two configs of a kernel
on a problem stands on their own parts alone.

`tools/evidence intervals` prints the widths of times and energies, from recorded times of kernels that others wrote.
Few kernels were recorded with their energy, which is power for a time: its error is taken to be the sum of what a
wrong time does to it, by recorded times, and of the error of power for a recorded time.
"""

import math

import numpy as np

from kernrec.model.prior.constants import CAPPED
from kernrec.model.prior.launch_costs import NominalCosts
from kernrec.util.light_dataclass import dataclass

Array = np.ndarray

INTERVAL = 2.0
"""Half-width of the 90 % interval of the prior where nothing else is known, as a factor: its spread against the anchors
(`tools/evidence library`)."""
REGIMES = ("core", "DRAM", "launch", "power limit")
"""Bounds of a launch: the core's pipes, caches and latencies; DRAM; its start and end; the power limit."""


@dataclass(frozen=True)
class Spread:
    """The 90 % intervals of a regime, as factors to either side."""

    time: float
    """Of a time: the error common to a kernel on a card, and the config's own."""
    ratio: float
    """Of the ratio of two configs of a kernel on a problem and card: both configs' own errors."""
    energy: float
    """As `time`, of an energy."""
    energy_ratio: float
    """As `ratio`, of energies."""

    @property
    def own(self) -> float:
        """Logarithmic half-width of the own part of a config: two of them, squared and added, make that of a ratio."""
        return math.log(self.ratio) / math.sqrt(2.0)

    @property
    def own_energy(self) -> float:
        """As `own`, of an energy."""
        return math.log(self.energy_ratio) / math.sqrt(2.0)


_OF_ALL = Spread(1.50, 1.39, 1.43, 1.44)
SPREADS = (Spread(1.57, 1.43, 1.44, 1.44), _OF_ALL, _OF_ALL, _OF_ALL)
"""Of each of `REGIMES`; those that fewer than nine recorded kernels have share the widths of all. From 17 kernels on 9
cards (convolution, point in polygon, CLBlast's product, dedispersion, hotspot, expdist, eight textbook kernels,
Triton's product in three kinds of arithmetic), at the clock that a card is taken to hold where nobody states one: its
real one is part of the error. Of kernels left out 93 % of the times lie inside and 92 % of the ratios, of cards left
out 88 % and 88 %.

Energies stand on the same times, and on the power of 12 loads on 14 cards by coefficients that have not seen the card:
of kernels left out 92 to 94 % lie inside and 91 % of the ratios, of cards left out 94 % and 92 %. The ratio of two
is of pairs of loads, which differ more than configs of a kernel do."""


@dataclass(frozen=True, eq=False)
class Widths:
    """The 90 % intervals of a quantity by position in `REGIMES`, (4,)."""

    factors: Array
    """To either side."""
    own: Array
    """Logarithmic half-widths of the configs' own parts alone."""


OF_TIME = Widths(
    np.exp(np.array([math.log(spread.time) for spread in SPREADS])), np.array([spread.own for spread in SPREADS])
)
OF_ENERGY = Widths(
    np.exp(np.array([math.log(spread.energy) for spread in SPREADS])),
    np.array([spread.own_energy for spread in SPREADS]),
)


def regime(nominal: NominalCosts, capped: Array) -> Array:
    """Position in `REGIMES` of what bounds each of N launches.

    Args:
        nominal: their costs before any power limit, (N,).
        capped: whether the power limit lowers their clock, (N,), or (points, N) at several operating points.

    Returns:
        In the shape of `capped`.
    """
    core_s, dram_s, fixed_s = nominal.core_s, nominal.dram_s, nominal.fixed_s
    bound = np.where(fixed_s > np.maximum(core_s, dram_s), 2, np.where(dram_s > core_s, 1, 0))
    return np.where(capped, int(CAPPED), bound).astype(np.int64)
