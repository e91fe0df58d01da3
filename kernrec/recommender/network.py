"""A whole network on one GPU: the choice for each layer, and the totals of all layers.

All layers run at one operating point: nobody sets another power limit between two layers. Totals are sums of count x
layer, so they hold for layers that run one after the other, with nothing between them.

Intervals of totals are the sums of the layers' bounds: every layer is taken to be wrong in the same direction at once.
Predictions of one kernel on one GPU share their error (`estimate.costs.OWN` has the share that is a config's own), and
kernels share the GPU's figures; were errors independent, the relative interval of a sum would shrink with the number of
layers, and promise far more than is known.
"""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import field, replace
from typing import Any

import numpy as np

from kernrec.errors import KernrecError, UsageError
from kernrec.gpu import GPU, find_gpu
from kernrec.interop.workload_files import find_workload
from kernrec.kernel import kernels_for
from kernrec.op import Problem, find_op, problem_from_shape
from kernrec.op.dtype import INSTEAD
from kernrec.op.workload import Layer, Workload, default_workload, dtype_of
from kernrec.recommender.candidate_set import CandidateSet
from kernrec.recommender.choices import costs_at
from kernrec.recommender.estimate.costs import SOURCES, Source
from kernrec.recommender.lines import predict_lines
from kernrec.recommender.recommender import Recommender
from kernrec.recommender.request import Query
from kernrec.recommender.result import Choice, Estimate, Recommendation
from kernrec.util.light_dataclass import dataclass

CHOICE, FASTEST, FRUGAL, HEURISTIC = "choice", "fastest", "most frugal", "occupancy heuristic"
VENDOR = "vendor library"
"""Names of totals: of the choice, and of the alternatives that it is compared with. Layers whose vendor library nobody
recorded run the choice in its total."""


@dataclass(frozen=True)
class NetworkRequest:
    """The layers that are asked for."""

    workload: str | Workload | None = None
    """A workload that ships by name, a file by its path, or one at hand; None for the op's own."""
    op: str | None = None
    """The layers of one op; None for all."""
    dtype: str | None = None
    """Data type of all layers; None for the network's."""
    layout: str | None = None
    """Layout of the layers whose op has it; None for the network's."""
    fixed: Mapping[str, int] = field(default_factory=dict)
    """Values of dimensions that an ONNX model leaves open, by name."""


@dataclass(frozen=True)
class LayerAnswer:
    """The answer for one layer of a network."""

    name: str
    count: int
    answer: Recommendation

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {"layer": self.name, "count": self.count, **self.answer.as_dict()}


@dataclass(frozen=True)
class Total:
    """The sum over all answered layers, with one config for each of them."""

    name: str
    """Which config of each layer is counted."""
    latency_s: Estimate
    energy_j: Estimate

    @property
    def power_w(self) -> float:
        """Mean power of the whole."""
        return self.energy_j.value / self.latency_s.value

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON; keys carry their unit."""
        return {
            "name": self.name,
            **self.latency_s.as_dict("latency", "s"),
            **self.energy_j.as_dict("energy", "j"),
            "power_w": self.power_w,
            "source": self.latency_s.source,
            "energy_source": self.energy_j.source,
        }


@dataclass(frozen=True)
class NetworkAnswer:
    """The choice for each layer of a network on a GPU, and the totals."""

    workload: Workload
    gpu: GPU
    query: Query
    layers: tuple[LayerAnswer, ...]
    """In the order of the network."""
    left_out: tuple[str, ...]
    """Layers that are in no total, with the reason."""
    totals: tuple[Total, ...]
    """The choice first, then the alternatives."""
    adjusted: tuple[str, ...] = ()
    """Layers that are asked in another dtype or layout, because no kernel runs them so on this GPU."""

    @property
    def choice(self) -> Total:
        """The total of what was chosen."""
        return self.totals[0]

    @property
    def dtypes(self) -> tuple[str, ...]:
        """The data types of the layers."""
        return tuple(dict.fromkeys(layer.answer.problem.dtype for layer in self.layers))

    @property
    def notes(self) -> tuple[str, ...]:
        """Lines that the reader has to know."""
        lines = (note for layer in self.layers for note in layer.answer.notes)
        return tuple(dict.fromkeys([*self.adjusted, *(f"not in the totals: {line}" for line in self.left_out), *lines]))

    def total(self, name: str) -> Total:
        """The total of this name."""
        return next(total for total in self.totals if total.name == name)

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON; keys carry their unit."""
        return {
            "workload": self.workload.title,
            "gpu": self.gpu.name,
            "objective": self.query.objective,
            "power_limit_w": self.query.point.limit_w(self.gpu),
            "locked_clock_hz": self.query.clock_hz,
            "inputs": self.query.inputs,
            "dtypes": list(self.dtypes),
            "layers": [layer.as_dict() for layer in self.layers],
            "left_out": list(self.left_out),
            "totals": [total.as_dict() for total in self.totals],
            "notes": list(self.notes),
        }

    def as_dict_with_regrets(self, recommender: Recommender) -> dict[str, Any]:
        """Plain values for JSON, with the expected regret of each objective: of each layer, and of the whole.

        The whole loses what its layers lose, each as often as the network has it; as a share of what all of them cost.
        """
        document = self.as_dict()
        lost: dict[str, float] = {}
        spent: dict[str, float] = {}
        for layer, values in zip(self.layers, document["layers"], strict=True):
            regrets = recommender.regrets(layer.answer)
            values["regret"] = {str(regret.objective): regret.as_dict() for regret in regrets}
            for regret in regrets:
                _, cost, _ = regret.contenders[0]
                name = str(regret.objective)
                lost[name] = lost.get(name, 0.0) + layer.count * cost * regret.expected
                spent[name] = spent.get(name, 0.0) + layer.count * cost
        return document | {"regret": {name: {"expected": lost[name] / spent[name]} for name in lost}}


