"""Test with scripted GPUs which GPUs the driver refuses, what it journals, and which visits it assigns."""

import sqlite3
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kernrec.cluster import driver as driver_module
from kernrec.cluster.commands import SharedProblems
from kernrec.cluster.driver import Driver
from kernrec.cluster.gpu_actor import Answer, GpuIdentity, GpuLost, Greeting, Limits, Reply
from kernrec.measure.campaign.ingest import ingest
from kernrec.measure.campaign.journal import Journal, journal_path
from kernrec.measure.campaign.plan import PlannedProblem, Task, Visit
from kernrec.measure.request import CollectRequest, Strategy
from kernrec.op import find_op
from kernrec.recommender.request import Objective

PROBLEM = find_op("elementwise").problem(n=64)
TASKS = tuple(Task("k", "h", {"a": a, "b": 2 * a}, PROBLEM) for a in range(20))
PLANNED = PlannedProblem("layer", PROBLEM, TASKS, probability=0.5)
CARD = GpuIdentity("rtx3090", "node", "uuid", "570", "NVRTC 13")


def row(config: int, tier: str = "screen", **more: object) -> dict[str, Any]:
    columns = {
        "gpu": "rtx3090", "kernel": "k", "kernel_hash": "h", "config": TASKS[config].config,
        "problem": PROBLEM.as_dict(), "protocol_version": 1, "tier": tier, "session": "s", "block": 0,
        "position": config, "measured_at": "2026-01-01T00:00:00", "latency_s": 1e-3, "outcome": "ok",
    }  # fmt: skip
    return {"row": columns | more}


class Scripted:
    """Stand-in for `RayCluster` whose GPUs return scripted replies at once."""

    def __init__(self, journal: Path) -> None:
        self.journal = journal
        self.sources: dict[str, str] = {}
        self.opened: dict[str, Answer | GpuLost] = {}
        self._new: list[str] | None = None
        self.visits: list[tuple[str, Visit]] = []
        self.replies: list[list[Reply]] = []
        """Replies to the calls of `measure`, in order."""
        self.journaled: list[int] = []
        """Number of rows in the driver's journal at each call of `measure`."""
        self._calls: list[tuple[str, str, tuple[Any, ...]]] = []

    def join(self) -> list[str]:
        """Return all GPUs on the first call, then none."""
        new, self._new = list(self.opened) if self._new is None else self._new, []
        return new

    def call(self, gpu: str, method: str, *arguments: object) -> None:
        """See `RayCluster.call`."""
        if method == "measure":
            with sqlite3.connect(self.journal) as reader:
                self.journaled += reader.execute("SELECT count(*) FROM record WHERE measured").fetchone()
        self._calls.append((gpu, method, arguments))

    def wait(self, seconds: float) -> Iterator[tuple[str, Reply]]:
        """See `RayCluster.wait`."""
        for gpu, method, arguments in [self._calls.pop(0) for _ in self._calls[:1]]:
            if method == "hello":
                yield gpu, Greeting("node", self.sources.get(gpu, "sources"))
            elif method == "open":
                yield gpu, self.opened[gpu]
            elif method == "measure":
                (visit,) = arguments
                self.visits.append((gpu, visit))
                for reply in self.replies.pop(0) if self.replies else done():
                    yield gpu, reply

    def close(self) -> None:
        """See `RayCluster.close`."""


def opened(**changed: Any) -> Answer:
    return Answer(CARD.title, replace(CARD, **changed))


def done(*records: dict[str, Any], **more: Any) -> list[Reply]:
    return [*records, Answer(CARD.title, CARD, **more)]


def closed(*rows: dict[str, Any]) -> list[dict[str, Any]]:
    return [*rows, {"closed": 0, "session": rows[0]["row"]["session"]}]


@pytest.fixture
def cluster(tmp_path, monkeypatch):
    monkeypatch.setattr(driver_module, "sources_hash", lambda: "sources")
    return Scripted(journal_path(tmp_path / "own.duckdb"))


