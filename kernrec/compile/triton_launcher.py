"""The part of a launch that Triton's launcher makes: tensor maps of the host's descriptors, and scratch memory.

How a descriptor becomes a tensor map is known once the function is compiled. It is kept as a comment at the end of the
PTX, which so says all that a launch in the emulator needs.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from kernrec.util.light_dataclass import dataclass

DESCRIPTOR = "tensordesc"
"""The beginning of Triton's type of a tensor descriptor, `tensordesc<bf16[128, 64]>`."""
_MARK = "// kernrec launcher "
_SWIZZLES = (0, 32, 64, 128)
"""Bytes by Triton's number, which is the driver's."""


@dataclass(frozen=True)
class DescribedMap:
    """The tensor map that Triton's launcher makes of a descriptor."""

    box: tuple[int, ...]
    """Elements that a copy moves, the slowest axis first."""
    swizzle: int
    """Bytes in which pieces of shared memory change places."""
    packed: bool
    """Whether an element of the map is half of one of the tensor, 4 bits that are padded."""

    @classmethod
    def of(cls, entry: Mapping[str, Any]) -> "DescribedMap":
        """From Triton's metadata of a descriptor."""
        return cls(tuple(entry["block_size"]), _SWIZZLES[entry["swizzle"]], bool(entry.get("fp4_padded")))


@dataclass(frozen=True)
class LauncherNeeds:
    """All that a launch gives beside the function's own arguments."""

    scratch: int
    """Bytes of scratch memory of each block."""
    maps: tuple[DescribedMap, ...]
    """Of the descriptors in their order; none where the architecture has no tensor maps, or there is no descriptor."""


def parameters_of(kind: str, needs: LauncherNeeds | None) -> int:
    """How many parameters of the PTX an argument of a type takes: a descriptor takes its shape and strides along."""
    if not kind.startswith(DESCRIPTOR):
        return 1
    rank = kind[: kind.index("]")].count(",") + 1
    return 1 + 2 * rank if needs is not None and needs.maps else 3 + 4 * rank


def with_needs(ptx: str, needs: LauncherNeeds | None) -> str:
    """PTX with the comment."""
    return ptx if needs is None else f"{ptx}\n{_MARK}{json.dumps(asdict(needs))}\n"


def needs_of(ptx: str) -> LauncherNeeds | None:
    """The comment of some PTX; None without one."""
    match = re.search(rf"^{_MARK}(.*)$", ptx, re.MULTILINE)
    if match is None:
        return None
    stored = json.loads(match[1])
    maps = (DescribedMap(tuple(entry["box"]), entry["swizzle"], entry["packed"]) for entry in stored["maps"])
    return LauncherNeeds(stored["scratch"], tuple(maps))
