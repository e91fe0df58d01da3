"""Select the backend with which a network is compared, and find the backend's cost of each layer.

The selection uses several fixed batch sizes, so that it does not change with the batch size of a network.
"""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace

from kernrec.errors import KernrecError
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
from kernrec.recommender.context import GpuContext
from kernrec.recommender.estimate.operating_point import OperatingPoint
from kernrec.recommender.estimate.physics import fits
from kernrec.recommender.networks.result import LayerAnswer
from kernrec.recommender.request import KERNREC, MIXED, Query
from kernrec.recommender.result import Answer

MIXTURE_OF_BACKENDS = "mixture of backends"
BATCHES = (1, 8, 64)

Layers = Sequence[tuple[Layer, Problem]]
"""Layers and their problems, which have the data type and layout of kernrec's answer."""


def backend_of(
    context: GpuContext, workload: Workload, answered: Sequence[tuple[Layer, Answer]], query: Query, wanted: str
) -> dict[str, list[Baseline | None]]:
    """Select the backend for the network's totals, and find a baseline (or None) of each backend for each layer.

    Prefer the backend whose layers without baselines take the least time, then the fastest backend.

    Returns:
        Baselines keyed by backend: the selected backend, then the others. If no backend is selected, the only key is
        empty.

    Args:
        answered: layers of the network with their answers.
        query: query with the operating point, and the backends to consider.
        wanted: `KERNREC` for no backend, `MIXED` for the fastest backend of each layer, or empty for one backend.
    """

    def baselines_of_each(layers: Layers) -> list[list[Baseline]]:
        predict_baselines(context, (in_one_pass(problem, layer) for layer, problem in layers))
        each = [baselines_of_layer(context, *pair, query.point, query.backends) for pair in layers]
        # Use only baselines from recordings. Without recordings, all backends have the same baseline.
        return [[baseline for baseline in baselines if baseline.source != PREDICTED] for baselines in each]

    layers = [(layer, answer.problem) for layer, answer in answered]
    baselines = baselines_of_each(layers)
    chosen: list[Baseline | None] = [
        None
        if answer.recommendations or not answer.baselines
        else answer.baselines[0]
        if layer.alone
        else read_cold(answer.baselines[0], answer.problem, context.gpu)
        for layer, answer in answered
    ]
    if wanted == KERNREC:
        return {"": chosen}
    if wanted == MIXED:
        chosen = [each[0] if each else other for each, other in zip(baselines, chosen, strict=True)]
        names = dict.fromkeys(program_of(baseline) for baseline in chosen if baseline is not None)
        return {MIXTURE_OF_BACKENDS if len(names) > 1 else "".join(names): chosen}
    programs = list(dict.fromkeys(program_of(baseline) for each in baselines for baseline in each))
    if not programs:
        return {"": chosen}
    if len(programs) > 1:
        lacking = {name: _seconds(name, layers, baselines)[0] for name in programs}
        slowness = dict.fromkeys(programs, 0.0)
        for scaled in _in_batches(workload, layers) or [layers]:
            with suppress(KernrecError):  # Skip a batch that does not fit in memory.
                there = baselines if scaled is layers else baselines_of_each(scaled)
                seconds = {name: _seconds(name, scaled, there)[1] for name in programs}
                least = min(seconds.values())
                slowness = {name: slowness[name] + seconds[name] / least for name in programs}
        programs.sort(key=lambda name: (lacking[name], slowness[name], name))
    return {
        name: [_baseline_of(name, each) or other for each, other in zip(baselines, chosen, strict=True)]
        for name in programs
    }


def baselines_of_layer(
    context: GpuContext, layer: Layer, problem: Problem, point: OperatingPoint, backends: Sequence[str] = ()
) -> Sequence[Baseline]:
    """Return the expected costs of backends for one pass of a network's layer, fastest first.

    kernrec's kernels may need several passes for a layer that a backend computes in one call. Each pass then has an
    equal part of the costs of the backend's call.

    Args:
        problem: problem of one pass, in the data type and layout of the layer's answer.
    """
    if layer.alone:
        return baselines_of(context, problem, point, backends)
    whole = in_one_pass(problem, layer)
    if whole == problem or not fits(whole, context.gpu):
        return cold_baselines(context, problem, point, backends)
    return [baseline.scaled(1 / layer.parts) for baseline in cold_baselines(context, whole, point, backends)]


def program_of(baseline: Baseline) -> str:
    """Return a backend's name without its variant, such as `SGLang` for `SGLang (static scales)`."""
    return "PyTorch" if _library(baseline) in ("cuDNN", "cuBLAS") else _library(baseline)


def _library(baseline: Baseline) -> str:
    return baseline.backend.partition(" (")[0]


def at_point(context: GpuContext, answered: LayerAnswer, point: OperatingPoint) -> Baseline:
    """Return a layer's baseline at another operating point, or the present baseline if the backend has no data."""
    baseline = answered.baseline
    assert baseline is not None, "the layer has a baseline"
    answer, library = answered.answer, (_library(baseline),)
    baselines = baselines_of_layer(context, answered.layer, answer.problem, point, library)
    return next((other for other in baselines if other.backend == baseline.backend), baseline)


def _baseline_of(program: str, baselines: Sequence[Baseline]) -> Baseline | None:
    return next((baseline for baseline in baselines if program_of(baseline) == program), None)


def _in_batches(workload: Workload, layers: Layers) -> list[Layers]:
    if any(layer.alone for layer, _ in layers):
        return []
    network = replace(workload, layers=tuple([replace(layer, problem=problem, parts=1) for layer, problem in layers]))
    batches: list[Layers] = []
    for batch in BATCHES:
        with suppress(KernrecError):
            scaled = with_batch(network, batch)
            batches.append(layers if scaled is network else [(layer, layer.problem) for layer in scaled.layers])
    return batches


def _seconds(program: str, layers: Layers, baselines: Sequence[Sequence[Baseline]]) -> tuple[float, float]:
    """Return the seconds of all layers for which a backend has no baseline, and the seconds of all layers.

    The fastest baseline replaces a missing baseline. Layers without any baseline are skipped.
    """
    lacking = whole = 0.0
    for (layer, _), each in zip(layers, baselines, strict=True):
        if each:
            baseline = _baseline_of(program, each)
            seconds = layer.count * (baseline or each[0]).latency_s
            whole += seconds
            lacking += seconds if baseline is None else 0.0
    return lacking, whole
