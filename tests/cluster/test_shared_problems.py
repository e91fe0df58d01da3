"""Test how the GPUs of a model share a list of problems."""

from kernrec.cluster.commands import SharedProblems
from kernrec.measure.campaign.plan import PlannedProblem, Task
from kernrec.op import find_op
from kernrec.store.measurement import Measurement

GPUS = ["gpu-0", "gpu-1", "gpu-2"]


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


def test_each_problem_is_measured_by_one_gpu_with_a_part_of_the_budget():
    shared = SharedProblems(problems(100, 10), 30)
    visits = [shared.next(gpu, GPUS) for gpu in GPUS]
    assert [visit and visit.planned.name for visit in visits] == ["problem-0", "problem-1", None]
    assert [visit.planned.most for visit in visits if visit] == [15, 10]
    assert [visit.planned.share for visit in visits if visit] == [1.0, 1.0]


def test_time_of_a_gpu_is_divided_among_the_unfinished_problems():
    shared = SharedProblems(problems(*[5] * 8), None)
    shares = []
    while (visit := shared.next("gpu-0", GPUS[:2])) is not None:
        shares.append(visit.planned.share)
        shared.done(visit, 1.0)
    assert shares == [2 / 8, 2 / 7, 2 / 6, 2 / 5, 2 / 4, 2 / 3, 1.0, 1.0]


def test_earlier_measurements_are_sent_and_new_ones_are_counted():
    planned = problems(3, 3)
    shared = SharedProblems(planned, None)
    shared.begin([measured(planned[0].tasks[1])])
    visits = [shared.next("gpu-0", GPUS) for _ in planned]
    assert [len(visit.earlier) for visit in visits if visit] == [1, 0]
    shared.learn(measured(planned[1].tasks[0]))
    assert [(result.measured, result.earlier) for result in shared.results] == [(0, 1), (1, 0)]
