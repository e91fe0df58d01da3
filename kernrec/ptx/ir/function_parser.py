"""Parse the body of a function: instructions, labels and declarations in nested scopes."""

import re
import sys
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache

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
    with_leaves,
)
from kernrec.ptx.ir.program import Function, Instruction, ParseError

_OPERAND_REGISTER = re.compile(r"%[%$\w.@]*|_")
_SYMBOL_NAME = re.compile(r"[A-Za-z_$.%(][\w$.@%, ()]*")
"""Regular expression for a symbol or the parenthesized arguments of a call."""
_F32 = re.compile(r"0[fF][0-9a-fA-F]{8}")
_F64 = re.compile(r"0[dD][0-9a-fA-F]{16}")


@lru_cache(maxsize=1 << 16)
def read_operand(text: str) -> Operand:
    """Return the operand that `text` describes. Names without `%` become symbols.

    Args:
        text: text without surrounding spaces.

    Raises:
        ValueError: the text is not an operand.
    """
    if _OPERAND_REGISTER.fullmatch(text):
        return Register(text)
    if not text:
        raise ValueError("an operand is missing")
    if text.count("[") > 1:
        raise ValueError(f"cannot read the address {text[:60]!r}")
    first = text[0]
    if first == "[":
        return _address(text)
    if first == "{":
        return Vector(tuple(read_operand(item.strip()) for item in text[1:-1].split(",") if item.strip()))
    if first == "!":
        return Negated(Register(text[1:].strip()))
    if first in "0123456789+-.":
        return _literal(text)
    if text.count("|") == 1:
        left, right = text.split("|")
        return Pair(read_operand(left.strip()), read_operand(right.strip()))
    if text == "WARP_SZ":
        return Immediate(32, "int")
    name, plus, offset_text = text.partition("+")
    name = name.strip()
    if not _SYMBOL_NAME.fullmatch(name) or (first == "%" and not plus):
        raise ValueError(f"cannot read the operand {text!r:.60}")
    try:
        offset = integer(offset_text.strip()) if plus else 0
    except ValueError:
        raise ValueError(f"cannot read the operand {text!r}") from None
    return Address(Register(name), offset) if first == "%" else Symbol(name, offset)


def _address(text: str) -> Address | Texel:
    if "," in text:
        return _texel(text)
    base_text, plus, offset = text[1:-1].strip().partition("+")
    base = read_operand(base_text.strip())
    if not isinstance(base, Register | Symbol | Immediate):
        raise ValueError(f"cannot read the address {text!r}")
    try:
        return Address(base, integer(offset.strip()) if plus else 0)
    except ValueError:
        raise ValueError(f"cannot read the address {text!r}") from None


def _texel(text: str) -> Texel:
    names, brace, listed = text[1:-1].partition("{")
    parts = [part.strip() for part in names.split(",") if part.strip()]
    coordinates = [part for part in listed.rstrip("} \t\n").split(",") if part.strip()] if brace else parts[-1:]
    parts = parts if brace else parts[:-1]
    images = [read_operand(part) for part in parts]
    if not 1 <= len(images) <= 2 or not coordinates or not all(isinstance(i, Register | Symbol) for i in images):
        raise ValueError(f"cannot read the address {text!r}")
    image, sampler = (*images, None)[:2]
    assert isinstance(image, Register | Symbol)
    assert sampler is None or isinstance(sampler, Register | Symbol)
    return Texel(image, tuple(read_operand(part.strip()) for part in coordinates), sampler)


def _literal(text: str) -> Immediate:
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
_BRACKET = re.compile(r"[][(){}]")
_BRACE = re.compile(r"\s*([{}])")
_LABEL = re.compile(r"\s*([A-Za-z_$%][\w$%]*)\s*:(?!:)")
_TABLE = re.compile(r"\s*\.branchtargets\s+([^;]*);")
_PROTOTYPE = re.compile(r"\s*\.call(?:prototype|targets)\b[^;]*;")
_LOCATION = re.compile(r'\s*\.(?:loc|file)\b(?:[^\n;"]|"[^"\n]*"?)*;?')
END = re.compile(r"\s*\Z")
_NAME = re.compile(r"[%$\w.]+")
_LONGEST = 4096  # Characters that are searched for the end of an instruction, except in the last attempt.
LONGEST_KEPT = 512  # Maximum characters of a statement that `read_instruction` keeps, to limit memory.
_VARIABLES = (".shared", ".local", ".global", ".const", ".param")
_IGNORED = (".pragma", ".maxntid", ".reqntid", ".minnctapersm", ".maxnreg", ".noreturn")

