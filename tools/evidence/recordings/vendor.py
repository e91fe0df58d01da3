"""Read the recordings of backends from which `library_training.table` creates training data. The README of the shared
data folder describes the files."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from library_training.table import Recording

from evidence.recordings.files import parquet_columns
from kernrec.model.baselines.bound import features_of
from kernrec.model.baselines.recorded_set import RecordedSet

Array = np.ndarray

SERVING = {"source": "ai-dynamo/aiconfigurator", "licence": "Apache-2.0"}
SYSTEMS = {
    "a100_sxm": "a100-sxm4-80gb", "l40s": "l40s", "h100_sxm": "h100-sxm", "h200_sxm": "h200-sxm", "b200_sxm": "b200",
    "gb200": "gb200",
}  # fmt: skip
"""Catalog name of the GPU, keyed by the value of `system` in the recordings of serving backends."""
DEVICES = {
    "NVIDIA A100-PCIE-40GB": "a100-pcie-40gb", "NVIDIA A100 80GB PCIe": "a100-pcie-80gb", "Tesla T4": "t4",
    "Tesla V100-PCIE-32GB": "v100-pcie-32gb", "Tesla P100-PCIE-16GB": "p100-pcie-16gb", "Tesla P4": "p4",
}  # fmt: skip
"""Catalog name of the GPU, keyed by the value of `device` in the recordings of PyTorch."""
BACKENDS = {"VLLM": "vLLM", "SGLang": "SGLang", "SGLANG": "SGLang", "TRTLLM": "TensorRT-LLM", "PyTorch": "PyTorch"}
"""Name of the backend, keyed by the value of `framework` in the recordings."""


def recording(recorded: RecordedSet, columns: Mapping[str, Any]) -> Recording:
    """Create a recording. The columns, (N,) each or one value, are `gpu`, dimensions, `latency_s`, and `stack`,
    `dtype`, `layout` and `power_w` if they vary or are known. A missing dimension is 1."""
    first = {"stack": next(iter(recorded.backends)), "dtype": recorded.dtypes[0], "layout": recorded.layouts[0]}
    every, count = {"power_w": np.nan, **first, **columns}, len(columns["latency_s"])
    gpu, backend, dtype, layout = (np.broadcast_to(np.asarray(every[name], str), count) for name in ("gpu", *first))
    names = features_of(recorded.op).DIMS
    dims = {name: np.broadcast_to(np.asarray(every.get(name, 1)), count).astype(np.int64) for name in names}
    watts = np.broadcast_to(every["power_w"], count)
    return Recording(recorded, gpu, backend, dtype, layout, dims, every["latency_s"], watts)


def joined(parts: Sequence[Recording]) -> Recording:
    """Concatenate the rows of several recordings of one set."""
    first, dims = parts[0], {name: np.concatenate([part.dims[name] for part in parts]) for name in parts[0].dims}
    names = (name for name in vars(first) if name not in ("recorded", "dims"))
    columns: Any = {name: np.concatenate([getattr(part, name) for part in parts]) for name in names}
    return replace(first, dims=dims, **columns)


def columns_of(path: Path, names: Sequence[str], condition: str = "true") -> dict[str, Array]:
    """Return columns of a Parquet file. The rows are sorted, so their order is always the same."""
    return parquet_columns(path, f"{condition} ORDER BY ALL", ", ".join(names))


def grouped(columns: Mapping[str, Array], *names: str) -> dict[tuple[str, ...], dict[str, Array]]:
    """Return the columns of each combination of texts in the columns `names`, keyed by the combination."""
    keys = np.stack([columns[name].astype(str) for name in names], axis=1)
    kinds, number = np.unique(keys, axis=0, return_inverse=True)
    order = np.argsort(number.ravel(), kind="stable")
    parts = np.split(order, np.cumsum(np.bincount(number.ravel()))[:-1])
    return {
        tuple(kind): {name: column[rows] for name, column in columns.items()}
        for kind, rows in zip(kinds.tolist(), parts, strict=True)
    }
