"""Find the problems that a user names on the command line for a campaign."""

from dataclasses import replace

from kernrec.errors import UsageError
from kernrec.kernel import kernels_for
from kernrec.op import Problem, all_ops, find_op
from kernrec.op.workload import Layer
from kernrec.recommender.networks.layers import NetworkRequest, layers_of, shapes_as_network


def select_layers(
    op: str | None, shape: str | None, workload: str | None, dtype: str | None, layout: str | None
) -> list[Layer] | None:
    """Return the layers that command-line options select for measuring. Return None if no option selects a layer.

    Args:
        op: Name or alias of an op. None or `all` selects every op that some kernel computes.
        shape: Dimensions of one problem, such as `m=4096,n=4096,k=4096`, or None for the layers of a workload.
        workload: Name or file of a workload, by default the standard workload of each op.
        dtype: Data type, by default that of the op or the layer.
        layout: Tensor layout, by default the layout that recommendations use on the GPU (`RequestOnGpu.problems`).

    Raises:
        UsageError: A name is unknown, or no layer matches the options.
    """
    if op is None and workload is None and shape is None:
        return None
    every_op = op is None or op == "all"
    if shape:
        if every_op:
            raise UsageError("--shape needs --op, which defines the dimensions")
        (layer,) = shapes_as_network(str(op), [shape], dtype, layout).layers
        return [replace(layer, name=layer.problem.key)]
    if workload:
        networks = [NetworkRequest(workload, None if every_op else op, dtype, layout)]
    else:
        ops = [each for each in all_ops() if kernels_for(each.name, dtype, layout)] if every_op else [find_op(str(op))]
        networks = [NetworkRequest(None, each.name, dtype, layout) for each in ops]
    layers: dict[Problem, Layer] = {}
    for network in networks:
        for layer in layers_of(network)[1]:
            problem = layer.problem
            # If the user named all ops, skip layers that no kernel computes. If the user named one op, report the
            # missing kernel later.
            if not every_op or kernels_for(problem.op, problem.dtype, None if layer.layout_free else problem.layout):
                before = layers.get(problem)
                layers[problem] = layer if before is None else replace(before, count=before.count + layer.count)
    if not layers:
        source = f"workload {workload}" if workload else "the standard workloads"
        unfit = "is computed by a kernel of kernrec" if every_op else f"has the op {op}"
        raise UsageError(f"no layer in {source} {unfit}")
    return list(layers.values())
