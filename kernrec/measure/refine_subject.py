"""Define the subject of a refinement: a GPU model, the candidate configs of each problem, and their posterior.

The candidate configs of a problem, called contenders, are the configs that the recommender ranks best. If kernrec
cannot predict the configs of a recording, the contenders are a random sample.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

import numpy as np

from kernrec.errors import KernrecError, UsageError
from kernrec.kernel import Config, Kernel, find_kernel
from kernrec.measure.campaign.plan import Task, check_memory
from kernrec.measure.device.replay import Recording
from kernrec.measure.request import WantedProblem
from kernrec.measure.request_on_gpu import RequestOnGpu
from kernrec.op import Problem
from kernrec.recommender.candidates import CandidateSet, candidate_set
from kernrec.recommender.contenders import (
    Key,
    ProblemContenders,
    contenders_of,
    key_of,
    unpredicted,
)
from kernrec.recommender.context import Context, GpuContext
from kernrec.recommender.estimate.operating_point import OperatingPoint
from kernrec.recommender.estimate.space import Space
from kernrec.recommender.estimate.static_table import StaticTable
from kernrec.recommender.infeasible import why_not

MOST_UNPREDICTED = 128
"""Maximum number of contenders for a problem without predictions."""
_UNPREDICTED_DEVIATION = 0.4
"""Standard deviation of log cost for configs without a prediction: the median over recorded tuning problems."""


@dataclass(frozen=True)
class SampledKernel:
    """A kernel that computes a problem, and the configs of this kernel that can be measured."""

    name: str
    hash: str
    kernel: Kernel | None
    """Kernel, or None for a recorded kernel without source."""
    table: StaticTable | None
    """Table for predicting the kernel's configs, or None if they cannot be predicted."""
    configs: Sequence[Config] | None = None
    """Configs that can be measured, or None for all configs that can run the problem."""
    measured: Collection[Key] = ()
    """Earlier measured configs, including configs of other kernels."""


@dataclass(frozen=True)
class RefineSubject:
    """Problems to refine on a GPU model. Each tuple has one entry per problem."""

    replayed: bool
    wanted: tuple[WantedProblem, ...]
    contenders: tuple[ProblemContenders, ...]
    """Configs that may turn out to be the best."""
    hashes: tuple[dict[str, str], ...]
    """Hashes of the kernels' sources, keyed by kernel name."""

    def task(self, problem: int, contender: int) -> Task:
        """Return the task that measures a contender. Both arguments are indices."""
        kernel, config = self.contenders[problem].keys[contender]
        source = None if self.replayed else find_kernel(kernel)
        return Task(kernel, self.hashes[problem][kernel], dict(config), self.wanted[problem].problem, source)


def subject_of(on_gpu: RequestOnGpu, able_only: bool = False) -> RefineSubject:
    """Return the contenders of the requested problems on a GPU model.

    Args:
        able_only: Whether to omit problems that no config can run on the GPU, instead of raising an error.

    Raises:
        UsageError: No config can run a problem, or a recording has none of the problems.
    """
    request = on_gpu.request
    if request.recording is not None:
        return _recorded(on_gpu)
    context, wanted, sets = on_gpu.databases.on(on_gpu.gpu), [], []
    for each in on_gpu.problems:
        try:
            whole_space = bool(_measured(each.problem, context))
            sets.append(_candidates(each.problem, context, request.point, whole_space))
            wanted.append(each)
        except UsageError:
            if not able_only:
                raise
    contenders = [
        contenders_of(candidates, request.objective, each.count, with_inputs=True)
        for each, candidates in zip(wanted, sets, strict=True)
    ]
    hashes = [{each.table.kernel.name: each.table.kernel.hash for each in candidates.kernels} for candidates in sets]
    return RefineSubject(False, tuple(wanted), tuple(contenders), tuple(hashes))


