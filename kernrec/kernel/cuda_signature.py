"""Read the kernels, parameters, launch bounds and macros that a CUDA C++ source declares.

PTX has neither parameter names nor pointer types. If kernrec does not know a type, the caller asks the user.
"""

import re
from functools import lru_cache
from typing import NamedTuple

_COMMENT = re.compile(r'"(?:\\.|[^"\\\n])*"|//[^\n]*|/\*.*?\*/', re.DOTALL)
_QUALIFIER = re.compile(r"\b(?:const|volatile|__restrict__|__restrict|restrict|__grid_constant__|register|struct)\b")
_ALIAS = (
    re.compile(r"\btypedef\s+([\w\s]+?)\s+(\w+)\s*;"),
    re.compile(r"\busing\s+(?P<name>\w+)\s*=\s*(?P<type>[\w\s:]+?)\s*;"),
    re.compile(r"^[ \t]*#[ \t]*define[ \t]+(?P<name>\w+)[ \t]+(?P<type>[A-Za-z_][\w ]*?)[ \t]*$", re.MULTILINE),
)
_MACRO = re.compile(r"^[ \t]*#[ \t]*define[ \t]+([A-Za-z_]\w*)[ \t]+\(?(\d{1,9})[uUlL]*\)?[ \t]*$", re.MULTILINE)
_VARIABLE = re.compile(r"\b__(?:constant|device|managed)__\b([^;={}()\[\],]*?)\b(\w+)\s*(?=[\[;={,])")
_BEFORE_NAME = r"(?:[\w\s]|#[^\n]*\n)*?"
"""Matches the code between `__global__` and a kernel's name."""
_CONDITIONAL = re.compile(r"^[ \t]*#[ \t]*ifdef[ \t]+(\w+)([^#]*)(?:#[ \t]*else([^#]*))?#[ \t]*endif", re.MULTILINE)
_STORAGE = re.compile(r"\b(?:static|extern|inline|alignas|__(?:constant|device|managed|align)__)\b")
_MOST_ALIASES = 8

_TYPES = {
    "float": "f32", "double": "f64", "half": "f16", "__half": "f16", "__nv_bfloat16": "bf16", "nv_bfloat16": "bf16",
    "__nv_fp8_e4m3": "f8e4m3", "__nv_fp8_e5m2": "f8e5m2", "bool": "u8", "char": "i8", "signed char": "i8",
    "unsigned char": "u8", "uchar": "u8", "short": "i16", "unsigned short": "u16", "ushort": "u16", "int": "i32",
    "signed": "i32", "signed int": "i32", "unsigned": "u32", "unsigned int": "u32", "uint": "u32", "long": "i64",
    "long int": "i64", "unsigned long": "u64", "unsigned long int": "u64", "long long": "i64", "long long int": "i64",
    "unsigned long long": "u64", "unsigned long long int": "u64", "ulong": "u64", "size_t": "u64", "ptrdiff_t": "i64",
    "int8_t": "i8", "uint8_t": "u8", "int16_t": "i16", "uint16_t": "u16", "int32_t": "i32", "uint32_t": "u32",
    "int64_t": "i64", "uint64_t": "u64",
}  # fmt: skip
"""kernrec's data type of each C++ type on 64-bit Linux."""
_VECTORS = {
    "float": "f32", "double": "f64", "char": "i8", "uchar": "u8", "short": "i16", "ushort": "u16", "int": "i32",
    "uint": "u32", "long": "i64", "ulong": "u64", "longlong": "i64", "ulonglong": "u64", "half": "f16", "__half": "f16",
    "__nv_bfloat16": "bf16", "nv_bfloat16": "bf16", "__nv_bfloat16_": "bf16",
}  # fmt: skip
"""Element type of each CUDA vector type, keyed by name without length (`float` for `float4`)."""


class Parameter(NamedTuple):
    """Parameter of a kernel."""

    name: str
    pointer: bool
    written: bool
    """Whether the kernel may write through this pointer, because its type is not `const`."""
    dtype: str | None
    """Data type of the number or of the pointer's elements. None if kernrec does not support it."""
    lanes: int
    """Number of elements in a value, such as 4 for `float4`."""
    ctype: str


