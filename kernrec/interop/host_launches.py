"""The launches in a CUDA program's host code: grid, block and arguments, as far as the text says them.

An expression of the host is followed to numbers, to parameters of the kernel and to the extents of its block: through
local variables, constants, macros, `dim3`, small helper functions such as a division that rounds up, and parameters of
the function that launches, which get what its callers pass. Nothing is executed.
"""

import ast
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from kernrec.kernel.cuda_program import function_name, nodes, parsed, text_of
from kernrec.kernel.cuda_signature import element_type
from kernrec.op.dtype import ELEMENT_BYTES

if TYPE_CHECKING:
    from tree_sitter import Node

_MOST_STEPS = 64
"""Definitions that one expression is followed through."""
_MOST_NODES = 10_000
"""Nodes that are read for one launch: definitions that name each other twice would take exponential time."""
_LARGEST, _MOST_CHARACTERS = 2**63, 2_000
"""Limits of a number and of an expression."""
_ALLOCATIONS = ("cudaMalloc", "cudaMallocManaged", "cudaMallocAsync", "cudaMallocHost", "cudaHostAlloc")
_ROUNDED_UP = re.compile(r"\(?(.+?) \+ (\d+)\)? // (\d+)")


class _UnknownError(Exception):
    """An expression that the text does not decide."""


@dataclass(frozen=True)
class HostLaunch:
    """A launch as the host code has it; None where the text does not say it."""

    kernel: str
    """The name of the kernel, with template arguments if the launch has any."""
    grid: str | None
    """Expressions of the axes, in parameters of the kernel and extents of the block (`block_x`)."""
    block: tuple[int, ...] | None
    shared: str | None
    arguments: tuple[str, ...]
    """`n=4096` and `x=[n]`, as `kernrec analyze --arg` takes them."""


def host_launches(text: str, kernel: str, parameters: Sequence[tuple[str, str | None]]) -> tuple[HostLaunch, ...]:
    """Return the launches of a kernel.

    Args:
        text: CUDA C++ with host code.
        kernel: Its name, without template arguments.
        parameters: Name of each parameter, and the data type of what it points to; None for a number.
    """
    if "<<<" not in text:
        return ()
    program = _Program(parsed(text))
    launches = []
    for call in nodes(program.root, "call_expression"):
        configuration = next((child for child in call.named_children if child.type == "kernel_call_syntax"), None)
        name = text_of(call.child_by_field_name("function"))
        if configuration is not None and name.partition("<")[0].strip() == kernel:
            launches.append(_Launch(program, call, configuration, parameters).read(name))
    return tuple(launches)


class _Program:
    """What the text of a program defines, by name."""

    def __init__(self, root: "Node") -> None:
        self.root = root

    @cached_property
    def functions(self) -> "dict[str, Node]":
        return {function_name(node): node for node in nodes(self.root, "function_definition")}

    @cached_property
    def macros(self) -> dict[str, tuple[tuple[str, ...], str]]:
        """Parameters and text of each macro."""
        found_macros = {}
        for node in nodes(self.root, "preproc_def", "preproc_function_def"):
            parameters = node.child_by_field_name("parameters")
            names = tuple(text_of(each) for each in parameters.named_children) if parameters is not None else ()
            found_macros[text_of(node.child_by_field_name("name"))] = names, text_of(node.child_by_field_name("value"))
        return found_macros

    def calls(self, function: str) -> "list[Node]":
        """Return the calls of a function, in the order of the text."""
        calls = nodes(self.root, "call_expression")
        return [call for call in calls if text_of(call.child_by_field_name("function")) == function]


