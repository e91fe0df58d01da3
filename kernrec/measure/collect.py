"""`kernrec collect` as a library call, and the loop that it shares with `search` and `refine`.

    what next (`Chooser`) -> measure -> journal -> database -> learn -> what next ...

Each command is a chooser of what is measured next, and of when it is enough. A campaign on each device of this machine
makes the measurements (`measure_here`), or the cards of a cluster do (`kernrec.cluster`).

Several cards of one kind share the problems, and each problem is measured on one of them: two cards of a kind differ by
more than the differences between good configs.
"""

import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Protocol

from kernrec.errors import KernrecError, UsageError
from kernrec.gpu import GPU, find_gpu
from kernrec.kernel import Kernel
from kernrec.measure.campaign.campaign import Campaign, CampaignHooks
from kernrec.measure.campaign.ingest import check_takes_rows, ingest
from kernrec.measure.campaign.journal import Journal, journal_path
from kernrec.measure.campaign.plan import PlannedProblem, PlanOptions, plan_library, plan_recordings
from kernrec.measure.campaign.results import EFFORTS, CampaignBudget, MeasuringEffort, ProblemResult, Progress
from kernrec.measure.device.interface import DeviceKind
from kernrec.measure.device.replay import load_requested, recorded_gpus
from kernrec.measure.measuring_device import (
    STANDARD_INPUTS,
    MeasuringDevice,
    card_device,
    new_session,
    recorded_device,
)
from kernrec.measure.problem_selection import as_measured, recorded_as
from kernrec.measure.worker.worker import write_kernel
from kernrec.measure.worker.worker_client import Stopped, WorkerClient
from kernrec.op import Problem
from kernrec.op.workload import Layer
from kernrec.store import Stack
from kernrec.store.measurement import InputInfo, Measurement

if TYPE_CHECKING:
    from kernrec.recommender.context import Context

DEVICES = (DeviceKind.CUDA, DeviceKind.REPLAY)
"""The kinds of devices that a user can collect on."""

Report = Callable[[Progress], None]
Stopping = Callable[[], bool]


@dataclass(frozen=True)
class CollectRequest:
    """A request to collect measurements."""

    problems: Sequence[tuple[str, Problem]] | None
    """(name, problem) pairs; None: all problems of a recording."""
    database: Path
    device: DeviceKind = DeviceKind.CUDA
    gpu: str = "auto"
    """`auto`, `all` (each card, or each recorded GPU), an index, a UUID or, for a recording, the name of a GPU."""
    recording: Path | None = None
    """The database that a replay answers from."""
    effort: MeasuringEffort = EFFORTS["normal"]
    budget: CampaignBudget = field(default_factory=CampaignBudget)
    resume: bool = True
    """Whether to skip what the database already has."""
    layers: Sequence[Layer] = ()
    """The layers that `problems` are of: where nobody fixed a layout, it is chosen for the GPU."""
    resumed: tuple[str, ...] | None = None
    """Sessions whose rows alone are skipped; None: those of all."""
    seed: int = 0
    kernel: Kernel | None = None
    """A kernel of the user, measured instead of the library's; its profiles in the database order its configs."""
    folder: Path = Path()
    """Where the files are that the kernel's spec names."""


@dataclass(frozen=True)
class CollectResult:
    """The results of all devices."""

    results: tuple[ProblemResult, ...]
    stored: int
    """Measurements added to the database."""
    leftover: int
    """Measurements of an interrupted earlier run that were added to the database."""
    stopped: bool
    """Whether it was told to stop."""
    error: str | None
    """The reason for an early end, in one line."""


@dataclass(frozen=True)
class Visit:
    """One card's visit to a problem: the measurements that it makes before it asks for the next visit."""

    planned: PlannedProblem
    earlier: tuple[Measurement, ...] = ()
    """Measurements that are not made again; on this machine those of the database take their place."""


class Chooser(Protocol):
    """Chooses what is measured next on one kind of GPU."""

    @property
    def needs_energy(self) -> bool:
        """Whether a device that measures no energy is of no use."""

    def next(self, card: str = "", cards: Collection[str] = ("",)) -> Visit | None:
        """The next visit; None: enough is measured, or nothing is left until a visit under way is done.

        Args:
            card: makes the visit.
            cards: all cards of the kind.
        """

    def learn(self, measurement: Measurement) -> None:
        """Take a measurement into account, which is in the journal."""

    def done(self, visit: Visit, seconds: float, over: bool = True) -> None:
        """A visit has ended.

        Args:
            visit: the visit.
            seconds: that it took, of the device's clock.
            over: whether it ended before its slice of time did.
        """


@dataclass(frozen=True)
class DeviceWork:
    """One device with its share of the problems."""

    device: MeasuringDevice
    problems: list[PlannedProblem]


