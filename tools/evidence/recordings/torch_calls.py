"""Read calls of PyTorch 2.1 in f32 that were timed one at a time: cuDNN's 3x3 convolutions, and ops over rows."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from library_training.table import Recording

from evidence.recordings.files import excluded
from evidence.recordings.vendor import catalogued, columns_of
from kernrec.model.baselines.bound import Timing, features_of
from kernrec.model.baselines.recorded_set import RecordedSet

Array = np.ndarray

CALL = Timing(35000.0, 1.0, alone=True)
"""Timing of a call of PyTorch between two events. The shortest time on an A100, a T4 and a P4 is 25 us."""
CALLS = {"source": "NeuSight", "licence": "MIT"}
_CARDS = {
    "NVIDIA A100-PCIE-40GB": "a100-pcie-40gb", "NVIDIA A100 80GB PCIe": "a100-pcie-80gb", "Tesla T4": "t4",
    "Tesla V100-PCIE-32GB": "v100-pcie-32gb", "Tesla P100-PCIE-16GB": "p100-pcie-16gb", "Tesla P4": "p4",
}  # fmt: skip
_OPS = {"softmax": ("softmax", "rows"), "layernorm": ("ln", "rows"), "elementwise": ("add", "elements")}
"""(recorder's name, case), keyed by op. An addition represents elementwise ops, because it moves the same bytes."""


def gpus_of(columns: Mapping[str, Array]) -> tuple[dict[str, Array], Array]:
    """Return the rows of GPUs in the catalog, and the catalog name of each row's GPU."""
    gpu = np.array([_CARDS[str(device)] for device in columns["device"]])
    rows = np.isin(gpu, [name for name in _CARDS.values() if catalogued(name)])
    return {name: column[rows] for name, column in columns.items()}, gpu[rows]


def recordings(data: Path, op: str) -> list[Recording]:
    """Return the recorded set of convolutions or of an op over rows, as a list of one element."""
    return _convolutions(data) if op == "conv2d" else _rows(data, op)


def _convolutions(data: Path) -> list[Recording]:
    names = ("device", "n", "c", "h", "k", "latency_s")
    columns, gpu = gpus_of(columns_of(data / "library" / "torch_conv2d_f32.parquet", names))
    about = CALLS | {"library": "cuDNN 8.9, called by PyTorch 2.1", "recorded": "square inputs, 3x3, padding 1, nchw"}
    versions = {"cuDNN": dict.fromkeys(sorted(set(gpu.tolist())), "8.9")}
    recorded = RecordedSet(
        "conv", "conv2d", "3x3", versions, ("f32",), ("nchw",), (), 0.0,
        CALL, (), {}, (), about,
    )  # fmt: skip
    dims = {name: columns[name].astype(np.int64) for name in "nchk"} | {"w": columns["h"].astype(np.int64)}
    return [_recording(recorded, gpu, "cuDNN", "nchw", dims, columns["latency_s"])]


def _rows(data: Path, op: str) -> list[Recording]:
    recorded_as, case = _OPS[op]
    names = ("device", "rows", "columns", "min(latency_s) AS latency_s")
    file = "torch_rowwise_f32"
    condition = f"op = '{recorded_as}' AND NOT ({excluded(file)}) GROUP BY ALL"
    columns, gpu = gpus_of(columns_of(data / "library" / f"{file}.parquet", names, condition))
    columns["n"] = columns["rows"].astype(np.int64) * columns["columns"]
    about = CALLS | {"library": "PyTorch 2.1", "recorded": f"{recorded_as} of f32 rows"}
    recorded = RecordedSet(
        "rows", op, case, {"PyTorch": dict.fromkeys(sorted(set(gpu.tolist())), "2.1")}, ("f32",), ("row",), (), 0.0,
        CALL, (), {}, (), about,
    )  # fmt: skip
    dims = {name: columns[name].astype(np.int64) for name in features_of(op).DIMS}
    return [_recording(recorded, gpu, "PyTorch", "row", dims, columns["latency_s"])]


def _recording(
    recorded: RecordedSet, gpu: Array, backend: str, layout: str, dims: Mapping[str, Array], latency_s: Array
) -> Recording:
    count = len(gpu)
    backends, dtypes, layouts = (np.full(count, word) for word in (backend, "f32", layout))
    return Recording(recorded, gpu, backends, dtypes, layouts, dims, latency_s, np.full(count, np.nan))
