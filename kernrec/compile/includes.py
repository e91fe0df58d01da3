"""Check which files a source may include: headers of CUDA and of the standard library, by name.

A compiler opens any file that a source names, and quotes its lines in messages. So kernrec refuses a directive with a
path or a macro before the compiler reads it. `kernrec.kernel.source_files` has already inserted headers of the source's
own folder.

Directives are found as the preprocessor finds them: after trigraphs and line continuations, with any blanks and
comments between `#` and the word. Comments and strings count as code, so that they cannot hide a directive. So a
comment that contains such an include is refused, too.
"""

import re
from bisect import bisect_left
from collections.abc import Iterator

from kernrec.errors import UsageError

_SPLICE = re.compile(r"\\[ \t\f\v]*(?:\r\n|\r|\n)")
_TRIGRAPHS = {"??=": "#", "??/": "\\", "%:": "#"}
_BLANKS = re.compile(r"\s*")
_WORD = re.compile(r"include_next\b|include\b|import\b|embed\b|\w*\\[uU]")
_NAME = r"\w[\w.+-]*(?:/\w[\w.+-]*)*"
_HEADER = re.compile(rf"<{_NAME}>", re.ASCII)
_QUOTED = re.compile(rf'"({_NAME})"', re.ASCII)
_ASKS = re.compile(rf"__has_(?:include|include_next|embed)\b(?!\s*\(\s*<{_NAME}>\s*\))", re.ASCII)
_INLINE_FILE = re.compile(r"\.incbin|\.include", re.IGNORECASE)


def check_includes(source: str, name: str, headers: frozenset[str] = frozenset()) -> None:
    """Raise `UsageError` if a source may open a file other than a header by its plain name.

    Args:
        source: CUDA C++ or PTX.
        name: Name of the source in messages.
        headers: Names that may also be quoted, because they are in the folders of CUDA's headers.
    """
    text = source
    for trigraph, letter in _TRIGRAPHS.items():
        text = text.replace(trigraph, letter)
    text = _SPLICE.sub("", text)
    for word, place in _directives(text):
        if word == "include" and (
            _HEADER.match(text, place) or ((quoted := _QUOTED.match(text, place)) and quoted[1] in headers)
        ):
            continue
        line = re.split(r"[\r\n]", text[place : place + 80], maxsplit=1)[0].strip()
        raise UsageError(
            f"{name}: #{word} {line!r:.60}: headers of CUDA are included as <cuda_fp16.h>, and files of the source's"
            ' own folder as "name.h", on a line of their own; no other file is read'
        )
    if match := _ASKS.search(text) or _INLINE_FILE.search(text):
        raise UsageError(f"{name}: {match[0]} is not allowed: only headers included by name are read")


def quoted_names(source: str) -> frozenset[str]:
    """Return the quoted names after `include` in a source."""
    return frozenset(re.findall(rf'include\s*"({_NAME})"', source, re.ASCII))


def _directives(text: str) -> Iterator[tuple[str, int]]:
    """Yield (word, operand position) of each directive that reads files, in linear time."""
    ends = [match.end() for match in re.finditer(r"\*/", text)]
    after: dict[int, int] = {}  # end of a comment -> end of the blanks and comments after it

    def skipped(place: int) -> int:
        passed = []
        while True:
            place = after.get(place, place)
            blank = _BLANKS.match(text, place)
            place = blank.end() if blank else place
            end = bisect_left(ends, place + 4) if text.startswith("/*", place) else len(ends)
            if end == len(ends):
                break
            place = ends[end]
            passed.append(place)
        after.update(dict.fromkeys(passed, place))
        return place

    for sign in re.finditer("#", text):
        if word := _WORD.match(text, skipped(sign.end())):
            yield word[0], skipped(word.end())
