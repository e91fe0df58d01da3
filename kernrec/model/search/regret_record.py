"""Check whether stated regrets (expected losses) were right: compare predicted reductions with actual gains.

On average, a correct expected regret falls by as much as the choice improves, for any measurements and stopping time:
E[regret before - regret after] = E[cost of the choice before - cost of the choice after]. So over the last
measurements of a run, both sums differ only by chance and by errors of the stated regrets. Their ratio corrects the
remaining regrets.

Few problems are misjudged, but these by much. So the loss is a compound Poisson sum: losses of exponential size (mean
`jump`), with a rate from the corrected regret. The same distribution of the observed gains makes the factor a gamma
variable, and its uncertainty is part of the bound.
"""

import math

import numpy as np

Array = np.ndarray

_MEMORY = 60.0
"""Number of measurements after which the weight of a measurement falls to 1/e, because predictions improve."""
_PRIOR = 4.0
"""Weight of the prior assumption that stated regrets are right, as a number of losses."""
_JUMP, _JUMP_PRIOR = 0.065, 4.0
"""Prior mean of the log loss on a problem with a wrong choice, and the weight of this prior as a number of losses."""
_DRAWS = 2048


class RegretRecord:
    """Record of stated regrets and actual gains; initially, it assumes that the regrets are right."""

    def __init__(self) -> None:
        self._keep = math.exp(-1.0 / _MEMORY)
        self._stated = self._gained = self._squared = 0.0

    def note(self, stated: float, gained: float) -> None:
        """Record a measurement.

        Args:
            stated: Reduction of the regret of the measured problem.
            gained: Reduction of the cost of the problem's choice.
        """
        self._stated = self._keep * self._stated + stated
        self._gained = self._keep * self._gained + gained
        self._squared = self._keep * self._squared + gained**2

    @property
    def jump(self) -> float:
        """Return the mean loss on a problem with a wrong choice: half the ratio of the second moment to the first."""
        return (_JUMP_PRIOR * _JUMP**2 + self._squared / 2.0) / (_JUMP_PRIOR * _JUMP + self._gained)

    def _gamma(self) -> tuple[float, float]:
        return _PRIOR + self._gained / self.jump, _PRIOR + max(0.0, self._stated) / self.jump

    @property
    def factor(self) -> float:
        """Return the factor that corrects stated regrets."""
        shape, rate = self._gamma()
        return shape / rate

    def mean_losses(self, stated: Array, misjudged: Array, weights: Array, seed: int) -> Array:
        """Return draws of the weighted mean loss over problems, (draws,).

        Args:
            stated: Expected regret of each problem by the model, not corrected.
            misjudged: Expected regret of each problem if the problem is misjudged.
            weights: Weights of the problems.
            seed: Seed of the draws.
        """
        draw = np.random.default_rng(seed)
        shape, rate = self._gamma()
        factors = draw.gamma(shape, 1.0 / rate, (_DRAWS, 1))
        wrong = draw.poisson((factors * stated + misjudged) / self.jump)
        return np.asarray(self.jump * draw.standard_gamma(wrong) @ weights / weights.sum())
