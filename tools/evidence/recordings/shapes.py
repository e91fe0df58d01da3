"""Read recorded and published times of vendor libraries, tuners and hand-written kernels, by shape: a seeded sample of
large files, without shapes under 20 us, because most of their time is launch overhead."""

import random
import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from evidence.recordings.files import recorded_dicts
from kernrec.op import find_op

LEAST_S = 20e-6
FASTEST = "fastest recorded"
"""Label for the fastest of cuBLAS, Triton's template and, on an RTX 5090, hand-written kernels."""
_MOST_ELEMENTS = 2**30  # Maximum number of elements of a matrix, so that indices fit in 32 bits.
RTX_5090_W = 400.0
"""Power limit in watts of gau-nernst's measurements on an RTX 5090."""


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


ShapeSet = tuple[str, str, Callable[[Path, int], Iterator[Shape]]]
"""(Name, GPU, function that reads at most a given number of shapes from the folder of recordings)."""

_LONG = {"heads": 32, "kv_heads": 8, "queries": 4096, "head_dim": 128}
_PUBLISHED: tuple[tuple[str, str, dict[str, int], tuple[float, float], float | None], ...] = (
    # arXiv 2307.08691: up to 73 % of 312 TFLOP/s
    ("a100-sxm4-80gb", "f16", _LONG, (180, 230), None),
    ("a100-sxm4-80gb", "f16", _LONG | {"causal": 1}, (180, 230), None),
    # gau-nernst, Flash Attention for 5090, at 400 W: 187 and 191, cuDNN 204
    ("rtx5090", "bf16", {"heads": 8, "queries": 4096, "keys": 8192, "head_dim": 128}, (187, 204), RTX_5090_W),
    # arXiv 2407.08608, figure 5: cuDNN 609, FlashAttention-3 638
    ("h100-sxm", "f16", {"batch": 4, "heads": 16, "queries": 4096, "head_dim": 128}, (609, 638), None),
)
"""(GPU, data type, dimensions, range of published throughput in TFLOP/s, power limit in watts or None)."""


def seeded_sample(path: Path, condition: str, count: int, columns: str = "*") -> list[dict[str, float]]:
    """Return a random sample of at most `count` rows of a Parquet file. The file's name determines the seed."""
    rows = recorded_dicts(path, f"{condition} ORDER BY ALL", columns)
    return random.Random(path.name).sample(rows, min(count, len(rows)))


def _gemm(file: str, data: Path, count: int) -> Iterator[Shape]:
    fits = f"greatest(m * n::BIGINT, m * k::BIGINT, n * k::BIGINT) < {_MOST_ELEMENTS}"
    for row in seeded_sample(data / "library" / f"{file}.parquet", f"latency_s > {LEAST_S} AND {fits}", count):
        group = "m to 128" if row["m"] <= 128 else "m 129 to 2048" if row["m"] <= 2048 else "m beyond 2048"
        yield Shape("matmul", "bf16", "nt", {n: int(row[n]) for n in "mnk"}, row["latency_s"], group=group)


def _inductor(file: str, fastest: bool, data: Path, count: int) -> Iterator[Shape]:
    """Yield matmuls with the time of cuBLAS or, if `fastest`, the lower of cuBLAS's and Triton's times."""
    path, problem = (
        data / "triton" / f"{file}.parquet",
        ("m", "n", "k", *(f"{s}_stride_{i}" for s in "ab" for i in "01")),
    )
    in_triton = "implementation = 'triton' AND dtype = 'float16' AND failures = 0 GROUP BY ALL"
    rows = recorded_dicts(path, in_triton, f"{', '.join(problem)}, min(latency_s) AS latency_s") if fastest else []
    least = {tuple(row[name] for name in problem): row["latency_s"] for row in rows}
    condition = f"implementation = 'extern_mm' AND dtype = 'float16' AND latency_s > {LEAST_S}"
    for row in seeded_sample(path, condition, count):
        layout = "".join("n" if row[f"{side}_stride_1"] == 1 else "t" for side in "ab")
        seconds = min(row["latency_s"], least.get(tuple(row[name] for name in problem), row["latency_s"]))
        yield Shape("matmul", "f16", layout, {name: int(row[name]) for name in "mnk"}, seconds)


def _rtx5090(fastest: bool, data: Path, count: int) -> Iterator[Shape]:
    """Yield matmuls with the time of cuBLAS or, if `fastest`, also of Inductor and hand-written kernels."""
    rates = "cublas_tflops" + ", inductor_triton_tflops, best_handwritten_tflops" * fastest
    columns = f"m, n, k, 2.0 * m * n * k / greatest({rates}) / 1e12 AS seconds"
    for row in recorded_dicts(data / "anchors" / "matmul_bf16_rtx5090.csv", columns=columns):
        yield Shape("matmul", "bf16", None, row, row.pop("seconds"), RTX_5090_W)


