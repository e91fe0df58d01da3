"""What a warp issues for each basic block of a kernel, once the assembler has made machine code of it.

The machine does not run PTX. `machine_cost` has the instructions that one PTX instruction becomes, and `folding` those
that disappear into others. Here is what becomes of control flow: a short piece of code behind a branch is executed with
predicates by every warp, and the branch disappears; where threads of a warp may part, two more instructions (BSSY and
BSYNC) bring them together again. `tools/compare_counters.py` holds the result against counters of a real card.
"""

from kernrec.ptx.analysis.def_use import DefUse, with_local_names
from kernrec.ptx.analysis.divergence import divergent_registers
from kernrec.ptx.analysis.folding import folded_costs
from kernrec.ptx.ir.program import Function, Symbol

_MOST_PREDICATED = 7
"""Machine instructions behind a branch that are executed with predicates instead."""
_PROLOGUE = 1  # the stack pointer
_STAYS = frozenset(
    {
        "bar", "barrier", "shfl", "mma", "wmma", "wgmma", "tcgen05", "vote", "match", "redux", "ldmatrix", "bra", "brx",
        "call", "trap",
    }
)  # fmt: skip


def lowered(function: Function) -> list[dict[str, int]]:
    """Machine instructions by class for each basic block of a function without calls."""
    return _Lowering(function).issue


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
        blocks = self.function.blocks
        entered: dict[int, int] = {}
        for block in blocks:
            last = block.instructions[-1]
            if last.opcode == "bra" and isinstance(last.operands[0], Symbol):
                target = self.function.block_index[last.operands[0].name]
                entered[target] = entered.get(target, 0) + 1
        gone: set[int] = set()
        for head in reversed(range(len(blocks) - 1)):
            last = blocks[head].instructions[-1]
            if last.opcode != "bra" or last.predicate is None or not isinstance(last.operands[0], Symbol):
                continue
            target, body = self.function.block_index[last.operands[0].name], head + 1
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
            last = block.instructions[-1]
            if last.opcode != "bra" or last.predicate is None or last.predicate[0] not in self.divergent:
                continue
            if block.index in predicated or not isinstance(last.operands[0], Symbol):
                continue
            target = self.function.block_index[last.operands[0].name]
            join, head = (target, block.index) if target > block.index else (block.index + 1, max(target - 1, 0))
            if join < len(blocks) and blocks[join].instructions[0].opcode not in ("ret", "exit"):
                joins[join] = min(joins.get(join, head), head)
        for join, head in joins.items():
            self._add(head, "converge", 1)
            self._add(join, "converge", 1)
