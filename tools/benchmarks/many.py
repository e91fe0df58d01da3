"""Compare the processor time per shape for answering many shapes at once and one by one."""

import random
import tomllib
from functools import partial
from pathlib import Path

from front import Table

from benchmarks.timing import spent
from kernrec.gpu import find_gpu
from kernrec.recommender import Objective, Query, Recommender
from kernrec.recommender.many import ManyAnswers, answer_many

_KINDS = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))


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
    kind, draw = _KINDS[name], random.Random(1)
    columns = {dim: [64 * draw.randrange(1, 65) for _ in range(count)] for dim in kind["drawn"]}
    columns |= {dim: [size] * count for dim, size in kind.get("fixed", {}).items()}
    return kind["op"], kind["dtype"], kind["layout"], columns
