"""Extract the device code of a CUDA program, because NVRTC compiles only device code.

Host functions and host headers are removed without changing line numbers, and templates that a launch names are
instantiated. tree-sitter skips parts that it cannot parse, such as a macro in place of a declaration.
"""

import re
from collections.abc import Iterator
from functools import lru_cache
from typing import TYPE_CHECKING

from kernrec.errors import KernrecError
from kernrec.util.light_dataclass import dataclass

if TYPE_CHECKING:
    from tree_sitter import Node

DEVICE_HEADER = re.compile(
    r"(?:cuda_(?:fp\d+|bf16|awbarrier\w*|pipeline\w*)\.h|cooperative_groups\.h|mma\.h|vector_(?:types|functions)\.h"
    r"|cuComplex\.h|math_constants\.h|curand_(?:kernel|uniform|normal)\.h|sm_\d+_\w+\.h|(?:cuda|cub|thrust|nv|cute"
    r"|cutlass|cooperative_groups|crt)/.*)\Z"
)
"""Matches headers with device code."""
TOOLKIT_HEADER = re.compile(
    r"(?:(?:cu|nv)\w*|device_\w+|std\w+|math|string|time|assert|float|limits|errno|ctype|memory|signal|unistd|sys/\w+)"
    r"\.h(?:pp)?\Z"
)
"""Matches CUDA and C headers, which some sources include in quotes."""
_TYPES = (
    "typedef signed char int8_t; typedef signed short int16_t; typedef signed int int32_t;",
    "typedef signed long long int64_t;",
    "typedef unsigned char uint8_t; typedef unsigned short uint16_t; typedef unsigned int uint32_t;",
    "typedef unsigned long long uint64_t; typedef unsigned long long uintptr_t; typedef signed long long intptr_t;",
    "typedef unsigned char uchar; typedef unsigned short ushort; typedef unsigned uint; typedef unsigned long ulong;",
)
_MACROS = {
    "FLT_MAX": "3.402823466e+38f", "FLT_MIN": "1.175494351e-38f", "FLT_EPSILON": "1.192092896e-07f",
    "DBL_MAX": "1.7976931348623158e+308", "DBL_MIN": "2.2250738585072014e-308", "DBL_EPSILON": "2.2204460492503131e-16",
    "CHAR_BIT": "8", "SCHAR_MAX": "127", "UCHAR_MAX": "255", "SHRT_MAX": "32767", "INT_MAX": "2147483647",
    "INT_MIN": "(-2147483647 - 1)", "UINT_MAX": "4294967295u", "LONG_MAX": "9223372036854775807L",
    "M_PI": "3.14159265358979323846", "M_E": "2.7182818284590452354", "M_SQRT2": "1.41421356237309504880",
    "M_SQRT1_2": "0.70710678118654752440", "M_2_SQRTPI": "1.12837916709551257390",
    "INFINITY": "__int_as_float(0x7f800000)", "HUGE_VALF": "__int_as_float(0x7f800000)",
    "NAN": "__int_as_float(0x7fffffff)", "assert(condition)": "((void)0)",
}  # fmt: skip
_PRELUDE = "\n".join((
    *_TYPES,
    *(f"#ifndef {name.partition('(')[0]}\n#define {name} {value}\n#endif" for name, value in _MACROS.items()), "",
))  # fmt: skip
"""Replacement of C's standard headers: types and limits as on 64-bit Linux."""
_HALF = "#include <cuda_fp16.h>\n#include <cuda_bf16.h>\n"
_COMPLEX = "#include <cuComplex.h>\n"
_BRINGS = {
    "cublas": _HALF + _COMPLEX,
    "cudnn": _HALF,
    "cusparse": _COMPLEX,
    "cufft": f"{_COMPLEX}typedef float cufftReal; typedef double cufftDoubleReal; typedef cuComplex cufftComplex;\n"
    "typedef cuDoubleComplex cufftDoubleComplex;\n",
}
"""Declarations that replace a CUDA library header, keyed by the start of the header's name."""
_HOST_WORD = re.compile(r"\b(?:std|torch|at|c10)::|<<<")
_DEVICE_WORD = re.compile(r"\b__(?:global|device|constant|managed)__\b")
_STD = "".join(
    f"#include <cuda/std/{name}>\n" for name in ("type_traits", "limits", "utility", "algorithm", "cmath", "cstdint")
) + "namespace std { using namespace cuda::std; }\n"  # fmt: skip
"""Includes that define C++ templates of the namespace `std` for device code."""
_STD_NAME = re.compile(r"(?<!cuda::)\bstd::")
_WORD = re.compile(r"[A-Za-z_]\w*")
_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
_REGISTER = re.compile(r"\bregister\s+(?=[A-Za-z_])")
"""Matches the storage class `register`, which C++17 removed."""
_FUNCTION_MACRO = re.compile(r"^[ \t]*#[ \t]*define[ \t]+(\w+)\((?:[^\\\n]|\\[ \t\r]*\n|\\.)*", re.MULTILINE)
_CONSTANT = re.compile(r"\b(?:const|constexpr|enum)\b")


