"""PTX text into a `Module`.

The grammar is that of the PTX ISA manual (https://docs.nvidia.com/cuda/parallel-thread-execution/), sections 4
and 5, as far as compilers emit it. Debug directives (`.loc`, `.file`, `.section`, `.pragma`) are passed over.
Registers and labels declared in a nested `{ }` scope (inline assembly does that) get a name of their own.
"""

import re
from collections.abc import Iterator
from dataclasses import replace

from kernrec.errors import KernrecError
from kernrec.ptx.ir.declarations import INTEGER, integer, read_variable
from kernrec.ptx.ir.program import (
    Address,
    Function,
    Immediate,
    Instruction,
    Module,
    Negated,
    Operand,
    Pair,
    Register,
    Symbol,
    Variable,
    Vector,
)


class ParseError(KernrecError):
    """The text is not PTX this parser understands; `line` counts from 1."""

    def __init__(self, message: str, line: int) -> None:
        super().__init__(f"PTX line {line}: {message}")
        self.line = line


_FAST = re.compile(
    r"\s*(?:@(!?)([%\w$]+)\s+)?([a-z][a-z0-9_]*)((?:[.:]+[\w]+)*)\s*([^;{}]*(?:\{[^;{}]*\}[^;{}]*)*);\s*$"
)
_LABEL = re.compile(r"([\w$%]+)\s*:(?!:)\s*")
_OPERANDS = re.compile(r"\s*(\{[^}]*\}|\[[^\]]*\]|\([^)]*\)|[^,{}\[\]()]+)\s*,?")
_HEADER = re.compile(r"(?:\.(?:visible|extern|weak|common)\s+)*\.(entry|func)\b")
_FUNCTION = re.compile(
    r"(?:\.\w+\s+)*?\.(entry|func)\s*(?:\(([^)]*)\)\s*)?([\w$%]+)\s*(?:\((.*?)\))?\s*((?:\.\w.*)?)$", re.DOTALL
)
_REGISTER = re.compile(r"[%$\w.@]+$")
_NAME = re.compile(r"[%$\w]+")


