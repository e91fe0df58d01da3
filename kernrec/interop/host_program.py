"""Look up definitions in the host code of a CUDA program, and compute the sizes of its structures."""

import math
import re
from collections.abc import Iterator
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from kernrec.interop.host_expressions import UnknownError, number
from kernrec.kernel.cuda_program import function_name, nodes, parsed, text_of
from kernrec.kernel.cuda_signature import element_type, type_aliases
from kernrec.op.dtype import ELEMENT_BYTES

if TYPE_CHECKING:
    from tree_sitter import Node

_MOST_FIELDS = 256
_LARGEST_MAKEFILE = 1 << 16
POINTER_BYTES = 8


class HostProgram:
    """Syntax tree and definitions of a CUDA program."""

    def __init__(self, text: str) -> None:
        self.root = parsed(text)
        self._layouts: dict[str, tuple[int, int]] = {}  # (size, alignment) of structures

    @cached_property
    def functions(self) -> "dict[str, Node]":
        return {function_name(node): node for node in nodes(self.root, "function_definition")}

    @cached_property
    def macros(self) -> dict[str, tuple[tuple[str, ...], str]]:
        """Parameters and replacement text of each macro, keyed by macro name.

        Macros that branches of `#if` define differently are omitted.
        """
        macros: dict[str, tuple[tuple[str, ...], str]] = {}
        unclear = set()
        for node in nodes(self.root, "preproc_def", "preproc_function_def"):
            parameters = child(node, "parameters")
            names = tuple(text_of(each) for each in parameters.named_children) if parameters is not None else ()
            name = text_of(child(node, "name"))
            macro = names, text_of(child(node, "value"))
            if node.parent == self.root:
                macros[name] = macro
                unclear.discard(name)
            elif macros.setdefault(name, macro) != macro:
                unclear.add(name)
        return {name: macro for name, macro in macros.items() if name not in unclear}

    @cached_property
    def aliases(self) -> dict[str, str]:
        """Type of each type alias, keyed by alias."""
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
        """Yield (type, declarator, number of array elements) for each member of a structure."""
        fields = self.structures.get(kind.replace("struct ", "").strip())
        if fields is None:
            raise UnknownError
        for field in fields:
            for declarator in field.children_by_field_name("declarator"):
                text = text_of(declarator)
                counts = []
                for name in map(str.strip, re.findall(r"\[([^\]]*)\]", text)):
                    if name in self.assignments:
                        name = text_of(child(self.assignments[name][0], "value"))
                    counts.append(int(number(self.macros[name][1].strip("() ") if name in self.macros else name)))
                yield text_of(child(field, "type")), text, math.prod(counts)

    @cached_property
    def structures(self) -> "dict[str, list[Node]]":
        """Fields of each structure, keyed by structure name."""
        structures: dict[str, list[Node]] = {}
        for kind in nodes(self.root, "struct_specifier", "type_definition"):
            if (body := next(nodes(kind, "field_declaration_list"), None)) is not None:
                fields = [each for each in body.named_children if each.type == "field_declaration"]
                name = child(kind, "name", "declarator")
                structures.setdefault(text_of(name), fields)
        return structures

    @cached_property
    def calls(self) -> "dict[str, list[Node]]":
        """Function calls in the order of the text, keyed by function name without template arguments."""
        calls: dict[str, list[Node]] = {}
        for call in nodes(self.root, "call_expression"):
            name = text_of(child(call, "function")).partition("<")[0].strip()
            calls.setdefault(name, []).append(call)
        return calls

    @cached_property
    def assignments(self) -> "dict[str, list[Node]]":
        """Initializations and assignments in the order of the text, keyed by variable."""
        assignments: dict[str, list[Node]] = {}
        for node in nodes(self.root, "init_declarator", "assignment_expression"):
            left = child(node, "declarator", "left")
            if left is not None and left.type == "array_declarator":
                left = child(left, "declarator")
            assignments.setdefault(text_of(left), []).append(node)
        return assignments

    @cached_property
    def dim3_declarations(self) -> "list[Node]":
        declarations = nodes(self.root, "declaration")
        return [node for node in declarations if text_of(child(node, "type")) == "dim3"]


def child(node: "Node | None", *fields: str) -> "Node | None":
    """Return the first existing field of a syntax node, or None."""
    values = (node.child_by_field_name(field) for field in fields) if node is not None else ()
    return next((value for value in values if value is not None), None)


def inputs_of(call: "Node") -> "list[Node]":
    """Return the arguments of a call, without comments."""
    arguments = child(call, "arguments") or child(child(call, "declarator"), "parameters")
    return [each for each in arguments.named_children if each.type != "comment"] if arguments is not None else []


def function_of(node: "Node | None") -> "Node | None":
    while node is not None and node.type != "function_definition":
        node = node.parent
    return node


def parameter_names(function: "Node") -> list[str]:
    declared = next(nodes(function, "parameter_list"), None)
    return [last_word(text_of(each).partition("=")[0]) for each in (declared.named_children if declared else ())]


def stripped_node(node: "Node") -> "Node":
    while True:
        inputs = inputs_of(node) if node.type == "call_expression" else []
        cast = re.match(r"(?:reinterpret|static|const)_cast\b", text_of(node))
        if node.type in ("parenthesized_expression", "cast_expression", "pointer_expression"):
            node = child(node, "value", "argument") or node.named_children[-1]
        elif cast and len(inputs) == 1:
            node = inputs[0]
        else:
            return node


def stripped(pointer: "Node") -> str:
    node = stripped_node(pointer)
    while node.type == "binary_expression" and text_of(child(node, "operator")) == "+":
        node = stripped_node(node.named_children[0])  # Drop the offset from a pointer plus an offset.
    return text_of(node)


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