@dataclass(frozen=True)
class DeviceCode:
    text: str
    headers: tuple[str, ...]
    functions: tuple[str, ...]

    @property
    def note(self) -> str:
        """Return one line on the removed headers and functions. It is empty if nothing was removed."""
        parts = []
        if self.functions:
            more = ", ..." if len(self.functions) > 3 else ""
            parts.append(f"host code ({', '.join(self.functions[:3])}{more})")
        if self.headers:
            parts.append(", ".join(self.headers[:4]) + (", ..." if len(self.headers) > 4 else ""))
        return f"without {' and '.join(parts)}, which NVRTC does not compile" if parts else ""


@lru_cache(maxsize=32)
def parsed(text: str) -> "Node":
    """Return the root of the syntax tree of CUDA C++. Raise `KernrecError` if tree-sitter is missing."""
    try:
        import tree_sitter
        import tree_sitter_cuda
    except ImportError:
        raise KernrecError(
            "reading a CUDA program with host code needs tree-sitter: pip install '.[cuda13]' (or '.[cuda12]')"
        ) from None
    language = tree_sitter.Language(tree_sitter_cuda.language())
    return tree_sitter.Parser(language).parse(text.encode()).root_node


def text_of(node: "Node | None") -> str:
    """Return the source text of a syntax node, or an empty text for None."""
    return node.text.decode() if node is not None and node.text is not None else ""


def nodes(root: "Node", *kinds: str) -> "Iterator[Node]":
    """Yield all descendants of `root` that have one of the types `kinds`, in source order. Skip code in `#if 0`."""
    stack = [root]
    while stack:
        node = stack.pop()
        if node.type in kinds:
            yield node
        children = node.named_children
        if node.type == "preproc_if" and text_of(node.child_by_field_name("condition")) == "0":
            children = [child for child in children if child == node.child_by_field_name("alternative")]
        stack += reversed(children)


@lru_cache(maxsize=8)
def has_host_code(text: str) -> bool:
    """Return whether a source contains code that NVRTC cannot compile."""
    if "<<<" in text or re.search(r"\bmain\s*\(", text):
        return True
    return any(not DEVICE_HEADER.match(name) for name in re.findall(r'^\s*#\s*include\s*[<"]([^>"\n]+)', text, re.M))


def device_code(text: str, instance: str | None = None) -> DeviceCode:
    """Return the device code of a program whose headers are inserted. If `instance` is a template instance such as
    `f<128>`, remove all other explicit instances of the template.

    Raises:
        KernrecError: the program has host code, and tree-sitter is not installed.
    """
    host_code = has_host_code(text)
    if not host_code and instance is None:
        return DeviceCode(text, (), ())
    text = _without_host_macros(_REGISTER.sub("", text))
    root = parsed(text)
    marks = _DeviceWords(root)
    headers: dict[str, None] = {}
    edits: list[tuple[Node, str]] = []
    declarations = [node for node in top_level(root) if host_code and node.type != "preproc_include"]
    host = [node for node in declarations if _is_host(node, marks)]
    functions = {function_name(node): None for node in host if next(nodes(node, "function_definition"), None)}
    host += _unused_types([node for node in declarations if node not in host], instance or "")
    edits += [(node, "") for node in host]
    uses_std = any(_STD_NAME.search(text_of(node)) for node in declarations if node not in host)
    for node in top_level(root) if host_code else ():
        name = text_of(node.child_by_field_name("path")).strip('<>"') if node.type == "preproc_include" else ""
        if not name or DEVICE_HEADER.match(name):
            if name and '"' in text_of(node):  # NVRTC finds CUDA's headers only between angle brackets.
                edits.append((node, f"#include <{name}>"))
            continue
        instead = next((text for start, text in _BRINGS.items() if name.startswith(start)), "")
        # Insert the prelude before a condition such as `#ifdef _WIN32`, which may skip the first header.
        if not headers:
            prelude, condition = _PRELUDE + (_STD if uses_std else ""), _outer_condition(node)
            if condition is None:
                instead = prelude + instead
            else:
                line = f"#line {condition.start_point[0] + 1}\n"
                edits.append((condition, f"{prelude}{line}{text_of(condition)}"))
        edits.append((node, f"{instead}#line {node.start_point[0] + 1}\n" if instead else ""))
        headers[name] = None
    if instance is not None:
        name = instance.partition("<")[0].strip()
        instances = nodes(root, "template_instantiation")
        edits += [(node, "") for node in instances if re.search(rf"\b{re.escape(name)}\s*<", text_of(node))]
    device = without(text, edits)
    if instance is not None:
        device += f"\n__device__ auto kernrec_instance = &{instance};\n"
    return DeviceCode(device, tuple(headers), tuple(functions))


