"""Genetic search with a learned energy model: energy is measured for the few that the model is unsure of.

    population   parents are measured configs, the better the more often; children are crossed and mutated, and only
                 configs of the space survive
    score        boosted trees (XGBoost, weights that favor the fast and frugal) predict the latency and the power of
                 the children; the most promising are measured
    energy       latency is measured for all of them. Their energy is first predicted, as measured latency times
                 predicted power; those of least predicted energy are measured

How many are measured follows from how well the models did on the round before (Automating Energy-Efficient GPU Kernel
Generation, arXiv 2411.18873, section on dynamic updating): the signal-to-noise ratio of a model is the variance of what
was measured over the mean squared error of what had been predicted of it. The share that still needs a measurement is
1 / (1 + ratio), so with a good model few of a round get energy, and a smaller round gets latency.
"""

import math
from dataclasses import dataclass

import numpy as np

from kernrec.util.optional import import_optional

Array = np.ndarray

FIRST = 15
"""Configs of the first round, all of them with energy."""
ROUND, LEAST_ROUND = 20, 5
"""Most and fewest configs of a later round."""
LEAST_ENERGY = 1
"""Energy measurements of a round, at least: without any a model could not prove wrong."""
_PARENTS, _CHILDREN, _MUTATIONS = 30, 1000, 1.5
"""Measured configs that breed, children of a round, and the mean number of tunables that mutate."""
_EXPLORED = 0.2
"""Share of a round that is drawn among the children, whatever the models say of them."""
_TREES = 60
_SHARPNESS = 2.0
"""Exponent of the weights: a config twice as costly as the best counts a quarter."""


@dataclass(frozen=True)
class Told:
    """What was measured of one config."""

    latency_s: float | None
    """None for a config that failed."""
    energy_j: float | None = None
    """None where it was not measured."""


