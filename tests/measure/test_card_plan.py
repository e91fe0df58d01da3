"""The plan of a card: the fixed part, of every kernel some configs, then what may be best and what teaches the rest."""

from collections import Counter
from collections.abc import Collection
from pathlib import Path

import numpy as np
import pytest

from kernrec.measure.campaign.chooser import Visit
from kernrec.measure.campaign.plan import PlannedProblem, Task
from kernrec.measure.card_plan import CardPlan
from kernrec.measure.refine_planner import RefinePlanner
from kernrec.measure.refine_subject import RefineSubject, SampledKernel, sampled_kernels, subject_on
from kernrec.measure.request import CollectRequest, WantedProblem
from kernrec.measure.survey import CONFIGS, SLOWEST, Survey
from kernrec.op import find_op
from kernrec.recommender.contenders import key_of
from kernrec.recommender.estimate.prediction import predict
from kernrec.store import Database
from kernrec.store.measurement import Measurement

GPU = "rtx4090"
PROBLEMS = [
    find_op("matmul").problem("f32", m=512, n=512, k=256),
    find_op("matmul").problem("f32", m=4096, n=64, k=1024),
    find_op("softmax").problem("f32", rows=4096, columns=1024),
]


def request(folder: Path) -> CollectRequest:
    wanted = [WantedProblem(problem.key, problem) for problem in PROBLEMS]
    return CollectRequest(wanted, folder / "own.duckdb")


@pytest.fixture(scope="module")
def subject(tmp_path_factory: pytest.TempPathFactory) -> RefineSubject:
    return subject_on(GPU, request(tmp_path_factory.mktemp("empty")))


def survey_of(subject: RefineSubject, folder: Path, seed: int = 0) -> Survey:
    return Survey(subject, sampled_kernels(GPU, request(folder)), seed)


def kernels_of(subject: RefineSubject) -> set[tuple[str, str]]:
    return {
        (wanted.problem.op, kernel)
        for wanted, hashes in zip(subject.wanted, subject.hashes, strict=True)
        for kernel in hashes
    }


def drawn_kernel(planned: PlannedProblem) -> tuple[str, str]:
    (kernel,) = {task.kernel_name for task in planned.tasks}
    return planned.problem.op, kernel


def visits(survey: Survey, count: int) -> list[PlannedProblem]:
    return [planned for _ in range(count) if (planned := survey.next()) is not None]


def test_every_kernel_is_drawn_once_before_any_is_drawn_twice(subject: RefineSubject, tmp_path: Path) -> None:
    survey, kernels = survey_of(subject, tmp_path), kernels_of(subject)
    assert not survey.every_kernel
    assert {drawn_kernel(each) for each in visits(survey, len(kernels))} == kernels
    assert survey.every_kernel
    again = visits(survey, len(kernels))
    assert Counter(map(drawn_kernel, again)) == Counter(kernels)
    assert survey.every_kernel


def test_problems_are_drawn_equally_and_no_config_twice(subject: RefineSubject, tmp_path: Path) -> None:
    planned = visits(survey_of(subject, tmp_path), 4 * len(kernels_of(subject)))
    assert {len(each.tasks) for each in planned} == {CONFIGS}
    keys = [(each.problem.key, *task.key) for each in planned for task in each.tasks]
    assert len(set(keys)) == len(keys)
    products = Counter(each.problem.key for each in planned if drawn_kernel(each) == ("matmul", "matmul_simt"))
    assert products == {problem.key: 2 for problem in PROBLEMS[:2]}


def test_survey_spreads_over_times_without_the_slowest(subject: RefineSubject, tmp_path: Path) -> None:
    """The contenders of the planner are the fastest of all."""
    kernels = sampled_kernels(GPU, request(tmp_path))
    (kernel,) = [each for each in kernels(PROBLEMS[0]) if each.name == "matmul_simt"]
    assert kernel.table is not None
    space = kernel.table.space.at(PROBLEMS[0])
    rows = kernel.table.runnable(space)
    latency_s = predict(kernel.table, space, rows).limited().latency_s
    tasks = [
        task
        for each in visits(survey_of(subject, tmp_path), 12 * len(kernels_of(subject)))
        if each.problem == PROBLEMS[0]
        for task in each.tasks
        if task.kernel_name == "matmul_simt"
    ]
    place = kernel.table.space.find([task.config for task in tasks])
    drawn_s = latency_s[np.searchsorted(rows, place)]
    assert np.isin(place, rows).all()
    below = np.searchsorted(np.sort(latency_s), drawn_s) / len(rows)
    assert np.histogram(below, 4, (0.0, 1.0))[0].min() >= len(tasks) // 8
    assert drawn_s.max() / drawn_s.min() < 1.5 * SLOWEST


