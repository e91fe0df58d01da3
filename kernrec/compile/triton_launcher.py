"""Describe what Triton's launcher adds to a launch: tensor maps of host descriptors, and scratch memory.

Triton decides how a descriptor becomes a tensor map when it compiles the function. kernrec stores this as a comment at
the end of the PTX, so that the PTX holds everything a launch in the emulator needs.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from kernrec.util.light_dataclass import dataclass

DESCRIPTOR = "tensordesc"
"""Prefix of Triton's type of a tensor descriptor, such as `tensordesc<bf16[128, 64]>`."""
_MARK = "// kernrec launcher "
_SWIZZLES = (0, 32, 64, 128)
"""Swizzle span in bytes, by the driver's number, which Triton uses."""


@dataclass(frozen=True)
class DescribedMap:
    """Tensor map that Triton's launcher creates from a descriptor."""

    box: tuple[int, ...]
    """Elements that one copy moves, slowest axis first."""
    swizzle: int
    """Span in bytes in which 16-byte pieces of shared memory are permuted."""
    packed: bool
    """Whether the map's elements are padded 4-bit numbers, two per element of the tensor."""

    @classmethod
    def of(cls, entry: Mapping[str, Any]) -> "DescribedMap":
        """Read Triton's metadata of a descriptor."""
        return cls(tuple(entry["block_size"]), _SWIZZLES[entry["swizzle"]], bool(entry.get("fp4_padded")))


@dataclass(frozen=True)
class LauncherNeeds:
    """Everything that Triton's launcher passes besides the function's own arguments."""

    scratch: int
    """Bytes of scratch memory per block."""
    maps: tuple[DescribedMap, ...]
    """Maps of the descriptors in order; empty without descriptors, or if the architecture has no tensor maps."""


def parameters_of(kind: str, needs: LauncherNeeds | None) -> int:
    """Return the number of PTX parameters for an argument type; a descriptor also passes shape and strides."""
    if not kind.startswith(DESCRIPTOR):
        return 1
    rank = kind[: kind.index("]")].count(",") + 1
    return 1 + 2 * rank if needs is not None and needs.maps else 3 + 4 * rank


def with_needs(ptx: str, needs: LauncherNeeds | None) -> str:
    """Append the comment to the PTX."""
    return ptx if needs is None else f"{ptx}\n{_MARK}{json.dumps(asdict(needs))}\n"


def needs_of(ptx: str) -> LauncherNeeds | None:
    """Read the comment of a PTX text; None if there is none."""
    match = re.search(rf"^{_MARK}(.*)$", ptx, re.MULTILINE)
    if match is None:
        return None
    stored = json.loads(match[1])
    maps = (DescribedMap(tuple(entry["box"]), entry["swizzle"], entry["packed"]) for entry in stored["maps"])
    return LauncherNeeds(stored["scratch"], tuple(maps))
