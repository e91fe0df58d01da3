"""Calls of device functions, put in place: the emulator runs kernels that call nothing.

A call becomes the callee's instructions with registers, labels and variables of their own. `.param` variables, through
which PTX passes arguments and results, become a state space `argument`, private to a thread: the assembler keeps them
in registers, so accesses to it count as moves. A call that cannot be put in place (by a pointer, of a function that
calls itself or whose body is elsewhere) stays, and is an error for the thread that reaches it.
"""

import re
from dataclasses import replace

from kernrec.ptx.ir.program import (
    Address,
    Function,
    Instruction,
    Module,
    Negated,
    Operand,
    Pair,
    Register,
    Symbol,
    Vector,
)

_MOST_INSTRUCTIONS = 1 << 18
_FAILS = ("__assertfail", "__assert_fail")  # what assert() calls when its condition is false


def inlined(module: Module, name: str) -> Function:
    """A function of the module with every call in it put in place; itself where it calls nothing."""
    function = module.functions[name]
    if not any(ins.opcode == "call" for ins in function.instructions):
        return function
    return _Inliner(module, function).function


class _Inliner:
    def __init__(self, module: Module, function: Function) -> None:
        self.module = module
        self.calls = 0
        self.function = replace(
            function,
            registers=dict(function.registers),
            variables=dict(function.variables),
            instructions=[],
            labels={},
            tables=dict(function.tables),
            immediates=set(function.immediates),
        )
        self.copy(function, {}, "", (function.name,), None)

    def copy(
        self, body: Function, names: dict[str, str], suffix: str, callers: tuple[str, ...], end: str | None
    ) -> None:
        """Appends the instructions of `body`, its names renamed; `end`: the label that its `ret` goes to."""
        made = self.function
        at: dict[int, list[str]] = {}
        for label, index in body.labels.items():
            at.setdefault(index, []).append(label + suffix)
        for index, ins in enumerate(body.instructions):
            made.labels.update(dict.fromkeys(at.get(index, ()), len(made.instructions)))
            moved = self.renamed(body, ins, names, suffix) if suffix else ins
            if moved.opcode == "call":
                self.call(moved, callers)
            elif moved.opcode == "ret" and end is not None:
                made.instructions.append(replace(moved, opcode="bra", modifiers=(), operands=(Symbol(end),)))
            else:
                made.instructions.append(_through_arguments(moved, made))
        made.labels.update(dict.fromkeys(at.get(len(body.instructions), ()), len(made.instructions)))

    def call(self, ins: Instruction, callers: tuple[str, ...]) -> None:
        made = self.function
        results, called, given = _parts(ins)
        callee = self.module.functions.get(called)
        if called in _FAILS:
            made.instructions.append(replace(ins, opcode="trap", modifiers=(), operands=()))
            return
        if callee is None or called in callers or len(made.instructions) > _MOST_INSTRUCTIONS:
            made.instructions.append(ins)
            return
        self.calls += 1
        suffix = f"@call{self.calls}"
        names = dict(zip((v.name for v in (*callee.returns, *callee.parameters)), (*results, *given), strict=True))
        for variable in callee.variables.values():
            if variable.space == "shared":  # one for all calls
                made.variables[variable.name] = variable
            else:
                names[variable.name] = variable.name + suffix
                made.variables[variable.name + suffix] = replace(variable, name=variable.name + suffix)
        for label, targets in callee.tables.items():
            made.tables[label + suffix] = tuple(target + suffix for target in targets)
        made.immediates.update(callee.immediates)
        names |= {label: label + suffix for label in (*callee.labels, *callee.tables)}
        end = f"$end{suffix}"
        if ins.predicate is not None:
            register, negated = ins.predicate
            skip = replace(ins, opcode="bra", modifiers=(), operands=(Symbol(end),), predicate=(register, not negated))
            made.instructions.append(skip)
        self.copy(callee, names, suffix, (*callers, called), end)
        made.labels[end] = len(made.instructions)

    def renamed(self, body: Function, ins: Instruction, names: dict[str, str], suffix: str) -> Instruction:
        def register(name: str) -> str:
            kind = body.register_type(name)
            if kind is None:  # a special register
                return name
            self.function.registers[name + suffix] = kind
            return name + suffix

        def operand(given: Operand) -> Operand:
            if isinstance(given, Register):
                return Register(register(given.name))
            if isinstance(given, Symbol):
                listed = re.sub(r"[^\s(),]+", lambda m: names.get(m[0], m[0]), given.name)
                return Symbol(listed, given.offset)
            if isinstance(given, Address):
                base = operand(given.base)
                assert isinstance(base, Register | Symbol) or base == given.base
                return replace(given, base=base)
            if isinstance(given, Vector):
                return Vector(tuple(operand(item) for item in given.items))
            if isinstance(given, Pair):
                return Pair(operand(given.first), operand(given.second))
            if isinstance(given, Negated):
                return Negated(Register(register(given.register.name)))
            return given

        predicate = None if ins.predicate is None else (register(ins.predicate[0]), ins.predicate[1])
        return replace(ins, operands=tuple(operand(given) for given in ins.operands), predicate=predicate)


def _through_arguments(ins: Instruction, function: Function) -> Instruction:
    """An access to a `.param` variable of a function body, in the state space of its own."""
    if ins.opcode not in ("ld", "st") or "param" not in ins.modifiers:
        return ins
    base = next((o.base for o in ins.operands if isinstance(o, Address)), None)
    if not isinstance(base, Symbol) or base.name not in function.variables:
        return ins  # a parameter of the kernel
    return replace(ins, modifiers=tuple("argument" if m == "param" else m for m in ins.modifiers))


def _parts(ins: Instruction) -> tuple[list[str], str, list[str]]:
    """The variables that take results, the function, and the variables that hold arguments, of a call."""
    listed = [operand.name if isinstance(operand, Symbol) else "" for operand in ins.operands]
    results = _names(listed.pop(0)) if listed and listed[0].startswith("(") else []
    called = listed.pop(0) if listed else ""
    return results, called, _names(listed[0]) if listed else []


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.strip("()").split(",") if name.strip()]
