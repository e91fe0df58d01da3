"""Determine the layers of a requested network, with their batch size, share per GPU, data type and layout."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import field, replace

from kernrec.errors import KernrecError, UsageError, unknown
from kernrec.gpu import GPU
from kernrec.interop.workload_files import find_workload
from kernrec.kernel import kernels_for
from kernrec.model.baselines.bound import rate_of
from kernrec.op import Op, Problem, find_op, problem_from_shape
from kernrec.op.dtype import INSTEAD, canonical_dtype, spellings
from kernrec.op.equivalent import as_matmul
from kernrec.op.scaled_workload import as_tensor_parallel, in_parts, with_batch
from kernrec.op.workload import Layer, Workload, default_workload, dtype_of
from kernrec.recommender.baselines import PREDICTED
from kernrec.recommender.estimate.operating_point import DEFAULT_POINT, OperatingPoint
from kernrec.recommender.infeasible import EIGHT_BITS, no_arithmetic, replacements
from kernrec.recommender.layouts import in_layout, lacks, layouts_that_matter
from kernrec.recommender.recommender import GpuRecommender
from kernrec.recommender.result import Answer
from kernrec.util.light_dataclass import dataclass

WEIGHTS = "nt"
"""Default layout of a matmul in a network. Frameworks store weights as (output features, input features)."""

Answering = Callable[[Problem], Answer]


@dataclass(frozen=True)
class NetworkRequest:
    """Request for a network: which layers to answer for, and how they run."""

    workload: str | Workload | None = None
    """Name of a shipped workload, path of a file, or `Workload`. None means the default workload of `op`."""
    op: str | None = None
    """Op whose layers are included. None means all ops."""
    dtype: str | None = None
    """Data type of all layers. None keeps the network's types. A quantized type applies only to quantized layers."""
    layout: str | None = None
    """Layout of the layers whose op supports it. None keeps the network's layouts."""
    fixed: Mapping[str, int] = field(default_factory=dict)
    """Values of dimensions that an ONNX model leaves open, keyed by name."""
    batch: int | None = None
    """Items per pass, such as images or sequences. None means the workload's batch size."""
    tp: int = 1
    """Number of tensor-parallel GPUs. The answer describes one GPU."""
    context: int | None = None
    """Number of tokens to attend to, or length of a prompt. None means the workload's value."""
    phase: str | None = None
    """Phase of a model's `config.json`, `decode` or `prefill`. None means `decode`."""
    backend: str = ""
    """Backend for the totals. Empty means the fastest backend with baselines for all layers.

    `KERNREC` uses only kernrec's kernels. `MIXED` uses the fastest backend of each layer.
    """
    ignore_memory: bool = False
    """Whether to answer even if the network exceeds the GPU's memory."""


def shapes_as_network(op: str, shapes: Sequence[str], dtype: str | None = None, layout: str | None = None) -> Workload:
    """Return a network with one independent layer for each shape of an op, such as `m=1,n=2,k=3`.

    If `layout` is None, each GPU uses its best layout. Raise `UsageError` for an unknown name or an invalid shape.
    """
    free = layout is None and len(find_op(op).layouts) > 1
    layers = tuple(
        Layer(shape, problem_from_shape(op, shape, dtype, layout), 1, layout_free=free, alone=True) for shape in shapes
    )
    key = layers[0].problem.key.removesuffix(f",{layers[0].problem.layout}" if free else "")
    title = key if len(layers) == 1 else f"{len(layers)} shapes of {layers[0].problem.op}"
    return Workload(layers[0].problem.op, title, "", layers)


def layers_of(wanted: NetworkRequest) -> tuple[Workload, tuple[Layer, ...]]:
    """Return the requested network and its layers (at least one), reduced to the part that one GPU runs.

    Raises:
        UsageError: a name is unknown, the network cannot be divided or scaled as requested, or it has no layer of the
            requested op.
    """
    op = None if wanted.op is None or wanted.op == "all" else find_op(wanted.op)
    chosen = wanted.workload
    if chosen is None:
        if op is None:
            raise UsageError("a workload or an op is needed; `kernrec list ops` lists the ops")
        chosen = default_workload(op)
    elif not isinstance(chosen, Workload):
        chosen = find_workload(chosen, wanted.fixed, wanted.context, wanted.phase)
    chosen = as_tensor_parallel(chosen, wanted.tp)
    if wanted.batch is not None:
        chosen = with_batch(chosen, wanted.batch)
    layers = tuple(layer for layer in chosen.layers if op is None or layer.problem.op == op.name)
    if not layers:
        assert op is not None
        raise UsageError(
            f"workload {chosen.name} has no {op.name} layer; its ops are {', '.join(chosen.ops)}:"
            " name one of them, or omit --op for all layers"
        )
    definitions = {layer.problem.op: layer.problem.definition for layer in layers}.values()
    accepted = dict.fromkeys(layout for definition in definitions for layout in definition.layouts)
    if wanted.layout is not None and wanted.layout not in accepted:
        raise UsageError(f"no op of these layers has the layout {wanted.layout!r:.40}; expected {', '.join(accepted)}")
    dtypes = tuple(dict.fromkeys([*INSTEAD, *(dtype for each in definitions for dtype in each.dtypes)]))
    if wanted.dtype is not None and canonical_dtype(wanted.dtype) not in dtypes:
        raise unknown("dtype", wanted.dtype, spellings(dtypes))
    some_quantized = any(layer.quantized for layer in chosen.layers)
    return chosen, tuple(in_parts(_as_wanted(layer, wanted, some_quantized)) for layer in layers)


