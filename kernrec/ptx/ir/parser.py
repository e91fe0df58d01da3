"""Parse PTX text into a `Module`.

The parser covers the grammar that compilers use (PTX ISA, sections 4 and 5,
https://docs.nvidia.com/cuda/parallel-thread-execution/) and ignores debug directives. It defines `malloc`, which
returns the next bytes of a heap of fixed size, and `free`, which does nothing.
"""

import itertools
import re
from collections.abc import Iterator
from dataclasses import replace

from kernrec.ptx.ir.declarations import MOST_BYTES, read_variable
from kernrec.ptx.ir.function_parser import FunctionParser
from kernrec.ptx.ir.program import Function, Module, ParseError
from kernrec.ptx.ir.verify import verify

_DECLARED = re.compile(r"\.extern\s+\.func\s[^;{]*\b(malloc|free)\b[^;{]*;")
_HEAP_BYTES = 64 << 20
_HEAP = f"""
.global .align 16 .b8 kernrec_heap[{_HEAP_BYTES}];
.func (.param .b64 kernrec_address) malloc(.param .b64 kernrec_bytes)
{{
.reg .pred %p<1>;
.reg .b64 %rd<5>;
ld.param.u64 %rd0, [kernrec_bytes];
add.u64 %rd0, %rd0, 15;
and.b64 %rd0, %rd0, -16;
mov.u64 %rd1, kernrec_heap;
atom.global.add.u64 %rd2, [%rd1], %rd0; // The heap starts with the number of bytes in use.
add.u64 %rd3, %rd2, %rd0;
setp.gt.u64 %p0, %rd3, {_HEAP_BYTES - 16};
neg.s64 %rd0, %rd0;
@%p0 red.global.add.u64 [%rd1], %rd0;
add.u64 %rd4, %rd1, %rd2;
add.u64 %rd4, %rd4, 16;
cvta.global.u64 %rd4, %rd4;
selp.b64 %rd4, 0, %rd4, %p0;
st.param.b64 [kernrec_address], %rd4;
ret;
}}
.func free(.param .b64 kernrec_freed)
{{
ret;
}}
"""


MOST_CHARACTERS = 1 << 26

_MOST_LINES = 1 << 14
_GOES_ON = re.compile(r"[^;:{}]*")

_STATEMENT = re.compile(r"[^;]*;|[^;]+")
_HEADER = re.compile(r"(?:\.(?:visible|extern|weak|common)\s+)*\.(entry|func)\b")
_FUNCTION = re.compile(
    r"(?:\.\w+\s+)*?\.(entry|func)\s*(?:\(([^)]*)\)\s*)?([\w$%]+)\s*(?:\((.*?)\))?\s*((?:\.\w.*)?)$", re.DOTALL
)


def parse(text: str, *, verified: bool = True) -> Module:
    """Parse PTX text.

    Args:
        text: text of a whole module.
        verified: whether to check operands and declarations. A module that was not checked must not be executed.

    Raises:
        ParseError: the parser or `verify` rejects the text. The error states the line.
    """
    if len(text) > MOST_CHARACTERS:
        raise ParseError(f"{len(text)} characters; at most {MOST_CHARACTERS} are accepted", 1)
    if "malloc" in text and _DECLARED.search(text):
        text += _HEAP
    parser = _ModuleParser()
    for number, line in _statement_lines(text):
        parser.take_line(line, number)
    module = parser.finish()
    if verified:
        verify(module)
    return module


class _ModuleParser:
    def __init__(self) -> None:
        self._module = Module("", "", {}, {})
        self._function: FunctionParser | None = None
        self._pending: list[str] = []
        self._pending_line = 0
        self._line = 0
        self._numbers = itertools.count(1)

    def take_line(self, line: str, number: int) -> None:
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
        if rest := " ".join(" ".join(self._pending).split()):
            raise ParseError(f"unfinished statement {rest[:60]!r}", self._line)
        if self._function is not None:
            raise ParseError(f"function {self._function.function.name!r} has no closing brace", self._line)
        if not self._module.version:
            raise ParseError("no .version directive: this is not PTX", 1)
        return self._module

    def _take(self, text: str) -> None:
        """Parse the complete statements at the start of a text, and keep the remaining text for later lines."""
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
        """Parse the first statement of a text. Return the remaining text, or None if the statement is incomplete."""
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
    """Return the function that a header declares, without a body. The header starts at line number `line`."""
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
    """Yield (line number, line), with empty lines in place of debug information (`.section`)."""
    # Whether the section's opening brace is still missing, and the number of open braces
    in_header, depth = False, 0
    for number, line in _lines(text):
        if not depth and line.lstrip().startswith(".section"):
            in_header = True
        if not in_header and not depth:
            # Yield each statement, because one line may contain thousands.
            for statement in _STATEMENT.findall(line) if line.count(";") > 1 else (line,):
                yield number, statement
            continue
        depth = max(0, depth + line.count("{") - line.count("}"))
        in_header = in_header and "{" not in line
        yield number, ""


def _lines(text: str) -> Iterator[tuple[int, str]]:
    if "/*" in text:
        text = re.sub(r"/\*.*?\*/", lambda m: "\n" * m.group().count("\n") or " ", text, flags=re.DOTALL)
    for number, line in enumerate(text.split("\n"), 1):
        comment = line.find("//")
        yield number, line if comment < 0 else line[:comment]
