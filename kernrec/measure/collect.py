"""`kernrec collect`, as a library call: find the devices, plan, lock the database's journal, run a campaign on each.

Several cards of one kind share the problems; each problem is measured on one of them, for two cards of a kind are not
alike to within the differences that matter.
"""

import os
import threading
import uuid
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from kernrec.errors import KernrecError, UsageError
from kernrec.gpu import find_gpu
from kernrec.kernel import Kernel
from kernrec.measure.campaign.campaign import Campaign
from kernrec.measure.campaign.compile_queue import CompileQueue
from kernrec.measure.campaign.ingest import ingest, known_rows
from kernrec.measure.campaign.journal import Journal, journal_path
from kernrec.measure.campaign.plan import PlannedProblem, library_targets, recorded_targets
from kernrec.measure.campaign.results import EFFORTS, CampaignBudget, MeasuringEffort, ProblemResult, Progress
from kernrec.measure.device.replay import PROTOCOL_VERSION as REPLAYED
from kernrec.measure.device.replay import load_recordings, recorded_gpus
from kernrec.measure.worker.worker import write_kernel
from kernrec.measure.worker.worker_client import Stopped, WorkerClient
from kernrec.op import Problem
from kernrec.store import Database, Stack
from kernrec.version import __version__

DEVICES = ("cuda", "replay")


@dataclass(frozen=True)
class CollectRequest:
    """What to collect. problems: (name, problem); with a recording None stands for all it holds.

    gpu: `auto`, `all` (each card, or each recorded GPU), an index or, of a recording, a GPU's name. resume: leave out
    what the database has already. kernel: one of the user's, measured instead of the library's; its profiles, where the
    database has some, say in what order. folder: where the files are that its spec names.
    """

    problems: Sequence[tuple[str, Problem]] | None
    database: Path
    device: str = "cuda"
    gpu: str = "auto"
    recording: Path | None = None
    effort: MeasuringEffort = EFFORTS["normal"]
    budget: CampaignBudget = field(default_factory=CampaignBudget)
    resume: bool = True
    seed: int = 0
    kernel: Kernel | None = None
    folder: Path = Path()


@dataclass(frozen=True)
class CollectResult:
    """What came of it. stored: rows brought into the database; error: what ended it early, in one line."""

    results: tuple[ProblemResult, ...]
    stored: int
    leftover: int
    stopped: bool
    error: str | None


@dataclass(frozen=True)
class _DeviceWork:
    """One device with its share of the targets."""

    opening: dict[str, Any]
    gpu: str
    sm: int
    uuid_hash: str | None
    targets: list[PlannedProblem]
    columns: dict[str, Any]
    compiled: bool


def collect(
    wanted: CollectRequest, report: Callable[[Progress], None] = lambda progress: None,
    stopping: Callable[[], bool] = lambda: False,
) -> CollectResult:  # fmt: skip
    """Measure what is wanted. What goes wrong once measuring has begun is told in the result, beside what was measured.

    Raises `UsageError` or `KernrecError` before that: no such device, no such kernel, another collector at work.
    """
    with Journal(journal_path(wanted.database)) as journal, TemporaryDirectory(prefix="kernrec-") as scratch:
        if wanted.database.exists():  # one that cannot take rows says so now, not after a night of measuring
            Database.open(wanted.database, read_only=False).close()
        leftover = ingest(journal, wanted.database)
        work = _recorded(wanted) if wanted.device == "replay" else _on_cards(wanted, Path(scratch))
        return _run(work, wanted, journal, leftover, report, stopping)


