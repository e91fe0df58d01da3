"""Estimate the machine instructions of each basic block after assembly, including the effects of control flow.

The assembler replaces branches over short code by predicates, so every warp executes this code. Threads that may
diverge need two more machine instructions (BSSY and BSYNC). `tools/evidence counters` compares the result with GPU
counters.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import pairwise

from kernrec.ptx.analysis.def_use import DefUse, with_local_names
from kernrec.ptx.analysis.dependence import loads_global
from kernrec.ptx.analysis.folding import folded_costs
from kernrec.ptx.ir.operand import Symbol
from kernrec.ptx.ir.program import BasicBlock, Function, cached_by_form

_VARYING = ("%tid", "%laneid", "%lanemask", "%clock", "%globaltimer")
_MIXING = frozenset({"atom", "shfl", "ldmatrix", "mma", "wgmma", "tcgen05", "movmatrix"})


def divergent_registers(function: Function, def_use: DefUse) -> set[str]:
    """Return the registers whose values may differ between the threads of a warp.

    They depend on the thread index, on a divergent load, on an atomic operation or on a warp exchange. A register also
    diverges if only some threads write it.
    """
    instructions = function.instructions
    divergent: set[str] = set()
    regions: set[int] = set()  # Divergent branches that were already handled.
    work = [position for position, ins in enumerate(instructions) if ins.opcode in _MIXING]
    work += [place for name, places in def_use.readers.items() if name.startswith(_VARYING) for place in places]
    while work:
        position = work.pop()
        ins = instructions[position]
        names = ins.results - divergent
        divergent |= names
        for name in names:
            work += def_use.readers.get(name, ())
        if ins.opcode == "bra" and position not in regions:
            regions.add(position)
            region = _under(function, position)
            backward = region.stop == position
            for inside in region:
                for name in instructions[inside].results:
                    # Lanes differ if only some of them wrote the register, or if some left a loop earlier.
                    places = def_use.readers[name] if backward else def_use.writers[name]
                    if name not in divergent and any(place not in region for place in places):
                        divergent.add(name)
                        work += def_use.readers.get(name, ())
    return divergent


def _under(function: Function, position: int) -> range:
    """Return the indices of the instructions that only some threads execute if the branch at `position` diverges."""
    label = function.instructions[position].operands[0]
    target = function.labels.get(label.name, position) if isinstance(label, Symbol) else position
    return range(target, position) if target <= position else range(position + 1, target)


_MOST_PREDICATED = 8
"""Maximum number of machine instructions that the assembler predicates instead of branching over them."""
_MOST_PREDICATED_LOADING = 20
"""Maximum for code that loads from global memory. ptxas 13.5 uses both maximums for sm_75 to sm_120."""
_MOST_GUARDS = 6
"""Maximum number of consecutive basic blocks with predicates instead of branches, if the blocks use loaded values.

