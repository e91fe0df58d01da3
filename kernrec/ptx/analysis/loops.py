"""Loops of which a few trips can stand for many: the registers that steer them, and the comparisons they make.

What a kernel executes and which addresses it touches is decided by its *steering* registers: those that branches,
guards, addresses and barriers depend on. A loop is *steady* where none of them is set from memory, from another lane or
by a comparison of other than integers inside it. Then one trip differs from the next only in the steering registers
that are carried from trip to trip, and goes another way only where the outcome of a comparison changes, which
`kernrec.ptx.execution.extrapolation` foresees.
"""

from dataclasses import dataclass

from kernrec.ptx.analysis.dependence import address_registers
from kernrec.ptx.analysis.liveness import live_before, successors
from kernrec.ptx.ir.operand import Immediate, Register
from kernrec.ptx.ir.program import Function, Instruction

_FROM_ELSEWHERE = frozenset(
    {
        "ld", "ldu", "atom", "ldmatrix", "movmatrix", "mma", "wmma", "wgmma", "tcgen05", "shfl", "vote", "match",
        "redux", "activemask", "elect",
    }
)  # fmt: skip
_LEAVES = frozenset({"exit", "ret", "call"})
_IMAGES = frozenset({"tex", "tld4", "suld", "sust", "sured"})
"""What these touch depends on coordinates in a way that is not watched."""
_ORDERINGS = {"lt": "lt", "lo": "lt", "ge": "lt", "hs": "lt", "le": "le", "ls": "le", "gt": "le", "hi": "le"}
_INTEGERS = frozenset(f"{kind}{width}" for kind in "us" for width in (16, 32, 64)) | {"b16", "b32", "b64"}


@dataclass(frozen=True)
class Comparison:
    """A comparison of integers."""

    kind: str
    """`lt`, `le` or `eq`, as far as it matters when the outcome changes: `ge` is a `lt`, `gt` a `le`, `ne` an `eq`."""

    type: str
    """PTX type of the operands."""

    left: Register | Immediate
    """First operand."""

    right: Register | Immediate
    """Second operand."""


@dataclass(frozen=True)
class Loop:
    """A steady loop."""

    header: int
    """The basic block that every trip begins with."""

    blocks: tuple[int, ...]
    """Its basic blocks, in order."""

    carried: tuple[str, ...]
    """Steering registers that one trip leaves for the next."""

    comparisons: tuple[Comparison, ...]
    """The comparisons that set steering registers."""

    moduli: tuple[tuple[Register, int], ...]
    """Registers that may only move by multiples of a number, so that what is computed from their bits moves evenly."""

    linear: bool
    """Whether, apart from that, steering registers move evenly while no comparison changes."""


def steady_loops(function: Function) -> dict[int, Loop]:
    """The steady loops of a function by their header."""
    bodies = _natural_loops(function)
    if not bodies:
        return {}
    steering = steering_registers(function)
    live = live_before(function)
    loops = {}
    for header, blocks in bodies.items():
        instructions = [ins for block in blocks for ins in function.blocks[block].instructions]
        if any(ins.opcode in _LEAVES or ins.opcode in _IMAGES for ins in instructions):
            continue
        steers = [ins for ins in instructions if ins.results & steering]
        written = frozenset().union(*(ins.results for ins in steers))
        constant = {"param"} if any(_may_write_stack(ins) for ins in instructions) else {"param", "local"}
        if any(_from_elsewhere(ins, constant, written) for ins in steers):
            continue
        comparisons = [_comparison(ins) for ins in steers if ins.opcode in ("setp", "set", "min", "max")]
        if None in comparisons:
            continue
        moduli = [(ins.operands[1], _modulus(ins)) for ins in steers]
        loops[header] = Loop(
            header,
            tuple(sorted(blocks)),
            tuple(sorted(live[header] & written)),
            tuple(dict.fromkeys(c for c in comparisons if c is not None)),
            tuple(dict.fromkeys((r, m) for r, m in moduli if m and isinstance(r, Register) and r.name in written)),
            all(modulus or _is_linear(ins, written) for ins, (_, modulus) in zip(steers, moduli, strict=True)),
        )
    return loops