class GeneticSearch:
    """The search of one space of C configs: `latency_round`, `tell`, `energy_round`, `tell`, and so on.

    Raises:
        KernrecError: XGBoost is not installed.
    """

    def __init__(self, tunables: Array, weights: tuple[float, float] | None, predicted_s: Array, seed: int = 0) -> None:
        """Lay out a space.

        Args:
            tunables: the configs' values, (C, T); NaN for a tunable that a config does not have.
            weights: what is minimized is the product of latency and of energy to these powers: (1, 0) is latency,
                (0, 1) energy, (1, 1) the energy-delay product. None: the front; each config of a round then has
                weights of its own.
            predicted_s: predicted latency, (C,), in any unit; NaN for a config without prediction.
            seed: of everything that is drawn at random.
        """
        import_optional("xgboost", "learning energy while it is searched for", "train")
        columns = [np.unique(column, return_inverse=True)[1].reshape(-1) for column in tunables.T]
        self._digits = np.stack(columns, axis=1) if columns else np.zeros((len(tunables), 0), dtype=np.int64)
        known = np.isfinite(predicted_s)
        filled = np.where(known, predicted_s, np.max(predicted_s[known], initial=1.0))
        self._log_s = np.log(filled)
        self._features = np.column_stack((np.log2(1.0 + np.maximum(np.nan_to_num(tunables), 0.0)), self._log_s))
        self._row_of = {tuple(row): i for i, row in enumerate(self._digits.tolist())}
        self._weights = weights
        self._draw = np.random.default_rng(seed)
        self.told: dict[int, Told] = {}
        """By config, what was measured; those being measured are in it too, without values."""
        self._expected: dict[int, tuple[float, float]] = {}  # (log latency, log power) as predicted before measuring
        self._round: list[int] = []
        self._fresh_energy: list[int] = []

    @property
    def with_energy(self) -> bool:
        """Whether energy counts."""
        return self._weights is None or self._weights[1] > 0.0

    def tell(self, config: int, told: Told) -> None:
        """Take what was measured of a config."""
        self.told[config] = told

    def latency_round(self) -> list[int]:
        """The configs whose latency is measured next; empty where the space is measured."""
        left = [i for i in range(len(self._digits)) if i not in self.told]
        if not self._ran() or not left:
            order = self._covering(left)
            self._round = order[:FIRST]
        else:
            children = self._children(set(left)) or left
            latency, power = self._predict(children)
            size = max(LEAST_ROUND, math.ceil(ROUND * self._unsure("latency")))
            self._round = self._promising(children, latency, power, size)
            self._expected |= {i: (latency[children.index(i)], power[children.index(i)]) for i in self._round}
        for config in self._round:
            self.told[config] = Told(None)
        return list(self._round)

    def energy_round(self) -> list[int]:
        """The configs of the present round whose energy is measured, those of least predicted energy first."""
        ran = [i for i in self._round if self.told[i].latency_s is not None]
        if not self.with_energy or not ran:
            return []
        if not self._fresh_energy:
            self._fresh_energy = ran
            return list(ran)
        count = max(LEAST_ENERGY, math.ceil(len(ran) * self._unsure("energy")))
        energy = {i: math.log(self.told[i].latency_s or 1.0) + self._expected.get(i, (0.0, 0.0))[1] for i in ran}
        self._fresh_energy = sorted(ran, key=lambda i: energy[i])[:count]
        return list(self._fresh_energy)

    def cost(self, config: int) -> float | None:
        """What is minimized, of a measured config; the front's is the energy-delay product."""
        told = self.told.get(config)
        if told is None or told.latency_s is None or (self.with_energy and told.energy_j is None):
            return None
        of_latency, of_energy = self._weights or (1.0, 1.0)
        return float(told.latency_s**of_latency * (told.energy_j or 1.0) ** of_energy)

    def best(self) -> int | None:
        """The measured config of least cost."""
        costs = {i: cost for i in self.told if (cost := self.cost(i)) is not None}
        return min(costs, key=lambda i: costs[i]) if costs else None

    def _ran(self) -> list[int]:
        return [i for i, told in self.told.items() if told.latency_s is not None]

    def _unsure(self, quantity: str) -> float:
        """The share of a round that has to be measured: 1 / (1 + signal-to-noise ratio) on the last round."""
        rows = [i for i in self._fresh_energy if self.told[i].energy_j] if quantity == "energy" else self._round
        rows = [i for i in rows if i in self._expected and self.told[i].latency_s]
        if len(rows) < 2:
            # One measurement says nothing of its spread: all that were told before stand in for the signal.
            return 1.0 if not rows or quantity == "latency" else self._unsure_of_one(rows[0])
        measured = np.array([self._log(i, quantity) for i in rows])
        expected = np.array([self._expected_log(i, quantity) for i in rows])
        return _share(float(measured.var()), float(np.mean(np.square(measured - expected))))

    def _unsure_of_one(self, row: int) -> float:
        logs = [self._log(i, "energy") for i, told in self.told.items() if told.energy_j]
        error = self._log(row, "energy") - self._expected_log(row, "energy")
        return _share(float(np.var(logs)), error**2)

    def _log(self, config: int, quantity: str) -> float:
        told = self.told[config]
        return math.log((told.energy_j if quantity == "energy" else told.latency_s) or 1.0)

    def _expected_log(self, config: int, quantity: str) -> float:
        """What was predicted before; of energy: for the measured latency."""
        latency, power = self._expected[config]
        return power + math.log(self.told[config].latency_s or 1.0) if quantity == "energy" else latency

    def _predict(self, rows: list[int]) -> tuple[Array, Array]:
        """(log latency, log power) that the models expect of configs."""
        ran = self._ran()
        logs = np.array([self._log(i, "latency") for i in ran])
        at = self._features[rows]
        latency = self._log_s[rows] + self._fitted(ran, logs - self._log_s[ran], logs, at)
        power = np.zeros(len(rows))
        known = [i for i in ran if self.told[i].energy_j]
        if len(known) > 1:
            energy = np.array([self._log(i, "energy") for i in known])
            power = self._fitted(known, energy - [self._log(i, "latency") for i in known], energy, at)
        return latency, power

    def _fitted(self, rows: list[int], values: Array, costs: Array, at: Array) -> Array:
        """Trees of values at configs, asked at other points; configs of little cost weigh more."""
        xgboost = import_optional("xgboost", "learning energy while it is searched for", "train")
        weight = np.exp(-_SHARPNESS * (costs - costs.min()))
        middle = float(np.average(values, weights=weight))
        settings = {"max_depth": 4, "eta": 0.15, "min_child_weight": 0.0, "nthread": 1, "seed": 0}
        data = xgboost.DMatrix(self._features[rows], values - middle, weight=weight)
        return middle + xgboost.train(settings, data, _TREES).predict(xgboost.DMatrix(at))

    def _promising(self, children: list[int], latency: Array, power: Array, size: int) -> list[int]:
        """Children to measure: those of least expected cost, and some at random."""
        drawn = self._draw.permutation(len(children))[: round(_EXPLORED * size)].tolist()
        chosen = dict.fromkeys(drawn)
        energy = latency + power
        if self._weights is not None:
            cost = self._weights[0] * latency + self._weights[1] * energy
            order = np.argsort(cost, kind="stable").tolist()
        else:
            order = []
            for share in self._draw.random(size):
                order += np.argsort(share * latency + (1.0 - share) * energy, kind="stable")[:size].tolist()
        for place in order:
            if len(chosen) >= size:
                break
            chosen.setdefault(place)
        return [children[place] for place in chosen]

    def _covering(self, left: list[int]) -> list[int]:
        """Configs so that each value of each tunable comes once, the best predicted first; then the others."""
        tie = self._draw.random(len(self._log_s))
        order = [i for i in np.lexsort((tie, self._log_s)).tolist() if i in set(left)]
        first: dict[int, None] = dict.fromkeys(order[:1])
        for column in self._digits.T:
            seen: set[int] = set()
            for i in order:
                if int(column[i]) not in seen:
                    seen.add(int(column[i]))
                    first.setdefault(i)
        return [*first, *(i for i in order if i not in first)]

    def _children(self, left: set[int]) -> list[int]:
        """Configs of the space that were not measured, bred from the best ones."""
        costs = {i: cost for i in self._ran() if (cost := self.cost(i) or self.told[i].latency_s)}
        parents = sorted(costs, key=lambda i: costs[i])[:_PARENTS]
        ranks = np.arange(len(parents), 0.0, -1.0)
        children: dict[int, None] = {}
        values = self._digits.max(axis=0) + 1
        for _ in range(6):  # more generations where few children are in the space
            pairs = self._digits[self._draw.choice(parents, (2, _CHILDREN), p=ranks / ranks.sum())]
            crossed = np.where(self._draw.random(pairs.shape[1:]) < 0.5, pairs[0], pairs[1])
            mutated = self._draw.random(crossed.shape) < _MUTATIONS / max(len(values), 1)
            crossed = np.where(mutated, (self._draw.random(crossed.shape) * values).astype(np.int64), crossed)
            for key in map(tuple, crossed.tolist()):
                if (row := self._row_of.get(key)) is not None and row in left:
                    children.setdefault(row)
            if len(children) >= _CHILDREN // 2:
                break
        return list(children)


def _share(signal: float, noise: float) -> float:
    """1 / (1 + signal / noise)."""
    return 1.0 if signal <= 0.0 else noise / (signal + noise)
