"""Find code that the assembler predicates, and registers that differ between the threads of a warp.

The assembler replaces a branch over a short piece of code by predicates, so every warp executes that piece.
`tools/evidence counters` compares the resulting counts with the hardware counters of a GPU.
"""

from collections import Counter
from collections.abc import Mapping, Sequence, Set
from itertools import pairwise

from kernrec.ptx.analysis.def_use import DefUse, with_local_names
from kernrec.ptx.analysis.dependence import loads_global
from kernrec.ptx.analysis.issue_cost import classify
from kernrec.ptx.ir.operand import Symbol
from kernrec.ptx.ir.program import BasicBlock, Function

_VARYING = ("%tid", "%laneid", "%lanemask", "%clock", "%globaltimer")
_MIXING = frozenset({"atom", "shfl", "ldmatrix", "mma", "wgmma", "tcgen05", "movmatrix"})


def divergent_registers(function: Function, def_use: DefUse) -> set[str]:
    """Return the registers whose values may differ between the threads of a warp.

    A register diverges if its value depends on the thread index, on a load with a divergent address, on an atomic
    operation or on a warp exchange. It also diverges if it is written both in code that a divergent branch may skip and
    elsewhere, or if it is written in a loop that threads leave at different times and read after the loop. All code
    between a branch and its target counts as code that the branch may skip, because this is how compilers order code.
    """
    instructions = function.instructions
    divergent: set[str] = set()
    regions: set[int] = set()  # Divergent branches whose effect on later code was already taken into account.
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
                    # Values differ between threads if only some threads wrote the register, or if some left a loop
                    # earlier than others.
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
"""Maximum number of machine instructions that the assembler executes under predicates instead of branching
over them."""
_MOST_PREDICATED_LOADING = 20
"""Value of `_MOST_PREDICATED` for code that loads from global memory. It is higher, because a branch would delay the
load. Both limits were found by compiling code of various lengths, with arithmetic, loads and stores, with ptxas 13.5
for sm_75, sm_86, sm_90 and sm_120."""
_MOST_GUARDS = 6
"""Maximum number of branches in one piece of machine code whose predicates must be kept in registers until a load has
finished. A thread has seven predicates (P0 to P6 in NVIDIA's "CUDA Binary Utilities"), and the enclosing loop is
assumed to use one. ptxas 13 keeps five loads with such predicates in flight. A predicate that guards only loads can be
reused as soon as they are issued, so ptxas 13.5 keeps sixteen loads of this kind in flight."""
_STAYS = frozenset(
    {
        "bar", "barrier", "shfl", "mma", "wmma", "wgmma", "tcgen05", "vote", "match", "redux", "ldmatrix", "bra", "brx",
        "call", "trap", "atom", "red",
    }
)  # fmt: skip


_REMOVED = frozenset({"mov", "ld_const"})
"""Classes of PTX instructions most of which the assembler removes."""
_INTEGER = frozenset({"alu", "imad", "wide64"})
"""Classes of PTX instructions that the uniform datapath executes if their operands are equal in all threads."""
_LONG = frozenset({"s64", "u64", "f64"})


def lowered(function: Function) -> list[dict[str, int]]:
    """For each basic block of a function without calls, return the number of machine instructions by class.

    This is an estimate from PTX, which counts each instruction separately, without moves and constants. Code that the
    assembler predicates counts for the block before it. The result is cached in the function.
    """
    if lowered not in function.memo:
        function.memo[lowered] = _lowered(function)
    issue: list[dict[str, int]] = function.memo[lowered]
    return issue


def _lowered(function: Function) -> list[dict[str, int]]:
    function = with_local_names(function)
    blocks, entered = function.blocks, _entered(function)
    divergent = divergent_registers(function, DefUse.of(function))
    issue = [_issue(block, divergent) for block in blocks]
    for head in reversed(range(len(blocks) - 1)):
        body = head + 1
        if _skips(function, blocks[head]) != body + 1 or entered.get(body) or not _is_short(blocks[body], issue[body]):
            continue
        issue[head] = Counter(issue[head]) + Counter(issue[body]) - Counter(branch=1)
        issue[body] = {}
    return issue


def _issue(block: BasicBlock, divergent: Set[str]) -> dict[str, int]:
    issue: Counter[str] = Counter()
    for ins in block.instructions:
        uniform = divergent.isdisjoint(ins.results | ins.sources)
        for name, count in classify(ins):
            if name == "cvt" and not _LONG.isdisjoint(ins.modifiers):
                issue["cvt64"] += count
            elif name not in _REMOVED:
                issue["uniform" if uniform and name in _INTEGER else name] += count
    return dict(issue)


def _is_short(block: BasicBlock, issue: Mapping[str, float]) -> bool:
    """Return whether the assembler executes a block under predicates instead of branching over it."""
    if any(ins.opcode in _STAYS for ins in block.instructions):
        return False
    loads = any(map(loads_global, block.instructions))
    return sum(issue.values()) <= (_MOST_PREDICATED_LOADING if loads else _MOST_PREDICATED)


def straightened(function: Function, issue: Sequence[Mapping[str, float]]) -> list[list[BasicBlock]]:
    """Group the basic blocks of a function into pieces within which the assembler moves instructions freely.

    The assembler can move instructions across a branch that it has replaced by a predicate. For example, if an unrolled
    loop checks the bounds before each load, the machine code issues all loads first and then waits once.

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
    """Return the target of the conditional branch that ends a basic block. If no such branch ends it, return None."""
    return None if block.instructions[-1].predicate is None else _target(function, block)
