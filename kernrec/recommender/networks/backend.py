"""Select the backend that a network is compared with, and its baseline for each layer.

Backends with similar kernels alternate as the fastest from one batch size to the next. A larger batch could then seem
faster only because another backend runs it. So several fixed batch sizes together determine the backend.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from math import prod

from kernrec.errors import KernrecError
from kernrec.gpu import GPU
from kernrec.op import Problem
from kernrec.op.scaled_workload import in_one_pass, with_batch
from kernrec.op.workload import Layer, Workload
from kernrec.recommender.baselines import (
    PREDICTED,
    Baseline,
    baselines_of,
    cold_baselines,
    predict_baselines,
    read_cold,
)
from kernrec.recommender.context import Context
from kernrec.recommender.estimate.operating_point import OperatingPoint
from kernrec.recommender.estimate.physics import fits
from kernrec.recommender.networks.result import LayerAnswer
from kernrec.recommender.request import KERNREC, MIXED, Query
from kernrec.recommender.result import Answer

MIXTURE_OF_BACKENDS = "mixture of backends"
BATCHES = (1, 8, 64)
"""Batch sizes that determine the backend of a network, with equal weight."""

Baselines = Mapping[Problem, Sequence[Baseline]]
Counted = Sequence[tuple[Problem, int]]
"""Problems of a network's layers, and the number of occurrences of each."""


def backend_of(
    context: Context, workload: Workload, answered: Sequence[tuple[Layer, Answer]], query: Query, wanted: str
) -> tuple[str, dict[Problem, Baseline]]:
    """Return the backend that the totals count (empty for none), and its baseline for each problem.

    The fastest requested backend with baselines for all layers wins. If none covers all layers, the backend
    whose missing layers take the least time wins. A layer without recommendations has the baseline of any backend.

    Args:
        context: context with the models of backends.
        workload: the network.
        answered: layers of the network with their answers.
        query: the operating point, and the backends to consider.
        wanted: `KERNREC`, `MIXED`, or empty for one backend.
    """
    gpu = answered[0][1].gpu
    counted = [(answer.problem, layer.count) for layer, answer in answered]
    alone = {answer.problem for layer, answer in answered if layer.alone}
    wholes = {answer.problem: in_one_pass(answer.problem, layer) for layer, answer in answered}

    def baselines_of_each(layers: Counted) -> dict[Problem, Sequence[Baseline]]:
        predict_baselines(context, (wholes.get(problem, problem) for problem, _ in layers), gpu)
        baselines = {
            problem: baselines_of(context, problem, gpu, query.point, query.backends)
            if problem in alone
            else baselines_of_pass(context, problem, wholes.get(problem, problem), gpu, query.point, query.backends)
            for problem, _ in layers
        }
        # Totals of a backend count only recorded data, because a prediction by physics is equal for all backends.
        return {
            problem: [baseline for baseline in each if baseline.source != PREDICTED]
            for problem, each in baselines.items()
        }

    by_problem = baselines_of_each(counted)
    chosen = {
        answer.problem: answer.baselines[0] if layer.alone else read_cold(answer.baselines[0], answer.problem, gpu)
        for layer, answer in answered
        if not answer.recommendations and answer.baselines
    }
    if wanted == KERNREC:
        return "", chosen
    if wanted == MIXED:
        chosen |= {problem: baselines[0] for problem, baselines in by_problem.items() if baselines}
        names = dict.fromkeys(program_of(baseline) for baseline in chosen.values())
        return MIXTURE_OF_BACKENDS if len(names) > 1 else "".join(names), chosen
    programs = list(dict.fromkeys(program_of(baseline) for baselines in by_problem.values() for baseline in baselines))
    if not programs:
        return "", chosen
    backend = programs[0]
    if len(programs) > 1:
        lacking = {name: _seconds(name, counted, by_problem)[0] for name in programs}
        slowness = dict.fromkeys(programs, 0.0)
        for layers in _in_batches(workload, answered) or [counted]:
            with suppress(KernrecError):  # A batch that does not fit the memory is skipped.
                there = by_problem if layers == counted else baselines_of_each(layers)
                seconds = {name: _seconds(name, layers, there)[1] for name in programs}
                least = min(seconds.values())
                slowness = {name: slowness[name] + seconds[name] / least for name in programs}
        backend = min(programs, key=lambda name: (lacking[name], slowness[name], name))
    for problem, baselines in by_problem.items():
        if (baseline := _baseline_of(backend, baselines)) is not None:
            chosen[problem] = baseline
    return backend, chosen


