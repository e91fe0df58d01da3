"""Convert the nodes of an ONNX graph to problems of kernrec's ops, and list nodes that no op supports.

`workload_files` runs this module in a child process with limited resources, because an untrusted model may make the
parser crash, hang or exhaust memory.
"""

import json
import sys
from collections import Counter
from collections.abc import Callable, Mapping
from math import prod
from pathlib import Path
from typing import Any

from kernrec.errors import KernrecError, UsageError
from kernrec.interop.onnx_graph import Graph, Node, load_graph, tally
from kernrec.op import Problem, find_op
from kernrec.op.workload import Layer, Workload, printable
from kernrec.store.reader import Limits, serve_request

FREE = {
    "Cast", "Constant", "ConstantOfShape", "Dropout", "Flatten", "Identity", "Range", "Reshape", "Shape", "Size",
    "Squeeze", "Unsqueeze",
}  # fmt: skip
"""Node types that take no time."""
_ACTIVATIONS = {"Relu": 1, "Gelu": 2, "FastGelu": 2}
_BEHIND_CONVOLUTIONS = {
    "BatchNormalization", "Relu", "Clip", "LeakyRelu", "Sigmoid", "HardSwish", "HardSigmoid", "Mish",
}  # fmt: skip
FEW_ROWS = 16
"""Maximum number of input rows for which a matmul with constant weights becomes a matvec."""

_Read = Callable[[Graph, Node], Problem | None]


def read_onnx(path: Path, fixed: Mapping[str, int]) -> Workload:
    """Read the workload of an ONNX model. Nodes with equal problems form one layer with the name of the first node.

    Args:
        fixed: Values of the model's symbolic dimensions, keyed by dimension name.

    Raises:
        UsageError: The file cannot be used. The message gives the reason.
        KernrecError: The package `onnx` is not installed.
    """
    graph = load_graph(path, fixed)
    counts: Counter[Problem] = Counter()
    names: dict[Problem, str] = {}
    unknown: Counter[str] = Counter()
    fused: Counter[str] = Counter()
    absorbed: set[int] = set()
    for node in graph.nodes:
        result = graph.result(node)
        # Assume that constant, integer and boolean results cost nothing.
        free = node.kind in FREE or result.constant or (result.dtype is None and result.shape is not None)
        if id(node) in absorbed or free:
            continue
        if node.kind != "Conv" and _behind_a_convolution(graph, node):
            fused[node.kind] += 1
            continue
        try:
            if node.kind in ("MatMul", "Gemm"):
                problem = _product(graph, node, absorbed)
            else:
                problem = _READERS[node.kind](graph, node) if node.kind in _READERS else None
        except UsageError:  # kernrec's op does not support the node's sizes or data types.
            problem = None
        if problem is None:
            unknown[printable(node.kind)] += 1
            continue
        counts[problem] += 1
        names.setdefault(problem, printable(node.name))
    lines = tally(unknown) + [f"{line}, treated as fused into the preceding convolution" for line in tally(fused)]
    if not counts:
        raise UsageError(f"{path} has no supported layer: {', '.join(lines) or 'all of it is constant'}"[:300])
    layers = tuple(Layer(names[problem], problem, count) for problem, count in counts.items())
    return Workload(path.stem, path.name, str(path), layers, unknown=tuple(lines))


def _behind_a_convolution(graph: Graph, node: Node) -> bool:
    while node.kind in _BEHIND_CONVOLUTIONS:
        before = graph.writer(node, 0)
        if before is None or graph.only_reader(before) is not node:
            return False
        node = before
    return node.kind == "Conv"


def _product(graph: Graph, node: Node, absorbed: set[int]) -> Problem | None:
    """Return the problem of a MatMul or Gemm node, or None if no op fits. Add fused nodes to `absorbed`."""
    a, b, result = graph.value(node, 0), graph.value(node, 1), graph.result(node)
    if a.shape is None or b.shape is None or min(len(a.shape), len(b.shape)) < 2:
        return None
    first, second = (bool(node.attributes.get(name, 0)) for name in ("transA", "transB"))
    before = graph.writer(node, 1)
    if before is not None and before.kind == "Transpose" and graph.value(before, 0).constant:
        second = second or list(before.attributes.get("perm", (1, 0))) == [1, 0]  # The weights are stored as (n, k).
    *stack, m, k = a.shape
    n = b.shape[-1] if not node.attributes.get("transB", 0) else b.shape[-2]
    if first:
        m, k = k, m
    shared = len(b.shape) == 2 or prod(b.shape[:-2]) == 1
    if not shared and tuple(stack) != tuple(b.shape[:-2]):
        return None  # Broadcasting is not supported.
    batch = 1 if shared else prod(stack)
    m = m * prod(stack) if shared else m
    dtype = a.dtype or b.dtype or result.dtype
    bias = int(len(node.inputs) > 2 and bool(node.inputs[2]))
    follower = graph.only_reader(node)
    last = node
    if not bias and follower is not None and follower.kind == "Add" and _is_bias(graph, follower, n):
        bias, last = 1, follower
        absorbed.add(id(follower))
        follower = graph.only_reader(follower)
    if m <= FEW_ROWS and batch == 1 and b.constant:
        return find_op("matvec").problem(dtype, None, m=n, k=k, n=m)
    activation = 0
    if follower is not None and follower.kind in _ACTIVATIONS and follower.inputs[:1] == last.outputs[:1]:
        activation = _ACTIVATIONS[follower.kind]
        absorbed.add(id(follower))
    layout = ("t" if first else "n") + ("t" if second else "n")
    return find_op("matmul").problem(dtype, layout, m=m, n=n, k=k, batch=batch, bias=bias, activation=activation)


