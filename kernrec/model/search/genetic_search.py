"""Genetic search with models of latency and power that are learned during the search, after arXiv 2411.18873.

Children of good configs are bred by crossover and mutation. Boosted trees select the most promising children, whose
latency is measured. Energy is measured only where the predicted energy is lowest. The better the models predicted the
last round, the fewer configs are measured in the next round ("dynamic updating" in the paper).
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
"""Number of configs in the first round. Latency and energy are measured for all of them."""
ROUND, LEAST_ROUND = 20, 5
"""Maximum and minimum number of configs in a later round."""
LEAST_ENERGY = 1
"""Minimum number of energy measurements per round. They reveal a wrong model of power."""
_PARENTS = 30
"""Number of measured configs of lowest cost from which children are bred."""
_EXPLORED = 0.2
"""Fraction of a round that is drawn at random from the children."""
_TREES = 60
_SHARPNESS = 2.0
"""Exponent of the loss weights. With 2, a config twice as costly as the best config has a quarter of the weight."""


class GeneticSearch(ObjectiveSearch):
    """Genetic search of one space. The constructor raises `KernrecError` if XGBoost is not installed."""

    def __init__(self, space: SearchSpace, weights: tuple[float, float] | None, seed: int = 0) -> None:
        """Begin a search. The arguments are those of `ObjectiveSearch`."""
        self._xgboost = import_optional("xgboost", "learning costs while they are searched for", "train")
        super().__init__(space, weights)
        self._draw = np.random.default_rng(seed)
        self._expected_s: dict[int, float] = {}  # Predicted log latency of each config of the last round
        self._expected_j: dict[int, float] = {}  # Predicted log energy of each config of the last energy round

    def latency_round(self) -> list[int]:
        left = np.ones(len(self.space), dtype=bool)
        left[list(self.latency_s)] = False
        if len(self.ran()) < 2 or len(self.latency_s) < FIRST:
            # First measure configs that cover each value of each tunable.
            covering, others = self.space.covering, self.space.by_prediction
            order = dict.fromkeys([*covering[left[covering]].tolist(), *others[left[others]].tolist()])
            chosen = list(order)[: max(1, FIRST - len(self.latency_s))]
        else:
            chosen = self._bred(left)
        self.latency_s |= dict.fromkeys(chosen)
        return chosen

    def _bred(self, left: Array) -> list[int]:
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
        of_latency, of_energy = self.weights
        latency = np.array([self.log_latency(config) for config in ran])
        joules = latency + self._log_power(np.array(ran), latency)
        measured = [place for place, config in enumerate(ran) if config in self.energy_j]
        joules[measured] = [math.log(self.energy_j[ran[place]]) for place in measured]
        return np.asarray(of_latency * latency + of_energy * joules)

    def _promising(self, latency: Array, power: Array, size: int) -> list[int]:
        """Return the indices of `size` children: some at random, and the others of lowest expected cost."""
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
        return next_share([self.log_latency(config) for config in rows], [self._expected_s[config] for config in rows])

    def _unsure_of_energy(self) -> float:
        rows = [config for config in self._expected_j if config in self.energy_j]
        measured = [math.log(self.energy_j[config]) for config in rows]
        if len(rows) == 1:  # A single value has no variance. Use the variance of all measured energies.
            error = measured[0] - self._expected_j[rows[0]]
            return _share(float(np.var(np.log(list(self.energy_j.values())))), error**2)
        return next_share(measured, [self._expected_j[config] for config in rows])

    def _log_power(self, configs: Array, latency: Array) -> Array:
        """Predict the log power of each config from its log latency. Return zeros if no model can be trained."""
        rows = list(self.energy_j)
        if not self.with_energy or len(rows) < 2:
            return np.zeros(len(configs))
        seconds = np.array([self.log_latency(config) for config in rows])
        joules = np.log(list(self.energy_j.values()))
        # Add latency as a feature. It predicts power best, because the same work in less time takes more power.
        trees = self._trees(np.column_stack((self.space.features[rows], seconds)), joules - seconds, joules)
        return trees(np.column_stack((self.space.features[configs], latency)))

    def _trees(self, features: Array, values: Array, costs: Array) -> Callable[[Array], Array]:
        """Train boosted trees, and return their prediction function. Configs of low log cost have more weight."""
        weights = loss_weights(np.exp(costs - costs.min()), np.zeros(len(costs)), _SHARPNESS)
        middle = float(np.average(values, weights=weights))
        settings = {"max_depth": 4, "eta": 0.15, "min_child_weight": 0.0, "nthread": 1, "seed": 0}
        trees = self._xgboost.train(settings, self._xgboost.DMatrix(features, values - middle, weight=weights), _TREES)
        return lambda rows: np.asarray(middle + trees.inplace_predict(rows))


def next_share(measured: Sequence[float], expected: Sequence[float]) -> float:
    """Return the fraction of the candidates to measure in the next round. Bad predictions increase the fraction.

    Args:
        measured: Logarithms of the measurements of the last round.
        expected: Logarithms of the predictions of these measurements.
    """
    if len(measured) < 2:
        return 1.0
    return _share(float(np.var(measured)), float(np.mean(np.square(np.subtract(measured, expected)))))


def _share(signal: float, noise: float) -> float:
    return 1.0 if signal <= 0.0 else noise / (signal + noise)