class _Launch:
    """Reads one launch."""

    def __init__(
        self, program: _Program, call: "Node", configuration: "Node", parameters: Sequence[tuple[str, str | None]]
    ) -> None:
        self.program, self.call = program, call
        self.configuration = [node for node in configuration.named_children if node.type != "comment"]
        self.arguments = _inputs(call)
        self.parameters = parameters
        self.nodes_left = _MOST_NODES
        self.dimensions = {
            text_of(argument): name
            for (name, pointed), argument in zip(parameters, self.arguments, strict=False)
            if pointed is None and argument.type == "identifier"
        }

    def read(self, name: str) -> HostLaunch:
        block = shared = None
        with suppress(_UnknownError, IndexError):
            block = tuple(int(_number(extent)) for extent in self._axes(self.configuration[1], {}))
        block = block if block and 0 not in block else None
        names = self.dimensions | self._block_names()
        with suppress(_UnknownError, IndexError):
            if (text := self._resolved(self.configuration[2], names)) != "0":
                shared = text.replace(" // ", "/")
        values = tuple(
            value
            for (parameter, pointed), argument in zip(self.parameters, self.arguments, strict=False)
            if (value := self._argument(parameter, pointed, argument)) is not None
        )
        return HostLaunch(self._instance(name), self._grid(block, names), block, shared, values)

    def _instance(self, name: str) -> str:
        """Return the kernel's name with template arguments as numbers where the text decides them."""
        values = next(nodes(self.call, "template_argument_list"), None)
        if values is None:
            return name
        texts = []
        for node in values.named_children:
            try:
                texts.append(self._resolved(node, {}))
            except _UnknownError:
                texts.append(text_of(node))
        return f"{name.partition('<')[0].strip()}<{', '.join(texts)}>"

    def _block_names(self) -> dict[str, str]:
        """Return the names of the host for the extents of the block."""
        if len(self.configuration) < 2:
            return {}
        node = self.configuration[1]
        extents = zip("xyz", self._extents(node), strict=False)
        names = {text_of(extent): f"block_{axis}" for axis, extent in extents if extent.type == "identifier"}
        if node.type == "identifier":
            names |= {f"{text_of(node)}.{axis}": f"block_{axis}" for axis in "xyz"}
        return names

    def _grid(self, block: tuple[int, ...] | None, names: Mapping[str, str]) -> str | None:
        """Return the expressions of the axes, with the extents of the block by name where the text shows them."""
        try:
            axes = self._axes(self.configuration[0], names)
        except (_UnknownError, IndexError):
            return None
        while len(axes) > 1 and axes[-1] == "1":
            axes = axes[:-1]
        extents = (*(block or ()), 0, 0, 0)
        return ", ".join(
            _by_block(text, axis, extent) for text, axis, extent in zip(axes, "xyz", extents, strict=False)
        )

    def _argument(self, name: str, pointed: str | None, node: "Node") -> str | None:
        try:
            if pointed is None:
                return f"{name}={self._resolved(node, {})}" if _is_number(self._resolved(node, {})) else None
            return f"{name}=[{self._elements(node, ELEMENT_BYTES[pointed])}]"
        except (_UnknownError, KeyError):
            return None

    def _elements(self, pointer: "Node", size: int) -> str:
        """Return the elements of the buffer that a pointer is allocated with.

        Raises:
            _UnknownError: No allocation of the pointer is in sight.
        """
        function, variable = _function_of(pointer), _stripped(pointer)
        for _ in range(8):
            for name in _ALLOCATIONS:
                for call in self.program.calls(name):
                    inputs = _inputs(call) if _function_of(call) == function else []
                    if len(inputs) > 1 and _stripped(inputs[0]) == variable:
                        return _divided(self._resolved(inputs[1], self.dimensions), size)
            passed = self._passed(variable, function)
            if passed is None:
                break
            function, variable = _function_of(passed), _stripped(passed)
        raise _UnknownError

    def _passed(self, variable: str, function: "Node | None") -> "Node | None":
        """Return what the first caller passes for a parameter of a function; None for other variables."""
        names = _parameter_names(function) if function is not None else []
        if function is None or variable not in names:
            return None
        for call in self.program.calls(function_name(function)):
            if len(inputs := _inputs(call)) == len(names):
                return inputs[names.index(variable)]
        return None

    def _extents(self, node: "Node") -> "list[Node]":
        """Return the extents of a `dim3`, or the number itself."""
        if node.type == "identifier" and (defined := self._definition(node)) is not None and defined.type != node.type:
            return self._extents(defined) if _is_dim3(defined) else [node]
        if _is_dim3(node):
            inner = next(nodes(node, "argument_list", "initializer_list", "parameter_list"), None)
            return [child for child in (inner.named_children if inner else ()) if child.type != "comment"]
        return [node]

    def _axes(self, node: "Node", names: Mapping[str, str]) -> list[str]:
        return [self._resolved(extent, names) for extent in self._extents(node)]

    def _definition(self, node: "Node") -> "Node | None":
        """Return the expression that a variable last got before a place, in its function or at namespace scope."""
        name, function, latest = text_of(node), _function_of(node), None
        for each in nodes(self.program.root, "init_declarator", "assignment_expression"):
            left = each.child_by_field_name("declarator") or each.child_by_field_name("left")
            scope = _function_of(each)
            if text_of(left) != name or scope not in (None, function):
                continue
            if each.end_byte <= node.start_byte or scope is None:
                latest = each.child_by_field_name("value") or each.child_by_field_name("right")
        if latest is None:  # `dim3 block(16, 16);` reads as a declaration of a function
            for each in nodes(self.program.root, "declaration"):
                if text_of(each.child_by_field_name("type")) == "dim3" and _function_of(each) == function:
                    for declarator in each.named_children:
                        if text_of(declarator).startswith((f"{name}(", f"{name} (", f"{name}{{")):
                            latest = declarator
        return latest

    def _resolved(self, node: "Node", names: Mapping[str, str], steps: int = 0) -> str:
        """Return an expression of whole numbers, in Python's notation.

        Raises:
            _UnknownError: The text does not decide it.
        """
        self.nodes_left -= 1
        if steps > _MOST_STEPS or self.nodes_left < 0:
            raise _UnknownError
        text = text_of(node)
        if text in names:
            return names[text]

        def resolved(part: "Node | None") -> str:
            if part is None:
                raise _UnknownError
            return self._resolved(part, names, steps + 1)

        match node.type:
            case "number_literal":
                return _literal(text)
            case "parenthesized_expression" | "condition_clause":
                return resolved(node.named_children[0])
            case "cast_expression":
                return resolved(node.child_by_field_name("value"))
            case "unary_expression" if text.startswith("-"):
                return _folded(f"-({resolved(node.child_by_field_name('argument'))})")
            case "sizeof_expression":
                dtype, lanes = element_type(re.sub(r"^sizeof|[()]", " ", text).strip())
                if dtype is None:
                    raise _UnknownError
                return str(lanes * ELEMENT_BYTES[dtype])
            case "binary_expression":
                operator = text_of(node.child_by_field_name("operator"))
                left, right = (resolved(node.child_by_field_name(side)) for side in ("left", "right"))
                return _combined(left, operator, right)
            case "conditional_expression":
                test, yes, no = (
                    resolved(node.child_by_field_name(f)) for f in ("condition", "consequence", "alternative")
                )
                return _folded(f"({yes} if {test} else {no})")
            case "call_expression":
                return self._called(node, names, steps)
            case "identifier" | "qualified_identifier":
                if (value := self._definition(node)) is not None:
                    return resolved(value)
                if text in self.program.macros and not self.program.macros[text][0]:
                    return resolved(_expression(self.program.macros[text][1]))
                return resolved(self._passed(text, _function_of(node)))
        raise _UnknownError

    def _called(self, node: "Node", names: Mapping[str, str], steps: int) -> str:
        """Return the value of a function or macro of one expression, and of a few functions of C."""
        name = text_of(node.child_by_field_name("function")).removeprefix("std::").partition("<")[0]
        inputs = _inputs(node)
        if name in ("ceil", "ceilf") and len(inputs) == 1:
            quotient = _stripped_node(inputs[0])
            if quotient.type == "binary_expression" and text_of(quotient.child_by_field_name("operator")) == "/":
                sides = (quotient.child_by_field_name(side) for side in ("left", "right"))
                left, right = (self._resolved(side, names, steps + 1) for side in sides if side is not None)
                return _rounded_up(left, right)
            return self._resolved(inputs[0], names, steps + 1)
        values = [self._resolved(each, names, steps + 1) for each in inputs]
        if name in ("min", "max", "fmin", "fmax") and len(values) == 2:
            return _folded(f"{name.removeprefix('f')}({', '.join(values)})")
        if name in self.program.macros:
            parameters, text = self.program.macros[name]
            body = _expression(text)
        elif (function := self.program.functions.get(name)) is not None:
            parameters = tuple(_parameter_names(function))
            body = next(
                (each.named_children[0] for each in nodes(function, "return_statement") if each.named_children), None
            )
        else:
            raise _UnknownError
        if body is None or len(parameters) != len(values):
            raise _UnknownError
        return self._resolved(body, dict(zip(parameters, map(_inside, values), strict=True)), steps + 1)


