"""Which files a stranger's source may include: headers of CUDA and of the standard library, by name.

A compiler opens whatever file a source names and quotes its lines in messages. So a source that names a file by a path,
or by a macro, is refused before a compiler sees it. Comments and strings are not told apart from code: a source that
mentions such an include in a comment is refused, too, and none can hide one behind a comment.
"""

import re

from kernrec.errors import UsageError

_SPLICE = re.compile(r"\\[ \t\f\v]*(?:\r\n|\r|\n)")
_TRIGRAPHS = {"??=": "#", "??/": "\\", "%:": "#"}
_DIRECTIVE = re.compile(r"#(?:\s|/\*.*?\*/)*(include_next|include|import|embed)\b(.*)", re.DOTALL)
_PLAIN = re.compile(r"[ \t]*<([A-Za-z0-9_]+(?:/[A-Za-z0-9_]+)*(?:\.(?:h|hpp|cuh|inl))?)>[ \t]*(?://.*|/\*.*)?")
_ASKS = re.compile(r"__has_(?:include|include_next|embed)|_Pragma|\\[uU][0-9A-Fa-f]")
_INLINE_FILE = re.compile(r"\.incbin|\.include", re.IGNORECASE)


def check_includes(source: str, name: str) -> None:
    """Raises `UsageError` for a source that may open a file other than a header by its name.

    Args:
        source: CUDA C++ or PTX.
        name: the source's name in messages.
    """
    text = source
    for trigraph, letter in _TRIGRAPHS.items():
        text = text.replace(trigraph, letter)
    text = _SPLICE.sub("", text)
    for start in re.finditer("#", text):
        directive = _DIRECTIVE.match(text, start.start(), min(len(text), start.start() + 4000))
        if directive is None:
            continue
        line = re.split(r"[\r\n]", directive[2], maxsplit=1)[0]
        if directive[1] != "include" or not _PLAIN.fullmatch(line):
            raise UsageError(
                f"{name}: #{directive[1]} {line.strip()!r:.60}: headers are included as <cuda_fp16.h>, other files are"
                " not read; paste what you need into the source"
            )
    if match := _ASKS.search(text) or _INLINE_FILE.search(text):
        raise UsageError(f"{name}: {match[0]} is not accepted in a source that is checked apart")
