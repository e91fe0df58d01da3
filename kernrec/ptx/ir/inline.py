"""Inline calls of device functions, because the emulator cannot run calls.

Arguments and results move from `.param` variables to the state space `argument`, which is private to a thread. Their
loads and stores count as moves, because the assembler keeps arguments in registers. A call through a pointer becomes a
choice among the functions whose address the module takes. Recursive functions and functions without a body stay calls.
"""

import re
from dataclasses import replace
from weakref import ref

from kernrec.ptx.ir.operand import Address, Immediate, Operand, Register, Symbol, with_leaves
from kernrec.ptx.ir.program import Function, Instruction, Module, has_calls
from kernrec.util.light_dataclass import dataclass

_MOST_INSTRUCTIONS = 1 << 18
_WITHOUT_EFFECT = ("vprintf", "cudaGraphSetConditional")
_ZERO = Immediate(0, "int")
_ASSERT_FAILS = ("__assertfail", "__assert_fail")


def inlined(module: Module, name: str) -> Function:
    """Return a function after inlining its calls."""
    function = module.functions[name]
    if not has_calls(function):
        return function
    memo = function.memo
    if _Inliner not in memo or memo[_Inliner][0]() is not module:
        inliner = _Inliner(module, function)
        inliner.append(_Body(function, {}, "", (function.name,), None))
        # Store a weak reference: a reference cycle would keep memory longer.
        memo[_Inliner] = ref(module), inliner.result
    whole: Function = memo[_Inliner][1]
    return whole


@dataclass(frozen=True)
class _Body:
    """Body of a called function that is appended to its caller with new register names."""

    function: Function
    names: dict[str, str]
    suffix: str
    callers: tuple[str, ...]
    """Functions that are being inlined, outermost first."""
    end: str | None
    """Label that replaces `ret`, or None to keep `ret`."""


