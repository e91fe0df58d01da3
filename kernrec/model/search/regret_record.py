"""Correct expected regrets with the improvements that measurements actually bring.

If a model is right, a measurement reduces the expected regret of a problem, on average, by as much as the choice
improves. Otherwise, the ratio of total improvement to total reduction corrects the remaining regrets. Both totals
include only recent measurements.

The actual loss of all problems is a compound Poisson sum: few problems have a wrong choice, but each wrong choice costs
much. Losses are exponentially distributed with the mean `jump`, so the correction has a gamma distribution.
"""

import math

import numpy as np

Array = np.ndarray

_MEMORY = 60.0
"""Number of measurements after which the weight of a measurement falls to 1/e."""
_PRIOR = 4.0
"""Weight of the assumption that stated regrets are right, as a number of observed losses."""
_JUMP, _JUMP_PRIOR = 0.065, 4.0
"""Prior mean of the log loss on a problem with a wrong choice, and the weight of this prior as a number of losses."""
_DRAWS = 2048


class RegretRecord:
    """Record of the regrets that a model stated, and of the actual improvements."""

    def __init__(self) -> None:
        self._keep = math.exp(-1.0 / _MEMORY)
        self._stated = self._gained = self._squared = 0.0

    def note(self, stated: float, gained: float) -> None:
        """Record how much a measurement reduced the stated regret (`stated`) and the log cost of the choice
        (`gained`)."""
        self._stated = self._keep * self._stated + stated
        self._gained = self._keep * self._gained + gained
        self._squared = self._keep * self._squared + gained**2

    @property
    def jump(self) -> float:
        """Return the mean log loss on a problem with a wrong choice."""
        return (_JUMP_PRIOR * _JUMP**2 + self._squared / 2.0) / (_JUMP_PRIOR * _JUMP + self._gained)

    def _gamma(self) -> tuple[float, float]:
        return _PRIOR + self._gained / self.jump, _PRIOR + max(0.0, self._stated) / self.jump

    @property
    def factor(self) -> float:
        """Return the factor by which to multiply uncorrected expected regrets."""
        shape, rate = self._gamma()
        return shape / rate

    def mean_losses(self, stated: Array, misjudged: Array, weights: Array, seed: int) -> Array:
        """Return random draws of the weighted mean loss over P problems, (draws,).

        Args:
            stated: Uncorrected expected regret of each problem if the model is right.
            misjudged: Additional expected regret of each problem if the model misjudges the problem.
            weights: Weight of each problem.
            seed: Seed of the draws.
        """
        draw = np.random.default_rng(seed)
        shape, rate = self._gamma()
        factors = draw.gamma(shape, 1.0 / rate, (_DRAWS, 1))
        wrong = draw.poisson((factors * stated + misjudged) / self.jump)
        return np.asarray(self.jump * draw.standard_gamma(wrong) @ weights / weights.sum())
