"""Test the driver with scripted GPUs: which GPUs it refuses, what it journals, and that it assigns work once."""

import sqlite3
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernrec.cluster import driver as driver_module
from kernrec.cluster.commands import SharedProblems
from kernrec.cluster.driver import Driver
from kernrec.cluster.gpu_actor import Answer, GpuIdentity, GpuLost, Greeting, Reply
from kernrec.measure.campaign.ingest import ingest
from kernrec.measure.campaign.journal import Journal, journal_path
from kernrec.measure.campaign.plan import PlannedProblem, Task
from kernrec.measure.request import CollectRequest, Strategy
from kernrec.op import find_op
from kernrec.recommender.request import Objective
from kernrec.store.measurement import Measurement
from tests.helpers.depth import few_examples
from tests.helpers.sharing import USUAL, measurement

PROBLEM = find_op("elementwise").problem(n=64)
TASKS = tuple(Task("k", "h", {"a": a, "b": 2 * a}, PROBLEM) for a in range(20))
PLANNED = PlannedProblem("layer", PROBLEM, TASKS, probability=0.5)
CARD = GpuIdentity("rtx3090", "node", "uuid", "570", "NVRTC 13")


def row(config: int, tier: str = "screen", **more: object) -> dict[str, Any]:
    columns = USUAL | {
        "gpu": "rtx3090", "kernel": "k", "kernel_hash": "h", "config": TASKS[config].config,
        "problem": PROBLEM.as_dict(), "tier": tier, "session": "s", "block": 0, "position": config,
    }  # fmt: skip
    return {"row": columns | more}


class Scripted:
    """Stand-in for `RayCluster` whose GPUs return scripted replies at once."""

    def __init__(self, journal: Path) -> None:
        self.journal = journal
        self.sources: dict[str, str] = {}
        self.opened: dict[str, Answer | GpuLost] = {}
        self._new: list[str] | None = None
        self.visits: list[tuple[str, PlannedProblem]] = []
        self.replies: list[list[Reply]] = []
        """Replies to the calls of `measure`, in order."""
        self.journaled: list[int] = []
        """Number of rows in the driver's journal at each call of `measure`."""
        self._calls: list[tuple[str, str, tuple[Any, ...]]] = []

    def join(self) -> list[str]:
        new, self._new = list(self.opened) if self._new is None else self._new, []
        return new

    def call(self, gpu: str, method: str, *arguments: object) -> None:
        if method == "measure":
            with sqlite3.connect(self.journal) as reader:
                self.journaled += reader.execute("SELECT count(*) FROM record WHERE measured").fetchone()
        self._calls.append((gpu, method, arguments))

    def wait(self, seconds: float) -> Iterator[tuple[str, Reply]]:
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
    """Run a campaign on one problem, store the rows, and return the notes. The campaign must end with `error`."""
    notes: list[str] = []
    planned = SharedProblems([PLANNED], 12)

    request = CollectRequest(None, tmp_path / "own.duckdb")
    if needs_energy:
        request = replace(request, strategy=Strategy.REFINE, objective=Objective.ENERGY)
    with Journal(request.database) as journal:
        driver = Driver(
            cluster, request, lambda *_: planned, journal, lambda progress: notes.append(progress.note or ""),
            lambda: False,
        )  # fmt: skip
        assert driver.run().error == error
        ingest(journal)
    return [note for note in notes if note]


@pytest.mark.parametrize(("changed", "reason"), [
    ({"compiler": "NVRTC 12", "uuid_hash": "second"}, "its compiler NVRTC 12 differs from node's (NVRTC 13)"),
    ({}, "its GPU is in the campaign already"),
    (
        {"limits": (250.0, None, None, False), "uuid_hash": "second"},
        "its power limit and clocks (250 W, not locked) differ from those of the first GPU (default limit, not locked)",
    ),
    ({"measures_energy": False, "uuid_hash": "second"}, "it measures no energy"),
])  # fmt: skip
def test_changed_gpu_is_refused_with_the_reason(cluster, tmp_path, changed, reason):
    cluster.opened = {"first": opened(), "second": opened(**changed)}
    assert run(cluster, tmp_path, needs_energy=True) == [f"node is excluded: {reason}"]
    assert {gpu for gpu, _ in cluster.visits} == {"first"}


def test_failed_gpu_is_named_with_its_node_and_another_measures_its_configs(cluster, tmp_path):
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
    assert again.tasks is lost.tasks
    assert [measured.config["a"] for measured in again.earlier] == [0, 1, 2]  # the other configs are repeated


def test_lost_gpu_is_restarted_until_it_is_lost_three_times(cluster, tmp_path):
    cluster.opened = {"first": opened(), "second": opened(uuid_hash="second")}
    cluster.replies = [[*closed(row(0), row(1)), row(2, block=1), GpuLost("lost: its node died")]]
    notes = run(cluster, tmp_path)
    assert notes == [
        "rtx3090 on node: lost: its node died; another GPU measures the rest of its configs, and this one is restarted"
    ]
    earlier = [measured.config["a"] for measured in cluster.visits[1][1].earlier]
    assert earlier == [0, 1]  # rows of the open block are measured again
    cluster.opened = {"first": opened(), "second": GpuLost("lost: it does not start")}
    cluster._new = None
    assert run(cluster, tmp_path) == ["second: lost: it does not start; the campaign continues without this GPU"]


