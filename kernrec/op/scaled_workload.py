"""Convert a workload to another batch size or context, or to one GPU's part under tensor parallelism.

A batch multiplies the rows, images or sequences of each layer. A linear layer with up to 16 rows is a `matvec`. With
more rows, it is a `matmul`. Tensor parallelism (Shoeybi et al. 2019, arXiv 1909.08053) divides the dimensions in
`split`: output features of the first linear layer of a pair, input features of the second, heads of attention. Every
GPU runs layers without a split, such as normalization, completely.
"""

from dataclasses import replace

from kernrec.errors import UsageError
from kernrec.op.equivalent import MOST_VECTORS, as_matmul
from kernrec.op.problem import Op, Problem
from kernrec.op.workload import Layer, Workload

_ITEMS = {
    "conv2d": "n", "attention": "batch", "matvec": "n", "moe": "tokens", "elementwise": "n",
    **dict.fromkeys(("softmax", "layernorm", "rmsnorm", "reduce", "transpose"), "rows"),
}  # fmt: skip
"""Dimension of each op that counts independent items, such as images, sequences or rows."""


MOST_PARTS = 1024
"""Maximum number of passes into which `in_parts` splits a layer."""


def items_dimension(op: str, batched: bool = False) -> str:
    """Return the dimension of an op that counts independent items: `batch` for a `batched` matmul, else `m`."""
    return _ITEMS.get(op) or ("batch" if batched else "m")


def padded_dimension(op: str, layout: str, batched: bool = False) -> str | None:
    """Return the `items_dimension` of an op, or None if padding the dimension would change the alignment of rows."""
    name = items_dimension(op, batched)
    return None if name == "m" and layout[0] == "t" else name


def with_batch(workload: Workload, batch: int) -> Workload:
    """Return a copy of the workload with `batch` items, such as images or sequences, per pass. Raise `UsageError` if
    the batch is not positive, or the layers cannot be scaled to it."""
    if batch < 1:
        raise UsageError(f"batch is {batch}; expected at least 1")
    if batch == workload.batch:
        return workload
    layers = tuple(replace(layer, problem=_of_batch(layer, batch, workload.batch)) for layer in workload.layers)
    before = f"batch {workload.batch}"
    title = workload.title
    title = title.replace(before, f"batch {batch}") if before in title else f"{title}, batch {batch}"
    return replace(workload, title=title, layers=layers, batch=batch)


def with_context(workload: Workload, context: int) -> Workload:
    """Return a copy of a decode workload in which each token attends to `context` tokens, including itself. Raise
    `UsageError` if the workload does not generate a token, or the context is not positive."""
    decoding = {layer.problem.dim["keys"] for layer in workload.layers if layer.problem.dim.get("queries") == 1}
    if workload.tokens != 1 or len(decoding) != 1:
        raise UsageError(
            f"workload {workload.name} has no context to change; --context is for a config.json and decode workloads"
        )
    if context < 1:
        raise UsageError(f"context is {context} tokens; expected at least 1")
    layers = []
    for layer in workload.layers:
        problem = layer.problem
        if problem.dim.get("queries") == 1:
            problem = problem.definition.problem(problem.dtype, problem.layout, **problem.dim | {"keys": context})
        layers.append(replace(layer, problem=problem))
    (before,) = decoding
    title = workload.title.replace(f"token {before}", f"token {context}")
    return replace(workload, title=title, layers=tuple(layers))


def _of_batch(layer: Layer, batch: int, before: int) -> Problem:
    problem, name = layer.problem, layer.name
    sizes = problem.dim
    counted = _counted(problem, layer)
    items, rest = divmod(sizes.get(counted, 1) * batch, before)
    if rest:
        raise UsageError(
            f"layer {name!r}: {counted} = {sizes[counted]} at batch {before} cannot be scaled to batch {batch}"
        )
    if problem.op == "matvec" and items > MOST_VECTORS:
        return as_matmul(problem, items)
    return _with(problem, counted, items)


