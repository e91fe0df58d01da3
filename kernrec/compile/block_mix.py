"""Count the machine instructions that the assembler generated for each PTX basic block, by class.

Line information relates each machine instruction to a PTX line. The assembler keeps neither blocks nor loops:

- It unrolls loops. If machine code contains n copies of a block, each instruction of the copies counts as 1/n.
- It moves code. An instruction that left its loop counts for the block before the loop.
- It replaces branches by predicates. The code after such a branch counts for the block before the branch.

A block is only counted if its loads and stores move as many bytes as in PTX, and if it calls no subroutine. Other
blocks are estimated by `kernrec.ptx.analysis.lowering`. The slow paths of divisions and roots are not counted.
"""

from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from kernrec.compile.compiled import Compiled
from kernrec.compile.machine_code import LEAVES, MachineCode, MachineInstruction
from kernrec.ptx.analysis.issue_cost import machine_cost
from kernrec.ptx.analysis.liveness import successors
from kernrec.ptx.analysis.lowering import lowered
from kernrec.ptx.ir.operand import size_of
from kernrec.ptx.ir.program import Function, Instruction, cached_by_form
from kernrec.util.light_dataclass import dataclass

_MEMORY = frozenset({"ld_global", "st_global", "ld_shared", "st_shared", "atomic", "cp_async"})
_KEPT = _MEMORY | {"bar", "shfl", "mma"}
"""Classes of instructions that the assembler may merge, but neither adds nor removes."""
_COUNTED = _KEPT | {"fma32", "mufu", "f64"}
"""Classes of instructions that kernrec counts to estimate how often the assembler copied a block."""
_UNMOVED = frozenset({"param", "const", "local", "argument"})
"""State spaces whose loads and stores are not compared with machine code."""
_TOLERANCE = 0.25
"""Maximum relative difference between the bytes that a block's loads and stores move in PTX and in machine code."""
_MOST_MISSING, _MOVED = 1.5, 6
_MOST_ADDED, _UNROLLING = 3.0, 40
_ENOUGH_VOTES = 0.25
_LARGEST = 10_000_000
"""Maximum of (number of machine instructions) * (number of branches). Larger kernels are estimated from PTX."""


@dataclass(frozen=True)
class BlockMix:
    """Machine instructions of each basic block of a PTX function."""

    issue: Sequence[Mapping[str, float]]
    """Machine instructions of one execution of each basic block, keyed by class."""
    from_code: list[bool]
    """Whether each basic block was counted in machine code, not estimated from PTX."""


def block_mix(function: Function, code: MachineCode) -> BlockMix:
    """Return the machine instructions of each basic block of a PTX function without calls.

    Args:
        function: PTX with line numbers.
        code: machine code of the same PTX, with line information.
    """
    return _Matching(function, code).result()


@dataclass(frozen=True)
class _Loop:
    """PTX loop that is also a loop in machine code."""

    first: int
    last: int
    positions: frozenset[int]
    """Indices of the machine instructions of all copies of the loop."""

    def holds(self, block: int) -> bool:
        return self.first <= block <= self.last


@dataclass(frozen=True)
class _Charge:
    """Assignment of a machine instruction to a basic block. Several blocks may share an instruction."""

    origin: int
    """Index of a basic block that contains the instruction's PTX line."""
    target: int
    """Index of the basic block that executes the instruction."""
    share: float
    """Fraction of the instruction that counts: 1 / number of basic blocks that contain its PTX line."""
    machine: MachineInstruction
    is_inside: bool
    """Whether `target` executes the code of `origin`, so the assembler did not move the instruction."""


class MachineLowering:
    """Counter of machine instructions per basic block. It estimates the instructions from PTX if necessary."""

    def __init__(self, compiled: Compiled, sm: int, entry: str) -> None:
        self._code = compiled.machine_code(sm).get(entry)
        self._form = (BlockMix, self._code and _form(self._code))

    def __call__(self, function: Function) -> Sequence[Mapping[str, float]]:
        return self.mix(function).issue

    def mix(self, function: Function) -> BlockMix:
        """Return the `BlockMix` of a function without calls."""
        # Cache the result like `cached_by_form`, because it depends only on the forms of the function and the code.
        memo = function.form_memo
        mix: BlockMix | None = memo.get(self._form)
        if mix is None:
            if self._code is not None and _is_small(self._code):
                mix = block_mix(function, self._code)
            else:
                mix = BlockMix([*lowered(function)], [False] * len(function.blocks))
            memo[self._form] = mix
        return mix


