"""The saving that costs no time: the first choice's config at a lower power limit, or at a lower clock."""

from collections.abc import Sequence

import numpy as np

from kernrec.model.prior.launch_costs import NominalCosts
from kernrec.recommender.candidate_set import CandidateSet
from kernrec.recommender.estimate.costs import ENERGY_DRIFT, LATENCY_DRIFT
from kernrec.recommender.estimate.operating_point import OperatingPoint
from kernrec.recommender.request import Query
from kernrec.recommender.result import Saving
from kernrec.recommender.select import Picked

LIMIT_STEP_W = 10.0
"""Steps of the limits that are tried for a config that is estimated at the default limit alone."""
NO_LOSS = 2.0 * LATENCY_DRIFT
"""Largest slowdown that counts as none: that of a card that drifted by as much as is let pass, to both sides."""
WORTH_SAYING = 2.0 * ENERGY_DRIFT
"""Least share of the energy that is worth a line, for the same reason."""


def saving_of(candidates: CandidateSet, picked: Picked, query: Query) -> Saving | None:
    """The most energy that a picked candidate saves at another operating point than the first, without loss of time.

    A candidate set at one point, as an objective of latency alone has, knows nothing of others: there the prior says by
    what share time and energy change at lower power limits.

    Returns:
        None where a power limit or clock was asked for, or the saving is too small.
    """
    if query.power_limit_w is not None or query.clock_hz is not None:
        return None
    _, position = picked
    points: Sequence[OperatingPoint] = candidates.points[1:]
    latency, energy = candidates.latency_s[:, position], candidates.energy_j[:, position]
    if not points:
        gpu, (_, kernel, own) = candidates.gpu, candidates.locate(position)
        nominal, power = kernel.prediction.at(own), kernel.table.power
        if nominal.core_s * power.boost_hz > nominal.dram_s * power.running_hz:
            return None  # bound by the core's clock: every watt less costs time
        limits = np.append(gpu.tdp_w, np.arange(gpu.power_min_w, gpu.tdp_w, LIMIT_STEP_W))
        repeated = NominalCosts(*(np.full(len(limits), part) for part in vars(nominal).values()))
        limited = power.apply_power_limit(repeated, limits)
        latency, energy = limited.latency_s, limited.energy_j
        points = [OperatingPoint(limit_w) for limit_w in limits[1:].tolist()]
    slowdown, saved = latency[1:] / latency[0] - 1.0, 1.0 - energy[1:] / energy[0]
    free = np.where(slowdown <= NO_LOSS, saved, -1.0)
    if not len(free) or free.max() < WORTH_SAYING:
        return None
    best = int(free.argmax())
    return Saving(points[best], points[best].limit_w(candidates.gpu), float(slowdown[best]), float(saved[best]))
