"""The table of formats. Each is written by a function of this folder:

    def NAME(answers: Sequence[Recommendation]) -> Files         # with an example: NAME(answers, detail, format's name)

It gets one answer for each problem, all for one GPU, and returns the files by name. A new format is a function and a
line of `FORMATS`; the command line, its help and the reference follow.
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
    """A few words for the help."""
    kind: Literal["text", "binary", "folder"]
    """One file of text, one of bytes, or several files."""
    writer: str
    """The module of this folder and its function."""
    many: bool = False
    """Whether several problems, such as a network's, go into one piece."""
    example: str = ""
    """Of the detail that follows the name after a colon. A file of such a format that is there gets further entries."""
    detail: str = ""
    compiled: bool = False
    """Whether kernels are compiled for it: of those in Triton, where Triton is installed."""
    language: Literal["cuda", "triton"] | None = None
    """The language of the kernels that it can hold; None: both."""
    suffix: str = ""
    """Of the file's name, where only this one is right."""


_LAYER = "e=8,n=14336,m=16,device=NVIDIA L40S"

FORMATS = {
    form.name: form
    for form in (
        Format("cuda", "CUDA C++", "text", "cuda.emit", language="cuda"),
        Format("triton", "Python with Triton", "text", "cuda.emit_triton", language="triton", suffix=".py"),
        Format("ptx", "what the compiler makes of the source", "text", "machine_code.ptx", compiled=True),
        Format("cubin", "machine code", "binary", "machine_code.cubin", compiled=True),
        Format("fatbin", "machine code and PTX", "binary", "machine_code.fatbin", compiled=True),
        Format("host", "a program that checks and times it", "text", "host.emit", compiled=True),
        Format("cmake", "a folder that builds, for all shapes", "folder", "cmake.emit", many=True, compiled=True),
        Format("inductor", "PyTorch's lookup table, for matmul_triton", "text", "inductor.emit", many=True),
        Format("triton-cache", "Triton's autotune cache with predictions", "folder", "triton_cache.emit"),
        Format("vllm", "its expert configs", "text", "expert_configs.expert_file", many=True, example=_LAYER),
        Format("sglang", "its expert configs", "text", "expert_configs.expert_file", many=True, example=_LAYER),
    )
}


def format_named(name: str) -> Format:
    """The format of this name, perhaps with a detail after a colon; `UsageError` with the nearest name."""
    base, colon, detail = name.partition(":")
    if base not in FORMATS:
        raise unknown("format to emit", base, FORMATS)
    form = FORMATS[base]
    if form.example and not detail:
        raise UsageError(f"--emit {base} needs to know which file: --emit {base}:{form.example!r}")
    if colon and not form.example:
        raise UsageError(f"--emit {base} takes nothing after a colon; {detail!r:.60} was given")
    return replace(form, detail=detail)


def emit(
    answers: "Sequence[Recommendation]", name: str, isa: tuple[int, int] | None = None, *, untrusted: bool = False
) -> Files:
    """The first choices of answers in a format: the content of each file by its name, with `/` below a folder.

    Args:
        answers: one for each problem, all for one GPU.
        name: of the format, a key of `FORMATS`, with its detail after a colon.
        isa: of `ptx`, the version of the PTX ISA to write; None: the compiler's own.
        untrusted: whether code of somebody else is written, too.

    Raises:
        UsageError: an unknown format, or one that takes a single problem and gets several.
        KernrecError: what it needs, such as a compiler, is not installed, or the choice's kernel does not have it.
    """
    form = format_named(name)
    if not form.many and len(answers) != 1:
        raise UsageError(
            f"--emit {form.name} is of one config, and {len(answers)} were asked for: give one GPU and one shape"
        )
    if len({answer.gpu.name for answer in answers}) != 1:
        raise UsageError(f"--emit {name} is for one GPU: give one")
    if isa is not None and form.name != "ptx":
        raise UsageError(f"a version of the PTX ISA is for --emit ptx, not for {name}")
    _check_language(answers, form)
    owned = [answer.best.kernel for answer in answers if answer.best.kernel.owner is not None]
    if owned and not untrusted and (form.language or form.compiled):
        raise UsageError(
            f"the source of {owned[0].name} is neither yours nor kernrec's ({owned[0].owner});"
            " read it first, --untrusted-source writes it"
        )
    module, function = form.writer.split(".")
    write = getattr(import_module(f"kernrec.emit.{module}"), function)
    extra = (form.detail, form.name) if form.example else (isa,) if isa is not None else ()
    files: Files = write(answers, *extra)
    return files


def _check_language(answers: "Sequence[Recommendation]", form: Format) -> None:
    """Raises `UsageError` where the best config is of a kernel that the format cannot hold: none takes its place."""
    if form.language is None and not form.compiled:
        return
    from kernrec.compile.triton_version import has_triton

    for answer in answers:
        kernel = answer.best.kernel
        language = "cuda" if kernel.triton is None else "triton"
        best = f"the best config for {answer.problem.key} is of {kernel.name}"
        if language == "triton" and form.language != "triton":
            cure = "--cuda-only chooses among kernels in CUDA C++"
            if form.language == "cuda":
                raise UsageError(f"{best}, which is in Triton: --emit triton writes it, {cure}")
            if not has_triton():
                raise UsageError(f"{best}, and Triton, which compiles it, is not installed: the extra `triton`; {cure}")
        elif form.language == "triton" and language == "cuda":
            raise UsageError(f"{best}, which is in CUDA C++: --emit cuda writes it, --kernel chooses another")
