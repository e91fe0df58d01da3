"""Which addresses and branches of a kernel depend on the values in memory, and how many loads wait for one another.

A register depends on data when it was loaded from global memory (or from shared memory into which such a value was
stored) or computed from such a register. Where an address or a branch depends on data, what the kernel touches and how
long it runs depends on its input: a static profile then holds for the inputs it was made with. The analysis ignores the
order of instructions, so it may report a dependence that no execution has; it misses none within the registers of one
thread.
"""

from collections import defaultdict

from kernrec.ptx.analysis.def_use import DefUse
from kernrec.ptx.ir.program import BasicBlock, Function, Instruction
from kernrec.util.light_dataclass import dataclass

COMPUTES = frozenset(
    {
        "abs", "add", "and", "bfe", "bfi", "bfind", "brev", "clz", "cnot", "copysign", "cvt", "cvta", "div", "fma",
        "lop3", "mad", "mad24", "max", "min", "mov", "mul", "mul24", "neg", "not", "or", "popc", "prmt", "rem", "sad",
        "selp", "set", "setp", "shf", "shl", "shr", "slct", "sub", "szext", "testp", "xor",
    }
)  # fmt: skip
"""Instructions whose result follows from their sources alone."""
_ALIKE = ("%tid.", "%ntid.", "%nctaid.", "%laneid", "%warpid", "%nwarpid", "%lanemask_")
"""Special registers that the same thread of every block of a grid reads the same in."""
_CONTROL = frozenset({"bra", "brx", "exit", "ret", "trap", "bar", "barrier", "call"})


@dataclass(frozen=True)
class Dependence:
    """An instruction whose address or condition depends on data."""

    line: int
    """Its line in the PTX."""

    text: str

    kind: str
    """`branch`, `load` or `store`."""


def loads_global(ins: Instruction) -> bool:
    """Whether an instruction brings data from global memory."""
    return (
        (ins.opcode in ("ld", "ldu") and "global" in ins.modifiers)
        or ins.opcode in ("tex", "tld4", "suld")
        or _copies_from_global(ins)
    )


def _copies_from_global(ins: Instruction) -> bool:
    """Whether an instruction copies from global memory: of its two memories the second is read."""
    spaces = [mark for mark in ins.modifiers if mark in ("global", "shared")]
    return ins.opcode == "cp" and spaces[-1:] == ["global"] and "prefetch" not in ins.modifiers


def stores_global(ins: Instruction) -> bool:
    """Whether an instruction writes global memory, from registers or by a copy."""
    if ins.opcode in ("st", "red", "atom"):
        return "global" in ins.modifiers
    spaces = [mark for mark in ins.modifiers if mark in ("global", "shared")]
    return ins.opcode == "cp" and spaces[:1] == ["global"] and "prefetch" not in ins.modifiers


def load_chain(block: BasicBlock) -> int:
    """Length of the longest chain of loads from global memory, each waiting for the last; 1: they are independent."""
    depths: dict[str, int] = {}  # by register: loads that follow from one another to its value, where there are any
    deepest = 0
    for ins in block.instructions:
        depth = max([depths[name] for name in ins.sources if name in depths], default=0) if depths else 0
        if loads_global(ins):
            depth += 1
            deepest = max(deepest, depth)
        if depth or depths:
            depths.update(dict.fromkeys(ins.results, depth))
    return deepest


def data_dependences(function: Function) -> list[Dependence]:
    """Branches whose condition, and loads and stores whose address depends on data, in the order of the text.

    They are worked out once for a function.
    """
    if Dependence not in function.memo:
        function.memo[Dependence] = _data_dependences(function)
    dependences: list[Dependence] = function.memo[Dependence]
    return dependences


def _data_dependences(function: Function) -> list[Dependence]:
    instructions, readers = function.instructions, DefUse.of(function).readers
    tainted: set[str] = set()
    shared = False  # whether shared memory holds data
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
    """Whether an instruction reads a value that depends on the input."""
    if ins.opcode in ("ld", "ldu"):
        return not {"param", "local"} & {*ins.modifiers} and ("shared" not in ins.modifiers or shared)
    return ins.opcode in ("atom", "tex", "tld4", "suld") or _copies_from_global(ins)


def blocks_run_alike(function: Function) -> bool:
    """Whether every block of a grid certainly takes the same way through the code: no branch depends on the block.

    It is enough that all that decides branches, and whether a thread exits or waits, is computed from parameters and
    from the number of the thread within its block.
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
