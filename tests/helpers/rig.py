"""Run campaigns on the faulty device, with a worker in this process or in a separate process that tests can kill."""

import json
import os
import resource
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from unittest.mock import patch

from kernrec.measure.campaign.campaign import Campaign
from kernrec.measure.campaign.ingest import earlier_measurements, ingest
from kernrec.measure.campaign.journal import Journal
from kernrec.measure.campaign.plan import PlannedProblem, Task
from kernrec.measure.campaign.results import CampaignSettings, Progress
from kernrec.measure.worker.worker import WorkerSession
from kernrec.measure.worker.worker_client import Stopped, WorkerClient
from kernrec.op import find_op
from kernrec.store import Database
from tests.helpers.fault_injection import FAULTS, OPENING

PROBLEM = find_op("elementwise").problem(n=64)
KERNEL = ("faulty", "0123456789abcdef")


def target(count: int, faults: Mapping[int, str] | None = None) -> PlannedProblem:
    """Return a plan of `count` configs, numbered by tunable `i`. `faults` maps numbers to failures."""
    named = faults or {}
    configs = [{"fault": FAULTS.index(named.get(i, "none")), "i": i} for i in range(count)]
    return PlannedProblem("layer", PROBLEM, tuple(Task(*KERNEL, config, PROBLEM) for config in configs))


def campaign(
    journal: Journal,
    report: Callable[[Progress], None] = lambda progress: None,
    stopping: Callable[[], bool] = lambda: False,
) -> Campaign:
    settings = CampaignSettings(f"session-{os.getpid()}-{os.urandom(4).hex()}")
    return Campaign(WorkerClient(OPENING, stopping), journal, settings, report)


def collect(
    database: Path, plan: PlannedProblem, report: Callable[[Progress], None] = lambda progress: None
) -> Campaign:
    """Run a campaign that skips configs already in the database. Move journal rows to the database before and after."""
    with Journal(database) as journal:
        ingest(journal)
        run = campaign(journal, report)
        try:
            run.run([replace(plan, earlier=tuple(earlier_measurements(database, plan.problem, "h200-sxm")))])
        finally:
            ingest(journal)
        return run


def acknowledge(database: str, count: int, acks: Connection, most_bytes: int | None = None) -> None:
    """Collect in a separate process, and send each acknowledged config's number. `most_bytes` simulates a full disk."""
    if most_bytes is not None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (most_bytes, resource.RLIM_INFINITY))

    def report(progress: Progress) -> None:
        if progress.measurement is not None:
            acks.send(progress.measurement.config["i"])

    try:
        collect(Path(database), target(count), report)
        acks.send("done")
    except Exception as error:
        acks.send(f"{type(error).__name__}: {error}")


def unclosed(database: Path) -> list[int]:
    """Return the config numbers of all rows in open blocks, in ascending order."""
    return stored(database, block_open=True)


def stored(database: Path, **equal: object) -> list[int]:
    """Return the config numbers of all rows, in ascending order."""
    return sorted(number for number, _ in _numbered(database, **equal))


def outcomes(database: Path) -> dict[int, tuple[str, str]]:
    return {number: (str(row["outcome"]), str(row["error"] or "")) for number, row in _numbered(database)}


def _numbered(database: Path, **equal: object) -> list[tuple[int, Mapping[str, object]]]:
    with Database.open(database) as opened:
        configs = {row["config_id"]: json.loads(str(row["tunables"]))["i"] for row in opened.rows("config")}
        return [(configs[row["config_id"]], row) for row in opened.rows("measurement", **equal)]


class WorkerHere(WorkerClient):
    """Worker client that answers its requests in this process, but still encodes them as lines."""

    session: WorkerSession | None = None

    @property
    def alive(self) -> bool:
        return self.session is not None

    def _start_process(self) -> None:
        self.session = WorkerSession()

    def stop(self) -> None:
        self.session = None

    def _exchange(self, request: bytes, limit_s: float) -> bytes:
        if self.stopping():
            self.stop()
            raise Stopped
        assert self.session is not None
        return json.dumps(self.session.answer(json.loads(request))).encode()


@contextmanager
def measuring_here() -> Iterator[None]:
    """Run measurements in this process inside the context."""
    with ExitStack() as stack:
        for module in ("kernrec.measure.collect", "kernrec.cluster.gpu_actor", "tests.helpers.rig"):
            stack.enter_context(patch(f"{module}.WorkerClient", WorkerHere))
        yield