class Signature(NamedTuple):
    name: str
    parameters: tuple[Parameter, ...]
    template: tuple[str, ...] = ()

    def instantiated(self, instance: str) -> "Signature":
        """Return the signature of an instance of the template, such as `scale<float, 4>`."""
        stated = _parts(instance.partition("<")[2].rpartition(">")[0])
        types = dict(zip(self.template, (part.strip() for part in stated), strict=False))
        parameters = []
        for parameter in self.parameters:
            dtype, lanes = element_type(parameter.ctype, types)
            parameters.append(parameter if dtype is None else parameter._replace(dtype=dtype, lanes=lanes))
        return self._replace(parameters=tuple(parameters), template=())


class Macro(NamedTuple):
    """Macro with an integer value."""

    name: str
    value: int
    guarded: bool
    """Whether a compiler option can change the value, because the definition is inside `#ifndef`."""


def signatures(source: str) -> tuple[Signature, ...]:
    """Return the kernels that a source declares, in order."""
    text = without_comments(source)
    aliases = type_aliases(text)
    kernels: dict[str, Signature] = {}
    for match in re.finditer(r"\b__global__\b", text):
        start = match.end()
        while bounds := re.compile(rf"{_BEFORE_NAME}__launch_bounds__\s*\(").match(text, start):
            start = _closing(text, bounds.end())
        declared = re.compile(rf"{_BEFORE_NAME}\b(\w+)\s*\(").match(text, start)
        if declared is None:
            continue
        end = _closing(text, declared.end())
        inside = _CONDITIONAL.sub(
            lambda part: part[2] if re.search(rf"#[ \t]*define[ \t]+{part[1]}\b", text) else part[3] or "",
            text[declared.end() : end - 1],
        )
        # Skip a declaration without a body.
        if (mark := re.compile(r"[^;{]*([;{])").match(text, end)) and mark[1] == ";":
            continue
        parameters = tuple(_parameter(part, i, aliases) for i, part in enumerate(_parts(inside)))
        before = text[: match.start()].rstrip()
        template = re.search(r"template\s*<([^;{}]*)>\s*(?:static\s*|inline\s*)*$", before)
        names = tuple(part.partition("=")[0].split()[-1] for part in _parts(template[1])) if template else ()
        kernels.setdefault(declared[1], Signature(declared[1], parameters, names))
    return tuple(kernels.values())


def variable_types(source: str) -> dict[str, str]:
    """Return the C++ type of each `__constant__` and `__device__` variable."""
    text = re.sub(r"\b(?:__align__|alignas)\s*\(\s*\w+\s*\)", " ", without_comments(source))
    return {match[2]: _plain(_STORAGE.sub(" ", match[1])) for match in _VARIABLE.finditer(text)}


def source_name(symbol: str) -> str:
    """Return the source name of a kernel or variable from its symbol, without parameters and namespaces."""
    if not symbol.startswith("_Z"):
        return symbol
    rest, name = symbol.removeprefix("_Z").removeprefix("N").removeprefix("L"), ""
    while match := re.match(r"L?(\d+)", rest):
        end = match.end() + int(match[1])
        name, rest = rest[match.end() : end], rest[end:]
        if rest.startswith("I"):
            break
    return name or symbol


def macros(source: str) -> tuple[Macro, ...]:
    text = without_comments(source)
    by_name: dict[str, Macro] = {}
    for match in _MACRO.finditer(text):
        guard = re.compile(rf"#[ \t]*ifndef[ \t]+{match[1]}[ \t]*\n\s*$")
        guarded = guard.search(text[: match.start()]) is not None
        by_name.setdefault(match[1], Macro(match[1], int(match[2]), guarded))
    return tuple(by_name.values())


