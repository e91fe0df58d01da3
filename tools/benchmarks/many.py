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
        kind, random_size = _KINDS[name], random.Random(1).randrange
        columns = {dim: [64 * random_size(1, 65) for _ in range(shapes)] for dim in kind["drawn"]}
        columns |= {dim: [size] * shapes for dim, size in kind.get("fixed", {}).items()}
        query, answers, device = Query(Objective.LATENCY, top=1), list[ManyAnswers](), find_gpu(gpu)
        of_kind = {"query": query, "dtype": kind["dtype"], "layout": kind["layout"]}
        ask = partial(answer_many, Recommender([]), kind["op"], gpu, **of_kind)
        ask(dims={dim: sizes[:2] for dim, sizes in columns.items()})
        together = spent(lambda: answers.append(ask(dims=columns))) / shapes  # noqa: B023
        few, other = answers[0].problems[2 : 2 + shapes // 10], Recommender([])
        other.on(device).answer_op(answers[0].problems[0], query)
        each = spent(lambda: [other.on(device).answer_op(p, query) for p in few]) / len(few)  # noqa: B023
        cells = {"at once": f"{together * 1e3:.3f}", "one by one": f"{each * 1e3:.3f}"}
        table.row({"op": name, **cells, "times as quick": f"{each / together:.1f}"})
