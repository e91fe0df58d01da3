"""Joint posterior of the best configs of many problems, and the value of measuring one more config.

The log cost of contender c of problem p is its prediction plus an error with parts of different scope:

    shared      x(p, c) . w: one weight vector w for all problems, so each measurement informs about all others
    problem     equal for all contenders of a problem, of any size (`_LEVEL`). This error does not affect decisions, but
                the first measurement contains it
    kernel      equal for all contenders of a kernel on a problem; shared through w like the error of a config
    smooth      specific to a problem, similar for similar configs (Matern 3/2)
    own         specific to a config on a problem, with heavy tails: a few configs are far off, even if similar configs
                are as expected

For a known scale of the errors, all parts are Gaussian and the posterior is exact. For a known w, the problems are
independent. A measurement changes its problem's block and the (F, F) precision of w (Rasmussen and Williams, "Gaussian
Processes for Machine Learning", 2006, section 2.7). Predictions are much worse on some problems than on others, so each
problem has its own scale: a Student-t process with `DEGREES` degrees of freedom (Shah, Wilson, Ghahramani, "Student-t
processes as alternatives to Gaussian processes", 2014), whose common scale follows from the errors of the expectations.

    expected regret   E[cost of the current choice - cost of the best]. The choice has the lowest expected cost. Each
                      difference is bounded (`LEAST_REACH`)
    gain              how much a measurement is expected to reduce its problem's weighted regret: the knowledge gradient
                      with correlated beliefs (Frazier, Powell, Dayanik, "The knowledge-gradient policy for correlated
                      normal beliefs", 2009), over outcomes of a Student's t. Gains on other problems are ignored:
                      including them found no better configs on the recorded problems and took longer

Costs are logarithms, so a regret of 0.02 is 2 % above the best.
"""

import math
from collections.abc import Sequence
from functools import cache

import numpy as np

from kernrec.model.learn.adaptation import matern
from kernrec.model.search.draws import student_draws
from kernrec.model.search.regret_record import RegretRecord
from kernrec.util.light_dataclass import dataclass

Array = np.ndarray

DEGREES = 4.0
"""Degrees of freedom of a problem's errors. With fewer degrees, prediction errors differ more between problems."""
_NODES = 21
"""Number of equally probable outcomes of a measurement over which its gain is averaged."""
SHARED, SMOOTH = 0.4, 0.4
"""Fractions of a config's error variance that are shared between problems, and smooth within a problem. The rest is
individual. They fit the errors of a model of one GPU on problems of another (`tools/evidence refine`).
"""
LEVEL = 0.95
"""Probability of a bound on regrets."""
_LEVEL = 10.0
"""Standard deviation of the error that all contenders of a problem share. The value is large, because otherwise a first
measurement far from its expectation would make choices worse.
"""
_UNIT = math.sqrt((DEGREES - 2.0) / DEGREES)
"""Scale of a Student's t with standard deviation 1."""
_LENGTH = 0.7
"""Length scale of the smooth part. Two random configs have a distance of about 1.4."""
_SCALE_PRIOR = 20.0
"""Weight, in measurements, of the prior assumption that stated deviations are right."""
_NEVER = 20.0
"""Log cost of a contender that cannot run, relative to all others."""
LEAST_REACH = 0.13
"""Minimum bound, in logarithms, on how far the best contender is below the current choice. If predictions are bad, the
bound is the stated deviation of the choice. A predicted best config is near the hardware's limit, so no other config is
far below it. Without a bound, the tails of many slow contenders would dominate the regret (`tools/evidence refine`).
"""
MISJUDGED = 0.04
"""Probability that a problem with fewer than two measured contenders is misjudged beyond the stated errors, so that the
current choice is off by the reach. On recorded problems, misjudgments caused most of the remaining regret of unmeasured
problems, because predictions were sure of them (`tools/evidence refine`).
"""
_OVERLOOKED = math.log(2.0)
"""Loss that a bound must allow for a misjudged problem with fewer than two measurements. On a recorded H100, cuBLAS was
predicted to be the fastest but took more than twice as long as Triton, and no prediction suggested this.
"""
_ROUNDS = 10
_DRAWS = 512
"""Number of draws from the joint posterior for an expected regret."""


