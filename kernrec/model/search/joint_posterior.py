"""Joint posterior of the log costs of many problems' contenders (configs that may be the best of a problem).

The log cost of contender c of problem p is its prediction plus an error, which is the sum of these parts:

    shared      x(p, c) . w, with features x and a weight vector w that is the same for all problems
    problem     equal for all contenders of a problem, and possibly large (`_LEVEL`)
    kernel      equal for all contenders of one kernel on a problem
    smooth      similar for similar configs of a problem (Matern 3/2)
    own         independent for each config on a problem, with heavy tails

Given w, the problems are independent Gaussian processes, so a measurement updates only one problem and the precision of
w (Rasmussen and Williams, "Gaussian Processes for Machine Learning", 2006, section 2.7). Each problem has its own scale
of errors: its errors are a Student-t process with `DEGREES` degrees of freedom (Shah, Wilson, Ghahramani, "Student-t
processes as alternatives to Gaussian processes", 2014).

    regret            cost of the current choice - cost of the best contender, but at most the reach (`LEAST_REACH`)
    gain              reduction of the weighted expected regret that a measurement is expected to bring: the knowledge
                      gradient with correlated beliefs (Frazier, Powell, Dayanik, "The knowledge-gradient policy for
                      correlated normal beliefs", 2009)

Costs are natural logarithms, so a regret of 0.02 means 2 % above the best cost.
"""

import math
from collections.abc import Sequence
from functools import cache

import numpy as np

from kernrec.model.learn.adaptation import matern
from kernrec.model.search.random_draws import student_draws
from kernrec.model.search.regret_record import RegretRecord
from kernrec.util.light_dataclass import dataclass

Array = np.ndarray


DEGREES = 4.0
"""Degrees of freedom of the errors of a problem. With fewer degrees, the scales of problems differ more."""
_NODES = 21
"""Number of equally probable outcomes of a measurement over which its gain is averaged."""
SHARED, SMOOTH = 0.4, 0.4
"""Fractions of the error's variance in the shared part and in the smooth part (`tools/evidence refine`)."""
LEVEL = 0.95
"""Probability that `JointPosterior.regret_bound` exceeds the mean regret."""
_LEVEL = 10.0
"""Standard deviation of a problem's common error. It is large, so that a surprising first measurement does no harm."""
_UNIT = math.sqrt((DEGREES - 2.0) / DEGREES)
"""Scale of a Student's t distribution with standard deviation 1."""
_LENGTH = 0.7
"""Length scale of the smooth part of the error. Two random configs have a distance of about 1.4."""
_SCALE_PRIOR = 20.0
"""Weight of the assumption that `Contenders.deviation` is right, as a number of measurements."""
_NEVER = 20.0
"""Difference in log cost between a contender that cannot run and all others."""
LEAST_REACH = 0.13
"""Lower limit of a problem's reach. The reach is an assumed limit: the log cost of the current choice exceeds the log
cost of the best contender by at most the reach. Without a limit, the tails of many slow contenders would dominate the
regret (`tools/evidence refine`)."""
MISJUDGED = 0.04
"""Assumed probability that a problem's regret equals the reach, if the problem has fewer than two measurements
(`tools/evidence refine`)."""
_OVERLOOKED = math.log(2.0)
"""Regret that is assumed for one misjudged problem. On a recorded H100, the config that was predicted to be the best
took more than twice as long as the best config."""
_ROUNDS = 10
_DRAWS = 512
"""Number of draws from a problem's posterior for its expected regret."""


@dataclass(frozen=True, eq=False)
class Contenders:
    """Configs of a problem that may be its best config. All arrays have one row for each of the C contenders."""

    expected: Array
    """Predicted log cost of each contender."""
    deviation: Array
    """Standard deviation of each contender's error, without the error that all contenders of a kernel share."""
    features: Array
    """Features x of each contender (row) for the shared part of the errors. The norm of a row is about the standard
    deviation of the error."""
    coordinates: Array
    """Coordinates of each contender, array of shape (C, D). Similar configs are near each other."""
    kernel: Array
    """Number of each contender's kernel."""
    of_kernel: float
    """Standard deviation of the error that is common to all contenders of a kernel."""
    weight: float = 1.0
    """Weight of the problem in the mean regret."""
    inputs: Array | None = None
    """Inputs (C, F) of trees that correct predictions, or None without such trees. All problems have the same
    columns."""


@dataclass(frozen=True)
class Measured:
    """One measurement of a contender of a problem."""

    contender: int
    log_cost: float
    """Natural logarithm of the measured cost."""
    noise: float
    """Standard deviation of `log_cost`."""


