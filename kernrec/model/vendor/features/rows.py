"""Bound and features of PyTorch's memory-bound operators in f32: DRAM, L2 and the host's call."""

from collections.abc import Callable, Mapping

import numpy as np

from kernrec.model.vendor.bound import Bound, Card, bound_of

Array = np.ndarray

DIMS = ("rows", "columns")
MOST_COLUMNS = 16384
"""Maximum number of columns. Recordings have up to 4,100; blocks read far longer rows repeatedly."""
CASES: Mapping[str, Callable[[Mapping[str, int]], bool]] = {"rows": lambda d: d["columns"] <= MOST_COLUMNS}
"""Predicates on the dimensions of a problem, by name of a recorded case."""
_DRAM_SHARE = 0.8
"""Fraction of the data sheet's bandwidth that large tensors reach. Recordings of five GPUs show 0.7 to 0.9."""
_ROW_CLK = 2500.0
"""Clocks of a row in a block: loads, one or two reductions, and the store, one after the other."""
_BLOCKS = 8
"""Number of blocks that share an SM; each processes one row at a time."""


def rows_bound(
    card: Card, dims: tuple[str, ...], sizes: Array, rows: Array, columns: Array, tensors: int, call_s: float
) -> Bound:
    """Return the bound of an operator over rows.

    Args:
        card: The GPU.
        dims, sizes: Dimensions of the operator, (D,) and (D, N).
        rows: Independent rows, (N,).
        columns: Elements of a row, (N,).
        tensors: Number of full-size tensors that are read and written.
        call_s: Seconds of a call that moves almost nothing, with the recorder's timing.
    """
    gpu, count = card.gpu, len(rows)
    moved = tensors * card.element_bytes * rows * columns
    resident = np.clip(2.0 - moved / gpu.l2_bytes, 0.0, 1.0)
    memory_s = np.maximum((1 - resident) * moved / (gpu.memory_bandwidth * _DRAM_SHARE), moved / card.l2)
    waves = rows / (_BLOCKS * gpu.sms)
    rows_s = card.seconds(_ROW_CLK) * np.maximum(waves, 0.1)
    work_s = (memory_s**2 + rows_s**2) ** 0.5
    total_s = (call_s**4 + work_s**4) ** 0.25
    parts = card.parts(np.zeros(count), moved) | {"launch": np.full(count, call_s), "math": np.zeros(count)}
    shares = {"memory": memory_s, "rows": rows_s, "launch": parts["launch"], "dram": parts["dram"], "l2": parts["l2"]}
    features = {
        "l2.moved": np.log2(moved / gpu.l2_bytes),
        "waves": np.log2(waves),
        "full": waves / np.ceil(waves),
        "shape.columns": np.log2(columns),
        "aligned.columns": np.log2(np.gcd(columns.astype(np.int64), 64)),
        "shape.rest of columns": columns % 1024,
    }
    return bound_of(card, dims, sizes, total_s, parts, shares, features, work_s)
