"""Evaluate expressions in the host code of a CUDA program.

The module follows local variables, constants, macros, `dim3` objects and small helper functions such as rounded-up
division. The program is only parsed, never executed.
"""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from types import MappingProxyType
from typing import TYPE_CHECKING

from kernrec.interop.host_expressions import UnknownError, combined, folded, inside, literal, number, rounded_up, whole
from kernrec.interop.host_program import (
    HostProgram,
    child,
    function_of,
    inputs_of,
    last_word,
    parameter_names,
    stripped_node,
)
from kernrec.kernel.cuda_program import function_name, nodes, parsed, text_of
from kernrec.kernel.cuda_signature import element_type

if TYPE_CHECKING:
    from tree_sitter import Node

_MOST_STEPS = 64
"""Maximum number of definitions to follow for one expression."""
_MOST_NODES = 10_000
"""Maximum number of syntax nodes to visit for one launch, because recursive definitions take exponential time."""
_MOST_TEMPLATES = 4
"""Maximum depth of calls between template functions."""
_READ_NUMBER = ("atoi", "atol", "atoll", "strtol", "strtoul", "strtoll", "strtoull", "stoi", "stol", "stoul")
_ARITHMETIC_TYPES = ("int", "unsigned", "size_t", "uint", "long", "float", "double", "uint32_t", "int64_t", "uint64_t")
_ARGV = re.compile(r"argv\s*\[\s*(\d{1,3})\s*\]")


