"""What the candidates of one kernel cost at each of several power limits, measurements included.

A card is measured at one limit as a rule. What was found there counts there as measured; at the other limits it
corrects the predictions, or a config that was found to be slow would be recommended at every limit but that one.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from kernrec.gpu import GPU
from kernrec.kernel import SpaceAt
from kernrec.kernel.space import Space
from kernrec.model.prior.power import LimitedCosts
from kernrec.recommender.estimate.estimates import Estimates, Rescaling, carried_over, prior, with_measured
from kernrec.recommender.estimate.measured_rows import Known, known
from kernrec.store import Evidence, MeasuredAnswer

if TYPE_CHECKING:
    from kernrec.recommender.estimate.correction import Correction


@dataclass(frozen=True)
class AtLimit:
    """Costs at a power limit. measured: what is known of candidates, by position; predicted: all of them as if nothing
    were, on the scale of the measurements.
    """

    estimates: Estimates
    measured: dict[int, MeasuredAnswer]
    predicted: Estimates


def known_at(
    space: Space, at: SpaceAt, gpu: GPU, evidence: Evidence, limits: Sequence[float]
) -> tuple[list[Known], np.ndarray]:
    """What is known at each power limit, and the rows of the space that were measured at any of them.

    `elsewhere` counts what was measured at none of them.
    """
    found = [known(space, at, gpu, evidence, limit, None) for limit in limits]
    rows = np.unique(np.concatenate([one.rows for one in found]))
    return [replace(one, elsewhere=one.elsewhere - len(np.setdiff1d(rows, one.rows))) for one in found], rows


def at_limits(
    limited: Sequence[LimitedCosts], rows: np.ndarray, found: Sequence[Known], correction: "Correction | None" = None
) -> tuple[list[AtLimit], Rescaling | None]:
    """The costs of the candidates in `rows` (ascending) at each limit; what predictions were rescaled by, if at all.

    correction: of the prior, by a model; what it says at the default limit is taken to hold at all of them.

    A limit at which nothing was measured takes its scale from the limit with the most measured configs, the first of
    them where several have as many.
    """
    predicted = [correction.correct(prior(one)) if correction else prior(one) for one in limited]
    results, scales = [], []
    for estimates, one in zip(predicted, found, strict=True):
        positions = np.flatnonzero(np.isin(rows, one.rows))
        taken = [one.measured[i] for i in np.searchsorted(one.rows, rows[positions])]
        if correction and len(positions):
            estimates = correction.adapted(estimates, positions, taken)
        costs, rescaling = with_measured(estimates, positions, taken)
        scaled = rescaling.of(estimates) if rescaling else estimates
        results.append(AtLimit(costs, dict(zip(positions.tolist(), taken, strict=True)), scaled))
        scales.append(rescaling)
    anchor = max(range(len(results)), key=lambda limit: len(results[limit].measured))
    scale = scales[anchor]
    if scale is None:
        return results, None
    there = results[anchor].estimates
    return [
        result
        if result.measured
        else AtLimit(
            carried_over(predicted[limit], there, predicted[anchor], scale), result.measured, scale.of(predicted[limit])
        )
        for limit, result in enumerate(results)
    ], scale
