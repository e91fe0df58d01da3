"""Build the answer to a query from a candidate set: recommendations, notes and comparisons."""

from collections.abc import Sequence
from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING

from kernrec.errors import NoKernelError
from kernrec.gpu import GPU
from kernrec.op import Problem
from kernrec.recommender.baseline_notes import baseline_notes, without_baseline
from kernrec.recommender.baselines import PREDICTED
from kernrec.recommender.candidates import CandidateSet
from kernrec.recommender.distinct import rows_of
from kernrec.recommender.estimate.operating_point import OperatingPoint
from kernrec.recommender.infeasible import none_runs
from kernrec.recommender.instead import EIGHT_BITS
from kernrec.recommender.notes import of_inputs, of_kernel, of_recommendations, of_triton
from kernrec.recommender.recommendations import (
    best_of_other_kinds,
    build_recommendation,
    build_recommendations,
    foreign_rows,
    saving_of,
)
from kernrec.recommender.request import Query
from kernrec.recommender.result import Answer, KernelAnswer, Remark

if TYPE_CHECKING:
    from kernrec.recommender.context import Context


def answer(
    candidates: CandidateSet, query: Query, context: "Context | None" = None, of_one_kernel: bool = False
) -> Answer:
    """Return the answer about an op, or about one kernel.

    Args:
        candidates: candidates at the operating points of the query, or of `kernel_points` for one kernel. Must not be
            empty for an op.
        query: objective, bounds and the power limit of the recommendations.
        context: source of model warnings and baselines; None for neither.
        of_one_kernel: whether to add notes on profiles and the pick of the occupancy heuristic.

    Raises:
        KernrecError: no config of the kernel can run the problem.
    """
    considered = candidates.considered[0]
    if of_one_kernel and not candidates.kernels:
        raise none_runs(considered)
    kernel, first = candidates.kernels[0], 0
    if of_one_kernel and query.power_limit_w is not None:
        # The default limit comes first, as the reference for one kernel. The requested limit is another point.
        first = candidates.points.index(OperatingPoint(query.power_limit_w))
    rows = rows_of(candidates, query, first, of_op=not of_one_kernel)
    picked, alike = map(list, zip(*rows, strict=True))
    others = (
        () if of_one_kernel or query.top == 1 or query.source else best_of_other_kinds(candidates, picked, query, first)
    )
    every = build_recommendations(candidates, picked, query.objective, alike, others)
    recommendations, beside = every[: len(picked)], every[len(picked) :]
    saving = saving_of(candidates, picked[0], query)
    foreign = () if of_one_kernel else foreign_rows(candidates, query)
    about = None
    if of_one_kernel:
        heuristic = build_recommendation(candidates, 0, kernel.heuristic)
        about = KernelAnswer(kernel.table.kernel, heuristic, considered.sampled_blocks)
    if of_one_kernel and kernel.table.kernel.declares_problem:
        context = None  # Backends run only the problems of ops.
    remarks: list[Remark] = [partial(of_inputs, query.inputs), of_recommendations(candidates, recommendations, beside)]
    if of_one_kernel:
        lines = tuple(of_kernel(considered, recommendations[0]))
        remarks.append(lambda: lines)
    else:
        remarks.append(of_triton(candidates))
    if context is not None:
        remarks = _of_context(remarks, context, candidates.problem, candidates.gpu, query)
    return Answer(
        problem=candidates.problem,
        gpu=candidates.gpu,
        objective=query.objective,
        point=candidates.points[0],
        recommendations=recommendations,
        candidates=candidates.runnable,
        remarks=tuple(remarks),
        inputs=query.inputs,
        calibration=kernel.table.calibration,
        models=tuple(filter(None, map(attrgetter("scope"), candidates.kernels))),
        about_kernel=about,
        saving=saving,
        beside=beside,
        foreign=foreign,
        backends=query.backends,
        source=query.source,
        context=context,
    )


def _of_context(
    remarks: Sequence[Remark], context: "Context", problem: Problem, gpu: GPU, query: Query
) -> list[Remark]:
    """Return the models' warnings, the remarks and the notes on baselines, in this order."""
    warnings = tuple(context.models.warnings())
    return [lambda: warnings, *remarks, partial(baseline_notes, context, problem, gpu, query.backends)]


def answer_by_baselines(context: "Context", problem: Problem, gpu: GPU, query: Query, reason: NoKernelError) -> Answer:
    """Return the baselines as the answer for a problem that no kernel runs.

    Raises:
        KernrecError: there is no baseline either. Predicted baselines of a quantized type do not count, because
            backends run these types only in some shapes and layouts.
    """
    answer = Answer(
        problem=problem,
        gpu=gpu,
        objective=query.objective,
        point=query.point,
        recommendations=(),
        candidates=0,
        remarks=tuple(_of_context([], context, problem, gpu, query)),
        inputs=query.inputs,
        no_kernel=str(reason),
        backends=query.backends,
        source=query.source,
        context=context,
    )
    if not answer.baselines or (problem.dtype in EIGHT_BITS and answer.baselines[0].source == PREDICTED):
        raise without_baseline(reason, context, problem, gpu, query.backends)
    return answer
