"""Select candidates by the query's bounds and objective, and merge similar candidates into one row with a count.

Two candidates are alike if each cost differs by less than half a percent, and they differ in one tunable or run the
same machine code. For an op, all configs with the same machine code and block size form one row, represented by the
best. All configs of a user's Triton function have the same arguments, so equal code and grid form one row. Measured
configs are never merged. On a Pareto front each config keeps at most three points: lowest latency, lowest energy and
lowest EDP. Otherwise a single config could fill the front.
"""

import math
from bisect import bisect_right
from collections.abc import Sequence
from operator import itemgetter, ne
from typing import Any

import numpy as np

from kernrec.errors import UsageError
from kernrec.model.prior.spread import SOURCES, Source
from kernrec.recommender.candidates import Array, CandidateSet
from kernrec.recommender.estimate.costs import MEASURED
from kernrec.recommender.estimate.static_table import StaticTable
from kernrec.recommender.request import Objective, Query


def pareto_front(latency: np.ndarray, energy: np.ndarray) -> np.ndarray:
    """Return the indices of the Pareto-optimal candidates, fastest first; only the first of equal candidates.

    Before sorting, remove candidates slower than the lowest-energy candidate, or using more energy than the fastest.
    A few dozen remain, and lists of this size sort faster than arrays.

    Args:
        latency: (C,), finite.
        energy: (C,), finite.
    """
    fastest, lowest_energy = latency.argmin(), energy.argmin()
    between = ((latency <= latency[lowest_energy]) & (energy <= energy[fastest])).nonzero()[0]
    front: list[int] = []
    least_j = np.inf
    for _, joules, candidate in sorted(
        zip(latency.take(between).tolist(), energy.take(between).tolist(), between.tolist(), strict=True)
    ):
        if joules < least_j:
            front.append(candidate)
            least_j = joules
    return np.array(front, dtype=np.int64)


def spread(front: np.ndarray, latency: np.ndarray, energy: np.ndarray, count: int) -> np.ndarray:
    """Return at most `count` points of a front: both ends, then repeatedly the point farthest from the selected points.

    Args:
        front: indices, fastest first, as from `pareto_front`; the result has the same order.
        latency: (C,).
        energy: (C,).
        count: maximum number of points.
    """
    if len(front) <= count:
        return front
    if count == 1:
        # A single answer for two costs has the lowest energy-delay product.
        return front[[(latency[front] * energy[front]).argmin()]]
    x, y = np.log(latency[front]), np.log(energy[front])
    chosen = [0, len(front) - 1]
    distance = np.minimum(np.hypot(x - x[0], y - y[0]), np.hypot(x - x[-1], y - y[-1]))
    while len(chosen) < count:
        far = int(distance.argmax())
        chosen.append(far)
        distance = np.minimum(distance, np.hypot(x - x[far], y - y[far]))
    return front[sorted(chosen)]


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


SAME = 0.005
"""Relative cost difference below which configs are alike. Repeated measurements differ by 0.5 to 1 %."""
LISTED = 8
"""Number of candidates examined per requested row, because most of the best candidates are alike."""
_WHOLE = 1 << 20
"""Row limit that exceeds the size of any front."""


def rows_of(candidates: CandidateSet, query: Query, first: int = 0, of_op: bool = True) -> list[tuple[Picked, int]]:
    """Return at most `query.top` distinct picks in order, each with the number of similar configs it represents.

    Args:
        candidates: as in `select`, whose errors apply too.
        query: as in `select`.
        first: as in `select`.
        of_op: whether the question is about an op, not about one kernel.
    """
    if query.top == 1 or query.each_config:
        return [(pick, 0) for pick in select(candidates, query, first)]
    front = query.objective is Objective.PARETO
    picked = select(candidates, query, first, _WHOLE if front else LISTED * query.top)
    if not front:
        costs = query.objective.value_of(candidates.latency_s, candidates.energy_j)
        return distinct(candidates, picked, [costs], query.top, of_op)
    which = [candidates.latency_s, candidates.energy_j]
    rows = distinct(candidates, _thinned(candidates, picked), which, _WHOLE, of_op)
    if len(rows) <= query.top:
        return rows
    latency, energy = (np.array([costs.item(pick) for pick, _ in rows]) for costs in which)
    return [rows[place] for place in spread(np.arange(len(rows)), latency, energy, query.top).tolist()]


