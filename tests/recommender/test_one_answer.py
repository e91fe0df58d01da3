"""Test that all commands, the page, MCP and Python give the same answer (layout, config, costs, intervals and notes) to
a question. The normal suite asks a sample that changes with the commit. The deep profile asks all questions."""

import asyncio
import json
import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import kernrec
from kernrec.checking.child_process import Limits
from kernrec.errors import KernrecError, UsageError
from kernrec.gpu import all_gpus, find_gpu
from kernrec.mcp.server import Folder, make_server
from kernrec.measure.problems import select_layers
from kernrec.measure.refine_subject import subject_of
from kernrec.measure.request import CollectRequest
from kernrec.measure.request_on_gpu import RequestOnGpu
from kernrec.op import Problem, all_ops
from kernrec.op.workload import workload, workloads
from kernrec.page.answers import Answers
from kernrec.recommender import Answer, Objective, Query, Recommender, Request
from kernrec.recommender.many import answer_many
from kernrec.recommender.networks.compare import Swept, compare_gpus, sweep_network
from kernrec.recommender.networks.layers import NetworkRequest, shapes_as_network
from tests.helpers.command import run_here
from tests.helpers.needs import needs

COUNT = 300
FOUND = (25, 55, 218, 273)
"""Questions that once got different answers."""
pytestmark = needs("mcp")
LATENCY = Query(Objective.LATENCY, top=1)  # notes also depend on which choices are shown


@dataclass(frozen=True)
class Question:
    number: int
    gpu: str
    op: str
    dtype: str
    layout: str | None
    dims: dict[str, int]

    @property
    def shape(self) -> str:
        return ",".join(f"{name}={value}" for name, value in self.dims.items())

    @property
    def request(self) -> Request:
        return Request(self.gpu, self.op, None, self.shape, self.dtype, self.layout, LATENCY)

    @property
    def options(self) -> list[str]:
        layout = [] if self.layout is None else ["--layout", self.layout]
        return ["--gpu", self.gpu, "--op", self.op, "--shape", self.shape, "--dtype", self.dtype, *layout]

    @property
    def parameters(self) -> dict[str, str]:
        layout = {} if self.layout is None else {"layout": self.layout}
        return {"gpu": self.gpu, "op": self.op, "shape": self.shape, "dtype": self.dtype, **layout}


@cache
def _layers() -> dict[str, list[Problem]]:
    layers: dict[str, list[Problem]] = {op.name: [] for op in all_ops()}
    for name in workloads():
        for layer in workload(name).layers:
            layers[layer.problem.op].append(layer.problem)
    return {op: problems for op, problems in layers.items() if problems}


@cache
def drawn_question(number: int) -> Question:
    """Draw a layer of a network, half the time with other sizes, a third of the time in a fixed layout."""
    draw = random.Random(f"one answer {number}")
    while True:
        op = draw.choice([*_layers(), "matmul", "matmul", "conv2d", "attention"])
        problem = draw.choice(_layers()[op])
        definition, dims = problem.definition, dict(problem.dim)
        if draw.random() < 0.5:
            name = draw.choice([name for name, value in dims.items() if value > 1])
            dims[name] = max(1, int(dims[name] * draw.choice([0.02, 0.25, 0.5, 2, 4])) + draw.choice([0, 0, 0, 1, 8]))
        dtype = draw.choice([dtype for dtype in definition.dtypes if dtype in ("f32", "f16", "bf16", "f8e4m3", "i8")])
        layout = draw.choice(definition.layouts) if draw.random() < 0.33 else None
        gpu = draw.choice(all_gpus()).name
        try:
            definition.problem(dtype, layout, **dims)
        except UsageError:
            continue
        return Question(number, gpu, op, dtype, layout, dims)


def _check(entry: str, answered: dict[str, Any], expected: dict[str, Any], question: Question) -> None:
    """Compare the fields that both answers have. The page rounds costs to five digits."""
    rounding = 5e-5 if entry == "page" else 1e-9
    same = {
        name: pytest.approx(expected[name], rel=rounding) if name in ("latency", "energy") else expected[name]
        for name in answered
    }
    assert answered == same, (entry, question)


