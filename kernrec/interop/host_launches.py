"""Read grid, block and arguments of kernel launches from the host code of a CUDA program.

The module reduces host expressions to numbers, kernel parameters and block extents. It follows local variables,
constants, macros, `dim3` objects and small helper functions such as rounded-up division. The program is only parsed,
never executed.
"""

import math
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kernrec.interop.host_program import (
    HostProgram,
    UnknownError,
    by_block,
    combined,
    divided,
    folded,
    inside,
    is_number,
    last_word,
    literal,
    number,
    rounded_up,
    whole,
)
from kernrec.kernel.cuda_program import function_name, nodes, parsed, text_of
from kernrec.kernel.cuda_signature import element_type
from kernrec.op.dtype import ELEMENT_BYTES

if TYPE_CHECKING:
    from tree_sitter import Node

STRUCTURE = "structure"
_MOST_STEPS = 64
"""Maximum number of definitions to follow for one expression."""
_MOST_NODES = 10_000
"""Maximum number of syntax nodes to visit for one launch, because recursive definitions take exponential time."""
_MOST_TEMPLATES = 4
"""Maximum depth of calls between template functions."""
_READ_NUMBER = ("atoi", "atol", "atoll", "strtol", "strtoul", "strtoll", "strtoull", "stoi", "stol", "stoul")
_ARITHMETIC_TYPES = ("int", "unsigned", "size_t", "uint", "long", "float", "double", "uint32_t", "int64_t", "uint64_t")
_ARGV = re.compile(r"argv\s*\[\s*(\d{1,3})\s*\]")
_ALLOCATIONS = ("cudaMalloc", "cudaMallocManaged", "cudaMallocAsync", "cudaMallocHost", "cudaHostAlloc")


@dataclass(frozen=True)
class HostLaunch:
    """Kernel launch in the host code. A field is None if the program's text does not determine its value."""

    kernel: str
    """Name of the kernel, with template arguments if any."""
    grid: str | None
    """Number of blocks along each axis: comma-separated expressions of kernel parameters and block extents (`block_x`).
    """
    block: tuple[int, ...] | None
    shared: str | None
    arguments: tuple[str, ...]
    """Known arguments in the notation of `kernrec analyze`, such as `n=4096` and `x=[n]`."""


def host_launches(
    text: str, kernel: str, parameters: Sequence[tuple[str, str | None]], argv: Sequence[str] = ()
) -> tuple[HostLaunch, ...]:
    """Return the launches of a kernel in a program's host code.

    Args:
        kernel: Name of the kernel, without template arguments.
        parameters: Name and kind of each kernel parameter. The kind of a number is None. The kind of a pointer is the
            data type of the elements, or `STRUCTURE` if kernrec does not have this type.
        argv: Command-line arguments of the program, if known.
    """
    if "<<<" not in text:
        return ()
    program = HostProgram(parsed(text), argv)
    launches = []
    for call in nodes(program.root, "call_expression"):
        configuration = next((child for child in call.named_children if child.type == "kernel_call_syntax"), None)
        name = text_of(call.child_by_field_name("function"))
        name = name[name.partition("<")[0].rfind(":") + 1 :]  # Drop namespaces, because `kernel` has none.
        if configuration is not None and name.partition("<")[0].strip() == kernel:
            launches.append(_Launch(program, call, configuration, parameters).read(name))
    return tuple(launches)


def filled_variables(text: str) -> dict[str, str]:
    """Return the device variables that the host code sets with `cudaMemcpyToSymbol` or `cudaGetSymbolAddress`.

    The result maps each variable to its value if this is a known integer, and otherwise to an empty string.
    """
    if "cudaMemcpyToSymbol" not in text and "cudaGetSymbolAddress" not in text:
        return {}
    program, filled = HostProgram(parsed(text)), {}
    for call in nodes(program.root, "call_expression"):
        name = text_of(call.child_by_field_name("function")).partition("<")[0]
        inputs = _inputs(call)
        if name in ("cudaMemcpyToSymbol", "cudaMemcpyToSymbolAsync") and len(inputs) > 1:
            value = ""
            with suppress(UnknownError):
                value = number(_Launch(program, call, None, ())._resolved(_stripped_node(inputs[1]), {}))
            filled[last_word(_stripped(inputs[0]))] = value
        elif name == "cudaGetSymbolAddress" and len(inputs) > 1:
            filled[last_word(_stripped(inputs[1]))] = ""
    return filled


