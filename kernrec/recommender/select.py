"""Select candidates by the query's bounds and objective, and merge similar candidates into one row with a count.

The engine selects. Two candidates are alike if each cost differs by less than half a percent, and they differ in one
tunable or run the same machine code. For an op, all configs with the same machine code and block size form one row,
represented by the best. All configs of a user's Triton function have the same arguments, so equal code and grid form
one row. Measured configs are never merged. On a Pareto front each config keeps at most three points: lowest latency,
lowest energy and lowest EDP. Otherwise a single config could fill the front.
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
"""Numbers of the objective, maximum number of picks, maximum power in watts, maximum slowdown, number of the source."""


def bounds_of(query: Query, top: int | None = None) -> Bounds:
    """Return the bounds of a query in the engine's form; `top` replaces the maximum number of picks."""
    source = query.source if query.source in ("transferred", "learned", "measured") else ""
    return (
        OBJECTIVES.index(query.objective),
        query.top if top is None else top,
        inf if query.max_power_w is None else float(query.max_power_w),
        inf if query.max_slowdown is None else float(query.max_slowdown),
        SOURCES.index(Source(source)) if source else -1,
    )


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
    picked = candidates.ranked.ranking.select(candidates.part, bounds_of(query, top), first)
    selected: list[Picked] = reachable(picked, query, candidates.gpu.name)
    return selected


def reachable(picked: Any, query: Query, gpu: str) -> Any:
    """Return the engine's selection; raise `UsageError` if it is a power, because no candidate keeps the bounds."""
    if not isinstance(picked, float):
        return picked
    if isnan(picked):
        raise UsageError(f"nothing {query.source} answers this problem on {gpu}")
    raise UsageError(
        f"no config stays below {query.max_power_w:g} W; the least is {picked:.4g} W"
        " (a lower power limit or clock lowers it)"
    )


def rows_of(
    candidates: CandidateSet, query: Query, first: int = 0, of_op: bool = True
) -> tuple[list[Picked], list[int]]:
    """Return at most `query.top` distinct picks in order, and the number of similar configs that each represents.

    Args:
        candidates: as in `select`, whose errors apply too.
        query: as in `select`.
        first: as in `select`.
        of_op: whether the question is about an op, not about one kernel.
    """
    rows = candidates.ranked.ranking.rows(candidates.part, bounds_of(query), first, query.each_config, of_op)
    picked: tuple[list[Picked], list[int]] = reachable(rows, query, candidates.gpu.name)
    return picked


def pareto_front(latency: np.ndarray, energy: np.ndarray) -> np.ndarray:
    """Return the indices of the Pareto-optimal candidates, fastest first; only the first of equal candidates.

    Args:
        latency: (C,), finite.
        energy: (C,), finite.
    """
    costs = (np.asarray(values, dtype=np.float64) for values in (latency, energy))
    front: np.ndarray = engine.pareto_front(*costs)
    return front
