"""The subject of `refine`: a kind of GPU, and for each problem its contenders with the tasks that measure them.

On a card the contenders are what the recommender finds best among the library's configs. On a recording they are the
recorded configs, by the recommender's prediction where they are the library's, and a sample of them where nothing is
predicted.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from kernrec.errors import KernrecError, UsageError
from kernrec.gpu import GPU, find_gpu
from kernrec.kernel import Config, Kernel, find_kernel
from kernrec.measure.campaign.plan import Task, check_memory
from kernrec.measure.campaign.results import CampaignBudget, MeasuringEffort
from kernrec.measure.collect import CollectRequest
from kernrec.measure.device.interface import DeviceKind
from kernrec.measure.device.replay import Recording, load_requested
from kernrec.measure.measuring_device import MeasuringDevice, card_device, recorded_device
from kernrec.measure.problem_selection import as_measured, recorded_as
from kernrec.op import Problem
from kernrec.op.workload import Layer
from kernrec.recommender.candidates import CandidateSet
from kernrec.recommender.contenders import Key, ProblemContenders, contenders_of, key_of, unpredicted
from kernrec.recommender.context import Context
from kernrec.recommender.estimate.model_store import ModelStore
from kernrec.recommender.estimate.operating_point import DEFAULT_POINT, OperatingPoint
from kernrec.recommender.estimate.static_table import StaticTable
from kernrec.recommender.infeasible import why_not
from kernrec.recommender.rank import candidate_set
from kernrec.recommender.request import Objective
from kernrec.store import Evidence, Stack

MOST_UNPREDICTED = 128
"""Contenders of a problem of whose configs nothing is predicted."""
_UNPREDICTED_DEVIATION = 0.4
"""Standard deviation of the log costs of the configs of a space: the median of the recorded ones."""


@dataclass(frozen=True)
class WantedProblem:
    """A problem with its name and how often it counts."""

    name: str
    problem: Problem
    count: float = 1.0


@dataclass(frozen=True)
class SampledKernel:
    """A kernel on a problem, and what of its space can be measured."""

    name: str
    hash: str
    kernel: Kernel | None
    """None for a recorded one, which is known by name alone."""
    table: StaticTable | None
    """None where nothing is predicted."""
    configs: Sequence[Config] | None = None
    """None: all that can run."""
    measured: Collection[Key] = ()
    """Of all kernels of the problem, before anything is now."""


@dataclass(frozen=True)
class RefineRequest:
    """A request to refine."""

    problems: Sequence[WantedProblem]
    database: Path
    gpu: str = "auto"
    """`auto`, an index or a UUID; of a recording, the name of a GPU."""
    recording: Path | None = None
    """Database to replay; None: measure on a GPU."""
    objective: Objective = Objective.LATENCY
    budget: CampaignBudget = field(default_factory=CampaignBudget)
    until: float | None = None
    """Weighted mean regret at which to stop, once it is below this with a probability of 95 %."""
    seed: int = 0
    layers: Sequence[Layer] = ()
    """The layers that `problems` are of: where nobody fixed a layout, it is chosen for the GPU."""
    point: OperatingPoint = DEFAULT_POINT
    """The power limit and clock that the card is at: of predictions, and of rows of the database."""

    @property
    def campaign(self) -> CollectRequest:
        """How its measurements are made, all configs that are asked for; its problems are chosen one at a time."""
        return CollectRequest(
            problems=None,
            database=self.database,
            device=DeviceKind.CUDA if self.recording is None else DeviceKind.REPLAY,
            gpu=self.gpu,
            recording=self.recording,
            effort=MeasuringEffort(None, 0),
            budget=self.budget,
            seed=self.seed,
        )


@dataclass(frozen=True)
class RefineSubject:
    """A kind of GPU and the contenders of each problem."""

    gpu: str
    """Name in the catalog."""
    replayed: bool
    wanted: tuple[WantedProblem, ...]
    contenders: tuple[ProblemContenders, ...]
    """Of each of them."""
    hashes: tuple[dict[str, str], ...]
    """Of each of them: by kernel, the hash of its source."""

    def task(self, problem: int, contender: int) -> Task:
        """The task of measuring a contender."""
        kernel, config = self.contenders[problem].keys[contender]
        source = None if self.replayed else find_kernel(kernel)
        return Task(kernel, self.hashes[problem][kernel], dict(config), self.wanted[problem].problem, source)


def open_subject(request: RefineRequest, scratch: Path) -> tuple[MeasuringDevice, RefineSubject]:
    """Find the device, and the contenders on it.

    Args:
        request: names them.
        scratch: a folder for the device's process.

    Raises:
        UsageError: no problem, no such device, or a problem that nothing here can run.
        KernrecError: no driver.
    """
    if request.recording is not None:
        subject = subject_on(None if request.gpu == "auto" else find_gpu(request.gpu).name, request)
        return recorded_device(request.recording, subject.gpu, request.seed), subject
    from kernrec.measure.device.nvml import NoGPUError, choose_cards

    check_refinable(request)
    if request.gpu == "all":
        raise UsageError("--gpu all: refine uses one GPU; run it once for each, they share the database")
    try:
        (card,) = choose_cards(request.gpu)
    except NoGPUError as error:
        reason = str(error).split(";")[0]
        raise NoGPUError(f"{reason}; refine needs a GPU, or --device replay with recorded measurements") from None
    subject = subject_on(find_gpu(card.name).name, request)
    return card_device(card, scratch), subject


def check_refinable(request: RefineRequest) -> None:
    """Raises `UsageError` where nothing is named to refine, or a recording would be refined into itself."""
    if request.recording is None and not request.problems:
        raise UsageError("name what to refine: --op with --shape, or --workload")
    if request.recording is not None and request.recording.absolute() == request.database.absolute():
        raise UsageError("a recording cannot be refined into itself: give another --db")


def subject_on(name: str | None, request: RefineRequest) -> RefineSubject:
    """The contenders on a kind of GPU, by its name; None: on the only one of a recording. Raises as `open_subject`."""
    check_refinable(request)
    if request.recording is not None:
        return _recorded(name, request)
    gpu = find_gpu(str(name))
    context = _context(request.database)
    moved = as_measured(request.layers, gpu, request.database)
    wanted = tuple(_moved(each, moved.get(each.problem, each.problem)) for each in request.problems)
    sets = []
    for each in wanted:
        whole_space = bool(_measured(each.problem, gpu, context))
        sets.append(_candidates(each.problem, gpu, context, request.point, whole_space))
    return RefineSubject(
        gpu.name,
        False,
        wanted,
        tuple(
            contenders_of(candidates, request.objective, each.count, with_inputs=True)
            for each, candidates in zip(wanted, sets, strict=True)
        ),
        tuple(
            {kernel.table.kernel.name: kernel.table.kernel.hash for kernel in candidates.kernels} for candidates in sets
        ),
    )


def sampled_kernels(name: str, request: RefineRequest) -> Callable[[Problem], list[SampledKernel]]:
    """The kernels of a problem with what can be measured of their spaces, on a kind of GPU or its recording."""
    gpu, context = find_gpu(name), _context(request.database)
    if request.recording is None:

        def library(problem: Problem) -> list[SampledKernel]:
            measured = _measured(problem, gpu, context)
            return [
                SampledKernel(table.kernel.name, table.kernel.hash, table.kernel, table, measured=measured)
                for table in context.tables(problem, gpu)
            ]

        return library
    recordings = {each.problem.key: each for each in load_requested(request.recording, gpu.name, None)}
    kernels = _kernels(recordings.values(), context)

    def recorded(problem: Problem) -> list[SampledKernel]:
        recording = recordings[problem.key]
        tables: Sequence[StaticTable] = ()
        with suppress(KernrecError):
            tables = _tables(recording, gpu, context, kernels)
        by_name = {table.kernel.name: table for table in tables}
        configs: dict[str, list[Config]] = {}
        for (kernel, _), outcome in recording.outcomes.items():
            configs.setdefault(kernel, []).append(outcome.config)
        return [
            SampledKernel(kernel, digest, None, by_name.get(kernel), configs[kernel])
            for kernel, digest in recording.kernel_hashes.items()
        ]

    return recorded


def _moved(wanted: WantedProblem, problem: Problem) -> WantedProblem:
    """A wanted problem in another layout; one that is named by its key gets the new key."""
    name = problem.key if wanted.name == wanted.problem.key else wanted.name
    return replace(wanted, name=name, problem=problem)


def _context(database: Path) -> Context:
    stored = [database] if database.exists() else []
    models = ModelStore(database.parent / "models", Stack(stored))
    context = Context(stored, models=models, triton=False)  # devices measure kernels in CUDA
    return context


def _measured(problem: Problem, gpu: GPU, context: Context) -> set[Key]:
    """The configs of the library that databases hold measurements of."""
    kernels = [table.kernel for table in context.tables(problem, gpu)]
    hashes = {kernel.name: kernel.hash for kernel in kernels}
    rows = context.evidence(problem, gpu, kernels).measured
    return {key_of(row.kernel, row.config) for row in rows if hashes[row.kernel] == row.kernel_hash}


def _candidates(
    problem: Problem, gpu: GPU, context: Context, point: OperatingPoint, whole_space: bool = False
) -> CandidateSet:
    """The candidates of a problem as if nothing of it had been measured."""
    check_memory(problem, gpu)
    tables = context.tables(problem, gpu)
    candidates = None
    if tables:
        candidates = candidate_set(tables, problem, [point], Evidence(), context.models, whole_space)
    if candidates is None or not candidates.kernels:
        reason = why_not([table.kernel for table in tables], problem, gpu)
        raise UsageError(f"no config of any kernel here can run {problem.key} on {gpu.name}{reason}")
    return candidates


def _recorded(card: str | None, request: RefineRequest) -> RefineSubject:
    assert request.recording is not None
    keys = {wanted: recorded_as(wanted.problem, request.layers) for wanted in request.problems}
    requested = {key for some in keys.values() for key in some} or None
    recordings = {each.problem.key: each for each in load_requested(request.recording, card, requested)}
    gpu = find_gpu(next(iter(recordings.values())).gpu)
    recorded = tuple(
        _moved(wanted, recordings[key].problem) for wanted, some in keys.items() for key in some if key in recordings
    )
    if not request.problems:
        recorded = tuple(WantedProblem(key, each.problem) for key, each in recordings.items())
    context = _context(request.database)
    draw = np.random.default_rng(request.seed)
    kernels = _kernels(recordings.values(), context)
    contenders, hashes = [], []
    for wanted in recorded:
        recording = recordings[wanted.problem.key]
        contenders.append(_recorded_contenders(request, wanted, recording, gpu, context, kernels, draw))
        hashes.append(dict(recording.kernel_hashes))
    return RefineSubject(gpu.name, True, recorded, tuple(contenders), tuple(hashes))


def _recorded_contenders(
    request: RefineRequest,
    wanted: WantedProblem,
    recording: Recording,
    gpu: GPU,
    context: Context,
    kernels: Mapping[str, Kernel],
    draw: np.random.Generator,
) -> ProblemContenders:
    """The recorded configs: those that are predicted, else a sample."""
    keys = [key_of(kernel, outcome.config) for (kernel, _), outcome in recording.outcomes.items()]
    with suppress(KernrecError):
        check_memory(wanted.problem, gpu)
        tables = _tables(recording, gpu, context, kernels)
        candidates = candidate_set(tables, wanted.problem, [request.point], Evidence(), context.models, True)
        if candidates.kernels:
            predicted = contenders_of(candidates, request.objective, wanted.count, frozenset(keys), with_inputs=True)
            if predicted.keys:
                return predicted
    chosen = [keys[i] for i in np.sort(draw.permutation(len(keys))[:MOST_UNPREDICTED]).tolist()]
    return unpredicted(wanted.problem, chosen, _UNPREDICTED_DEVIATION, wanted.count)


def _kernels(recordings: Iterable[Recording], context: Context) -> dict[str, Kernel]:
    """The recorded kernels, by hash, of the library or analyzed by the user; others are not at hand."""
    names = {name: None for each in recordings for name in each.kernel_hashes}
    return {kernel.hash: kernel for name in names for kernel in context.newest_by_file(name)}


def _tables(recording: Recording, gpu: GPU, context: Context, kernels: Mapping[str, Kernel]) -> list[StaticTable]:
    """The static tables of the recorded kernels; `KernrecError` where one is not at hand, or has no profiles."""
    if missing := [name for name, there in recording.kernel_hashes.items() if there not in kernels]:
        raise KernrecError(f"nothing is predicted of {missing[0]}")
    of_problem = [kernels[there] for there in recording.kernel_hashes.values()]
    return [context.kernel_table(kernel, recording.problem, gpu) for kernel in of_problem]
