"""The problems that a user names to measure: one shape of an op, or the layers of a workload."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from kernrec.errors import UsageError
from kernrec.gpu import GPU
from kernrec.kernel import kernels_for
from kernrec.op import Problem, all_ops, find_op
from kernrec.op.workload import Layer
from kernrec.recommender.networks.layers import NetworkRequest, in_best_layouts, layers_of, shapes_as_network
from kernrec.recommender.recommender import Recommender


def select_layers(
    op: str | None, shape: str | None, workload: str | None, dtype: str | None, layout: str | None
) -> list[Layer] | None:
    """Return the layers for what a user named, each problem once; None if no op, shape or workload was named.

    Args:
        op: name or alias of an op; None or `all`: every op that some kernel computes.
        shape: dimensions, `m=4096,n=4096,k=4096`; None: the layers of a workload.
        workload: name or file of a workload; None: the standard workload of each op.
        dtype: data type; None: the default of the op or the layer.
        layout: tensor layout; None: the one in which the layer is answered on a GPU (`as_measured`).

    Raises:
        UsageError: for an unknown name, and if no layer is left.
    """
    if op is None and workload is None and shape is None:
        return None
    every_op = op is None or op == "all"
    if shape:
        if every_op:
            raise UsageError("--shape needs --op: the dimensions are an op's")
        (layer,) = shapes_as_network(str(op), [shape], dtype, layout).layers
        return [replace(layer, name=layer.problem.key)]
    if workload:
        wanted = [NetworkRequest(workload, None if every_op else op, dtype, layout)]
    else:
        ops = [each for each in all_ops() if kernels_for(each.name, dtype, layout)] if every_op else [find_op(str(op))]
        wanted = [NetworkRequest(None, each.name, dtype, layout) for each in ops]
    layers: dict[Problem, Layer] = {}
    for request in wanted:
        for layer in layers_of(request)[1]:
            problem = layer.problem
            # A layer without a kernel is skipped if all were named; a single op gets its error later.
            if not every_op or kernels_for(problem.op, problem.dtype, None if layer.layout_free else problem.layout):
                before = layers.get(problem)
                layers[problem] = layer if before is None else replace(before, count=before.count + layer.count)
    if not layers:
        source = f"workload {workload}" if workload else "the standard workloads"
        raise UsageError(f"no layer of {source} is {'one that a kernel here computes' if every_op else f'of op {op}'}")
    return list(layers.values())


def as_measured(layers: Sequence[Layer], gpu: GPU, database: Path) -> Mapping[Problem, Problem]:
    """Return by problem whose layout nobody fixed: the problem in the layout in which it is answered on a GPU."""
    free = [layer for layer in layers if layer.layout_free]
    if not free:
        return {}
    moved, _ = in_best_layouts(Recommender([database] if database.exists() else []), free, gpu)
    return {layer.problem: other.problem for layer, other in zip(free, moved, strict=True)}


def recorded_as(problem: Problem, layers: Sequence[Layer]) -> list[str]:
    """Return the keys under which a recording may hold a problem: one of each layout if nobody fixed the layout."""
    keys = [problem.key]
    if any(layer.layout_free and layer.problem == problem for layer in layers):
        keys += [problem.key.removesuffix(problem.layout) + layout for layout in problem.definition.layouts]
    return keys