def kernel_body(source: str, kernel: str) -> str:
    """Return the body of a kernel without comments. It is empty if the source lacks the kernel."""
    text = without_comments(source)
    # Prefer a definition to a declaration or a call.
    begin = re.search(rf"\b{kernel}\s*\((?=[^(){{}};]*\)\s*\{{)", text) or re.search(rf"\b{kernel}\s*\(", text)
    body = text[_closing(text, begin.end()) :] if begin else ""
    return body[: _closing(body, body.find("{") + 1, "{}")] if "{" in body else ""


def is_only_assigned(source: str, kernel: str, parameter: str) -> bool:
    """Return whether a kernel assigns to the elements of a pointer parameter, and never reads them."""
    body = kernel_body(source, kernel)
    mentions = list(re.finditer(rf"\b{parameter}\b\s*", body))
    for mention in mentions:
        if body[mention.end() : mention.end() + 1] != "[":
            return False
        behind = body[_closing(body, mention.end() + 1, "[]") :].lstrip()
        if not behind.startswith("=") or behind.startswith("=="):
            return False
    return bool(mentions)


def element_type(ctype: str, aliases: dict[str, str] | None = None) -> tuple[str | None, int]:
    """Return the data type and number of elements of a C++ type, such as (`f32`, 4). Unknown types give (None, 1)."""
    plain = _plain(ctype)
    for _ in range(_MOST_ALIASES):
        if plain in _TYPES or plain not in (aliases or {}):
            break
        plain = _plain((aliases or {})[plain])
    if plain in _TYPES:
        return _TYPES[plain], 1
    vector = re.fullmatch(r"(\w*?[a-z_]|__nv_bfloat16|nv_bfloat16)([1-4])", plain)
    if vector and vector[1] in _VECTORS:
        return _VECTORS[vector[1]], int(vector[2])
    return None, 1


def _plain(ctype: str) -> str:
    return " ".join(_QUALIFIER.sub(" ", ctype).replace("std::", "").split())


def _parameter(text: str, place: int, aliases: dict[str, str]) -> Parameter:
    text = re.sub(r"\[\s*\w*\s*\]", "*", text.partition("=")[0]) if "[" in text else text.partition("=")[0]
    pointer = "*" in text
    # In `float x[]`, the name comes before the brackets.
    name = re.search(r"(\w+)\s*\**\s*$", text)
    before = text[: name.start()] if name else text
    ctype = (before or text).partition("*")[0].strip()
    dtype, lanes = element_type(ctype, aliases)
    written = pointer and "const" not in ctype.split()
    return Parameter(name[1] if name and before.strip() else f"argument_{place}", pointer, written, dtype, lanes, ctype)


def type_aliases(text: str) -> dict[str, str]:
    """Return the type aliases that a source defines by `typedef`, `using` or macros."""
    aliases = {name: " ".join(kind.split()) for kind, name in _ALIAS[0].findall(text)}
    for pattern in _ALIAS[1:]:
        aliases |= {match["name"]: " ".join(match["type"].split()) for match in pattern.finditer(text)}
    return aliases


@lru_cache(maxsize=4)
def without_comments(source: str) -> str:
    """Remove comments and the content of string literals. Lines keep their numbers."""
    return _COMMENT.sub(lambda m: '""' if m[0][0] == '"' else "\n" * m[0].count("\n") or " ", source)


def _closing(text: str, start: int, pair: str = "()") -> int:
    depth, change = 1, {pair[0]: 1, pair[1]: -1}
    for place in range(start, len(text)):
        depth += change.get(text[place], 0)
        if not depth:
            return place + 1
    return len(text)


def _parts(text: str) -> list[str]:
    """Split a parameter list at commas outside of <> and (). Drop preprocessor lines."""
    parts, depth = [""], 0
    for char in re.sub(r"^\s*#.*$", "", text, flags=re.MULTILINE):
        depth += {"<": 1, "(": 1, ">": -1, ")": -1}.get(char, 0)
        if char == "," and not depth:
            parts.append("")
        else:
            parts[-1] += char
    return [part for part in parts if part.strip() and part.strip() != "void"]
