"""The memories a kernel sees, as flat arrays of bytes: global buffers, shared, local, constant and parameter space."""

import numpy as np

from kernrec.ptx.state.batch import Lanes
from kernrec.ptx.state.launch_layout import BUFFER_SHIFT, LaunchLayout
from kernrec.ptx.state.types import Array

POISON = 0xFF
"""Every byte of unwritten shared and local memory: NaN as a float, -1 as an integer."""


class Region:
    """A flat memory with typed views; a NumPy array that is not writeable makes a read-only buffer."""

    __slots__ = ("base", "bytes", "copies", "name", "size", "space", "views", "writable")

    def __init__(
        self, name: str, space: str, data: Array, size: int, *, base: int = 0, copies: Array | None = None
    ) -> None:
        """A region of `size` bytes at address `base`; `copies`: where in `data` each lane's own copy begins."""
        self.name = name
        self.space = space
        self.base = base
        self.bytes = data
        self.size = size
        self.copies = copies
        self.writable = bool(data.flags.writeable) and space not in ("const", "param")
        self.views: dict[int, Array] = {
            unit: data[: len(data) // unit * unit].view(f"u{unit}") for unit in (1, 2, 4, 8)
        }


def global_buffers(layout: LaunchLayout) -> list[Region]:
    """The buffers of a launch, in order."""
    return [
        Region(name, "global", data, len(data), base=(i + 1) << BUFFER_SHIFT)
        for i, (name, data) in enumerate(layout.buffers.items())
    ]


def private_spaces(lanes: Lanes, layout: LaunchLayout) -> dict[str, Region]:
    """The memories that are not global, by state space."""
    shape = lanes.shape
    shared = -(-layout.shared_bytes // 16) * 16
    data = np.full(shared * shape.blocks, POISON, np.uint8)
    return {
        "shared": Region("shared memory", "shared", data, layout.shared_bytes, copies=shape.block_of * shared),
        "local": _per_thread("local memory", "local", layout.local_bytes, lanes),
        "argument": _per_thread("arguments of calls", "argument", layout.argument_bytes, lanes),
        "const": Region("constant memory", "const", _padded(layout.constants), len(layout.constants)),
        "param": Region("parameters", "param", _padded(layout.parameters), len(layout.parameters)),
    }


def _per_thread(name: str, space: str, size: int, lanes: Lanes) -> Region:
    """Memory of which every thread has `size` bytes of its own."""
    stride = -(-size // 16) * 16
    data = np.full(stride * lanes.shape.lanes, POISON, np.uint8)
    return Region(name, space, data, size, copies=lanes.shape.numbers * stride)


def _padded(data: bytes) -> Array:
    return np.frombuffer(data.ljust(-(-len(data) // 8) * 8, b"\0"), np.uint8).copy()