def answer_network(recommender: Recommender, gpu: str | GPU, wanted: NetworkRequest, query: Query) -> NetworkAnswer:
    """The choice for each layer of a network on a GPU.

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
    chosen, layers = layers_of(wanted)
    answers: list[LayerAnswer] = []
    alternatives: list[Mapping[str, tuple[Estimate, Estimate]]] = []
    sums: dict[str, TotalSum] = {name: TotalSum() for name in (CHOICE, FASTEST, FRUGAL, HEURISTIC, VENDOR)}
    left_out, adjusted, recorded = list(chosen.unknown), dict[str, None](), False
    for layer in layers:
        try:
            answer, message = _answer(recommender, card, layer.problem, query, wanted.dtype is not None)
        except KernrecError as error:
            left_out.append(f"{layer.name}: {error}")
            continue
        adjusted |= dict.fromkeys([message] if message else [])
        answers.append(LayerAnswer(layer.name, layer.count, answer))
        alternatives.append(_alternatives(recommender.candidates(answer.problem, card, (query.point,)), answer.best))
    if not answers:
        raise KernrecError(f"no layer of {chosen.name} can be run on {card.name}: {left_out[0]}")
    predict_lines(recommender.context, (layer.answer.problem for layer in answers), card)
    for layer_answer, costs_of in zip(answers, alternatives, strict=True):
        library = _fastest_stack(layer_answer.answer)
        recorded = recorded or library is not None
        for name, costs in {**costs_of, VENDOR: library or costs_of[CHOICE]}.items():
            sums[name].add(layer_answer.count, *costs)
    totals = tuple(total.result(name) for name, total in sums.items() if recorded or name != VENDOR)
    return NetworkAnswer(chosen, card, query, tuple(answers), tuple(left_out), totals, tuple(adjusted))


def shapes_as_network(op: str, shapes: Sequence[str], dtype: str | None = None, layout: str | None = None) -> Workload:
    """Shapes of an op (`m=1,n=2,k=3`) as a network with a layer for each. Raises `UsageError`."""
    layers = tuple(Layer(shape, problem_from_shape(op, shape, dtype, layout), 1) for shape in shapes)
    title = layers[0].problem.key if len(layers) == 1 else f"{len(layers)} shapes of {layers[0].problem.op}"
    return Workload(layers[0].problem.op, title, "", layers)


def layers_of(wanted: NetworkRequest) -> tuple[Workload, tuple[Layer, ...]]:
    """The workload of a request and its layers, in the dtype and layout asked for; there is at least one.

    Raises:
        UsageError: a name is unknown, or no layer is of the op.
    """
    op = None if wanted.op is None or wanted.op == "all" else find_op(wanted.op)
    if wanted.workload is None:
        if op is None:
            raise UsageError("a workload or an op is needed; `kernrec ops` lists the ops")
        chosen = default_workload(op)
    else:
        chosen = find_workload(wanted.workload, wanted.fixed) if isinstance(wanted.workload, str) else wanted.workload
    layers = tuple(layer for layer in chosen.layers if op is None or layer.problem.op == op.name)
    if not layers:
        assert op is not None
        raise UsageError(
            f"workload {chosen.name} has no {op.name} layer; its ops are {', '.join(chosen.ops)}:"
            " give one of them, or no --op for all"
        )
    definitions = {layer.problem.op: layer.problem.definition for layer in layers}
    accepted = dict.fromkeys(layout for definition in definitions.values() for layout in definition.layouts)
    if wanted.layout is not None and wanted.layout not in accepted:
        raise UsageError(
            f"no op of these layers has the layout {wanted.layout!r:.40}; accepted are {', '.join(accepted)}"
        )
    return chosen, tuple(_in_dtype(layer, wanted) for layer in layers)


def _in_dtype(layer: Layer, wanted: NetworkRequest) -> Layer:
    if wanted.dtype is None and wanted.layout is None:
        return layer
    problem = layer.problem
    op = problem.definition
    dtype = problem.dtype if wanted.dtype is None else dtype_of(op, wanted.dtype)
    layout = wanted.layout if wanted.layout in op.layouts else problem.layout
    return replace(layer, problem=op.problem(dtype, layout, **problem.dim))


def _answer(
    recommender: Recommender, gpu: GPU, problem: Problem, query: Query, exactly: bool
) -> tuple[Recommendation, str]:
    """The answer for a layer, and a note where it is asked in another dtype or layout (empty where not).

    exactly: whether the dtype was asked for: then it is not changed.
    """
    try:
        answer = recommender.answer_problem(problem, gpu, query)
        if answer.choices:
            return answer, ""
        reason = KernrecError(answer.no_kernel or "")
    except KernrecError as error:
        reason = error
    for other in _others(problem, gpu, exactly):
        try:
            answer = recommender.answer_problem(other, gpu, query)
        except KernrecError:
            continue
        if not answer.choices:
            continue
        return answer, (
            f"{problem.op}: no kernel runs {problem.dtype}, {problem.layout} in these shapes on {gpu.name};"
            f" asked as {other.dtype}, {other.layout}"
        )
    raise reason


def _others(problem: Problem, gpu: GPU, exactly: bool) -> Iterable[Problem]:
    """The same layer in the dtype's other layouts, then in other dtypes."""
    op = problem.definition
    for dtype in (problem.dtype, *(() if exactly else INSTEAD.get(problem.dtype, ()))):
        for layout in dict.fromkeys((problem.layout, *op.layouts)):
            able = any(kernel.runs_on(dtype, gpu.sm) for kernel in kernels_for(op.name, dtype, layout))
            if able and (dtype, layout) != (problem.dtype, problem.layout):
                with suppress(UsageError):  # scales and types of the output are for some dtypes only
                    yield op.problem(dtype, layout, **problem.dim)