class _Block:
    """Posterior of one problem's contenders, given the shared weights w. The mean log costs are `mean + slope @ w`."""

    def __init__(self, contenders: Contenders, scale: float) -> None:
        self.contenders = contenders
        self.expected = contenders.expected  # Predicted log costs, which `relearn` corrects
        self.measured: list[Measured] = []
        self.excluded: list[int] = []  # Contenders that cannot be chosen
        self.given_up: set[int] = set()  # Contenders that must not be measured
        # Sum of (deviation from the expected cost)**2 / (its variance if `scale` is 1), without the first measurement.
        self.surprise = 0.0
        self.scale = scale
        self._correlation = SMOOTH * matern(contenders.coordinates, contenders.coordinates, _LENGTH)
        self._correlation += (1.0 - SHARED - SMOOTH) * np.eye(len(contenders.expected))
        self._same_kernel = (contenders.kernel[:, None] == contenders.kernel).astype(float)
        self.update(scale)

    def update(self, common: float) -> None:
        """Compute the posterior. `common` is the scale of the errors of all problems."""
        count = max(0, len(self.measured) - 1)
        self.scale = math.sqrt((DEGREES * common**2 + self.surprise) / (DEGREES + count))
        deviation = self.scale * self.contenders.deviation
        prior = np.outer(deviation, deviation) * self._correlation
        prior += (1.0 - SHARED) * (self.scale * self.contenders.of_kernel) ** 2 * self._same_kernel + _LEVEL**2
        own_slope = math.sqrt(SHARED) * self.scale * self.contenders.features
        self.own = (1.0 - SHARED - SMOOTH) * deviation**2
        self.mean, self.slope, self.covariance = self.expected, own_slope, prior
        self._informed, self.pull = np.zeros((0, own_slope.shape[1])), np.zeros(own_slope.shape[1])
        if not self.measured:
            return
        rows = np.array([row.contender for row in self.measured])
        self.own[rows] = 0.0
        within = prior[np.ix_(rows, rows)] + np.diag([row.noise**2 for row in self.measured])
        factor = np.linalg.cholesky(within)
        across = np.linalg.solve(factor, prior[rows])
        residual = np.linalg.solve(factor, np.array([row.log_cost for row in self.measured]) - self.expected[rows])
        slope = np.linalg.solve(factor, own_slope[rows])
        self.mean = self.expected + across.T @ residual
        self.slope = own_slope - across.T @ slope
        self.covariance = prior - across.T @ across
        self._informed, self.pull = slope, slope.T @ residual

    @property
    def precision(self) -> Array:
        """Return this problem's contribution to the precision (inverse covariance) of w, array of shape (F, F)."""
        return np.asarray(self._informed.T @ self._informed)


