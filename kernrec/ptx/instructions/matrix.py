"""Tensor-core instructions: `mma.sync`, and the products behind `wmma.mma` (`kernrec.ptx.instructions.wmma`).

Fragment layouts are those of the PTX ISA manual, section "Warp-level matrix fragments". With g = lane / 4, t = lane % 4
and p elements per 32-bit register (1 of tf32, 2 of f16 and bf16, 4 of s8, e4m3 and e5m2, 8 of s4, 32 of b1; 1 per f64
register), register r of a lane holds, e = 0 .. p - 1:

- A (m x k): row g + 8 (r % (m / 8)), column 4p (r / (m / 8)) + p t + e;
- B (k x n): row 4p r + p t + e, column g;
- C and D (m x 8): row g + 8 (r / 2), column 2 t + r % 2; of f16, with its two halves: row g + 8 r, column 2 t + e.

PTX leaves open in which order and precision the products are added. Here C and all products are summed in float64 (the
products of 16-bit types are exact there) and rounded once to the type of D; hardware may differ in the last bits.
Integers are exact and wrap, or saturate with `.satfinite`. The last 13 bits of a tf32 operand are ignored.

Consecutive independent `mma` instructions of a kind run as one step: fragments that several of them share are converted
once, and where every A is multiplied with every B (a warp tile), each warp multiplies one pair of larger matrices.

`mma.<type>` counts 2 m n k operations for every warp that runs one; of 4-bit integers half as many and of bits an
eighth, as `mma.i8`, which take as long (NVIDIA A100 Tensor Core GPU Architecture, table of peak rates); of e4m3 and
e5m2 half as many as `mma.f16` (NVIDIA Ada GPU Architecture, table of peak rates with sums in f32).
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from kernrec.ptx.instructions.decoder import BlockDecoder
from kernrec.ptx.instructions.fragments import (
    ALIKE,
    ELEMENT_TYPES,
    Rows,
    Warps,
    a_matrices,
    b_matrices,
    c_matrices,
    register_rows,
    register_values,
    saturated,
    write_d,
)
from kernrec.ptx.instructions.mma_scaled import ScaledProduct
from kernrec.ptx.instructions.registry import Step, UnsupportedFormError, steps
from kernrec.ptx.instructions.warp import whole_warps
from kernrec.ptx.ir.program import Instruction
from kernrec.ptx.state.batch import WARP
from kernrec.ptx.state.types import Array

_HALF_SHAPES = frozenset({"m16n8k8", "m16n8k16"})
_EIGHT_BIT_SHAPES = frozenset({"m16n8k16", "m16n8k32"})
_INTEGER_SHAPES = frozenset({"m8n8k16", "m16n8k16", "m16n8k32"})
_FOUR_BIT_SHAPES = frozenset({"m8n8k32", "m16n8k32", "m16n8k64"})
_SHAPES: dict[str, frozenset[str]] = {
    "f16": _HALF_SHAPES,
    "bf16": _HALF_SHAPES,
    "tf32": frozenset({"m16n8k4", "m16n8k8"}),
    "e4m3": _EIGHT_BIT_SHAPES,
    "e5m2": _EIGHT_BIT_SHAPES,
    "s8": _INTEGER_SHAPES,
    "u8": _INTEGER_SHAPES,
    "s4": _FOUR_BIT_SHAPES,
    "u4": _FOUR_BIT_SHAPES,
    "b1": frozenset({"m8n8k128", "m16n8k128", "m16n8k256"}),
    "f64": frozenset({"m8n8k4", "m16n8k4", "m16n8k8", "m16n8k16"}),
}
_WHOLE = ("s32",)
RESULTS = {
    "f16": ("f16", "f32"), "bf16": ("f32",), "tf32": ("f32",), "f64": ("f64",),
    "e4m3": ("f16", "f32"), "e5m2": ("f16", "f32"),
    "s8": _WHOLE, "u8": _WHOLE, "s4": _WHOLE, "u4": _WHOLE, "b1": _WHOLE,
}  # fmt: skip
"""Types of C and D by type of A."""
_MOST = 64  # instructions in one step


class ProductKind(NamedTuple):
    """The extents and PTX types of a product, which instructions of one step have in common."""

    m: int
    """Rows of A and D; n is 8."""

    k: int
    a: str
    b: str
    c: str
    d: str
    saturates: bool
    """Whether integers saturate (`.satfinite`)."""

    xor: bool = False
    """Of bits: whether those that differ are counted, not those that are both set."""


class Fragments(NamedTuple):
    """The register rows of an instruction's operands: A (m x k), B (k x n), C and D (m x n)."""

    a: Rows
    b: Rows
    c: Rows
    d: Rows


class _ProductPlan(NamedTuple):
    """The distinct fragments of A and B in a step, and which of them each instruction multiplies."""

    a: list[Rows]
    b: list[Rows]
    a_of: Array
    b_of: Array

    all_pairs: bool
    """Whether the instructions multiply every A with every B, in order."""


