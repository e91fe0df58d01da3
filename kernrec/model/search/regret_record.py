"""Whether stated regrets came true: by how much measurements were stated to lower them, and what they gained.

An expected regret that is right falls, on average, by as much as the choice gets better, whatever is measured and
whenever it ends: E[regret before - regret after] = E[cost of the choice before - cost of the choice after]. So over the
last measurements of a run the two sums differ only by chance and by how wrong stated regrets are, and their ratio
corrects the regrets that are left.

Few problems are misjudged, but then by much. So what is lost is a compound Poisson sum: losses of exponential size
(mean `jump`), as many as the corrected regret makes likely. The same distribution of the gains that were seen makes the
factor a gamma variable, and its uncertainty is part of the bound.
"""

import math

import numpy as np

Array = np.ndarray

_MEMORY = 60.0
"""Measurements after which one counts 1/e: predictions get better, and older ones tell of other beliefs."""
_PRIOR = 4.0
"""The belief that regrets are right as stated, in losses seen."""
_JUMP, _JUMP_PRIOR = 0.065, 4.0
"""Mean loss on a problem whose choice is wrong, in logarithms, and how many losses that belief is worth."""
_DRAWS = 2048


class RegretRecord:
    """The record of stated regrets and of what was gained; begins with the belief that they are right."""

    def __init__(self) -> None:
        self._keep = math.exp(-1.0 / _MEMORY)
        self._stated = self._gained = self._squared = 0.0

    def note(self, stated: float, gained: float) -> None:
        """Take a measurement into account; stated: fall of its problem's regret; gained: that of its choice's cost."""
        self._stated = self._keep * self._stated + stated
        self._gained = self._keep * self._gained + gained
        self._squared = self._keep * self._squared + gained**2

    @property
    def jump(self) -> float:
        """Mean loss on a problem whose choice is wrong: half the ratio of the second moment to the first."""
        return (_JUMP_PRIOR * _JUMP**2 + self._squared / 2.0) / (_JUMP_PRIOR * _JUMP + self._gained)

    def _gamma(self) -> tuple[float, float]:
        """Shape and rate of the distribution of the factor."""
        return _PRIOR + self._gained / self.jump, _PRIOR + max(0.0, self._stated) / self.jump

    @property
    def factor(self) -> float:
        """The factor that corrects stated regrets."""
        shape, rate = self._gamma()
        return shape / rate

    def mean_losses(self, stated: Array, misjudged: Array, weights: Array, seed: int) -> Array:
        """Draws of the weighted mean loss over problems, (draws,).

        Args:
            stated: expected regret of each problem by the model, not corrected.
            misjudged: expected regret of each problem where no belief about it holds.
            weights: of the problems.
            seed: of the draws.
        """
        draw = np.random.default_rng(seed)
        shape, rate = self._gamma()
        factors = draw.gamma(shape, 1.0 / rate, (_DRAWS, 1))
        wrong = draw.poisson((factors * stated + misjudged) / self.jump)
        return np.asarray(self.jump * draw.standard_gamma(wrong) @ weights / weights.sum())
