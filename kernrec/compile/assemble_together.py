"""Read the machine code of several PTX texts in one run of nvdisasm, which takes long to start.

The texts are joined. Each text's functions and variables get a suffix, which the listings no longer have:

    .visible .entry blur(...)     ->  .visible .entry blur__kr0_(...)

A text that cannot be renamed safely is not joined: its listing is empty.
"""

import re
from collections.abc import Sequence

from kernrec.compile.disassemble import assemble_listing, renumbered_listing, split_listing

_HEAD = re.compile(r"^[ \t]*\.(?:version|target|address_size)\b.*$", re.MULTILINE)
# The repetitions are bounded because searching would otherwise take quadratic time.
_FUNCTION = re.compile(
    r"^[^\n/]*?(\.extern[ \t]+)?\.(entry|func)\b[ \t]*(?:\([^)]{0,400}\))?\s{0,40}([\w$]+)", re.MULTILINE
)
_VARIABLE = re.compile(
    r"^(?:\.(?:visible|weak|common|extern)[ \t]+)*\.(?:global|const|shared)\b"
    r"[^;={\[]{0,200}?([\w$]{1,999})\s{0,9}[;=\[]",
    re.MULTILINE,
)
_NAME = re.compile(r"(?<![\w$%.\"])[A-Za-z_$][\w$]*+(?!\.)")
"""Matches names of functions and variables, but neither registers nor opcodes with modifiers."""
_MARK = "__kr"


def listings_together(texts: Sequence[str], sm: int) -> list[str]:
    """Return nvdisasm's output for each PTX text. It is empty if a text cannot be assembled together with others."""
    heads = [_HEAD.findall(text) for text in texts]
    usable = [text for text, head in zip(texts, heads, strict=True) if head == heads[0] and _is_usable(text)]
    distinct = list(dict.fromkeys(usable))
    listings = dict(zip(distinct, _listings(distinct, sm), strict=True))
    return [listings.get(text, "") for text in texts]


def _is_usable(text: str) -> bool:
    return _MARK not in text and "/*" not in text


def _listings(texts: list[str], sm: int) -> list[str]:
    if len(texts) < 2:
        return [listed[1] if (listed := assemble_listing(text, sm)) else "" for text in texts]
    joined, skipped = [], [0]
    for number, text in enumerate(texts):
        text = _without_debug_information(text)
        joined.append(_renamed(_HEAD.sub("", text) if number else text, f"{_MARK}{number}_"))
        skipped.append(skipped[-1] + text.count("\n") + 1)
    listed = assemble_listing("\n".join(joined), sm)
    if listed is None:  # At least one text has an error.
        half = len(texts) // 2
        return _listings(texts[:half], sm) + _listings(texts[half:], sm)
    parts = split_listing(listed[1])
    listings = []
    for number, text in enumerate(texts):
        suffix = f"{_MARK}{number}_"
        own = {entry.removesuffix(suffix): part for entry, part in parts.items() if entry.endswith(suffix)}
        entries = {match[3] for match in _FUNCTION.finditer(text) if match[2] == "entry"}
        listing = renumbered_listing("".join(own.values()), skipped[number]).replace(suffix, "")
        listings.append(listing if entries <= own.keys() else "")
    return listings


def _without_debug_information(text: str) -> str:
    """Return PTX with empty lines in place of debug information, whose names and numbers conflict in joined texts."""
    lines, in_section = [], False
    for line in text.split("\n"):
        word = line.split(maxsplit=1)[:1]
        in_section = in_section or word == [".section"]
        lines.append("" if in_section or word in ([".loc"], [".file"]) else line)
        in_section = in_section and "}" not in line
    return "\n".join(lines)


def _renamed(text: str, suffix: str) -> str:
    functions = {match[3] for match in _FUNCTION.finditer(text) if not match[1]}
    names = functions.union(_VARIABLE.findall(text))
    return _NAME.sub(lambda name: name[0] + suffix if name[0] in names else name[0], text)