class _Product:
    """A step: `d = a b + c` for one or more instructions and all warps of the batch."""

    def __init__(self, decoder: BlockDecoder, ins: Instruction, kind: ProductKind) -> None:
        self.kind = kind
        self.ins = ins
        self.decoder = decoder
        self.running_lanes = decoder.running_lanes(ins)
        self.items: list[Fragments] = []
        self.written: set[int] = set()
        self.computed = decoder.computes(ins)
        self._plan: _ProductPlan | None = None

    def accepts(self, ins: Instruction, kind: ProductKind, rows: Fragments) -> bool:
        """Whether an instruction may run together with those already here."""
        free = not (self.computed and any(r in self.written for part in rows for r in part))
        return (
            free
            and self.decoder.computes(ins) == self.computed
            and kind == self.kind
            and self.ins.predicate is None
            and len(self.items) < _MOST
        )

    def add(self, rows: Fragments) -> None:
        """Adds an instruction."""
        self.items.append(rows)
        self.written.update(rows.d)

    def _planned(self) -> _ProductPlan:
        if self._plan is None:
            first = list(dict.fromkeys(item.a for item in self.items))
            second = list(dict.fromkeys(item.b for item in self.items))
            self.items.sort(key=lambda item: (first.index(item.a), second.index(item.b)))
            a_of = np.array([first.index(item.a) for item in self.items])
            b_of = np.array([second.index(item.b) for item in self.items])
            all_pairs = np.array_equal(a_of * len(second) + b_of, np.arange(len(first) * len(second)))
            self._plan = _ProductPlan(first, second, a_of, b_of, all_pairs)
        return self._plan

    def __call__(self) -> None:
        kind = self.kind
        numbers = self.running_lanes()
        if numbers is not None and not len(numbers):
            return
        warps = whole_warps(self.decoder, self.ins, numbers)
        if self.computed:
            self._compute(warps)
        count = self.decoder.lanes.shape.lanes // WARP if isinstance(warps, slice) else len(warps)
        operations = 2 * kind.m * 8 * kind.k * count * len(self.items)
        ELEMENT_TYPES[kind.a].count_operations(self.decoder.memory.counters.counts, operations)

    def _compute(self, warps: Warps) -> None:
        kind = self.kind
        plan = self._planned()
        m, k = kind.m, kind.k
        a = a_matrices(self._values(plan.a, kind.a, warps), m)
        b = b_matrices(self._values(plan.b, kind.b, warps))
        count = a.shape[0]  # of warps
        if plan.all_pairs:
            product = np.matmul(a.reshape(count, -1, k), b.reshape(count, -1, k).swapaxes(1, 2))
            product = product.reshape(count, len(plan.a), m, len(plan.b), 8).transpose(1, 3, 0, 2, 4)
            product = product.reshape(-1, count, m, 8)
        else:
            product = np.matmul(a.swapaxes(0, 1)[plan.a_of], b.swapaxes(0, 1)[plan.b_of].swapaxes(2, 3))
        if kind.xor:  # with bits as 1 and -1, each pair adds 1 where they agree, and -1 where they differ
            product = (k - product) / 2
        product += c_matrices(self._values([item.c for item in self.items], kind.c, warps))
        file = self.decoder.registers.files[ELEMENT_TYPES[kind.d].width]
        results = [item.d for item in self.items]
        write_d(file, results, warps, saturated(product) if kind.saturates else product, kind.d)

    def _values(self, fragments: list[Rows], kind: str, warps: Warps) -> Array:
        """Numbers in the registers of fragments: (fragments, registers, warps, g, t, elements)."""
        file = self.decoder.registers.files[ELEMENT_TYPES[kind].width]
        values = register_values(file, fragments, kind, warps)
        return 1 - 2 * values.astype(np.int8) if self.kind.xor and kind == "b1" else values


def add_products(
    decoder: BlockDecoder, ins: Instruction, kind: ProductKind, products: Sequence[Fragments]
) -> Step | None:
    """The step of an instruction that multiplies these; None where the step before took them in."""
    last = decoder.last_step
    if isinstance(last, _Product) and ins.predicate is None and all(last.accepts(ins, kind, rows) for rows in products):
        for rows in products:
            last.add(rows)
        return None
    step = _Product(decoder, ins, kind)
    for rows in products:
        step.add(rows)
    return step


@steps("mma")
def _mma(decoder: BlockDecoder, ins: Instruction) -> Step | None:
    """PTX ISA, section 9.7.14.5 (`mma`)."""
    if "kind" in ins.modifiers:
        return ScaledProduct(decoder, ins)
    sync, aligned, shape, *layout, d, a, b, c = [m for m in ins.modifiers if m not in ("xor", "and", "popc")]
    operation = tuple(m for m in ins.modifiers if m in ("xor", "and", "popc"))
    saturates = "satfinite" in layout
    as_usual = (sync, aligned) == ("sync", "aligned") and layout[:2] == ["row", "col"] and len(layout) == 2 + saturates
    if not as_usual or a not in _SHAPES or b not in _SHAPES or not {c, d} <= set(RESULTS[a]):
        raise UnsupportedFormError
    if shape not in _SHAPES[a] or (a != b and {a, b} not in ALIKE):
        raise UnsupportedFormError(f"shape {shape} of .{a} and .{b}")
    if (a == "b1") != (operation in (("xor", "popc"), ("and", "popc"))):
        raise UnsupportedFormError
    m, k = int(shape[1 : shape.index("n")]), int(shape[shape.index("k") + 1 :])
    kind = ProductKind(m, k, a, b, c, d, saturates, "xor" in operation)
    result, *sources = ins.operands
    sizes = (a, m * k), (b, 8 * k), (c, m * 8), (d, m * 8)
    rows = Fragments(
        *(
            register_rows(decoder, operand, of_type, count // (32 * ELEMENT_TYPES[of_type].per_register))
            for operand, (of_type, count) in zip((*sources, result), sizes, strict=True)
        )
    )
    return add_products(decoder, ins, kind, [rows])