_REGISTER = re.compile(r"[A-Za-z_$%][\w$%]*(?:<\d{1,18}>)?")
_MOST_SCOPES = 64
_LAST = ("ret", "exit", "bra", "trap")

_Scopes = tuple[dict[str, str], ...]


@lru_cache(maxsize=4096)
def read_instruction(statement: str) -> Instruction | None:
    """Return the instruction that a statement contains, or None if the statement is not an instruction.

    The line of the instruction is relative to the end of the statement. Names without `%` become symbols, even if they
    are registers.

    Raises:
        ValueError: an operand is invalid.
    """
    match = _INSTRUCTION.match(statement)
    if match is None:
        return None
    negated, predicate, opcode, modifiers, operands = match.groups()
    line = -statement.count("\n", match.start(3))
    if "\n" in statement:
        statement, operands = " ".join(statement.split()), " ".join(operands.split())
    texts = _OPERANDS.findall(operands) if _BRACKET.search(operands) else filter(None, operands.split(","))
    try:
        values = tuple([read_operand(text.strip()) for text in texts])
    except ValueError as error:
        raise ValueError(f"{opcode}{modifiers}: {error}") from None
    names = tuple(modifiers.replace("::", ".")[1:].split(".")) if modifiers else ()
    ins = Instruction(opcode, names, values, (predicate, bool(negated)) if predicate else None, line, statement)
    _ = ins.name, ins.results, ins.sources  # Compute these properties once, for all copies of the instruction.
    return ins


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

    def instruction(self, longest: int = _LONGEST) -> Instruction | None:
        """Read an instruction of at most `longest` characters. Return None if the next text is not an instruction."""
        text, start = self._text, self._place
        end = text.find(";", start, start + longest) + 1
        self._place = end or start  # If the instruction is invalid, an error states the line of its end.
        statement = text[start:end].strip()
        reader = read_instruction if len(statement) <= LONGEST_KEPT else read_instruction.__wrapped__
        read = None if statement[:1] in ".$}" else reader(statement)
        if read is None:
            self._place = start
            return None
        return read.at(bisect_left(self._newlines, end) + 1 + read.line)

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
        self._scopes: list[dict[str, str]] = [{}]  # Unique names by declared name: a dictionary per scope, outer first.
        self._declared = 0
        self._has_bare_names = False  # Whether the outer scope declares a register whose name lacks `%`.
        # Resolve labels at the end, because a label may be declared after its use.
        self._branches: list[tuple[int, _Scopes]] = []

    def parse(self) -> None:
        """Parse the body up to its closing brace. Raise `ParseError` if the body is incomplete."""
        source = self._source
        while self._scopes:
            if (ins := source.instruction()) is not None:
                self._append(ins)
            elif match := source.take(_BRACE):
                self._change_scope(match[1] == "{")
            elif match := source.take(_LABEL):
                self._label(match[1])
            elif source.take(END):
                raise ParseError(f"function {self._function.name!r} has no closing brace", source.line)
            elif source.take(_LOCATION):
                continue
            elif (ins := source.instruction(sys.maxsize)) is not None:
                self._append(ins)
            else:
                self._directive(source.statement())
        self._finish()

    def _append(self, ins: Instruction) -> None:
        instructions = self._function.instructions
        if len(self._scopes) > 1 or self._has_bare_names:
            if ins.opcode in ("bra", "brx"):
                self._branches.append((len(instructions), tuple(self._scopes)))
            predicate = ins.predicate and (self._resolve(ins.predicate[0]), ins.predicate[1])
            operands = tuple(with_leaves(operand, self._resolved) for operand in ins.operands)
            ins = replace(ins, operands=operands, predicate=predicate)
        instructions.append(ins)

    def _resolved(self, leaf: Register | Symbol) -> Register | Symbol:
        name = self._resolve(leaf.name)
        if isinstance(leaf, Register) or self._function.register_type(name) is not None:
            return Register(name)
        return Symbol(name, leaf.offset)

    def _change_scope(self, opens: bool) -> None:
        if not opens:
            self._scopes.pop()
        elif len(self._scopes) > _MOST_SCOPES:
            raise ValueError(f"more than {_MOST_SCOPES} nested scopes")
        else:
            self._scopes.append({})

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
        self._has_bare_names |= name[0] != "%" and len(self._scopes) == 1
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
