"""Build the answer to a query: recommendations with their ranks, notes and comparisons.

Predicted recommendations rank by expected cost. A predicted rank is ambiguous if the 90 % intervals of two neighbors
overlap. Measured recommendations share a rank if their intervals overlap the interval of the best of them.

A prediction's error has three parts: one is equal for all kernels, one for all configs of a kernel, and one is specific
to the config (see `contenders`). Intervals leave out the parts that the compared configs share.
"""

from collections.abc import Sequence
from functools import lru_cache, partial
from typing import TYPE_CHECKING

import numpy as np

from kernrec.errors import NoKernelError
from kernrec.gpu import GPU
from kernrec.kernel import Kernel
from kernrec.model.analytical.launch_costs import LimitedCosts
from kernrec.model.analytical.spread import SOURCES, Source
from kernrec.op import Problem
from kernrec.recommender.baseline_notes import baseline_notes, without_baseline
from kernrec.recommender.baselines import PREDICTED
from kernrec.recommender.candidates import BOTTLENECKS, CandidateSet
from kernrec.recommender.estimate.costs import ENERGY_DRIFT, LATENCY_DRIFT
from kernrec.recommender.estimate.operating_point import OperatingPoint
from kernrec.recommender.infeasible import EIGHT_BITS, none_runs
from kernrec.recommender.notes import of_conditions, of_kernel, of_recommendations, of_triton
from kernrec.recommender.request import Objective, Query
from kernrec.recommender.result import Answer, Estimate, Foreign, Recommendation, Remark, Saving
from kernrec.recommender.select import Row, rows_of
from kernrec.store import MeasuredAnswer

if TYPE_CHECKING:
    from kernrec.recommender.context import GpuContext

LIMIT_STEP_W = 10.0
"""Step in watts between the power limits that `saving_of` tries."""
NO_LOSS = 2.0 * LATENCY_DRIFT
"""Slowdown, as a fraction, up to which a config counts as equally fast. Measurements can drift by as much."""
WORTH_SAYING = 2.0 * ENERGY_DRIFT
"""Minimum energy saving, as a fraction, that deserves a note. Smaller savings may be drift between measurements."""


def build_recommendations(
    candidates: CandidateSet, rows: Sequence[Row], fastest: tuple[float, float]
) -> tuple[Recommendation, ...]:
    """Build recommendations from the engine's rows.

    Args:
        fastest: latency (s) and energy (J) of the fastest config.
    """
    problem, gpu, recommendations = candidates.problem, candidates.gpu, []
    for (
        number, position, config, point, rank, exact, ambiguous, latency, energy, power_w, clock_hz, bottleneck,
        occupancy, heuristic, alike, unsure, faster,
    ) in rows:  # fmt: skip
        table, measured = candidates.ranked.kernels[number].table, None
        if candidates.any_measured:
            _, kernel, own = candidates.locate(position)
            measured = kernel.measured(point).get(own)
        # Positional arguments halve the time to create a `Recommendation`. They follow the order of its fields.
        recommendations.append(
            Recommendation(
                table.kernel, config, problem, gpu, candidates.points[point], rank, exact, ambiguous,
                Estimate(*latency), Estimate(*energy), power_w, clock_hz, BOTTLENECKS[bottleneck], occupancy, fastest,
                heuristic, measured, alike, unsure, table.conditions.inputs, faster,
            )
        )  # fmt: skip
    return tuple(recommendations)


def build_recommendation(candidates: CandidateSet, point: int, position: int) -> Recommendation:
    """Build a recommendation without a rank for the candidate at index `position`."""
    _, rows, fastest = candidates.in_engine.described(point, position, SOURCES)
    return build_recommendations(candidates, rows, fastest)[0]


def costs_at(candidates: CandidateSet, point: int, position: int) -> tuple[Estimate, Estimate]:
    costs, place = candidates.costs, (point, position)
    return costs.latency.item(place), costs.energy.item(place)


def saving_of(candidates: CandidateSet, position: int, query: Query) -> Saving | None:
    """Return the largest energy saving of a config at an operating point where the config is no slower.

    Return None if the saving is too small to mention, or if the query sets a power limit or clock.
    """
    if query.power_limit_w is not None or query.clock_hz is not None:
        return None
    points: Sequence[OperatingPoint] = candidates.points
    if len(points) > 1:
        best = candidates.in_engine.saving(position, NO_LOSS, WORTH_SAYING)
    else:
        gpu, (number, *nominal) = candidates.gpu, candidates.in_engine.nominal(position)
        power, (core_s, dram_s, *_) = candidates.ranked.kernels[number].table.power, nominal
        if core_s * power.boost_hz > dram_s * power.running_hz:
            return None  # A lower power limit slows the core clock, which is the bottleneck.
        points = _lower_limits(gpu)
        costs = LimitedCosts._make([*power.setting(points).costs(np.array(nominal)[:, np.newaxis])[..., 0], nominal[4]])
        slowdown, saved = (1.0 - values / values[0] for values in (costs.latency_s, costs.energy_j))
        free = np.where(-slowdown <= NO_LOSS, saved, -1.0)
        place = int(free.argmax())
        best = None if free[place] < WORTH_SAYING else (place, -slowdown.item(place), saved.item(place))
    if best is None:
        return None
    number, *costs = best
    return Saving(points[number].limit_w(candidates.gpu), points[number].clock_hz, *costs)


