"""Genetic search with an energy model that is learned during the search, after arXiv 2411.18873.

    population   parents are measured configs, better ones more often; their children are crossed and mutated, and
                 children that are configs of the space survive (`SearchSpace.offspring`)
    score        boosted trees (XGBoost; the weighted loss of `kernrec.model.learn.loss_weights`) predict latency and
                 power of the children; the most promising children and a few random children are measured
    energy       latency is measured for all selected children. Energy is first predicted as measured latency times
                 predicted power, and measured for the children of lowest predicted energy

The number of measurements depends on how well the models predicted the last round ("dynamic updating"). The
signal-to-noise ratio of a model is the variance of the measurements over the mean squared error of their predictions,
and the fraction to measure is 1 / (1 + ratio). So most children are only scored, a good model of latency reduces
latency measurements, and a good model of power reduces energy measurements.
"""

import math
from collections.abc import Callable, Sequence

import numpy as np

from kernrec.model.learn.loss_weights import loss_weights
from kernrec.model.search.expected_improvement import ObjectiveSearch
from kernrec.model.search.gaussian_process import SearchSpace
from kernrec.util.optional import import_optional

Array = np.ndarray

FIRST = 15
"""Number of configs of the first round, all of them with energy."""
ROUND, LEAST_ROUND = 20, 5
"""Maximum and minimum number of configs of a later round."""
LEAST_ENERGY = 1
"""Minimum number of energy measurements per round; without measurements, a wrong model would stay unnoticed."""
_PARENTS = 30
"""Number of measured configs that breed."""
_EXPLORED = 0.2
"""Fraction of a round that is drawn randomly from the children, regardless of the models."""
_TREES = 60
_SHARPNESS = 2.0
"""Exponent of the loss weights: a config twice as costly as the best counts a quarter."""