class _Inliner:
    def __init__(self, module: Module, function: Function) -> None:
        self.module = module
        self.calls = 0
        self.result = replace(
            function,
            registers=dict(function.registers),
            variables=dict(function.variables),
            instructions=[],
            labels={},
            tables=dict(function.tables),
        )

    def append(self, body: _Body) -> None:
        result, suffix, instructions = self.result, body.suffix, body.function.instructions
        labels: dict[int, list[str]] = {}  # Labels directly before each instruction.
        for label, index in body.function.labels.items():
            labels.setdefault(index, []).append(label + suffix)
        for index, ins in enumerate(instructions):
            result.labels.update(dict.fromkeys(labels.get(index, ()), len(result.instructions)))
            renamed = self._renamed(ins, body) if suffix else ins
            if renamed.opcode == "call":
                self._append_call(renamed, body.callers)
            elif renamed.opcode == "ret" and body.end is not None:
                self._emit(renamed, "bra", Symbol(body.end), predicate=renamed.predicate)
            else:
                result.instructions.append(_through_arguments(renamed, result))
        result.labels.update(dict.fromkeys(labels.get(len(instructions), ()), len(result.instructions)))

    def _append_call(self, ins: Instruction, callers: tuple[str, ...]) -> None:
        """Append the body of the called function, or the call itself if it cannot be inlined."""
        result = self.result
        results, called, arguments = _parts(ins)
        pointer = next((operand for operand in ins.operands if isinstance(operand, Register)), None)
        if pointer is not None:
            self._append_dispatch(ins, pointer, (results, arguments), callers)
            return
        callee = self.module.functions.get(called)
        if called in _ASSERT_FAILS:
            self._emit(ins, "trap", predicate=ins.predicate)
            return
        if called in _WITHOUT_EFFECT:
            for name in results:
                self._emit(ins, "st.argument.b32", Address(Symbol(name), 0), _ZERO, predicate=ins.predicate)
            return
        if callee is None or called in callers or len(result.instructions) > _MOST_INSTRUCTIONS:
            result.instructions.append(ins)
            return
        self.calls += 1
        suffix = f"@call{self.calls}"
        names = dict(zip((v.name for v in (*callee.returns, *callee.parameters)), (*results, *arguments), strict=True))
        for variable in callee.variables.values():
            if variable.space == "shared":  # A variable in shared memory exists once for all calls.
                result.variables[variable.name] = variable
            else:
                names[variable.name] = variable.name + suffix
                result.variables[variable.name + suffix] = replace(variable, name=variable.name + suffix)
        for label, targets in callee.tables.items():
            result.tables[label + suffix] = tuple(target + suffix for target in targets)
        names |= {label: label + suffix for label in (*callee.labels, *callee.tables)}
        end = f"$end{suffix}"
        if ins.predicate is not None:
            register, negated = ins.predicate
            self._emit(ins, "bra", Symbol(end), predicate=(register, not negated))
        self.append(_Body(callee, names, suffix, (*callers, called), end))
        result.labels[end] = len(result.instructions)

    def _append_dispatch(
        self, ins: Instruction, pointer: Register, passed: tuple[list[str], list[str]], callers: tuple[str, ...]
    ) -> None:
        """Append calls of all functions to which a pointer may point, and comparisons that select one.

        Args:
            pointer: register with the function's address.
            passed: variables for the results, and variables with the arguments.
        """
        results, arguments = passed
        result = self.result
        self.calls += 1
        number, end = self.calls, f"$end@call{self.calls}"
        functions = ((name, self.module.functions[name]) for name in addressed_functions(self.module))
        counts = (len(results), len(arguments))
        candidates = [
            name for name, f in functions if name not in callers and (len(f.returns), len(f.parameters)) == counts
        ]
        if not candidates:
            result.instructions.append(ins)
            return
        for place, name in enumerate(candidates):
            other, is_other = f"$other{place}@call{number}", f"%other{place}@call{number}"
            result.registers[is_other] = "pred"
            self._emit(ins, "setp.ne.u64", Register(is_other), pointer, Symbol(name))
            self._emit(ins, "bra", Symbol(other), predicate=(is_other, False))
            listed = [f"({', '.join(results)})"] if results else []
            texts = (*listed, name, f"({', '.join(arguments)})")
            self._append_call(replace(ins, operands=tuple(map(Symbol, texts)), predicate=None), callers)
            self._emit(ins, "bra", Symbol(end))
            result.labels[other] = len(result.instructions)
        self._emit(ins, "trap")
        result.labels[end] = len(result.instructions)

    def _emit(self, ins: Instruction, name: str, *operands: Operand, predicate: tuple[str, bool] | None = None) -> None:
        """Append an instruction that has the line and text of `ins`."""
        opcode, *modifiers = name.split(".")
        new = replace(ins, opcode=opcode, modifiers=tuple(modifiers), operands=operands, predicate=predicate)
        self.result.instructions.append(new)

    def _renamed(self, ins: Instruction, body: _Body) -> Instruction:
        def register(name: str) -> str:
            kind = body.function.register_type(name)
            if kind is None:  # Special registers are not renamed.
                return name
            self.result.registers[name + body.suffix] = kind
            return name + body.suffix

        def renamed(leaf: Register | Symbol) -> Register | Symbol:
            if isinstance(leaf, Register):
                return Register(register(leaf.name))
            listed = re.sub(r"[^\s(),]+", lambda m: body.names.get(m[0], m[0]), leaf.name)
            return Symbol(listed, leaf.offset)

        predicate = None if ins.predicate is None else (register(ins.predicate[0]), ins.predicate[1])
        return replace(
            ins, operands=tuple(with_leaves(operand, renamed) for operand in ins.operands), predicate=predicate
        )


def _through_arguments(ins: Instruction, function: Function) -> Instruction:
    """Give accesses to a called function's `.param` variables the state space `argument`."""
    if ins.opcode not in ("ld", "st") or "param" not in ins.modifiers:
        return ins
    base = next((o.base for o in ins.operands if isinstance(o, Address)), None)
    if not isinstance(base, Symbol) or base.name not in function.variables:
        return ins  # Parameters of the kernel keep their state space.
    return replace(ins, modifiers=tuple("argument" if m == "param" else m for m in ins.modifiers))


def addressed_functions(module: Module) -> list[str]:
    """Return the device functions whose address the module takes."""
    named = {symbol for variable in module.variables.values() for _, symbol, _ in variable.pointers}
    for function in module.functions.values():
        for ins in function.instructions:
            if ins.opcode != "call":
                named |= {operand.name for operand in ins.operands if isinstance(operand, Symbol)}
    return [name for name, function in module.functions.items() if name in named and not function.entry]


def _parts(ins: Instruction) -> tuple[list[str], str, list[str]]:
    listed = [operand.name if isinstance(operand, Symbol) else "" for operand in ins.operands]
    results = _names(listed.pop(0)) if listed and listed[0].startswith("(") else []
    called = listed.pop(0) if listed else ""
    return results, called, _names(listed[0]) if listed else []


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.strip("()").split(",") if name.strip()]