def _tuned(file: str, op: str, dtype: str, dims: str, times: str, data: Path, count: int) -> Iterator[Shape]:
    """Yield problems with the time of a tuned kernel on an RTX 3090: the minimum of the columns `times`."""
    for row in recorded_dicts(data / "anchors" / file, columns=f"{dims}, least({times}) AS seconds"):
        yield Shape(op, dtype, None, row, row.pop("seconds"))


def _attention(file: str, data: Path, count: int) -> Iterator[Shape]:
    windows = " AND window_size = 0" if "h200" in file else ""
    columns = {
        "batch": "batch_size", "heads": "num_heads", "kv_heads": "num_key_value_heads", "queries": "isl",
        "head_dim": "head_dim",
    }  # fmt: skip
    fits = f"batch_size::BIGINT * isl * num_heads * head_dim < {2 * _MOST_ELEMENTS}"
    condition = f"{fits} AND num_heads % num_key_value_heads = 0{windows} AND head_dim <= 256 AND latency_s > {LEAST_S}"
    for row in seeded_sample(data / "library" / f"{file}.parquet", condition, count):
        dims = {name: int(row[column]) for name, column in columns.items()} | {"causal": 1}
        tokens = "tokens to 512" if row["isl"] <= 512 else "513 to 2048" if row["isl"] <= 2048 else "beyond 2048"
        yield Shape("attention", "bf16", None, dims, row["latency_s"], group=tokens)


def _published(gpu: str, data: Path, count: int) -> Iterator[Shape]:
    """Yield attention with a time that follows from the published throughput: the geometric mean of its range."""
    for name, dtype, dims, reached, limit_w in _PUBLISHED:
        if name == gpu:
            flops = find_op("attention").problem(dtype, None, **dims).flops
            yield Shape("attention", dtype, None, dims, flops / (1e12 * float(np.sqrt(np.prod(reached)))), limit_w)


def _charts(table: str, data: Path, count: int) -> Iterator[Shape]:
    """Yield attention from FlashAttention-3's charts: 16,384 tokens in all, and a hidden size of 2,048."""
    text = Path(__file__).with_name("attention_charts.toml").read_text(encoding="utf-8")
    for name, rates in tomllib.loads(text)[table].items():
        head_dim, causal = int(name.partition("-")[0]), int(name.endswith("-causal"))
        for length, reached in zip((512, 1024, 2048, 4096, 8192, 16384), rates, strict=True):
            if reached:
                dims = {"batch": 16384 // length, "heads": 2048 // head_dim, "queries": length, "head_dim": head_dim}
                seconds = 4.0 * 16384 * 2048 * length / (2 if causal else 1) / reached / 1e12
                dtype = "f16" if table == "f16" else "f8e4m3"
                yield Shape("attention", dtype, "bshd", dims | {"causal": causal}, seconds, group=name)


_CONV = ("conv2d_f32_ansor.csv", "conv2d", "f32", "n, c, h, w, k, r, s, stride, padding", "best_latency_s")
_MATMUL = ("matmul_f16_rtx3090.csv", "matmul", "f16", "m, n, k", "best_triton_latency_s, cublas_latency_s")
SETS: tuple[ShapeSet, ...] = (
    *(("bf16 matmul, library", gpu, partial(_gemm, file)) for file, gpu in
      (("gemm_a100", "a100-sxm4-80gb"), ("gemm_l40s", "l40s"), ("gemm_h200_power", "h200-sxm"))),
    *((f"f16 matmul, {FASTEST if fastest else 'cuBLAS'}", gpu, partial(_inductor, file, fastest)) for file, gpu in
      (("inductor_mm_a100", "a100-sxm4-40gb"), ("inductor_mm_h100", "h100-sxm-96gb")) for fastest in (False, True)),
    *((f"bf16 matmul, {FASTEST if fastest else 'cuBLAS'}", "rtx5090", partial(_rtx5090, fastest))
      for fastest in (False, True)),
    ("f32 conv2d, auto-scheduler", "rtx3090", partial(_tuned, *_CONV)),
    ("f16 matmul, tuned Triton", "rtx3090", partial(_tuned, *_MATMUL)),
    ("attention, library", "a100-sxm4-80gb", partial(_attention, "attention_prefill_a100")),
    ("attention, library", "h200-sxm", partial(_attention, "attention_prefill_h200_power")),
    *(("attention, published", gpu, partial(_published, gpu)) for gpu in ("a100-sxm4-80gb", "rtx5090", "h100-sxm")),
    *((f"FlashAttention-3's charts, {table}", "h100-sxm", partial(_charts, table)) for table in ("f16", "e4m3")),
)  # fmt: skip
