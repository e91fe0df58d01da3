"""Merge similar candidates into one row with a count.

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

from kernrec.recommender.candidates import Array, CandidateSet
from kernrec.recommender.estimate.estimates import MEASURED
from kernrec.recommender.estimate.static_table import StaticTable
from kernrec.recommender.pareto import spread
from kernrec.recommender.request import Objective, Query
from kernrec.recommender.select import Picked, select

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