def _of_json(answer: dict[str, Any]) -> dict[str, Any]:
    """Return the fields that all entry points must share, from an answer as JSON. If only backends answer, use the
    fastest."""
    problem = {"problem": answer["problem"], "notes": answer["notes"]}
    if not answer["recommendations"]:
        baseline = answer["baselines"][0]
        return problem | {
            "backend": baseline["backend"],
            "latency": [baseline["latency_s"], *baseline["latency_interval_s"]],
        }
    return problem | _of_recommendation(answer["recommendations"][0])


def _of_recommendation(recommendation: dict[str, Any]) -> dict[str, Any]:
    return {
        "kernel": recommendation["kernel"],
        "config": recommendation["config"],
        "bottleneck": recommendation["bottleneck"],
        "latency": [recommendation["latency_s"], *recommendation["latency_interval_s"]],
        "energy": [recommendation["energy_j"], *recommendation["energy_interval_j"]],
    }


def _printed(*words: str) -> Any:
    done = run_here(*words, "--json")
    if done.returncode:
        raise KernrecError(done.stderr)
    return json.loads(done.stdout)


def _of_mcp(recommender: Recommender, tool: str, question: Question, **more: Any) -> Any:
    arguments = {name: getattr(question, name) for name in ("op", "gpu", "shape", "dtype", "layout")}
    server = make_server(recommender, Folder(None), Limits())
    return asyncio.run(server.call_tool(tool, arguments | {"objective": "latency"} | more)).structured_content


