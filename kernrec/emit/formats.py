"""The table of formats. Each is a module of this folder with one function:

    def emit(answers: Sequence[Recommendation]) -> Files         # with `detail`: emit(answers, detail)

It gets one answer for each problem, all for one GPU, and returns the files by name. A new format is a module and a line
of `FORMATS`; the command line, its help and the reference follow.
"""

from collections.abc import Sequence
from dataclasses import replace
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
    detail: str = ""
    """An example of what follows the name after a colon, which `emit` then gets, too. Such a format has a function
    `merge`, by which a file that is there gets further entries."""
    given: str = ""
    """What followed the name."""
    compiled: bool = False
    """Whether kernels are compiled for it: those in Triton are written where Triton is installed."""

    @property
    def module(self) -> str:
        """The module of this folder that writes it."""
        return self.name.replace("-", "_")


_LAYER = "e=8,n=14336,m=16,device=NVIDIA L40S"

FORMATS = {
    known.name: known
    for known in (
        Format("cuda", "its source", "text"),
        Format("ptx", "what the compiler makes of the source", "text", compiled=True),
        Format("cubin", "machine code", "binary", compiled=True),
        Format("fatbin", "machine code and PTX", "binary", compiled=True),
        Format("host", "a program that checks and times it", "text", compiled=True),
        Format("cmake", "a folder that builds, for all shapes", "folder", many=True, compiled=True),
        Format("inductor", "PyTorch's lookup table, for matmul_triton", "text", many=True),
        Format("triton-cache", "Triton's autotune cache with predictions", "folder"),
        Format("vllm", "its expert configs", "text", many=True, detail=_LAYER),
        Format("sglang", "its expert configs", "text", many=True, detail=_LAYER),
    )
}


def format_named(name: str) -> Format:
    """The format of this name, perhaps with a detail after a colon; `UsageError` with the nearest known one."""
    base, colon, given = name.partition(":")
    if base not in FORMATS:
        raise unknown("format to emit", base, FORMATS)
    known = FORMATS[base]
    if known.detail and not given:
        raise UsageError(f"--emit {base} needs to know which file: --emit {base}:{known.detail!r}")
    if colon and not known.detail:
        raise UsageError(f"--emit {base} takes nothing after a colon; {given!r:.60} was given")
    return replace(known, given=given)


def emit(answers: "Sequence[Recommendation]", name: str) -> Files:
    """The first choices of answers in a format: the content of each file by its name, with `/` below a folder.

    Args:
        answers: one for each problem, all for one GPU.
        name: of the format, a key of `FORMATS`, with its detail after a colon.

    Raises:
        UsageError: an unknown format, or one that takes a single problem and gets several.
        KernrecError: what it needs, such as a compiler, is not installed, or the choice's kernel does not have it.
    """
    known = format_named(name)
    if not known.many and len(answers) != 1:
        raise UsageError(
            f"--emit {known.name} is of one config, and {len(answers)} were asked for: give one GPU and one shape"
        )
    if len({answer.gpu.name for answer in answers}) != 1:
        raise UsageError(f"--emit {name} is for one GPU: give one")
    write = import_module(f"kernrec.emit.{known.module}").emit
    files: Files = write(answers, known.given) if known.detail else write(answers)
    return files


def merge(known: Format, before: bytes, new: bytes, where: str) -> bytes:
    """A file of a format that has details, with the entries of another, whose own count.

    Args:
        known: the format.
        before: content of the file that is there.
        new: content of what is emitted.
        where: names the first in errors.

    Raises:
        UsageError: the file that is there is of another format.
    """
    content: bytes = import_module(f"kernrec.emit.{known.module}").merge(before, new, where)
    return content