def _as_wanted(layer: Layer, wanted: NetworkRequest, some_quantized: bool) -> Layer:
    problem = layer.problem
    op, dtype, layout = problem.definition, problem.dtype, problem.layout
    if wanted.dtype is not None:
        eight_bits = canonical_dtype(wanted.dtype) in EIGHT_BITS
        if not (eight_bits and some_quantized and not layer.quantized):
            if eight_bits and op.name == "matvec":
                problem = as_matmul(problem)  # The op matvec has no 8-bit data types.
                op, layout = problem.definition, problem.layout
            dtype = dtype_of(op, wanted.dtype)
    free = layer.layout_free
    if wanted.layout in op.layouts:
        layout, free = wanted.layout, False
    elif free and not layer.alone and WEIGHTS in op.layouts:
        layout, free = WEIGHTS, False
    if (dtype, layout) != (problem.dtype, problem.layout):
        problem = op.problem(dtype, layout, **problem.dim)
    return replace(layer, problem=problem, layout_free=free)


def in_best_layouts(
    recommender: GpuRecommender, layers: Sequence[Layer], points: tuple[OperatingPoint, ...] = (DEFAULT_POINT,)
) -> tuple[tuple[Layer, ...], Mapping[str, str]]:
    """Choose the layout of each layer for which neither the user nor the network specifies a layout.

    Independent layers get their best layouts. All other layers of an op share a layout, because tensors pass between
    them. A new layout replaces the default only if kernels that need the new layout would take most of the time.

    Returns:
        Layers in the chosen layouts, and the chosen layouts that differ from the default, keyed by op.
    """
    alone = [layer.problem for layer in layers if layer.layout_free and layer.alone]
    moved = dict(zip(alone, recommender.as_answered(alone, points), strict=True))
    for op in dict.fromkeys(layer.problem.op for layer in layers if layer.layout_free and not layer.alone):
        free = [layer for layer in layers if layer.layout_free and not layer.alone and layer.problem.op == op]
        for layout in dict.fromkeys(
            layout for layer in free for layout in layouts_that_matter(layer.problem, recommender.gpu)
        ):
            with suppress(UsageError):  # Skip layouts that do not support the layers' sizes.
                converted = {layer.problem: in_layout(layer.problem, layout) for layer in free}
                if _runs_mostly_new_kernels(recommender, free, converted, points):
                    moved |= converted
                    break
    result = tuple(
        replace(layer, problem=moved.get(layer.problem, layer.problem)) if layer.layout_free else layer
        for layer in layers
    )
    chosen: dict[str, dict[str, None]] = {}
    for original, answered in moved.items():
        if answered != original:
            chosen.setdefault(original.op, {})[answered.layout] = None
    return result, {op: ", ".join(layouts) for op, layouts in chosen.items()}


def _runs_mostly_new_kernels(
    recommender: GpuRecommender,
    layers: Sequence[Layer],
    converted: Mapping[Problem, Problem],
    points: tuple[OperatingPoint, ...],
) -> bool:
    """Return whether converted layers spend most of their time in kernels that the default layout does not allow.

    `converted` maps each problem in the default layout to the same problem in another layout.
    """
    compared_at = points if points[0].is_default(recommender.gpu) else (DEFAULT_POINT,)
    recommender.prepare(list(converted.values()), compared_at)
    gained = whole = 0.0
    for layer in layers:
        candidates = recommender.candidates_if_any(converted[layer.problem], compared_at)
        if candidates is None:
            return False
        kernel, latency_s = candidates.fastest_kernel
        whole += layer.count * latency_s
        gained += layer.count * latency_s * lacks(layer.problem, kernel, recommender.gpu)
    return gained > 0.5 * whole


def answer_as_it_runs(problem: Problem, gpu: GPU, exactly: bool, answer: Answering) -> tuple[Answer, str]:
    """Return the answer for a layer, and a note on its data type or layout. The note is empty if both are as requested.

    Args:
        exactly: whether the user fixed the data type, so that it must not be replaced.
        answer: function that returns the answer for a problem, or raises `KernrecError`.

    Raises:
        KernrecError: neither a kernel nor a backend can run the layer.
    """
    # Replace a data type in all layers if the GPU has no arithmetic for it, even if a kernel could convert the values.
    computes = exactly or rate_of(gpu, problem.dtype) > 0.0
    first: Answer | KernrecError | None = None
    if computes:
        try:
            first = answer(problem)
        except KernrecError as error:
            first = error
        else:
            if first.recommendations or any(baseline.source != PREDICTED for baseline in first.baselines):
                return first, ""
    for other in _others(problem, gpu, exactly):
        if not computes and other.dtype == problem.dtype:
            continue
        try:
            instead = answer(other)
        except KernrecError:
            continue
        if not computes:
            return instead, no_arithmetic(problem, gpu, other)
        return instead, (
            f"{problem.op}: no kernel for {problem.dtype}, {problem.layout} on {gpu.name}; answered as {other.dtype},"
            f" {other.layout}"
        )
    if isinstance(first, KernrecError):
        raise first
    return first or answer(problem), ""


def _others(problem: Problem, gpu: GPU, exactly: bool) -> Iterable[Problem]:
    op: Op = problem.definition
    for dtype in (problem.dtype, *(() if exactly else replacements(problem, gpu))):
        for layout in dict.fromkeys((problem.layout, *op.layouts)):
            able = any(kernel.runs_on(dtype, gpu.sm) for kernel in kernels_for(op.name, dtype, layout))
            baseline = layout == problem.layout and not rate_of(gpu, problem.dtype)
            if (able or baseline) and (dtype, layout) != (problem.dtype, problem.layout):
                with suppress(UsageError):  # Skip data types without the problem's `scales` or `output`.
                    yield op.problem(dtype, layout, **problem.dim)
