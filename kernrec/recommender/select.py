"""Select candidates by the query's bounds, then by its objective."""

import numpy as np

from kernrec.errors import UsageError
from kernrec.model.prior.spread import SOURCES, Source
from kernrec.recommender.candidates import Array, CandidateSet
from kernrec.recommender.estimate.estimates import MEASURED
from kernrec.recommender.pareto import pareto_front, spread
from kernrec.recommender.request import Objective, Query

Picked = tuple[int, int]
"""Index of the operating point, and position of the candidate."""


def select(candidates: CandidateSet, query: Query, first: int = 0, top: int | None = None) -> list[Picked]:
    """Return at most `top` picks, best first; for a Pareto front, fastest first.

    Args:
        candidates: a set that is not empty.
        query: bounds and objective.
        first: index of the first operating point to select from; earlier points serve only for comparison.
        top: maximum number of picks; None for `query.top`.

    Raises:
        UsageError: no candidate keeps the bounds.
    """
    latency, energy = candidates.latency_s[first:], candidates.energy_j[first:]
    if candidates.risk is not None:
        latency, energy = latency * candidates.risk, energy * candidates.risk
    count, top = latency.shape[1], query.top if top is None else top
    if len(latency) > 1 and candidates.any_measured:
        # A limit above the power draw has the same prediction as the default limit. Prefer the measured point.
        of_equals = 1.0 - 1e-9 * (candidates.latency_source[first:] == MEASURED)
        latency, energy = latency * of_equals, energy * of_equals
    wanted = None
    if query.source in ("transferred", "learned", "measured"):
        wanted = candidates.latency_source[first:].ravel() == SOURCES.index(Source(query.source))
        if not wanted.any():
            raise UsageError(f"nothing {query.source} answers this problem on {candidates.gpu.name}")
    allowed = None
    if query.max_power_w is not None or query.max_slowdown is not None or wanted is not None:
        allowed = _allowed(latency, candidates.power_w[first:], query, wanted)
    if query.objective is Objective.PARETO:
        flat = latency.ravel(), energy.ravel()
        if allowed is not None:
            flat = flat[0][allowed], flat[1][allowed]
        picked = spread(pareto_front(*flat), *flat, top)
        picked = picked if allowed is None else allowed[picked]
    else:
        picked = _least(query.objective.value_of(latency, energy), allowed, top)
    return [(first + place // count, place % count) for place in picked.tolist()]


def _allowed(latency: Array, power: Array, query: Query, wanted: Array | None) -> Array:
    """Return the ascending indices, in the flattened table, of the entries that keep the bounds."""
    flat, watts = latency.ravel(), power.ravel()
    allowed = np.arange(len(flat)) if wanted is None else np.flatnonzero(wanted)
    if query.max_power_w is not None:
        allowed = allowed[watts[allowed] <= query.max_power_w]
        if not len(allowed):
            raise UsageError(
                f"no config stays below {query.max_power_w:g} W; the least is {watts.min():.4g} W"
                " (a lower power limit or clock lowers it)"
            )
    if query.max_slowdown is not None:
        seconds = flat[allowed]
        allowed = allowed[seconds <= seconds.min() * (1.0 + query.max_slowdown)]
    return allowed


def _least(value: Array, allowed: Array | None, top: int) -> Array:
    """Return the indices of the lowest values, with each candidate at its best operating point. Ties keep the first."""
    points, count = value.shape
    if allowed is not None:
        masked = np.full(value.size, np.inf)
        masked[allowed] = value.ravel()[allowed]
        value = masked.reshape(points, count)
    best = value[0] if points == 1 else value.min(axis=0)
    if top == 1:
        order: Array = np.atleast_1d(best.argmin())
        return order if points == 1 else value.argmin(axis=0)[order] * count + order
    top = min(top, int(np.isfinite(best).sum()))
    ascending = best.copy()
    ascending.partition(top - 1)
    among = (best <= ascending[top - 1]).nonzero()[0]
    order = among[best[among].argsort(kind="stable")][:top]
    return order if points == 1 else value.argmin(axis=0)[order] * count + order