def test_driver_stores_all_rows_and_marks_rows_of_a_drifting_gpu(cluster, tmp_path):
    cluster.opened = {"first": opened(), "second": opened(uuid_hash="second")}
    drifted = [row(0, block=1), row(1, block=1), {"drifted": 1, "session": "s", "error": "hot"}]
    cluster.replies = [done(*drifted, *closed(*(row(config) for config in range(6))), error="full")]
    run(cluster, tmp_path)
    assert cluster.journaled == [0, 8]
    outcomes = [measured.outcome for measured in cluster.visits[1][1].earlier]
    assert outcomes == ["quarantined"] * 2 + ["ok"] * 6


GPUS = ["gpu-0", "gpu-1", "gpu-2"]


def problems(*sizes: int) -> list[PlannedProblem]:
    planned = []
    for number, size in enumerate(sizes):
        problem = find_op("elementwise").problem(n=64 * (number + 1))
        tasks = tuple(Task("k", "h", {"a": a}, problem) for a in range(size))
        planned.append(PlannedProblem(f"problem-{number}", problem, tasks))
    return planned


def measured(task: Task) -> Measurement:
    same = {"gpu": "rtx3090", "kernel": "k", "kernel_hash": "h", "tier": "screen"}
    return measurement(**same, config=task.config, problem=task.problem)


def test_each_gpu_gets_one_problem_and_its_share_of_the_budget():
    shared = SharedProblems(problems(100, 10), 30)
    visits = [shared.next(gpu, GPUS) for gpu in GPUS]
    assert [visit and visit.name for visit in visits] == ["problem-0", "problem-1", None]
    assert [visit.most for visit in visits if visit] == [15, 10]
    assert [visit.share for visit in visits if visit] == [1.0, 1.0]


@few_examples(30)
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 9), st.booleans()), max_size=60), st.integers(10, 70))
def test_each_config_is_measured_once_even_if_gpus_die(moves, most):
    """Each move starts or ends a problem, or kills a GPU after up to 9 configs. Another GPU continues the problem."""
    planned = problems(17, 30, 23)
    shared = SharedProblems(planned, most)
    gpus = [f"gpu-{number}" for number in range(4)]
    under_way: dict[str, PlannedProblem] = {}
    lost: list[PlannedProblem] = []
    times: Counter[tuple[str, int]] = Counter()

    def begin(gpu: str) -> bool:
        visit = lost.pop(0) if lost else shared.next(gpu, gpus)
        if visit is not None:
            under_way[gpu] = visit
        return visit is not None

    def work(visit: PlannedProblem, count: int) -> PlannedProblem:
        """Measure up to `count` of a visit's remaining configs. Return the visit for the GPU that continues."""
        tried = {row.config["a"] for row in visit.earlier}
        left = [task for task in visit.tasks if task.config["a"] not in tried]
        assert visit.most is not None
        rows = [measured(task) for task in left[: min(count, visit.most - len(tried))]]
        for row in rows:
            times[row.problem.key, row.config["a"]] += 1
            shared.learn(row)
        return replace(visit, earlier=(*visit.earlier, *rows))

    def end(gpu: str) -> None:
        visit = under_way.pop(gpu)
        work(visit, len(visit.tasks))
        shared.done(visit, 1.0)

    for number, count, dies in moves:
        gpu = gpus[number]
        if gpu not in under_way:
            begin(gpu)
        elif dies:
            lost.append(work(under_way.pop(gpu), count))
        else:
            end(gpu)
    for gpu in list(under_way):
        end(gpu)
    while begin(gpus[0]):
        end(gpus[0])
    assert set(times.values()) == {1}
    part = -(-most // 3)
    assert Counter(key for key, _ in times) == {p.problem.key: min(part, len(p.tasks)) for p in planned}


def test_gpu_time_is_divided_equally_among_unfinished_problems():
    shared = SharedProblems(problems(*[5] * 8), None)
    shares = []
    while (visit := shared.next("gpu-0", GPUS[:2])) is not None:
        shares.append(visit.share)
        shared.done(visit, 1.0)
    assert shares == [2 / 8, 2 / 7, 2 / 6, 2 / 5, 2 / 4, 2 / 3, 1.0, 1.0]


def test_repeated_problem_is_measured_once():
    shared = SharedProblems([*problems(3), *problems(3)], 2)
    assert [visit and visit.name for visit in (shared.next(), shared.next())] == ["problem-0", None]
    assert [result.configs for result in shared.results] == [2]


def test_gpu_receives_earlier_measurements_and_driver_counts_new_ones():
    planned = problems(3, 3)
    shared = SharedProblems(planned, None)
    shared.begin([measured(planned[0].tasks[1])])
    visits = [shared.next("gpu-0", GPUS) for _ in planned]
    assert [len(visit.earlier) for visit in visits if visit] == [1, 0]
    shared.learn(measured(planned[1].tasks[0]))
    assert [(result.measured, result.earlier) for result in shared.results] == [(0, 1), (1, 0)]
