"""Find PTX instructions that the assembler removes or combines with the instruction that uses their result.

IADD3 adds three integers, LEA adds a shifted integer, LOP3 computes any logic function of three inputs, IMAD.WIDE adds
a product to a 64-bit base, and ISETP.AND combines a comparison with a predicate. Machine instructions also accept
literals, constant memory, address offsets and negated operands directly. Copies disappear if source and destination can
share a register (Chaitin et al., "Register Allocation via Coloring", 1981).
"""

from kernrec.ptx.analysis.def_use import DefUse
from kernrec.ptx.analysis.issue_cost import Cost, machine_cost
from kernrec.ptx.analysis.liveness import live_after
from kernrec.ptx.ir.operand import Address, Immediate, Negated, Register, Symbol, Vector, elements, words
from kernrec.ptx.ir.program import Function, Instruction


def copied(function: Function, ins: Instruction) -> tuple[str, str] | None:
    """Return the destination and source of a copy of a virtual register. Return None for other instructions."""
    if ins.opcode != "mov" or ins.predicate is not None or len(ins.operands) != 2:
        return None
    to, source = ins.operands
    if not (isinstance(to, Register) and isinstance(source, Register)):
        return None
    return None if function.register_type(source.name) is None else (to.name, source.name)


def removed_copies(function: Function) -> set[int]:
    """Return the indices of the copy instructions that the assembler removes."""
    copies = {i: pair for i, ins in enumerate(function.instructions) if (pair := copied(function, ins)) is not None}
    named = {name for pair in copies.values() for name in pair}
    if not named:
        return set()
    conflicts = _conflicts(function, named)
    group = {name: name for name in named}

    def find(name: str) -> str:
        while group[name] != name:
            name = group[name]
        return name

    removed = set()
    for position, (to, source) in copies.items():
        first, second = find(to), find(source)
        if first == second:
            removed.add(position)
        elif second not in conflicts[first]:
            group[second] = first
            for other in conflicts[second]:
                conflicts[other].discard(second)
                conflicts[other].add(first)
            conflicts[first] |= conflicts.pop(second)
            removed.add(position)
    return removed


def _conflicts(function: Function, named: set[str]) -> dict[str, set[str]]:
    """Return the registers with which each register in `named` cannot share a machine register."""
    conflicts: dict[str, set[str]] = {name: set() for name in named}
    for block, after in zip(function.blocks, live_after(function), strict=True):
        live = after & named
        for ins in reversed(block.instructions):
            written = ins.results & named
            pair = copied(function, ins) if written else None
            for name in written:
                others = live - {name} - ({pair[1]} if pair else set())
                conflicts[name] |= others
                for other in others:
                    conflicts[other].add(name)
                if ins.predicate is None:
                    live = live - {name}
            live |= ins.sources & named
    return conflicts


_ACCESS = frozenset({"ld", "ldu", "st", "atom", "red", "cp", "ldmatrix", "stmatrix", "prefetch"})
# Opcodes whose operands must be in registers: they accept neither a literal nor constant memory.
_REGISTERS_ONLY = _ACCESS | {
    "shfl", "mma", "wmma", "wgmma", "tcgen05", "vote", "match", "redux", "mov", "bar", "barrier", "movmatrix",
}  # fmt: skip
_LOGIC = frozenset({"and", "or", "xor", "not"})
_FLOAT = frozenset({"add", "sub", "mul", "fma", "mad", "setp", "min", "max"})
_IN_CONSTANTS = ("%ntid", "%nctaid")  # Special registers whose values are in constant memory.
_NOTHING: Cost = ()


def folded_costs(function: Function, def_use: DefUse, divergent: set[str]) -> list[Cost]:
    """Return the machine instructions of each PTX instruction. Instructions that other instructions absorb have none.

    Args:
        function: function without calls.
        def_use: writers and readers of its registers.
        divergent: registers that may differ between the threads of a warp.
    """
    return _Folding(function, def_use, divergent).costs()