def _alternatives(candidates: CandidateSet, best: Choice) -> Mapping[str, tuple[Estimate, Estimate]]:
    """(latency, energy) of a layer at the choice and at its alternatives."""
    number = next(i for i, kernel in enumerate(candidates.kernels) if kernel.table.kernel is best.kernel)
    heuristic = candidates.starts[number] + candidates.kernels[number].heuristic
    return {
        CHOICE: (best.latency_s, best.energy_j),
        FASTEST: costs_at(candidates, 0, candidates.fastest),
        FRUGAL: costs_at(candidates, 0, int(candidates.energy_j[0].argmin())),
        HEURISTIC: costs_at(candidates, 0, heuristic),
    }


def _fastest_stack(answer: Recommendation) -> tuple[Estimate, Estimate] | None:
    """(latency, energy) of a layer in the fastest stack; None where they are not known."""
    if not answer.lines or (line := answer.lines[0]).energy_j is None or line.energy_interval_j is None:
        return None
    return (
        Estimate(line.latency_s, *line.latency_interval_s, Source.LEARNED),
        Estimate(line.energy_j, *line.energy_interval_j, Source.LEARNED),
    )


class TotalSum:
    """Adds up layers; a total is as sure as the least sure of them."""

    def __init__(self) -> None:
        self._sums = np.zeros((2, 3))
        self._sources = [len(SOURCES) - 1] * 2

    def add(self, count: int, latency: Estimate, energy: Estimate) -> None:
        """Add a layer that the network has `count` times."""
        for row, estimate in enumerate((latency, energy)):
            self._sums[row] += (count * estimate.value, count * estimate.low, count * estimate.high)
            self._sources[row] = min(self._sources[row], SOURCES.index(estimate.source))

    def result(self, name: str) -> Total:
        """The total so far, under this name."""
        latency, energy = (
            Estimate(float(bounds[0]), float(bounds[1]), float(bounds[2]), SOURCES[source])
            for bounds, source in zip(self._sums, self._sources, strict=True)
        )
        return Total(name, latency, energy)
