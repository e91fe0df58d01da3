"""Parse the body of a function: instructions, labels and declarations in nested scopes."""

import re
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import replace

from kernrec.ptx.ir.declarations import INTEGER, MOST_REGISTERS, integer, read_variable
from kernrec.ptx.ir.operand import (
    REGISTER_TYPES,
    Address,
    Immediate,
    Negated,
    Operand,
    Pair,
    Register,
    Symbol,
    Texel,
    Vector,
)
from kernrec.ptx.ir.program import Function, Instruction, ParseError

_OPERAND_REGISTER = re.compile(r"%[%$\w.@]*|_")
_SYMBOL_NAME = re.compile(r"[A-Za-z_$.%(][\w$.@%, ()]*")
"""Regular expression for a symbol or the parenthesized arguments of a call."""
_F32 = re.compile(r"0[fF][0-9a-fA-F]{8}")
_F64 = re.compile(r"0[dD][0-9a-fA-F]{16}")


class OperandReader:
    """Parser of the operands of one function, with a cache."""

    def __init__(self, function: Function) -> None:
        self._function = function
        self._cached: dict[str, Operand] = {}

    def forget(self) -> None:
        """Clear the cache after a declaration, which may change the meaning of an operand."""
        self._cached.clear()

    def read(self, text: str) -> Operand:
        """Return the operand that `text` describes. Raise `ValueError` if the text is not an operand."""
        operand = self._cached.get(text)
        if operand is None:
            operand = self._cached[text] = self._build(text.strip())
        return operand

    def _build(self, text: str) -> Operand:
        if _OPERAND_REGISTER.fullmatch(text):
            return Register(text)
        if not text:
            raise ValueError("an operand is missing")
        if text.count("[") > 1:
            raise ValueError(f"cannot read the address {text[:60]!r}")
        first = text[0]
        if first == "[":
            return self._address(text)
        if first == "{":
            return Vector(tuple(self.read(item) for item in text[1:-1].split(",") if item.strip()))
        if first == "!":
            return Negated(Register(text[1:].strip()))
        if first in "0123456789+-.":
            return self._literal(text)
        if "|" in text:
            return Pair(*map(self.read, text.split("|", 1)))
        if text == "WARP_SZ":
            return Immediate(32, "int")
        name, plus, offset_text = text.partition("+")
        name = name.strip()
        if not _SYMBOL_NAME.fullmatch(name) or (first == "%" and not plus):
            raise ValueError(f"cannot read the operand {text!r:.60}")
        if first != "%" and self._function.register_type(name) is not None:
            return Register(name)
        try:
            offset = integer(offset_text.strip()) if plus else 0
        except ValueError:
            raise ValueError(f"cannot read the operand {text!r}") from None
        return Address(Register(name), offset) if first == "%" else Symbol(name, offset)

    def _address(self, text: str) -> Address | Texel:
        if "," in text:
            return self._texel(text)
        base_text, plus, offset = text[1:-1].strip().partition("+")
        base = self.read(base_text)
        if not isinstance(base, Register | Symbol | Immediate):
            raise ValueError(f"cannot read the address {text!r}")
        try:
            return Address(base, integer(offset.strip()) if plus else 0)
        except ValueError:
            raise ValueError(f"cannot read the address {text!r}") from None

    def _texel(self, text: str) -> Texel:
        names, brace, listed = text[1:-1].partition("{")
        parts = [part.strip() for part in names.split(",") if part.strip()]
        coordinates = [part for part in listed.rstrip("} \t\n").split(",") if part.strip()] if brace else parts[-1:]
        parts = parts if brace else parts[:-1]
        images = [self.read(part) for part in parts]
        if not 1 <= len(images) <= 2 or not coordinates or not all(isinstance(i, Register | Symbol) for i in images):
            raise ValueError(f"cannot read the address {text!r}")
        image, sampler = (*images, None)[:2]
        assert isinstance(image, Register | Symbol)
        assert sampler is None or isinstance(sampler, Register | Symbol)
        return Texel(image, tuple(self.read(part) for part in coordinates), sampler)

    def _literal(self, text: str) -> Immediate:
        if _F32.fullmatch(text):
            return Immediate(int(text[2:], 16), "f32")
        if _F64.fullmatch(text):
            return Immediate(int(text[2:], 16), "f64")
        if INTEGER.match(text):
            return Immediate(integer(text), "int")
        try:
            return Immediate(float(text), "float")
        except ValueError:
            raise ValueError(f"cannot read the operand {text!r}") from None