@dataclass(frozen=True, eq=False)
class Contenders:
    """Contenders of a problem: the C configs that may be the best."""

    expected: Array
    """Predicted log cost, (C,)."""
    deviation: Array
    """Standard deviation of the error that a config does not share with its kernel's other configs, (C,)."""
    features: Array
    """Features that share errors between problems, (C, F), in logarithms. The length of a row is about the standard
    deviation of the error of its config and its kernel.
    """
    coordinates: Array
    """Points whose distance states how different two configs are, (C, D)."""
    kernel: Array
    """Kernel number of each config, (C,)."""
    of_kernel: float
    """Standard deviation of the error that the contenders of one kernel share."""
    weight: float = 1.0
    """Weight of the problem."""
    inputs: Array | None = None
    """Inputs of trees that learn errors, (C, any number), equal columns in all problems; None without inputs."""


@dataclass(frozen=True)
class Measured:
    """One measurement of a contender."""

    contender: int
    log_cost: float
    """Natural logarithm of the measured cost."""
    noise: float
    """Standard deviation of `log_cost`."""


class _Block:
    """Contenders of one problem given w: log cost = mean + slope . w + error of covariance `covariance`."""

    def __init__(self, contenders: Contenders, scale: float) -> None:
        self.contenders = contenders
        self.expected = contenders.expected  # `relearn` corrects this prediction.
        self.measured: list[Measured] = []
        self.excluded: list[int] = []  # These contenders cannot be chosen.
        self.given_up: set[int] = set()  # These contenders are not measured.
        self.surprise = 0.0  # Sum of squared innovations over their variances at scale 1
        self.scale = scale
        self._correlation = SMOOTH * matern(contenders.coordinates, contenders.coordinates, _LENGTH)
        self._correlation += (1.0 - SHARED - SMOOTH) * np.eye(len(contenders.expected))
        self._same_kernel = (contenders.kernel[:, None] == contenders.kernel).astype(float)
        self.update(scale)

    def update(self, common: float) -> None:
        """Condition on the measurements.

        Args:
            common: Common scale of all problems.
        """
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
        """Return the precision that the measurements add to that of w, (F, F)."""
        return np.asarray(self._informed.T @ self._informed)


