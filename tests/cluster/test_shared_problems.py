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
    cards = ["card-0", "card-1", "card-2"]
    visits = [shared.next(card, cards) for card in cards]
    assert [visit and visit.planned.name for visit in visits] == ["problem-0", "problem-1", None]
    assert visits[1] is not None
    for over in (False, True):
        shared.done(visits[1], 1.0, over)
        assert shared.next("card-2", cards) is None
        assert (shared.next("card-1", cards) is None) is over


@few_examples(30)
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 9), st.booleans()), max_size=60), st.integers(10, 70))
def test_each_config_is_measured_once(moves, most):
    """In each move, a GPU measures up to 9 configs of its visit, or dies and leaves the visit to the next GPU."""
    planned = problems(17, 30, 23)
    shared = SharedProblems(planned, most)
    cards = [f"card-{number}" for number in range(4)]
    under_way: dict[str, Visit] = {}
    lost: list[Visit] = []
    times: Counter[tuple[str, int]] = Counter()

    def work(card: str, count: int) -> bool:
        """Measure up to `count` configs; return whether there was anything to measure."""
        visit = under_way.pop(card, None) or (lost.pop() if lost else shared.next(card, cards))
        if visit is None:
            return False
        tasks = screened(visit, count)
        for task in tasks:
            times[task.problem.key, task.config["a"]] += 1
            shared.learn(measured(task))
        shared.done(visit, 1.0, over=len(tasks) == len(screened(visit, 1000)))
        return True

    for number, count, dies in moves:
        card = cards[number]
        if dies and card in under_way:
            lost.append(under_way.pop(card))
        elif card not in under_way and (visit := lost.pop() if lost else shared.next(card, cards)):
            under_way[card] = visit
        else:
            work(card, count)
    for card in list(under_way):
        work(card, 1000)
    while sum(work(card, 1000) for card in cards):
        pass
    assert set(times.values()) == {1}
    part = -(-most // 3)
    assert Counter(key for key, _ in times) == {p.problem.key: min(part, len(p.tasks)) for p in planned}