def collect(
    request: CollectRequest,
    report: Report = lambda progress: None,
    stopping: Stopping = lambda: False,
) -> CollectResult:
    """Measure what is requested.

    Args:
        request: problems, device, effort and database.
        report: called with each measurement and note.
        stopping: called often; once it returns true, collecting ends.

    Returns:
        The results; an error after measuring has begun is part of them.

    Raises:
        UsageError: before anything is measured: no such device or kernel, or another collector is running.
        KernrecError: before anything is measured.
    """
    with open_journal(request, report) as (journal, leftover), TemporaryDirectory(prefix="kernrec-") as scratch:
        result = measure_here(devices_of(request, Path(scratch)), request, journal, report, stopping)
        return concluded(replace(result, leftover=leftover), journal, request.database)


@contextmanager
def open_journal(request: CollectRequest, report: Report) -> Iterator[tuple[Journal, int]]:
    """(the journal of a request's database, which is locked; how many rows an interrupted run had left in it)."""
    with Journal(journal_path(request.database)) as journal:
        check_takes_rows(request.database)
        yield journal, ingest(journal, request.database, lambda text: report(Progress("", "", "", 0, 0, note=text)))


def concluded(result: CollectResult, journal: Journal, database: Path) -> CollectResult:
    """A result once what is left in the journal is in the database, with what went wrong where nothing else did."""
    error, stored = result.error, result.stored
    try:
        stored += ingest(journal, database)
    except KernrecError as failure:
        error = error or f"{failure}; what was measured is safe in {journal.path} and is brought in by the next collect"
    tried = any(problem.measured for problem in result.results)
    if error is None and not result.stopped and tried and not any(problem.best for problem in result.results):
        error = "no config could be measured; the reasons are above"
    return replace(result, stored=stored, error=error)


def measure_here(
    work: Sequence[DeviceWork],
    request: CollectRequest,
    journal: Journal,
    report: Report,
    stopping: Stopping,
    chooser: Callable[[Campaign], Chooser] | None = None,
    storing: Callable[[Callable[[], int]], int] = lambda store: store(),
    session: str | None = None,
) -> CollectResult:
    """Run a campaign on each device of this machine.

    Args:
        work: the devices, and what is measured on each.
        request: how much is measured, and which database is filled.
        journal: of the database; what has not entered the database in the end is left in it.
        report: called with each measurement and note.
        stopping: called often; once it returns true, measuring ends.
        chooser: called once the only device is open; what it returns chooses the measurements, not `work`.
        storing: called whenever rows may enter the database, with what adds them and returns their number.
        session: name of the session of the rows; None: a new one.
    """
    session = session or new_session()
    stored, stopped, errors = 0, False, list[str]()

    def store() -> None:
        nonlocal stored
        with suppress(UsageError):  # in use, for example: the journal keeps the rows, and they are stored later
            stored += storing(lambda: ingest(journal, request.database))

    def run(campaign: Campaign) -> None:
        nonlocal stopped
        try:
            campaign.run()
        except Stopped:
            stopped = True
        except KernrecError as error:
            errors.append(str(error))

    campaigns: list[Campaign] = []
    for i, (device, problems) in enumerate((share.device, share.problems) for share in work):
        chosen = None if chooser is None else _ChosenProblems(chooser, report)
        campaign = Campaign(
            WorkerClient(device.opening, stopping),
            chosen or problems,
            journal,
            device.settings(
                session if len(work) == 1 else f"{session}-{i}", request.effort, request.budget, request.seed + i
            ),
            CampaignHooks(
                _earlier(device, request),
                stopping,
                chosen.take if chosen else report,
                # Rows may enter the database when their block is closed, which only a single campaign knows of all.
                store if len(work) == 1 else lambda: None,
            ),
            device.compile_queue(len(work)),
        )
        if chosen:
            chosen.campaign = campaign
        campaigns.append(campaign)
    threads = [threading.Thread(target=run, args=(campaign,)) for campaign in campaigns[1:]]
    for thread in threads:
        thread.start()
    run(campaigns[0])
    for thread in threads:
        thread.join()
    results = tuple(result for campaign in campaigns for result in campaign.results)
    return CollectResult(results, stored, 0, stopped, errors[0] if errors else None)


def _earlier(device: MeasuringDevice, request: CollectRequest) -> Callable[[Problem], list[Measurement]]:
    sessions = request.resumed
    return lambda problem: [
        measurement
        for measurement in (device.earlier(request.database, problem) if request.resume else ())
        if sessions is None or measurement.origin.session in sessions
    ]


class _ChosenProblems:
    """The problems of a campaign, each chosen when the one before it is measured."""

    def __init__(self, chooser: Callable[[Campaign], Chooser], report: Report) -> None:
        self._make_chooser = chooser
        self._report = report
        self._chooser: Chooser | None = None
        self.campaign: Campaign | None = None

    def __iter__(self) -> Iterator[PlannedProblem]:
        assert self.campaign is not None
        session = self.campaign.session
        chooser = self._chooser = self._make_chooser(self.campaign)
        if chooser.needs_energy and not session.traits.measures_energy:
            raise KernrecError("energy is not measured on this device; --objective latency needs none")
        while (visit := chooser.next()) is not None:
            begun_s = session.clock()
            yield visit.planned
            chooser.done(visit, session.clock() - begun_s)

    def take(self, progress: Progress) -> None:
        """Pass a step on, and learn from its measurement."""
        self._report(progress)
        if progress.measurement is not None and self._chooser is not None:
            self._chooser.learn(progress.measurement)


