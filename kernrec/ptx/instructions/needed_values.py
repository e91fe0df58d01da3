"""Values that are computed where only the counts of a launch are asked for, not its results.

Counts follow from which way each thread goes and which addresses it accesses. The values that decide neither, of a
matrix product nearly all, need not be computed: their arithmetic is left out, and what loads, stores and
products of matrices do is counted, not done. `needed_values` says what is left: the registers that steer a kernel
(`kernrec.ptx.analysis.loops`), all that they are computed from, and all that is read by what is always executed.
Where a needed value is loaded from a memory that the kernel writes, what it stores there is needed, too.
"""

from collections.abc import Iterable

from kernrec.ptx.analysis.def_use import DefUse
from kernrec.ptx.analysis.loops import steering_registers
from kernrec.ptx.instructions.registry import ELEMENTWISE
from kernrec.ptx.ir.operand import Vector, registers_of
from kernrec.ptx.ir.program import Function, Instruction, is_warp_synchronous, lane_mask
from kernrec.util.light_dataclass import dataclass

_LEFT_OUT = frozenset({"shfl", "redux"})
"""Instructions beside the elementwise ones that do nothing but compute a result."""
_PRODUCTS = frozenset({"mma", "wmma", "wgmma"})
_READ = frozenset({"ld", "ldu", "ldmatrix", "wmma", "wgmma", "atom", "tex", "tld4", "suld"})
_WRITTEN = frozenset({"st", "stmatrix", "wmma", "cp", "atom", "red", "sust", "sured"})
_ADDRESS_ONLY = (_READ | _WRITTEN) - _PRODUCTS - {"cp", "tex", "tld4", "suld", "sust", "sured"}
"""Instructions of which the addresses are needed in any case, and nothing else."""
_SPACES = frozenset({"global", "shared", "local", "argument"})
_CONSTANT = frozenset({"param", "const"})


@dataclass(frozen=True)
class NeededValues:
    """The values of a function that are needed."""

    registers: frozenset[str]
    spaces: frozenset[str]
    """The memories whose contents are."""

    def computes(self, ins: Instruction) -> bool:
        """Whether the result of an instruction is needed."""
        return not ins.results.isdisjoint(self.registers)

    def stores(self, ins: Instruction) -> bool:
        """Whether what an instruction writes to memory is needed."""
        return not self.spaces.isdisjoint(_written(ins))

    def leaves_out(self, ins: Instruction) -> bool:
        """Whether an instruction is not executed."""
        return is_left_out(ins) and not self.computes(ins)


def is_left_out(ins: Instruction) -> bool:
    """Whether an instruction is not executed where its result is not needed; carries are not followed."""
    carries = "cc" in ins.modifiers or ins.opcode in ("addc", "subc", "madc")
    return ins.opcode in _LEFT_OUT or (ins.opcode in ELEMENTWISE and not carries)


def needed_values(function: Function) -> NeededValues | None:
    """The needed values of a function, worked out once for it; None: all, of one that copies in bulk."""
    if NeededValues not in function.memo:
        function.memo[NeededValues] = _needed(function)
    needed: NeededValues | None = function.memo[NeededValues]
    return needed


def _needed(function: Function) -> NeededValues | None:
    instructions = function.instructions
    if any(ins.opcode in ("tcgen05", "tensormap", "mbarrier") or "bulk" in ins.modifiers for ins in instructions):
        return None
    uses = DefUse.of(function)
    stores = [(ins, there) for ins in instructions if (there := _written(ins))]
    registers: set[str] = set()
    spaces: set[str] = set()
    waiting = [*steering_registers(function), *(name for ins in instructions for name in _always_read(ins))]
    while waiting:
        name = waiting.pop()
        if name in registers:
            continue
        registers.add(name)
        for place in uses.writers.get(name, ()):
            ins = instructions[place]
            waiting += ins.sources
            for memory in _read(ins) - spaces:
                waiting += _need_memory(memory, spaces, stores)
    return NeededValues(frozenset(registers), frozenset(spaces))


def _always_read(ins: Instruction) -> Iterable[str]:
    """The registers whose values an instruction needs, whoever needs its result."""
    if ins.predicate is not None:
        yield ins.predicate[0]
    if is_warp_synchronous(ins):
        yield from registers_of(lane_mask(ins))
    if is_left_out(ins):
        return
    if ins.opcode in _PRODUCTS:  # descriptors, addresses and strides
        yield from (name for o in ins.operands if not isinstance(o, Vector) for name in registers_of(o))
    elif ins.opcode in _ADDRESS_ONLY:
        yield from ins.addresses
    else:
        yield from ins.sources


def _read(ins: Instruction) -> frozenset[str]:
    """The memories that an instruction loads from."""
    loads = ins.opcode in _READ and not (ins.opcode == "wmma" and ins.modifiers[0] != "load")
    return _memories(ins) if loads else frozenset()


def _written(ins: Instruction) -> frozenset[str]:
    """The memories that an instruction stores to."""
    stores = ins.opcode in _WRITTEN and not (ins.opcode == "wmma" and ins.modifiers[0] != "store")
    return _memories(ins) if stores else frozenset()


def _memories(ins: Instruction) -> frozenset[str]:
    """The memories that an instruction accesses; of a generic address all."""
    if ins.opcode in ("tex", "tld4", "suld", "sust", "sured"):
        return frozenset({"global"})
    if ins.opcode in ("cp", "wgmma"):  # what `wgmma` reads, and where copies that are not in bulk go to
        return frozenset({"shared"})
    named = {mark.partition("::")[0] for mark in ins.modifiers} & (_SPACES | _CONSTANT)
    return frozenset(named - _CONSTANT) if named else _SPACES


def _need_memory(memory: str, spaces: set[str], stores: list[tuple[Instruction, frozenset[str]]]) -> list[str]:
    """Adds a memory to those whose contents are needed; the registers that are then needed by the `stores` to it."""
    spaces.add(memory)
    names: list[str] = []
    for ins, there in stores:
        if memory in there:
            names += ins.sources
            if ins.opcode == "cp" and "global" not in spaces:
                names += _need_memory("global", spaces, stores)
    return names