def run(cluster: Scripted, tmp_path: Path, needs_energy: bool = False, error: str | None = None) -> list[str]:
    """Run a campaign on one problem that must end with `error`, store its rows, and return its notes."""
    notes: list[str] = []
    planned = SharedProblems([PLANNED], 12)

    def chooser(gpu: str, limits: Limits) -> SharedProblems:
        return planned

    request = CollectRequest(None, tmp_path / "own.duckdb")
    if needs_energy:
        request = replace(request, strategy=Strategy.REFINE, objective=Objective.ENERGY)
    with Journal(cluster.journal) as journal:
        driver = Driver(
            cluster, request, chooser, journal, lambda progress: notes.append(progress.note or ""), lambda: False
        )  # fmt: skip
        assert driver.run().error == error
        ingest(journal, request.database)
    return [note for note in notes if note]


@pytest.mark.parametrize(("changed", "reason"), [
    ({"compiler": "NVRTC 12", "uuid_hash": "second"}, "its compiler is NVRTC 12, that of node is NVRTC 13"),
    ({}, "its GPU is in the campaign already"),
    (
        {"limits": (250.0, None, None, False), "uuid_hash": "second"},
        "its power limit and clocks are 250 W, not locked, here not limited, not locked",
    ),
    ({"measures_energy": False, "uuid_hash": "second"}, "it measures no energy"),
])  # fmt: skip
def test_changed_gpu_is_refused_with_the_reason(cluster, tmp_path, changed, reason):
    cluster.opened = {"first": opened(), "second": opened(**changed)}
    assert run(cluster, tmp_path, needs_energy=True) == [f"node is excluded: {reason}"]
    assert {gpu for gpu, _ in cluster.visits} == {"first"}


def test_failed_gpu_is_named_with_its_node_and_another_takes_its_visit(cluster, tmp_path):
    cluster.opened = {
        "first": opened(),
        "second": opened(uuid_hash="second"),
        "third": Answer("node-3", error="no such file"),
    }
    rows = closed(*(row(config) for config in range(3)))
    cluster.replies = [done(*rows, row(3, block=1), error="no space left on device")]
    notes = run(cluster, tmp_path)
    assert sorted(notes) == [
        "node-3: no such file; the campaign continues without this GPU",
        "rtx3090 on node: no space left on device; the campaign continues without this GPU",
    ]
    (_, lost), (other, again) = cluster.visits[:2]
    assert other == "second"
    assert again.planned is lost.planned
    assert [measured.identity.config["a"] for measured in again.earlier] == [0, 1, 2]  # the rest is repeated


def test_lost_gpu_is_restarted_until_it_is_lost_three_times(cluster, tmp_path):
    cluster.opened = {"first": opened(), "second": opened(uuid_hash="second")}
    cluster.replies = [[*closed(row(0), row(1)), row(2, block=1), GpuLost("lost: its node died")]]
    notes = run(cluster, tmp_path)
    assert notes == ["rtx3090 on node: lost: its node died; another GPU continues its visit, and this one is restarted"]
    earlier = [measured.identity.config["a"] for measured in cluster.visits[1][1].earlier]
    assert earlier == [0, 1]  # rows of the open block are measured again
    cluster.opened = {"first": opened(), "second": GpuLost("lost: it does not start")}
    cluster._new = None
    assert run(cluster, tmp_path) == ["second: lost: it does not start; the campaign continues without this GPU"]


def test_rows_are_journaled_before_the_next_call_and_drifted_rows_count(cluster, tmp_path):
    cluster.opened = {"first": opened(), "second": opened(uuid_hash="second")}
    drifted = [row(0, block=1), row(1, block=1), {"drifted": 1, "session": "s", "error": "hot"}]
    cluster.replies = [done(*drifted, *closed(*(row(config) for config in range(6))), error="full")]
    run(cluster, tmp_path)
    assert cluster.journaled == [0, 8]
    outcomes = [measured.outcome for measured in cluster.visits[1][1].earlier]
    assert outcomes == ["quarantined"] * 2 + ["ok"] * 6