def _inputs(call: "Node") -> "list[Node]":
    """Return the arguments of a call."""
    arguments = call.child_by_field_name("arguments")
    return [each for each in arguments.named_children if each.type != "comment"] if arguments is not None else []


def _is_dim3(node: "Node") -> bool:
    return node.type in ("initializer_list", "function_declarator", "argument_list") or (
        node.type in ("call_expression", "compound_literal_expression") and text_of(node).startswith("dim3")
    )


def _function_of(node: "Node | None") -> "Node | None":
    while node is not None and node.type != "function_definition":
        node = node.parent
    return node


def _parameter_names(function: "Node") -> list[str]:
    declared = next(nodes(function, "parameter_list"), None)
    return [_last_word(text_of(each).partition("=")[0]) for each in (declared.named_children if declared else ())]


def _last_word(text: str) -> str:
    words = re.findall(r"[A-Za-z_]\w*", text)
    return words[-1] if words else ""


def _stripped_node(node: "Node") -> "Node":
    while node.type in ("parenthesized_expression", "cast_expression", "pointer_expression"):
        inner = node.child_by_field_name("value") or node.child_by_field_name("argument")
        node = inner or node.named_children[-1]
    return node


def _stripped(node: "Node") -> str:
    """Return a variable without casts, addresses and dereferences."""
    return text_of(_stripped_node(node))


