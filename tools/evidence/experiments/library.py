"""Compare the predicted best kernel of kernrec's library with recorded and published times of other kernels.

The sets are matmuls, conv2d and attention of libraries, tuners and hand-written kernels on the same GPU, so the ratio
need not be 1. They are seeded samples of large files, without shapes under 20 us, because most of their time is launch
overhead. The column `model` is the geometric mean of the ratios without learned corrections. `--by group` prints a row
for each part of a set. `library.toml` lists the sets.
"""

import random
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from front import DATA, Data

from evidence.cases import Cases, agreement, geometric_mean, joined, report, spread
from evidence.recordings.files import AbsentError, recorded_dicts
from kernrec.errors import KernrecError
from kernrec.op import find_op
from kernrec.recommender import Objective, Query, Recommender

TABLES: Mapping[str, Any] = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))


@dataclass(frozen=True)
class Shape:
    """Shape of a problem, with the measured time of another kernel."""

    op: str
    dtype: str
    layout: str | None
    dims: Mapping[str, int]
    measured_s: float
    power_limit_w: float | None = None
    """Power limit of the measurement in watts, or None for the GPU's default limit."""
    group: str = ""
    """Part of a set that can be printed separately, such as a range of rows."""


def shapes_of(data: Path, name: str, gpu: str, count: int) -> Iterator[Shape]:
    """Yield the shapes of a set on a GPU. Of a Parquet file, yield at most `count` random shapes."""
    for each in TABLES["recorded"]:
        if (each["name"], each["gpu"]) == (name, gpu):
            path = data / each["file"]
            rows = recorded_dicts(path, each.get("condition", "true"), each["columns"])
            if path.suffix == ".parquet":
                rows = random.Random(path.name).sample(rows, min(count, len(rows)))
            for row in rows:
                layout = row.pop("layout", each.get("layout"))
                seconds, group = row.pop("seconds"), row.pop("part", "")
                yield Shape(each["op"], each["dtype"], layout, row, seconds, each.get("limit_w"), group)
    for each in TABLES["published"]:
        if (each["name"], each["gpu"]) == (name, gpu):
            low, high = each["tflops"]
            seconds = (
                find_op("attention").problem(each["dtype"], None, **each["dims"]).flops / (low * high) ** 0.5 / 1e12
            )
            yield Shape("attention", each["dtype"], None, each["dims"], seconds, each.get("limit_w"))
    if (table := name.partition("FlashAttention-3's charts, ")[2]) and gpu == "h100-sxm":
        yield from _charts(table)


def _charts(table: str) -> Iterator[Shape]:
    """Yield attention problems from FlashAttention-3's charts, with 16,384 tokens and a hidden size of 2,048."""
    text = Path(__file__).with_name("attention_charts.toml").read_text(encoding="utf-8")
    for name, rates in tomllib.loads(text)[table].items():
        head_dim, causal = int(name.partition("-")[0]), int(name.endswith("-causal"))
        for length, reached in zip((512, 1024, 2048, 4096, 8192, 16384), rates, strict=True):
            if reached:
                dims = {"batch": 16384 // length, "heads": 2048 // head_dim, "queries": length, "head_dim": head_dim}
                seconds = 4.0 * prod((16384, 2048, length)) / (2 if causal else 1) / reached / 1e12
                dtype = "f16" if table == "f16" else "f8e4m3"
                yield Shape("attention", dtype, "bshd", dims | {"causal": causal}, seconds, group=name)


SETS = tuple(
    dict.fromkeys((each["name"], each["gpu"]) for each in (*TABLES["recorded"], *TABLES["published"]))
) + tuple((f"FlashAttention-3's charts, {table}", "h100-sxm") for table in ("f16", "e4m3"))
"""(Name, GPU) of each set."""


def run(
    data: Data = DATA, shapes: int = 60, by: Literal["set", "group", "chosen"] = "set",
    only: Annotated[list[str] | None, typer.Option("--set", help="part of the names of some sets")] = None,
) -> None:  # fmt: skip
    """Print a row for each set or for each of its parts, with at most `shapes` shapes per set."""
    recommender, parts = Recommender([]), []
    for name, gpu in SETS:
        if not only or any(part in name for part in only):
            try:
                parts += predicted(recommender, name, gpu, list(shapes_of(data, name, gpu, shapes)))
            except AbsentError as error:
                print(f"skipped {name} on {gpu}: {error}")
    if parts:
        columns = ("kernel", "gpu", *({"set": (), "group": ("group",), "chosen": ("chosen",)}[by]))
        cells = agreement, spread, lambda part: {"model": geometric_mean(part["model_s"] / part["recorded"])}
        report("predicted over recorded times", joined(parts), columns, *cells)


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
