"""Instruction descriptors of `tcgen05.mma`: 32 bits that say shape and types of a multiplication.

PTX ISA, section "Instruction descriptor": sparsity in bits 0-2, saturation in 3, type of D in 4-5 (block-scaled: number
of the scale factor of B), type of A in 7-9, of B in 10-12, negation of A and B in 13 and 14, whether A and B are
MN-major in 15 and 16, N / 8 in 17-22, type of the scale factors in 23, M / 16 in 24-28, number of the scale factor of A
in 29-30, and more of K in 31.
"""

from functools import lru_cache
from typing import NamedTuple

from kernrec.ptx.state.matrix_descriptors import DescriptorError

_NARROW = {0: "e4m3", 1: "e5m2", 3: "e2m3", 4: "e3m2", 5: "e2m1"}
_TYPES = {
    "f16": {0: "f16", 1: "bf16"}, "tf32": {2: "tf32"}, "f8f6f4": _NARROW, "i8": {0: "u8", 1: "s8"},
    "mxf8f6f4": _NARROW, "mxf4": {1: "e2m1"}, "mxf4nvf4": {1: "e2m1"},
}  # fmt: skip
_RESULTS = {"f16": {0: "f16", 1: "f32"}, "tf32": {1: "f32"}, "f8f6f4": {0: "f16", 1: "f32"}, "i8": {2: "s32"}}
_SCALED = ("mxf8f6f4", "mxf4", "mxf4nvf4")


class ScaleFactors(NamedTuple):
    """Scale factors of a block-scaled multiplication."""

    type: str
    first: tuple[int, int]
    """Byte of a column that holds the first of A, and of B."""


class InstructionDescriptor(NamedTuple):
    """Extents and PTX types of a `tcgen05.mma`."""

    m: int
    """Rows of A and D."""

    n: int
    """Columns of B and D."""

    a: str
    b: str
    d: str
    mn_major: tuple[bool, bool]
    """Whether A and B are MN-major."""

    sign: int
    """1, or -1 where the products are subtracted."""

    saturates: bool
    scales: ScaleFactors | None


@lru_cache(256)
def instruction_descriptor(bits: int, kind: str, ctas: int) -> InstructionDescriptor:
    """The descriptor for a kind of `tcgen05.mma` of one thread block or a pair.

    Raises:
        DescriptorError: a reserved bit is set, or a type or shape that the kind does not have.
    """

    def field(low: int, count: int) -> int:
        return bits >> low & (1 << count) - 1

    def error(what: str) -> DescriptorError:
        return DescriptorError(f"instruction descriptor 0x{bits:08x} of .kind::{kind} {what}")

    scaled = kind in _SCALED
    reserved = ((3, 1), (6, 1)) if scaled else ((6, 1), (23, 1), (29, 1))
    if any(field(low, count) for low, count in reserved):
        raise error("has a reserved bit")
    if field(0, 3):
        raise error("asks for a sparse matrix A, which the emulator does not support")
    if field(31, 1) or (not scaled and field(30, 1)):
        raise error("asks for more along K, or for a shift, which the emulator does not support")
    types = _TYPES[kind]
    results = {0: "f32", 1: "f32", 2: "f32", 3: "f32"} if scaled else _RESULTS[kind]
    d, a, b = field(4, 2), field(7, 3), field(10, 3)
    if a not in types or b not in types or d not in results:
        raise error(f"has types {a}, {b} and {d} of A, B and D, which do not exist")
    m, n = field(24, 5) << 4, field(17, 6) << 3
    steps = {64 * ctas: 8 if ctas == 1 else 16, 128 * ctas: 16}
    if m not in steps or n % steps[m] or not steps[m] <= n <= 256 or (scaled and m == 64):
        raise error(f"has M = {m} and N = {n}, which do not exist")
    mixed = results[d] == "f16" and "bf16" in (types[a], types[b])
    if mixed or (kind != "i8" and field(3, 1) and not scaled):
        raise error("has a type of D or a saturation that its types of A and B do not have")
    scales = ScaleFactors("ue8m0" if field(23, 1) else "ue4m3", (field(29, 2), field(4, 2))) if scaled else None
    sign = 1 - 2 * (field(13, 1) ^ field(14, 1))
    majors = bool(field(15, 1)), bool(field(16, 1))
    return InstructionDescriptor(m, n, types[a], types[b], results[d], majors, sign, bool(field(3, 1)), scales)
