"""`kernrec collect` as a library call: find the devices, plan, lock the journal, run a campaign on each device.

Several cards of one kind share the problems, and each problem is measured on one of them: two cards of a kind differ by
more than the differences between good configs.
"""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

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
from kernrec.measure.worker.worker import write_kernel
from kernrec.measure.worker.worker_client import Stopped, WorkerClient
from kernrec.op import Problem
from kernrec.store import Stack
from kernrec.store.measurement import InputInfo, Measurement

if TYPE_CHECKING:
    from kernrec.recommender.context import Context

DEVICES = (DeviceKind.CUDA, DeviceKind.REPLAY)
"""The kinds of devices that a user can collect on."""


@dataclass(frozen=True)
class CollectRequest:
    """What to collect."""

    problems: Sequence[tuple[str, Problem]] | None
    """(name, problem) pairs; None: all problems of a recording."""
    database: Path
    device: DeviceKind = DeviceKind.CUDA
    gpu: str = "auto"
    """`auto`, `all` (each card, or each recorded GPU), an index, a UUID or, for a recording, the name of a GPU."""
    recording: Path | None = None
    """Database to replay."""
    effort: MeasuringEffort = EFFORTS["normal"]
    budget: CampaignBudget = field(default_factory=CampaignBudget)
    resume: bool = True
    """Whether to skip what the database already has."""
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
    """What ended it early, in one line."""


@dataclass(frozen=True)
class DeviceWork:
    """One device with its share of the problems."""

    device: MeasuringDevice
    problems: list[PlannedProblem]


def collect(
    request: CollectRequest,
    report: Callable[[Progress], None] = lambda progress: None,
    stopping: Callable[[], bool] = lambda: False,
) -> CollectResult:
    """Measure what is requested.

    Args:
        request: what to collect.
        report: called with each measurement and note.
        stopping: called often; once it returns true, collecting ends.

    Returns:
        What was measured; an error after measuring has begun is part of it.

    Raises:
        UsageError: before anything is measured: no such device or kernel, or another collector is running.
        KernrecError: before anything is measured.
    """
    with open_journal(request, report) as (journal, leftover), TemporaryDirectory(prefix="kernrec-") as scratch:
        work = devices_of(request, Path(scratch))
        return _Collection(request, journal, report, stopping).run(work, leftover)


@contextmanager
def open_journal(request: CollectRequest, report: Callable[[Progress], None]) -> Iterator[tuple[Journal, int]]:
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
    tried = any(it.measured for it in result.results)
    if error is None and not result.stopped and tried and not any(it.best for it in result.results):
        error = "no config could be measured; the reasons are above"
    return replace(result, stored=stored, error=error)


def devices_of(request: CollectRequest, scratch: Path) -> list[DeviceWork]:
    """The devices of a request with the plans of their problems. Raises as `collect`."""
    return _recorded_work(request) if request.device == DeviceKind.REPLAY else _card_work(request, scratch)


class _Collection:
    """Campaigns on several devices at once, which fill one database."""

    def __init__(
        self,
        request: CollectRequest,
        journal: Journal,
        report: Callable[[Progress], None],
        stopping: Callable[[], bool],
    ) -> None:
        self._request = request
        self._journal = journal
        self._report = report
        self._stopping = stopping
        self._stored = 0
        self._errors: list[str] = []
        self._stopped = False

    def run(self, work: list[DeviceWork], leftover: int) -> CollectResult:
        """Run a campaign on each device and store what they measure."""
        session = new_session()
        names = [session] if len(work) == 1 else [f"{session}-{i}" for i in range(len(work))]
        # Rows may enter the database when their block is closed, which only a single campaign knows of all rows.
        finished = self._store if len(work) == 1 else lambda: None
        campaigns = [
            Campaign(
                WorkerClient(share.device.opening, self._stopping),
                share.problems,
                self._journal,
                share.device.settings(names[i], self._request.effort, self._request.budget, self._request.seed + i),
                CampaignHooks(self._earlier(share.device), self._stopping, self._report, finished),
                share.device.compile_queue(len(work)),
            )
            for i, share in enumerate(work)
        ]
        threads = [threading.Thread(target=self._run_campaign, args=(campaign,)) for campaign in campaigns[1:]]
        for thread in threads:
            thread.start()
        self._run_campaign(campaigns[0])
        for thread in threads:
            thread.join()
        results = tuple(result for campaign in campaigns for result in campaign.results)
        first_error = self._errors[0] if self._errors else None
        result = CollectResult(results, self._stored, leftover, self._stopped, first_error)
        return concluded(result, self._journal, self._request.database)

    def _earlier(self, device: MeasuringDevice) -> Callable[[Problem], list[Measurement]]:
        def earlier(problem: Problem) -> list[Measurement]:
            return device.earlier(self._request.database, problem) if self._request.resume else []

        return earlier

    def _store(self) -> None:
        with suppress(UsageError):  # in use, for example: the journal keeps the rows, and they are stored later
            self._stored += ingest(self._journal, self._request.database)

    def _run_campaign(self, campaign: Campaign) -> None:
        try:
            campaign.run()
        except Stopped:
            self._stopped = True
        except KernrecError as error:
            self._errors.append(str(error))


def _recorded_work(request: CollectRequest) -> list[DeviceWork]:
    return [recorded_work_on(gpu, request) for gpu in replayed_gpus(request)]


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
    keys = None if request.problems is None else {problem.key for _, problem in request.problems}
    recordings = load_requested(file, gpu, keys)
    problems = plan_recordings(recordings, request.effort.configs, request.seed)
    return DeviceWork(recorded_device(file, recordings[0].gpu, request.seed), problems)


def planning_context(request: CollectRequest) -> "Context":
    """What plans for cards follow from: shipped profiles, the models beside the database, a user's kernel in it."""
    from kernrec.recommender.context import Context
    from kernrec.recommender.estimate.model_store import ModelStore

    stored = [request.database] if request.kernel is not None and request.database.exists() else []
    return Context(stored, models=ModelStore(request.database.parent / "models", Stack(stored)))


def plan_for_card(request: CollectRequest, gpu: GPU, context: "Context") -> list[PlannedProblem]:
    """The plans of a request's problems on a kind of card. Raises as `collect`."""
    if request.problems is None:
        raise UsageError("name what to measure with --op, and --shape or --workload")
    options = PlanOptions(request.effort.configs, request.effort.drawn, request.seed)
    return plan_library(request.problems, gpu, context, options, request.kernel)


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
    context = planning_context(request)
    work = []
    for name, members in cards_of.items():
        problems = plan_for_card(request, find_gpu(name), context)
        for position, i in enumerate(members):
            share = problems[position :: len(members)]
            if share:
                work.append(DeviceWork(card_device(cards[i], scratch, inputs, user_kernel), share))
    return work


def _inputs(kernel: Kernel | None) -> InputInfo:
    """What inputs hold, as rows state it."""
    if kernel is None or not kernel.declares_problem:
        return STANDARD_INPUTS
    samples = ", ".join(f"{name} {sample}" for name, sample in kernel.initial_values.items())
    if kernel.inouts:
        samples = f"{samples}; {', '.join(sorted(kernel.inouts))} as earlier launches left it"
    return replace(STANDARD_INPUTS, input_distribution=samples)
