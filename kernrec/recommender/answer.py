"""The answer to a query from a candidate set: selected choices, notes, and what the first choice is compared with."""

from kernrec.model.prior.power import RANDOM
from kernrec.recommender.candidate_set import CandidateSet
from kernrec.recommender.choices import build_choice, build_choices, foreign_rows, saving_of
from kernrec.recommender.estimate.model_store import ModelStore
from kernrec.recommender.estimate.operating_point import OperatingPoint
from kernrec.recommender.infeasible import none_runs
from kernrec.recommender.notes import notes, of_inputs, of_kernel
from kernrec.recommender.request import Query
from kernrec.recommender.result import KernelAnswer, Recommendation
from kernrec.recommender.select import select


def kernel_recommendation(candidates: CandidateSet, query: Query, models: ModelStore | None = None) -> Recommendation:
    """The answer about one kernel.

    Args:
        candidates: a set of one kernel at the points of `kernel_points`; it may be empty.
        query: objective, and the power limit that choices have to have.
        models: their warnings are among the notes.

    Raises:
        KernrecError: no config can run the problem.
    """
    (considered,) = candidates.considered
    if not candidates.kernels:
        raise none_runs(considered)
    kernel = candidates.kernels[0]
    heuristic = build_choice(candidates, 0, kernel.heuristic)
    about = KernelAnswer(kernel.table.kernel, heuristic, considered.sampled_blocks)
    return recommendation(candidates, query, models, about)


def recommendation(
    candidates: CandidateSet, query: Query, models: ModelStore | None, about: KernelAnswer | None = None
) -> Recommendation:
    """The answer about an op, or `about` one kernel, from candidates of which there is at least one."""
    first, vendor_model = 0, None
    if about is not None and query.power_limit_w is not None:
        # Configs of one kernel are compared at the default limit; the limit that is asked for is another point.
        first = candidates.points.index(OperatingPoint(query.power_limit_w))
    if about is None and models is not None and query.inputs == RANDOM:  # libraries were recorded with random inputs
        vendor_model = models.vendor_model(candidates.problem.op)
    picked = select(candidates, query, first)
    choices = build_choices(candidates, picked, query.objective)
    lines = [*(models.warnings() if models else ()), *of_inputs(query.inputs), *notes(candidates, choices)]
    if about is not None:
        lines += of_kernel(candidates.considered[0], choices[0])
    return Recommendation(
        problem=candidates.problem,
        gpu=candidates.gpu,
        objective=query.objective,
        point=candidates.points[0],
        choices=choices,
        candidates=candidates.runnable,
        notes=tuple(lines),
        inputs=query.inputs,
        calibration=candidates.kernels[0].table.calibration,
        models=tuple(kernel.scope for kernel in candidates.kernels if kernel.scope),
        about_kernel=about,
        saving=saving_of(candidates, picked[0], query),
        foreign=() if about else foreign_rows(candidates, query),
        vendor_model=vendor_model,
    )
