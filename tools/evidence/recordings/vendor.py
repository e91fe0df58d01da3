"""Read the recordings of backends from which `library_training.table` creates training data.

Each op has a reader: a module in this package whose function `recordings(data, op)` returns the recorded sets. All
readers use the functions of this module. The README of the shared data folder describes the files.
"""

from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from library_training.table import Recording

from evidence.recordings.files import parquet_columns
from kernrec.model.baselines.bound import features_of
from kernrec.model.baselines.recorded_set import RecordedSet

Array = np.ndarray

OPS = ("matmul", "attention", "moe", "conv2d", "softmax", "layernorm", "elementwise")
"""Ops that have a reader."""
_READERS = {"matmul": "matmul", "attention": "serving_calls", "moe": "serving_calls"}
"""Module that reads the recordings of an op. `torch_calls` reads all other ops."""
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


def recordings(data: Path, op: str) -> list[Recording]:
    """Return the recorded sets of an op. Raises `AbsentError` if a file is missing."""
    reader: Any = import_module(f"evidence.recordings.{_READERS.get(op, 'torch_calls')}")
    return list(reader.recordings(data, op))


def recording(
    recorded: RecordedSet, gpu: str | Array, columns: Mapping[str, Array], power_w: Array | None = None
) -> Recording:
    """Create a recording. The columns, (N,) each, are dimensions and `latency_s`, and `stack`, `dtype` and `layout` if
    they vary. `gpu` may also vary. `power_w` is NaN for rows without recorded power, or None if there is none."""
    count = len(columns["latency_s"])
    dtype = columns.get("dtype", np.full(count, recorded.dtypes[0]))
    layout = columns.get("layout", np.full(count, recorded.layouts[0]))
    ones = np.ones(count, dtype=np.int64)
    dims = {name: np.asarray(columns.get(name, ones)).astype(np.int64) for name in features_of(recorded.op).DIMS}
    backend = columns.get("stack", np.full(count, next(iter(recorded.backends))))
    gpus, powers = (np.full(count, value) for value in (gpu, np.nan if power_w is None else power_w))
    return Recording(recorded, gpus, backend, dtype, layout, dims, columns["latency_s"], powers)


def joined(parts: Sequence[Recording]) -> Recording:
    """Concatenate the rows of several recordings of one set."""

    def col(name: str) -> Array:
        return np.concatenate([getattr(part, name) for part in parts])

    first = parts[0]
    dims = {name: np.concatenate([part.dims[name] for part in parts]) for name in first.dims}
    return Recording(
        first.recorded, col("gpu"), col("backend"), col("dtype"), col("layout"), dims, col("latency_s"), col("power_w")
    )


def columns_of(path: Path, names: Sequence[str], condition: str = "true") -> dict[str, Array]:
    """Return columns of a Parquet file. The rows are sorted, so their order is always the same."""
    return parquet_columns(path, f"{condition} ORDER BY ALL", ", ".join(names))
