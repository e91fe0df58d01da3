"""Correct expected regrets by comparing how much they fell with how much the choices improved.

The regret of a problem is the log cost of the chosen config minus that of the best config. A model states the expected
regret before and after each measurement. If the model is right, the expected regret falls on average by as much as the
choice improves, whatever is measured: E[regret before - regret after] = E[cost of the choice before - cost of the
choice after]. So, summed over recent measurements, the two sides differ only by chance and by errors of the stated
regrets. The ratio of the two sums is used to correct the remaining stated regrets.

Few problems have a wrong choice, but for those the loss is large. So the total loss is modeled as a compound Poisson
sum: the number of losses follows from the corrected regret, and their sizes are exponentially distributed with the mean
`jump`. The observed gains are assumed to follow the same distribution. Then the correction factor has a gamma
distribution, whose uncertainty is included in the bound on the loss.
"""

import math

import numpy as np

Array = np.ndarray

_MEMORY = 60.0
"""Number of measurements after which the weight of a measurement falls to 1/e, because predictions improve."""
_PRIOR = 4.0
"""Weight of the prior assumption that stated regrets are right, expressed as a number of observed losses."""
_JUMP, _JUMP_PRIOR = 0.065, 4.0
"""Prior mean of the log loss on a problem with a wrong choice, and the weight of this prior, expressed as a number of
observed losses."""
_DRAWS = 2048


class RegretRecord:
    """Record of stated regrets and actual gains. Without any measurement, stated regrets are assumed to be right."""

    def __init__(self) -> None:
        self._keep = math.exp(-1.0 / _MEMORY)
        self._stated = self._gained = self._squared = 0.0

    def note(self, stated: float, gained: float) -> None:
        """Record a measurement.

        Args:
            stated: Stated regret of the measured problem before the measurement, minus its stated regret afterwards.
            gained: Expected log cost of the problem's previous choice minus that of its new choice.
        """
        self._stated = self._keep * self._stated + stated
        self._gained = self._keep * self._gained + gained
        self._squared = self._keep * self._squared + gained**2

    @property
    def jump(self) -> float:
        """Return the mean loss on a problem with a wrong choice: mean squared gain / (2 * mean gain)."""
        return (_JUMP_PRIOR * _JUMP**2 + self._squared / 2.0) / (_JUMP_PRIOR * _JUMP + self._gained)

    def _gamma(self) -> tuple[float, float]:
        return _PRIOR + self._gained / self.jump, _PRIOR + max(0.0, self._stated) / self.jump

    @property
    def factor(self) -> float:
        """Return the factor by which stated regrets should be multiplied to correct them."""
        shape, rate = self._gamma()
        return shape / rate

    def mean_losses(self, stated: Array, misjudged: Array, weights: Array, seed: int) -> Array:
        """Return random draws of the weighted mean loss over all problems, (draws,).

        Args:
            stated: Uncorrected expected regret of each problem, if the model is right about the problem.
            misjudged: Additional expected regret of each problem, for the case that the model misjudges the problem.
            weights: Weights of the problems.
            seed: Seed of the draws.
        """
        draw = np.random.default_rng(seed)
        shape, rate = self._gamma()
        factors = draw.gamma(shape, 1.0 / rate, (_DRAWS, 1))
        wrong = draw.poisson((factors * stated + misjudged) / self.jump)
        return np.asarray(self.jump * draw.standard_gamma(wrong) @ weights / weights.sum())
