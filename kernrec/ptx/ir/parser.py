"""PTX text into a `Module`.

The grammar is that of the PTX ISA manual (https://docs.nvidia.com/cuda/parallel-thread-execution/), sections 4
and 5, as far as compilers emit it. Debug directives (`.loc`, `.file`, `.section`, `.pragma`) are ignored.
"""

import itertools
import re
from collections.abc import Iterator
from dataclasses import replace

from kernrec.ptx.ir.declarations import MOST_BYTES, read_variable
from kernrec.ptx.ir.errors import ParseError
from kernrec.ptx.ir.function_parser import FunctionParser
from kernrec.ptx.ir.program import Function, Module
from kernrec.ptx.ir.verify import verify

MOST_CHARACTERS = 1 << 26
"""The longest text that is read."""

_MOST_LINES = 1 << 14  # of one statement
_GOES_ON = re.compile(r"[^;:{}]*")  # a line that ends no statement

_UNDEFINED = re.compile(r"//\s*implicit-def: (%\w+)")  # LLVM's comment on a register that never gets a value
_STATEMENT = re.compile(r"[^;]*;|[^;]+")
_HEADER = re.compile(r"(?:\.(?:visible|extern|weak|common)\s+)*\.(entry|func)\b")
_FUNCTION = re.compile(
    r"(?:\.\w+\s+)*?\.(entry|func)\s*(?:\(([^)]*)\)\s*)?([\w$%]+)\s*(?:\((.*?)\))?\s*((?:\.\w.*)?)$", re.DOTALL
)


def parse(text: str, *, verified: bool = True) -> Module:
    """Parses PTX text.

    Args:
        text: a whole module.
        verified: whether operands and declarations are checked; without that, the module is not fit to be executed.

    Raises:
        ParseError: naming the line, when the text is not PTX that this parser can read, or that `verify` refuses.
    """
    if len(text) > MOST_CHARACTERS:
        raise ParseError(f"{len(text)} characters, at most {MOST_CHARACTERS} are read", 1)
    parser = _ModuleParser()
    for number, line in _statement_lines(text):
        parser.take_line(line, number)
    module = parser.finish()
    if verified:
        verify(module, frozenset(_UNDEFINED.findall(text)))
    return module


class _ModuleParser:
    """Reads a module line by line."""

    def __init__(self) -> None:
        self._module = Module("", "", {}, {})
        self._function: FunctionParser | None = None  # the function whose body is being read
        self._pending: list[str] = []  # lines of a statement that goes on in the next line
        self._pending_line = 0
        self._line = 0
        self._numbers = itertools.count(1)  # make names of nested scopes unique

    def take_line(self, line: str, number: int) -> None:
        """Takes the next line, whose number is `number`."""
        self._line = number
        try:
            if not self._pending:
                if self._function is not None and self._function.take_instruction(line, number):
                    return
                if not line.strip():
                    return
                self._pending_line = number
            self._pending.append(line)
            if len(self._pending) > _MOST_LINES:
                raise ValueError(f"a statement of more than {_MOST_LINES} lines")
            if len(self._pending) == 1 or not _GOES_ON.fullmatch(line):
                self._take("\n".join(self._pending))
        except ValueError as error:
            raise ParseError(str(error), number) from None

    def finish(self) -> Module:
        """The module, after the last line."""
        if rest := " ".join(" ".join(self._pending).split()):
            raise ParseError(f"unfinished statement {rest[:60]!r}", self._line)
        if self._function is not None:
            raise ParseError(f"function {self._function.function.name!r} has no closing brace", self._line)
        if not self._module.version:
            raise ParseError("no .version directive: this is not PTX", 1)
        return self._module

    def _take(self, text: str) -> None:
        """Takes whole statements off the front of `text`; the rest waits for more lines."""
        self._pending = []
        while statement := text.strip():
            start = self._line if "\n" not in text else self._pending_line
            if self._function is None:
                rest = self._module_statement(statement, start)
            else:
                rest = self._function.take_statement(statement, start)
                if self._function.closed:
                    self._end_function(self._function)
            if rest is None:
                self._pending = [statement]
                return
            text = rest

    def _module_statement(self, text: str, line: int) -> str | None:
        """Takes the first statement outside of functions; the rest of `text`, or None where it is unfinished."""
        if _HEADER.match(text):
            end = re.search(r"[;{]", re.sub(r"\([^)]*\)", lambda m: " " * len(m.group()), text))
            if end is None:
                return None
            if end.group() == "{":
                self._function = FunctionParser(_function(text[: end.start()], line), self._numbers)
            return text[end.start() + 1 :]
        if text.startswith((".version", ".target", ".address_size", ".file")):
            statement, _, rest = text.partition("\n")
            words = statement.replace(";", "").split()
            if len(words) < 2:
                raise ValueError(f"{words[0]} without a value")
            if words[0] == ".version":
                self._module = replace(self._module, version=words[1])
            elif words[0] == ".target":
                self._module = replace(self._module, target=words[1].rstrip(","))
            return rest
        if ";" not in text:
            return None
        statement, _, rest = text.partition(";")
        if not statement.startswith((".pragma", ".alias")):
            variable = read_variable(statement)
            self._module.variables[variable.name] = variable
        return rest

    def _end_function(self, parser: FunctionParser) -> None:
        parser.finish(self._line)
        self._module.functions[parser.function.name] = parser.function
        self._function = None


def _function(header: str, line: int) -> Function:
    """The function that a header declares, without a body; `line`: where the header begins."""
    match = _FUNCTION.match(header)
    if match is None:
        raise ValueError(f"cannot read the function header {' '.join(header.split())[:60]!r}")
    kind, returns, name, parameters, directives = match.groups()
    results, taken = (
        tuple(read_variable(p) for p in (declared or "").split(",") if p.strip()) for declared in (returns, parameters)
    )
    function = Function(name, kind == "entry", taken, line, returns=results)
    if (total := sum(variable.size for variable in taken)) > MOST_BYTES["param"]:
        raise ValueError(f"parameters of {total} bytes, at most {MOST_BYTES['param']} are possible")
    for directive, values in re.findall(r"\.(\w+)\s+([\d,\s]+)", directives or ""):
        function.directives[directive] = tuple(int(v) for v in values.replace(",", " ").split())
    return function


def _statement_lines(text: str) -> Iterator[tuple[int, str]]:
    """The lines with their numbers; those of `.section` (debug information) are empty."""
    in_header, depth = False, 0  # of a section: before its opening brace; braces that are open
    for number, line in _lines(text):
        if not depth and line.lstrip().startswith(".section"):
            in_header = True
        if not in_header and not depth:
            # Each statement for itself: a line may hold very many.
            for statement in _STATEMENT.findall(line) if line.count(";") > 1 else (line,):
                yield number, statement
            continue
        depth = max(0, depth + line.count("{") - line.count("}"))
        in_header = in_header and "{" not in line
        yield number, ""


def _lines(text: str) -> Iterator[tuple[int, str]]:
    """The lines with their numbers, without comments."""
    if "/*" in text:
        text = re.sub(r"/\*.*?\*/", lambda m: "\n" * m.group().count("\n") or " ", text, flags=re.DOTALL)
    for number, line in enumerate(text.split("\n"), 1):
        comment = line.find("//")
        yield number, line if comment < 0 else line[:comment]
