"""Select candidates by the query's bounds and objective, and merge similar candidates into one row with a count.

The engine does the selection. It merges two candidates if each of their costs differs by less than half a percent, and
if they also run the same machine code or differ in only one tunable. In two cases, it merges candidates whatever their
costs are. For a request about an op, candidates with the same machine code and block size form one row. For a call of a
user's Triton function, candidates with the same machine code and grid form one row. The best candidate represents the
row. Measured configs are never merged.

On a Pareto front, each config keeps at most three operating points: those with the lowest latency, the lowest energy
and the lowest EDP. Otherwise a single config could fill the front.
"""

from math import inf, isnan
from typing import Any, TypeVar

import numpy as np

from kernrec.errors import UsageError
from kernrec.model.analytical.spread import SOURCES, Source
from kernrec.recommender.candidates import OBJECTIVES, CandidateSet, Picked
from kernrec.recommender.request import Query
from kernrec.util.engine import query as engine

_Result = TypeVar("_Result")
Bounds = tuple[int, int, float, float, int]
"""Bounds in the engine's form: index of the objective, maximum number of picks, maximum power in watts, maximum
slowdown as a fraction, and index of the only source that may be picked (-1 for all sources)."""


def bounds_of(query: Query, top: int | None = None) -> Bounds:
    """Return the bounds of a query in the engine's form. If `top` is given, it replaces `query.top`."""
    source = query.source if query.source in ("transferred", "learned", "measured") else ""
    return (
        OBJECTIVES.index(query.objective),
        query.top if top is None else top,
        inf if query.max_power_w is None else float(query.max_power_w),
        inf if query.max_slowdown is None else float(query.max_slowdown),
        SOURCES.index(Source(source)) if source else -1,
    )


def select(candidates: CandidateSet, query: Query, first: int = 0, top: int | None = None) -> list[Picked]:
    """Pick at most `top` candidates of a non-empty set, best first. For a Pareto front, the fastest comes first.

    Args:
        query: bounds and objective.
        first: index of the first operating point to pick from. Earlier operating points serve only as references.
        top: maximum number of picks; None for `query.top`.

    Raises:
        UsageError: no candidate satisfies the bounds.
    """
    picked = candidates.ranked.ranking.select(candidates.part, bounds_of(query, top), first)
    selected: list[Picked] = reachable(picked, query, candidates.gpu.name)
    return selected


def reachable(picked: Any, query: Query, gpu: str) -> Any:
    """Return `picked`. If the engine could not pick any candidate, raise an error instead.

    Args:
        picked: result of the engine. If no candidate satisfies the bounds, it is a number instead of picks: the lowest
            power of any candidate in watts, or NaN if no candidate has the requested source.
        gpu: name of the GPU, for the message.

    Raises:
        UsageError: no candidate satisfies the bounds.
    """
    if not isinstance(picked, float):
        return picked
    if isnan(picked):
        raise UsageError(f"no result for this problem on {gpu} has the source {query.source}; omit --source")
    raise UsageError(
        f"no config stays below {query.max_power_w:g} W; the lowest is {picked:.4g} W:"
        " give a lower power limit or clock"
    )


def rows_of(
    candidates: CandidateSet, query: Query, first: int = 0, of_op: bool = True
) -> tuple[list[Picked], list[int]]:
    """Pick candidates of a non-empty set as `select` does, and merge similar ones.

    Args:
        query: bounds and objective.
        first: index of the first operating point to pick from.
        of_op: whether the request is about an op, not about one kernel.

    Returns:
        At most `query.top` picks, best first, and for each pick the number of similar configs that it represents.

    Raises:
        UsageError: no candidate satisfies the bounds.
    """
    rows = candidates.ranked.ranking.rows(candidates.part, bounds_of(query), first, query.each_config, of_op)
    picked: tuple[list[Picked], list[int]] = reachable(rows, query, candidates.gpu.name)
    return picked


def pareto_front(latency: np.ndarray, energy: np.ndarray) -> np.ndarray:
    """Return the indices of the Pareto-optimal candidates, fastest first. If several candidates have the same latency
    and energy, only the first of them is included. `latency` and `energy`, (C,), must be finite."""
    costs = (np.asarray(values, dtype=np.float64) for values in (latency, energy))
    front: np.ndarray = engine.pareto_front(*costs)
    return front