_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
_INSTRUCTION = re.compile(
    r"\s*(?:@(!?)([%\w$]+)\s+)?([a-z][a-z0-9_]*)(?![a-z0-9_])((?:[.:]+[\w]+)*)(?![\w.]|\s*:)\s*+([^;{}]*+(?:\{[^;{}]*+\}[^;{}]*+)*+);"
)
_OPERANDS = re.compile(r"\s*(\{[^}]*\}|\[[^\]]*\]|\([^)]*\)|[^,{}\[\]()]+)\s*,?")
_BRACE = re.compile(r"\s*([{}])")
_LABEL = re.compile(r"\s*([\w$%]+)\s*:(?!:)")
_TABLE = re.compile(r"\s*\.branchtargets\s+([^;]*);")
_PROTOTYPE = re.compile(r"\s*\.call(?:prototype|targets)\b[^;]*;")
_LOCATION = re.compile(r'\s*\.(?:loc|file)\b(?:[^\n;"]|"[^"\n]*"?)*;?')
END = re.compile(r"\s*\Z")
_NAME = re.compile(r"[%$\w]+")
_VARIABLES = (".shared", ".local", ".global", ".const", ".param")
_IGNORED = (".pragma", ".maxntid", ".reqntid", ".minnctapersm", ".maxnreg", ".noreturn")

_REGISTER = re.compile(r"[%\w$]+(?:<\d{1,18}>)?")
_MOST_SCOPES = 64
_LAST = ("ret", "exit", "bra", "trap")

_Scopes = tuple[dict[str, str], ...]


class PtxText:
    """PTX text without comments, which is read from start to end."""

    def __init__(self, text: str) -> None:
        self._text = _COMMENT.sub(lambda match: "\n" * match[0].count("\n") or " ", text)
        self._newlines = [match.start() for match in re.finditer("\n", self._text)]
        self._place = 0

    @property
    def line(self) -> int:
        """Return the current line number, counted from 1."""
        return self.line_at(self._place)

    def line_at(self, place: int) -> int:
        return bisect_left(self._newlines, place) + 1

    def take(self, pattern: re.Pattern[str]) -> re.Match[str] | None:
        """Read the text that matches a pattern. Return None if the next text does not match."""
        match = pattern.match(self._text, self._place)
        if match is not None:
            self._place = match.end()
        return match

    def statement(self) -> str:
        """Read the text before the next semicolon. Raise `ParseError` if there is no semicolon."""
        start, end = self._place, self._text.find(";", self._place)
        self._place = len(self._text) if end < 0 else end + 1
        if end < 0:
            raise ParseError(f"unfinished statement {' '.join(self._text[start:].split())[:60]!r}", self.line)
        return self._text[start:end].strip()