def _is_bias(graph: Graph, node: Node, columns: int) -> bool:
    return any(
        value.constant and value.shape is not None and prod(value.shape) == columns == (*value.shape, 1)[-2]
        for value in (graph.value(node, 0), graph.value(node, 1))
    )


def _convolution(graph: Graph, node: Node) -> Problem | None:
    x, w = graph.value(node, 0), graph.value(node, 1)
    if x.shape is None or w.shape is None or len(x.shape) != 4 or len(w.shape) != 4:
        return None
    attributes = node.attributes
    defaults = {"strides": 1, "dilations": 1, "pads": 0}
    steps = {name: set(map(int, attributes.get(name, (default,)))) for name, default in defaults.items()}
    if attributes.get("auto_pad", b"NOTSET") not in (b"NOTSET", b"VALID") or any(len(s) != 1 for s in steps.values()):
        return None
    stride, dilation, padding = (values.pop() for values in steps.values())
    n, c, h, wide = x.shape
    return find_op("conv2d").problem(
        x.dtype, "nchw", n=n, c=c, h=h, w=wide, k=w.shape[0], r=w.shape[2], s=w.shape[3], stride=stride,
        padding=padding, dilation=dilation, groups=int(attributes.get("group", 1)),
    )  # fmt: skip


def _rows(op: str) -> _Read:
    """Return a function that converts a node to a problem, or to None if the node does not work on the last axis."""

    def read(graph: Graph, node: Node) -> Problem | None:
        x = graph.value(node, 0)
        if not x.shape:
            return None
        axis = int(node.attributes.get("axis", -1))
        if axis not in (-1, len(x.shape) - 1):
            return None
        return find_op(op).problem(x.dtype, None, rows=prod(x.shape[:-1]), columns=x.shape[-1])

    return read


def _reduction(graph: Graph, node: Node) -> Problem | None:
    """Return the problem of a node that computes a sum or mean over the last axes, or None for other axes."""
    x, y = graph.value(node, 0), graph.result(node)
    if not x.shape or y.shape is None:
        return None
    first = [size for size in y.shape if size != 1]
    rows = prod(y.shape)
    if first != [size for size in x.shape if size != 1][: len(first)]:
        return None
    return find_op("reduce").problem(x.dtype, None, rows=rows, columns=prod(x.shape) // rows)


def _pairwise(graph: Graph, node: Node) -> Problem | None:
    x, y = graph.value(node, 0), graph.value(node, 1)
    if x.shape is None or x.shape != y.shape or x.constant or y.constant:
        return None
    return find_op("elementwise").problem(x.dtype, None, n=prod(x.shape))


def _transposition(graph: Graph, node: Node) -> Problem | None:
    """Return the problem of a node that swaps two groups of adjacent axes, or None for other transpositions."""
    x = graph.value(node, 0)
    if x.shape is None:
        return None
    order = [int(axis) for axis in node.attributes.get("perm", range(len(x.shape))[::-1])]
    order = [axis for axis in order if x.shape[axis] > 1]
    start = order.index(min(order)) if order else 0
    if not start or order[start:] + order[:start] != sorted(order):
        return None
    columns = prod(x.shape[axis] for axis in order[:start])
    return find_op("transpose").problem(x.dtype, None, rows=prod(x.shape) // columns, columns=columns)


def _attention(graph: Graph, node: Node) -> Problem | None:
    q, k = graph.value(node, 0), graph.value(node, 1)
    if q.shape is None or k.shape is None or len(q.shape) != len(k.shape):
        return None
    causal = int(node.attributes.get("is_causal", 0))
    if len(q.shape) == 4:
        batch, heads, queries, width = q.shape
        sizes = {"kv_heads": k.shape[1], "keys": k.shape[2]}
        layout = "bhsd"
    elif len(q.shape) == 3 and (heads := int(node.attributes.get("q_num_heads", 0))):
        batch, queries, hidden = q.shape
        sizes = {"kv_heads": int(node.attributes.get("kv_num_heads", heads)), "keys": k.shape[1]}
        layout, width = "bshd", hidden // heads
    else:
        return None
    return find_op("attention").problem(
        q.dtype, layout, batch=batch, heads=heads, queries=queries, head_dim=width, causal=causal, **sizes
    )


_READERS: dict[str, _Read] = {
    "Conv": _convolution,
    "Softmax": _rows("softmax"),
    "LayerNormalization": _rows("layernorm"),
    "RMSNormalization": _rows("rmsnorm"),
    "SimplifiedLayerNormalization": _rows("rmsnorm"),
    "ReduceSum": _reduction,
    "ReduceMean": _reduction,
    "GlobalAveragePool": _reduction,
    "Add": _pairwise,
    "Sub": _pairwise,
    "Mul": _pairwise,
    "Div": _pairwise,
    "Transpose": _transposition,
    "Attention": _attention,
}


def answer(request: Mapping[str, Any], limits: Limits) -> dict[str, Any]:
    """Write a model's workload to `workload.json`. Return the number of layers, or an error message.

    Args:
        request: JSON object with path and title of the model, its fixed dimensions, and the folder to write to.
    """
    try:
        workload = read_onnx(Path(request["path"]), request["fixed"])
    except KernrecError as error:
        return {"refused": str(error)}
    except MemoryError:
        return {"refused": f"{request['title']} needs more memory than a file of its size should"}
    layers = [
        {"name": x.name, "op": x.problem.op, "count": x.count, "dtype": x.problem.dtype, "layout": x.problem.layout}
        | x.problem.dim
        for x in workload.layers
    ]
    content = {"layers": layers, "unknown": list(workload.unknown)}
    Path(request["folder"], "workload.json").write_text(json.dumps(content), encoding="utf-8")
    return {"found": {"layers": len(layers)}}


if __name__ == "__main__":
    sys.exit(serve_request(answer))
