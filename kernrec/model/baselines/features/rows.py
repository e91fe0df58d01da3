"""Lower bound and features of PyTorch's memory-bound operators in f32: DRAM, L2, and the host's time for a call."""

from collections.abc import Callable, Mapping

import numpy as np

from kernrec.model.baselines.bound import Bound, Device, bound_of
from kernrec.util.light_dataclass import dataclass

Array = np.ndarray

MOST_COLUMNS = 16384
"""Maximum number of columns. Recordings have up to 4,100. The model assumes that a block reads each row only once."""
_ELEMENTS = 1024
"""Number of elements per thread block of an elementwise operator."""
_DRAM_SHARE = 0.8
"""Fraction of the data sheet's bandwidth that large tensors reach. In the recordings of five GPUs, it is 0.7 to 0.9."""
_ROW_CLK = 2500.0
"""Clocks that a block takes for a row: loads, one or two reductions and the store run one after the other."""
_BLOCKS = 8
"""Number of blocks that run on an SM at the same time. Each block processes one row at a time."""


@dataclass(frozen=True)
class RowOp:
    """Operator over independent rows."""

    DIMS: tuple[str, ...]
    CASES: Mapping[str, Callable[[Mapping[str, int]], bool]]
    tensors: int
    """Number of tensors that are read or written."""
    call_s: float
    """Seconds of a call that moves almost no data."""

    def bound(self, device: Device, sizes: Array, layout: str) -> Bound:
        if len(sizes) == 1:
            rows, columns = np.ceil(sizes[0] / _ELEMENTS), np.minimum(sizes[0], _ELEMENTS)
        else:
            rows, columns = sizes
        gpu, count = device.gpu, len(rows)
        moved = self.tensors * device.element_bytes * rows * columns
        resident = np.clip(2.0 - moved / gpu.l2_bytes, 0.0, 1.0)
        memory_s = np.maximum((1 - resident) * moved / (gpu.memory_bandwidth * _DRAM_SHARE), moved / device.l2)
        waves = rows / (_BLOCKS * gpu.sms)
        rows_s = device.seconds(_ROW_CLK) * np.maximum(waves, 0.1)
        work_s = (memory_s**2 + rows_s**2) ** 0.5
        total_s = (self.call_s**4 + work_s**4) ** 0.25
        parts = device.parts(np.zeros(count), moved)
        parts |= {"launch": np.full(count, self.call_s), "math": np.zeros(count)}
        shares = {"memory": memory_s, "rows": rows_s} | {name: parts[name] for name in ("launch", "dram", "l2")}
        features = {
            "l2.moved": np.log2(moved / gpu.l2_bytes),
            "waves": np.log2(waves),
            "full": waves / np.ceil(waves),
            "shape.columns": np.log2(columns),
            "aligned.columns": np.log2(np.gcd(columns.astype(np.int64), 64)),
            "shape.rest of columns": columns % 1024,
        }
        return bound_of(device, self.DIMS, sizes, total_s, parts, shares, features, work_s)


_ROWS = ("rows", "columns"), {"rows": lambda d: d["columns"] <= MOST_COLUMNS}
OPS = {
    "elementwise": RowOp(("n",), {"elements": lambda d: True}, 3, 26e-6),  # The op reads two tensors and writes one.
    "layernorm": RowOp(*_ROWS, 2, 46e-6),
    "softmax": RowOp(*_ROWS, 2, 33e-6),
}
