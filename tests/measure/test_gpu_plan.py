"""Test the plan of a GPU measurement, and the coverage that `kernrec db info` reports."""

import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from kernrec.measure.gpu_coverage import gpus_coverage

from kernrec.measure.campaign.plan import PlannedProblem
from kernrec.measure.gpu_plan import CONFIGS, SLOWEST, Survey
from kernrec.measure.refine_subject import RefineSubject, sampled_kernels, subject_on
from kernrec.measure.request import CollectRequest, WantedProblem
from kernrec.op import Problem, find_op
from kernrec.recommender.estimate.prediction import predict
from kernrec.store import Database, Stack
from kernrec.store.measurement import Measurement
from tests.helpers.command import run_here

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
def subject(tmp_path_factory):
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


def test_every_kernel_is_drawn_once_before_any_is_drawn_twice(subject, tmp_path):
    survey, kernels = survey_of(subject, tmp_path), kernels_of(subject)
    assert not survey.every_kernel
    assert {drawn_kernel(each) for each in visits(survey, len(kernels))} == kernels
    assert survey.every_kernel
    again = visits(survey, len(kernels))
    assert Counter(map(drawn_kernel, again)) == Counter(kernels)
    assert survey.every_kernel


def test_problems_are_drawn_equally_and_no_config_twice(subject, tmp_path):
    planned = visits(survey_of(subject, tmp_path), 4 * len(kernels_of(subject)))
    assert {len(each.tasks) for each in planned} == {CONFIGS}
    keys = [(each.problem.key, *task.key) for each in planned for task in each.tasks]
    assert len(set(keys)) == len(keys)
    products = Counter(each.problem.key for each in planned if drawn_kernel(each) == ("matmul", "matmul_simt"))
    assert products == {problem.key: 2 for problem in PROBLEMS[:2]}


def test_survey_spreads_over_times_without_the_slowest(subject, tmp_path):
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


ROW = {"kernel": "theirs", "kernel_hash": "external:0", "config": {"x": 1}, "protocol_version": 0, "tier": "final",
       "session": "s", "measured_at": "2026-01-01", "latency_s": 1e-3, "outcome": "ok"}  # fmt: skip


def database(path: Path, rows: list[dict[str, object]]) -> Path:
    with Database.open(path, read_only=False, create=True) as opened:
        opened.add_measurements(map(Measurement.from_columns, [ROW | row for row in rows]))
    return path


def a_layer(op: str) -> Problem:
    from kernrec.measure.problems import select_layers

    return (select_layers(op, None, None, None, None) or [])[0].problem


@pytest.fixture
def path(tmp_path):
    """Store a layer on two GPUs of one architecture, a layer that nobody requests, and a replayed row."""
    reduce, norm, other = a_layer("reduce"), a_layer("rmsnorm"), find_op("matmul").problem(m=64, n=32, k=16)
    return database(
        tmp_path / "measured.duckdb",
        [
            {"gpu": "l40s", "problem": reduce, "energy_j": 0.2, "power_w": 200.0, "energy_method": "x"},
            {"gpu": "rtx4090", "problem": reduce},
            {"gpu": "l40s", "problem": other, "measured_at": "2026-03-01"},
            {"gpu": "l40s", "problem": norm, "replayed": True},
        ],
    )


def test_layers_count_as_measured_and_foreign_rows_as_configs(path):
    stack = Stack([path])
    first, second = gpus_coverage(stack)[:2]
    assert (first.gpu, first.arch, first.last_measured) == ("l40s", "sm_89", "2026-03-01")
    assert (first.ops["reduce"].measured, first.ops["reduce"].energies) == (1, 1)
    assert (first.ops["matmul"].measured, first.ops["matmul"].configs) == (0, 1)
    assert first.ops["rmsnorm"].configs == 0, "a replayed row measures nothing"
    assert (second.gpu, second.ops["reduce"].configs) == ("rtx4090", 1)


def test_coverage_fits_80_columns(path, tmp_path):
    variables = {"COLUMNS": "80", "HOME": str(tmp_path), "PATH": ""}
    done = run_here("db", "info", "--coverage", "--db", path, variables=variables)
    assert done.returncode == 0
    assert all(len(line) <= 80 for line in done.stdout.splitlines())
    assert "l40s" in done.stdout
    done = run_here("db", "info", "--coverage", "--db", path, "--json", home=tmp_path)
    cards = {card["gpu"]: card for card in json.loads(done.stdout)["gpus"]}
    assert cards["l40s"]["ops"]["reduce"]["measured"] == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--gpu", "l40s"), "--gpu was removed; use `kernrec collect --strategy refine --gpu GPU`"),
        (("--db", "none.duckdb"), "none.duckdb"),
    ],
)
def test_misuse_is_refused_in_one_line(tmp_path, arguments, message):
    done = run_here("db", "info", "--coverage", *arguments, home=tmp_path, cwd=tmp_path)
    assert done.returncode == 2
    assert message in done.stderr.splitlines()[-1]