def _expression(text: str) -> "Node | None":
    """Return the tree of an expression."""
    statement = next(nodes(parsed(f"int expression = ({text});"), "init_declarator"), None)
    return statement.child_by_field_name("value") if statement is not None else None


def _literal(text: str) -> str:
    plain = re.sub(r"(?<=[\da-fA-F.])(?:[uUlLzZ]+|(?<!0x)[fF])$", "", text.replace("'", ""))
    try:
        return str(int(plain, 0))
    except ValueError:
        try:
            return repr(float(plain))
        except ValueError:
            raise _UnknownError from None


def _combined(left: str, operator: str, right: str) -> str:
    if operator in ("<<", ">>"):
        bits = int(_number(right))
        if bits > 62:
            raise _UnknownError
        return _folded(f"{_inside(left)} {'*' if operator == '<<' else '//'} {2**bits}")
    if operator not in ("+", "-", "*", "/", "%", "<", ">", "<=", ">=", "==", "!="):
        raise _UnknownError
    fraction = operator == "/" and ("." in left or "." in right)
    return _folded(f"{_inside(left)} {'//' if operator == '/' and not fraction else operator} {_inside(right)}")


def _inside(text: str) -> str:
    return text if re.fullmatch(r"[\w.]+|\w+\(.*\)", text) else f"({text})"


def _folded(text: str) -> str:
    """Return the number that an expression of numbers is, else the expression.

    Raises:
        _UnknownError: The number or the expression is too large, or it divides by zero.
    """
    if len(text) > _MOST_CHARACTERS:
        raise _UnknownError
    if re.search(r"[A-Za-z_]", re.sub(r"\b(?:min|max|if|else|ceil_div)\b", "", text)):
        return text
    try:
        value = eval(compile(ast.parse(text, mode="eval"), "", "eval"), {"__builtins__": {}, "min": min, "max": max})
    except (SyntaxError, ZeroDivisionError, OverflowError, MemoryError, ValueError):
        raise _UnknownError from None
    if not abs(value) < _LARGEST:
        raise _UnknownError
    return str(int(value)) if isinstance(value, bool | int) or value == int(value) else repr(value)


def _is_number(text: str) -> bool:
    return re.fullmatch(r"-?[\d.]+(?:e[+-]?\d+)?", text) is not None


def _number(text: str) -> str:
    if not re.fullmatch(r"\d{1,10}", text):
        raise _UnknownError
    return text


def _rounded_up(left: str, right: str) -> str:
    if _is_number(left) and _is_number(right):
        return str(-(-int(float(left)) // int(float(right))))
    return f"ceil({_inside(left)}/{_inside(right)})"


def _divided(text: str, size: int) -> str:
    """Return the elements of a buffer of so many bytes."""
    if re.fullmatch(r"\d+", text):
        return str(-(-int(text) // size))
    for pattern in (rf"(.+) \* {size}", rf"{size} \* (.+)"):
        if match := re.fullmatch(pattern, text):
            return match[1]
    return f"({text})/{size}"


def _by_block(text: str, axis: str, extent: int) -> str:
    """Return the blocks along an axis in the extent of the block, where the text divides by that extent."""
    if (match := _ROUNDED_UP.fullmatch(text)) and extent and int(match[3]) == extent == int(match[2]) + 1:
        return f"ceil({match[1]}/block_{axis})"
    return text.replace(" // ", "/")
