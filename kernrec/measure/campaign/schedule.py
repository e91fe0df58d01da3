"""Schedule the remaining measurements of a problem.

Each choice depends only on the plan and on measurements at lower tiers, so a resumed run makes the same choices as the
interrupted run.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from kernrec.measure.campaign.plan import EnergyRule, PlannedProblem, Task
from kernrec.measure.campaign.results import ProblemHistory
from kernrec.measure.protocol import measure_config
from kernrec.model.search.energy_guide import EnergyGuide
from kernrec.store.measurement import Tier


@dataclass(frozen=True)
class ScheduledMeasurement:
    task: Task
    tier: Tier
    probability: float | None = None
    """Probability with which the config was selected, or None if it was not selected at random."""
    again: bool = False
    """Whether the measurement repeats an earlier measurement because the GPU drifted."""


class Schedule:
    """Remaining measurements of one problem."""

    def __init__(self, planned: PlannedProblem, history: ProblemHistory, draw: np.random.Generator) -> None:
        """Create a schedule. Use the random generator `draw` only for this problem, so that runs are reproducible."""
        self._planned = planned
        self._keys = [task.key for task in planned.tasks]
        self._history = history
        self._draw = draw
        self._length_before = len(history)

    @property
    def screened(self) -> int:
        """Number of planned configs that are already measured."""
        return sum(self._history.count(key) > 0 for key in self._keys)

    def screen(self) -> tuple[list[ScheduledMeasurement], int]:
        """Return (measurements, count) for the configs that remain to be screened.

        Make only the first `count` measurements. Then call this method again, because the search may choose other
        configs.
        """
        most = len(self._keys) if self._planned.most is None else self._planned.most
        left = most - self.screened
        of_open_blocks = [
            i for i, key in enumerate(self._keys) if not self._history.count(key) and self._history.has(key)
        ]
        order, step = self._order()
        tasks = [self._planned.tasks[i] for i in (*of_open_blocks, *order)]
        items = [ScheduledMeasurement(task, Tier.SCREEN, self._planned.probability) for task in tasks]
        return items, max(0, min(left, len(items), len(of_open_blocks) + step))

    def _order(self) -> tuple[list[int], int]:
        """Return (indices of unmeasured configs, number of configs to measure before the next call)."""
        tried = np.array([i for i, key in enumerate(self._keys) if self._history.has(key)], dtype=np.int64)
        if self._planned.search is None:
            left = np.setdiff1d(np.arange(len(self._keys)), tried, assume_unique=True)
            return left.tolist(), len(left)
        medians = (self._history.median(self._keys[i], "latency_s") for i in tried)
        latency_s = np.array([math.nan if value is None else value for value in medians])
        return self._planned.search.order(tried, latency_s).tolist(), self._planned.search.batch(len(tried))

    def coarse(self) -> list[ScheduledMeasurement]:
        """Return the next round of coarse measurements, or an empty list after the last round."""
        medians = (
            self._history.median(key, "latency_s", Tier.SCREEN) or self._history.median(key, "latency_s")
            for key in self._keys
        )
        ran = {i: value for i, value in enumerate(medians) if value}
        if self._finished_before(1, 1, Tier.FINAL):
            return []
        rule = self._planned.energy
        chosen = list(ran) if rule is EnergyRule.ALL else []
        if rule is EnergyRule.GUIDE:
            chosen = self._guided(ran)
        return [
            ScheduledMeasurement(self._planned.tasks[i], Tier.COARSE)
            for i in chosen
            if not self._history.count(self._keys[i], Tier.COARSE, Tier.FINAL)
        ]

    def _guided(self, latency_s: Mapping[int, float]) -> list[int]:
        """Return the configs whose energy should be measured next. `latency_s` is keyed by config."""
        assert self._planned.search is not None
        guide = EnergyGuide(self._planned.search, None)
        for i, seconds in latency_s.items():
            guide.tell_latency(i, seconds)
            if self._history.count(self._keys[i], Tier.COARSE, Tier.FINAL):
                guide.tell_energy(i, self._history.median(self._keys[i], "energy_j", Tier.SCREEN, Tier.COARSE))
        return guide.energy_round()

    def finals(self, count: int, with_energy: bool) -> list[ScheduledMeasurement]:
        """Return the final-tier measurements of at most `count` configs near the Pareto front, in several rounds.

        If no energies are known, measure the fastest configs.
        """
        positions, first, second = self._costs("latency_s", "energy_j") if with_energy else ([], [], [])
        if not positions:
            positions, first, second = self._costs("latency_s", "latency_s")
        chosen = [positions[i] for i in front_neighborhood(first, second, count)]
        rounds = interleaved(len(chosen), measure_config.FINAL_ROUNDS, self._draw)
        if self._finished_before(len(chosen), measure_config.FINAL_ROUNDS, Tier.FINAL):
            return []
        missing = [measure_config.FINAL_ROUNDS - self._history.count(self._keys[i], Tier.FINAL) for i in chosen]
        items = []
        for place in rounds:
            if missing[place] > 0:
                missing[place] -= 1
                items.append(ScheduledMeasurement(self._planned.tasks[chosen[place]], Tier.FINAL))
        return items

    def _costs(self, first: str, second: str) -> tuple[list[int], list[float], list[float]]:
        """Return the indices of the configs with both costs, such as `latency_s` and `energy_j`, and the values."""
        positions: list[int] = []
        costs: tuple[list[float], list[float]] = ([], [])
        for i, key in enumerate(self._keys):
            values = [self._history.median(key, cost, Tier.SCREEN, Tier.COARSE) for cost in (first, second)]
            if values[0] and values[1]:
                positions.append(i)
                costs[0].append(values[0])
                costs[1].append(values[1])
        return positions, *costs

    def _finished_before(self, configs: int, rows: int, *tiers: Tier) -> bool:
        done = sum(self._history.count(key, *tiers) >= rows for key in self._keys)
        return len(self._history) == self._length_before and done >= configs


def front_neighborhood(latency_s: Sequence[float], energy_j: Sequence[float], count: int) -> list[int]:
    """Return the indices of at most `count` configs near the Pareto front of latency and energy, nearest first.

    A config's distance from the front is the factor by which both costs must fall until the config is on the front. If
    the front is larger than `count`, return configs that are spread evenly over it.
    """
    t, e = np.log(np.asarray(latency_s, dtype=np.float64)), np.log(np.asarray(energy_j, dtype=np.float64))
    if not len(t):
        return []
    walk = np.lexsort((e, t))
    lowest = np.minimum.accumulate(e[walk])
    best = walk[np.concatenate(([True], e[walk][1:] < lowest[:-1]))]
    # `beats` compares configs (rows) with front points (columns). A positive element means that the front point has a
    # lower latency and a lower energy. Its value is the smaller of the two differences.
    beats = np.minimum(t[:, None] - t[best], e[:, None] - e[best])
    distance = np.maximum(beats.max(axis=1), 0.0)
    order = np.lexsort((t, distance))
    front = order[distance[order] <= 0.0]
    if len(front) > count:
        return [int(front[i]) for i in np.unique(np.linspace(0, len(front) - 1, count).round().astype(int))]
    return [int(i) for i in order[:count]]


def interleaved(count: int, rounds: int, draw: np.random.Generator) -> list[int]:
    """Return a random order in which to measure `count` configs, once in each of several rounds."""
    return [int(i) for _ in range(rounds) for i in draw.permutation(count)]
