"""Base class of searches of one space for an objective; it stores the measured costs and finds the best config."""

import math
from abc import ABC, abstractmethod

from kernrec.model.search.search_space import SearchSpace


class ObjectiveSearch(ABC):
    """Search of one space for an objective.

    The caller first reports earlier measurements. It then calls `latency_round`, `tell_latency`, `energy_round`,
    `tell_energy` in turn, and measures each round.
    """

    def __init__(self, space: SearchSpace, weights: tuple[float, float] | None) -> None:
        """Begin a search.

        Args:
            space: The configs.
            weights: Exponents of latency and energy in the cost to minimize: (1, 0) is latency, (0, 1) energy, (1, 1)
                the energy-delay product. None for the front, with random weights for each round (Knowles, "ParEGO",
                2006).
        """
        self.space = space
        self.front = weights is None
        self.weights = weights or (1.0, 1.0)
        """Current exponents of latency and energy in the cost; they change in each round for a front."""
        self.latency_s: dict[int, float | None] = {}
        """Latency of each tried config; None if it failed or is being measured."""
        self.energy_j: dict[int, float] = {}
        """Measured energy by config."""
        self._asked: set[int] = set()  # The energy of these configs was requested.

    @property
    def with_energy(self) -> bool:
        """Return whether energy counts."""
        return self.front or self.weights[1] > 0.0

    @abstractmethod
    def latency_round(self) -> list[int]:
        """Return the configs whose latency to measure next; empty if the whole space is measured."""

    @abstractmethod
    def energy_round(self) -> list[int]:
        """Return the measured configs whose energy to measure, most important first; no config is returned twice."""

    def tell_latency(self, config: int, latency_s: float | None) -> None:
        """Record a measured latency; None if the config failed."""
        self.latency_s[config] = latency_s

    def tell_energy(self, config: int, energy_j: float | None) -> None:
        """Record a measured energy; None if it could not be measured."""
        self._asked.add(config)
        if energy_j is not None:
            self.energy_j[config] = energy_j

    def ran(self) -> list[int]:
        """Return the configs with a measured latency, in the order of their requests."""
        return [config for config, latency_s in self.latency_s.items() if latency_s]

    def log_latency(self, config: int) -> float:
        """Return the logarithm of a measured latency."""
        latency_s = self.latency_s[config]
        assert latency_s is not None
        return math.log(latency_s)

    def log_cost(self, config: int) -> float:
        """Return the logarithm of the cost to minimize, for a config with all needed measurements."""
        return self.weights[0] * self.log_latency(config) + self.weights[1] * math.log(self.energy_j.get(config, 1.0))

    def best(self) -> int | None:
        """Return the config of lowest measured cost; for a front, of lowest energy-delay product."""
        if self.front:
            self.weights = 1.0, 1.0
        return min(self.energy_j if self.with_energy else self.ran(), key=self.log_cost, default=None)