def _answers(question: Question, recommender: Recommender) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield (entry point, answer) for each entry point that gives an answer. Raise `KernrecError` after a refusal."""
    yield "recommend --json", _of_json(_printed("recommend", *question.options, "--objective", "latency", "--top", "1"))
    python = kernrec.recommend(
        question.op,
        question.gpu,
        dtype=question.dtype,
        layout=question.layout,
        objective="latency",
        top=1,
        **question.dims,
    )
    yield "kernrec.recommend", _of_json(python.as_dict())
    yield "MCP recommend", _of_json(_of_mcp(recommender, "recommend", question, top=1))
    many = answer_many(
        recommender, question.op, question.gpu, {name: [value] for name, value in question.dims.items()}, LATENCY,
        dtype=question.dtype, layout=question.layout,
    )  # fmt: skip
    if many.failures:
        raise KernrecError(many.failures[0])
    of_many = {"problem": many.problems[0].key, "latency": many.latency_s[0].tolist()}
    if many.kernels[0]:
        of_many |= {"kernel": many.kernels[0], "config": dict(many.configs[0]), "energy": many.energy_j[0].tolist()}
    else:
        of_many |= {"backend": many.backends[0]}
    yield "recommend_many", of_many
    network = NetworkRequest(
        shapes_as_network(question.op, [question.shape], question.dtype, question.layout), None, question.dtype
    )
    rows, missing = compare_gpus(recommender, [find_gpu(question.gpu)], network, LATENCY)
    if not rows:
        raise KernrecError(missing[0])
    (layer,) = rows[0].answer.layers
    yield "compare", _of_json(layer.answer.as_dict())
    assert set(layer.answer.notes) <= set(rows[0].answer.notes)
    if layer.answer.recommendations:  # without kernels, the total uses the baseline
        total = rows[0].answer.recommendation
        yield "compare, total", {"latency": _total(total.latency_s), "energy": _total(total.energy_j)}
        swept: list[Swept] = ["power limit", "clock"]
        for kind in swept:
            first = sweep_network(recommender, rows[0].answer, kind).rows[0].total
            yield f"sweep over {kind}s", {"latency": _total(first.latency_s), "energy": _total(first.energy_j)}


def _total(cost: Any) -> Any:
    return [cost.value, cost.low, cost.high]


def _answers_of_kernels(question: Question, recommender: Recommender, folder: Path) -> Iterator[tuple[str, Any]]:
    """Yield (entry point, answer) for the entry points that answer only if a kernel can run the problem."""
    explained = _printed("explain", *question.options)
    yield "explain --json", {"problem": explained["problem"]} | _of_recommendation(explained)
    yield "MCP explain", _of_recommendation(_of_mcp(recommender, "explain", question))
    front = Answers(recommender).answer("front", question.parameters)
    pareto = recommender.answer(replace(question.request, query=Query(Objective.PARETO)))
    assert front["notes"][: len(pareto.notes)] == list(pareto.notes)
    yield "page", {"problem": front["problem"]} | _of_front(front, recommender.answer(question.request))
    gpu = find_gpu(question.gpu)
    layers = select_layers(question.op, question.shape, None, question.dtype, question.layout) or []
    on_gpu = RequestOnGpu(CollectRequest(layers, folder / "x.duckdb"), gpu.name)
    try:
        (planned,) = on_gpu.planned()
        yield "plan of collect", {"problem": planned.problem.key}
        subject = subject_of(on_gpu)
    except UsageError as error:
        # `refine` refuses problems that exceed the GPU's memory or that only Triton kernels can run.
        if not any(reason in str(error) for reason in ("GiB; at most", "no config of", "no kernel")):
            raise AssertionError(f"{question}: {error}") from None
    else:
        yield "refine", {"problem": subject.wanted[0].problem.key}


def _of_front(front: dict[str, Any], answer: Answer) -> dict[str, Any]:
    """Return the point of the Pareto front on the web page that shows the best config of `answer`."""
    points, best = front["points"], answer.best
    kernel = front["kernels"].index(best.kernel.name)
    config = front["configs"][kernel]["values"].index(list(best.config.values()))
    for number, (of_kernel, of_config, point) in enumerate(
        zip(points["kernel"], points["config"], points["point"], strict=True)
    ):
        if (of_kernel, of_config, point) == (kernel, config, 0):
            return {
                "kernel": best.kernel.name,
                "config": dict(best.config),
                "bottleneck": front["bottlenecks"][points["bottleneck"][number]],
                "latency": [points[name][number] for name in ("latency_s", "latency_low_s", "latency_high_s")],
                "energy": [points[name][number] for name in ("energy_j", "energy_low_j", "energy_high_j")],
            }
    return {"kernel": "not on the page"}


@pytest.mark.parametrize("number", FOUND)
def test_requests_once_answered_inconsistently_have_one_answer(recommender, tmp_path, number):
    test_every_entry_point_gives_the_same_answer(recommender, tmp_path, number)


@pytest.mark.every(15)
@pytest.mark.parametrize("number", range(COUNT))
def test_every_entry_point_gives_the_same_answer(recommender, tmp_path, number):
    question = drawn_question(number)
    try:
        answer = recommender.answer(question.request)
    except KernrecError:
        for ask in (_answers, _answers_of_kernels):
            with pytest.raises(KernrecError):
                list(ask(question, recommender)) if ask is _answers else list(ask(question, recommender, tmp_path))
        return
    expected = _of_json(answer.as_dict())
    for entry, answered in _answers(question, recommender):
        _check(entry, answered, expected, question)
    if not answer.recommendations:
        with pytest.raises(Exception, match=r"no kernel|no config of any kernel"):
            _of_mcp(recommender, "explain", question)
        return
    for entry, answered in _answers_of_kernels(question, recommender, tmp_path):
        _check(entry, answered, expected, question)


@pytest.mark.every(30)
@pytest.mark.parametrize("number", range(COUNT))
def test_layout_depends_only_on_the_problem_and_the_gpu(recommender, number):
    question = replace(drawn_question(number), layout=None)
    limit_w = find_gpu(question.gpu).power_min_w
    layouts = set()
    for query in (LATENCY, Query(Objective.ENERGY), Query(top=1), Query(Objective.LATENCY, power_limit_w=limit_w)):
        try:
            layouts.add(recommender.answer(replace(question.request, query=query)).problem.layout)
        except KernrecError:
            layouts.add("none")
    assert len(layouts) == 1, question
