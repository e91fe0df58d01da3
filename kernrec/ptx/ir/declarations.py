"""Parse declarations of variables (PTX ISA, section 5)."""

import re
import struct

from kernrec.ptx.ir.operand import REGISTER_TYPES, size_of
from kernrec.ptx.ir.program import Variable

INTEGER = re.compile(r"[+-]?(0[xX][0-9a-fA-F]+|0[bB][01]+|\d+)[uU]?$")
_OCTAL = re.compile(r"[+-]?0[0-7]+")

OPAQUE_TYPES = frozenset({"texref", "samplerref", "surfref"})
"""Types of variables for textures, samplers and surfaces (PTX ISA, section 5.3)."""

MOST_BYTES = {"shared": 1 << 18, "local": 1 << 19, "const": 1 << 20, "param": 1 << 15, "global": 1 << 30}
"""Maximum size of a variable in bytes, keyed by state space.

The limits are from the CUDA C++ Programming Guide and the PTX ISA, section 5.1.6. kernrec chose the limits for `const`
and `global`.
"""

MOST_REGISTERS = 1 << 18
"""Maximum number of registers of a function. The emulator allocates memory for each register."""

_MOST_ALIGN = 1024
_VARIABLE = re.compile(
    r"(?P<linkage>(?:\.(?:visible|extern|weak|common)\s+)*)\.(?P<space>global|const|shared|local|param)\s+"
    r"(?P<attributes>(?:\.(?:align\s+\d+|attribute\([^)]*\)|v[24])\s*)*)"
    r"\.(?P<type>[a-z]\w*)\s+(?P<ptr>(?:\.ptr\b(?:\s*\.(?:global|const|shared|local|align\s+\d+))*\s*)?)"
    r"(?P<name>[%$\w]+)\s*(?P<dims>(?:\[[^\]]*\]\s*)*)(?:=\s*(?P<init>.*))?$",
    re.DOTALL,
)


def integer(text: str) -> int:
    text = text.rstrip("uU")
    return int(text, 8 if _OCTAL.fullmatch(text) else 0)


def read_variable(text: str) -> Variable:
    """Parse a declaration such as `.shared .align 4 .b8 tile[512]`. Raise `ValueError` if it is invalid."""
    match = _VARIABLE.match(text.strip())
    if match is None:
        raise ValueError(f"cannot read the declaration {' '.join(text.split())[:60]!r}")
    kind, attributes = match["type"], match["attributes"]
    if kind not in REGISTER_TYPES and kind not in OPAQUE_TYPES:
        raise ValueError(f".{kind} is not a variable type")
    element = size_of(kind)
    aligned = re.search(r"\.align\s+(\d+)", attributes)
    count = 1
    unsized = False
    for dim in re.findall(r"\[([^\]]*)\]", match["dims"]):
        if dim.strip():
            count *= integer(dim.strip())
        else:
            unsized = True
    if wide := re.search(r"\.v([24])", attributes):
        count *= int(wide[1])
    # Ignore the initial modes of a sampler, because the launch sets the modes.
    init = None if kind in OPAQUE_TYPES else match["init"]
    data, pointers = _initial_value(init, kind, element)
    if unsized:
        count = len(data) // element if data else 0
    size = count * element
    align = int(aligned[1]) if aligned else element
    if not 0 <= size <= MOST_BYTES[match["space"]] or align > _MOST_ALIGN or align & (align - 1) or not align:
        raise ValueError(
            f"{match['name']} has {size} bytes aligned to {align}: .{match['space']} variables have at most"
            f" {MOST_BYTES[match['space']]}, aligned to a power of two up to {_MOST_ALIGN}"
        )
    if data is not None:
        data = data.ljust(size, b"\0")
    return Variable(match["name"], match["space"], kind, align, size, data, ".extern" in match["linkage"], pointers)


def _initial_value(text: str | None, kind: str, element: int) -> tuple[bytes | None, tuple[tuple[int, str, int], ...]]:
    """Return the initial bytes of a variable, and (byte offset, symbol, offset from the symbol) of each address."""
    if text is None:
        return None, ()
    data, pointers = bytearray(), []
    for item in text.replace("{", " ").replace("}", " ").split(","):
        item = item.strip()
        if not item:
            continue
        named = re.match(r"(?:generic\(\s*)?([A-Za-z_$%][\w$]*)\s*\)?\s*(?:\+\s*(\d+))?$", item)
        if named:
            pointers.append((len(data), named[1], int(named[2] or 0)))
            data += bytes(element)
        elif re.match(r"0[fFdD][0-9a-fA-F]{8,16}$", item):
            bits = int(item[2:], 16)
            if bits >> 8 * element:
                raise ValueError(f"the initial value {item} does not fit .{kind}")
            data += bits.to_bytes(element, "little")
        elif kind[0] == "f" and not INTEGER.match(item):
            try:
                data += struct.pack({2: "<e", 4: "<f", 8: "<d"}[element], float(item))
            except (OverflowError, ValueError):
                raise ValueError(f"the initial value {item} does not fit .{kind}") from None
        else:
            data += (integer(item) & ((1 << 8 * element) - 1)).to_bytes(element, "little")
    return bytes(data), tuple(pointers)
