"""Recordings of vendor libraries, as `kernrec.training.train_vendor_model` takes them.

Three serving stacks' bf16 products in CUDA graphs (`library/gemm_*`), cuBLAS beside Inductor's Triton template
(`triton/*`, `extern_mm`), and FlashAttention over prompts and over single tokens. The files are described in the README
of the shared data folder; their rows are never copied. Power of the H200's products leaves out what `misread` finds.
That of attention is not used at all: neighbors differ by a factor of three at the same latency (one query, 32 heads of
128, 4 keys: 292 W for 1 sequence, 558 W for 2, 253 W for 4).
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from kernrec.model.vendor.model import RecordedSet
from kernrec.model.vendor.roofline import DIMS, FLASH, FLUSHED, GRAPH
from kernrec.training.train_vendor_model import Recording
from tests.helpers.power_recordings import misread
from tests.helpers.recordings import parquet_columns

Array = np.ndarray

LIBRARIES = {"matmul": "cuBLAS", "attention": "FlashAttention"}
_ALIKE = 0.11
"""Of products that Inductor's recordings have in several layouts, 90 % take within exp(0.11) of the time in layout nt
on the A100, exp(0.07) on the H100; the medians are 2.0 and 1.3 %. That f16 runs as fast as bf16 follows from the rates
of the tensor cores; for attention the figure is assumed."""
_SERVING = {"source": "ai-dynamo/aiconfigurator", "licence": "Apache-2.0"}
_GEMM = (("gemm_a100", "a100-sxm4-80gb"), ("gemm_l40s", "l40s"), ("gemm_h200_power", "h200-sxm"))
LINEAR = RecordedSet(
    "linear", "product", ("bf16",), ("nt",), ("f16", "nn", "tn", "tt"), _ALIKE, GRAPH, ("n", "k"),
    _SERVING | {
        "library": "as called by SGLang 0.5.10 (A100), PyTorch (L40S) and vLLM 0.22 (H200)",
        "recorded": "bf16, layout nt, CUDA graphs, random inputs",
    },
)  # fmt: skip
INDUCTOR = RecordedSet(
    "inductor", "product", ("f16", "bf16", "f32", "tf32"), ("nn", "nt", "tn", "tt"), (), 0.0, FLUSHED, (),
    {
        "source": "AlnisM/autoheuristic-datasets, collected for PyTorch's AutoHeuristic",
        "licence": "none stated",
        "library": "as called by PyTorch of August 2024",
        "recorded": "single launches after a flush of L2, on cards whose clocks and limits were not stated",
    },
)  # fmt: skip
_FLASH = {"recorded": "bf16, CUDA graphs, random inputs"}
PROMPT = RecordedSet(
    "prompt", "prompt", ("bf16",), ("bshd",), ("f16", "bhsd"), _ALIKE, FLASH, ("queries",),
    _SERVING | _FLASH | {"library": "as called by SGLang 0.5.10 (A100) and vLLM 0.22 (H200), layout bshd"},
)  # fmt: skip
TOKEN = RecordedSet(
    "token", "token", ("bf16",), ("bshd",), ("f16", "bhsd"), _ALIKE, FLASH, ("keys",),
    _SERVING | _FLASH | {"library": "as called by vLLM 0.22, layout bshd, paged keys and values"},
)  # fmt: skip


def recordings(data: Path, op: str) -> list[Recording]:
    """The recorded sets of an op; `AbsentError` where a file is missing."""
    return [_linear(data), _inductor(data)] if op == "matmul" else [_prompt(data), _token(data)]


def h200_power(data: Path) -> tuple[Array, Array]:
    """(recorded power of the H200's products, whether it was misread), in the order of the linear set's rows."""
    columns = _columns(data / "library" / "gemm_h200_power.parquet", ("m", "latency_s", "power"))
    return columns["power"], misread(columns["m"], columns["latency_s"])


def _linear(data: Path) -> Recording:
    parts = []
    for file, gpu in _GEMM:
        powered = ("power",) if gpu == "h200-sxm" else ()
        columns = _columns(data / "library" / f"{file}.parquet", ("m", "n", "k", "latency_s", *powered))
        power_w = np.full(len(columns["m"]), np.nan)
        if powered:
            power_w = np.where(misread(columns["m"], columns["latency_s"]), np.nan, columns["power"])
        parts.append(_recording(LINEAR, "matmul", gpu, columns, power_w))
    return _joined(parts)


def _inductor(data: Path) -> Recording:
    names = ("m", "n", "k", "dtype", "tf32", "a_stride_1", "b_stride_1", "latency_s")
    spelled = {"float16": "f16", "bfloat16": "bf16", "float32": "f32"}
    parts = []
    # The A100 reaches 1,735 GB/s, more than the 40 GB card has.
    for file, gpu in (("a100", "a100-sxm4-80gb"), ("h100", "h100-sxm-96gb")):
        path = data / "triton" / f"inductor_mm_{file}.parquet"
        columns = _columns(path, names, "implementation = 'extern_mm'")
        dtypes = [spelled[str(name)] for name in columns["dtype"]]
        columns["dtype"] = np.array(["tf32" if t else name for name, t in zip(dtypes, columns["tf32"], strict=True)])
        letters = [np.where(columns[f"{side}_stride_1"] == 1, "n", "t") for side in "ab"]
        columns["layout"] = np.char.add(*letters)
        parts.append(_recording(INDUCTOR, "matmul", gpu, columns, np.full(len(columns["m"]), np.nan)))
    return _joined(parts)


def _prompt(data: Path) -> Recording:
    parts = []
    for file, gpu, windows in (
        ("prefill_a100", "a100-sxm4-80gb", "true"),
        ("prefill_h200_power", "h200-sxm", "window_size = 0"),
    ):
        columns = _attention(data / "library" / f"attention_{file}.parquet", windows)
        columns["queries"] = columns["keys"] = columns["isl"]
        parts.append(_recording(PROMPT, "attention", gpu, columns, np.full(len(columns["isl"]), np.nan)))
    return _joined(parts)


def _token(data: Path) -> Recording:
    columns = _attention(data / "library" / "attention_decode_h200_power.parquet", "window_size = 0")
    columns["queries"], columns["keys"] = columns["isl"], columns["isl"] + columns["step"]
    return _recording(TOKEN, "attention", "h200-sxm", columns, np.full(len(columns["isl"]), np.nan))


def _attention(path: Path, condition: str) -> dict[str, Array]:
    names = ("batch_size", "isl", "step", "num_heads", "num_key_value_heads", "head_dim", "latency_s")
    columns = _columns(path, names, f"num_heads % num_key_value_heads = 0 AND {condition}")
    for name, column in (("batch", "batch_size"), ("heads", "num_heads"), ("kv_heads", "num_key_value_heads")):
        columns[name] = columns.pop(column)
    return columns


def _recording(recorded: RecordedSet, op: str, gpu: str, columns: dict[str, Array], power_w: Array) -> Recording:
    count = len(power_w)
    dtype = columns.get("dtype", np.full(count, "bf16"))
    layout = columns.get("layout", np.full(count, recorded.layouts[0]))
    dims = {name: columns[name].astype(np.int64) for name in DIMS[op]}
    return Recording(recorded, op, np.full(count, gpu), dtype, layout, dims, columns["latency_s"], power_w)


def _joined(parts: Sequence[Recording]) -> Recording:
    def col(name: str) -> Array:
        return np.concatenate([getattr(part, name) for part in parts])

    first = parts[0]
    dims = {name: np.concatenate([part.dims[name] for part in parts]) for name in first.dims}
    return Recording(
        first.recorded, first.op, col("gpu"), col("dtype"), col("layout"), dims, col("latency_s"), col("power_w")
    )


def _columns(path: Path, names: Sequence[str], condition: str = "true") -> dict[str, Array]:
    """Columns of a Parquet file, in an order that does not depend on how it is read."""
    return parquet_columns(path, f"{condition} ORDER BY ALL", ", ".join(names))
