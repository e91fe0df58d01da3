"""Describe what Triton's launcher passes to a kernel besides its arguments: tensor maps and scratch memory.

The launcher creates a tensor map from each tensor descriptor that the host program passes. Triton decides the form of
these maps when it compiles the function. kernrec stores that decision as a comment at the end of the PTX, so that the
PTX contains everything that the emulator needs for a launch.
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
"""Width of the swizzle in bytes, indexed by the CUDA driver's number of the swizzle mode, which Triton also uses."""


@dataclass(frozen=True)
class DescribedMap:
    """Tensor map that Triton's launcher creates from a tensor descriptor."""

    box: tuple[int, ...]
    """Number of elements along each axis that one copy moves, slowest axis first."""
    swizzle: int
    """Width in bytes of the swizzle, within which 16-byte pieces of shared memory are permuted."""
    packed: bool
    """Whether each element of the tensor holds two 4-bit numbers, which the copy pads when it unpacks them."""

    @classmethod
    def of(cls, entry: Mapping[str, Any]) -> "DescribedMap":
        """Create the map from Triton's metadata of a descriptor."""
        return cls(tuple(entry["block_size"]), _SWIZZLES[entry["swizzle"]], bool(entry.get("fp4_padded")))


@dataclass(frozen=True)
class LauncherNeeds:
    """Everything that Triton's launcher passes besides the function's own arguments."""

    scratch: int
    """Bytes of scratch memory per block."""
    maps: tuple[DescribedMap, ...]
    """Tensor maps of the function's descriptors, in order. The tuple is empty if the function has no descriptors or the
    architecture has no tensor maps."""


def parameters_of(kind: str, needs: LauncherNeeds | None) -> int:
    """Return the number of PTX parameters for an argument of Triton type `kind`. Descriptors pass several."""
    if not kind.startswith(DESCRIPTOR):
        return 1
    rank = kind[: kind.index("]")].count(",") + 1
    return 1 + 2 * rank if needs is not None and needs.maps else 3 + 4 * rank


def with_needs(ptx: str, needs: LauncherNeeds | None) -> str:
    """Append `needs` to the PTX as a comment. If `needs` is None, return the PTX unchanged."""
    return ptx if needs is None else f"{ptx}\n{_MARK}{json.dumps(asdict(needs))}\n"


def needs_of(ptx: str) -> LauncherNeeds | None:
    """Read the comment that `with_needs` appended to the PTX, or return None if there is none."""
    match = re.search(rf"^{_MARK}(.*)$", ptx, re.MULTILINE)
    if match is None:
        return None
    stored = json.loads(match[1])
    maps = (DescribedMap(tuple(entry["box"]), entry["swizzle"], entry["packed"]) for entry in stored["maps"])
    return LauncherNeeds(stored["scratch"], tuple(maps))
