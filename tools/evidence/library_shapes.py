"""The library's best kernel against what vendors' libraries and tuners reached, shape by shape.

Of large files a seeded sample of shapes is taken, without those that take less than 20 us, which are mostly launch.
Measured are other kernels than the one predicted: a library that has `wgmma` is faster than many a kernel here.
"""

import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np

from evidence.recordings.files import AbsentError, csv_dicts, parquet_dicts
from kernrec.errors import KernrecError
from kernrec.op import find_op
from kernrec.recommender import Objective, Query, Recommender

SHAPES = 60
FASTEST = "fastest recorded"
"""Of cuBLAS, Triton's template and, on an RTX 5090, kernels written by hand."""
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
    """The limit that it was measured at; None: the default one."""


@dataclass(frozen=True)
class Anchor:
    """A file of latencies measured on an RTX 3090."""

    file: str
    op: str
    dtype: str
    dims: tuple[str, ...]
    """Columns that hold the dimensions."""
    columns: tuple[str, ...]
    """The columns that hold latencies; the fastest counts."""
    tuner: str
    mean: tuple[float, float]
    """Aim for the geometric mean of predicted over measured latency."""
    each: tuple[float, float]
    """Aim for each shape's predicted over measured latency."""

    def shapes(self, data: Path) -> Iterator[Shape]:
        """The shapes of the file."""
        for row in csv_dicts(data / "anchors" / self.file):
            dims = {name: int(row[name]) for name in self.dims}
            yield Shape(self.op, self.dtype, None, dims, min(float(row[column]) for column in self.columns))


ANCHORS = (
    Anchor(
        "conv2d_f32_ansor.csv", "conv2d", "f32", ("n", "c", "h", "w", "k", "r", "s", "stride", "padding"),
        ("best_latency_s",), "conv2d, auto-scheduler", (0.8, 1.5), (0.5, 2.5),
    ),
    Anchor(
        "matmul_f16_rtx3090.csv", "matmul", "f16", ("m", "n", "k"),
        ("best_triton_latency_s", "cublas_latency_s"), "product, tuned Triton", (0.8, 1.4), (1 / 2.5, 2.5),
    ),
)  # fmt: skip


@dataclass(frozen=True)
class Published:
    """Published throughput of an attention kernel."""

    gpu: str
    dtype: str
    dims: Mapping[str, int]
    tflops: tuple[float, float]
    """Range of the throughput, in TFLOP/s."""
    source: str
    power_limit_w: float | None = None
    """The power limit that it was measured at, where it was not the default one."""

    @property
    def flops(self) -> float:
        """Operations of the problem."""
        return find_op("attention").problem(self.dtype, None, **self.dims).flops


RTX_5090_W = 400.0
"""The power limit that gau-nernst's measurements on an RTX 5090 were made at: of attention, and of products."""
_LONG = {"heads": 32, "kv_heads": 8, "queries": 4096, "head_dim": 128}
PUBLISHED = (
    Published("a100-sxm4-80gb", "f16", _LONG, (180, 230), "arXiv 2307.08691: up to 73 % of 312 TFLOP/s"),
    Published("a100-sxm4-80gb", "f16", _LONG | {"causal": 1}, (180, 230), "the same"),
    Published(
        "rtx5090", "bf16", {"heads": 8, "queries": 4096, "keys": 8192, "head_dim": 128}, (187, 204),
        "gau-nernst, Flash Attention for 5090, at 400 W: 187 and 191, cuDNN 204", RTX_5090_W,
    ),
    Published(
        "h100-sxm", "f16", {"batch": 4, "heads": 16, "queries": 4096, "head_dim": 128}, (609, 638),
        "arXiv 2407.08608, figure 5: cuDNN 609, FlashAttention-3 638",
    ),
)  # fmt: skip


def shape_sets(
    data: Path, skip: Callable[[str, object], None]
) -> Iterator[tuple[str, str, list[float], list[float], list[float]]]:
    """Set, card, measured and predicted seconds of all that is at hand, and those by the prior alone, whose lead over
    what was recorded nothing shrinks; the rest goes to `skip` with the reason."""
    recommender = Recommender([])
    for name, card, read in _sets(data):
        measured, predicted, alone = [], [], []
        try:
            for shape in read():
                subject = shape.op, card, dict(shape.dims), shape.dtype, shape.layout
                query = Query(Objective.LATENCY, power_limit_w=shape.power_limit_w, top=1)
                try:
                    best = [
                        recommender.recommend(*subject, each).best for each in (query, replace(query, source="prior"))
                    ]
                except KernrecError:
                    continue  # no kernel of the library runs it
                measured.append(shape.measured_s)
                predicted.append(best[0].latency_s.value)
                alone.append(best[1].latency_s.value)
        except AbsentError as error:
            skip(f"{name} on {card}", error)
        if measured:
            yield name, card, measured, predicted, alone


