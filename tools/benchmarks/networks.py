"""How long answers for whole networks take: several GPUs cold and warm, many shapes at once and one by one.

Cold is a new process (with its caches on disk as they are); warm a second comparison in one process, for another
network of the same ops that was not asked before. Times are of the processor, which a busy machine changes little.
"""

import random
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from front import Table

from kernrec.gpu import find_gpu, find_gpus
from kernrec.op.workload import Workload
from kernrec.op.workload import workload as find_workload
from kernrec.recommender import Objective, Query, Recommender
from kernrec.recommender.compare_gpus import compare_gpus
from kernrec.recommender.many import ManyAnswers, answer_many
from kernrec.recommender.network import NetworkRequest

from .timing import at_rank, medians, spent


def run(gpus: str = "h200,l40s,rtx4090,a100", workload: str = "llama-3-8b-decode", shapes: int = 200) -> None:
    """Print a line for each figure."""
    command = [sys.executable, "-m", "kernrec", "recommend", "--workload", workload, "--gpu", gpus]
    (cold,) = medians([partial(subprocess.run, command, check=True, capture_output=True)], 5)
    recommender, cards = Recommender([]), find_gpus(gpus)
    network, table = find_workload(workload), Table("CPU seconds, medians of 5")
    table.row({"compare": "cold, a new process", "CPU s": cold.cpu})

    def ask(shown: Workload) -> Callable[[], object]:
        return lambda: compare_gpus(recommender, cards, NetworkRequest(shown), Query(Objective.LATENCY))

    ask(network)()
    warm = at_rank([spent(ask(_other(network, number))) for number in range(1, 6)])
    (again,) = medians([ask(network)], 5)
    label = f"warm, {len(network.layers)} new layers on {len(cards)} GPUs"
    table.row({"compare": label, "CPU s": f"{warm.cpu:.3f}"})
    table.row({"compare": "the same layers again", "CPU s": f"{again.cpu:.4f}"})
    _many(recommender, shapes)


_SHAPES: dict[str, tuple[str, str, str, tuple[str, ...], dict[str, int]]] = {
    "matmul f16, nt": ("matmul", "f16", "nt", ("m", "n", "k"), {}),
    "matmul f32": ("matmul", "f32", "nn", ("m", "n", "k"), {}),
    "conv2d f32": ("conv2d", "f32", "nchw", ("c", "k"), {"h": 28, "w": 28, "padding": 1}),
    "conv2d f16": ("conv2d", "f16", "nhwc", ("c", "k"), {"h": 28, "w": 28, "padding": 1}),
    "attention f16": ("attention", "f16", "bhsd", ("queries",), {"heads": 32, "head_dim": 128}),
    "matvec": ("matvec", "f16", "row", ("m", "k"), {}),
    "softmax": ("softmax", "f16", "row", ("rows", "columns"), {}),
    "layernorm": ("layernorm", "f16", "row", ("rows", "columns"), {}),
    "rmsnorm": ("rmsnorm", "f16", "row", ("rows", "columns"), {}),
    "reduce": ("reduce", "f16", "row", ("rows", "columns"), {}),
    "transpose": ("transpose", "f16", "row", ("rows", "columns"), {}),
    "elementwise": ("elementwise", "f16", "row", ("n",), {}),
}
"""Op, data type, layout, the dimensions that vary in steps of 64, the others."""


def _many(recommender: Recommender, count: int) -> None:
    """Many shapes of each op at once against one by one, which is timed on a tenth of them."""
    card, query = find_gpu("h200"), Query(Objective.LATENCY, top=1)
    table = Table(f"\n{count} shapes of each op, CPU milliseconds a shape")
    for name, (op, dtype, layout, varied, fixed) in _SHAPES.items():
        draw = random.Random(1)
        dims = {dim: [64 * draw.randrange(1, 65) for _ in range(count)] for dim in varied}
        ask = partial(answer_many, recommender, op, "h200", query=query, dtype=dtype, layout=layout)
        ask(dims={dim: values[:2] for dim, values in dims.items()} | fixed)
        answers: list[ManyAnswers] = []
        together = spent(lambda: answers.append(ask(dims=dims | fixed))).cpu / count  # noqa: B023
        some = answers[0].problems[2 : 2 + count // 10]
        other = Recommender([])  # which remembers none of these answers
        other.answer_problem(answers[0].problems[0], card, query)
        alone = spent(lambda: [other.answer_problem(each, card, query) for each in some]).cpu / len(some)  # noqa: B023
        cells = {"at once": f"{together * 1e3:.2f}", "one by one": f"{alone * 1e3:.2f}"}
        table.row({"op": name, **cells, "times as quick": f"{alone / together:.1f}"})


def _other(network: Workload, number: int) -> Workload:
    """A network of the same ops whose shapes were not asked before: every first dimension is a little larger."""
    layers = []
    for layer in network.layers:
        op, dims = layer.problem.definition, dict(layer.problem.dim)
        grown = "keys" if "keys" in dims else next(iter(dims))
        dims[grown] += 8 * number
        layers.append(replace(layer, problem=op.problem(layer.problem.dtype, layer.problem.layout, **dims)))
    return replace(network, layers=tuple(layers))
