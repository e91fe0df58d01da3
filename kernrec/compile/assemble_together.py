"""Read the machine code of several PTX texts in one run of nvdisasm, which takes long to start.

The texts are joined. Each text's functions and variables get a suffix, which is removed from the listings:

    .visible .entry blur(...)     ->  .visible .entry blur__kr0_(...)
"""

import re
from collections.abc import Sequence

from kernrec.compile.disassemble import assemble_listing, renumbered_listing, split_listing

_HEAD = re.compile(r"^[ \t]*\.(?:version|target|address_size)\b.*$", re.MULTILINE)
# The repetitions are bounded because searching would otherwise take quadratic time.
_FUNCTION = re.compile(
    r"^[^\n/]*?(\.extern[ \t]+)?\.(?:entry|func)\b[ \t]*(?:\([^)]{0,400}\))?\s{0,40}([\w$]+)", re.MULTILINE
)
_VARIABLE = re.compile(
    r"^(?:\.(?:visible|weak|common|extern)[ \t]+)*\.(?:global|const|shared)\b"
    r"[^;={\[]{0,200}?([\w$]{1,999})\s{0,9}[;=\[]",
    re.MULTILINE,
)
_NAME = re.compile(r"(?<![\w$%.])[A-Za-z_$][\w$]*")


def listings_together(texts: Sequence[str], sm: int) -> list[str]:
    """Return the listing of each PTX text, as `assemble_listing` does, or empty texts if they cannot be joined."""
    joined, skipped = [], [0]
    for number, text in enumerate(texts):
        text = _without_debug_information(text)
        joined.append(_renamed(_HEAD.sub("", text) if number else text, _suffix(number)))
        skipped.append(skipped[-1] + text.count("\n") + 1)
    alike = len({tuple(_HEAD.findall(text)) for text in texts}) == 1
    listed = assemble_listing("\n".join(joined), sm) if alike else None
    listings = split_listing(listed[1] if listed else "")
    return [
        "".join(
            renumbered_listing(listing, skipped[number]).replace(suffix, "")
            for entry, listing in listings.items()
            if entry.endswith(suffix)
        )
        for number in range(len(texts))
        for suffix in [_suffix(number)]
    ]


def _suffix(number: int) -> str:
    return f"__kr{number}_"


def _without_debug_information(text: str) -> str:
    """Return PTX with empty lines in place of debug information, whose names and numbers conflict in joined texts."""
    lines, in_section = [], False
    for line in text.split("\n"):
        word = line.lstrip()
        in_section = in_section or word.startswith(".section")
        lines.append("" if in_section or word.startswith((".loc", ".file")) else line)
        in_section = in_section and "}" not in line
    return "\n".join(lines)


def _renamed(text: str, suffix: str) -> str:
    functions = {match[2] for match in _FUNCTION.finditer(text) if not match[1]}
    names = functions.union(_VARIABLE.findall(text))
    return _NAME.sub(lambda name: name[0] + suffix if name[0] in names else name[0], text)
