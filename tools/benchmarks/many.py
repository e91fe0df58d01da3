"""Compare the processor time per shape for answering many shapes at once and one by one."""

import random
from functools import partial

from front import Table

from benchmarks.timing import spent
from kernrec.gpu import find_gpu
from kernrec.recommender import Objective, Query, Recommender
from kernrec.recommender.many import ManyAnswers, answer_many

_KINDS: dict[str, tuple[str, str, str, tuple[str, ...], dict[str, int]]] = {
    "matmul f16, nt": ("matmul", "f16", "nt", ("m", "n", "k"), {}),
    "matmul f32": ("matmul", "f32", "nn", ("m", "n", "k"), {}),
    "conv2d f32": ("conv2d", "f32", "nchw", ("c", "k"), {"h": 28, "w": 28, "padding": 1}),
    "conv2d f16": ("conv2d", "f16", "nhwc", ("c", "k"), {"h": 28, "w": 28, "padding": 1}),
    "attention f16": ("attention", "f16", "bhsd", ("queries",), {"heads": 32, "head_dim": 128}),
    "matvec": ("matvec", "f16", "row", ("m", "k"), {}),
    **{op: (op, "f16", "row", ("rows", "columns"), {}) for op in
       ("softmax", "layernorm", "rmsnorm", "reduce", "transpose")},
    "elementwise": ("elementwise", "f16", "row", ("n",), {}),
}  # fmt: skip
"""(op, data type, layout, dimensions in steps of 64, fixed dimensions), keyed by the name of a kind of problem."""


def run(shapes: int = 1000, gpu: str = "h200", only: str = "") -> None:
    """Print a row for each kind of problem whose name contains `only`. A tenth of the shapes is answered one by one."""
    table = Table(f"{shapes} shapes of each op, ms a shape")
    for name in (kind for kind in _KINDS if only in kind):
        op, dtype, layout, columns = _varied(name, shapes)
        query, answers, device = Query(Objective.LATENCY, top=1), list[ManyAnswers](), find_gpu(gpu)
        ask = partial(answer_many, Recommender([]), op, gpu, query=query, dtype=dtype, layout=layout)
        ask(dims={dim: sizes[:2] for dim, sizes in columns.items()})
        together = spent(lambda: answers.append(ask(dims=columns))) / shapes  # noqa: B023
        few, other = answers[0].problems[2 : 2 + shapes // 10], Recommender([])
        other.on(device).answer_op(answers[0].problems[0], query)
        each = spent(lambda: [other.on(device).answer_op(p, query) for p in few]) / len(few)  # noqa: B023
        cells = {"at once": f"{together * 1e3:.3f}", "one by one": f"{each * 1e3:.3f}"}
        table.row({"op": name, **cells, "times as quick": f"{each / together:.1f}"})


def _varied(name: str, count: int) -> tuple[str, str, str, dict[str, list[int]]]:
    """Return op, data type, layout and sizes of `count` problems of a kind. Sizes are lists, keyed by dimension."""
    op, dtype, layout, changing, fixed = _KINDS[name]
    draw = random.Random(1)
    columns = {dim: [64 * draw.randrange(1, 65) for _ in range(count)] for dim in changing}
    return op, dtype, layout, columns | {dim: [size] * count for dim, size in fixed.items()}
