"""Collect the definitions of a CUDA program by name: functions, macros, types and constants."""

import re
from functools import cached_property
from typing import TYPE_CHECKING

from kernrec.interop.host_expressions import UnknownError
from kernrec.kernel.cuda_program import function_name, nodes, text_of
from kernrec.kernel.cuda_signature import element_type, type_aliases
from kernrec.op.dtype import ELEMENT_BYTES

if TYPE_CHECKING:
    from tree_sitter import Node


class HostProgram:
    """Definitions of a program by name."""

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

    @cached_property
    def aliases(self) -> dict[str, str]:
        """Type aliases of the program, by name."""
        return type_aliases(text_of(self.root))

    @cached_property
    def instances(self) -> dict[str, str]:
        """Instances of templates by their names in the program, such as `Packed<float>`."""
        text = text_of(self.root)
        defined = re.findall(r"\btypedef\s+(\w+\s*<[\w\s,]+>)\s*(\w+)\s*;", text)
        return {name: kind for kind, name in defined} | dict(
            re.findall(r"\busing\s+(\w+)\s*=\s*(\w+\s*<[\w\s,]+>)\s*;", text)
        )

    def size_of(self, kind: str) -> int:
        """Return the bytes of a type. Raises `UnknownError` for an unknown type."""
        dtype, lanes = element_type(kind, self.aliases)
        if dtype is None:
            raise UnknownError
        return lanes * ELEMENT_BYTES[dtype]

    def constant(self, scope: str, member: str) -> "tuple[Node, dict[str, str]]":
        """Return (value of a class constant, sizes of its template's types). Raises `UnknownError` if the class or
        constant does not exist.
        """
        name, _, stated = self.instances.get(scope, scope).partition("<")
        for kind in nodes(self.root, "struct_specifier", "class_specifier"):
            if text_of(kind.child_by_field_name("name")) != name.strip():
                continue
            for field in nodes(kind, "field_declaration"):
                value = field.child_by_field_name("default_value")
                if value is not None and text_of(field.child_by_field_name("declarator")) == member:
                    template = kind.parent and kind.parent.child_by_field_name("parameters")
                    parameters = template.named_children if template else ()
                    types = zip(parameters, stated.rstrip("> ").split(","), strict=False)
                    return value, {
                        f"sizeof({last_word(text_of(parameter))})": str(self.size_of(text.strip()))
                        for parameter, text in types
                        if text.strip()
                    }
        raise UnknownError

    @cached_property
    def calls(self) -> "dict[str, list[Node]]":
        """Calls by function, in text order."""
        calls: dict[str, list[Node]] = {}
        for call in nodes(self.root, "call_expression"):
            calls.setdefault(text_of(call.child_by_field_name("function")), []).append(call)
        return calls

    @cached_property
    def assignments(self) -> "dict[str, list[Node]]":
        """Initializations and assignments by variable, in text order."""
        assignments: dict[str, list[Node]] = {}
        for node in nodes(self.root, "init_declarator", "assignment_expression"):
            left = node.child_by_field_name("declarator") or node.child_by_field_name("left")
            if left is not None and left.type == "array_declarator":
                left = left.child_by_field_name("declarator")
            assignments.setdefault(text_of(left), []).append(node)
        return assignments

    @cached_property
    def dim3_declarations(self) -> "list[Node]":
        """Declarations of type `dim3`, in text order."""
        declarations = nodes(self.root, "declaration")
        return [node for node in declarations if text_of(node.child_by_field_name("type")) == "dim3"]


def last_word(text: str) -> str:
    """Return the last identifier of a declaration, which is its name."""
    words = re.findall(r"[A-Za-z_]\w*", text)
    return words[-1] if words else ""
