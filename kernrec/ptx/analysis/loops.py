"""Loops of which a few trips can stand for many: the registers that steer them, and the comparisons they make.

The path of a kernel and the addresses that it touches are decided by its *steering* registers: those that branches,
guards, addresses and barriers depend on. One of them follows *data* where the loop sets it from memory, from another
lane, by a comparison of other than integers, or from another that does. A loop is *counted* where none of those is
carried from trip to trip, and none decides whether the loop ends. It is *steady* where there are none at all: then one
trip differs from the next only in the steering registers that are carried, and goes another way only where the outcome
of a comparison changes, which `kernrec.ptx.execution.extrapolation` foresees. Of a loop that is counted alone it knows
how many trips are to come, but not what each of them does: some are executed, and stand for their neighbors.
"""

from kernrec.ptx.analysis.def_use import DefUse
from kernrec.ptx.analysis.dependence import stores_global
from kernrec.ptx.analysis.liveness import live_before, successors
from kernrec.ptx.ir.operand import Immediate, Pair, Register, registers_of
from kernrec.ptx.ir.program import BasicBlock, Function, Instruction
from kernrec.util.light_dataclass import dataclass

_FROM_ELSEWHERE = frozenset(
    {
        "ld", "ldu", "atom", "ldmatrix", "movmatrix", "mma", "wmma", "wgmma", "tcgen05", "shfl", "vote", "match",
        "redux", "activemask", "elect",
    }
)  # fmt: skip
_STEERING = "steering registers"
_LEAVES = frozenset({"exit", "ret", "call"})
_IMAGES = frozenset({"tex", "tld4", "suld", "sust", "sured"})
"""Their addresses depend on coordinates in a way that is not watched."""
_COMPARISONS = ("setp", "set", "min", "max")
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

    right: Register | Immediate


@dataclass(frozen=True)
class Loop:
    """A counted loop."""

    header: int
    """The basic block that every trip begins with."""

    blocks: tuple[int, ...]
    """Of the function, in order."""

    carried: tuple[str, ...]
    """Steering registers that one trip leaves for the next."""

    comparisons: tuple[Comparison, ...]
    """The comparisons that set steering registers, of those that do not follow data."""

    moduli: tuple[tuple[Register, int], ...]
    """Registers that may only move by multiples of a number, so that what is computed from their bits moves evenly."""

    linear: bool
    """Whether, apart from that, steering registers move evenly while no comparison changes; those that follow data
    are not meant."""

    steady: bool
    """Whether no steering register follows data."""

    barriers: bool
    """Whether lanes wait in it for others of their thread block."""


def counted_loops(function: Function) -> dict[int, Loop]:
    """The counted loops of a function by their header, worked out once for it."""
    if Loop not in function.memo:
        function.memo[Loop] = _counted_loops(function)
    loops: dict[int, Loop] = function.memo[Loop]
    return loops


def _counted_loops(function: Function) -> dict[int, Loop]:
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
        sometimes = blocks - _once_a_trip(function, header, blocks)
        data = _that_follow_data([function.blocks[b] for b in blocks], steers, sometimes, constant)
        carried = live[header] & written
        ends = [function.blocks[b].instructions[-1] for b in blocks if not blocks.issuperset(successors(function, b))]
        if carried & data or any(end.sources & data for end in ends):
            continue
        steers = [ins for ins in steers if not ins.results & data]
        comparisons = [_comparison(ins) for ins in steers if ins.opcode in _COMPARISONS]
        moduli = [(ins.operands[1], _modulus(ins)) for ins in steers]
        loops[header] = Loop(
            header,
            tuple(sorted(blocks)),
            tuple(sorted(carried)),
            tuple(dict.fromkeys(c for c in comparisons if c is not None)),
            tuple(dict.fromkeys((r, m) for r, m in moduli if m and isinstance(r, Register) and r.name in written)),
            all(modulus or _is_linear(ins, written) for ins, (_, modulus) in zip(steers, moduli, strict=True)),
            not data,
            any(ins.opcode in ("bar", "barrier") for ins in instructions),
        )
    return loops


def stores_in_loops(function: Function) -> bool:
    """Whether a loop writes global memory: it may go on to the next tile of a result."""
    following = [successors(function, index) for index in range(len(function.blocks))]
    for block in function.blocks:
        if any(stores_global(ins) for ins in block.instructions):
            # Loops as natural ones are found do not do: the header of a loop need not come first in the text.
            reached: set[int] = set()
            waiting = list(following[block.index])
            while waiting:
                index = waiting.pop()
                if index not in reached:
                    reached.add(index)
                    waiting += following[index]
            if block.index in reached:
                return True
    return False