def distinct(
    candidates: CandidateSet, picked: Sequence[Picked], which: Sequence[Array], top: int, by_code: bool = True
) -> list[tuple[Picked, int]]:
    """Return the first `top` distinct picks in order, each with the number of similar picks after it.

    Args:
        candidates: the set that was picked from.
        picked: picks, best first.
        which: costs that the objective counts, (points, C) each.
        top: maximum number of rows.
        by_code: merge configs with the same machine code at any cost.
    """
    starts, kinds = candidates.starts, []
    for point, position in picked:
        kinds.append((bisect_right(starts, position) - 1, point))
    if len(set(kinds)) == len(kinds):  # Configs can be alike only within one kernel and operating point.
        return [(pick, 0) for pick in picked[:top]]
    places = tuple(zip(*picked, strict=True))
    # An objective counts one or two costs.
    first_cost, last_cost = list(map(math.log, which[0][places])), list(map(math.log, which[-1][places]))
    measured = [False] * len(picked)
    if candidates.any_measured:
        measured = (candidates.latency_source[places] == MEASURED).tolist()
    codes, tunables = _described(candidates, list(map(itemgetter(0), kinds)), places[1])
    leaders: dict[tuple[int, int], list[int]] = {}  # Each value is the position of a row among the picks.
    alike: dict[int, int] = {}  # Counts of similar picks are stored by the position of the row.
    for place, kind in enumerate(kinds):
        whole = by_code or _is_a_call(candidates.kernels[kind[0]].table)
        code, cost, other_cost = codes[place], first_cost[place], last_cost[place]
        among = [] if measured[place] else leaders.setdefault(kind, [])
        for leader in among:
            same = code == codes[leader]
            if same and whole:
                break
            close = abs(cost - first_cost[leader]) < SAME and abs(other_cost - last_cost[leader]) < SAME
            if close and (same or sum(map(ne, tunables[leader], tunables[place])) == 1):
                break
        else:
            if len(alike) < top:
                alike[place] = 0
                among.append(place)
            continue
        alike[leader] += 1
    return [(picked[place], count) for place, count in alike.items()]


def _described(
    candidates: CandidateSet, numbers: Sequence[int], positions: Sequence[int]
) -> tuple[list[list[int]], list[list[int]]]:
    """Return (warps and machine code, tunable values) of candidates, given the number of each candidate's kernel."""
    codes: list[list[int]] = [[]] * len(numbers)
    tunables = codes.copy()
    for number in dict.fromkeys(numbers):
        kernel = candidates.kernels[number]
        mine = [place for place, other in enumerate(numbers) if other == number]
        start = candidates.starts[number]
        rows = kernel.rows.take([positions[place] - start for place in mine])
        table, on_problem = kernel.table, kernel.prediction.on_problem
        code = table.machine_code(on_problem, rows)
        if _is_a_call(table):
            code = np.stack([code[:, 0], _launches(table, on_problem, rows)], axis=1)
        for place, of_code, values in zip(mine, code.tolist(), table.tunables.take(rows, axis=0).tolist(), strict=True):
            codes[place], tunables[place] = of_code, values
    return codes, tunables


def _is_a_call(table: StaticTable) -> bool:
    """Return whether a kernel is a call of a Triton function, whose configs differ only in code and grid."""
    return table.kernel.triton is not None and table.kernel.sampled


def _launches(table: StaticTable, on_problem: Any, rows: Array) -> Array:
    """Return a number for each row of a call; rows with equal code and grid share a number.

    Code counts as equal if all counts of a block are equal.
    """
    (launch,), (spec,) = table.launches, table.kernel.launches
    profiles = launch.profiles
    grid = [np.broadcast_to(np.asarray(on_problem.column(extent)), len(table)).take(rows) for extent in spec.grid]
    numbers: dict[tuple[Any, ...], int] = {}
    result = np.zeros(len(rows), dtype=np.int64)
    for place, variant in enumerate(launch.variant.take(rows).tolist()):
        resources = int(profiles.registers[variant]), int(profiles.static_smem_bytes[variant])
        key = (profiles.counts[variant].tobytes(), *resources, *(int(extent[place]) for extent in grid))
        result[place] = numbers.setdefault(key, len(numbers))
    return result


def _thinned(candidates: CandidateSet, front: Sequence[Picked]) -> list[Picked]:
    """Return a front with at most three points per config: lowest latency, lowest energy and lowest EDP."""
    by_config: dict[int, list[Picked]] = {}
    for pick in front:
        by_config.setdefault(pick[1], []).append(pick)
    if max(map(len, by_config.values())) <= 2:  # Two points are always the ends.
        return list(front)
    chosen: set[Picked] = set()
    for picks in by_config.values():
        balanced = min(picks, key=lambda pick: candidates.latency_s.item(pick) * candidates.energy_j.item(pick))
        chosen.update((picks[0], balanced, picks[-1]))
    return [pick for pick in front if pick in chosen]