class HostValues(HostProgram):
    """CUDA program whose expressions can be evaluated."""

    def __init__(self, text: str, argv: Sequence[str] = ()) -> None:
        """Read a program from its text. `argv` are the command-line arguments of the program, if known."""
        super().__init__(text)
        self._argv = argv
        self.begin()

    def begin(self) -> None:
        """Reset the number of syntax nodes that may be read for one launch."""
        self._nodes_left = _MOST_NODES

    def extents(self, node: "Node | None") -> "list[Node]":
        """Return the expressions for the extents of a `dim3` object, or the expression itself if it is a number."""
        if node is None:
            return []
        if node.type == "identifier":
            if fields := self._fields(node):
                return fields
            defined = next(self._definitions(node), None)
            if defined is not None and defined.type != node.type:
                return self.extents(defined) if _is_dim3(defined) else [node]
        if not _is_dim3(node):
            return [node]
        inner = next(nodes(node, "argument_list", "initializer_list", "parameter_list"), None)
        return [each for each in (inner.named_children if inner else ()) if each.type != "comment"]

    def passed(self, variable: str, function: "Node | None") -> "Node | None":
        """Return the value that the first call of a function passes for a parameter, or None if there is no call."""
        names = parameter_names(function) if function is not None else []
        if function is None or variable not in names:
            return None
        place = names.index(variable)
        calls = map(inputs_of, self.calls.get(function_name(function), ()))
        # A call may omit default arguments.
        return next((inputs[place] for inputs in calls if place < len(inputs) <= len(names)), None)

    def template_arguments(self, function: "Node | None", depth: int = 0) -> dict[str, str]:
        """Return the template arguments of a function, keyed by template parameter."""
        template = function.parent if function is not None else None
        if function is None or template is None or template.type != "template_declaration":
            return {}
        declared = child(template, "parameters")
        parts = [text_of(each).partition("=") for each in (declared.named_children if declared else ())]
        names = [last_word(part[0]) for part in parts]
        defaults = {name: part[2].strip() for name, part in zip(names, parts, strict=True) if part[1]}
        text = text_of(self.root)
        stated = re.search(rf"\b{re.escape(function_name(function))}\s*<([^<>;(){{}}]*)>\s*\(", text)
        values = [each.strip() for each in stated[1].split(",")] if stated else []
        if stated and depth < _MOST_TEMPLATES:
            caller = self.root.descendant_for_byte_range(*(len(text[: stated.start()].encode()),) * 2)
            passed = self.template_arguments(function_of(caller), depth + 1)
            values = [passed.get(each, each) for each in values]
        return defaults | dict(zip(names, [each for each in values if each], strict=False))

    def _fields(self, node: "Node") -> "list[Node]":
        """Return the values that the fields of a `dim3` variable have at `node`."""
        fields = []
        for axis in "xyz":
            values = self.assignments.get(f"{text_of(node)}.{axis}", ())
            before = [each for each in values if each.end_byte <= node.start_byte]
            last = next((each for each in before[::-1] if function_of(each) == function_of(node)), None)
            if (value := child(last, "right")) is None:
                break
            fields.append(value)
        return fields

    def _definitions(self, node: "Node") -> "Iterator[Node]":
        """Yield the values that a variable gets before `node`, last value first."""
        name, function = text_of(node), function_of(node)
        assigned = False
        for each in reversed(self.assignments.get(name, ())):
            scope, value = function_of(each), child(each, "value", "right")
            before = scope is None or (scope == function and each.end_byte <= node.start_byte)
            if before and value is not None:
                assigned = True
                yield value
        if not assigned:  # The parser mistakes `dim3 block(16, 16);` for a function.
            for each in reversed(self.dim3_declarations):
                for declarator in reversed(each.named_children) if function_of(each) == function else ():
                    if text_of(declarator).startswith((f"{name}(", f"{name} (", f"{name}{{")):
                        yield declarator

    def value(self, node: "Node | None", names: Mapping[str, str] = MappingProxyType({}), steps: int = 0) -> str:
        """Convert an expression of the host code to Python notation. Raise `UnknownError` if a value is unknown.

        Variables in `names` are replaced by the mapped names. Other variables are replaced by their values.
        """
        self._nodes_left -= 1
        if node is None or steps > _MOST_STEPS or self._nodes_left < 0:
            raise UnknownError
        text = text_of(node)
        if text in names:
            return names[text]

        def value(part: "Node | str | None") -> str:
            return self.value(child(node, part) if isinstance(part, str) else part, names, steps + 1)

        match node.type:
            case "number_literal":
                return literal(text)
            case "initializer_list" if len(node.named_children) != 1:
                raise UnknownError
            case "parenthesized_expression" | "condition_clause" | "initializer_list":
                return value(node.named_children[0])
            case "cast_expression":
                return self._cast(text_of(child(node, "type")), value("value"))
            case "unary_expression" if text.startswith("-"):
                return folded(f"-({value('argument')})")
            case "true" | "false":
                return str(int(text == "true"))
            case "sizeof_expression":
                return str(self.size_of(re.sub(r"^sizeof|[()]", " ", text).strip()))
            case "binary_expression":
                return combined(value("left"), text_of(child(node, "operator")), value("right"))
            case "conditional_expression":
                test, yes, no = map(value, ("condition", "consequence", "alternative"))
                return folded(f"({yes} if {test} else {no})")
            case "subscript_expression" if (array := child(node, "argument")) is not None:
                values = next(self._definitions(array), None)
                if values is None or values.type != "initializer_list" or not values.named_children:
                    raise UnknownError
                # A loop may use every element of the array. Use the middle element as an example.
                return value(values.named_children[len(values.named_children) // 2])
            case "field_expression" if text[-2:] in (".x", ".y", ".z"):
                return value(dict(zip("xyz", self.extents(child(node, "argument")), strict=False)).get(text[-1]))
            case "call_expression":
                return self._called(node, names, steps)
            # In `dim3 grid(f(n, a * b));`, the parser mistakes the call of `f` for a declaration.
            case "parameter_declaration" if (declarator := child(node, "declarator")) is not None:
                if declarator.type == "abstract_function_declarator":
                    return self._called(node, names, steps)
                if declarator.type == "pointer_declarator":
                    return combined(value("type"), "*", value(child(declarator, "declarator")))
            case "identifier" | "type_descriptor" | "parameter_declaration" | "type_identifier":
                function = function_of(node)
                # A function that gets the address of a variable, such as scanf, may change the variable. So treat its
                # value as unknown. A copy to a symbol is an exception, because it only reads the variable.
                setter = rf"(?<!ToSymbol)(?<!ToSymbolAsync)\s*\([^;{{}}()]*&\s*{re.escape(text)}\b"
                if re.search(rf"\w{setter}", text_of(function)):
                    raise UnknownError
                for definition in self._definitions(node):
                    with suppress(UnknownError):
                        return value(definition)
                if text in self.macros and not self.macros[text][0]:
                    return value(_expression(self.macros[text][1]))
                return value(self.passed(text, function))
        raise UnknownError

    def _called(self, node: "Node", names: Mapping[str, str], steps: int) -> str:
        function_or_type = child(node, "function", "type")
        name = text_of(function_or_type).removeprefix("std::").partition("<")[0]
        inputs = inputs_of(node)
        if name in ("ceil", "ceilf") and len(inputs) == 1:
            quotient = stripped_node(inputs[0])
            if quotient.type == "binary_expression" and text_of(child(quotient, "operator")) == "/":
                sides = (self.value(child(quotient, side), names, steps + 1) for side in ("left", "right"))
                return rounded_up(*sides)
            return whole(self.value(inputs[0], names, steps + 1), math.ceil)
        if name in _READ_NUMBER and inputs and (position := _ARGV.fullmatch(text_of(inputs[0]))):
            return number(dict(enumerate(self._argv, 1)).get(int(position[1]), ""))
        values = [self.value(each, names, steps + 1) for each in inputs]
        if name == "static_cast" and len(values) == 1:
            return self._cast(text_of(function_or_type).partition("<")[2].removesuffix(">"), values[0])
        if name in _ARITHMETIC_TYPES and len(values) == 1:
            return self._cast(name, values[0])
        if name in ("min", "max", "fmin", "fmax") and len(values) == 2:
            return folded(f"{name.removeprefix('f')}({', '.join(values)})")
        parameters: Sequence[str] = ()
        body = None
        if name in self.macros:
            parameters, text = self.macros[name]
            body = _expression(text)
        elif (function := self.functions.get(name)) is not None:
            parameters = parameter_names(function)
            returned = nodes(function, "return_statement")
            body = next((each.named_children[0] for each in returned if each.named_children), None)
        if len(parameters) != len(values):
            raise UnknownError
        return self.value(body, dict(zip(parameters, map(inside, values), strict=True)), steps + 1)

    def _cast(self, kind: str, value: str) -> str:
        dtype, _ = element_type(kind, self.aliases)
        return value if dtype is None or "f" in dtype else whole(value, int)


def _is_dim3(node: "Node") -> bool:
    return node.type in ("initializer_list", "function_declarator", "argument_list") or (
        node.type in ("call_expression", "compound_literal_expression") and text_of(node).startswith("dim3")
    )


def _expression(text: str) -> "Node | None":
    return child(next(nodes(parsed(f"int expression = ({text});"), "init_declarator"), None), "value")