A thread has seven predicates (NVIDIA's "CUDA Binary Utilities"), and the enclosing loop uses one. ptxas 13 issues five
predicated loads at a time, or sixteen if their predicates guard only loads and can be reused.
"""
_PROLOGUE = 1  # Number of machine instructions that set the stack pointer.
_STAYS = frozenset(
    {
        "bar", "barrier", "shfl", "mma", "wmma", "wgmma", "tcgen05", "vote", "match", "redux", "ldmatrix", "bra", "brx",
        "call", "trap", "atom", "red",
    }
)  # fmt: skip


@cached_by_form
def lowered(function: Function) -> list[dict[str, int]]:
    """Return the machine instructions of each basic block of a function without calls, by class."""
    return _Lowering(function).issue


def straightened(function: Function, issue: Sequence[Mapping[str, float]]) -> list[list[BasicBlock]]:
    """Group the basic blocks of a function into pieces within which the assembler moves instructions freely.

    The assembler moves instructions across a branch that it has replaced by a predicate. For example, an unrolled loop
    with bounds checks first issues all loads and then waits once.

    Args:
        function: function without calls.
        issue: result of `lowered`.
    """
    entered, pieces, predicated, guards = _entered(function), [[function.blocks[0]]], False, 0
    for before, block in pairwise(function.blocks):
        branches = entered.get(block.index, 0)
        if predicated and branches == 1 and guards < _MOST_GUARDS:
            predicated = False
        else:
            skips = _skips(function, before) == block.index + 1
            predicated = skips and not branches and not any(issue[block.index].values())
            if predicated:
                guards += _uses_load(block)
            else:
                pieces.append([])
                guards = 0
        pieces[-1].append(block)
    return pieces


def _uses_load(block: BasicBlock) -> bool:
    loaded: set[str] = set()
    for ins in block.instructions:
        if not loaded.isdisjoint(ins.sources):
            return True
        if loads_global(ins):
            loaded |= ins.results
    return False


def _entered(function: Function) -> dict[int, int]:
    targets = [_target(function, block) for block in function.blocks]
    return Counter(target for target in targets if target is not None)


def _target(function: Function, block: BasicBlock) -> int | None:
    last = block.instructions[-1]
    if last.opcode != "bra" or not isinstance(last.operands[0], Symbol):
        return None
    return function.block_index[last.operands[0].name]


def _skips(function: Function, block: BasicBlock) -> int | None:
    """Return the target of the conditional branch that ends a basic block. Return None if there is no such branch."""
    return None if block.instructions[-1].predicate is None else _target(function, block)


class _Lowering:
    def __init__(self, function: Function) -> None:
        function = self.function = with_local_names(function)
        self.def_use = DefUse.of(function)
        self.divergent = divergent_registers(function, self.def_use)
        self.issue: list[dict[str, int]] = [{} for _ in function.blocks]
        costs = folded_costs(function, self.def_use, self.divergent)
        for block, cost in zip(self.def_use.block_of, costs, strict=True):
            issue = self.issue[block]
            for name, count in cost:
                issue[name] = issue.get(name, 0) + count
        self._add(0, "move", _PROLOGUE)
        predicated = self._predicate_short_branches()
        self._reconverge(predicated)

    def _add(self, block: int, name: str, count: int) -> None:
        self.issue[block][name] = self.issue[block].get(name, 0) + count

    def _predicate_short_branches(self) -> set[int]:
        """Replace short branches by predicates. Return the indices of the basic blocks whose branch was replaced."""
        blocks, entered = self.function.blocks, _entered(self.function)
        gone: set[int] = set()
        for head in reversed(range(len(blocks) - 1)):
            target, body = _skips(self.function, blocks[head]), head + 1
            if target != body + 1 or entered.get(body) or not self._short(body):
                continue
            for name, count in self.issue[body].items():
                self._add(head, name, count)
            self.issue[body] = {}
            self._add(head, "branch", -1)
            gone.add(head)
        return gone

    def _short(self, body: int) -> bool:
        instructions = self.function.blocks[body].instructions
        if any(ins.opcode in _STAYS for ins in instructions):
            return False
        most = _MOST_PREDICATED_LOADING if any(map(loads_global, instructions)) else _MOST_PREDICATED
        return sum(self.issue[body].values()) <= most

    def _reconverge(self, predicated: set[int]) -> None:
        blocks = self.function.blocks
        # First block with a divergent branch, keyed by the block where threads reconverge
        joins: dict[int, int] = {}
        for block in blocks:
            target, predicate = _skips(self.function, block), block.instructions[-1].predicate
            if target is None or predicate is None or predicate[0] not in self.divergent or block.index in predicated:
                continue
            join, head = (target, block.index) if target > block.index else (block.index + 1, max(target - 1, 0))
            if join < len(blocks) and blocks[join].instructions[0].opcode not in ("ret", "exit"):
                joins[join] = min(joins.get(join, head), head)
        for join, head in joins.items():
            self._add(head, "converge", 1)
            self._add(join, "converge", 1)
