"""What of a problem is still to be measured: who is screened next, who gets its energy, and who is measured with care.

Each choice is a function of the plan and of what was measured at the tiers below, whoever measured it and when: a run
that goes on chooses as the one did that was cut short, and of a problem that was finished there is nothing left to do.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from kernrec.measure.campaign.plan import PlannedProblem, Task
from kernrec.measure.campaign.results import ProblemHistory
from kernrec.measure.campaign.selection import coarse_selection, front_neighbourhood, interleaved
from kernrec.measure.protocol import measure_config

_ALL = ("screen", "coarse", "final")


@dataclass(frozen=True)
class ScheduledMeasurement:
    """One measurement to make. probability: of the config's having been selected for its tier, None where not drawn.

    again: it is made anew because the card had drifted.
    """

    task: Task
    tier: str
    probability: float | None = None
    again: bool = False


class Schedule:
    """The open measurements of one target; `history` is its rows, and grows while it is worked on.

    draw: of this problem alone, so that its choices do not depend on others'.
    """

    def __init__(self, target: PlannedProblem, history: ProblemHistory, draw: np.random.Generator) -> None:
        self._target = target
        self._keys = [task.key for task in target.tasks]
        self._history = history
        self._draw = draw
        self._before = len(history)

    @property
    def screened(self) -> int:
        """How many configs of the plan count as measured."""
        return sum(self._history.count(key) > 0 for key in self._keys)

    def screen(self) -> tuple[list[ScheduledMeasurement], int]:
        """(the configs that nobody measured, in order; how many of them to measure before asking again).

        First come those whose rows count for less: their block was never closed.
        """
        most = len(self._keys) if self._target.most is None else self._target.most
        left = most - self.screened
        void = [i for i, key in enumerate(self._keys) if not self._history.count(key) and self._history.has(key)]
        order, step = self._order(void)
        items = [
            ScheduledMeasurement(self._target.tasks[i], "screen", self._target.probability) for i in (*void, *order)
        ]
        return items, max(0, min(left, len(items), len(void) + step))

    def _order(self, void: Sequence[int]) -> tuple[list[int], int]:
        tried = np.array([i for i, key in enumerate(self._keys) if self._history.has(key)], dtype=np.int64)
        if self._target.search is None:
            left = np.setdiff1d(np.arange(len(self._keys)), tried, assume_unique=True)
            return left.tolist(), len(left)
        found = (self._history.median(self._keys[i], "latency_s") for i in tried)
        latency_s = np.array([math.nan if value is None else value for value in found])
        return self._target.search.order(tried, latency_s).tolist(), self._target.search.batch(len(tried))

    def coarse(self) -> list[ScheduledMeasurement]:
        """Those whose energy is told roughly."""
        ran = [(i, value) for i, key in enumerate(self._keys) if (value := self._screened_s(key))]
        chosen = [(ran[i][0], share) for i, share in coarse_selection([value for _, value in ran], self._draw)]
        if self._settled(len(chosen), 1, "coarse", "final"):
            return []
        return [
            ScheduledMeasurement(self._target.tasks[i], "coarse", share)
            for i, share in chosen
            if not self._history.count(self._keys[i], "coarse", "final")
        ]

    def finals(self, count: int, with_energy: bool) -> list[ScheduledMeasurement]:
        """At most `count` of the front's neighbourhood, each in every round; where nothing tells of energy, as of a
        kernel whose inputs are renewed for every launch, the fastest."""

        def known(*wanted: str) -> dict[int, list[float]]:
            costs = ([self._history.median(key, cost, "screen", "coarse") for cost in wanted] for key in self._keys)
            return {i: [one for one in pair if one] for i, pair in enumerate(costs) if all(pair)}

        costs = (known("latency_s", "energy_j") if with_energy else None) or known("latency_s", "latency_s")
        first, second = ([pair[which] for pair in costs.values()] for which in (0, 1))
        chosen = [list(costs)[i] for i in front_neighbourhood(first, second, count)]
        rounds = interleaved(len(chosen), measure_config.FINAL_ROUNDS, self._draw)
        if self._settled(len(chosen), measure_config.FINAL_ROUNDS, "final"):
            return []
        missing = [measure_config.FINAL_ROUNDS - self._history.count(self._keys[i], "final") for i in chosen]
        items = []
        for place in rounds:
            if missing[place] > 0:
                missing[place] -= 1
                items.append(ScheduledMeasurement(self._target.tasks[chosen[place]], "final"))
        return items

    def _screened_s(self, key: tuple[str, str, str]) -> float | None:
        return self._history.median(key, "latency_s", "screen") or self._history.median(key, "latency_s", *_ALL)

    def _settled(self, configs: int, rows: int, *tiers: str) -> bool:
        """Whether an earlier run did all of this, on rows of which some may have been found wanting since."""
        done = sum(self._history.count(key, *tiers) >= rows for key in self._keys)
        return len(self._history) == self._before and done >= configs