def _counted(problem: Problem, layer: Layer) -> str:
    return layer.items or items_dimension(problem.op, problem.dim.get("batch", 1) > 1)


def _with(problem: Problem, dimension: str, size: int) -> Problem:
    return problem.definition.problem(problem.dtype, problem.layout, **problem.dim | {dimension: size})


def in_parts(layer: Layer) -> Layer:
    """Split a layer into the smallest number of equal passes that fit kernels' 32-bit indices.

    The number of items per pass is rounded up. Return the layer unchanged if `MOST_PARTS` passes are not enough.
    """
    problem = layer.problem
    if problem.too_large is None:
        return layer
    counted = _counted(problem, layer)
    items = problem.dim.get(counted, 1)
    for parts in range(2, min(items, MOST_PARTS) + 1):
        part = _with(problem, counted, -(-items // parts))
        if part.too_large is None:
            return replace(layer, problem=part, count=layer.count * parts, parts=layer.parts * parts)
    return layer


def in_one_pass(problem: Problem, layer: Layer) -> Problem:
    """Undo `in_parts`: given the problem of one pass, return the problem that computes the whole layer."""
    if layer.parts == 1:
        return problem
    counted = _counted(problem, layer)
    return _with(problem, counted, problem.dim[counted] * layer.parts)


def as_tensor_parallel(workload: Workload, gpus: int) -> Workload:
    """Return the part of a workload that one of `gpus` tensor-parallel GPUs runs. Raise `UsageError` if the workload
    does not define how to split its layers, or a dimension cannot be divided."""
    if gpus < 1:
        raise UsageError(f"tp is {gpus}; expected at least 1 GPU")
    if gpus == 1:
        return workload
    if not any(layer.split or layer.problem.op == "moe" for layer in workload.layers):
        raise UsageError(
            f"workload {workload.name} does not say how tensor parallelism splits its layers;"
            ' in your own workload file, set `split = ["n"]` for its layers'
        )
    try:
        layers = tuple(replace(layer, problem=_shard(layer, gpus)) for layer in workload.layers)
    except UsageError as error:
        accepted = [str(count) for count in (1, 2, 4, 8, 16, 32, 64) if _divides(workload, count)]
        raise UsageError(f"{error}; expected {', '.join(accepted)}") from None
    title, embedding = f"{workload.title}, one of {gpus} GPUs", -(-workload.embedding // gpus)
    return replace(workload, title=title, layers=layers, tp=gpus * workload.tp, embedding=embedding)


def _divides(workload: Workload, gpus: int) -> bool:
    try:
        return all(_shard(layer, gpus) for layer in workload.layers)
    except UsageError:
        return False


def _shard(layer: Layer, gpus: int) -> Problem:
    problem, sizes = layer.problem, layer.problem.dim
    if problem.op == "moe":
        return _resized(problem.definition, problem, sizes | {"tp": gpus * problem.sizes["tp"]}, gpus, layer.name)
    heads, outputs = layer.shared
    for name in layer.split:
        if name == "kv_heads" and sizes[name] < gpus and gpus % sizes[name] == 0:
            sizes[name] = 1  # With more GPUs than key/value heads, several GPUs share a head.
            continue
        if heads and heads < gpus and gpus % heads == 0 and (own := sizes[name] - heads * outputs) % gpus == 0:
            sizes[name] = own // gpus + outputs
            continue
        if sizes[name] % gpus:
            raise UsageError(f"tp {gpus} does not divide {name} = {sizes[name]} of layer {layer.name!r}")
        sizes[name] //= gpus
    return _resized(problem.definition, problem, sizes, gpus, layer.name) if layer.split else problem


def _resized(op: Op, problem: Problem, sizes: dict[str, int], gpus: int, name: str) -> Problem:
    try:
        return op.problem(problem.dtype, problem.layout, **sizes)
    except UsageError as error:
        raise UsageError(f"tp {gpus}, layer {name!r}: {error}") from None