def _run(
    work: list[_DeviceWork], wanted: CollectRequest, journal: Journal, leftover: int,
    report: Callable[[Progress], None], stopping: Callable[[], bool],
) -> CollectResult:  # fmt: skip
    stored, errors, told_to_stop = 0, [], False
    session = f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%S}-{uuid.uuid4().hex[:8]}"

    def bring_in() -> None:
        nonlocal stored
        with suppress(UsageError):  # in use, say: the journal keeps the rows, and they are brought in later
            stored += ingest(journal, wanted.database)

    # One CPU is left for each device's own process, which must not be kept waiting.
    processes = max(1, ((os.cpu_count() or 1) - len(work)) // len(work))
    campaigns = [
        Campaign(
            WorkerClient(one.opening, stopping),
            one.targets,
            journal,
            session=session if len(work) == 1 else f"{session}-{i}",
            effort=wanted.effort,
            budget=wanted.budget,
            columns=one.columns,
            known=_known(wanted, one),
            ahead=CompileQueue(one.sm, processes) if one.compiled else None,
            stopping=stopping,
            report=report,
            # Rows may enter the database when their block is closed, which only a lone campaign knows of all rows.
            finished=bring_in if len(work) == 1 else lambda: None,
            seed=wanted.seed + i,
        )
        for i, one in enumerate(work)
    ]

    def run(campaign: Campaign) -> None:
        nonlocal told_to_stop
        try:
            campaign.run()
        except Stopped:
            told_to_stop = True
        except KernrecError as error:
            errors.append(str(error))

    threads = [threading.Thread(target=run, args=(campaign,)) for campaign in campaigns[1:]]
    for thread in threads:
        thread.start()
    run(campaigns[0])
    for thread in threads:
        thread.join()
    try:
        stored += ingest(journal, wanted.database)
    except KernrecError as error:
        errors.append(f"{error}; what was measured is safe in {journal.path} and is brought in by the next collect")
    results = tuple(result for campaign in campaigns for result in campaign.results)
    return CollectResult(results, stored, leftover, told_to_stop, errors[0] if errors else None)


def _known(wanted: CollectRequest, one: _DeviceWork) -> Callable[[Problem], list[dict[str, Any]]]:
    def known(problem: Problem) -> list[dict[str, Any]]:
        return known_rows(wanted.database, problem, one.gpu, one.uuid_hash) if wanted.resume else []

    return known


def _recorded(wanted: CollectRequest) -> list[_DeviceWork]:
    if wanted.recording is None:
        raise UsageError("--device replay needs --replay, a database of measurements to answer from")
    if wanted.recording.absolute() == wanted.database.absolute():
        raise UsageError("a recording cannot be collected into itself: give another --db")
    chosen: list[str | None] = (
        list(recorded_gpus(wanted.recording))
        if wanted.gpu == "all"
        else [None if wanted.gpu == "auto" else find_gpu(wanted.gpu).name]
    )
    return [_recorded_on(gpu, wanted.recording, wanted) for gpu in chosen]


def _recorded_on(gpu: str | None, file: Path, wanted: CollectRequest) -> _DeviceWork:
    recordings = load_recordings(file, gpu)
    if wanted.problems is not None:
        keys = {problem.key for _, problem in wanted.problems}
        held = ", ".join(recording.problem.key for recording in recordings[:3])
        recordings = [recording for recording in recordings if recording.problem.key in keys]
        if not recordings:
            raise UsageError(f"{file} holds none of the problems asked for; it holds {held}")
    card = find_gpu(recordings[0].gpu)
    opening = {"device": "replay", "file": str(file.absolute()), "gpu": card.name, "seed": wanted.seed}
    columns = {"protocol_version": REPLAYED, "measured_by": f"kernrec {__version__} replay"}
    targets = recorded_targets(recordings, wanted.effort.configs, wanted.seed)
    return _DeviceWork(opening, card.name, card.sm, None, targets, columns, compiled=False)


def _on_cards(wanted: CollectRequest, scratch: Path) -> list[_DeviceWork]:
    from kernrec.measure.device.nvml import choose_cards

    if wanted.problems is None:
        raise UsageError("name what to measure with --op, and --shape or --workload")
    cards = choose_cards(wanted.gpu)
    own: dict[str, Any] = {}
    if wanted.kernel is not None:
        own = {"spec": str(scratch / "kernel.json")}
        write_kernel(wanted.kernel, wanted.folder, Path(own["spec"]))
    kinds: dict[str, list[int]] = {}
    for i, card in enumerate(cards):
        kinds.setdefault(find_gpu(card.name).name, []).append(i)
    columns = {
        "measured_by": f"kernrec {__version__}",
        "input_generator": "numpy default_rng",
        "input_seed": 0,
        "input_distribution": _distribution(wanted.kernel),
    }
    stack = Stack([wanted.database] if wanted.kernel is not None and wanted.database.exists() else [])
    work = []
    for name, members in kinds.items():
        gpu = find_gpu(name)
        targets = library_targets(
            wanted.problems,
            gpu,
            stack,
            wanted.effort.configs,
            wanted.seed,
            wanted.effort.drawn,
            wanted.kernel,
            wanted.database.parent / "models",
        )
        for place, i in enumerate(members):
            opening = {"device": "cuda", "uuid": cards[i].uuid, "scratch": str(scratch / cards[i].uuid_hash)} | own
            share = targets[place :: len(members)]
            if share:
                work.append(_DeviceWork(opening, gpu.name, gpu.sm, cards[i].uuid_hash, share, columns, compiled=True))
    return work


def _distribution(kernel: Kernel | None) -> str:
    """What inputs hold, as rows say it."""
    if kernel is None or not kernel.declares_problem:
        return "normal; weights of a sum over the root of its terms"
    said = ", ".join(f"{name} {sample}" for name, sample in kernel.samples.items())
    return f"{said}; {', '.join(sorted(kernel.inouts))} as earlier launches left it" if kernel.inouts else said