def test_measured_configs_are_not_drawn_again(subject: RefineSubject, tmp_path: Path) -> None:
    first = visits(survey_of(subject, tmp_path), len(kernels_of(subject)))
    rows = [
        Measurement.from_columns(
            {
                "gpu": GPU, "kernel": task.kernel_name, "kernel_hash": task.kernel_hash, "config": task.config,
                "problem": task.problem, "protocol_version": 1, "tier": "screen", "session": "before",
                "measured_at": "2026-03-01T12:00:00", "outcome": "ok", "latency_s": 1e-3,
            }
        )
        for each in first
        for task in each.tasks
    ]  # fmt: skip
    with Database.open(tmp_path / "own.duckdb", read_only=False, create=True) as database:
        database.add_measurements(rows)
    again = visits(survey_of(subject, tmp_path), len(first))
    keys = [{(each.problem.key, *task.key) for each in visit for task in each.tasks} for visit in (first, again)]
    assert [drawn_kernel(each) for each in first] == [drawn_kernel(each) for each in again]
    assert not keys[0] & keys[1]


def test_unpredicted_recording_is_drawn_completely() -> None:
    configs = [{"x": x} for x in range(10)]
    problem = PROBLEMS[0]
    subject = RefineSubject(GPU, True, (WantedProblem("one", problem),), (), ({"theirs": "0123"},))
    survey = Survey(subject, lambda problem: [SampledKernel("theirs", "0123", None, None, configs)], 0)
    planned = visits(survey, 10)
    assert [len(each.tasks) for each in planned] == [4, 4, 2]
    assert {key_of("theirs", task.config) for each in planned for task in each.tasks} == {
        key_of("theirs", config) for config in configs
    }


class _Planner(RefinePlanner):
    """Plans three configs at a time, and keeps which visits were its own."""

    def __init__(self, count: int) -> None:
        self.left, self.ended = count, list[str]()

    def next(self, card: str = "", cards: Collection[str] = ("",)) -> Visit | None:
        if not self.left:
            return None
        self.left -= 1
        tasks = tuple(Task("best", "0123", {"number": self.left, "x": x}, PROBLEMS[0]) for x in range(3))
        return Visit(PlannedProblem("planned", PROBLEMS[0], tasks, finals=False))

    def done(self, visit: Visit, seconds: float, over: bool = True) -> None:
        self.ended.append(visit.planned.name)


def planned_visits(plan: CardPlan, most: int) -> list[Visit]:
    made = []
    while len(made) < most and (visit := plan.next()) is not None:
        plan.done(visit, 1.0)
        made.append(visit)
    return made


def test_survey_and_refinement_have_equal_shares(subject: RefineSubject, tmp_path: Path) -> None:
    fixed = PlannedProblem("fixed part: FMA", PROBLEMS[0], ())
    planner, kernels = _Planner(1000), len(kernels_of(subject))
    made = planned_visits(CardPlan([fixed], survey_of(subject, tmp_path), planner), 1 + kernels + 60)
    assert made[0].planned is fixed
    after = made[1 + kernels :]
    counts = Counter(dict.fromkeys(("refined", "surveyed"), 0))
    for visit in after:
        counts["refined" if visit.planned.name == "planned" else "surveyed"] += len(visit.planned.tasks)
        assert abs(counts["refined"] - counts["surveyed"]) <= 2 * CONFIGS
    assert all(visit.planned.name != "planned" for visit in made[: 1 + kernels])
    assert planner.ended == ["planned"] * sum(visit.planned.name == "planned" for visit in after)
    with_energy = Counter(visit.planned.name == "planned" for visit in after if visit.planned.energy.name == "ALL")
    assert min(with_energy.values()) >= 4
    assert with_energy.total() == pytest.approx(len(after) / 5, abs=1)


def test_survey_continues_when_refinement_is_finished(subject: RefineSubject, tmp_path: Path) -> None:
    made = planned_visits(CardPlan([], survey_of(subject, tmp_path), _Planner(1)), 40)
    assert len(made) == 40
    assert sum(visit.planned.name == "planned" for visit in made) == 1