class _Parser:
    def __init__(self, text: str) -> None:
        self.text = text
        self.version = ""
        self.target = ""
        self.functions: dict[str, Function] = {}
        self.variables: dict[str, Variable] = {}
        self.function: Function | None = None
        self.scopes: list[dict[str, str]] = []
        self.scope_count = 0
        self.branches: list[tuple[int, tuple[dict[str, str], ...]]] = []
        self.memo: dict[str, Operand] = {}
        self.line = 0

    def fail(self, message: str) -> ParseError:
        return ParseError(message, self.line)

    def parse(self) -> Module:
        pending, pending_line, skipping, in_section, number = "", 0, 0, False, 1
        for number, line in _lines(self.text):
            self.line = number
            if skipping:
                skipping = max(0, skipping + line.count("{") - line.count("}"))
                continue
            if not pending:
                if self.function is not None and self.fast(line, number):
                    continue
                if not line.strip():
                    continue
                if line.lstrip().startswith(".section"):
                    in_section = True
                pending_line = number
            pending = f"{pending}\n{line}" if pending else line
            if in_section:
                if "{" in pending:
                    skipping, pending, in_section = pending.count("{") - pending.count("}"), "", False
                continue
            pending = self.consume(pending, pending_line)
        self.line = number
        if pending.strip():
            raise self.fail(f"unfinished statement {' '.join(pending.split())[:60]!r}")
        if self.function is not None:
            raise self.fail(f"function {self.function.name!r} has no closing brace")
        if not self.version:
            raise ParseError("no .version directive: this is not PTX", 1)
        return Module(self.version, self.target, self.functions, self.variables)

    def fast(self, line: str, number: int) -> bool:
        """Takes a line that holds exactly one instruction; False for anything else."""
        found = _FAST.match(line)
        if found is None or self.function is None:
            return False
        negated, predicate, opcode, modifiers, operands = found.groups()
        if len(self.scopes) > 1:
            operands, predicate = self.rename(operands), self.rename(predicate or "") or None
            if opcode in ("bra", "brx"):
                self.branches.append((len(self.function.instructions), tuple(self.scopes)))
        self.function.instructions.append(
            Instruction(
                opcode,
                tuple(modifiers.replace("::", ".")[1:].split(".")) if modifiers else (),
                tuple([self.operand(text) for text in _OPERANDS.findall(operands)]) if operands else (),
                (predicate, bool(negated)) if predicate else None,
                number,
                line,
            )
        )
        return True

    def rename(self, text: str) -> str:
        def inner(found: re.Match[str]) -> str:
            name = found.group()
            return next((scope[name] for scope in reversed(self.scopes) if name in scope), name)

        return _NAME.sub(inner, text)

    def operand(self, text: str) -> Operand:
        text = text.strip()
        known = self.memo.get(text)
        if known is None:
            known = self.memo[text] = self.build(text)
        return known

    def build(self, text: str) -> Operand:
        first = text[0]
        if first == "%" or text == "_":
            if "|" in text:
                one, other = text.split("|")
                return Pair(self.operand(one), self.operand(other))
            if "+" in text:
                name, offset = text.split("+")
                return Address(Register(name.strip()), integer(offset.strip()))
            if not _REGISTER.match(text):
                raise self.fail(f"cannot read the operand {text!r}")
            return Register(text)
        if first == "[":
            inside = text[1:-1].strip()
            base, plus, offset = inside.partition("+")
            base_operand = self.operand(base)
            if not isinstance(base_operand, Register | Symbol | Immediate):
                raise self.fail(f"cannot read the address {text!r}")
            try:
                return Address(base_operand, integer(offset.strip()) if plus else 0)
            except ValueError:
                raise self.fail(f"cannot read the address {text!r}") from None
        if first == "{":
            return Vector(tuple(self.operand(item) for item in text[1:-1].split(",") if item.strip()))
        if first == "!":
            return Negated(Register(text[1:].strip()))
        if first in "0123456789+-.":
            if re.fullmatch(r"0[fF][0-9a-fA-F]{8}", text):
                return self.immediate(int(text[2:], 16), "f32")
            if re.fullmatch(r"0[dD][0-9a-fA-F]{16}", text):
                return self.immediate(int(text[2:], 16), "f64")
            if INTEGER.match(text):
                return self.immediate(integer(text), "int")
            try:
                return self.immediate(float(text), "float")
            except ValueError:
                raise self.fail(f"cannot read the operand {text!r}") from None
        if "|" in text:
            one, other = text.split("|")
            return Pair(self.operand(one), self.operand(other))
        if text == "WARP_SZ":
            return self.immediate(32, "int")
        name, plus, offset = text.partition("+")
        if self.function is not None and self.function.register_type(name.strip()) is not None:
            return Register(name.strip())
        return Symbol(name.strip(), integer(offset.strip()) if plus else 0)

    def immediate(self, value: int | float, kind: str) -> Immediate:
        made = Immediate(value, kind)
        if self.function is not None:
            self.function.immediates.add(made)
        return made

    def consume(self, pending: str, line: int) -> str:
        """Takes whole statements off the front of `pending`; what is left waits for more lines."""
        while text := pending.strip():
            start = self.line if "\n" not in pending else line
            take = self.module_statement if self.function is None else self.body_statement
            rest = take(text, start)
            if rest is None:
                return text
            pending = rest
        return ""

    def module_statement(self, text: str, line: int) -> str | None:
        if _HEADER.match(text):
            end = re.search(r"[;{]", re.sub(r"\([^)]*\)", lambda m: " " * len(m.group()), text))
            if end is None:
                return None
            header, rest = text[: end.start()], text[end.start() + 1 :]
            if end.group() == "{":
                self.begin(header, line)
            return rest
        if text.startswith((".version", ".target", ".address_size", ".file")):
            statement, _, rest = text.partition("\n")
            words = statement.replace(";", "").split()
            if words[0] == ".version":
                self.version = words[1]
            elif words[0] == ".target":
                self.target = words[1].rstrip(",")
            return rest
        if ";" not in text:
            return None
        statement, _, rest = text.partition(";")
        if statement.startswith((".pragma", ".alias")):
            return rest
        variable = self.variable(statement)
        self.variables[variable.name] = variable
        return rest

    def begin(self, header: str, line: int) -> None:
        found = _FUNCTION.match(header)
        if found is None:
            raise self.fail(f"cannot read the function header {' '.join(header.split())[:60]!r}")
        kind, returned, name, parameters, directives = found.groups()
        results, taken = (
            tuple(self.variable(p) for p in (listed or "").split(",") if p.strip()) for listed in (returned, parameters)
        )
        self.function = Function(name, kind == "entry", taken, line, returns=results)
        for directive, values in re.findall(r"\.(\w+)\s+([\d,\s]+)", directives or ""):
            self.function.directives[directive] = tuple(int(v) for v in values.replace(",", " ").split())
        self.scopes, self.branches, self.memo = [{}], [], {}

    def body_statement(self, text: str, line: int) -> str | None:
        function = self.function
        assert function is not None
        if text[0] == "{":
            self.scopes.append({})
            self.memo = {}
            return text[1:]
        if text[0] == "}":
            self.scopes.pop()
            self.memo = {}
            if not self.scopes:
                self.finish()
            return text[1:]
        if label := _LABEL.match(text):
            name = label.group(1)
            if len(self.scopes) > 1:
                self.scope_count += 1
                self.scopes[-1][name] = name = f"{name}@{self.scope_count}"
            rest = text[label.end() :]
            if table := re.match(r"\.branchtargets\s+([^;]*);", rest):
                function.tables[name] = tuple(t.strip() for t in table.group(1).split(","))
                return rest[table.end() :]
            if not rest and text.endswith(":"):
                function.labels[name] = len(function.instructions)
                return rest
            if rest.startswith(".branchtargets"):
                return None
            if name in function.labels:
                raise self.fail(f"label {name!r} is defined twice")
            function.labels[name] = len(function.instructions)
            return rest
        if text.startswith((".loc ", ".loc\t", ".file")):
            return text.partition("\n")[2]
        if ";" not in text:
            return None
        statement, _, rest = text.partition(";")
        if statement[0] == ".":
            self.directive(statement)
        elif not self.fast(" ".join(statement.split()) + ";", line):
            raise self.fail(f"cannot read {' '.join(statement.split())[:60]!r}")
        return rest

    def directive(self, statement: str) -> None:
        function = self.function
        assert function is not None
        found = re.match(r"\.\w+", statement)
        word = found[0] if found else statement
        if registers := re.match(r"\.reg\s*\.(\w+)\s+(.*)", statement, re.DOTALL):
            for name in registers[2].split(","):
                self.declare(registers[1], name.strip())
        elif word in (".shared", ".local", ".global", ".const", ".param"):
            variable = self.variable(statement)
            if word == ".param" and len(self.scopes) > 1:  # every call has a scope, and uses the same names
                self.scope_count += 1
                unique = f"{variable.name}@{self.scope_count}"
                self.scopes[-1][variable.name] = unique
                variable = replace(variable, name=unique)
            function.variables[variable.name] = variable
        elif word not in (".pragma", ".maxntid", ".reqntid", ".minnctapersm", ".maxnreg", ".noreturn"):
            raise self.fail(f"unknown directive {word!r}")

    def declare(self, kind: str, name: str) -> None:
        function = self.function
        assert function is not None
        many = re.fullmatch(r"([%\w$]+)<(\d+)>", name)
        if len(self.scopes) > 1:
            self.scope_count += 1
            names = [f"{many[1]}{i}" for i in range(int(many[2]))] if many else [name]
            for one in names:
                unique = f"{one}@{self.scope_count}"
                self.scopes[-1][one] = unique
                function.registers[unique] = kind
        elif many:
            function.ranges[many[1]] = (kind, int(many[2]))
        else:
            function.registers[name] = kind

    def finish(self) -> None:
        function = self.function
        assert function is not None
        for index, scopes in self.branches:
            ins = function.instructions[index]
            operands = list(ins.operands)
            for i, operand in enumerate(operands):
                if isinstance(operand, Symbol):
                    near = (scope[operand.name] for scope in reversed(scopes) if operand.name in scope)
                    operands[i] = Symbol(next(near, operand.name))
            function.instructions[index] = Instruction(
                ins.opcode, ins.modifiers, tuple(operands), ins.predicate, ins.line, ins.text
            )
        for ins in function.instructions:
            if ins.opcode == "bra" and isinstance(ins.operands[0], Symbol):
                target = ins.operands[0].name
                if target not in function.labels:
                    raise ParseError(f"no label {target!r} in function {function.name!r}", ins.line)
        last = function.instructions[-1] if function.instructions else None
        at_end = any(at == len(function.instructions) for at in function.labels.values())
        if last is None or at_end or last.predicate is not None or last.opcode not in ("ret", "exit", "bra", "trap"):
            # Running off the end of a function is a return.
            function.instructions.append(Instruction("ret", (), (), None, self.line, "ret;"))
        self.functions[function.name] = function
        self.function = None

    def variable(self, text: str) -> Variable:
        try:
            return read_variable(text)
        except ValueError as error:
            raise self.fail(str(error)) from None


def _lines(text: str) -> Iterator[tuple[int, str]]:
    """The lines with their numbers, comments taken out."""
    if "/*" in text:
        text = re.sub(r"/\*.*?\*/", lambda m: "\n" * m.group().count("\n") or " ", text, flags=re.DOTALL)
    for number, line in enumerate(text.split("\n"), 1):
        at = line.find("//")
        yield number, line if at < 0 else line[:at]


def parse(text: str) -> Module:
    """Parses PTX text.

    Raises:
        ParseError: naming the line, when the text is not PTX this parser understands.
    """
    return _Parser(text).parse()
