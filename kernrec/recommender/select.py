"""Select candidates by the query's bounds and objective, and merge similar candidates into one row with a count.

Similar candidates differ in cost by less than half a percent. They have the same machine code or differ in one tunable.
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
"""Bounds of a query for the engine: index of the objective, number of picks, maximum power in watts, maximum slowdown
as a fraction, and index of the only source (-1 for all)."""


def bounds_of(query: Query) -> Bounds:
    """Return the bounds of a query in the engine's form."""
    source = query.source if query.source in ("transferred", "learned", "measured") else ""
    return (
        OBJECTIVES.index(query.objective),
        query.top,
        inf if query.max_power_w is None else float(query.max_power_w),
        inf if query.max_slowdown is None else float(query.max_slowdown),
        SOURCES.index(Source(source)) if source else -1,
    )


def select(candidates: CandidateSet, query: Query) -> list[Picked]:
    """Return at most `query.top` candidates of a non-empty set, best first (fastest first on a Pareto front).

    Raise `UsageError` if no candidate satisfies the bounds.
    """
    picked = candidates.ranked.ranking.select(candidates.part, bounds_of(query), 0)
    selected: list[Picked] = reachable(picked, query, candidates.gpu.name)
    return selected


def reachable(picked: Any, query: Query, gpu: str) -> Any:
    """Return the engine's picks. Raise `UsageError` if no candidate satisfies the bounds.

    `picked` is then the lowest power of any candidate in watts, or NaN if no candidate has the requested source.
    """
    if not isinstance(picked, float):
        return picked
    if isnan(picked):
        raise UsageError(f"no {query.source} result for this problem on {gpu}; omit --source")
    raise UsageError(
        f"no config stays below {query.max_power_w:g} W; the lowest is {picked:.4g} W:"
        " give a lower power limit or clock"
    )


def rows_of(
    candidates: CandidateSet, query: Query, first: int = 0, of_op: bool = True
) -> tuple[list[Picked], list[int]]:
    """Return at most `query.top` candidates of a non-empty set, best first, and the number of similar configs of each.

    `first` is the index of the first operating point to use. `of_op` is false if the request is about one kernel.
    """
    rows = candidates.ranked.ranking.rows(candidates.part, bounds_of(query), first, query.each_config, of_op)
    picked: tuple[list[Picked], list[int]] = reachable(rows, query, candidates.gpu.name)
    return picked


def pareto_front(latency: np.ndarray, energy: np.ndarray) -> np.ndarray:
    """Return the indices of the Pareto-optimal candidates, fastest first. Both costs, (C,), must be finite."""
    costs = (np.asarray(values, dtype=np.float64) for values in (latency, energy))
    front: np.ndarray = engine.pareto_front(*costs)
    return front
