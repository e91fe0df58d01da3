"""Compare the predicted best kernel of kernrec's library with recorded and published times of other kernels.

The sets are matmuls, conv2d and attention of libraries, tuners and hand-written kernels on the same GPU, so the ratio
need not be 1. The column `model` is the geometric mean of the ratios without learned corrections. `--by group` prints a
row for each part of a set.
"""

from dataclasses import replace
from typing import Annotated, Literal

import typer
from front import DATA, Data

from evidence.cases import Cases, agreement, geometric_mean, joined, report, spread
from evidence.recordings.files import AbsentError
from evidence.recordings.shapes import SETS, Shape
from evidence.recordings.shapes import shapes as read_shapes
from kernrec.errors import KernrecError
from kernrec.recommender import Objective, Query, Recommender


def run(
    data: Data = DATA, shapes: int = 60, by: Literal["set", "group", "chosen"] = "set",
    only: Annotated[list[str] | None, typer.Option("--set", help="part of the names of some sets")] = None,
) -> None:  # fmt: skip
    """Print a row for each set or for each of its parts, with at most `shapes` shapes per set."""
    recommender, parts = Recommender([]), []
    for name, gpu in SETS:
        if not only or any(part in name for part in only):
            try:
                parts += predicted(recommender, name, gpu, list(read_shapes(data, name, gpu, shapes)))
            except AbsentError as error:
                print(f"skipped {name} on {gpu}: {error}")
    if parts:
        columns = ("kernel", "gpu", *({"set": (), "group": ("group",), "chosen": ("chosen",)}[by]))
        report("predicted over recorded times", joined(parts), columns, agreement, spread, model)


def predicted(recommender: Recommender, name: str, gpu: str, shapes: list[Shape]) -> list[Cases]:
    """Return cases for the shapes that a kernel of the library can run."""
    result = []
    for shape in shapes:
        query = Query(Objective.LATENCY, power_limit_w=shape.power_limit_w, top=1)
        subject = shape.op, gpu, dict(shape.dims), shape.dtype, shape.layout
        try:
            best = [recommender.recommend(*subject, each).best for each in (query, replace(query, source="predicted"))]
        except KernrecError:
            continue
        answered_s, model_s = ([recommendation.latency_s.value] for recommendation in best)
        dims = " ".join(f"{key}={size}" for key, size in shape.dims.items())
        names = {"kernel": name, "gpu": gpu, "problem": dims, "group": shape.group, "chosen": best[0].kernel.name}
        result.append(Cases.of(**names, recorded=[shape.measured_s], predicted=answered_s, model_s=model_s))
    return result


def model(cases: Cases) -> dict[str, object]:
    """Return the geometric mean of the analytical model's time / recorded time."""
    return {"model": geometric_mean(cases["model_s"] / cases["recorded"])}
