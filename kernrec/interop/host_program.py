"""Look up definitions in a CUDA program by name, and evaluate its constant expressions.

Expressions are strings in Python notation.
"""

import ast
import math
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from kernrec.kernel.cuda_program import function_name, nodes, text_of
from kernrec.kernel.cuda_signature import element_type, type_aliases
from kernrec.op.dtype import ELEMENT_BYTES

if TYPE_CHECKING:
    from tree_sitter import Node

_LARGEST, _MOST_CHARACTERS = 2**63, 2_000
"""Maximum absolute value of a number, and maximum number of characters in an expression."""
_MOST_FIELDS = 256
_LARGEST_MAKEFILE = 1 << 16
POINTER_BYTES = 8
_ROUNDED_UP = re.compile(r"\(?(.+?) \+ (\d+)\)? // (\d+)")


class UnknownError(Exception):
    """Error for an expression whose value the program's text does not determine."""


def literal(text: str) -> str:
    """Convert a C++ number literal to Python notation. Raise `UnknownError` if it is not a number."""
    digits = text.replace("'", "")
    suffix = r"[uUlLzZ]+$" if digits[:2] in ("0x", "0X") else r"(?:[uUlLzZ]+|[fF])$"
    plain = re.sub(suffix, "", digits)
    try:
        return str(int(plain, 8 if re.fullmatch(r"0[0-7]+", plain) else 0))
    except ValueError:
        try:
            return repr(float(plain))
        except ValueError:
            raise UnknownError from None


def combined(left: str, operator: str, right: str) -> str:
    """Apply a binary C++ operator to two expressions. The result is a number if both are constant.

    Raises:
        UnknownError: The operator is not supported, or the result is not a valid number.
    """
    if operator in ("<<", ">>"):
        bits = int(number(right))
        if bits > 62:
            raise UnknownError
        return folded(f"{inside(left)} {'*' if operator == '<<' else '//'} {2**bits}")
    if operator not in ("+", "-", "*", "/", "%", "<", ">", "<=", ">=", "==", "!="):
        raise UnknownError
    fraction = operator == "/" and ("." in left or "." in right)
    return folded(f"{inside(left)} {'//' if operator == '/' and not fraction else operator} {inside(right)}")


def inside(text: str) -> str:
    """Return an expression that can be an operand of another expression. Add parentheses if necessary."""
    return text if re.fullmatch(r"[\w.]+|\w+\(.*\)", text) else f"({text})"


def folded(text: str) -> str:
    """Return the value of a constant expression. Return any other expression unchanged.

    Raises:
        UnknownError: The expression is too long, or its value is too large, undefined (division by zero) or no number.
    """
    if len(text) > _MOST_CHARACTERS:
        raise UnknownError
    if re.search(r"[A-Za-z_]", re.sub(r"\b(?:min|max|if|else|ceil_div)\b", "", text)):
        return text
    try:
        value = eval(compile(ast.parse(text, mode="eval"), "", "eval"), {"__builtins__": {}, "min": min, "max": max})
    except (SyntaxError, ArithmeticError, MemoryError, ValueError, TypeError, NameError):
        raise UnknownError from None
    if (
        not isinstance(value, int | float) or not abs(value) < _LARGEST
    ):  # The name `max` alone evaluates to a Python function.
        raise UnknownError
    return str(int(value)) if isinstance(value, bool | int) or value == int(value) else repr(value)


def is_number(text: str) -> bool:
    return re.fullmatch(r"-?[\d.]+(?:e[+-]?\d+)?", text) is not None


def number(text: str) -> str:
    """Return the text unchanged. Raise `UnknownError` unless it is a nonnegative integer with at most ten digits."""
    if not re.fullmatch(r"\d{1,10}", text):
        raise UnknownError
    return text


def rounded_up(left: str, right: str) -> str:
    """Return the quotient of two expressions, rounded up. Raise `UnknownError` if the divisor is zero."""
    if is_number(left) and is_number(right):
        try:
            return str(math.ceil(float(left) / float(right)))
        except (ArithmeticError, ValueError):
            raise UnknownError from None
    left, right = (re.sub(r"\b(\d+)\.0\b", r"\1", side) for side in (left, right))
    return f"ceil({inside(left)}/{inside(right)})"


