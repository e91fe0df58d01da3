"""Describe what Triton's launcher passes to a kernel besides its arguments: tensor maps and scratch memory.

Triton chooses the tensor maps when it compiles a function. kernrec stores them in a comment at the end of the PTX, so
that the emulator needs only the PTX.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from kernrec.util.light_dataclass import dataclass

DESCRIPTOR = "tensordesc"
"""Prefix of Triton's types of tensor descriptors, such as `tensordesc<bf16[128, 64]>`."""
_MARK = "// kernrec launcher "
_SWIZZLES = (0, 32, 64, 128)
"""Width of each swizzle mode in bytes, indexed by the mode's number in the CUDA driver and in Triton."""


@dataclass(frozen=True)
class DescribedMap:
    """Tensor map that Triton's launcher creates from a tensor descriptor."""

    box: tuple[int, ...]
    """Elements along each axis that one copy moves, slowest axis first."""
    swizzle: int
    """Swizzle width in bytes, within which 16-byte pieces of shared memory are permuted."""
    packed: bool
    """Whether each element holds two 4-bit numbers, which the copy unpacks."""

    @classmethod
    def of(cls, entry: Mapping[str, Any]) -> "DescribedMap":
        return cls(tuple(entry["block_size"]), _SWIZZLES[entry["swizzle"]], bool(entry.get("fp4_padded")))


@dataclass(frozen=True)
class LauncherNeeds:
    """Arguments that Triton's launcher adds to the function's arguments."""

    scratch: int
    """Bytes of scratch memory per block."""
    maps: tuple[DescribedMap, ...]
    """Tensor maps of the function's descriptors. Empty if the architecture has no tensor maps."""


def parameters_of(kind: str, needs: LauncherNeeds | None) -> int:
    """Return the number of PTX parameters for an argument of Triton type `kind`."""
    if not kind.startswith(DESCRIPTOR):
        return 1
    rank = kind[: kind.index("]")].count(",") + 1
    return 1 + 2 * rank if needs is not None and needs.maps else 3 + 4 * rank


def with_needs(ptx: str, needs: LauncherNeeds | None) -> str:
    """Append `needs` to the PTX as a comment. Do nothing if `needs` is None."""
    return ptx if needs is None else f"{ptx}\n{_MARK}{json.dumps(asdict(needs))}\n"


def needs_of(ptx: str) -> LauncherNeeds | None:
    """Return the `LauncherNeeds` that `with_needs` added to a PTX text, or None if the text has none."""
    match = re.search(rf"^{_MARK}(.*)$", ptx, re.MULTILINE)
    if match is None:
        return None
    stored = json.loads(match[1])
    maps = (DescribedMap(tuple(entry["box"]), entry["swizzle"], entry["packed"]) for entry in stored["maps"])
    return LauncherNeeds(stored["scratch"], tuple(maps))