def steering_registers(function: Function) -> frozenset[str]:
    """The registers that branches, guards, addresses, barriers and sizes of copies depend on, directly or not."""
    if _STEERING not in function.memo:
        function.memo[_STEERING] = _steering_registers(function)
    steering: frozenset[str] = function.memo[_STEERING]
    return steering


def _steering_registers(function: Function) -> frozenset[str]:
    uses = DefUse.of(function)
    steering: set[str] = set()
    waiting: list[str] = []
    for ins in function.instructions:
        if ins.predicate is not None:
            waiting.append(ins.predicate[0])
        waiting += ins.addresses
        if ins.opcode in ("bra", "brx", "bar", "barrier", "cp"):
            waiting += ins.sources
    while waiting:
        name = waiting.pop()
        if name not in steering:
            steering.add(name)
            for place in uses.writers.get(name, ()):
                waiting += _decisive(function.instructions[place], steering)
    return frozenset(steering)


def _decisive(ins: Instruction, steering: set[str]) -> frozenset[str]:
    """The sources that decide those results of an instruction that are in `steering`."""
    result = ins.operands[0]
    if ins.opcode != "shfl" or not isinstance(result, Pair) or steering & {*registers_of(result.first)}:
        return ins.sources
    others = {name for operand in ins.operands[2:] for name in registers_of(operand)}
    return ins.sources - (frozenset(registers_of(ins.operands[1])) - others)  # its flag: whether there is such a lane


def _may_write_stack(ins: Instruction) -> bool:
    """Whether an instruction may change local memory, which is a thread's own."""
    writes = ins.opcode in ("st", "atom", "red")
    return writes and not {"global", "shared", "shared::cta", "shared::cluster"} & set(ins.modifiers)


def _that_follow_data(
    body: list[BasicBlock], steers: list[Instruction], sometimes: frozenset[int], constant: set[str]
) -> frozenset[str]:
    """The steering registers of a loop that follow data, by what they are computed from or by whether they are.

    Args:
        body: the loop.
        steers: its instructions that set steering registers.
        sometimes: its basic blocks that not each trip runs, or not once.
        constant: state spaces that it does not write.
    """
    written = frozenset().union(*(ins.results for ins in steers))
    data: set[str] = set()
    for ins in steers:
        if _from_elsewhere(ins, constant, written) or (ins.opcode in _COMPARISONS and _comparison(ins) is None):
            data |= ins.results
    if not data:
        return frozenset()
    by_branch = written & {
        name for block in body if block.index in sometimes for ins in block.instructions for name in ins.results
    }
    grown = True
    while grown:
        before = len(data)
        for ins in steers:
            if ins.sources & data:
                data |= ins.results
        if any(block.instructions[-1].sources & data for block in body):
            data |= by_branch
        grown = len(data) > before
    return frozenset(data)


def _once_a_trip(function: Function, header: int, blocks: frozenset[int]) -> frozenset[int]:
    """The basic blocks of a loop that each trip runs, and runs once."""
    following = {b: [n for n in successors(function, b) if n in blocks] for b in blocks}

    def reached(start: int, without: int) -> set[int]:
        """The blocks that follow `start` before the trip ends, but for what only `without` leads to."""
        seen: set[int] = set()
        waiting = [start]
        while waiting:
            for next_ in following[waiting.pop()]:
                if next_ not in seen:
                    seen.add(next_)
                    if next_ not in (header, without):
                        waiting.append(next_)
        return seen

    once = {b for b in blocks - {header} if header not in reached(header, b) and b not in reached(b, header)}
    return frozenset(once | {header})


def _from_elsewhere(ins: Instruction, constant: set[str], written: frozenset[str]) -> bool:
    """Whether the result is not computed from registers alone, and may change from trip to trip.

    Args:
        ins: the instruction.
        constant: state spaces that the loop does not write.
        written: steering registers that the loop writes.
    """
    if ins.opcode not in _FROM_ELSEWHERE:
        return False
    return ins.opcode != "ld" or not constant & set(ins.modifiers) or bool(ins.addresses & written)


def _comparison(ins: Instruction) -> Comparison | None:
    """The comparison of a `setp`, `min` or `max`; None where it is not of integers."""
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
