"""Base of the searches of one space for an objective: the costs measured so far, and which config is the best."""

import math
from abc import ABC, abstractmethod

from kernrec.model.search.search_space import SearchSpace


class ObjectiveSearch(ABC):
    """The search of one space: `latency_round`, `tell_latency`, `energy_round`, `tell_energy`, and so on.

    The caller measures each round and passes the results on; costs that were measured before come first.
    """

    def __init__(self, space: SearchSpace, weights: tuple[float, float] | None) -> None:
        """Begin.

        Args:
            space: the configs.
            weights: the cost to minimize is the product of latency and of energy to these powers: (1, 0) is latency,
                (0, 1) energy, (1, 1) the energy-delay product. None: the front, for which weights are drawn again and
                again (Knowles, "ParEGO", 2006).
        """
        self.space = space
        self.front = weights is None
        self.weights = weights or (1.0, 1.0)
        """At present; those of a front change."""
        self.latency_s: dict[int, float | None] = {}
        """By config tried, its latency; None for one that failed or is being measured."""
        self.energy_j: dict[int, float] = {}
        """By config, its energy, where it was measured."""
        self._asked: set[int] = set()  # for their energy

    @property
    def with_energy(self) -> bool:
        """Whether energy counts."""
        return self.front or self.weights[1] > 0.0

    @abstractmethod
    def latency_round(self) -> list[int]:
        """The configs whose latency is measured next; empty where the space is measured."""

    @abstractmethod
    def energy_round(self) -> list[int]:
        """The configs measured so far whose energy has to be measured, the most important first; each only once."""

    def tell_latency(self, config: int, latency_s: float | None) -> None:
        """Take a measured latency; None: the config failed."""
        self.latency_s[config] = latency_s

    def tell_energy(self, config: int, energy_j: float | None) -> None:
        """Take a measured energy; None: it could not be measured."""
        self._asked.add(config)
        if energy_j is not None:
            self.energy_j[config] = energy_j

    def ran(self) -> list[int]:
        """The configs with a measured latency, in the order in which they were asked for."""
        return [config for config, latency_s in self.latency_s.items() if latency_s]

    def log_latency(self, config: int) -> float:
        """The logarithm of a measured latency."""
        latency_s = self.latency_s[config]
        assert latency_s is not None
        return math.log(latency_s)

    def log_cost(self, config: int) -> float:
        """The logarithm of the cost to minimize, of a config that has every measurement it needs."""
        return self.weights[0] * self.log_latency(config) + self.weights[1] * math.log(self.energy_j.get(config, 1.0))

    def best(self) -> int | None:
        """The config of least measured cost; of a front, that of the least energy-delay product."""
        if self.front:
            self.weights = 1.0, 1.0
        return min(self.energy_j if self.with_energy else self.ran(), key=self.log_cost, default=None)