def _form(code: MachineCode) -> tuple[object, ...]:
    """Return a key of machine code that omits literals. Codes with equal keys have equal decoded instructions."""
    low, high = np.frombuffer(code.content, "<u8").reshape(-1, 2).T
    is_branch = low & 0x1E0 == 0x140
    # In form 1, bits 32 to 39 are the register of a factor (see `opcode_of`). Only branches need higher bits.
    of_low = np.where(is_branch, _bits(64), np.where(low & 0xE00 == 0x200, _bits(40), _bits(32)))
    # Bit 11 belongs to the size field of loads and stores, but to the literal of LEA and ULEA.
    of_high = np.where(is_branch, _bits(18), np.where(low & 0x17F == 0x11, _bits(11), _bits(12)))
    return (low & of_low).tobytes(), (high & of_high).tobytes(), code.lines, code.labels, code.slow_paths, code.sm


def _bits(count: int) -> np.uint64:
    return np.uint64((1 << count) - 1)


class _Matching:
    def __init__(self, function: Function, code: MachineCode) -> None:
        self.function = function
        self.estimated = lowered(function)
        self.starts = code.starts
        self.code = code.instructions
        # For each PTX line, indices of the basic blocks that contain it. Inlining copies a line to several blocks.
        self.places: dict[int, list[int]] = defaultdict(list)
        self.ptx: dict[int, Instruction] = {}
        for block in function.blocks:
            for ins in block.instructions:
                self.places[ins.line].append(block.index)
                self.ptx[ins.line] = ins
        self.countable = [ins for ins in self.code if ins.name in _KEPT]
        self.loops = self._loops()
        self.heads = self._heads()

    def result(self) -> BlockMix:
        charges = list(self._charges())
        copies, related = self._copies(charges)
        issue: list[dict[str, float]] = [{} for _ in self.function.blocks]
        for charge in charges:
            mix = issue[charge.target]
            place = charge.origin if charge.is_inside else charge.target
            name = charge.machine.name
            mix[name] = mix.get(name, 0.0) + charge.share / copies[place]
        moved = self._bytes_moved(charges, copies)
        called = {block for ins in self.code if ins.opcode == "CALL" for block in self.places.get(ins.line, ())}
        matched = []
        for block in self.function.blocks:
            index, estimate = block.index, self.estimated[block.index]
            actual, expected = sum(issue[index].values()), sum(estimate.values())
            # The counts may differ: ptxas moves instructions to other blocks, and adds code before unrolled loops.
            near = expected <= _MOST_MISSING * actual + _MOVED and actual <= _MOST_ADDED * expected + _UNROLLING
            same = index in related or self.heads.get(index, index) != index or near
            stated = _bytes_of_blocks(self.function)[index]
            matched.append(same and index not in called and abs(moved[index] - stated) <= _TOLERANCE * stated)
            if not matched[-1]:
                issue[index] = {name: float(count) for name, count in estimate.items()}
        return BlockMix(issue, matched)

    def _charges(self) -> Iterator[_Charge]:
        targets: dict[tuple[int, tuple[bool, ...]], int] = {}
        for ins in self.code:
            is_local = ins.name in ("ld_local", "st_local")
            if is_local and (ins.line not in self.ptx or "local" not in self.ptx[ins.line].modifiers):
                continue  # Skip spills, because their costs are computed from the kernel's resources.
            blocks = self.places.get(ins.line, ())
            runs = tuple([ins.position in loop.positions for loop in self.loops])
            for block in blocks:
                if (target := targets.get((block, runs))) is None:
                    target = targets[block, runs] = self._target(block, runs)
                is_inside = target == self.heads.get(block, block)
                yield _Charge(block, target, 1.0 / len(blocks), ins, is_inside)

    def _target(self, block: int, runs: Sequence[bool]) -> int:
        """Return the block that executes an instruction. `block` has its PTX line. `runs` marks the loops around it."""
        around = [loop for loop, is_run in zip(self.loops, runs, strict=True) if is_run]
        if around and not around[-1].holds(block):
            block = around[-1].first  # The assembler moved the instruction into a loop.
        for loop, is_run in zip(self.loops, runs, strict=True):
            if not is_run and loop.holds(block):
                block = max(loop.first - 1, 0)  # The assembler moved the instruction out of a loop.
                break
        return self.heads.get(block, block)

    def _copies(self, charges: Sequence[_Charge]) -> tuple[list[float], set[int]]:
        """Return the number of unrolled copies of each block, and the blocks whose copies could be counted."""
        counts: Counter[tuple[int, int, str]] = Counter()
        for charge in charges:
            if charge.is_inside and charge.machine.name in _COUNTED:
                counts[charge.origin, charge.machine.line, charge.machine.name] += 1
        anchors: dict[int, Counter[float]] = defaultdict(Counter)
        other: dict[int, Counter[float]] = defaultdict(Counter)
        for (block, line, name), count in counts.items():
            cost = dict(machine_cost(self.ptx[line]))
            if name in cost:
                number = count / len(self.places[line]) * self.places[line].count(block) / cost[name]
                (anchors if name in _KEPT else other)[block][number] += 1
        copies = [1.0] * len(self.function.blocks)
        for block in range(len(copies)):
            # Each instruction suggests a number of unrolled copies. Use the largest: merged loads suggest too few.
            votes = anchors[block] + other[block]
            often = [number for number, count in votes.items() if count >= _ENOUGH_VOTES * votes.total()]
            if votes:
                copies[block] = max(*often, 1.0, votes.most_common(1)[0][0])
        related = {block for votes in (anchors, other) for block, of_block in votes.items() if of_block}
        for first, last in sorted(_ptx_loops(self.function), key=lambda loop: loop[1] - loop[0]):
            inside = [copies[block] for block in range(first, last + 1) if block in related]
            for block in range(first, last + 1):
                if inside and block not in related:
                    copies[block] = Counter(inside).most_common(1)[0][0]
        return copies, related

    def _bytes_moved(self, charges: Sequence[_Charge], copies: Sequence[float]) -> list[float]:
        moved = [0.0] * len(self.function.blocks)
        for charge in charges:
            machine = charge.machine
            if charge.is_inside and machine.name in _MEMORY and _moves_bytes(self.ptx[machine.line]):
                moved[charge.origin] += machine.moved_bytes * charge.share / copies[charge.origin]
        return moved

    def _heads(self) -> dict[int, int]:
        """Map each block that follows a predicated branch to the block with the branch."""
        lines = {ins.line for ins in self.code if ins.opcode in LEAVES}
        entries = Counter(after for block in self.function.blocks for after in successors(self.function, block.index))
        heads: dict[int, int] = {}
        for block in self.function.blocks:
            last = block.instructions[-1]
            following = successors(self.function, block.index)
            if last.opcode != "bra" or last.predicate is None or last.line in lines or min(following) <= block.index:
                continue  # Skip a branch that is not conditional, goes backward, or still exists in machine code.
            for after in following:
                if entries[after] == 1:
                    heads[after] = heads.get(block.index, block.index)
        return heads

    def _loops(self) -> list[_Loop]:
        loops = _ptx_loops(self.function)
        ranges: dict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)
        positions = [ins.position for ins in self.code]
        first_block = [self.places[ins.line][0] if ins.line in self.places else None for ins in self.code]
        for number, ins in enumerate(self.code):
            start, position = ins.target, ins.position
            if ins.opcode != "BRA" or start is None or start >= position:
                continue
            blocks = sorted(b for b in first_block[bisect_left(positions, start) : number + 1] if b is not None)
            around = [(a, z) for a, z in loops if 2 * (bisect_right(blocks, z) - bisect_left(blocks, a)) > len(blocks)]
            if around:
                ranges[min(around, key=lambda loop: loop[1] - loop[0])].append((start, position))
        surviving = sorted(ranges, key=lambda loop: loop[0] - loop[1])
        return [
            _Loop(*loop, frozenset(p for first, last in of_loop for p in range(first, last + 1)))
            for loop in surviving
            for of_loop in [(*ranges[loop], *self._peeled(loop, ranges[loop]))]
        ]

    def _peeled(self, loop: tuple[int, int], ranges: Sequence[tuple[int, int]]) -> Iterator[tuple[int, int]]:
        """Yield the ranges of machine code for iterations that the assembler peeled off a loop."""
        inside, outside = set(), []
        for ins in self.countable:
            if any(loop[0] <= b <= loop[1] for b in self.places.get(ins.line, ())):
                if any(first <= ins.position <= last for first, last in ranges):
                    inside.add(ins.line)
                else:
                    outside.append((ins.position, ins.line))
        for position, line in outside:
            if line in inside:
                place = bisect_right(self.starts, position)
                yield self.starts[place - 1], self.starts[place] - 1


def _is_small(code: MachineCode) -> bool:
    branches = sum(ins.opcode == "BRA" for ins in code.instructions)
    return len(code.instructions) * (1 + branches) <= _LARGEST


@cached_by_form
def _ptx_loops(function: Function) -> list[tuple[int, int]]:
    last: dict[int, int] = {}
    for block in function.blocks:
        for after in successors(function, block.index):
            if after <= block.index:
                last[after] = max(last.get(after, after), block.index)
    return sorted(last.items())


def _moves_bytes(ins: Instruction) -> bool:
    return ins.opcode in ("ld", "ldu", "st") and _UNMOVED.isdisjoint(ins.modifiers)


@cached_by_form
def _bytes_of_blocks(function: Function) -> list[float]:
    widths = {"v2": 2, "v4": 4, "v8": 8}
    totals = [0.0] * len(function.blocks)
    for block in function.blocks:
        for ins in block.instructions:
            if _moves_bytes(ins):
                width = next((widths[m] for m in ins.modifiers if m in widths), 1)
                totals[block.index] += size_of(ins.modifiers[-1]) * width
    return totals
