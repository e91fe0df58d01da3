"""Read calls of PyTorch 2.1 in f32 that were timed one at a time: cuDNN's 3x3 convolutions, and ops over rows."""

from pathlib import Path

from library_training.table import Recording

from evidence.recordings.files import excluded, named
from evidence.recordings.vendor import DEVICES, Array, columns_of, recording
from kernrec.model.baselines.bound import Timing
from kernrec.model.baselines.recorded_set import RecordedSet

_GPU = ("device", f"{named('device', DEVICES)} AS gpu")
CALL = Timing(35000.0, 1.0, alone=True)
"""Timing of a call of PyTorch between two events. The shortest time on an A100, a T4 and a P4 is 25 us."""
CALLS = {"source": "NeuSight", "licence": "MIT"}
_OPS = {"softmax": ("softmax", "rows"), "layernorm": ("ln", "rows"), "elementwise": ("add", "elements")}
"""(recorder's name, case), keyed by op. An addition represents elementwise ops, because it moves the same bytes."""


def recordings(data: Path, op: str) -> list[Recording]:
    """Return the recorded set of convolutions or of an op over rows, as a list of one element."""
    return _convolutions(data) if op == "conv2d" else _rows(data, op)


def _convolutions(data: Path) -> list[Recording]:
    columns = columns_of(
        data / "library" / "torch_conv2d_f32.parquet", (*_GPU, "n", "c", "h", "h AS w", "k", "latency_s")
    )
    about = CALLS | {"library": "cuDNN 8.9, called by PyTorch 2.1", "recorded": "square inputs, 3x3, padding 1, nchw"}
    return [_recording("conv", "conv2d", "3x3", "cuDNN", "8.9", "nchw", columns, about)]


def _rows(data: Path, op: str) -> list[Recording]:
    recorded_as, case = _OPS[op]
    names = (*_GPU, "rows", "columns", "rows::BIGINT * columns AS n", "min(latency_s) AS latency_s")
    file = "torch_rowwise_f32"
    condition = f"op = '{recorded_as}' AND NOT ({excluded(file)}) GROUP BY ALL"
    columns = columns_of(data / "library" / f"{file}.parquet", names, condition)
    about = CALLS | {"library": "PyTorch 2.1", "recorded": f"{recorded_as} of f32 rows"}
    return [_recording("rows", op, case, "PyTorch", "2.1", "row", columns, about)]


def _recording(
    name: str, op: str, case: str, backend: str, version: str, layout: str, columns: dict[str, Array],
    about: dict[str, str],
) -> Recording:  # fmt: skip
    versions = {backend: dict.fromkeys(sorted(set(columns["gpu"].tolist())), version)}
    recorded = RecordedSet(name, op, case, versions, ("f32",), (layout,), (), 0.0, CALL, (), {}, (), about)
    return recording(recorded, columns)