def _outer_condition(node: "Node") -> "Node | None":
    """Return the outermost `#if`, `#ifdef` or `#ifndef` around a node, or None."""
    condition, outer = None, node.parent
    while outer is not None:
        condition = outer.children[0] if outer.type in ("preproc_if", "preproc_ifdef") else condition
        outer = outer.parent
    return condition


def _without_host_macros(text: str) -> str:
    """Empty each line at namespace scope that contains only a host macro, such as a PyTorch binding."""
    names = [match[1] for match in _FUNCTION_MACRO.finditer(text) if _HOST_WORD.search(match[0])]
    if not names:
        return text
    used = re.compile(rf"^(?:{'|'.join(names)})[ \t]*\([^;{{}}\n]*\)[ \t]*;?[ \t\r]*$", re.MULTILINE)
    return used.sub("", text)


def _unused_types(declarations: "list[Node]", instance: str) -> "list[Node]":
    """Return the declarations of types and macros that nothing else in the source uses."""
    macros = ("preproc_def", "preproc_function_def")
    names = {
        node.id: text_of(node.child_by_field_name("name")) if node.type in macros else _type_name(node)
        for node in declarations
    }
    named = {node.id: (node, names[node.id]) for node in declarations if names[node.id]}
    words = {node.id: set(_WORD.findall(_COMMENT.sub("", text_of(node)))) for node in declarations}
    mentioned = set(_WORD.findall(instance)).union(*(each for key, each in words.items() if key not in named))
    waiting = dict(named)
    while used := [key for key, (_, name) in waiting.items() if name in mentioned]:
        for key in used:
            del waiting[key]
            mentioned |= words[key]
    return [node for node, _ in waiting.values() if _type_name(node)]


def _type_name(node: "Node") -> str:
    if node.type == "template_declaration":
        return _type_name(node.named_children[-1])
    if node.type not in (
        "struct_specifier",
        "class_specifier",
        "union_specifier",
        "type_definition",
        "alias_declaration",
    ):
        return ""
    name = text_of(node.child_by_field_name("name") or node.child_by_field_name("declarator"))
    return name.partition("<")[0].strip()  # `Tile<float>` is a specialization of the template `Tile`.


def without(text: str, edits: "list[tuple[Node, str]]") -> str:
    """Replace syntax nodes by texts, without changing the line numbers of other code."""
    source = text.encode()
    for node, instead in sorted(edits, key=lambda edit: -edit[0].start_byte):
        lines = b"\n" * source.count(b"\n", node.start_byte, node.end_byte)
        source = source[: node.start_byte] + instead.encode() + lines + source[node.end_byte :]
    return source.decode()


def function_name(node: "Node") -> str:
    """Return the name of the function that a syntax node declares, or an empty string."""
    declarator = next(nodes(node, "function_declarator"), None)
    return text_of(declarator.child_by_field_name("declarator")) if declarator is not None else ""


class _DeviceWords:
    """Keywords of CUDA, and macros that expand to them."""

    def __init__(self, root: "Node") -> None:
        macros = nodes(root, "preproc_def", "preproc_function_def")
        self.macros = {text_of(m.child_by_field_name("name")): text_of(m.child_by_field_name("value")) for m in macros}
        names = {name for name, text in self.macros.items() if _DEVICE_WORD.search(text)}
        self._pattern = re.compile("|".join([_DEVICE_WORD.pattern, *(rf"\b{re.escape(name)}\b" for name in names)]))

    def __contains__(self, text: str) -> bool:
        return self._pattern.search(text) is not None


def top_level(root: "Node") -> "Iterator[Node]":
    """Yield the declarations at namespace scope, including declarations in `#if`, namespaces and `extern "C"`."""
    groups = ("preproc_if", "preproc_ifdef", "preproc_else", "preproc_elif", "namespace_definition", "declaration_list")
    for node in root.named_children:
        block = node.type == "linkage_specification" and any(c.type == "declaration_list" for c in node.named_children)
        if node.type in groups or block:
            yield from top_level(node)
        else:
            yield node


def _is_host(node: "Node", marks: _DeviceWords) -> bool:
    body = next(nodes(node, "compound_statement", "field_declaration_list", "initializer_list"), None)
    head = text_of(node)[: body.start_byte - node.start_byte] if body is not None else text_of(node)
    if _type_name(node):
        return False
    match node.type:
        case "function_definition" | "template_declaration" | "linkage_specification" | "template_instantiation":
            if next(nodes(node, "function_declarator"), None) is None:
                return False
            return head not in marks and "constexpr" not in head
        case "declaration":
            prototype = any(child.type == "function_declarator" for child in node.named_children)
            return head not in marks and (not _CONSTANT.search(head) or "std::" in head or prototype)
        case "using_declaration":
            return re.search(r"\bstd\b", text_of(node)) is not None
        case "ERROR":
            return text_of(node) not in marks and _HOST_WORD.search(text_of(node)) is not None
        case "expression_statement":
            name = text_of(next(nodes(node, "call_expression"), None)).partition("(")[0]
            return any(_HOST_WORD.search(text) for text in (text_of(node), marks.macros.get(name, "")))
    return False
