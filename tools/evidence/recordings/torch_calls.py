"""Read calls of PyTorch 2.1 in f32 that were timed one at a time: cuDNN's 3x3 convolutions, and ops over rows."""

from pathlib import Path

import numpy as np
from library_training.table import Recording

from evidence.recordings.files import excluded
from evidence.recordings.vendor import DEVICES, columns_of, recording
from kernrec.model.baselines.bound import Timing
from kernrec.model.baselines.recorded_set import RecordedSet

Array = np.ndarray

CALL = Timing(35000.0, 1.0, alone=True)
"""Timing of a call of PyTorch between two events. The shortest time on an A100, a T4 and a P4 is 25 us."""
CALLS = {"source": "NeuSight", "licence": "MIT"}
_OPS = {"softmax": ("softmax", "rows"), "layernorm": ("ln", "rows"), "elementwise": ("add", "elements")}
"""(recorder's name, case), keyed by op. An addition represents elementwise ops, because it moves the same bytes."""


def recordings(data: Path, op: str) -> list[Recording]:
    """Return the recorded set of convolutions or of an op over rows, as a list of one element."""
    return _convolutions(data) if op == "conv2d" else _rows(data, op)


def _convolutions(data: Path) -> list[Recording]:
    names = ("device", "n", "c", "h", "k", "latency_s")
    columns, gpu = _with_gpus(columns_of(data / "library" / "torch_conv2d_f32.parquet", names))
    about = CALLS | {"library": "cuDNN 8.9, called by PyTorch 2.1", "recorded": "square inputs, 3x3, padding 1, nchw"}
    versions = {"cuDNN": dict.fromkeys(sorted(set(gpu.tolist())), "8.9")}
    recorded = RecordedSet(
        "conv", "conv2d", "3x3", versions, ("f32",), ("nchw",), (), 0.0,
        CALL, (), {}, (), about,
    )  # fmt: skip
    return [recording(recorded, gpu, columns | {"w": columns["h"]})]


def _rows(data: Path, op: str) -> list[Recording]:
    recorded_as, case = _OPS[op]
    names = ("device", "rows", "columns", "min(latency_s) AS latency_s")
    file = "torch_rowwise_f32"
    condition = f"op = '{recorded_as}' AND NOT ({excluded(file)}) GROUP BY ALL"
    columns, gpu = _with_gpus(columns_of(data / "library" / f"{file}.parquet", names, condition))
    columns["n"] = columns["rows"].astype(np.int64) * columns["columns"]
    about = CALLS | {"library": "PyTorch 2.1", "recorded": f"{recorded_as} of f32 rows"}
    recorded = RecordedSet(
        "rows", op, case, {"PyTorch": dict.fromkeys(sorted(set(gpu.tolist())), "2.1")}, ("f32",), ("row",), (), 0.0,
        CALL, (), {}, (), about,
    )  # fmt: skip
    return [recording(recorded, gpu, columns)]


def _with_gpus(columns: dict[str, Array]) -> tuple[dict[str, Array], Array]:
    return columns, np.array([DEVICES[str(device)] for device in columns["device"]])
