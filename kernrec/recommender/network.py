"""A whole network on one GPU: the choice for each layer, what stacks take for it today, and the totals of all layers.

All layers run at one operating point: nobody sets another power limit between two layers.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from kernrec.errors import KernrecError, UsageError
from kernrec.gpu import GPU, find_gpu
from kernrec.op import Problem
from kernrec.op.workload import Layer
from kernrec.recommender.candidate_set import CandidateSet
from kernrec.recommender.choices import costs_at
from kernrec.recommender.context import Context
from kernrec.recommender.layouts import MATTERS, gain_elsewhere
from kernrec.recommender.lines import Line, cold_costs, lines_of, predict_lines, read_cold
from kernrec.recommender.network_layers import (
    NetworkRequest,
    answer_as_it_runs,
    in_best_layouts,
    in_other_layouts,
    layers_of,
    shapes_as_network,
)
from kernrec.recommender.network_result import (
    CHOICE,
    FASTEST,
    FRUGAL,
    HEURISTIC,
    MIXED,
    STACK,
    Costs,
    LayerAnswer,
    NetworkAnswer,
    Total,
    TotalSum,
)
from kernrec.recommender.recommender import Recommender
from kernrec.recommender.request import Query
from kernrec.recommender.result import Choice, Recommendation

__all__ = [
    "CHOICE", "FASTEST", "FRUGAL", "HEURISTIC", "MIXED", "STACK", "LayerAnswer", "NetworkAnswer", "NetworkRequest",
    "Total", "answer_network", "layers_of", "shapes_as_network",
]  # fmt: skip


COVERED = 0.5
"""Least share of the choice's time in layers with a line, for a total of the stack: else it would be the choice's."""


def answer_network(recommender: Recommender, gpu: str | GPU, wanted: NetworkRequest, query: Query) -> NetworkAnswer:
    """The choice for each layer of a network on a GPU, and what stacks take.

    A layer that no kernel can run in the network's dtype and layout is asked in another one, which is said; one that
    cannot be run at all is left out, which is said too.

    Raises:
        UsageError: a name is unknown, or a value impossible.
        KernrecError: no layer can be run.
    """
    card = gpu if isinstance(gpu, GPU) else find_gpu(gpu)
    if query.clocks:
        raise UsageError("clocks are tried for one problem, not for a network; give a shape, or --clock sweep")
    if query.power_limit_w is None and query.clock_hz is None:
        query = replace(query, power_limit_w=card.tdp_w)
    recommender = recommender.for_inputs(query.inputs)
    workload, layers = layers_of(wanted)

    of_all_stacks = replace(query, stacks=())  # a layer that stacks alone run counts, whichever stack it is

    def answer(problem: Problem) -> Recommendation:
        return recommender.answer_problem(problem, card, of_all_stacks)

    points = (query.point,)
    recommender.prepare(in_other_layouts(layers, card), card, points)
    layers, layouts_chosen = in_best_layouts(layers, card, answer)
    recommender.prepare([layer.problem for layer in layers], card, points)
    answered: list[tuple[Layer, Recommendation]] = []
    alternatives: list[Mapping[str, Costs]] = []
    left_out, adjusted = list(workload.unknown), dict[str, None]()
    for layer in layers:
        try:
            result, message = answer_as_it_runs(layer.problem, card, wanted.dtype is not None, answer)
        except KernrecError as error:
            left_out.append(f"{layer.name}: {error}")
            continue
        adjusted |= dict.fromkeys([message] if message else [])
        answered.append((layer, result))
        if result.choices:  # now: the candidates of the latest problems alone are cached
            candidates = recommender.candidates(result.problem, card, points)
            alternatives.append(_alternatives(candidates, result.best))
        else:
            alternatives.append({})
    if not answered:
        raise KernrecError(f"no layer of {workload.name} can be run on {card.name}: {left_out[0]}")
    lines = _lines(recommender.context, [result for _, result in answered], query)
    network = tuple(
        LayerAnswer(layer.name, layer.count, result, lines.get(result.problem), query.objective)
        for layer, result in answered
    )
    if wanted.layout is not None:
        adjusted |= dict.fromkeys(_slow_layouts(recommender.context, network, query))
    adjusted |= dict.fromkeys(_of_lines(network, wanted.tp, query.stacks))
    totals = _totals(network, alternatives)
    return NetworkAnswer(workload, card, query, network, tuple(left_out), totals, tuple(adjusted), layouts_chosen)


def _alternatives(candidates: CandidateSet, best: Choice) -> Mapping[str, Costs]:
    """(latency, energy) of a layer at the alternatives of the choice."""
    number = next(i for i, kernel in enumerate(candidates.kernels) if kernel.table.kernel is best.kernel)
    heuristic = candidates.starts[number] + candidates.kernels[number].heuristic
    positions = {FASTEST: candidates.fastest, FRUGAL: int(candidates.energy_j[0].argmin()), HEURISTIC: heuristic}
    return {
        name: cold_costs(*costs_at(candidates, 0, position), candidates.problem, candidates.gpu)
        for name, position in positions.items()
    }


def _totals(layers: Sequence[LayerAnswer], alternatives: Sequence[Mapping[str, Costs]]) -> tuple[Total, ...]:
    """The totals: the choice, the stack where one was recorded, and the alternatives where kernels of ours run."""
    names = [CHOICE]
    if _lines_cover(layers):
        names += [STACK, MIXED]
    if any(alternatives):
        names += [FASTEST, FRUGAL, HEURISTIC]
    sums = {name: TotalSum() for name in names}
    for layer, others in zip(layers, alternatives, strict=True):
        stack = layer.stack_costs or layer.costs
        costs = {CHOICE: layer.costs, STACK: stack, MIXED: stack if layer.pays is False else layer.costs, **others}
        for name, total in sums.items():
            total.add(layer.count, *costs.get(name, layer.costs))
    return tuple(total.result(name) for name, total in sums.items())


def _lines_cover(layers: Sequence[LayerAnswer]) -> bool:
    """Whether the layers with a line take enough of the time for a total of the stack."""
    covered = sum(layer.latency_s for layer in layers if layer.line is not None)
    return covered >= COVERED * sum(layer.latency_s for layer in layers)


def _lines(context: Context, answers: Sequence[Recommendation], query: Query) -> dict[Problem, Line]:
    """By problem, the line of the fastest stack, of those asked for; predicted together, which is much quicker.

    A layer without choices has some stack's line.
    """
    gpu = answers[0].gpu
    predict_lines(context, (answer.problem for answer in answers), gpu)
    lines: dict[Problem, Line] = {}
    for answer in answers:
        candidates = lines_of(context, answer.problem, gpu, query.point, query.stacks)
        if line := next(iter(candidates or (() if answer.choices else answer.lines)), None):
            lines[answer.problem] = read_cold(line, answer.problem, gpu)
    return lines


def _slow_layouts(context: Context, layers: Sequence[LayerAnswer], query: Query) -> list[str]:
    """Notes on ops whose layers would take much less time in another layout than in the one that was asked for."""
    notes = []
    for op in dict.fromkeys(layer.answer.problem.op for layer in layers):
        now = best = 0.0
        names: dict[str, None] = {}
        for layer in layers:
            if layer.answer.problem.op != op:
                continue
            gain = gain_elsewhere(context, layer.answer, query)
            now += layer.latency_s
            best += layer.latency_s / (gain.factor if gain else 1.0)
            names |= dict.fromkeys([gain.layout] if gain else [])
        if names and now > best * (1.0 + MATTERS):
            notes.append(
                f"{op}: in layout {' or '.join(names)} it is expected to take {100 - 100 * best / now:.0f} % less time"
            )
    return notes


def _of_lines(layers: Sequence[LayerAnswer], tp: int, stacks: Sequence[str]) -> list[str]:
    """Notes on what the totals of stacks stand on."""
    notes = []
    without = [layer.name for layer in layers if layer.line is None]
    whose = " or ".join(stacks) or "a stack"
    if 0 < len(without) < len(layers):
        counted = "the choice counts in its total"
        if not _lines_cover(layers):
            with_line = len(layers) - len(without)
            counted = (
                f"the {with_line} of {len(layers)} distinct layers with one take less than {100 * COVERED:.0f} % of the"
                " time, so there is no total of the stack"
            )
        notes.append(f"no line of {whose} for {_listed(without)}: {counted}")
    elif without and stacks:
        notes.append(f"no line of {whose} for any layer")
    unpowered = [layer.name for layer in layers if layer.line is not None and layer.line.power_predicted]
    if unpowered and _lines_cover(layers):
        notes.append(f"nobody recorded the power of the stack for {_listed(unpowered)}: the power model gives it")
    if tp > 1:
        notes.append(f"time and energy are of one of {tp} GPUs; what they exchange is not counted")
    return notes


def _listed(names: Sequence[str], most: int = 3) -> str:
    """The first names, and how many more there are."""
    more = len(names) - most
    return ", ".join(names[:most]) + (f" and {more} more" if more > 0 else "")
