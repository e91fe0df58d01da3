"""Test that GPUs sharing problems measure every config exactly once, whenever a GPU dies."""

from collections import Counter

import hypothesis.strategies as st
import numpy as np
from hypothesis import given

from kernrec.cluster.commands import SharedProblems
from kernrec.measure.campaign.plan import PlannedProblem, Task, Visit
from kernrec.op import find_op
from kernrec.store.measurement import Measurement
from tests.helpers.depth import few_examples


def problems(*sizes: int) -> list[PlannedProblem]:
    planned = []
    for number, size in enumerate(sizes):
        problem = find_op("elementwise").problem(n=64 * (number + 1))
        tasks = tuple(Task("k", "h", {"a": a}, problem) for a in range(size))
        planned.append(PlannedProblem(f"problem-{number}", problem, tasks))
    return planned


def measured(task: Task) -> Measurement:
    return Measurement.from_columns({
        "gpu": "rtx3090", "kernel": "k", "kernel_hash": "h", "config": task.config, "problem": task.problem,
        "protocol_version": 1, "tier": "screen", "session": "s", "measured_at": "2026-01-01", "outcome": "ok",
        "latency_s": 1e-3,
    })  # fmt: skip


def screened(visit: Visit, count: int) -> list[Task]:
    """Return the next `count` configs that a GPU measures in a visit."""
    planned = visit.planned
    places = {task.key: i for i, task in enumerate(planned.tasks)}
    tried = [places[row.identity.kernel, "h", f'{{"a":{row.identity.config["a"]}}}'] for row in visit.earlier]
    order = np.setdiff1d(np.arange(len(planned.tasks)), tried)
    assert planned.most is not None
    return [planned.tasks[i] for i in order[: min(count, planned.most - len(set(tried)))]]


def test_each_problem_stays_on_one_gpu():
    shared = SharedProblems(problems(100, 100), None)
    gpus = ["gpu-0", "gpu-1", "gpu-2"]
    visits = [shared.next(gpu, gpus) for gpu in gpus]
    assert [visit and visit.planned.name for visit in visits] == ["problem-0", "problem-1", None]
    assert visits[1] is not None
    for over in (False, True):
        shared.done(visits[1], 1.0, over)
        assert shared.next("gpu-2", gpus) is None
        assert (shared.next("gpu-1", gpus) is None) is over


@few_examples(30)
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 9), st.booleans()), max_size=60), st.integers(10, 70))
def test_each_config_is_measured_once(moves, most):
    """In each move, a GPU measures up to 9 configs of its visit, or dies and leaves the visit to the next GPU."""
    planned = problems(17, 30, 23)
    shared = SharedProblems(planned, most)
    gpus = [f"gpu-{number}" for number in range(4)]
    under_way: dict[str, Visit] = {}
    lost: list[Visit] = []
    times: Counter[tuple[str, int]] = Counter()

    def work(gpu: str, count: int) -> bool:
        """Measure up to `count` configs; return whether there was anything to measure."""
        visit = under_way.pop(gpu, None) or (lost.pop() if lost else shared.next(gpu, gpus))
        if visit is None:
            return False
        tasks = screened(visit, count)
        for task in tasks:
            times[task.problem.key, task.config["a"]] += 1
            shared.learn(measured(task))
        shared.done(visit, 1.0, over=len(tasks) == len(screened(visit, 1000)))
        return True

    for number, count, dies in moves:
        gpu = gpus[number]
        if dies and gpu in under_way:
            lost.append(under_way.pop(gpu))
        elif gpu not in under_way and (visit := lost.pop() if lost else shared.next(gpu, gpus)):
            under_way[gpu] = visit
        else:
            work(gpu, count)
    for gpu in list(under_way):
        work(gpu, 1000)
    while sum(work(gpu, 1000) for gpu in gpus):
        pass
    assert set(times.values()) == {1}
    part = -(-most // 3)
    assert Counter(key for key, _ in times) == {p.problem.key: min(part, len(p.tasks)) for p in planned}