def _sets(data: Path) -> Iterator[tuple[str, str, Callable[[], Iterator[Shape]]]]:
    for file, card in (("gemm_a100", "a100-sxm4-80gb"), ("gemm_l40s", "l40s"), ("gemm_h200_power", "h200-sxm")):
        yield "bf16 product, library", card, partial(_gemm, data / "library" / f"{file}.parquet")
    for file, card in (("inductor_mm_a100", "a100-sxm4-40gb"), ("inductor_mm_h100", "h100-sxm-96gb")):
        for fastest, title in ((False, "f16 product, cuBLAS"), (True, f"f16 product, {FASTEST}")):
            yield title, card, partial(_inductor, data / "triton" / f"{file}.parquet", fastest)
    for fastest, title in ((False, "bf16 product, cuBLAS"), (True, f"bf16 product, {FASTEST}")):
        yield title, "rtx5090", partial(_rtx5090, data / "anchors" / "matmul_bf16_rtx5090.csv", fastest)
    for anchor in ANCHORS:
        yield f"{anchor.dtype} {anchor.tuner}", "rtx3090", partial(anchor.shapes, data)
    for file, card in (("attention_prefill_a100", "a100-sxm4-80gb"), ("attention_prefill_h200_power", "h200-sxm")):
        yield "attention, library", card, partial(_attention, data / "library" / f"{file}.parquet")
    for card in dict.fromkeys(entry.gpu for entry in PUBLISHED):
        yield "attention, published", card, partial(_published, card)


def seeded_sample(path: Path, condition: str, count: int, columns: str = "*", seed: str = "") -> list[dict[str, float]]:
    """A seeded sample of the rows of a Parquet file, which do not depend on how it is read."""
    rows = parquet_dicts(path, f"{condition} ORDER BY ALL", columns)
    return random.Random(f"{seed}{path.name}").sample(rows, min(count, len(rows)))


def _gemm(path: Path) -> Iterator[Shape]:
    fits = f"greatest(m * n::BIGINT, m * k::BIGINT, n * k::BIGINT) * 2 < {_MOST_BYTES // 4}"
    for row in seeded_sample(path, f"latency_s > {LEAST_S} AND {fits}", SHAPES):
        yield Shape("matmul", "bf16", "nt", {name: int(row[name]) for name in "mnk"}, row["latency_s"])


def _inductor(path: Path, fastest: bool) -> Iterator[Shape]:
    """cuBLAS's times; with `fastest` those of a config of Triton's template where one was recorded that took less."""
    condition = f"implementation = 'extern_mm' AND dtype = 'float16' AND latency_s > {LEAST_S}"
    problem = "m", "n", "k", "a_stride_0", "a_stride_1", "b_stride_0", "b_stride_1"
    in_triton = "implementation = 'triton' AND dtype = 'float16' AND failures = 0 GROUP BY ALL"
    least = {
        tuple(row[name] for name in problem): row["latency_s"]
        for row in (
            parquet_dicts(path, in_triton, f"{', '.join(problem)}, min(latency_s) AS latency_s") if fastest else ()
        )
    }
    for row in seeded_sample(path, condition, SHAPES):
        layout = "".join("n" if row[f"{side}_stride_1"] == 1 else "t" for side in "ab")
        seconds = min(row["latency_s"], least.get(tuple(row[name] for name in problem), row["latency_s"]))
        yield Shape("matmul", "f16", layout, {name: int(row[name]) for name in "mnk"}, seconds)


def _rtx5090(path: Path, fastest: bool) -> Iterator[Shape]:
    """cuBLAS's times; with `fastest` the best of Inductor's and of kernels written by hand, too."""
    for row in csv_dicts(path):
        dims = {name: int(row[name]) for name in "mnk"}
        flops = 2.0 * float(np.prod(list(dims.values())))
        reached = max(float(row[name]) for name in row if name.endswith("_tflops") and (fastest or "cublas" in name))
        yield Shape("matmul", "bf16", None, dims, flops / reached / 1e12, RTX_5090_W)


def _attention(path: Path) -> Iterator[Shape]:
    """Causal attention over prompts; sliding windows are left out."""
    plain = "head_dim IN (64, 128) AND num_heads % num_key_value_heads = 0"
    windows = " AND window_size = 0" if "h200" in path.name else ""
    columns = {
        "batch": "batch_size", "heads": "num_heads", "kv_heads": "num_key_value_heads", "queries": "isl",
        "head_dim": "head_dim",
    }  # fmt: skip
    for row in seeded_sample(path, f"{plain}{windows} AND latency_s > {LEAST_S}", SHAPES):
        dims = {name: int(row[column]) for name, column in columns.items()} | {"causal": 1}
        yield Shape("attention", "bf16", None, dims, row["latency_s"])


def _published(card: str) -> Iterator[Shape]:
    """At the geometric mean of the published range."""
    for entry in PUBLISHED:
        if entry.gpu == card:
            reached = 1e12 * float(np.sqrt(entry.tflops[0] * entry.tflops[1]))
            seconds = entry.flops / reached
            yield Shape("attention", entry.dtype, None, dict(entry.dims), seconds, entry.power_limit_w)
