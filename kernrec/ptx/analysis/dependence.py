"""Find addresses and branches of a kernel that depend on values in memory, and chains of dependent loads.

A register depends on data if it was loaded from global memory, or computed from such a register. Shared memory that
holds such a value counts too. If an address or a branch depends on data, the kernel's accesses and run time depend on
its input. A profile is then valid only for its own input. The analysis ignores the order of instructions, so it may
report a dependence that never occurs. It misses no dependence within the registers of one thread.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator

from kernrec.ptx.analysis.def_use import DefUse
from kernrec.ptx.ir.program import Function, Instruction
from kernrec.util.light_dataclass import dataclass

COMPUTES = frozenset(
    {
        "abs", "add", "and", "bfe", "bfi", "bfind", "brev", "clz", "cnot", "copysign", "cvt", "cvta", "div", "fma",
        "lop3", "mad", "mad24", "max", "min", "mov", "mul", "mul24", "neg", "not", "or", "popc", "prmt", "rem", "sad",
        "selp", "set", "setp", "shf", "shl", "shr", "slct", "sub", "szext", "testp", "xor",
    }
)  # fmt: skip
"""Instructions whose result depends only on their sources."""
_ALIKE = ("%tid.", "%ntid.", "%nctaid.", "%laneid", "%warpid", "%nwarpid", "%lanemask_")
"""Special registers that have equal values in the same thread of every block of a grid."""
_CONTROL = frozenset({"bra", "brx", "exit", "ret", "trap", "bar", "barrier", "call"})


@dataclass(frozen=True)
class Dependence:
    """Instruction whose address or condition depends on data."""

    line: int
    """Line of the instruction in the PTX."""
    text: str
    kind: str
    """Kind of instruction: `branch`, `load` or `store`."""


def loads_global(ins: Instruction) -> bool:
    """Return whether an instruction reads global memory."""
    return (
        (ins.opcode in ("ld", "ldu") and "global" in ins.modifiers)
        or ins.opcode in ("tex", "tld4", "suld")
        or _copies_from_global(ins)
    )


def _copies_from_global(ins: Instruction) -> bool:
    """Return whether an instruction copies from global memory: it names `global` second, as the source."""
    spaces = [mark for mark in ins.modifiers if mark in ("global", "shared")]
    return ins.opcode == "cp" and spaces[-1:] == ["global"] and "prefetch" not in ins.modifiers


def stores_global(ins: Instruction) -> bool:
    """Return whether an instruction writes global memory, from registers or by a copy."""
    if ins.opcode in ("st", "red", "atom"):
        return "global" in ins.modifiers
    spaces = [mark for mark in ins.modifiers if mark in ("global", "shared")]
    return ins.opcode == "cp" and spaces[:1] == ["global"] and "prefetch" not in ins.modifiers


def load_depths(instructions: Iterable[Instruction]) -> Iterator[tuple[int, int]]:
    """Yield (index of a load from global memory, its position in its chain of dependent loads, counted from 1)."""
    depths: dict[str, int] = {}  # register -> number of dependent loads that its value waits for
    for number, ins in enumerate(instructions):
        depth = max([depths[name] for name in ins.sources if name in depths], default=0) if depths else 0
        if loads_global(ins):
            depth += 1
            yield number, depth
        if depth or depths:
            depths.update(dict.fromkeys(ins.results, depth))


def data_dependences(function: Function) -> list[Dependence]:
    """Return the branches and accesses that depend on data, in text order, and cache them with the function."""
    if Dependence not in function.memo:
        function.memo[Dependence] = _data_dependences(function)
    dependences: list[Dependence] = function.memo[Dependence]
    return dependences


def _data_dependences(function: Function) -> list[Dependence]:
    instructions, readers = function.instructions, DefUse.of(function).readers
    tainted: set[str] = set()
    shared = False  # whether shared memory contains data
    waiting = [ins for ins in instructions if _from_memory(ins, shared)]
    while waiting:
        ins = waiting.pop()
        if ins.opcode in ("st", "cp", "red") and "shared" in ins.modifiers and not shared:
            shared = True
            waiting += [other for other in instructions if _from_memory(other, shared)]
        for name in ins.results - tainted:
            tainted.add(name)
            waiting += [instructions[place] for place in readers.get(name, ())]
    dependences = []
    for ins in instructions:
        addresses = ins.addresses
        if ins.opcode in ("bra", "brx") and tainted & ins.sources:
            dependences.append(Dependence(ins.line, ins.text.strip(), "branch"))
        elif (ins.opcode in ("ld", "ldu", "tex", "tld4", "suld") or _copies_from_global(ins)) and tainted & addresses:
            dependences.append(Dependence(ins.line, ins.text.strip(), "load"))
        elif ins.opcode in ("st", "red", "atom", "sust", "sured", "cp") and tainted & addresses:
            dependences.append(Dependence(ins.line, ins.text.strip(), "store"))
    return dependences


def _from_memory(ins: Instruction, shared: bool) -> bool:
    """Return whether an instruction reads a value that depends on the input."""
    if ins.opcode in ("ld", "ldu"):
        return not {"param", "local"} & {*ins.modifiers} and ("shared" not in ins.modifiers or shared)
    return ins.opcode in ("atom", "tex", "tld4", "suld") or _copies_from_global(ins)


def blocks_run_alike(function: Function) -> bool:
    """Return whether every block of a grid takes the same path, because no branch depends on the block.

    Blocks take the same path if branches, exits and waits depend only on parameters and on the thread's index in its
    block.
    """
    if _ALIKE not in function.memo:
        function.memo[_ALIKE] = _run_alike(function)
    alike: bool = function.memo[_ALIKE]
    return alike


def _run_alike(function: Function) -> bool:
    writers: dict[str, list[Instruction]] = defaultdict(list)
    for ins in function.instructions:
        for name in ins.results:
            writers[name].append(ins)
    waiting = [name for ins in function.instructions if ins.opcode in _CONTROL for name in ins.sources]
    seen: set[str] = set()
    while waiting:
        name = waiting.pop()
        if name in seen:
            continue
        seen.add(name)
        if function.register_type(name) is None and not name.startswith(_ALIKE):
            return False
        for ins in writers[name]:
            constant = ins.opcode == "ld" and not {"param", "const"}.isdisjoint(ins.modifiers)
            if not constant and (ins.opcode not in COMPUTES or "cc" in ins.modifiers):
                return False
            waiting += ins.sources
    return True
