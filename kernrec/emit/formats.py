"""The table of formats. Each is a module of this folder with one function:

    def emit(answers: Sequence[Recommendation]) -> Files

It gets one answer for each problem, all for one GPU, and returns the files by name. A new format is a module and a line
of `FORMATS`; the command line, its help and the reference follow.
"""

from collections.abc import Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Literal

from kernrec.emit.files import Files
from kernrec.errors import UsageError, unknown
from kernrec.util.light_dataclass import dataclass

if TYPE_CHECKING:
    from kernrec.recommender.result import Recommendation


@dataclass(frozen=True)
class Format:
    """A format in which answers can be written."""

    name: str
    content: str
    """What is written, for the help."""
    kind: Literal["text", "binary", "folder"]
    """One file of text, one of bytes, or several files."""
    many: bool = False
    """Whether several problems, such as a network's, go into one piece."""

    @property
    def module(self) -> str:
        """The module of this folder that writes it."""
        return self.name.replace("-", "_")


FORMATS = {
    known.name: known
    for known in (
        Format("cuda", "its source", "text"),
        Format("ptx", "what the compiler makes of the source", "text"),
        Format("cubin", "machine code", "binary"),
    )
}


def format_named(name: str) -> Format:
    """The format of this name; `UsageError` with the nearest known one."""
    if name not in FORMATS:
        raise unknown("format to emit", name, FORMATS)
    return FORMATS[name]


def emit(answers: "Sequence[Recommendation]", name: str) -> Files:
    """The first choices of answers in a format: the content of each file by its name, with `/` below a folder.

    Args:
        answers: one for each problem, all for one GPU.
        name: of the format; a key of `FORMATS`.

    Raises:
        UsageError: an unknown format, or one that takes a single problem and gets several.
        KernrecError: what it needs, such as a compiler, is not installed, or the choice's kernel does not have it.
    """
    known = format_named(name)
    if not known.many and len(answers) != 1:
        raise UsageError(
            f"--emit {name} is of one config, and {len(answers)} were asked for: give one GPU and one shape"
        )
    if len({answer.gpu.name for answer in answers}) != 1:
        raise UsageError(f"--emit {name} is for one GPU: give one")
    files: Files = import_module(f"kernrec.emit.{known.module}").emit(answers)
    return files