def devices_of(request: CollectRequest, scratch: Path) -> list[DeviceWork]:
    """The devices of a request with the plans of their problems. Raises as `collect`."""
    if request.device == DeviceKind.REPLAY:
        return [recorded_work_on(gpu, request) for gpu in replayed_gpus(request)]
    return _card_work(request, scratch)


def replayed_gpus(request: CollectRequest) -> list[str | None]:
    """The recorded GPUs of a request for replay; None: the only one. Raises as `collect`."""
    if request.recording is None:
        raise UsageError("--device replay needs --replay, a database of measurements to answer from")
    if request.recording.absolute() == request.database.absolute():
        raise UsageError("a recording cannot be collected into itself: give another --db")
    if request.gpu == "all":
        return list(recorded_gpus(request.recording))
    return [None if request.gpu == "auto" else find_gpu(request.gpu).name]


def recorded_work_on(gpu: str | None, request: CollectRequest) -> DeviceWork:
    """A recorded GPU with the plans of a request's problems; None: the only one. Raises as `collect`."""
    file = request.recording
    assert file is not None
    keys = None
    if request.problems is not None:
        keys = {key for _, problem in request.problems for key in recorded_as(problem, request.layers)}
    recordings = load_requested(file, gpu, keys)
    problems = plan_recordings(recordings, request.effort.configs, request.seed)
    return DeviceWork(recorded_device(file, recordings[0].gpu, request.seed), problems)


def planned_on(gpu: str, request: CollectRequest) -> list[PlannedProblem]:
    """The plans of a request's problems on a kind of GPU. Raises as `collect`."""
    if request.device == DeviceKind.REPLAY:
        return recorded_work_on(gpu, request).problems
    return _plan_for_card(request, find_gpu(gpu), _planning_context(request))


def _planning_context(request: CollectRequest) -> "Context":
    """The sources of plans for cards: shipped profiles, the models beside the database, a user's kernel in it."""
    from kernrec.recommender.context import Context
    from kernrec.recommender.estimate.model_store import ModelStore

    stored = [request.database] if request.kernel is not None and request.database.exists() else []
    return Context(stored, models=ModelStore(request.database.parent / "models", Stack(stored)))


def _plan_for_card(request: CollectRequest, gpu: GPU, context: "Context") -> list[PlannedProblem]:
    if request.problems is None:
        raise UsageError("name what to measure with --op, and --shape or --workload")
    options = PlanOptions(request.effort.configs, request.effort.drawn, request.seed)
    moved = as_measured(request.layers, gpu, request.database)
    problems = [
        (moved[problem].key if problem in moved and name == problem.key else name, moved.get(problem, problem))
        for name, problem in request.problems
    ]
    return plan_library(problems, gpu, context, options, request.kernel)


def _card_work(request: CollectRequest, scratch: Path) -> list[DeviceWork]:
    from kernrec.measure.device.nvml import choose_cards

    if request.problems is None:
        raise UsageError("name what to measure with --op, and --shape or --workload")
    if request.kernel is not None and request.kernel.images:
        names = ", ".join(request.kernel.images)
        raise UsageError(f"{request.kernel.name} takes textures ({names}): it can be analyzed, but not measured")
    cards = choose_cards(request.gpu)
    user_kernel: dict[str, str] = {}
    if request.kernel is not None:
        user_kernel = {"spec": str(scratch / "kernel.json")}
        write_kernel(request.kernel, request.folder, Path(user_kernel["spec"]))
    cards_of: dict[str, list[int]] = {}
    for i, card in enumerate(cards):
        cards_of.setdefault(find_gpu(card.name).name, []).append(i)
    inputs = _inputs(request.kernel)
    context = _planning_context(request)
    work = []
    for name, members in cards_of.items():
        problems = _plan_for_card(request, find_gpu(name), context)
        for position, i in enumerate(members):
            share = problems[position :: len(members)]
            if share:
                work.append(DeviceWork(card_device(cards[i], scratch, inputs, user_kernel), share))
    return work


def _inputs(kernel: Kernel | None) -> InputInfo:
    """The content of inputs, as rows state it."""
    if kernel is None or not kernel.declares_problem:
        return STANDARD_INPUTS
    samples = ", ".join(f"{name} {sample}" for name, sample in kernel.initial_values.items())
    if kernel.inouts:
        samples = f"{samples}; {', '.join(sorted(kernel.inouts))} as earlier launches left it"
    return replace(STANDARD_INPUTS, input_distribution=samples)
