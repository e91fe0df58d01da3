"""Test the plan of a GPU measurement."""

from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from kernrec.measure.campaign.plan import PlannedProblem
from kernrec.measure.gpu_plan import CONFIGS, SLOWEST, Survey
from kernrec.measure.refine_subject import RefineSubject, sampled_kernels, subject_of
from kernrec.measure.request import CollectRequest, WantedProblem
from kernrec.measure.request_on_gpu import RequestOnGpu
from kernrec.op import find_op
from kernrec.recommender.estimate.space import predict

PROBLEMS = [
    find_op("matmul").problem("f32", m=512, n=512, k=256),
    find_op("matmul").problem("f32", m=4096, n=64, k=1024),
    find_op("softmax").problem("f32", rows=4096, columns=1024),
]


def request(folder: Path) -> RequestOnGpu:
    wanted = [WantedProblem(problem.key, problem) for problem in PROBLEMS]
    return RequestOnGpu(CollectRequest(wanted, folder / "own.duckdb"), "rtx4090")


@pytest.fixture(scope="module")
def subject(tmp_path_factory):
    return subject_of(request(tmp_path_factory.mktemp("empty")))


def survey_of(subject: RefineSubject, folder: Path, seed: int = 0) -> Survey:
    return Survey(subject, sampled_kernels(request(folder)), seed)


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


def test_survey_draws_every_kernel_before_repeating_one(subject, tmp_path):
    survey, kernels = survey_of(subject, tmp_path), kernels_of(subject)
    assert not survey.every_kernel
    assert {drawn_kernel(each) for each in visits(survey, len(kernels))} == kernels
    assert survey.every_kernel
    again = visits(survey, len(kernels))
    assert Counter(map(drawn_kernel, again)) == Counter(kernels)
    assert survey.every_kernel


def test_survey_draws_problems_equally_often_and_no_config_twice(subject, tmp_path):
    planned = visits(survey_of(subject, tmp_path), 4 * len(kernels_of(subject)))
    assert {len(each.tasks) for each in planned} == {CONFIGS}
    keys = [(each.problem.key, *task.key) for each in planned for task in each.tasks]
    assert len(set(keys)) == len(keys)
    products = Counter(each.problem.key for each in planned if drawn_kernel(each) == ("matmul", "matmul_simt"))
    assert products == {problem.key: 2 for problem in PROBLEMS[:2]}


def test_survey_covers_the_range_of_times_except_the_slowest(subject, tmp_path):
    kernels = sampled_kernels(request(tmp_path))
    (kernel,) = [each for each in kernels(PROBLEMS[0]) if each.name == "matmul_simt"]
    assert kernel.table is not None
    space = kernel.table.space.at(PROBLEMS[0])
    rows = kernel.table.runnable(space)
    latency_s = predict(kernel.table, space, rows).latency_s
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