def whole(text: str, rounded: Callable[[float], int]) -> str:
    """Apply `rounded` to a number that has decimals, and return any text without decimals unchanged.

    Raises:
        UnknownError: The text has decimals but is not a single number.
    """
    if not re.search(r"\d\.|\de[+-]", text):
        return text
    if not is_number(text):
        raise UnknownError
    return folded(str(rounded(float(text))))


def divided(text: str, size: int) -> str:
    """Convert the size of a buffer in bytes to its number of elements. Both are expressions.

    Args:
        text: Size of the buffer in bytes.
        size: Bytes per element.
    """
    if re.fullmatch(r"\d+", text):
        return str(-(-int(text) // size))
    for pattern in (rf"(.+) \* {size}", rf"{size} \* (.+)"):
        if match := re.fullmatch(pattern, text):
            return match[1]
    return f"({text})/{size}"


def by_block(text: str, axis: str, extent: int) -> str:
    """Convert an expression for the number of blocks along an axis to the spec's notation.

    If the expression divides a size by the block's extent and rounds up, replace the extent by `block_x`, `block_y` or
    `block_z`. The expression then also holds for other block sizes.

    Args:
        axis: `x`, `y` or `z`.
        extent: Number of the block's threads along the axis.
    """
    if (match := _ROUNDED_UP.fullmatch(text)) and extent and int(match[3]) == extent == int(match[2]) + 1:
        return f"ceil({match[1]}/block_{axis})"
    return text.replace(" // ", "/")


class HostProgram:
    """Syntax tree and definitions of a CUDA program."""

    def __init__(self, root: "Node", argv: Sequence[str] = ()) -> None:
        """Read a program from its syntax tree. `argv` are the command-line arguments of the program, if known."""
        self.root, self.argv = root, argv
        self._layouts: dict[str, tuple[int, int]] = {}  # (size, alignment) of structures

    @cached_property
    def functions(self) -> "dict[str, Node]":
        return {function_name(node): node for node in nodes(self.root, "function_definition")}

    @cached_property
    def macros(self) -> dict[str, tuple[tuple[str, ...], str]]:
        """Parameters and replacement text of each macro, keyed by macro name.

        Macros that branches of `#if` define differently are omitted, unless a later definition is unconditional.
        """
        macros: dict[str, tuple[tuple[str, ...], str]] = {}
        unclear = set()
        for node in nodes(self.root, "preproc_def", "preproc_function_def"):
            parameters = node.child_by_field_name("parameters")
            names = tuple(text_of(each) for each in parameters.named_children) if parameters is not None else ()
            name = text_of(node.child_by_field_name("name"))
            macro = names, text_of(node.child_by_field_name("value"))
            if node.parent == self.root:
                macros[name] = macro
                unclear.discard(name)
            elif macros.setdefault(name, macro) != macro:
                unclear.add(name)
        return {name: macro for name, macro in macros.items() if name not in unclear}

    @cached_property
    def aliases(self) -> dict[str, str]:
        """Type that each of the program's type aliases names, keyed by alias."""
        return type_aliases(text_of(self.root))

    def size_of(self, kind: str) -> int:
        """Return the size of a type in bytes. Raise `UnknownError` for an unknown type."""
        if kind.rstrip().endswith("*"):
            return POINTER_BYTES
        dtype, lanes = element_type(kind, self.aliases)
        return lanes * ELEMENT_BYTES[dtype] if dtype is not None else self._layout(kind)[0]

    def _layout(self, kind: str, depth: int = 0) -> tuple[int, int]:
        """Return (size, alignment) of a type in bytes. Raise `UnknownError` for an unknown type."""
        dtype, lanes = element_type(kind, self.aliases)
        if dtype is not None:
            size = lanes * ELEMENT_BYTES[dtype]
            return size, size if lanes in (1, 2, 4) and size <= 16 else ELEMENT_BYTES[dtype]
        if kind in self._layouts:
            return self._layouts[kind]
        if depth > 4:
            raise UnknownError
        end, most = 0, 1
        for member, text, count in self._members(kind):
            size, align = (POINTER_BYTES,) * 2 if "*" in text else self._layout(member, depth + 1)
            end = -(-end // align) * align + size * count
            most = max(most, align)
        self._layouts[kind] = -(-end // most) * most, most
        return self._layouts[kind]

    def fields(self, kind: str, name: str = "", depth: int = 0) -> list[tuple[str, str]]:
        """Return pairs (name, data type) of the numbers and pointers in a structure.

        For a pointer, `*` follows the data type of the elements. Raise `UnknownError` for other members.
        """
        dtype, lanes = element_type(kind, self.aliases)
        if dtype is not None:
            return [(name, dtype)] * lanes
        members = [each for each in self._members(kind) if not re.match(r"\w+\s*\(", each[1])]  # Skip member functions.
        if not members or depth > 4:
            raise UnknownError
        fields: list[tuple[str, str]] = []
        for member, text, count in members:
            if "(" in text or "&" in text or count < 1:
                raise UnknownError
            member_name = re.findall(r"\w+", text)[0]
            if "*" in text:
                of_member = [(member_name, f"{element_type(member, self.aliases)[0] or 'f32'}*")]
            else:
                of_member = self.fields(member, member_name, depth + 1)
            if len(fields) + len(of_member) * count > _MOST_FIELDS:
                raise UnknownError
            fields += of_member * count
        return fields

    def _members(self, kind: str) -> Iterator[tuple[str, str, int]]:
        """Yield (type, declarator, number of array elements) per member. Raise `UnknownError` if `kind` is unknown."""
        fields = self.structures.get(kind.replace("struct ", "").strip())
        if fields is None:
            raise UnknownError
        for field in fields:
            for declarator in field.children_by_field_name("declarator"):
                text = text_of(declarator)
                counts = []
                for name in map(str.strip, re.findall(r"\[([^\]]*)\]", text)):
                    if name in self.assignments:
                        name = text_of(self.assignments[name][0].child_by_field_name("value"))
                    counts.append(int(number(self.macros[name][1].strip("() ") if name in self.macros else name)))
                yield text_of(field.child_by_field_name("type")), text, math.prod(counts)

    @cached_property
    def structures(self) -> "dict[str, list[Node]]":
        """Fields of each structure, keyed by structure name."""
        structures: dict[str, list[Node]] = {}
        for kind in nodes(self.root, "struct_specifier", "type_definition"):
            if (body := next(nodes(kind, "field_declaration_list"), None)) is not None:
                fields = [each for each in body.named_children if each.type == "field_declaration"]
                name = kind.child_by_field_name("name") or kind.child_by_field_name("declarator")
                structures.setdefault(text_of(name), fields)
        return structures

    @cached_property
    def calls(self) -> "dict[str, list[Node]]":
        """Function calls in the order of the text, keyed by function name without template arguments."""
        calls: dict[str, list[Node]] = {}
        for call in nodes(self.root, "call_expression"):
            name = text_of(call.child_by_field_name("function")).partition("<")[0].strip()
            calls.setdefault(name, []).append(call)
        return calls

    @cached_property
    def assignments(self) -> "dict[str, list[Node]]":
        """Initializations and assignments in the order of the text, keyed by variable."""
        assignments: dict[str, list[Node]] = {}
        for node in nodes(self.root, "init_declarator", "assignment_expression"):
            left = node.child_by_field_name("declarator") or node.child_by_field_name("left")
            if left is not None and left.type == "array_declarator":
                left = left.child_by_field_name("declarator")
            assignments.setdefault(text_of(left), []).append(node)
        return assignments

    @cached_property
    def dim3_declarations(self) -> "list[Node]":
        """Declarations of `dim3` variables, in the order of the text."""
        declarations = nodes(self.root, "declaration")
        return [node for node in declarations if text_of(node.child_by_field_name("type")) == "dim3"]


def make_arguments(folder: Path) -> list[str]:
    """Return the program's command-line arguments from the target `run` of the folder's Makefile, or an empty list."""
    for name in ("Makefile", "makefile", "GNUmakefile"):
        with suppress(OSError):
            text = (folder / name).read_bytes()[:_LARGEST_MAKEFILE].decode(errors="replace")
            if run := re.search(r"^run\s*:.*\n(?:\t\s*(?:#|@?echo).*\n)*\t\s*@?(.+)", text, re.MULTILINE):
                return re.sub(r"^.*?\./\S+", "", run[1]).split() if "./" in run[1] else []
    return []


def last_word(text: str) -> str:
    """Return the declared name, which is the last identifier of a declaration, or an empty string."""
    words = re.findall(r"[A-Za-z_]\w*", text)
    return words[-1] if words else ""
