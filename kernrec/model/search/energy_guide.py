"""Search for the least energy: expected improvement of the cost, energy measured where its interval matters.

An energy measurement takes a hundred times as long as one of latency, but power varies little and smoothly. So latency
is measured for every config that the guide asks for, and a Gaussian process over log power, learned as the search goes,
says what its energy then is and how sure that is. Energy is measured only where the lower end of that interval is below
the best cost so far; elsewhere the expected value stands in, as far as the guide is concerned.
"""

import math

import numpy as np

from kernrec.model.search.expected_improvement import ExpectedImprovement, ResidualProcess

FIRST_ENERGY = 6
"""Energy measurements, of the fastest configs, before there is a model of power."""
_DEVIATIONS = 1.6448536269514722
"""Of a 90 % interval: half-width over the standard deviation."""


class EnergyGuide:
    """The search of one space: `latency_round`, `tell_latency`, `energy_round`, `tell_energy`, and so on."""

    def __init__(self, search: ExpectedImprovement, weights: tuple[float, float] | None, seed: int = 0) -> None:
        """Begin.

        Args:
            search: of the space; it chooses the configs.
            weights: what is minimized is the product of latency and of energy to these powers: (1, 0) is latency,
                (0, 1) energy, (1, 1) the energy-delay product. None: the front, for which every round has weights of
                its own (Knowles, "ParEGO", 2006).
            seed: of the weights that are drawn.
        """
        self._search = search
        self._front = weights is None
        self._weights = weights or (1.0, 1.0)
        self._draw = np.random.default_rng(seed)
        self.latency_s: dict[int, float | None] = {}
        """By config tried, its latency; None for one that failed or is being measured."""
        self.energy_j: dict[int, float] = {}
        """By config, its energy, where it was measured."""
        self._asked: set[int] = set()  # for their energy
        self._process: ResidualProcess | None = None
        self._known = 0  # energies that the process was fitted to

    @property
    def with_energy(self) -> bool:
        """Whether energy counts."""
        return self._front or self._weights[1] > 0.0

    def latency_round(self) -> list[int]:
        """The configs whose latency is measured next; empty where the space is measured."""
        if self._front:
            share = float(self._draw.random())
            self._weights = share, 1.0 - share
        tried = np.array(list(self.latency_s), dtype=np.int64)
        costs = np.array([math.exp(self._expected(i)[0]) if self.latency_s[i] else math.nan for i in self.latency_s])
        order = self._search.order(tried, costs)
        chosen: list[int] = order[: self._search.batch(len(tried))].tolist()
        self.latency_s |= dict.fromkeys(chosen)
        return chosen

    def tell_latency(self, config: int, latency_s: float | None) -> None:
        """Take a measured latency; None: the config failed."""
        self.latency_s[config] = latency_s

    def energy_round(self) -> list[int]:
        """The configs measured so far whose energy has to be measured, those of least expected cost first."""
        if not self.with_energy:
            return []
        left = [
            i for i, latency_s in self.latency_s.items() if latency_s and i not in self._asked | self.energy_j.keys()
        ]
        if len(self.energy_j) < 2:
            chosen = sorted(left, key=lambda i: self.latency_s[i] or 0.0)[:FIRST_ENERGY]
        else:
            reach = {
                i: mean for i in left for mean, deviation in [self._expected(i)] if self._matters(i, mean, deviation)
            }
            chosen = sorted(reach, key=lambda i: reach[i])
        self._asked |= set(chosen)
        return chosen

    def _matters(self, config: int, mean: float, deviation: float) -> bool:
        """Whether a config may be better than what was measured: than the best, or than the front beside it."""
        lowest = mean - _DEVIATIONS * deviation
        rivals = list(self.energy_j)
        if self._front:  # those that are no slower
            rivals = [i for i in rivals if (self.latency_s[i] or 0.0) <= (self.latency_s[config] or 0.0)]
            if not self._weights[1]:
                return True
            latency = self._weights[0] * math.log(self.latency_s[config] or 1.0)
            energies = [self._weights[1] * math.log(self.energy_j[i]) for i in rivals]
            return lowest - latency < min(energies, default=math.inf)
        return lowest < min(self.log_cost(i) for i in rivals)

    def tell_energy(self, config: int, energy_j: float) -> None:
        """Take a measured energy."""
        self.energy_j[config] = energy_j

    def log_cost(self, config: int) -> float:
        """The logarithm of what is minimized, of a config with all that it needs measured."""
        latency_s, energy_j = self.latency_s[config], self.energy_j.get(config, 1.0)
        assert latency_s is not None
        return self._weights[0] * math.log(latency_s) + self._weights[1] * math.log(energy_j)

    def best(self) -> int | None:
        """The config of least measured cost; of a front, that of the least energy-delay product."""
        if self._front:
            self._weights = 1.0, 1.0
        ran = self.energy_j if self.with_energy else [i for i, latency_s in self.latency_s.items() if latency_s]
        return min(ran, key=self.log_cost, default=None)

    def _expected(self, config: int) -> tuple[float, float]:
        """(log cost, its standard deviation) of a config whose latency was measured."""
        if not self.with_energy or config in self.energy_j:
            return self.log_cost(config), 0.0
        latency = math.log(self.latency_s[config] or 1.0)
        process = self._power()
        if process is None:
            return (self._weights[0] + self._weights[1]) * latency, 0.0
        mean, variance = process.predict(self._search.points[[config]])
        power, deviation = float(mean[0]), math.sqrt(float(variance[0]) + process.noise)
        return (self._weights[0] + self._weights[1]) * latency + self._weights[1] * power, self._weights[1] * deviation

    def _power(self) -> ResidualProcess | None:
        """The process over log power; None before there are two energies."""
        if len(self.energy_j) >= 2 and len(self.energy_j) > self._known:
            rows = list(self.energy_j)
            power = np.array([math.log(self.energy_j[i] / (self.latency_s[i] or 1.0)) for i in rows])
            middle = float(power.mean())
            self._process = ResidualProcess(self._search.points[rows], power, middle)
            self._known = len(rows)
        return self._process