class JointPosterior:
    """Joint posterior of the contenders of all problems. `add` accepts measurements in any order."""

    def __init__(self, problems: Sequence[Contenders], seed: int = 0) -> None:
        """Begin with the predictions.

        Args:
            problems: At least one problem; all have the same number of features.
        """
        self._seed = seed
        self.scale = _UNIT
        """Factor of stated deviations: the common scale of Student's t for all problems."""
        self.record = RegretRecord()
        self._left = 1.0  # Corrections leave this fraction of squared errors.
        self._blocks = [_Block(problem, self.scale) for problem in problems]
        self._problem_weights = np.array([problem.weight for problem in problems])
        self._solve()

    def __len__(self) -> int:
        return len(self._blocks)

    def contenders(self, problem: int) -> Contenders:
        """Return the initial contenders of a problem."""
        return self._blocks[problem].contenders

    def measured(self, problem: int) -> Sequence[Measured]:
        """Return the measurements of a problem, in order."""
        return self._blocks[problem].measured

    def _solve(self) -> None:
        precision = np.eye(len(self._blocks[0].pull)) + sum(block.precision for block in self._blocks)
        self._set_weights(precision, sum((block.pull for block in self._blocks), np.zeros_like(self._blocks[0].pull)))

    def _set_weights(self, precision: Array, pull: Array) -> None:
        self._precision, self._pull = precision, pull
        self._covariance = np.linalg.inv(precision)
        self._weights = self._covariance @ pull

    def add(self, problem: int, measured: Measured) -> None:
        """Add a measurement of a problem."""
        block, row = self._blocks[problem], measured.contender
        if block.measured:  # The first measurement contains the problem's common error, which is irrelevant.
            mean, covariance = self.expectation(problem)
            innovation = (measured.log_cost - mean[row]) ** 2
            block.surprise += block.scale**2 * innovation / (covariance[row, row] + measured.noise**2)
        before = block.precision, block.pull
        block.measured.append(measured)
        block.update(self.scale)
        self._set_weights(self._precision + block.precision - before[0], self._pull + block.pull - before[1])

    def watch(self, problem: int, measured: Measured) -> None:
        """Add a new measurement, and record whether the previously stated regret was right."""
        before, _ = self._stated(problem, self._drawn(problem))
        choice = self.choice(problem)
        self.add(problem, measured)
        mean = self._mean(self._blocks[problem])
        after, _ = self._stated(problem, self._drawn(problem))
        self.record.note(before - after, float(mean[choice] - mean.min()))

    def rescale(self) -> None:
        """Estimate the common scale from the measurements."""
        surprises = [(block.surprise, len(block.measured) - 1) for block in self._blocks if len(block.measured) > 1]
        squared, prior = self.scale**2, _UNIT**2 * _SCALE_PRIOR
        for _ in range(_ROUNDS):  # In expectation maximization, a problem with a great surprise counts less.
            weighted = sum(s * (DEGREES + n) / (DEGREES + s / squared) for s, n in surprises)
            squared = (prior + weighted) / (_SCALE_PRIOR + sum(n for _, n in surprises))
        self.scale = math.sqrt(squared)
        for block in self._blocks:
            block.update(self.scale)
        self._solve()

    def relearn(self) -> bool:
        """Correct the predictions by the measurements of other problems, and return whether that helped."""
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
        """Return expected log costs (C,) and their covariance (C, C) of a problem's contenders, without noise."""
        block = self._blocks[problem]
        covariance = block.covariance + block.slope @ self._covariance @ block.slope.T
        covariance[block.excluded] = covariance[:, block.excluded] = 0.0
        return self._mean(block), covariance

    def _mean(self, block: _Block) -> Array:
        mean: Array = block.mean + block.slope @ self._weights
        mean[block.excluded] = mean.max() + _NEVER
        return mean

    def exclude(self, problem: int, contender: int) -> None:
        """Exclude a contender that cannot run. It is not measured again, and is chosen only if no other is left."""
        block = self._blocks[problem]
        block.given_up.add(contender)
        if contender not in block.excluded and len(block.excluded) + 1 < len(block.mean):
            block.excluded.append(contender)

    def choice(self, problem: int) -> int:
        """Return the contender of lowest expected cost."""
        return int(self._mean(self._blocks[problem]).argmin())

    def regret(self, problem: int) -> float:
        """Return the unweighted expected regret of the current choice, corrected by earlier regrets."""
        return self.prospects(problem)[0]

    def prospects(self, problem: int) -> tuple[float, Array]:
        """Return `regret` and the probability of each contender being the best, (C,), from the same draws."""
        costs = self._drawn(problem)
        stated, misjudged = self._stated(problem, costs)
        best = np.bincount(costs.argmin(axis=1), minlength=costs.shape[1]) / len(costs)
        return self.record.factor * stated + misjudged, best

    def _stated(self, problem: int, costs: Array) -> tuple[float, float]:
        """Return the current choice's expected regret if the posterior is right, and if the problem is misjudged."""
        reach = self._reach(problem) / max(1, len(self.measured(problem)))
        regret = float(np.minimum(costs[:, self.choice(problem)] - costs.min(axis=1), reach).mean())
        misjudged = self._misjudged(problem)
        return (1.0 - misjudged) * regret, misjudged * reach

    def unsettled(self, problem: int) -> bool:
        """Return whether a problem has fewer than two measurements, but could have more."""
        tried = self._blocks[problem].given_up.union(row.contender for row in self.measured(problem))
        contenders = len(self.contenders(problem).expected)
        return len(self.measured(problem)) < 2 and len(tried) < contenders and contenders > 1

    def _misjudged(self, problem: int) -> float:
        return MISJUDGED if len(self.measured(problem)) < 2 and len(self.contenders(problem).expected) > 1 else 0.0

    def _reach(self, problem: int) -> float:
        """Return the maximum distance of the best contender below the current choice."""
        return max(LEAST_REACH, float(self.contenders(problem).deviation[self.choice(problem)]))

    def _drawn(self, problem: int) -> Array:
        """Return draws of the log costs of a problem's contenders, up to a common constant, (draws, C)."""
        mean, covariance = self.expectation(problem)
        degrees = DEGREES + max(0, len(self.measured(problem)) - 1)
        shared, alone = student_draws((self._seed, problem), _DRAWS // 2, len(mean), degrees, DEGREES)
        able, block = np.ones(len(mean)), self._blocks[problem]
        able[block.excluded] = 0.0
        own = able * block.own
        # The error that all contenders share does not affect decisions and would reduce accuracy.
        values, vectors = np.linalg.eigh(_centered(covariance - np.diag(own), able))
        error = shared @ (vectors * np.sqrt(np.maximum(values, 0.0))).T
        error += np.sqrt(own) * alone
        costs = np.empty((2 * len(error), len(mean)))
        np.add(mean, error, out=costs[: len(error)])
        np.subtract(mean, error, out=costs[len(error) :])
        return costs

    def mean_regret(self) -> float:
        """Return the expected regret of the current choices, the weighted mean over problems."""
        stated, misjudged = self._all_stated()
        return float(np.average(self.record.factor * stated + misjudged, weights=self._problem_weights))

    def regret_bound(self) -> float:
        """Return the upper bound, with probability `LEVEL`, on the weighted mean regret of the current choices."""
        stated, misjudged = self._all_stated()
        losses = self.record.mean_losses(stated, misjudged, self._problem_weights, self._seed)
        return float(np.quantile(losses, LEVEL)) + self.overlooked()

    def overlooked(self) -> float:
        """Return the weighted mean regret that misjudging the heaviest unsettled problem would add."""
        unsettled = np.array([self.unsettled(problem) for problem in range(len(self))])
        return _OVERLOOKED * float((self._problem_weights * unsettled).max() / self._problem_weights.sum())

    def _all_stated(self) -> Array:
        """Return each problem's expected regret, (2, problems): if the posterior is right, and if it is wrong."""
        return np.array([self._stated(problem, self._drawn(problem)) for problem in range(len(self))]).T

    def sequence(self, problem: int, most: int, noise: float) -> list[tuple[int, float]]:
        """Return contender and weighted gain of each next measurement on a problem, as if there were no other problem.

        Each measurement has the greatest gain if earlier ones give the expected result ("kriging believer"). After n
        measurements, a gain is at most 1/n of the largest initial gain: the best of n configs is on average 1/n as far
        from what the hardware can do as a single config (the minimum of n exponential distances). Without this limit,
        the gains of measured problems are overestimated, and other problems are left unmeasured.

        Args:
            most: Maximum number of measurements. Measured contenders are excluded.
            noise: Standard deviation of the logarithm of a measurement.
        """
        mean, covariance = self.expectation(problem)
        weight = self.contenders(problem).weight
        reach = self._reach(problem) / max(1, len(self.measured(problem)))
        taken = {row.contender for row in self.measured(problem)} | self._blocks[problem].given_up
        chosen: list[tuple[int, float]] = []
        for _ in range(min(most, len(mean) - len(taken))):
            spread = np.sqrt(np.diagonal(covariance) + noise**2)
            gains = expected_fall(mean, covariance / spread, reach)
            gains[list(taken)] = -1.0
            best = int(gains.argmax())
            gain = float(gains[best])
            # The second measurement shows whether predictions are wrong.
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
    """Return how much each measurement is expected to lower the minimum of the expected log costs `mean`, (C,).

    Args:
        moves: Change of each cost if the measurement deviates by one scale, (C, measurements).
        reach: Bound on the reduction.
    """
    choice = int(mean.argmin())
    # The current choice's cost changes, too, but not on average.
    after = moves[:, :, None] * _outcomes()
    after += mean[:, None, None]
    fall = after[choice] - after.min(axis=0)
    return np.asarray(np.minimum(fall, reach).mean(axis=1))


@cache
def _outcomes() -> Array:
    """Return the midpoints, in probability, of equally probable intervals of a Student's t with `DEGREES` = 4.

    The quantile function has a closed form for 4 degrees of freedom (Shaw, "Sampling Student's T distribution", 2006).
    """
    probability = (np.arange(_NODES) + 0.5) / _NODES
    inside = 2.0 * np.sqrt(probability * (1.0 - probability))
    ratio = np.cos(np.arccos(np.minimum(inside, 1.0)) / 3.0) / inside
    return np.sign(probability - 0.5) * 2.0 * np.sqrt(np.maximum(ratio - 1.0, 0.0))
