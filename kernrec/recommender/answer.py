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


def recommendation(
    candidates: CandidateSet, query: Query, models: ModelStore | None = None, of_one_kernel: bool = False
) -> Recommendation:
    """The answer about an op, or about one kernel.

    Args:
        candidates: of an op, at least one; of one kernel, at the points of `kernel_points`, perhaps none.
        query: objective and bounds, and the power limit that choices have to have.
        models: their warnings are among the notes.
        of_one_kernel: whether profiles and the occupancy heuristic's pick are described, too.

    Raises:
        KernrecError: no config of the kernel can run the problem.
    """
    considered = candidates.considered[0]
    if of_one_kernel and not candidates.kernels:
        raise none_runs(considered)
    kernel, first, vendor_model = candidates.kernels[0], 0, None
    if of_one_kernel and query.power_limit_w is not None:
        # Configs of one kernel are compared at the default limit; the limit that is asked for is another point.
        first = candidates.points.index(OperatingPoint(query.power_limit_w))
    if models and not of_one_kernel and query.inputs == RANDOM:  # libraries were recorded with random inputs
        vendor_model = models.vendor_model(candidates.problem.op)
    picked = select(candidates, query, first)
    choices = build_choices(candidates, picked, query.objective)
    saving = saving_of(candidates, picked[0], query)
    foreign = () if of_one_kernel else foreign_rows(candidates, query)
    about = None
    if of_one_kernel:
        heuristic = build_choice(candidates, 0, kernel.heuristic)
        about = KernelAnswer(kernel.table.kernel, heuristic, considered.sampled_blocks)
    lines = [*(models.warnings() if models else ()), *of_inputs(query.inputs), *notes(candidates, choices)]
    if of_one_kernel:
        lines += of_kernel(considered, choices[0])
    return Recommendation(
        problem=candidates.problem,
        gpu=candidates.gpu,
        objective=query.objective,
        point=candidates.points[0],
        choices=choices,
        candidates=candidates.runnable,
        notes=tuple(lines),
        inputs=query.inputs,
        calibration=kernel.table.calibration,
        models=tuple(kernel.scope for kernel in candidates.kernels if kernel.scope),
        about_kernel=about,
        saving=saving,
        foreign=foreign,
        vendor_model=vendor_model,
    )