class _Folding:
    def __init__(self, function: Function, def_use: DefUse, divergent: set[str]) -> None:
        self.function = function
        self.def_use = def_use
        self.divergent = divergent
        self.instructions = function.instructions
        self.cost = [machine_cost(ins) for ins in function.instructions]
        self.merged: set[int] = set()  # Sums and logic functions that already include another instruction
        self.factors: set[tuple[int, object]] = set()  # (basic block, literal that a register of the block contains)

    def costs(self) -> list[Cost]:
        for position in removed_copies(self.function):
            self.cost[position] = _NOTHING
        read: set[str] = set()  # Special registers that an earlier instruction has read.
        for position, ins in enumerate(self.instructions):
            if ins.opcode in ("mov", "cvta"):
                self.cost[position] = self._move(position, ins, read)
        for position, ins in enumerate(self.instructions):
            if ins.predicate is None:
                self._fold(position, ins)
        for position, ins in enumerate(self.instructions):
            if self.divergent.isdisjoint(ins.sources) and self.divergent.isdisjoint(ins.results):
                self.cost[position] = self._uniform_cost(position)
            if ins.opcode in ("ld", "ldu") and {"param", "const"} & {*ins.modifiers}:
                self.cost[position] = self._constant(position, ins)
        return self.cost

    def _readers(self, ins: Instruction) -> list[int]:
        return [reader for name in ins.results for reader in self.def_use.readers.get(name, ())]

    def _only_writer(self, ins: Instruction) -> bool:
        return all(self.def_use.writer(name) is not None for name in ins.results)

    def _takes_constant(self, position: int) -> bool:
        ins = self.instructions[position]
        return self._all_take_constants(ins) if ins.opcode == "cvta" else ins.opcode not in _REGISTERS_ONLY

    def _all_take_constants(self, ins: Instruction) -> bool:
        return all(self._takes_constant(reader) for reader in self._readers(ins))

    def _move(self, position: int, ins: Instruction, read: set[str]) -> Cost:
        if ins.opcode == "cvta" or not self.cost[position]:
            return _NOTHING
        to, source = ins.operands[0], ins.operands[1]
        if isinstance(to, Vector):
            # Unpacking is free, because it only names the halves of a register.
            return _NOTHING
        if isinstance(source, Vector):
            packs = ins.modifiers[-1] == "b32" and len(source.items) == 2
            return (("alu", 1),) if packs and not self._made_by_conversion(source) else _NOTHING
        moves = _moves(ins)
        if isinstance(source, Register):
            if self.function.register_type(source.name) is not None:
                return (("move", moves),)
            if source.name in read or source.name.startswith(_IN_CONSTANTS):
                return _NOTHING
            read.add(source.name)
            return (("move", 1),)
        zero = isinstance(source, Immediate) and source.value == 0
        if self._only_writer(ins) and (zero or self._all_take_constants(ins) or isinstance(source, Symbol)):
            return _NOTHING
        return (("move", moves),)

    def _made_by_conversion(self, source: Vector) -> bool:
        for item in source.items:
            writer = self.def_use.writer(item.name) if isinstance(item, Register) else None
            if writer is None or self.instructions[writer].opcode != "cvt":
                return False
        return True

    def _uniform_cost(self, position: int) -> Cost:
        cost = tuple(item for item in self.cost[position] if item[0] != "converge")
        whole = all(name in ("alu", "imad", "wide64") for name, _ in cost)
        return (("uniform", sum(count for _, count in cost)),) if cost and whole else cost

    def _constant(self, position: int, ins: Instruction) -> Cost:
        address = ins.operands[-1]
        if isinstance(address, Address) and isinstance(address.base, Register):
            uniform = address.base.name not in self.divergent
            return (("uniform", sum(count for _, count in self.cost[position])),) if uniform else self.cost[position]
        if self._only_writer(ins) and self._all_take_constants(ins):
            return _NOTHING
        return (("move", _moves(ins)),)

    def _fold(self, position: int, ins: Instruction) -> None:
        kind = ins.modifiers[-1] if ins.modifiers else ""
        opcode = ins.opcode
        if opcode in ("add", "sub") and kind in ("s32", "u32", "b32"):
            self._sum(position, ins)
        elif opcode in ("add", "sub") and kind in ("s64", "u64"):
            self._long_sum(position, ins)
        elif opcode in _LOGIC and kind == "pred":
            self._predicate(position, ins)
        elif opcode in _LOGIC and kind == "b32":
            self._merge(position, ins, _LOGIC)
        elif opcode == "selp":
            self._select(position, ins)
        elif opcode == "setp":
            self._back_to_predicate(position, ins)
        elif opcode in ("neg", "abs") and kind in ("f32", "f64", "f16", "f16x2", "bf16", "bf16x2"):
            readers = self._readers(ins)
            if readers and all(self.instructions[r].opcode in _FLOAT for r in readers):
                self.cost[position] = _NOTHING
        if self.cost[position] and self._only_addresses(ins):
            self.cost[position] = _NOTHING

    def _only_addresses(self, ins: Instruction) -> bool:
        if ins.opcode != "add" or not isinstance(ins.operands[-1], Immediate) or not self._only_writer(ins):
            return False
        name = next(iter(ins.results), "")
        readers = self.def_use.readers.get(name, ())
        return bool(readers) and all(self._addresses_with(self.instructions[reader], name) for reader in readers)

    def _addresses_with(self, ins: Instruction, name: str) -> bool:
        if ins.opcode not in _ACCESS:
            return False
        values = [o for o in ins.operands if not isinstance(o, Address)]
        in_address = any(isinstance(o, Address) and o.base == Register(name) for o in ins.operands)
        return in_address and not any(Register(name) in elements(o) for o in values)

    def _sum(self, position: int, ins: Instruction) -> None:
        """Combine an addition with a shift (LEA) or with another addition (IADD3)."""
        for operand in ins.operands[1:]:
            writer = self._writer_near(operand, position)
            if writer is not None and self.instructions[writer].opcode == "shl" and self._shifts_by_literal(writer):
                self.cost[writer] = _NOTHING
                self.merged.add(position)
                return
        self._merge(position, ins, frozenset({"add", "sub", "neg"}))

    def _merge(self, position: int, ins: Instruction, opcodes: frozenset[str]) -> None:
        """Fold an instruction with an opcode in `opcodes` into `ins` if only `ins` uses the result."""
        kind = ins.modifiers[-1]
        for operand in ins.operands[1:]:
            writer = self._writer_near(operand, position)
            if writer is None or writer in self.merged or not self.cost[writer]:
                continue
            other = self.instructions[writer]
            same = other.modifiers[-1:] in ((kind,), ("s32",), ("u32",), ("b32",)) and other.modifiers[-1] != "pred"
            if other.opcode in opcodes and same and self.def_use.only_reader(_result(other)) == position:
                self.cost[writer] = _NOTHING
                self.merged.add(position)
                return

    def _writer_near(self, operand: object, position: int) -> int | None:
        """Return the index of the instruction that writes an operand, or None if the instruction cannot be folded."""
        if not isinstance(operand, Register):
            return None
        writer = self.def_use.writer(operand.name)
        if writer is None or self.def_use.block_of[writer] != self.def_use.block_of[position]:
            return None
        return None if self.instructions[writer].predicate else writer

    def _shifts_by_literal(self, writer: int) -> bool:
        ins = self.instructions[writer]
        readers = self._readers(ins)
        return isinstance(ins.operands[-1], Immediate) and all(
            self.instructions[r].opcode in ("add", "sub") and self.instructions[r].predicate is None for r in readers
        )

    def _long_sum(self, position: int, ins: Instruction) -> None:
        """Fold a wide product or a shifted value into the 64-bit sum that uses it."""
        for operand in ins.operands[1:]:
            writer = self.def_use.writer(operand.name) if isinstance(operand, Register) else None
            if writer is None:
                continue
            other = self.instructions[writer]
            readers = self._readers(other)
            if not all(self.instructions[r].opcode in ("add", "sub") for r in readers):
                continue
            if other.opcode == "mul" and "wide" in other.modifiers:
                self.cost[writer] = _NOTHING
                self.cost[position] = (("imad", 1), *self._factor(position, other))
                return
            if other.opcode == "shl" and isinstance(other.operands[-1], Immediate):
                self.cost[writer] = _NOTHING
                self._drop_widening(other.operands[1])
                return
            if other.opcode == "cvt":
                self._drop_widening(operand)

    def _factor(self, position: int, product: Instruction) -> Cost:
        """Return the cost of moving a product's literal factor to a register. IMAD.WIDE accepts only one constant."""
        factor = product.operands[-1]
        bases = [
            self.def_use.writer(o.name) for o in self.instructions[position].operands[1:] if isinstance(o, Register)
        ]
        opcodes = {self.instructions[writer].opcode for writer in bases if writer is not None}
        place = (self.def_use.block_of[position], factor)
        if not isinstance(factor, Immediate) or not opcodes & {"cvta", "ld"} or place in self.factors:
            return _NOTHING
        self.factors.add(place)
        return (("move", 1),)

    def _drop_widening(self, operand: object) -> None:
        """Remove the cost of a sign extension that LEA and IADD3 perform themselves."""
        writer = self.def_use.writer(operand.name) if isinstance(operand, Register) else None
        if writer is not None and self.instructions[writer].opcode == "cvt":
            readers = self._readers(self.instructions[writer])
            if all(self.instructions[r].opcode in ("shl", "add", "sub") for r in readers):
                self.cost[writer] = _NOTHING

    def _select(self, position: int, ins: Instruction) -> None:
        """Replace a select instruction by computing the selected value under a predicate, as the assembler does."""
        if (added := self._added_literals(position, ins)) is not None:
            # Only an addition reads the selected literal, so the assembler computes both sums and no selected literal.
            register, total = added
            zero = Immediate(0, "int") in ins.operands[1:3]
            copied_back = _result(total) == register.name
            self.cost[position] = (("move", 1 + copied_back),) if zero else (("alu", 1), ("move", int(copied_back)))
            return
        for new, old in (ins.operands[1:3], ins.operands[2:0:-1]):
            writer = self._writer_near(new, position)
            if writer is None or not isinstance(old, Register) or len(self.cost[writer]) != 1:
                continue
            replaced = all(reader <= position for reader in self.def_use.readers[old.name])
            if replaced and self.def_use.only_reader(_result(self.instructions[writer])) == position:
                self.cost[position] = _NOTHING
                return

    def _added_literals(self, position: int, ins: Instruction) -> tuple[Register, Instruction] | None:
        if not all(isinstance(operand, Immediate) for operand in ins.operands[1:3]) or not self._only_writer(ins):
            return None
        name = _result(ins)
        reader = self.def_use.only_reader(name)
        if reader is None or self.def_use.block_of[reader] != self.def_use.block_of[position]:
            return None
        total = self.instructions[reader]
        others = [operand for operand in total.operands[1:] if operand != Register(name)]
        plain = total.opcode == "add" and total.modifiers == ("s32",) and total.predicate is None
        if not plain or len(others) != 1 or not isinstance(others[0], Register):
            return None
        return others[0], total

    def _back_to_predicate(self, position: int, ins: Instruction) -> None:
        """Remove the conversion of a predicate to a number if the number is only compared with zero."""
        number, zero = ins.operands[1:3]
        if "ne" not in ins.modifiers or zero != Immediate(0, "int") or not isinstance(number, Register):
            return
        writer = self.def_use.writer(number.name)
        if writer is None:
            return
        other = self.instructions[writer]
        if other.opcode == "selp" and other.operands[1:3] == (Immediate(1, "int"), Immediate(0, "int")):
            self.cost[position] = _NOTHING
            if self.def_use.only_reader(number.name) == position:
                self.cost[writer] = _NOTHING

    def _predicate(self, position: int, ins: Instruction) -> None:
        if ins.opcode == "not":
            self.cost[position] = _NOTHING
            return
        for operand in ins.operands[1:]:
            register = operand.register if isinstance(operand, Negated) else operand
            writer = self.def_use.writer(register.name) if isinstance(register, Register) else None
            if writer is None or writer in self.merged or self.instructions[writer].opcode != "setp":
                continue
            if self.def_use.only_reader(_result(self.instructions[writer])) is not None:
                self.cost[position] = _NOTHING
                self.merged.add(writer)
                return


def _result(ins: Instruction) -> str:
    return ins.operands[0].registers[0] if ins.results else ""


def _moves(ins: Instruction) -> int:
    return max(words(ins.modifiers[-1]), 1)