class JointPosterior:
    """Joint posterior of the log costs of the contenders of all problems. Measurements can be added in any order."""

    def __init__(self, problems: Sequence[Contenders], seed: int = 0) -> None:
        """Begin with the predictions of at least one problem. All problems must have the same number of features."""
        self._seed = seed
        self.scale = _UNIT
        """Common scale of all errors, as a factor of `Contenders.deviation`."""
        self.record = RegretRecord()
        self._left = 1.0  # Fraction of the squared errors that the learned corrections leave
        self._blocks = [_Block(problem, self.scale) for problem in problems]
        self._problem_weights = np.array([problem.weight for problem in problems])
        self._solve()

    def __len__(self) -> int:
        return len(self._blocks)

    def contenders(self, problem: int) -> Contenders:
        return self._blocks[problem].contenders

    def measured(self, problem: int) -> Sequence[Measured]:
        return self._blocks[problem].measured

    def _solve(self) -> None:
        precision = np.eye(len(self._blocks[0].pull)) + sum(block.precision for block in self._blocks)
        self._set_weights(precision, sum((block.pull for block in self._blocks), np.zeros_like(self._blocks[0].pull)))

    def _set_weights(self, precision: Array, pull: Array) -> None:
        self._precision, self._pull = precision, pull
        self._covariance = np.linalg.inv(precision)
        self._weights = self._covariance @ pull

    def add(self, problem: int, measured: Measured) -> None:
        block, row = self._blocks[problem], measured.contender
        # Skip the first measurement of a problem. It mostly reveals an error that all contenders share, not the scale.
        if block.measured:
            mean, covariance = self.expectation(problem)
            innovation = (measured.log_cost - mean[row]) ** 2
            block.surprise += block.scale**2 * innovation / (covariance[row, row] + measured.noise**2)
        before = block.precision, block.pull
        block.measured.append(measured)
        block.update(self.scale)
        self._set_weights(self._precision + block.precision - before[0], self._pull + block.pull - before[1])

    def watch(self, problem: int, measured: Measured) -> None:
        """Add a measurement of a problem. Record how much the expected regret and the best config's cost fell."""
        before, _ = self._stated_regret(problem, self._random_costs(problem))
        choice = self.choice(problem)
        self.add(problem, measured)
        mean = self._mean(self._blocks[problem])
        after, _ = self._stated_regret(problem, self._random_costs(problem))
        self.record.note(before - after, float(mean[choice] - mean.min()))

    def rescale(self) -> None:
        """Estimate the common scale of the errors from the measurements, and update the posterior."""
        surprises = [(block.surprise, len(block.measured) - 1) for block in self._blocks if len(block.measured) > 1]
        squared, prior = self.scale**2, _UNIT**2 * _SCALE_PRIOR
        # Expectation maximization for Student's t: give a problem with a large surprise less weight.
        for _ in range(_ROUNDS):
            weighted = sum(s * (DEGREES + n) / (DEGREES + s / squared) for s, n in surprises)
            squared = (prior + weighted) / (_SCALE_PRIOR + sum(n for _, n in surprises))
        self.scale = math.sqrt(squared)
        for block in self._blocks:
            block.update(self.scale)
        self._solve()

    def relearn(self) -> bool:
        """Learn corrections of the predictions from the measurements. Return whether the predictions changed."""
        from kernrec.model.search.relearning import Evidence, corrections

        evidence = []
        for block in self._blocks:
            if block.contenders.inputs is None:
                return False
            rows = np.array([row.contender for row in block.measured], dtype=np.int64)
            costs = np.array([row.log_cost for row in block.measured])
            evidence.append(Evidence(block.contenders.inputs, block.contenders.expected, rows, costs))
        learned = corrections(evidence, self._seed)
        if learned is None:
            return False
        of_problems, left = learned
        for block, correction in zip(self._blocks, of_problems, strict=True):
            block.expected = block.contenders.expected + correction
            block.surprise *= left / self._left
        self._left = left
        self.rescale()
        return True

    def expectation(self, problem: int) -> tuple[Array, Array]:
        """Return (mean (C,), covariance (C, C)) of the log costs of a problem's contenders, without measurement
        noise."""
        block = self._blocks[problem]
        covariance = block.covariance + block.slope @ self._covariance @ block.slope.T
        covariance[block.excluded] = covariance[:, block.excluded] = 0.0
        return self._mean(block), covariance

    def _mean(self, block: _Block) -> Array:
        mean: Array = block.mean + block.slope @ self._weights
        mean[block.excluded] = mean.max() + _NEVER
        return mean

    def exclude(self, problem: int, contender: int) -> None:
        """Exclude a contender that cannot run. It is chosen only if no other contender is left."""
        block = self._blocks[problem]
        block.given_up.add(contender)
        if contender not in block.excluded and len(block.excluded) + 1 < len(block.mean):
            block.excluded.append(contender)

    def choice(self, problem: int) -> int:
        """Return the index of a problem's contender of lowest expected cost."""
        return int(self._mean(self._blocks[problem]).argmin())

    def regret(self, problem: int) -> float:
        """Return the expected regret of a problem's current choice."""
        return self.prospects(problem)[0]

    def prospects(self, problem: int) -> tuple[float, Array]:
        """Return (expected regret of a problem's current choice, probability that each contender is the best)."""
        costs = self._random_costs(problem)
        stated, misjudged = self._stated_regret(problem, costs)
        best = np.bincount(costs.argmin(axis=1), minlength=costs.shape[1]) / len(costs)
        return self.record.factor * stated + misjudged, best

    def _stated_regret(self, problem: int, costs: Array) -> tuple[float, float]:
        """Return the expected regret in two parts: (part if the posterior is right about the problem, part if the
        posterior is wrong). Each part is multiplied by its probability."""
        reach = self._reach(problem) / max(1, len(self.measured(problem)))
        regret = float(np.minimum(costs[:, self.choice(problem)] - costs.min(axis=1), reach).mean())
        misjudged = self._misjudged(problem)
        return (1.0 - misjudged) * regret, misjudged * reach

    def unsettled(self, problem: int) -> bool:
        """Return whether a problem has fewer than two measurements, and also contenders that can still be measured."""
        tried = self._blocks[problem].given_up.union(row.contender for row in self.measured(problem))
        contenders = len(self.contenders(problem).expected)
        return len(self.measured(problem)) < 2 and len(tried) < contenders and contenders > 1

    def _misjudged(self, problem: int) -> float:
        return MISJUDGED if len(self.measured(problem)) < 2 and len(self.contenders(problem).expected) > 1 else 0.0

    def _reach(self, problem: int) -> float:
        return max(LEAST_REACH, float(self.contenders(problem).deviation[self.choice(problem)]))

    def _random_costs(self, problem: int) -> Array:
        """Draw random log costs of a problem's C contenders, (draws, C)."""
        mean, covariance = self.expectation(problem)
        degrees = DEGREES + max(0, len(self.measured(problem)) - 1)
        shared, alone = student_draws((self._seed, problem), _DRAWS // 2, len(mean), degrees, DEGREES)
        able, block = np.ones(len(mean)), self._blocks[problem]
        able[block.excluded] = 0.0
        own = able * block.own
        # Remove the error that all contenders share, because it changes no decision and reduces numerical accuracy.
        values, vectors = np.linalg.eigh(_centered(covariance - np.diag(own), able))
        error = shared @ (vectors * np.sqrt(np.maximum(values, 0.0))).T
        error += np.sqrt(own) * alone
        costs = np.empty((2 * len(error), len(mean)))
        np.add(mean, error, out=costs[: len(error)])
        np.subtract(mean, error, out=costs[len(error) :])
        return costs

    def mean_regret(self) -> float:
        """Return the weighted mean of all problems' expected regrets."""
        stated, misjudged = self._stated_regrets()
        return float(np.average(self.record.factor * stated + misjudged, weights=self._problem_weights))

    def regret_bound(self) -> float:
        """Return an upper bound on the weighted mean regret, which holds with probability `LEVEL`."""
        stated, misjudged = self._stated_regrets()
        losses = self.record.mean_losses(stated, misjudged, self._problem_weights, self._seed)
        return float(np.quantile(losses, LEVEL)) + self.overlooked()

    def overlooked(self) -> float:
        """Return by how much the weighted mean regret grows if one problem with few measurements is misjudged."""
        unsettled = np.array([self.unsettled(problem) for problem in range(len(self))])
        return _OVERLOOKED * float((self._problem_weights * unsettled).max() / self._problem_weights.sum())

    def _stated_regrets(self) -> Array:
        return np.array([self._stated_regret(problem, self._random_costs(problem)) for problem in range(len(self))]).T

    def sequence(self, problem: int, most: int, noise: float) -> list[tuple[int, float]]:
        """Plan at most `most` measurements of a problem. Return (contender, weighted gain) of each. `noise` is the
        standard deviation of a measured log cost."""
        mean, covariance = self.expectation(problem)
        weight = self.contenders(problem).weight
        # The best of n measured costs is closer to the hardware's limit than a single cost: n times closer on average,
        # if distances to the limit are exponentially distributed. So divide the reach (maximum regret) by n.
        reach = self._reach(problem) / max(1, len(self.measured(problem)))
        taken = {row.contender for row in self.measured(problem)} | self._blocks[problem].given_up
        chosen: list[tuple[int, float]] = []
        for _ in range(min(most, len(mean) - len(taken))):
            spread = np.sqrt(np.diagonal(covariance) + noise**2)
            gains = expected_fall(mean, covariance / spread, reach)
            gains[list(taken)] = -1.0
            best = int(gains.argmax())
            gain = float(gains[best])
            # After the second measurement, `_misjudged` is 0. The gain includes this decrease of the regret.
            if len(self.measured(problem)) + len(chosen) == 1:
                gain += self._misjudged(problem) * self._reach(problem)
            chosen.append((best, weight * gain))
            taken.add(best)
            move = covariance[:, best] / spread[best]
            covariance = covariance - np.outer(move, move)
        return chosen


def _centered(covariance: Array, able: Array) -> Array:
    across = covariance @ able / able.sum()
    return np.asarray((covariance - across - across[:, None] + across @ able / able.sum()) * np.outer(able, able))


def expected_fall(mean: Array, moves: Array, reach: float) -> Array:
    """Return how much each measurement is expected to reduce the chosen contender's log cost by changing the choice.

    Args:
        mean: Expected log cost of each of C contenders.
        moves: Changes of `mean` if a measurement's outcome in `_outcomes` is 1, array of shape (C, measurements).
        reach: Upper limit of each reduction.
    """
    choice = int(mean.argmin())
    # Compare all costs after each outcome, because the measurement also changes the cost of the current choice.
    after = moves[:, :, None] * _outcomes()
    after += mean[:, None, None]
    fall = after[choice] - after.min(axis=0)
    return np.asarray(np.minimum(fall, reach).mean(axis=1))


@cache
def _outcomes() -> Array:
    """Return equally probable outcomes of a Student's t with 4 degrees of freedom (Shaw, "Sampling Student's T
    distribution", 2006)."""
    probability = (np.arange(_NODES) + 0.5) / _NODES
    inside = 2.0 * np.sqrt(probability * (1.0 - probability))
    ratio = np.cos(np.arccos(np.minimum(inside, 1.0)) / 3.0) / inside
    return np.sign(probability - 0.5) * 2.0 * np.sqrt(np.maximum(ratio - 1.0, 0.0))
