"""Find addresses, branches and loops that depend on data, parameters or other threads.

Data are values loaded from global memory, and results computed from them. If addresses or branches of a kernel depend
on data, its profile is only valid for the profiled input. The analysis may report a dependence that never occurs, but
it misses none within the registers of one thread.
"""

from collections.abc import Iterable, Iterator

from kernrec.ptx.analysis.def_use import DefUse, reachable
from kernrec.ptx.analysis.liveness import successors
from kernrec.ptx.ir.operand import Address, Symbol, Texel
from kernrec.ptx.ir.program import BasicBlock, Function, Instruction, cached_analysis, cached_by_form
from kernrec.util.light_dataclass import dataclass

COMPUTES = frozenset(
    {
        "abs", "add", "and", "bfe", "bfi", "bfind", "brev", "clz", "cnot", "copysign", "cvt", "cvta", "div", "fma",
        "lop3", "mad", "mad24", "max", "min", "mov", "mul", "mul24", "neg", "not", "or", "popc", "prmt", "rem", "sad",
        "selp", "set", "setp", "shf", "shl", "shr", "slct", "sub", "szext", "testp", "xor",
    }
)  # fmt: skip
"""Opcodes whose result depends only on the operands."""
_ALIKE = ("%tid.", "%ntid.", "%nctaid.", "%laneid", "%warpid", "%nwarpid", "%lanemask_")
"""Prefixes of special registers that have the same values in all blocks."""
_CONTROL = frozenset({"bra", "brx", "exit", "ret", "trap", "bar", "barrier", "call"})


@dataclass(frozen=True)
class Dependence:
    """Instruction whose address or condition depends on data."""

    line: int
    text: str
    kind: str
    """Kind of instruction: `branch`, `load` or `store`."""


def loads_global(ins: Instruction) -> bool:
    """Return whether an instruction reads global memory."""
    if ins.opcode in ("ld", "ldu"):
        return "global" in ins.modifiers
    return ins.opcode in ("tex", "tld4", "suld") or _copies_from_global(ins)


def _copies_from_global(ins: Instruction) -> bool:
    if ins.opcode != "cp" or "prefetch" in ins.modifiers:
        return False
    return [mark for mark in ins.modifiers if mark in ("global", "shared")][-1:] == ["global"]


def stores_global(ins: Instruction) -> bool:
    if ins.opcode in ("st", "red", "atom"):
        return "global" in ins.modifiers
    spaces = [mark for mark in ins.modifiers if mark in ("global", "shared")]
    return ins.opcode == "cp" and spaces[:1] == ["global"] and "prefetch" not in ins.modifiers


def load_depths(instructions: Iterable[Instruction]) -> Iterator[tuple[int, int]]:
    """Yield the index of each load from global memory, and its position in a chain of dependent loads."""
    depths: dict[str, int] = {}  # Length of the longest chain of loads that leads to each register's value
    for number, ins in enumerate(instructions):
        depth = max([depths[name] for name in ins.sources if name in depths], default=0) if depths else 0
        if loads_global(ins):
            depth += 1
            yield number, depth
        if depth or depths:
            depths.update(dict.fromkeys(ins.results, depth))


def data_dependences(function: Function) -> list[Dependence]:
    """Return the branches and memory accesses that depend on data, in text order."""
    dependent = ((function.instructions[place], kind) for place, kind in _dependent(function))
    return [Dependence(ins.line, ins.text.strip(), kind) for ins, kind in dependent]


@cached_by_form
def _dependent(function: Function) -> list[tuple[int, str]]:
    instructions, readers = function.instructions, DefUse.of(function).readers

    def users(place: int) -> list[int]:
        return [user for name in instructions[place].results for user in readers.get(name, ())]

    for shared in (False, True):  # Whether shared memory contains a value that depends on data.
        loads = [place for place, ins in enumerate(instructions) if _from_memory(ins, shared)]
        reached = [instructions[place] for place in reachable(loads, users)]
        if not any(ins.opcode in ("st", "cp", "red") and "shared" in ins.modifiers for ins in reached):
            break
    tainted = {name for ins in reached for name in ins.results}
    dependent = []
    for place, ins in enumerate(instructions):
        if ins.opcode in ("bra", "brx"):
            kind, names = "branch", ins.sources
        elif ins.opcode in ("ld", "ldu", "tex", "tld4", "suld") or _copies_from_global(ins):
            kind, names = "load", ins.addresses
        elif ins.opcode in ("st", "red", "atom", "sust", "sured", "cp"):
            kind, names = "store", ins.addresses
        else:
            continue
        if tainted & names:
            dependent.append((place, kind))
    return dependent


def _from_memory(ins: Instruction, shared: bool) -> bool:
    if ins.opcode in ("ld", "ldu"):
        return not {"param", "local"} & {*ins.modifiers} and ("shared" not in ins.modifiers or shared)
    return ins.opcode in ("atom", "tex", "tld4", "suld") or _copies_from_global(ins)


