"""Read recordings of backends for `library_training.table`; the readers of all ops share this module.

Each op has a reader, a module of this package whose function `recordings(data, op)` returns its recorded sets. The
README of the shared data folder describes the files.
"""

from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from library_training.table import Recording

from evidence.recordings.files import parquet_columns
from kernrec.errors import UsageError
from kernrec.gpu import find_gpu
from kernrec.model.baselines.bound import features_of
from kernrec.model.baselines.recorded_set import RecordedSet

Array = np.ndarray

OPS = ("matmul", "attention", "moe", "conv2d", "softmax", "layernorm", "elementwise")
"""Ops with a reader."""
_READERS = {"matmul": "matmul", "attention": "serving_calls", "moe": "serving_calls"}
"""Maps an op to the module that reads its recordings; `torch_calls` reads the others."""
SERVING = {"source": "ai-dynamo/aiconfigurator", "licence": "Apache-2.0"}
SYSTEMS = {
    "a100_sxm": "a100-sxm4-80gb", "l40s": "l40s", "h100_sxm": "h100-sxm", "h200_sxm": "h200-sxm", "b200_sxm": "b200",
    "gb200": "gb200",
}  # fmt: skip
"""Maps the serving recordings' `system` to a GPU."""
BACKENDS = {"VLLM": "vLLM", "SGLang": "SGLang", "SGLANG": "SGLang", "TRTLLM": "TensorRT-LLM", "PyTorch": "PyTorch"}
"""Maps the recordings' `framework` to a backend."""


def recordings(data: Path, op: str) -> list[Recording]:
    """Return the recorded sets of an op. Raises `AbsentError` if a file is missing."""
    reader: Any = import_module(f"evidence.recordings.{_READERS.get(op, 'torch_calls')}")
    return list(reader.recordings(data, op))


def catalogued(gpu: str) -> bool:
    """Return whether a GPU is in the catalog; recordings of other GPUs are left out."""
    try:
        return find_gpu(gpu).name == gpu
    except UsageError:
        return False


def recording(recorded: RecordedSet, gpu: str, columns: Mapping[str, Array], power_w: Array) -> Recording:
    """Return the rows of a GPU. `columns` has the dimensions and `latency_s`, and `backend`, `dtype` and `layout` if
    these vary."""
    count = len(power_w)
    dtype = columns.get("dtype", np.full(count, recorded.dtypes[0]))
    layout = columns.get("layout", np.full(count, recorded.layouts[0]))
    ones = np.ones(count, dtype=np.int64)
    dims = {name: np.asarray(columns.get(name, ones)).astype(np.int64) for name in features_of(recorded.op).DIMS}
    backend = columns.get("stack", np.full(count, next(iter(recorded.backends))))
    return Recording(recorded, np.full(count, gpu), backend, dtype, layout, dims, columns["latency_s"], power_w)


def joined(parts: Sequence[Recording]) -> Recording:
    """Join the rows of all parts of one set."""

    def col(name: str) -> Array:
        return np.concatenate([getattr(part, name) for part in parts])

    first = parts[0]
    dims = {name: np.concatenate([part.dims[name] for part in parts]) for name in first.dims}
    return Recording(
        first.recorded, col("gpu"), col("backend"), col("dtype"), col("layout"), dims, col("latency_s"), col("power_w")
    )


def columns_of(path: Path, names: Sequence[str], condition: str = "true") -> dict[str, Array]:
    """Return columns of a Parquet file, in an order that does not depend on how the file is read."""
    return parquet_columns(path, f"{condition} ORDER BY ALL", ", ".join(names))
