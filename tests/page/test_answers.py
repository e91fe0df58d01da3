"""Test the answers and the Pareto front of the web page."""

import json
import math
import shlex
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernrec.cli.app import run
from kernrec.errors import KernrecError, UsageError
from kernrec.gpu import find_gpu
from kernrec.interop.t1 import load_spec
from kernrec.op import find_op
from kernrec.page.answers import Answers
from kernrec.page.document import of_point
from kernrec.page.front import Subject, front_answer
from kernrec.recommender import Query, Recommender
from kernrec.recommender.request import op_points
from kernrec.store import Database
from tests.helpers.depth import few_examples

ASKED = {"gpu": "rtx4090", "op": "matmul", "dtype": "f32", "layout": "nn", "shape": "m=256,n=512,k=256", "clocks": "1"}


@pytest.fixture(scope="module")
def answers():
    return Answers(Recommender(databases=[]))


@pytest.mark.parametrize(
    "wanted",
    [
        {},
        {"op": "matvec", "shape": "m=4096,k=4096", "gpu": "rtx4090"},  # matmul kernels also apply
        {"op": "matmul", "shape": "m=16,n=1024,k=64", "dtype": "f32", "gpu": "a100"},  # the reference time is learned
    ],
)
def test_every_pareto_point_of_the_page_can_be_explained(answers, wanted):
    wanted = wanted or ASKED
    front = answers.answer("front", wanted)
    for number in front["front"]:
        explained = answers.answer("explain", {**wanted, **of_point(front, number)})
        assert explained["latency_s"] == front["points"]["latency_s"][number]
        assert sum(explained["energy_by_part_j"].values()) == pytest.approx(explained["energy_j"], rel=1e-3)


def test_page_refuses_config_names_in_another_case(answers):
    front = answers.answer("front", ASKED)
    chosen = of_point(front, front["front"][0])
    with pytest.raises(UsageError, match="'BLOCK_M'; did you mean block_m"):
        answers.answer("explain", {**ASKED, **chosen, "config": "BLOCK_M=128"})
    with pytest.raises(UsageError, match="config '4k': expected name=value pairs"):
        answers.answer("explain", {**ASKED, **chosen, "config": "4k"})


def test_commands_copied_from_the_page_run(answers, capsys):
    front = answers.answer("front", ASKED)
    for number in (front["front"][0], front["front"][-1]):
        explained = answers.answer("explain", {**ASKED, **of_point(front, number)})
        for command in explained["commands"].values():
            assert run(shlex.split(command)[1:]) == 0, command
            assert explained["kernel"] in capsys.readouterr().out


def test_problem_without_kernels_has_baselines_and_no_points(answers):
    query = {"gpu": "a100", "op": "matmul", "dtype": "f32", "layout": "tt", "shape": "m=64,n=765,k=30521"}
    front, other = answers.answer("front", query), answers.answer("front", ASKED)
    assert set(front) == set(other)
    assert set(front["points"]) == set(other["points"])
    assert not any(front["points"].values())
    assert front["baselines"][0]["latency_s"] > 0
    assert "no config of any kernel" in front["no_kernel"]
    assert other["no_kernel"] is None


@pytest.mark.parametrize("about", [{"op": "matmul"}, {"kernel": "matmul_simt"}])
def test_pareto_front_and_explanation_use_inputs_of_zeros_on_request(answers, about, capsys):
    query = {"gpu": "rtx4090", **about, "dtype": "f32", "layout": "nn", "shape": "m=2048,n=2048,k=2048"}
    least = []
    for inputs in ({}, {"inputs": "zeros"}):
        front = answers.answer("front", query | inputs)
        point = of_point(front, front["front"][-1])
        explained = answers.answer("explain", {**query, **inputs, **point})
        assert ("explain" in explained["commands"]) == (not inputs)
        if not inputs:
            assert run([*shlex.split(explained["commands"]["explain"])[1:], "--json"]) == 0
            assert json.loads(capsys.readouterr().out)["energy_j"] == pytest.approx(explained["energy_j"], rel=1e-3)
        assert run([*shlex.split(explained["commands"]["recommend"])[1:], "--top", "99", "--json"]) == 0
        assert any(
            recommendation["energy_j"] == pytest.approx(explained["energy_j"], rel=1e-3)
            for recommendation in json.loads(capsys.readouterr().out)["recommendations"]
        )
        least.append(explained["energy_j"])
    assert least[1] < 0.9 * least[0]
    with pytest.raises(UsageError, match="unknown inputs 'ones'"):
        answers.answer("front", query | {"inputs": "ones"})


def test_every_offered_option_gets_an_answer(answers):
    options = answers.options()
    assert "resnet50" in options["workloads"]
    assert options["inputs"] == ["random", "zeros"]
    for op in options["ops"]:
        assert set(op["layers"][0]) == {"name", "op", "dtype", "layout", "shape"}
        assert find_op(op["name"]).name == op["name"]
    problem = find_op("softmax").problem("f16", None, rows=64, columns=128)
    assert Subject(problem).parameters["shape"] == "rows=64,columns=128"


