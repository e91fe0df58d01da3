"""The search of one problem that several cards of a kind share: each asks the driver which configs are its own.

The guide runs beside the card: it learns from what this card measured and from what the driver says of the others, and
proposes its order; the driver grants the first configs of it that nobody else measures.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from kernrec.cluster.messages import nan_for_none
from kernrec.model.search.expected_improvement import ExpectedImprovement

Array = np.ndarray

_PROPOSED = 4
"""Configs that are proposed at once, in times of those wanted: others may have been granted some of them."""
_DRAWN = 32
"""Configs asked for at once where nothing orders them."""


class SharedSearch:
    """A `Search` of C configs whose batches are granted by the driver; a batch of none ends the screening."""

    def __init__(self, configs: int, guide: ExpectedImprovement | None, ask: Callable[..., Mapping[str, Any]]) -> None:
        """Make a search.

        Args:
            configs: C.
            guide: orders the configs; None: as they are numbered.
            ask: puts a question to the driver, which is given as keyword arguments, and returns the reply.
        """
        self._configs = configs
        self._guide = guide
        self._ask = ask
        self._known: dict[int, float] = {}
        self._taken: set[int] = set()
        self._lost: list[int] = []
        self.granted = 0
        """Configs of the last batch."""
        self.left = 0
        """Configs that nobody measures, as the driver said last."""

    def take(self, reply: Mapping[str, Any]) -> None:
        """Learn from a reply of the driver what others measured and measure."""
        for config, latency_s in reply.get("news", ()):
            self._known.setdefault(config, nan_for_none(latency_s))
        if "taken" in reply:
            self._taken, self._lost = set(reply["taken"]), reply["lost"]
        self.left = reply.get("left", self.left)

    def batch(self, measured: int) -> int:
        """How many of the last order are the card's own."""
        return self.granted

    def order(self, tried: Array, latency_s: Array) -> Array:
        """The configs that are the card's own from now on, and after them others, whose code may be compiled ahead."""
        self._known |= dict(zip(tried.tolist(), latency_s.tolist(), strict=True))
        order, count = self._order()
        free = [config for config in (*self._lost, *order.tolist()) if config not in self._taken]
        granted: list[int] = []
        for start in range(0, len(free), _PROPOSED * count):
            reply = self._ask(want="configs", proposed=free[start : start + _PROPOSED * count], count=count)
            self.take(reply)
            granted = reply.get("granted", [])
            if granted or not self.left:
                break
        self.granted = len(granted)
        own = set(granted)
        rest = [config for config in free if config not in own | self._taken and config not in self._known]
        return np.array([*granted, *rest], dtype=np.int64)

    def _order(self) -> tuple[Array, int]:
        """(configs that nobody measured, the most promising first; how many to ask for)."""
        tried = np.fromiter(self._known, dtype=np.int64, count=len(self._known))
        if self._guide is None:
            return np.setdiff1d(np.arange(self._configs), tried), _DRAWN
        latency_s = np.fromiter(self._known.values(), dtype=np.float64, count=len(tried))
        by_number = np.argsort(tried)  # the same whichever card measured what first
        order = self._guide.order(tried[by_number], latency_s[by_number])
        return order, max(1, self._guide.batch(len(tried)))


def latency_or_nan(latency_s: float | None) -> float:
    """What the guide learns from a measurement; NaN: it failed."""
    return latency_s or math.nan