class GeneticSearch(ObjectiveSearch):
    """Genetic search of one space. Raises `KernrecError` if XGBoost is not installed."""

    def __init__(self, space: SearchSpace, weights: tuple[float, float] | None, seed: int = 0) -> None:
        """Begin a search.

        Args:
            weights: Weights as for `ObjectiveSearch`; in a round of a front, each config has its own weights.
        """
        self._xgboost = import_optional("xgboost", "learning costs while they are searched for", "train")
        super().__init__(space, weights)
        self._draw = np.random.default_rng(seed)
        self._expected_s: dict[int, float] = {}  # Values are log latencies, predicted before the last round.
        self._expected_j: dict[int, float] = {}  # Values are log energies, predicted before the last measurements.

    def latency_round(self) -> list[int]:
        """Return the configs whose latency to measure next; empty if the whole space is measured."""
        left = np.ones(len(self.space), dtype=bool)
        left[list(self.latency_s)] = False
        if len(self.ran()) < 2 or len(self.latency_s) < FIRST:
            chosen = self._first(left)[: max(1, FIRST - len(self.latency_s))]
        else:
            chosen = self._bred(left)
        self.latency_s |= dict.fromkeys(chosen)
        return chosen

    def _first(self, left: Array) -> list[int]:
        """Return configs that cover each value of each tunable, best predicted first; then the other configs."""
        covering, others = self.space.covering, self.space.by_prediction
        return list(dict.fromkeys([*covering[left[covering]].tolist(), *others[left[others]].tolist()]))

    def _bred(self, left: Array) -> list[int]:
        """Return a round of the most promising children and some random children."""
        ran = self.ran()
        costs = self._expected_costs(ran)
        parents = np.array(ran)[np.argsort(costs, kind="stable")[:_PARENTS]]
        children = self.space.offspring(parents, left, self._draw)
        if not len(children):
            children = np.flatnonzero(left)
        if not len(children):
            return []
        measured, base = np.array([self.log_latency(config) for config in ran]), self.space.log_s
        trees = self._trees(self.space.features[ran], measured - base[ran], measured)
        latency = base[children] + trees(self.space.features[children])
        size = max(LEAST_ROUND, math.ceil(ROUND * self._unsure_of_latency()))
        places = self._promising(latency, self._log_power(children, latency), size)
        self._expected_s = {int(children[place]): float(latency[place]) for place in places}
        return list(self._expected_s)

    def _expected_costs(self, ran: list[int]) -> Array:
        """Return log costs of configs with measured latency, with predicted energy if it was not measured."""
        of_latency, of_energy = self.weights
        latency = np.array([self.log_latency(config) for config in ran])
        joules = latency + self._log_power(np.array(ran), latency)
        measured = [place for place, config in enumerate(ran) if config in self.energy_j]
        joules[measured] = [math.log(self.energy_j[ran[place]]) for place in measured]
        return np.asarray(of_latency * latency + of_energy * joules)

    def _promising(self, latency: Array, power: Array, size: int) -> list[int]:
        """Return indices of children to measure: the children of lowest expected cost, and some random children."""
        chosen = dict.fromkeys(self._draw.permutation(len(latency))[: round(_EXPLORED * size)].tolist())
        shares = self._draw.random(size) if self.front else [None]
        order: list[int] = []
        for share in shares:
            of_latency, of_energy = self.weights if share is None else (share, 1.0 - share)
            cost = (of_latency + of_energy) * latency + of_energy * power
            order += np.argsort(cost, kind="stable")[: size if self.front else None].tolist()
        for place in order:
            if len(chosen) >= size:
                break
            chosen.setdefault(place)
        return list(chosen)

    def energy_round(self) -> list[int]:
        """Return the configs of the current round whose energy is measured, lowest predicted energy first."""
        left = [config for config in self.ran() if config not in self._asked]
        if not self.with_energy or not left:
            return []
        self._asked |= set(left)
        if len(self.energy_j) < 2:
            return sorted(left, key=self.log_latency)[:FIRST]
        latency = np.array([self.log_latency(config) for config in left])
        joules = latency + self._log_power(np.array(left), latency)
        energy = dict(zip(left, joules.tolist(), strict=True))
        count = max(LEAST_ENERGY, math.ceil(len(left) * self._unsure_of_energy()))
        chosen = sorted(left, key=lambda config: energy[config])[:count]
        self._expected_j = {config: energy[config] for config in chosen}
        return chosen

    def _unsure_of_latency(self) -> float:
        rows = [config for config in self._expected_s if self.latency_s.get(config)]
        return unsure([self.log_latency(config) for config in rows], [self._expected_s[config] for config in rows])

    def _unsure_of_energy(self) -> float:
        rows = [config for config in self._expected_j if config in self.energy_j]
        measured = [math.log(self.energy_j[config]) for config in rows]
        if len(rows) == 1:  # A single value has no spread, so use all energies as the signal.
            error = measured[0] - self._expected_j[rows[0]]
            return _share(float(np.var(np.log(list(self.energy_j.values())))), error**2)
        return unsure(measured, [self._expected_j[config] for config in rows])

    def _log_power(self, configs: Array, latency: Array) -> Array:
        """Return predicted log power of configs, given their measured or predicted log latencies; (N,)."""
        rows = list(self.energy_j)
        if not self.with_energy or len(rows) < 2:
            return np.zeros(len(configs))
        seconds = np.array([self.log_latency(config) for config in rows])
        joules = np.log(list(self.energy_j.values()))
        # The same work in less time takes more power, so latency predicts power better than any tunable.
        trees = self._trees(np.column_stack((self.space.features[rows], seconds)), joules - seconds, joules)
        return trees(np.column_stack((self.space.features[configs], latency)))

    def _trees(self, features: Array, values: Array, costs: Array) -> Callable[[Array], Array]:
        """Train trees for values (N,) over features (N, F). Configs of low log cost (N,) have more weight."""
        weights = loss_weights(np.exp(costs - costs.min()), np.zeros(len(costs)), _SHARPNESS)
        middle = float(np.average(values, weights=weights))
        settings = {"max_depth": 4, "eta": 0.15, "min_child_weight": 0.0, "nthread": 1, "seed": 0}
        trees = self._xgboost.train(settings, self._xgboost.DMatrix(features, values - middle, weight=weights), _TREES)
        return lambda rows: np.asarray(middle + trees.inplace_predict(rows))


def unsure(measured: Sequence[float], expected: Sequence[float]) -> float:
    """Return the fraction of a round to measure, 1 / (1 + signal-to-noise ratio), from the last round's results.

    Args:
        measured: Logarithms of the measurements.
        expected: Logarithms of their predictions.
    """
    if len(measured) < 2:
        return 1.0
    return _share(float(np.var(measured)), float(np.mean(np.square(np.subtract(measured, expected)))))


def _share(signal: float, noise: float) -> float:
    return 1.0 if signal <= 0.0 else noise / (signal + noise)
