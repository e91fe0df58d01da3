"""Remove kernels that are not launched, because they would be compiled for every config.

The module changes a source only if its kernels share no function or type and one kernel remains. Then the code of this
kernel does not depend on the other kernels. Line numbers stay. Sources that this module cannot parse do not change.
"""

import re
from collections.abc import Collection

from kernrec.compile.together import is_one_kernel

_SKIPPED = re.compile(r"//(?:[^\n\\]|\\.|\\\n)*|/\*.*?\*/|\"(?:[^\"\\\n]|\\.)*\"|'(?:[^'\\\n]|\\.)*'", re.DOTALL)
_RAW = re.compile(r"\bR\"|\?\?[=/'()!<>-]|<%|%>|%:")
_KERNEL = re.compile(
    r"(?:extern\s*\"C\"\s*)?(?:static\s+)?__global__\s+(?:__launch_bounds__\s*\([^()]*\)\s*)?void\s+"
    r"(?:__launch_bounds__\s*\([^()]*\)\s*)?(\w+)\s*\("
)
_DIRECTIVE = re.compile(r"^[ \t]*#(?![ \t]*pragma[ \t]+(?:no)?unroll\b)", re.MULTILINE)
_BEFORE = re.compile(r"(?:\A|[;}{]|^[ \t]*#[^\n]*(?<!\\))\s*\Z", re.MULTILINE)
"""Matches text after which a kernel's declaration can begin."""
_CLOSES = {"(": ")", "{": "}"}


def launched_only(source: str, entries: Collection[str]) -> str:
    """Return the source with only these kernels, or unchanged if the source is not simple.

    Args:
        source: CUDA C++.
        entries: Names of the kernels, as in the source or mangled.
    """
    if source.count("__global__") < 2 or _RAW.search(source):
        return source
    text = _SKIPPED.sub(lambda skipped: _blank(skipped[0]), source)
    kernels = list(_KERNEL.finditer(text))
    names = [kernel[1] for kernel in kernels]
    launched = {name for name in names if any(_is_called(name, entry) for entry in entries)}
    macros = set(re.findall(r"#\s*define\s+(\w+)", text))
    if (
        len(kernels) != text.count("__global__")
        or not all(any(_is_called(name, entry) for name in launched) for entry in entries)
        or macros & set(names)
    ):
        return source
    parts, start = [], 0
    for kernel in kernels:
        if kernel[1] in launched:
            continue
        end = _end(text, kernel.end() - 1)
        if end is None or not _BEFORE.search(text, 0, kernel.start()) or _DIRECTIVE.search(text, kernel.start(), end):
            return source
        parts += [source[start : kernel.start()], "\n" * source.count("\n", kernel.start(), end)]
        start = end
    reduced = "".join([*parts, source[start:]])
    return reduced if is_one_kernel(reduced) else source


def _blank(skipped: str) -> str:
    return skipped if skipped == '"C"' else re.sub(r"[^\n]", " ", skipped)


def _is_called(name: str, entry: str) -> bool:
    return name == entry or (entry.startswith("_Z") and f"{len(name)}{name}" in entry)


def _end(text: str, opened: int) -> int | None:
    """Return the end of the function whose parameters begin at `opened`; None if it has no body."""
    behind = _closed(text, opened)
    if behind is None:
        return None
    body = re.compile(r"\s*\{").match(text, behind)
    return None if body is None else _closed(text, body.end() - 1)


def _closed(text: str, opened: int) -> int | None:
    """Return the position after the bracket that closes the bracket at `opened`."""
    depth = 0
    for bracket in re.compile(rf"[{re.escape(text[opened] + _CLOSES[text[opened]])}]").finditer(text, opened):
        depth += 1 if bracket[0] == text[opened] else -1
        if depth == 0:
            return bracket.end()
    return None