@lru_cache
def _lower_limits(gpu: GPU) -> tuple[OperatingPoint, ...]:
    """Return a GPU's default power limit, then lower limits in steps of `LIMIT_STEP_W`."""
    limits = np.arange(gpu.power_min_w, gpu.tdp_w, LIMIT_STEP_W)
    return (OperatingPoint(gpu.tdp_w), *map(OperatingPoint, limits.tolist()))


def foreign_rows(candidates: CandidateSet, query: Query) -> tuple[Foreign, ...]:
    """Return at most `query.top` measurements of kernels outside kernrec's library, best first.

    Measurements without energy are skipped if the objective counts energy.
    """
    objective = query.objective.scalar
    valued = []
    for row in candidates.foreign:
        if row.energy_j is not None or objective is Objective.LATENCY:
            valued.append((objective.value_of(row.latency_s, row.energy_j or 0.0), row))
    valued.sort(key=lambda pair: pair[0])
    return tuple([_foreign(row) for _, row in valued[: query.top]])


def _foreign(row: MeasuredAnswer) -> Foreign:
    def stated(value: float, low: float | None, high: float | None) -> Estimate:
        return Estimate(value, value if low is None else low, value if high is None else high, Source.MEASURED)

    return Foreign(
        kernel=row.kernel,
        config=row.config,
        point=OperatingPoint(row.power_limit_w, row.locked_sm_clock_hz),
        latency_s=stated(row.latency_s, row.latency_low_s, row.latency_high_s),
        energy_j=None if row.energy_j is None else stated(row.energy_j, row.energy_low_j, row.energy_high_j),
        replayed=row.replayed,
        measurement=row,
        measured_by=row.measured_by,
    )


def answer(
    candidates: CandidateSet, query: Query, context: "GpuContext | None" = None, of_one_kernel: bool = False
) -> Answer:
    """Build the answer to a request about an op or about one kernel.

    Args:
        candidates: candidates to choose from, at all operating points of the request.
        context: data for baselines and for warnings about trained models, or None to omit both.
        of_one_kernel: whether the request is about one kernel. The answer then includes notes on its profiles.

    Raises:
        KernrecError: no config of the kernel can run the problem.
    """
    if of_one_kernel and not len(candidates):
        raise none_runs(candidates.considered[0])
    first = 0
    if of_one_kernel and query.power_limit_w is not None:
        # Recommend only configs at the requested power limit. The default limit (index 0) serves for comparison.
        first = candidates.points.index(OperatingPoint(query.power_limit_w))
    other_kind = not (of_one_kernel or query.top == 1 or query.source)
    rows, others, fastest = rows_of(candidates, query, first, not of_one_kernel, other_kind)
    recommendations = build_recommendations(candidates, rows, fastest)
    beside = build_recommendations(candidates, others, fastest) if others else ()
    saving = saving_of(candidates, rows[0][1], query)
    foreign = () if of_one_kernel or not candidates.ranked.space.evidence.foreign else foreign_rows(candidates, query)
    kernel: Kernel | None = None
    sampled_blocks, heuristic = None, None
    remarks: list[Remark] = [
        partial(of_conditions, query.conditions),
        of_recommendations(candidates, recommendations, beside),
    ]
    if of_one_kernel:
        (considered,) = candidates.kernels
        kernel, sampled_blocks = considered.table.kernel, considered.sampled_blocks
        heuristic = build_recommendation(candidates, 0, considered.heuristic)
        if kernel.declares_problem:
            context = None  # Backends have no implementation of a user's own problem.
        lines = tuple(of_kernel(considered, recommendations[0]))
        remarks.append(lambda: lines)
    else:
        remarks.append(of_triton(candidates))
    if context is not None:
        remarks = _of_context(remarks, context, candidates.problem, query)
    # Arguments without names take less time. They are in the order of the class's fields.
    return Answer(
        candidates.problem, candidates.gpu, query, candidates.points[0], recommendations, candidates.runnable,
        tuple(remarks), candidates.tables[0].calibration, tuple(candidates.scopes), kernel, sampled_blocks, heuristic,
        saving, beside, foreign, context=context,
    )  # fmt: skip


def _of_context(remarks: Sequence[Remark], context: "GpuContext", problem: Problem, query: Query) -> list[Remark]:
    warnings = context.models.warnings()
    return [lambda: warnings, *remarks, partial(baseline_notes, context, problem, query.backends)]


def answer_by_baselines(context: "GpuContext", problem: Problem, query: Query, reason: NoKernelError) -> Answer:
    """Build an answer that contains only baselines, for a problem that no kernel runs.

    Args:
        reason: error that explains why no kernel runs the problem.

    Raises:
        KernrecError: there is no baseline, or only a predicted baseline for a quantized data type.
    """
    answer = Answer(
        problem=problem,
        gpu=context.gpu,
        query=query,
        point=query.point,
        recommendations=(),
        candidates=0,
        remarks=tuple(_of_context([], context, problem, query)),
        no_kernel=str(reason),
        context=context,
    )
    # Backends run quantized types only in few shapes and layouts, so a predicted baseline is not enough.
    if not answer.baselines or (problem.dtype in EIGHT_BITS and answer.baselines[0].source == PREDICTED):
        raise without_baseline(reason, context, problem, query.backends)
    return answer