def sampled_kernels(on_gpu: RequestOnGpu) -> Callable[[Problem], list[SampledKernel]]:
    """Return a function that lists a problem's kernels, with the configs that can be measured or replayed."""
    context = on_gpu.databases.on(on_gpu.gpu)
    if on_gpu.request.recording is None:

        def library(problem: Problem) -> list[SampledKernel]:
            measured = _measured(problem, context)
            return [
                SampledKernel(table.kernel.name, table.kernel.hash, table.kernel, table, measured=measured)
                for table in context.tables(problem)
            ]

        return library
    recordings = {wanted.problem.key: recording for wanted, recording in on_gpu.recordings}
    kernels = _kernels(recordings.values(), on_gpu.databases)

    def recorded(problem: Problem) -> list[SampledKernel]:
        recording = recordings[problem.key]
        tables: Sequence[StaticTable] = ()
        with suppress(KernrecError):
            tables = _tables(recording, context, kernels)
        by_name = {table.kernel.name: table for table in tables}
        configs: dict[str, list[Config]] = {}
        for (kernel, _), outcome in recording.outcomes.items():
            configs.setdefault(kernel, []).append(outcome.config)
        return [
            SampledKernel(kernel, digest, None, by_name.get(kernel), configs[kernel])
            for kernel, digest in recording.kernel_hashes.items()
        ]

    return recorded


def _measured(problem: Problem, context: GpuContext) -> set[Key]:
    hashes = {table.kernel.name: table.kernel.hash for table in context.tables(problem)}
    rows = context.evidence(problem, list(hashes)).measured
    return {key_of(row.kernel, row.config) for row in rows if hashes[row.kernel] == row.kernel_hash}


def _candidates(
    problem: Problem, context: GpuContext, point: OperatingPoint, whole_space: bool = False
) -> CandidateSet:
    gpu = context.gpu
    check_memory(problem, gpu)
    tables = context.tables(problem)
    candidates = None
    if tables:
        candidates = candidate_set(Space(tables, context.models, whole=whole_space), problem, [point])
    if candidates is None or not candidates.kernels:
        reason = why_not([table.kernel for table in tables], problem, gpu)
        raise UsageError(f"no config of any kernel here can run {problem.key} on {gpu.name}{reason}")
    return candidates


def _recorded(on_gpu: RequestOnGpu) -> RefineSubject:
    request, gpu, recorded = on_gpu.request, on_gpu.gpu, on_gpu.recordings
    context, draw = on_gpu.databases.on(gpu), np.random.default_rng(request.seed)
    kernels = _kernels([recording for _, recording in recorded], on_gpu.databases)

    def contenders(wanted: WantedProblem, recording: Recording) -> ProblemContenders:
        """Return the recorded configs that the recommender ranks best. Without predictions, return a random sample."""
        keys = [key_of(kernel, outcome.config) for (kernel, _), outcome in recording.outcomes.items()]
        with suppress(KernrecError):
            check_memory(wanted.problem, gpu)
            space = Space(_tables(recording, context, kernels), context.models, whole=True)
            candidates = candidate_set(space, wanted.problem, [request.point])
            if candidates.kernels:
                predicted = contenders_of(
                    candidates, request.objective, wanted.count, frozenset(keys), with_inputs=True
                )
                if predicted.keys:
                    return predicted
        chosen = [keys[i] for i in np.sort(draw.permutation(len(keys))[:MOST_UNPREDICTED]).tolist()]
        return unpredicted(wanted.problem, chosen, _UNPREDICTED_DEVIATION, wanted.count)

    return RefineSubject(
        True,
        tuple(wanted for wanted, _ in recorded),
        tuple(contenders(*each) for each in recorded),
        tuple(dict(recording.kernel_hashes) for _, recording in recorded),
    )


def _kernels(recordings: Iterable[Recording], context: Context) -> dict[str, Kernel]:
    names = {name: None for each in recordings for name in each.kernel_hashes}
    return {kernel.hash: kernel for name in names for kernel in context.newest_by_file(name)}


def _tables(recording: Recording, context: GpuContext, kernels: Mapping[str, Kernel]) -> list[StaticTable]:
    if missing := [name for name, there in recording.kernel_hashes.items() if there not in kernels]:
        raise KernrecError(f"there is no prediction of {missing[0]}")
    of_problem = [kernels[there] for there in recording.kernel_hashes.values()]
    return [context.kernel_table(kernel, recording.problem) for kernel in of_problem]