def test_database_kernels_are_offered_with_the_shape_of_their_spec(tmp_path):
    examples = Path(__file__).resolve().parents[2] / "docs/examples"
    kernel, _ = load_spec(examples / "blur.toml", examples / "blur.cu")
    path = tmp_path / "own.duckdb"
    with Database.open(path, read_only=False, create=True) as database:
        database.add_kernel(kernel, kernel.definition.problem(width=64, height=64))
    (offered,) = Answers(Recommender(databases=[path])).options()["kernels"]
    assert offered["layers"][0]["kernel"] == "blur"
    assert offered["layers"][0]["shape"].startswith("width=")


def test_unknown_names_are_refused_in_one_line(answers, refuses):
    refuses(lambda path, query: answers.answer(path, query), [
        ("front", {**ASKED, "op": "matmull"}), ("front", {**ASKED, "gpu": "h2000"}),
        ("front", {**ASKED, "kernel": "matmul_simt"}), ("front", {"gpu": "h200"}),
        ("front", {"gpu": "h200", "kernel": "../blur"}), ("front", {**ASKED, "shape": "m=256"}),
        ("front", {**ASKED, "file": "/etc/passwd"}), ("front", {**ASKED, "shape": "m=" + "1" * 500}),
        ("front", {**ASKED, "shape": "m=1\n"}), ("explain", {**ASKED, "kernel": "../../etc/passwd"}),
        ("explain", {**ASKED, "kernel": "matmul_simt", "config": "__import__=1;"}),
        ("explain", {**ASKED, "kernel": "matmul_simt", "power_limit_w": "12"}),
        ("explain", {**ASKED, "kernel": "matmul_simt", "power_limit_w": "nan"}),
        ("network", {"gpu": "h200", "workload": "datasets/workloads/resnet50.toml"}),
        ("network", {"gpu": "h200", "workload": "/etc/passwd.csv"}),
    ])  # fmt: skip


@few_examples(20)
@given(name=st.sampled_from(sorted(ASKED)), value=st.text(max_size=40))
def test_no_request_text_crashes_the_page(answers, name, value):
    with suppress(KernrecError):
        assert answers.answer("front", {**ASKED, name: value})["gpu"]


PROBLEM = find_op("matmul").problem("f32", None, m=256, n=512, k=256)
GPU = find_gpu("rtx4090")


def test_front_has_a_point_for_every_config_at_every_operating_point(recommender):
    front = front_answer(recommender, Subject(PROBLEM, clocks=True), GPU)
    candidates = recommender.on(GPU).candidates(PROBLEM, op_points(GPU, Query(clocks=True)))
    assert len(front["points"]["latency_s"]) == int(np.isfinite(candidates.latency_s).sum())
    assert {len(column) for column in front["points"].values()} == {len(front["points"]["latency_s"])}
    assert math.isclose(min(front["points"]["latency_s"]), float(candidates.latency_s.min()), rel_tol=1e-4)
    assert sum(point["default"] for point in front["operating_points"]) == 1


def test_front_is_undominated_and_sorted_by_latency(recommender):
    front = front_answer(recommender, Subject(PROBLEM), GPU)
    latency, energy = front["points"]["latency_s"], front["points"]["energy_j"]
    for number in front["front"]:
        beaten = [
            other
            for other in range(len(latency))
            if latency[other] < latency[number] * (1 - 1e-4) and energy[other] < energy[number] * (1 - 1e-4)
        ]
        assert not beaten
    assert [latency[n] for n in front["front"]] == sorted(latency[n] for n in front["front"])


def test_ends_of_the_front_equal_the_top_recommendations(recommender):
    front = front_answer(recommender, Subject(PROBLEM), GPU)
    recommendations = recommender.on(GPU).answer_op(PROBLEM, Query(top=2)).recommendations
    points, ends = front["points"], (front["front"][0], front["front"][-1])
    for recommendation, number in zip(recommendations, ends, strict=True):
        configs = front["configs"][points["kernel"][number]]
        assert list(recommendation.config.values()) == configs["values"][points["config"][number]]
        assert front["operating_points"][points["point"][number]]["power_limit_w"] == recommendation.power_limit_w
        assert math.isclose(points["latency_high_s"][number], recommendation.latency_s.high, rel_tol=1e-4)


def test_limit_on_points_keeps_the_front_and_reports_dropped_points(recommender):
    whole = front_answer(recommender, Subject(PROBLEM), GPU)
    few = front_answer(recommender, Subject(PROBLEM), GPU, most=50)

    def on_front(answer: dict) -> list[tuple[float, float]]:
        return [(answer["points"]["latency_s"][n], answer["points"]["energy_j"][n]) for n in answer["front"]]

    assert len(few["points"]["latency_s"]) == 50
    assert on_front(few) == on_front(whole)
    left_out = len(whole["points"]["latency_s"]) - 50
    assert any(note.startswith(f"{left_out} of ") for note in few["notes"])