def steering_registers(function: Function) -> frozenset[str]:
    """The registers that branches, guards, addresses, barriers and sizes of copies depend on, directly or not."""
    steering: set[str] = set()
    for ins in function.instructions:
        if ins.predicate is not None:
            steering.add(ins.predicate[0])
        steering |= address_registers(ins)
        if ins.opcode in ("bra", "brx", "bar", "barrier", "cp"):
            steering |= ins.sources
    grown = True
    while grown:
        before = len(steering)
        for ins in function.instructions:
            if steering & ins.results:
                steering |= ins.sources
        grown = len(steering) > before
    return frozenset(steering)


def _may_write_stack(ins: Instruction) -> bool:
    """Whether an instruction may change local memory, which is a thread's own."""
    writes = ins.opcode in ("st", "atom", "red")
    return writes and not {"global", "shared", "shared::cta", "shared::cluster"} & set(ins.modifiers)


def _from_elsewhere(ins: Instruction, constant: set[str], written: frozenset[str]) -> bool:
    """Whether the result is not computed from registers alone, and may change from trip to trip.

    Args:
        ins: the instruction.
        constant: state spaces that the loop does not write.
        written: steering registers that the loop writes.
    """
    if ins.opcode not in _FROM_ELSEWHERE:
        return False
    return ins.opcode != "ld" or not constant & set(ins.modifiers) or bool(address_registers(ins) & written)


def _comparison(ins: Instruction) -> Comparison | None:
    """What a `setp`, `min` or `max` compares; None where these are no integers."""
    name, kind = ins.modifiers[0], ins.modifiers[-1]
    left, right = ins.operands[1:3]
    if ins.opcode != "setp":
        name = "lt" if ins.opcode != "set" else ""
    else:
        name = "eq" if name in ("eq", "ne") else _ORDERINGS.get(name, "")
    if not name or kind not in _INTEGERS:
        return None
    if not isinstance(left, Register | Immediate) or not isinstance(right, Register | Immediate):
        return None
    return Comparison(name, kind.replace("b", "s"), left, right)


def _modulus(ins: Instruction) -> int:
    """A number by whose multiples the first source has to move, so that the result moves evenly; 0: there is none."""
    if len(ins.operands) < 3 or ins.modifiers[-1:] == ("pred",):
        return 0
    constant = ins.operands[2]
    if not isinstance(constant, Immediate) or constant.kind != "int" or constant.value <= 0:
        return 0
    value = int(constant.value)
    if ins.opcode in ("and", "or", "xor"):
        return 1 << value.bit_length()
    if ins.opcode == "shr":
        return 1 << value
    return value if ins.opcode in ("div", "rem") else 0


def _is_linear(ins: Instruction, changing: frozenset[str]) -> bool:
    """Whether the result moves evenly where the sources do, as long as no comparison changes; `changing`: registers."""
    if ins.modifiers[-1:] == ("pred",) or ins.opcode in ("setp", "min", "max", "ld"):
        return True
    if ins.modifiers[-1] not in _INTEGERS or (ins.opcode == "cvt" and ins.modifiers[-2] not in _INTEGERS):
        return False
    if ins.opcode in ("mul", "mad", "shl"):
        factors = [o for o in ins.operands[1:3] if isinstance(o, Register) and o.name in changing]
        return "hi" not in ins.modifiers and len(factors) < 2 and ins.operands[2] not in factors[: ins.opcode == "shl"]
    return ins.opcode in ("add", "sub", "mov", "cvt", "cvta", "neg", "selp", "not")


def _natural_loops(function: Function) -> dict[int, frozenset[int]]:
    """The basic blocks of each loop by its header; loops that are entered elsewhere too are left out.

    Branches backwards in the text close a loop: compilers put its header first.
    """
    following = [successors(function, index) for index in range(len(function.blocks))]
    before: list[list[int]] = [[] for _ in following]
    for index, nexts in enumerate(following):
        for next_ in nexts:
            before[next_].append(index)
    bodies: dict[int, set[int]] = {}
    for latch, nexts in enumerate(following):
        for header in nexts:
            if header > latch:
                continue
            body = bodies.setdefault(header, {header})
            waiting = [latch]
            while waiting:
                block = waiting.pop()
                if block not in body:
                    body.add(block)
                    waiting += before[block]
    return {header: frozenset(body) for header, body in bodies.items() if header == 0 or 0 not in body}
