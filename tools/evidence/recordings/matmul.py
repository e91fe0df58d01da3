"""Recorded products: serving stacks in CUDA graphs (`library/gemm_*`), and cuBLAS beside Inductor's Triton template
(`triton/*`, `extern_mm`). Power of the H200's products leaves out what `misread` finds."""

from pathlib import Path

import numpy as np

from evidence.vendor_recordings import SERVING, columns_of, joined, on_cards, recording
from kernrec.model.vendor.bound import FLUSHED, GRAPH
from kernrec.model.vendor.model import RecordedSet
from kernrec.training.train_vendor_model import Recording
from tests.helpers.power_recordings import misread

Array = np.ndarray

_ALIKE = 0.11
"""Of products that Inductor's recordings have in several layouts, 90 % take within exp(0.11) of the time in layout nt
on the A100, exp(0.07) on the H100; the medians are 2.0 and 1.3 %. That f16 runs as fast as bf16 follows from the rates
of the tensor cores; for attention the figure is assumed."""
_GEMM = (("gemm_a100", "a100-sxm4-80gb"), ("gemm_l40s", "l40s"), ("gemm_h200_power", "h200-sxm"))

LINEAR = RecordedSet(
    "linear", "matmul", "product", on_cards("PyTorch", "a100-sxm4-80gb", "l40s", "h200-sxm"), ("bf16",),
    ("nt",), ("f16", "nn", "tn", "tt"), _ALIKE, GRAPH, ("n", "k"), {},
    SERVING | {
        "library": "as called by SGLang 0.5.10 (A100), PyTorch (L40S) and vLLM 0.22 (H200)",
        "recorded": "bf16, layout nt, CUDA graphs, random inputs",
    },
)  # fmt: skip
INDUCTOR = RecordedSet(
    "inductor", "matmul", "product", on_cards("PyTorch", "a100-sxm4-80gb", "h100-sxm-96gb"),
    ("f16", "bf16", "f32", "tf32"), ("nn", "nt", "tn", "tt"), (), 0.0, FLUSHED, (), {},
    {
        "source": "AlnisM/autoheuristic-datasets, collected for PyTorch's AutoHeuristic",
        "licence": "none stated",
        "library": "as called by PyTorch of August 2024",
        "recorded": "single launches after a flush of L2, on cards whose clocks and limits were not stated",
    },
)  # fmt: skip


def recordings(data: Path) -> list[Recording]:
    """The recorded sets of products."""
    return [_linear(data), _inductor(data)]


def h200_power(data: Path) -> tuple[Array, Array]:
    """(recorded power of the H200's products, whether it was misread), in the order of the linear set's rows."""
    columns = columns_of(data / "library" / "gemm_h200_power.parquet", ("m", "latency_s", "power"))
    return columns["power"], misread(columns["m"], columns["latency_s"])


def _linear(data: Path) -> Recording:
    parts = []
    for file, gpu in _GEMM:
        powered = ("power",) if gpu == "h200-sxm" else ()
        columns = columns_of(data / "library" / f"{file}.parquet", ("m", "n", "k", "latency_s", *powered))
        power_w = np.full(len(columns["m"]), np.nan)
        if powered:
            power_w = np.where(misread(columns["m"], columns["latency_s"]), np.nan, columns["power"])
        parts.append(recording(LINEAR, gpu, columns, power_w))
    return joined(parts)


def _inductor(data: Path) -> Recording:
    names = ("m", "n", "k", "dtype", "tf32", "a_stride_1", "b_stride_1", "latency_s")
    spelled = {"float16": "f16", "bfloat16": "bf16", "float32": "f32"}
    parts = []
    # The A100 reaches 1,735 GB/s, more than the 40 GB card has.
    for file, gpu in (("a100", "a100-sxm4-80gb"), ("h100", "h100-sxm-96gb")):
        path = data / "triton" / f"inductor_mm_{file}.parquet"
        columns = columns_of(path, names, "implementation = 'extern_mm'")
        dtypes = [spelled[str(name)] for name in columns["dtype"]]
        columns["dtype"] = np.array(["tf32" if t else name for name, t in zip(dtypes, columns["tf32"], strict=True)])
        letters = [np.where(columns[f"{side}_stride_1"] == 1, "n", "t") for side in "ab"]
        columns["layout"] = np.char.add(*letters)
        parts.append(recording(INDUCTOR, gpu, columns, np.full(len(columns["m"]), np.nan)))
    return joined(parts)