class _Launch:
    """Converter of one kernel launch in the syntax tree to a `HostLaunch`."""

    def __init__(
        self,
        program: HostProgram,
        call: "Node",
        configuration: "Node | None",
        parameters: Sequence[tuple[str, str | None]],
    ) -> None:
        self.program, self.call = program, call
        self.configuration = [node for node in (configuration or call).named_children if node.type != "comment"]
        self.arguments = _inputs(call)
        self.parameters = parameters
        self.nodes_left = _MOST_NODES
        self.dimensions = {
            text_of(argument): name
            for (name, pointed), argument in zip(parameters, self.arguments, strict=False)
            if pointed is None and argument.type == "identifier"
        }

    def read(self, name: str) -> HostLaunch:
        grid = block = shared = None
        template = {name: text for name, text in self._template_arguments().items() if is_number(text)}
        with suppress(UnknownError, IndexError):
            block = tuple(int(number(extent)) for extent in self._axes(self.configuration[1], template))
        block = block if block and 0 not in block else None
        names = template | self.dimensions | self._block_names()
        with suppress(UnknownError, IndexError):
            axes = self._axes(self.configuration[0], names)
            while len(axes) > 1 and axes[-1] == "1":
                axes = axes[:-1]
            extents = zip(axes, "xyz", (*(block or ()), 0, 0, 0), strict=False)
            grid = ", ".join(by_block(text, axis, extent) for text, axis, extent in extents)
        with suppress(UnknownError, IndexError):
            if (text := self._resolved(self.configuration[2], names)) != "0":
                shared = text.replace(" // ", "/")
        values = tuple(
            value
            for (parameter, pointed), argument in zip(self.parameters, self.arguments, strict=False)
            if (value := self._argument(parameter, pointed, argument)) is not None
        )
        return HostLaunch(self._instance(name), grid, block, shared, values)

    def _instance(self, name: str) -> str:
        """Return the kernel's name with the launch's template arguments. Replace known arguments by their values."""
        values = next(nodes(self.call, "template_argument_list"), None)
        if values is None:
            return name
        texts = []
        arguments = self._template_arguments()
        numbers = {name: text for name, text in arguments.items() if is_number(text)}
        for node in values.named_children:
            try:
                texts.append(self._resolved(node, numbers))
            except UnknownError:
                text = " ".join(text_of(node).split())
                texts.append(arguments.get(text, text))
        return f"{name.partition('<')[0].strip()}<{', '.join(texts)}>"

    def _template_arguments(self) -> dict[str, str]:
        """Return the template arguments of the function that contains the launch, keyed by template parameter.

        They come from the first call that states them, or from the parameters' defaults.
        """
        return self._arguments_of(_function_of(self.call))

    def _arguments_of(self, function: "Node | None", depth: int = 0) -> dict[str, str]:
        template = function.parent if function is not None else None
        if function is None or template is None or template.type != "template_declaration":
            return {}
        declared = template.child_by_field_name("parameters")
        parts = [text_of(each).partition("=") for each in (declared.named_children if declared else ())]
        names = [last_word(part[0]) for part in parts]
        defaults = {name: part[2].strip() for name, part in zip(names, parts, strict=True) if part[1]}
        text = text_of(self.program.root)
        stated = re.search(rf"\b{re.escape(function_name(function))}\s*<([^<>;(){{}}]*)>\s*\(", text)
        values = [each.strip() for each in stated[1].split(",")] if stated else []
        if stated and depth < _MOST_TEMPLATES:
            caller = self.program.root.descendant_for_byte_range(*(len(text[: stated.start()].encode()),) * 2)
            passed = self._arguments_of(_function_of(caller), depth + 1)
            values = [passed.get(each, each) for each in values]
        return defaults | dict(zip(names, [each for each in values if each], strict=False))

    def _block_names(self) -> dict[str, str]:
        """Return the names of the block's extents (`block_x`), keyed by the host variable that holds the extent."""
        if len(self.configuration) < 2:
            return {}
        node = self.configuration[1]
        extents = zip("xyz", self._extents(node), strict=False)
        names = {text_of(extent): f"block_{axis}" for axis, extent in extents if extent.type == "identifier"}
        if node.type == "identifier":
            names |= {f"{text_of(node)}.{axis}": f"block_{axis}" for axis in "xyz"}
        return names

    def _argument(self, name: str, pointed: str | None, node: "Node") -> str | None:
        try:
            if pointed is None:
                value = self._resolved(node, {})
                return f"{name}={value}" if is_number(value) else None
            if _stripped(node) in ("NULL", "nullptr"):
                return f"{name}=null"
            size = self._elements(node, 4 if pointed == STRUCTURE else ELEMENT_BYTES[pointed])
            return None if size == "0" else f"{name}={'f32' if pointed == STRUCTURE else ''}[{size}]"
        except (UnknownError, KeyError):
            return None

    def _elements(self, pointer: "Node", size: int) -> str:
        """Return the number of elements of a pointer's buffer. Raise `UnknownError` if no allocation is found."""
        function, variable = _function_of(pointer), _stripped(pointer)
        for _ in range(8):
            for name in _ALLOCATIONS:
                for call in self.program.calls.get(name, ()):
                    inputs = _inputs(call) if _function_of(call) == function else []
                    if len(inputs) > 1 and _stripped(inputs[0]) == variable:
                        return divided(self._resolved(inputs[1], self.dimensions), size)
            passed = self._passed(variable, function)
            if passed is None:
                break
            function, variable = _function_of(passed), _stripped(passed)
        raise UnknownError

    def _passed(self, variable: str, function: "Node | None") -> "Node | None":
        """Return the value that the first call of a function passes for a parameter, or None if there is no call."""
        names = _parameter_names(function) if function is not None else []
        if function is None or variable not in names:
            return None
        for call in self.program.calls.get(function_name(function), ()):
            if names.index(variable) < len(inputs := _inputs(call)) <= len(names):  # A call may omit default arguments.
                return inputs[names.index(variable)]
        return None

    def _extents(self, node: "Node") -> "list[Node]":
        if node.type == "identifier" and (fields := self._fields(node)):
            return fields
        if node.type == "identifier" and (defined := self._definition(node)) is not None and defined.type != node.type:
            return self._extents(defined) if _is_dim3(defined) else [node]
        if _is_dim3(node):
            inner = next(nodes(node, "argument_list", "initializer_list", "parameter_list"), None)
            return [child for child in (inner.named_children if inner else ()) if child.type != "comment"]
        return [node]

    def _fields(self, node: "Node") -> "list[Node]":
        """Return the last values that the host code assigns to the fields of a `dim3` variable before `node`."""
        fields = []
        for axis in "xyz":
            values = self.program.assignments.get(f"{text_of(node)}.{axis}", ())
            before = [
                each for each in values if each.end_byte <= node.start_byte and _function_of(each) == _function_of(node)
            ]
            if not before or (value := before[-1].child_by_field_name("right")) is None:
                break
            fields.append(value)
        return fields

    def _axes(self, node: "Node", names: Mapping[str, str]) -> list[str]:
        return [self._resolved(extent, names) for extent in self._extents(node)]

    def _definition(self, node: "Node") -> "Node | None":
        return next(iter(self._definitions(node)), None)

    def _definitions(self, node: "Node") -> "list[Node]":
        """Return all values that the host code assigns to a variable before `node`, last value first."""
        name, function = text_of(node), _function_of(node)
        values: list[Node] = []
        for each in self.program.assignments.get(name, ()):
            scope = _function_of(each)
            if scope not in (None, function):
                continue
            if each.end_byte <= node.start_byte or scope is None:
                value = each.child_by_field_name("value") or each.child_by_field_name("right")
                values += [value] if value is not None else []
        if not values:  # The parser takes `dim3 block(16, 16);` for a function.
            for each in self.program.dim3_declarations:
                if _function_of(each) == function:
                    for declarator in each.named_children:
                        if text_of(declarator).startswith((f"{name}(", f"{name} (", f"{name}{{")):
                            values.append(declarator)
        return values[::-1]

    def _resolved(self, node: "Node", names: Mapping[str, str], steps: int = 0) -> str:
        """Convert an expression of the host code to Python notation, and replace variables by their values."""
        self.nodes_left -= 1
        if steps > _MOST_STEPS or self.nodes_left < 0:
            raise UnknownError
        text = text_of(node)
        if text in names:
            return names[text]

        def resolved(part: "Node | None") -> str:
            if part is None:
                raise UnknownError
            return self._resolved(part, names, steps + 1)

        match node.type:
            case "number_literal":
                return literal(text)
            case "parenthesized_expression" | "condition_clause":
                return resolved(node.named_children[0])
            case "initializer_list" if len(node.named_children) == 1:
                return resolved(node.named_children[0])
            case "cast_expression":
                kind = text_of(node.child_by_field_name("type"))
                return self._cast(kind, resolved(node.child_by_field_name("value")))
            case "unary_expression" if text.startswith("-"):
                return folded(f"-({resolved(node.child_by_field_name('argument'))})")
            case "true" | "false":
                return str(int(text == "true"))
            case "sizeof_expression":
                return str(self.program.size_of(re.sub(r"^sizeof|[()]", " ", text).strip()))
            case "binary_expression":
                operator = text_of(node.child_by_field_name("operator"))
                left, right = (resolved(node.child_by_field_name(side)) for side in ("left", "right"))
                return combined(left, operator, right)
            case "conditional_expression":
                test, yes, no = (
                    resolved(node.child_by_field_name(f)) for f in ("condition", "consequence", "alternative")
                )
                return folded(f"({yes} if {test} else {no})")
            case "subscript_expression":
                array = node.child_by_field_name("argument")
                values = self._definition(array) if array is not None else None
                if values is None or values.type != "initializer_list" or not values.named_children:
                    raise UnknownError
                return resolved(
                    values.named_children[len(values.named_children) // 2]
                )  # A loop may use every element of the array. The middle one represents them.
            case "field_expression" if text[-2:] in (".x", ".y", ".z"):
                variable = node.child_by_field_name("argument")
                extents = self._extents(variable) if variable is not None else []
                return resolved(dict(zip("xyz", extents, strict=False)).get(text[-1]))
            case "call_expression":
                return self._called(node, names, steps)
            # The parser reads `f(n, a * b)` in `dim3 grid(f(n, a * b));` as a declaration, so evaluate it here.
            case "parameter_declaration" if (declarator := node.child_by_field_name("declarator")) is not None:
                if declarator.type == "abstract_function_declarator":
                    return self._called(node, names, steps)
                if declarator.type == "pointer_declarator":
                    factors = node.child_by_field_name("type"), declarator.child_by_field_name("declarator")
                    return combined(resolved(factors[0]), "*", resolved(factors[1]))
            case "identifier" | "type_descriptor" | "parameter_declaration" | "type_identifier":
                function = _function_of(node)
                # A function that gets the address of a variable, such as scanf, may change the variable. So treat its
                # value as unknown. A copy to a symbol is an exception, because it only reads the variable.
                setter = rf"(?<!ToSymbol)(?<!ToSymbolAsync)\s*\([^;{{}}()]*&\s*{re.escape(text)}\b"
                if re.search(rf"\w{setter}", text_of(function)):
                    raise UnknownError
                for value in self._definitions(node):
                    with suppress(UnknownError):
                        return resolved(value)
                if text in self.program.macros and not self.program.macros[text][0]:
                    return resolved(_expression(self.program.macros[text][1]))
                return resolved(self._passed(text, function))
        raise UnknownError

    def _called(self, node: "Node", names: Mapping[str, str], steps: int) -> str:
        """Evaluate a call of a known function such as `min`, of a macro, or of a function with a return statement."""
        function_or_type = node.child_by_field_name("function") or node.child_by_field_name("type")
        name = text_of(function_or_type).removeprefix("std::").partition("<")[0]
        inputs = _inputs(node)
        if name in ("ceil", "ceilf") and len(inputs) == 1:
            quotient = _stripped_node(inputs[0])
            if quotient.type == "binary_expression" and text_of(quotient.child_by_field_name("operator")) == "/":
                sides = (quotient.child_by_field_name(side) for side in ("left", "right"))
                left, right = (self._resolved(side, names, steps + 1) for side in sides if side is not None)
                return rounded_up(left, right)
            return whole(self._resolved(inputs[0], names, steps + 1), math.ceil)
        if name in _READ_NUMBER and inputs and (position := _ARGV.fullmatch(text_of(inputs[0]))):
            return number(dict(enumerate(self.program.argv, 1)).get(int(position[1]), ""))
        values = [self._resolved(each, names, steps + 1) for each in inputs]
        if name == "static_cast" and len(values) == 1:
            return self._cast(text_of(function_or_type).partition("<")[2].removesuffix(">"), values[0])
        if name in _ARITHMETIC_TYPES and len(values) == 1:
            return self._cast(name, values[0])
        if name in ("min", "max", "fmin", "fmax") and len(values) == 2:
            return folded(f"{name.removeprefix('f')}({', '.join(values)})")
        if name in self.program.macros:
            parameters, text = self.program.macros[name]
            body = _expression(text)
        elif (function := self.program.functions.get(name)) is not None:
            parameters = tuple(_parameter_names(function))
            body = next(
                (each.named_children[0] for each in nodes(function, "return_statement") if each.named_children), None
            )
        else:
            raise UnknownError
        if body is None or len(parameters) != len(values):
            raise UnknownError
        return self._resolved(body, dict(zip(parameters, map(inside, values), strict=True)), steps + 1)

    def _cast(self, kind: str, value: str) -> str:
        dtype, _ = element_type(kind, self.program.aliases)
        return value if dtype is None or "f" in dtype else whole(value, int)


def _inputs(call: "Node") -> "list[Node]":
    arguments = call.child_by_field_name("arguments")
    if arguments is None and (declarator := call.child_by_field_name("declarator")) is not None:
        arguments = declarator.child_by_field_name("parameters")
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
    return [last_word(text_of(each).partition("=")[0]) for each in (declared.named_children if declared else ())]


def _stripped_node(node: "Node") -> "Node":
    while True:
        inputs = _inputs(node) if node.type == "call_expression" else []
        cast = re.match(r"(?:reinterpret|static|const)_cast\b", text_of(node))
        if node.type in ("parenthesized_expression", "cast_expression", "pointer_expression"):
            inner = node.child_by_field_name("value") or node.child_by_field_name("argument")
            node = inner or node.named_children[-1]
        elif cast and len(inputs) == 1:
            node = inputs[0]
        else:
            return node


def _stripped(pointer: "Node") -> str:
    node = _stripped_node(pointer)
    while node.type == "binary_expression" and text_of(node.child_by_field_name("operator")) == "+":
        node = _stripped_node(node.named_children[0])  # Drop the offset from a pointer plus an offset.
    return text_of(node)


def _expression(text: str) -> "Node | None":
    statement = next(nodes(parsed(f"int expression = ({text});"), "init_declarator"), None)
    return statement.child_by_field_name("value") if statement is not None else None