@cached_analysis
def blocks_run_alike(function: Function) -> bool:
    """Return whether all blocks take the same path through the code."""
    writing = DefUse.of(function).writing
    conditions = [name for ins in function.instructions if ins.opcode in _CONTROL for name in ins.sources]
    names = reachable(conditions, lambda name: [source for ins in writing(name) for source in ins.sources])
    if any(function.register_type(name) is None and not name.startswith(_ALIKE) for name in names):
        return False
    return all(
        (ins.opcode == "ld" and not {"param", "const"}.isdisjoint(ins.modifiers))
        or (ins.opcode in COMPUTES and "cc" not in ins.modifiers)
        for name in names
        for ins in writing(name)
    )


def stores_in_loops(function: Function) -> bool:
    """Return whether a loop stores to global memory."""
    following = [successors(function, index) for index in range(len(function.blocks))]
    for block in function.blocks:
        # Search all paths, not natural loops: a loop's header need not be its first block in the text.
        stores = any(stores_global(ins) for ins in block.instructions)
        if stores and block.index in reachable(following[block.index], following.__getitem__):
            return True
    return False


_LOOKS = frozenset({"ld", "atom"})
_NEVER_PROGRESS = frozenset({"cas", "exch"})
"""Atomic operations that change nothing when a waiting loop repeats them."""
_ACTS = frozenset({"st", "red", "cp", "bar", "barrier", "mbarrier", "wgmma", "tcgen05", "call"})


def spins(block: BasicBlock) -> bool:
    """Return whether a basic block is a loop that only waits for other threads."""
    last = block.instructions[-1]
    if last.opcode != "bra" or last.predicate is None or not isinstance(last.operands[0], Symbol):
        return False
    if last.operands[0].name not in block.labels or not any(ins.opcode in _LOOKS for ins in block.instructions):
        return False
    written: set[str] = set()
    carried: set[str] = set()  # Registers whose value comes from before the block.
    for ins in block.instructions:
        if ins.opcode in _ACTS or (ins.opcode == "atom" and not _NEVER_PROGRESS & set(ins.modifiers)):
            return False
        carried |= ins.sources - written
        if ins.predicate is None:
            written |= ins.results
        else:
            carried |= ins.results
    return not carried & {name for ins in block.instructions for name in ins.results}


_READ = frozenset({"ld", "ldu", "cp"})
_WRITTEN = frozenset({"st", "red", "atom"})
_ELSEWHERE = frozenset({"shared", "local", "param", "const", "argument"})
_POINTER_BYTES = 8


@cached_analysis
def global_pointers(function: Function) -> tuple[frozenset[str], frozenset[str]] | None:
    """Return the pointers through which a kernel reads global memory, and the pointers through which it writes.

    Each pointer is the name of a parameter or variable. An atomic operation whose result is unused is only a write.
    Return None if the origin of an address is unknown.
    """
    readers = DefUse.of(function).readers
    read, written = set[str](), set[str]()
    for ins in function.instructions:
        spaces = {mark.partition("::")[0] for mark in ins.modifiers}
        accesses = any(isinstance(operand, Address | Texel) for operand in ins.operands)
        if not accesses or ("global" not in spaces and spaces & _ELSEWHERE):
            continue
        pointers = pointers_of(function, ins)
        if pointers is None or "global" not in spaces or ins.opcode not in _READ | _WRITTEN:
            return None
        if ins.opcode == "atom" and any(readers.get(name) for name in ins.results):
            read |= pointers
        (written if ins.opcode in _WRITTEN else read).update(pointers)
    return frozenset(read), frozenset(written)


def pointers_of(function: Function, ins: Instruction) -> set[str] | None:
    """Return the parameters and variables from which an instruction computes addresses, or None if unknown."""
    writing = DefUse.of(function).writing
    sizes = {parameter.name: parameter.size for parameter in function.parameters}
    pointers = {o.base.name for o in ins.operands if isinstance(o, Address) and isinstance(o.base, Symbol)}
    names = reachable(
        ins.addresses, lambda name: [s for each in writing(name) if each.opcode in COMPUTES for s in each.sources]
    )
    for writer in (each for name in names for each in writing(name)):
        if writer.opcode == "ld" and "param" in writer.modifiers:
            symbols = [o.base.name for o in writer.operands if isinstance(o, Address) and isinstance(o.base, Symbol)]
            if len(symbols) != 1 or symbols[0] not in sizes:
                return None
            pointers |= {symbol for symbol in symbols if sizes[symbol] >= _POINTER_BYTES}
        elif writer.opcode in COMPUTES:
            pointers |= {operand.name for operand in writer.operands if isinstance(operand, Symbol)}
        else:
            return None
    return pointers
