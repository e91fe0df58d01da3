"""Machine instructions that a warp issues for each basic block of a kernel, once the assembler has made code of it.

The machine does not run PTX. `machine_cost` has the instructions that one PTX instruction becomes, and `folding` those
that disappear into others. Here is what becomes of control flow: a short piece of code behind a branch is executed with
predicates by every warp, and the branch disappears; where threads of a warp may part, two more instructions (BSSY and
BSYNC) bring them together again. `tools/evidence counters` holds the result against counters of a real card.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import pairwise

from kernrec.ptx.analysis.def_use import DefUse, with_local_names
from kernrec.ptx.analysis.folding import folded_costs
from kernrec.ptx.ir.operand import Symbol
from kernrec.ptx.ir.program import BasicBlock, Function

_VARYING = ("%tid", "%laneid", "%lanemask", "%clock", "%globaltimer")
_MIXING = frozenset({"atom", "shfl", "ldmatrix", "mma", "wgmma", "tcgen05", "movmatrix"})


def divergent_registers(function: Function, def_use: DefUse) -> set[str]:
    """The registers that may differ between the threads of a warp.

    They follow from the number of the thread, from a load whose address is divergent, from an atomic operation or an
    exchange within the warp; or they are written under a divergent branch and elsewhere as well, or in a loop that
    threads leave at different times and read behind it. Code between a forward branch and its target, or between the
    target of a backward branch and the branch, counts as under the branch: compilers lay code out that way.
    """
    instructions = function.instructions
    divergent: set[str] = set()
    regions: set[int] = set()  # divergent branches that were spread over the code below them
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
                    # Threads disagree where some wrote a register and others did not, or left a loop earlier.
                    places = def_use.readers[name] if backward else def_use.writers[name]
                    if name not in divergent and any(place not in region for place in places):
                        divergent.add(name)
                        work += def_use.readers.get(name, ())
    return divergent


def _under(function: Function, position: int) -> range:
    """The instructions that only some threads run if a branch parts them."""
    label = function.instructions[position].operands[0]
    target = function.labels.get(label.name, position) if isinstance(label, Symbol) else position
    return range(target, position) if target <= position else range(position + 1, target)


_MOST_PREDICATED = 7
"""Machine instructions behind a branch that are executed with predicates instead."""
_MOST_GUARDS = 6
"""Branches of one piece that become predicates: a thread has seven (P0 to P6 in NVIDIA's "CUDA Binary Utilities"), of
which one is taken for what ends the loop around (assumption; ptxas 13 has five such loads in flight at once)."""
_PROLOGUE = 1  # the stack pointer
_STAYS = frozenset(
    {
        "bar", "barrier", "shfl", "mma", "wmma", "wgmma", "tcgen05", "vote", "match", "redux", "ldmatrix", "bra", "brx",
        "call", "trap",
    }
)  # fmt: skip


def lowered(function: Function) -> list[dict[str, int]]:
    """Machine instructions by class for each basic block of a function without calls, worked out once for it."""
    if _Lowering not in function.memo:
        function.memo[_Lowering] = _Lowering(function).issue
    issue: list[dict[str, int]] = function.memo[_Lowering]
    return issue


def straightened(function: Function, issue: Sequence[Mapping[str, int]]) -> list[list[BasicBlock]]:
    """The basic blocks of a function, together where they are one piece of machine code.

    Behind a branch that became a predicate, the assembler moves instructions as if there were none: of an unrolled loop
    that checks bounds before each load, it issues the loads one after the other and waits for all of them together.

    Args:
        function: without calls.
        issue: what `lowered` makes of it.
    """
    entered, pieces, predicated = _entered(function), [[function.blocks[0]]], False
    for before, block in pairwise(function.blocks):
        branches = entered.get(block.index, 0)
        if predicated and branches == 1 and len(pieces[-1]) < 2 * _MOST_GUARDS:
            predicated = False
        else:
            skips = _skips(function, before) == block.index + 1
            predicated = skips and not branches and not any(issue[block.index].values())
            if not predicated:
                pieces.append([])
        pieces[-1].append(block)
    return pieces


def _entered(function: Function) -> dict[int, int]:
    """How many branches lead to a basic block, by its index."""
    targets = [_target(function, block) for block in function.blocks]
    return Counter(target for target in targets if target is not None)


def _target(function: Function, block: BasicBlock) -> int | None:
    """The basic block to which the branch at the end of one leads; None: it does not end with one."""
    last = block.instructions[-1]
    if last.opcode != "bra" or not isinstance(last.operands[0], Symbol):
        return None
    return function.block_index[last.operands[0].name]


def _skips(function: Function, block: BasicBlock) -> int | None:
    """The same of conditional branches."""
    return None if block.instructions[-1].predicate is None else _target(function, block)


class _Lowering:
    def __init__(self, function: Function) -> None:
        function = self.function = with_local_names(function)
        self.def_use = DefUse.of(function)
        self.divergent = divergent_registers(function, self.def_use)
        self.issue: list[dict[str, int]] = [{} for _ in function.blocks]
        costs = folded_costs(function, self.def_use, self.divergent)
        for block, cost in zip(self.def_use.block_of, costs, strict=True):
            for name, count in cost:
                self._add(block, name, count)
        self._add(0, "move", _PROLOGUE)
        predicated = self._predicate_short_branches()
        self._reconverge(predicated)

    def _add(self, block: int, name: str, count: int) -> None:
        self.issue[block][name] = self.issue[block].get(name, 0) + count

    def _predicate_short_branches(self) -> set[int]:
        """Blocks whose conditional branch disappears; their successors' costs become theirs."""
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
        return sum(self.issue[body].values()) <= _MOST_PREDICATED

    def _reconverge(self, predicated: set[int]) -> None:
        """Adds what brings the threads of a warp together behind branches that part them."""
        blocks = self.function.blocks
        joins: dict[int, int] = {}  # block where threads meet again -> the first block that parts them
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
