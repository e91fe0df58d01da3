"""Reads the code blocks of Markdown pages with the HTML comments above them."""

import re
from dataclasses import dataclass
from pathlib import Path

from tests.helpers.paths import ROOT

_FENCE = re.compile(r"^(?P<indent> *)```(?P<language>[\w-]*)[^\n]*$")
_COMMENT = re.compile(r"^ *<!-- (?P<text>.*?) -->$")


@dataclass(frozen=True)
class Block:
    page: Path
    line: int
    """Line number of the opening fence, from 1."""
    language: str
    code: str
    """The lines between the fences, without the block's indentation."""
    comment: str
    """Text of the HTML comment on the line above the fence, or empty text."""

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def pages() -> list[Path]:
    return [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]


def blocks(page: Path) -> list[Block]:
    lines = page.read_text(encoding="utf-8").splitlines()
    result = []
    start: int | None = None
    for number, line in enumerate(lines):
        fence = _FENCE.match(line)
        if start is None and fence:
            start, language, indent = number, fence["language"], len(fence["indent"])
        elif start is not None and line.strip() == "```":
            comment = _COMMENT.match(lines[start - 1]) if start else None
            code = "".join(text[indent:] + "\n" for text in lines[start + 1 : number])
            result.append(Block(page, start + 1, language, code, comment["text"] if comment else ""))
            start = None
    assert start is None, f"{page}:{start}: the block is not closed"
    return result


def prose(page: Path) -> str:
    """Return the text of a page without code blocks and comments."""
    text = page.read_text(encoding="utf-8")
    text = re.sub(r"^( *)```.*?^\1```$", "", text, flags=re.DOTALL | re.MULTILINE)
    return re.sub(r"<!--.*?-->", "", text, flags=re.DOTALL)


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))
