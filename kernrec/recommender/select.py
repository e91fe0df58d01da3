"""Select candidates by the query's bounds and objective, and merge similar candidates into one row with a count.

Similar candidates differ in cost by less than half a percent. They have the same machine code or differ in one tunable.
"""

from dataclasses import replace
from math import inf, isinf, isnan
from typing import Any, TypeVar

import numpy as np

from kernrec.errors import KernrecError, UsageError
from kernrec.model.analytical.spread import SOURCES, Source
from kernrec.recommender.candidates import CandidateSet
from kernrec.recommender.request import Objective, Query
from kernrec.util.engine import query as engine

_Result = TypeVar("_Result")
OBJECTIVES = tuple(Objective)
"""All objectives. The C++ engine receives an index in this tuple."""
Bounds = tuple[int, int, float, float, int]
"""Bounds of a query for the engine: index of the objective, number of results, maximum power in watts, maximum slowdown
as a fraction, and index of the only source (-1 for all)."""

_MOST = 1 << 20
"""Limit on the number of results, which exceeds the number of candidates."""


def bounds_of(query: Query) -> Bounds:
    """Return the bounds of a query in the engine's form."""
    source = query.source if query.source in ("transferred", "learned", "measured") else ""
    return (
        OBJECTIVES.index(query.objective),
        min(query.top, _MOST),
        inf if query.max_power_w is None else float(query.max_power_w),
        inf if query.max_slowdown is None else float(query.max_slowdown),
        SOURCES.index(Source(source)) if source else -1,
    )


def reachable(picked: Any, query: Query, gpu: str) -> Any:
    """Return the configs that the engine selected. Raise `UsageError` if there are none.

    If there are none, `picked` is the lowest power of any candidate in watts, or NaN if no candidate has the source.
    """
    if not isinstance(picked, float):
        return picked
    if isnan(picked):
        raise UsageError(f"no {query.source} result for this problem on {gpu}; omit --source")
    raise UsageError(
        f"no config draws at most {query.max_power_w:g} W: the lowest power is {picked:.4g} W;"
        " allow more power, or set a lower power limit or clock"
    )


Row = tuple[Any, ...]
"""Config in the engine's form: index of the kernel, index of the candidate, its tunables, index of the
operating point, then the fields of `Recommendation` from `rank` to `occupancy`, then `heuristic`, `alike`, `unsure` and
`may_be_faster`. Estimates are tuples, and the bottleneck is an index."""


def rows_of(
    candidates: CandidateSet, query: Query, first: int = 0, of_op: bool = True, other_kind: bool = False
) -> tuple[list[Row], list[Row], tuple[float, float]]:
    """Return at most `query.top` candidates of a non-empty set, best first.

    Args:
        first: first operating point to select from. Earlier points serve only for comparison.
        of_op: whether the request is about an op.
        other_kind: whether to add the best CUDA kernel if there are only Triton kernels, and vice versa.

    Returns:
        The candidates, the kernel of the other kind, and latency (s) and energy (J) of the fastest candidate.

    Raises:
        KernrecError: no candidate has an estimate that the laws of physics allow.
    """
    arguments = bounds_of(query), first, query.each_config, of_op, other_kind, SOURCES
    rows = candidates.in_engine.recommended(*arguments)
    picked: tuple[list[Row], list[Row], tuple[float, float]] = reachable(rows, query, candidates.gpu.name)
    if not picked[0] or isinf(picked[2][0]):
        raise KernrecError(f"every predicted time of {candidates.problem.key} is impossible on {candidates.gpu.name}")
    return picked


def select(candidates: CandidateSet, query: Query) -> list[tuple[int, int]]:
    """Return (index of the operating point, index of the candidate) of at most `query.top` candidates, best first.

    On a Pareto front, the fastest is first. Raise the errors of `rows_of`.
    """
    rows, *_ = rows_of(candidates, replace(query, each_config=True))
    return [(point, position) for _, position, _, point, *_ in rows]


def pareto_front(latency: np.ndarray, energy: np.ndarray) -> np.ndarray:
    """Return the indices of the Pareto-optimal candidates, fastest first. Both costs, (C,), must be finite."""
    costs = (np.asarray(values, dtype=np.float64) for values in (latency, energy))
    front: np.ndarray = engine.pareto_front(*costs)
    return front
