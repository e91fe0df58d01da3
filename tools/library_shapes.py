"""The library's best kernel against what vendors' libraries and tuners reached, shape by shape.

Files of recorded data (`library`, `triton`, `anchors`) and the published throughput of FlashAttention that
`tools/check_prior.py` lists. Of large files a seeded sample of shapes is taken, without those that take less than
20 us, which are mostly launch. Measured are other kernels than the one predicted: a library that has `wgmma` is faster
than any kernel here.
"""

import csv
import random
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from check_prior import ANCHORS, PUBLISHED, RTX_5090_W

from kernrec.errors import KernrecError
from kernrec.op import find_op
from kernrec.recommender import Objective, Query, Recommender
from kernrec.store.connection import parquet_rows

SHAPES = 60
LEAST_S = 20e-6
_MOST_BYTES = 8 * 2**30  # of one matrix: beyond it indices of 32 bits do not reach


@dataclass(frozen=True)
class Shape:
    """One measured shape."""

    op: str
    dtype: str
    layout: str | None
    dims: Mapping[str, int]
    measured_s: float
    power_limit_w: float | None = None
    """What it was measured at; None: the default limit."""


Scored = tuple[str, str, list[float], list[float]]
"""Set, card, measured and predicted seconds."""


def shape_sets(data: Path, skip: Callable[[str, object], None]) -> Iterator[Scored]:
    """Every set of shapes that is at hand, predicted; what is not is passed to `skip` with the reason."""
    recommender = Recommender([])
    for name, card, read in _sets(data):
        try:
            shapes = read()
        except OSError as error:
            skip(f"{name} on {card}", f"no {error.filename}")
            continue
        measured, predicted = [], []
        for shape in shapes:
            try:
                query = Query(Objective.LATENCY, power_limit_w=shape.power_limit_w, top=1)
                answer = recommender.recommend(shape.op, card, dict(shape.dims), shape.dtype, shape.layout, query)
            except KernrecError:
                continue  # no kernel of the library runs it
            measured.append(shape.measured_s)
            predicted.append(answer.best.latency_s.value)
        if measured:
            yield name, card, measured, predicted


def _sets(data: Path) -> Iterator[tuple[str, str, Callable[[], Iterable[Shape]]]]:
    for file, card in (("gemm_a100", "a100-sxm4-80gb"), ("gemm_l40s", "l40s"), ("gemm_h200_power", "h200-sxm")):
        yield "bf16 product, library", card, lambda file=file: _gemm(data / "library" / f"{file}.parquet")  # type: ignore[misc]
    for file, card in (("inductor_mm_a100", "a100-sxm4-40gb"), ("inductor_mm_h100", "h100-sxm-96gb")):
        yield "f16 product, cuBLAS", card, lambda file=file: _inductor(data / "triton" / f"{file}.parquet")  # type: ignore[misc]
    yield "bf16 product, cuBLAS", "rtx5090", lambda: _rtx5090(data / "anchors" / "matmul_bf16_rtx5090.csv")
    for anchor in ANCHORS:
        what = "product, tuned Triton" if anchor.op == "matmul" else f"{anchor.op}, auto-scheduler"
        yield f"{anchor.dtype} {what}", "rtx3090", lambda anchor=anchor: _anchor(data / "anchors", anchor)  # type: ignore[misc]
    for file, card in (("attention_prefill_a100", "a100-sxm4-80gb"), ("attention_prefill_h200_power", "h200-sxm")):
        yield "attention, library", card, lambda file=file: _attention(data / "library" / f"{file}.parquet")  # type: ignore[misc]
    for card in dict.fromkeys(entry.gpu for entry in PUBLISHED):
        yield "attention, published", card, lambda card=card: _published(card)  # type: ignore[misc]


def _table(path: Path, where: str) -> list[dict[str, Any]]:
    """A seeded sample of the rows of a Parquet file."""
    path.stat()
    with parquet_rows(path) as (connection, source):
        cursor = connection.execute(f"FROM {source} WHERE {where} ORDER BY ALL")
        names = [column[0] for column in cursor.description or ()]
        rows = cursor.fetchall()
    return [dict(zip(names, row, strict=True)) for row in random.Random(path.name).sample(rows, min(SHAPES, len(rows)))]


def _gemm(path: Path) -> Iterator[Shape]:
    fits = f"greatest(m * n::BIGINT, m * k::BIGINT, n * k::BIGINT) * 2 < {_MOST_BYTES // 4}"
    for row in _table(path, f"latency_s > {LEAST_S} AND {fits}"):
        yield Shape("matmul", "bf16", "nt", {name: row[name] for name in "mnk"}, row["latency_s"])


def _inductor(path: Path) -> Iterator[Shape]:
    for row in _table(path, f"implementation = 'extern_mm' AND dtype = 'float16' AND latency_s > {LEAST_S}"):
        layout = "".join("n" if row[f"{side}_stride_1"] == 1 else "t" for side in "ab")
        yield Shape("matmul", "f16", layout, {name: row[name] for name in "mnk"}, row["latency_s"])


def _rtx5090(path: Path) -> Iterator[Shape]:
    for row in _lines(path):
        dims = {name: int(row[name]) for name in "mnk"}
        flops = 2.0 * float(np.prod(list(dims.values())))
        yield Shape("matmul", "bf16", None, dims, flops / float(row["cublas_tflops"]) / 1e12, RTX_5090_W)


def _anchor(folder: Path, anchor: Any) -> Iterator[Shape]:
    for row in _lines(folder / anchor.file):
        dims = {name: int(row[name]) for name in anchor.dims}
        yield Shape(anchor.op, anchor.dtype, None, dims, anchor.measured_s(row))


def _attention(path: Path) -> Iterator[Shape]:
    """Causal attention over prompts; sliding windows are left out."""
    plain = "head_dim IN (64, 128) AND num_heads % num_key_value_heads = 0"
    windows = " AND window_size = 0" if "h200" in path.name else ""
    for row in _table(path, f"{plain}{windows} AND latency_s > {LEAST_S}"):
        dims = {
            "batch": row["batch_size"],
            "heads": row["num_heads"],
            "kv_heads": row["num_key_value_heads"],
            "queries": row["isl"],
            "head_dim": row["head_dim"],
            "causal": 1,
        }
        yield Shape("attention", "bf16", None, dims, row["latency_s"])


def _published(card: str) -> Iterator[Shape]:
    """At the geometric mean of the published range."""
    for entry in PUBLISHED:
        if entry.gpu == card:
            flops = find_op("attention").problem(entry.dtype, None, **entry.dims).flops
            reached = 1e12 * float(np.sqrt(entry.tflops[0] * entry.tflops[1]))
            yield Shape("attention", entry.dtype, None, dict(entry.dims), flops / reached, entry.power_limit_w)


def _lines(path: Path) -> Iterator[dict[str, str]]:
    with path.open() as file:
        yield from csv.DictReader(file)