def baselines_of_pass(
    context: Context, problem: Problem, whole: Problem, gpu: GPU, point: OperatingPoint, backends: Sequence[str] = ()
) -> list[Baseline]:
    """Return the baselines of a network's layer, fastest first.

    A backend runs all items of a layer in one call, even if kernels need several passes. The costs are the pass's share
    of this call.

    Args:
        context: context with the models of backends.
        problem: one pass of the layer.
        whole: all items of the layer (`in_one_pass`).
        gpu: the GPU.
        point: power limit and clock.
        backends: backends to include; all by default.
    """
    if not fits(whole, gpu):
        whole = problem
    baselines = cold_baselines(context, whole, gpu, point, backends)
    if whole == problem:
        return baselines
    items, of_all = (prod(size or 1 for _, size in each.dims) for each in (problem, whole))  # One dimension differs.
    return [baseline.scaled(items / of_all) for baseline in baselines]


def program_of(baseline: Baseline) -> str:
    """Return the backend that runs a baseline, without the variant: `SGLang` for `SGLang (static scales)`.

    PyTorch runs the baselines of cuDNN and cuBLAS.
    """
    return "PyTorch" if _library(baseline) in ("cuDNN", "cuBLAS") else _library(baseline)


def _library(baseline: Baseline) -> str:
    return baseline.backend.partition(" (")[0]


def at_point(context: Context, layer: LayerAnswer, gpu: GPU, point: OperatingPoint) -> Baseline:
    """Return the baseline of the layer's backend at another operating point, or else the layer's baseline."""
    baseline, problem = layer.baseline, layer.answer.problem
    assert baseline is not None, "the layer has a baseline"
    if layer.alone:
        baselines: Sequence[Baseline] = baselines_of(context, problem, gpu, point, (_library(baseline),))
    else:
        baselines = baselines_of_pass(context, problem, layer.whole or problem, gpu, point, (_library(baseline),))
    return next((other for other in baselines if other.backend == baseline.backend), baseline)


def _baseline_of(program: str, baselines: Sequence[Baseline]) -> Baseline | None:
    """Return the fastest baseline of a backend; None if it has none."""
    return next((baseline for baseline in baselines if program_of(baseline) == program), None)


def _in_batches(workload: Workload, answered: Sequence[tuple[Layer, Answer]]) -> list[Counted]:
    """Return the answered layers at each of `BATCHES`, without layers that cannot be scaled."""
    if any(layer.alone for layer in workload.layers):
        return []
    layers = tuple([replace(layer, problem=answer.problem) for layer, answer in answered])
    network, networks = replace(workload, layers=layers), list[Counted]()
    for batch in BATCHES:
        with suppress(KernrecError):
            scaled = with_batch(network, batch).layers
            networks.append([(layer.problem, layer.count) for layer in scaled])
    return networks


def _seconds(program: str, layers: Counted, by_problem: Baselines) -> tuple[float, float]:
    """Return the total seconds of the layers that a backend lacks, and of all layers with any baseline."""
    lacking = whole = 0.0
    for problem, count in layers:
        if baselines := by_problem[problem]:
            baseline = _baseline_of(program, baselines)
            seconds = count * (baseline or baselines[0]).latency_s
            whole += seconds
            lacking += seconds if baseline is None else 0.0
    return lacking, whole
