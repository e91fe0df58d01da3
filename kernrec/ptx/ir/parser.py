"""Parse PTX text into a `Module`.

The parser covers the grammar that compilers use (PTX ISA, sections 4 and 5,
https://docs.nvidia.com/cuda/parallel-thread-execution/) and ignores debug directives. It defines `malloc`, which
returns the next bytes of a heap of fixed size, and `free`, which does nothing.
"""

import hashlib
import itertools
import re
from dataclasses import replace
from functools import lru_cache
from typing import Any

from kernrec.ptx.ir.declarations import MOST_BYTES, read_variable
from kernrec.ptx.ir.function_parser import END, LONGEST_KEPT, FunctionParser, PtxText, read_instruction
from kernrec.ptx.ir.operand import Operand
from kernrec.ptx.ir.program import Function, Module, ParseError, Variable
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

_HEADER = re.compile(r"\s*((?:\.(?:visible|extern|weak|common)\s+)*\.(?:entry|func)\b(?:[^;{(]|\([^)]*\))*+)([;{])")
_FUNCTION = re.compile(
    r"(?:\.\w+\s+)*?\.(entry|func)\s*(?:\(([^)]*)\)\s*)?([\w$%]+)\s*(?:\((.*?)\))?\s*((?:\.\w.*)?)$", re.DOTALL
)
_STATED = re.compile(r'\s*(\.(?:version|target|address_size|file))\b((?:[^\n;"]|"[^"\n]*"?)*);?')
_LITERAL = re.compile(r"[1-9](?<=[ \t+\[-].)(?:\d{1,8}|(?<!1))(?![\w.])")
_DIRECTIVE = re.compile(r"\.(\w+)\s+([\d,\s]+)")
_SHARED = re.compile(r"\.shared\s")
_LARGEST_KEPT = 1 << 16  # Maximum characters of a text that is kept to parse similar texts, to limit memory.
_DEBUG_SECTION = re.compile(r"\s*\.section\b[^{]*(?:\{[^}]*\}?)?")


def parse(text: str, *, verified: bool = True) -> Module:
    """Parse PTX text.

    Args:
        text: text of a whole module.
        verified: whether to check operands and declarations. Only a checked module may be executed.

    Raises:
        ParseError: the text is invalid. The error states the line.
    """
    if len(text) > MOST_CHARACTERS:
        raise ParseError(f"{len(text)} characters; at most {MOST_CHARACTERS} are accepted", 1)
    if "malloc" in text and _DECLARED.search(text):
        text += _HEAP
    masked = hashlib.sha256(_LITERAL.sub("#", text).encode(errors="surrogatepass")).digest()
    before = _parsed_before(masked)
    module = _changed(*before[0], text) if before else None
    if module is None:
        source = PtxText(text)
        try:
            module = _module(source)
        except ValueError as error:
            raise ParseError(str(error), source.line) from None
        if not module.version:
            raise ParseError("no .version directive: this is not PTX", 1)
    form = _form(masked, module)
    for function in module.functions.values():
        vars(function)["form_memo"] = _form_memo(form, function.name)
    if verified:
        verify(module, before[0][1] if before else None)
        if len(text) <= _LARGEST_KEPT and len(module.functions) == 1:
            before[:] = [(text, module)]
    return module


@lru_cache(maxsize=32)
def _parsed_before(masked: bytes) -> list[tuple[str, Module]]:
    """Return a list to update: empty, or the last text whose hash without literals is `masked`, and its module."""
    return []


def _changed(before: str, module: Module, text: str) -> Module | None:
    """Return a copy of a module with the literals of another text. Share all instructions that do not change.

    Args:
        before: text of the module. It has a single function.
        text: text that differs from `before` only in literals.

    Returns:
        Module of `text`, or None if the whole text must be parsed.
    """
    (function,) = module.functions.values()
    all_variables = (*module.variables.values(), *function.variables.values())
    shared = [variable.name for variable in all_variables if variable.space == "shared"]
    # Block comments and names that are declared twice hide which line counts.
    if "/*" in text or len(_SHARED.findall(text)) != len(set(shared)):
        return None
    instructions, variables, directives = [*function.instructions], {**function.variables}, {**function.directives}
    places = {ins.line: place for place, ins in enumerate(instructions)}
    for number, lines in enumerate(zip(before.split("\n"), text.split("\n"), strict=True), 1):
        if lines[0] == lines[1]:
            continue
        old, new = (line.strip() for line in lines)
        place = places.get(number)
        if len(new) > LONGEST_KEPT:
            return None
        try:
            if place is not None and instructions[place].text == old:
                ins, same = read_instruction(new), read_instruction(old)
                # The parser renames registers of nested scopes.
                if ins is None or same is None or same.at(number) != instructions[place]:
                    return None
                instructions[place] = ins.at(number)
            elif old[:7] == ".shared" and (declared := read_variable(old.removesuffix(";"))) in variables.values():
                variables[declared.name] = read_variable(new.removesuffix(";"))
            elif (
                (named := _DIRECTIVE.fullmatch(old)) is None
                or directives.get(named[1]) != _numbers(named[2])
                or text.count(f".{named[1]}") > 1
            ):
                return None
            else:
                directives[named[1]] = _numbers(new.split(maxsplit=1)[1])
        except ValueError:
            return None
    changed = replace(function, instructions=instructions, variables=variables, directives=directives)
    return replace(module, functions={changed.name: changed})


def _form(masked: bytes, module: Module) -> bytes:
    """Return a hash that is equal for texts that `cached_by_form` does not distinguish.

    Args:
        masked: hash of the text without literals.
    """
    numbers: dict[Operand, int] = {}
    factors = [
        numbers.setdefault(ins.operands[-1], len(numbers))
        for function in module.functions.values()
        for ins in function.instructions
        if ins.opcode == "mul" and "wide" in ins.modifiers and ins.operands
    ]
    return hashlib.sha256(repr(factors).encode() + masked).digest()


@lru_cache(maxsize=32)
def _form_memo(form: bytes, name: str) -> dict[object, Any]:
    return {}


def _module(source: PtxText) -> Module:
    stated: dict[str, str] = {}
    functions: dict[str, Function] = {}
    variables: dict[str, Variable] = {}
    numbers = itertools.count(1)
    while not source.take(END):
        if match := source.take(_HEADER):
            function = _function(match[1].strip(), source.line_at(match.start(1)))
            if match[2] == "{":
                FunctionParser(function, source, numbers).parse()
                functions[function.name] = function
        elif match := source.take(_STATED):
            words = match[2].split()
            if not words:
                raise ValueError(f"{match[1]} without a value")
            stated[match[1]] = words[0].rstrip(",")
        elif not source.take(_DEBUG_SECTION):
            statement = source.statement()
            if not statement.startswith((".pragma", ".alias")):
                variable = read_variable(statement)
                variables[variable.name] = variable
    return Module(stated.get(".version", ""), stated.get(".target", ""), functions, variables)


def _function(header: str, line: int) -> Function:
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
    for directive, values in _DIRECTIVE.findall(directives or ""):
        function.directives[directive] = _numbers(values)
    return function


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(number) for number in text.replace(",", " ").split())