class FunctionParser:
    """Parser of one function's body.

    Names that are declared in a nested scope `{ }`, as in inline assembly, become unique in the function.
    """

    def __init__(self, function: Function, source: PtxText, numbers: Iterator[int]) -> None:
        """Prepare to parse the body of `function`. `numbers` yields numbers that make names unique in the module."""
        self._function, self._source, self._numbers = function, source, numbers
        self._operands = OperandReader(function)
        self._scopes: list[dict[str, str]] = [{}]  # Unique names by declared name: a dictionary per scope, outer first.
        self._declared = 0
        # Resolve labels at the end, because a label may be declared after its use.
        self._branches: list[tuple[int, _Scopes]] = []

    def parse(self) -> None:
        """Parse the body up to its closing brace. Raise `ParseError` if the body is incomplete."""
        source = self._source
        while self._scopes:
            if match := source.take(_INSTRUCTION):
                self._instruction(match)
            elif match := source.take(_BRACE):
                self._change_scope(match[1] == "{")
            elif match := source.take(_LABEL):
                self._label(match[1])
            elif source.take(END):
                raise ParseError(f"function {self._function.name!r} has no closing brace", source.line)
            elif not source.take(_LOCATION):
                self._directive(source.statement())
        self._finish()

    def _instruction(self, match: re.Match[str]) -> None:
        negated, predicate, opcode, modifiers, operands = match.groups()
        text = match[0].strip()
        if "\n" in text:
            text, operands = " ".join(text.split()), " ".join(operands.split())
        instructions = self._function.instructions
        if len(self._scopes) > 1:
            operands, predicate = self._resolve(operands), self._resolve(predicate or "") or None
            if opcode in ("bra", "brx"):
                self._branches.append((len(instructions), tuple(self._scopes)))
        read = self._operands.read
        try:
            values = tuple([read(text) for text in _OPERANDS.findall(operands)]) if operands else ()
        except ValueError as error:
            raise ValueError(f"{opcode}{modifiers}: {error}") from None
        instructions.append(
            Instruction(
                opcode,
                tuple(modifiers.replace("::", ".")[1:].split(".")) if modifiers else (),
                values,
                (predicate, bool(negated)) if predicate else None,
                self._source.line_at(match.start(3)),
                text,
            )
        )

    def _change_scope(self, opens: bool) -> None:
        if not opens:
            self._scopes.pop()
        elif len(self._scopes) > _MOST_SCOPES:
            raise ValueError(f"more than {_MOST_SCOPES} nested scopes")
        else:
            self._scopes.append({})
        self._operands.forget()

    def _finish(self) -> None:
        function = self._function
        instructions = function.instructions
        for index, scopes in self._branches:
            ins = instructions[index]
            operands = [Symbol(_innermost(scopes, o.name)) if isinstance(o, Symbol) else o for o in ins.operands]
            instructions[index] = replace(ins, operands=tuple(operands))
        for ins in instructions:
            if ins.opcode == "bra" and ins.operands and isinstance(ins.operands[0], Symbol):
                target = ins.operands[0].name
                if target not in function.labels:
                    raise ParseError(f"no label {target!r} in function {function.name!r}", ins.line)
        last = instructions[-1] if instructions else None
        label_at_end = any(index == len(instructions) for index in function.labels.values())
        if last is None or label_at_end or last.predicate is not None or last.opcode not in _LAST:
            # A function returns if execution reaches its end.
            instructions.append(Instruction("ret", (), (), None, self._source.line, "ret;"))

    def _label(self, name: str) -> None:
        function = self._function
        if self._source.take(_PROTOTYPE):
            return  # A call through a pointer is resolved when the call runs.
        if len(self._scopes) > 1:
            self._scopes[-1][name] = name = f"{name}@{next(self._numbers)}"
        if table := self._source.take(_TABLE):
            function.tables[name] = tuple(target.strip() for target in table[1].split(","))
        elif name in function.labels:
            raise ValueError(f"label {name!r} is defined twice")
        else:
            function.labels[name] = len(function.instructions)

    def _directive(self, statement: str) -> None:
        if not statement:
            return
        named = re.match(r"\.\w+", statement)
        word = named[0] if named else statement
        if registers := re.match(r"\.reg\s*\.(\w+)\s+(.*)", statement, re.DOTALL):
            for name in registers[2].split(","):
                self._declare(registers[1], name.strip())
        elif word in _VARIABLES:
            variable = read_variable(statement)
            # Make the name unique, because each call declares the same names in its own scope.
            if word == ".param" and len(self._scopes) > 1:
                unique = f"{variable.name}@{next(self._numbers)}"
                self._scopes[-1][variable.name] = unique
                variable = replace(variable, name=unique)
            self._function.variables[variable.name] = variable
        elif statement[0] != ".":
            raise ValueError(f"cannot read {' '.join(statement.split())[:60]!r}")
        elif word not in _IGNORED:
            raise ValueError(f"unknown directive {word!r}")

    def _declare(self, kind: str, name: str) -> None:
        function = self._function
        if kind not in REGISTER_TYPES:
            raise ValueError(f".{kind} is not a register type")
        if not _REGISTER.fullmatch(name):
            raise ValueError(f"cannot read the register {name[:60]!r}")
        many = re.fullmatch(r"([%\w$]+)<(\d{1,18})>", name)
        self._declared += int(many[2]) if many else 1
        if self._declared > MOST_REGISTERS:
            raise ValueError(f"more than {MOST_REGISTERS} registers in a function")
        if len(self._scopes) > 1:
            number = next(self._numbers)
            for declared in [f"{many[1]}{i}" for i in range(int(many[2]))] if many else [name]:
                unique = f"{declared}@{number}"
                self._scopes[-1][declared] = unique
                function.registers[unique] = kind
        elif many:
            function.ranges[many[1]] = (kind, int(many[2]))
        else:
            function.registers[name] = kind

    def _resolve(self, text: str) -> str:
        scopes = tuple(self._scopes)
        return _NAME.sub(lambda match: _innermost(scopes, match.group()), text)


def _innermost(scopes: _Scopes, name: str) -> str:
    return next((scope[name] for scope in reversed(scopes) if name in scope), name)
