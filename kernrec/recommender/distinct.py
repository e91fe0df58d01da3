"""Rows that are answers of their own: candidates that are as good as the same are one row, which says how many.

Two candidates are alike where they differ in one tunable, or in arguments of the same machine code, and by less than
half a percent in each cost; of an op's kernels, the same machine code in blocks of the same size is one row whatever
its arguments, the best of which are shown. A user's Triton function has the same arguments in all configs, so those of
the same code and grid are one row. Measured configs are never hidden. Of a front, which has a point
for each power limit, a config keeps its fastest, its most frugal and its balanced point, else one config would fill it.
"""

import math
from bisect import bisect_right
from collections.abc import Sequence
from operator import ne
from typing import Any

import numpy as np

from kernrec.recommender.candidates import Array, CandidateSet
from kernrec.recommender.estimate.estimates import MEASURED
from kernrec.recommender.estimate.static_table import StaticTable
from kernrec.recommender.pareto import spread
from kernrec.recommender.request import Objective, Query
from kernrec.recommender.select import Picked, select

SAME = 0.005
"""Costs that differ by less are the same: repeats of a measurement spread by 0.5 to 1 %."""
LISTED = 8
"""So many times the rows wanted are looked at, for most of the best are alike."""
_WHOLE = 1 << 20
"""More than any front has."""


def rows_of(candidates: CandidateSet, query: Query, first: int = 0, of_op: bool = True) -> list[tuple[Picked, int]]:
    """At most `query.top` picks in order that are no repetitions, each with how many alike it stands for.

    The arguments and the error are those of `select`; of_op: whether the question is about an op, not one kernel.
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
    """The first `top` of some picks that are not alike, in order, each with how many alike come after it.

    Args:
        candidates: the set that was picked from.
        picked: best first.
        which: the costs (points, C) that the objective counts.
        top: how many rows are wanted.
        by_code: whether the same machine code is one row whatever it costs.
    """
    starts = candidates.starts
    kinds = [(bisect_right(starts, position) - 1, point) for point, position in picked]
    if len(set(kinds)) == len(kinds):  # configs are alike at one operating point of one kernel alone
        return [(pick, 0) for pick in picked[:top]]
    logarithms = [[math.log(table.item(pick)) for pick in picked] for table in which]
    first_cost, last_cost = logarithms[0], logarithms[-1]  # there are one or two
    measured = [False] * len(picked)
    if candidates.any_measured:
        measured = [candidates.latency_source.item(pick) == MEASURED for pick in picked]
    codes, tunables = _described(candidates, [number for number, _ in kinds], [position for _, position in picked])
    leaders: dict[tuple[int, int], list[int]] = {}  # the places of rows among the picks
    alike: dict[int, int] = {}  # by place of a row
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
    """(warps and machine code, values of tunables) of candidates, whose kernels are given by number."""
    codes: list[list[int]] = [[]] * len(numbers)
    tunables = codes.copy()
    for number in dict.fromkeys(numbers):
        kernel = candidates.kernels[number]
        mine = [place for place, other in enumerate(numbers) if other == number]
        start = candidates.starts[number]
        rows = kernel.rows.take([positions[place] - start for place in mine])
        table, on_problem = kernel.table, kernel.runnable.on_problem
        code = table.machine_code(on_problem, rows)
        if _is_a_call(table):
            code = np.stack([code[:, 0], _launches(table, on_problem, rows)], axis=1)
        for place, of_code, values in zip(mine, code.tolist(), table.tunables.take(rows, axis=0).tolist(), strict=True):
            codes[place], tunables[place] = of_code, values
    return codes, tunables


def _is_a_call(table: StaticTable) -> bool:
    """Whether a kernel is a call of a Triton function, whose configs differ in their code and grid alone."""
    return table.kernel.triton is not None and table.kernel.sampled


def _launches(table: StaticTable, on_problem: Any, rows: Array) -> Array:
    """For each of some rows of a call a number, the same where code and grid are: where a block was counted to do the
    same in every respect, it ran the same code."""
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
    """The points of a front without those of a config that lie between its ends and the least energy x latency."""
    by_config: dict[int, list[Picked]] = {}
    for pick in front:
        by_config.setdefault(pick[1], []).append(pick)
    if max(map(len, by_config.values())) <= 2:  # both are ends
        return list(front)
    chosen: set[Picked] = set()
    for picks in by_config.values():
        balanced = min(picks, key=lambda pick: candidates.latency_s.item(pick) * candidates.energy_j.item(pick))
        chosen.update((picks[0], balanced, picks[-1]))
    return [pick for pick in front if pick in chosen]
