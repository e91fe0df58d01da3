"""Search for the least energy: expected improvement of the cost, energy measured where its interval matters.

An energy measurement takes a hundred times as long as one of latency, but power varies little and smoothly. So latency
is measured for every config that the guide asks for, and a model of power that is learned as the search goes
(`kernrec.model.search.power_model`) says what its energy then is and how sure that is. Energy is measured only where
the lower end of that interval is below the best cost so far; elsewhere the expected value stands in, as far as the
guide is concerned.
"""

import math
from collections.abc import Sequence

import numpy as np

from kernrec.model.search.expected_improvement import ExpectedImprovement
from kernrec.model.search.objective_search import ObjectiveSearch
from kernrec.model.search.power_model import PowerModel

Array = np.ndarray

FIRST_ENERGY = 10
"""Energy measurements, of the fastest configs, before there is a model of power."""
ENERGY_ROUND, _ROUND_SHARE = 2, 0.1
"""Most energy measurements of a later round: so many, or this share of those made. The model is better after each."""
_CAUTION = 1.5
"""Half-widths of an interval by which a config may fall short of what is expected. One is too few: the config of least
energy is often the one whose power the model misjudges most (hotspot and expdist, `tools/evaluate_search.py`)."""


class EnergyGuide(ObjectiveSearch):
    """The search of one space by expected improvement of the objective."""

    def __init__(self, search: ExpectedImprovement, weights: tuple[float, float] | None, seed: int = 0) -> None:
        """Begin.

        Args:
            search: of the space; it chooses the configs.
            weights: as of `ObjectiveSearch`; of the front, each round has weights of its own.
            seed: of the weights that are drawn.
        """
        super().__init__(search.space, weights)
        self._search = search
        self._draw = np.random.default_rng(seed)
        self._model: PowerModel | None = None
        self._known = 0  # energies that the model learned from

    def latency_round(self) -> list[int]:
        """The configs whose latency is measured next; empty where the space is measured."""
        if self.front:
            share = float(self._draw.random())
            self.weights = share, 1.0 - share
        costs = np.full(len(self.latency_s), math.nan)
        ran = np.array([latency_s is not None for latency_s in self.latency_s.values()], dtype=bool)
        costs[ran] = np.exp(self._expected(self.ran())[0])
        order = self._search.order(np.array(list(self.latency_s), dtype=np.int64), costs)
        chosen: list[int] = order[: self._search.batch(len(costs))].tolist()
        self.latency_s |= dict.fromkeys(chosen)
        return chosen

    def energy_round(self) -> list[int]:
        """The configs measured so far whose energy has to be measured, those of least expected cost first."""
        left = [config for config in self.ran() if config not in self._asked]
        if not self.with_energy or not left:
            return []
        if len(self.energy_j) < 2 and len(self._asked) >= FIRST_ENERGY:  # it cannot be measured here
            return []
        if len(self.energy_j) < 2:
            chosen = sorted(left, key=self.log_latency)[:FIRST_ENERGY]
        else:
            mean, half = self._expected(left)
            reach = np.flatnonzero(mean - _CAUTION * half < self._best_before(left))
            size = max(ENERGY_ROUND, int(_ROUND_SHARE * len(self.energy_j)))
            chosen = [left[place] for place in reach[np.argsort(mean[reach], kind="stable")][:size]]
        self._asked |= set(chosen)
        return chosen

    def _best_before(self, configs: Sequence[int]) -> Array:
        """The log cost that each config must be below to matter: of the best one, or of the front beside it, (C,)."""
        rivals = list(self.energy_j)
        costs = np.array([self.log_cost(rival) for rival in rivals])
        if not self.front:
            return np.full(len(configs), costs.min())
        of_latency, of_energy = self.weights
        if not of_energy:
            return np.full(len(configs), math.inf)
        seconds = np.array([self.log_latency(rival) for rival in rivals])
        energies = costs - of_latency * seconds
        latency = np.array([self.log_latency(config) for config in configs])
        no_slower = seconds <= latency[:, None]
        return np.where(no_slower, energies, math.inf).min(axis=1) + of_latency * latency

    def _expected(self, configs: Sequence[int]) -> tuple[Array, Array]:
        """(log costs (C,), half-widths of their intervals (C,)) of configs whose latency was measured."""
        of_latency, of_energy = self.weights
        latency = np.array([self.log_latency(config) for config in configs])
        mean, half = (of_latency + of_energy) * latency, np.zeros(len(configs))
        model = self._power()
        if not self.with_energy or model is None or not len(configs):
            return mean, half
        watts, half_w = model.predict(self.space.points[list(configs)], latency)
        mean, half = mean + of_energy * watts, of_energy * half_w
        for place, config in enumerate(configs):
            if config in self.energy_j:
                mean[place], half[place] = self.log_cost(config), 0.0
        return mean, half

    def _power(self) -> PowerModel | None:
        """The model of power; None before there are two energies."""
        if len(self.energy_j) >= 2 and len(self.energy_j) > self._known:
            rows = list(self.energy_j)
            seconds = np.array([self.log_latency(config) for config in rows])
            joules = np.log(list(self.energy_j.values()))
            self._model = PowerModel(self.space.points[rows], seconds, joules - seconds)
            self._known = len(rows)
        return self._model
