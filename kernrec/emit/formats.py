"""List the file formats for recommended configs, and write the files.

Each format has a function `emit_name(answers) -> Files` in this package. All answers are for the same GPU. The user may
write a detail after the format's name, as in `vllm:e=8,n=14336`. The function then also gets the detail and the name.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from kernrec.errors import KernrecError, UsageError, cannot_be, unknown
from kernrec.util.files import write_whole
from kernrec.util.light_dataclass import dataclass

if TYPE_CHECKING:
    from kernrec.recommender.result import Answer

Files = Mapping[str, bytes]
"""Contents of files, keyed by relative path."""


def write_file(path: Path, content: bytes) -> None:
    """Write one file, replacing any existing file.

    Raise `UsageError` if the path is a folder or its parent does not exist, and `KernrecError` if writing fails.
    """
    if path.is_dir() or not path.absolute().parent.is_dir():
        raise UsageError(f"--output {str(path)!r}: expected a file in an existing folder")
    try:
        write_whole(path, content, shared=True)
    except OSError as error:
        raise KernrecError(cannot_be("written", path, error)) from None


def write_files(folder: Path, files: Files) -> None:
    """Write files into a new folder. The folder appears only once it is complete.

    Raise `UsageError` if the folder is not empty or its parent does not exist, and `KernrecError` if writing fails.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UsageError(f"--output {str(folder)!r} exists already; expected a new or an empty folder")
    parent = folder.absolute().parent
    if not parent.is_dir():
        raise UsageError(
            f"--output {str(folder)!r}: expected a new folder in an existing one; {parent} is not a folder"
        )
    try:
        temporary = parent / f".{folder.name}.{os.urandom(6).hex()}"
        temporary.mkdir()
        try:
            for name, content in files.items():
                path = temporary / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(content)
            if folder.exists():
                folder.rmdir()
            os.replace(temporary, folder)
        except BaseException:
            import shutil

            shutil.rmtree(temporary, ignore_errors=True)
            raise
    except OSError as error:
        raise KernrecError(cannot_be("written", folder, error)) from None


@dataclass(frozen=True)
class Format:
    """File format for recommended configs."""

    name: str
    content: str
    """Short description of the files for the command line's help."""
    writer: str
    """Function that creates the file's content, as `module.function` of this package."""
    folder: str = ""
    """Function that creates the files of a folder, or an empty string if the format is always a single file."""
    many: bool = False
    """Whether one file can contain the configs of several problems, such as the layers of a network."""
    example: str = ""
    """Example of the detail after the format's name and a colon. Empty if the format has no detail."""
    detail: str = ""
    compiled: bool = False
    """Whether the writer compiles the kernel."""
    language: Literal["cuda", "triton"] | None = None
    """Language of the kernels that the format supports, or None if the format supports CUDA C++ and Triton."""
    suffix: str = ""
    """Suffix that the file's name must have. Empty for any suffix."""

    def writes_folder(self, output: Path | None) -> bool:
        """Return whether `output` names a folder: a folder that exists, or a path without a suffix."""
        return bool(self.folder) and output is not None and (output.is_dir() or not output.suffix)


_LAYER = "e=8,n=14336,m=16,device=NVIDIA L40S"
FOLDER = "CUDA C++; a folder with launchers, a check program and a CMake file if --output names one"

FORMATS = {
    form.name: form
    for form in (
        Format("cuda", FOLDER, "sources.emit_cuda", folder="project.emit_project", language="cuda"),
        Format("triton", "Python with Triton and a launcher", "sources.emit_triton", language="triton", suffix=".py"),
        Format("ptx", "the compiler's PTX", "sources.emit_ptx", compiled=True),
        Format("inductor", "PyTorch's lookup table, for matmul_triton", "tuned_tables.emit_inductor", many=True),
        Format("vllm", "its expert configs", "tuned_tables.emit_experts", many=True, example=_LAYER),
        Format("sglang", "its expert configs", "tuned_tables.emit_experts", many=True, example=_LAYER),
    )
}
REMOVED = {
    "host": "--emit cuda --output FOLDER writes a program that checks and times the kernel",
    "cmake": "--emit cuda --output FOLDER writes a CMake project",
    "cubin": "--emit ptx writes PTX, which ptxas assembles",
    "fatbin": "--emit cuda writes the source, which nvcc -fatbin compiles",
    "triton-cache": "--emit triton writes the source with its config",
    "ptx:": "for older PTX, compile the source from --emit cuda with an older nvcc",
}
"""Replacements for removed formats, keyed by format name."""


def format_named(name: str) -> Format:
    """Return the format that --emit names, such as `ptx` or `vllm:detail`. Raise `UsageError` if it is invalid."""
    base, colon, detail = name.partition(":")
    if instead := REMOVED.get(base) or REMOVED.get(base + colon):
        raise UsageError(f"--emit {name:.60} was removed: {instead}")
    if base not in FORMATS:
        raise unknown("format to emit", base, FORMATS)
    form = FORMATS[base]
    if form.example and not detail:
        raise UsageError(f"--emit {base} needs the file's details: --emit {base}:{form.example!r}")
    if colon and not form.example:
        raise UsageError(f"--emit {base}:{detail!s:.60}: write --emit {base}, without a colon")
    return replace(form, detail=detail)


def emit(
    answers: "Sequence[Answer]",
    name: str,
    folder: bool = False,
    untrusted: bool = False,
) -> Files:
    """Return the files that contain the best config of each answer.

    Args:
        answers: One answer per problem, all for the same GPU.
        name: Name of the format. If the format needs a detail, a colon and the detail follow.
        folder: Whether to create a folder instead of a file.
        untrusted: Whether to write kernel sources from other people.

    Raises:
        UsageError: The format is unknown, cannot contain several problems, or cannot contain the kernel.
        KernrecError: A compiler is not installed.
    """
    form = format_named(name)
    if not (form.many or folder) and len(answers) != 1:
        instead = ", or name a folder by --output" if form.folder else ""
        raise UsageError(
            f"--emit {form.name} writes one config, but there are {len(answers)}: give one GPU and one shape{instead}"
        )
    if len({answer.gpu.name for answer in answers}) != 1:
        raise UsageError(f"--emit {name} writes code for one GPU: name one with --gpu")
    _check_language(answers, form)
    owned = [answer.best.kernel for answer in answers if answer.best.kernel.owner is not None]
    if owned and not untrusted and (form.language or form.compiled):
        raise UsageError(
            f"the source of {owned[0].name} is neither yours nor kernrec's ({owned[0].owner});"
            " if you trust it, add --untrusted-source"
        )
    module, function = (form.folder if folder else form.writer).split(".")
    write = getattr(import_module(f"kernrec.emit.{module}"), function)
    files: Files = write(answers, *((form.detail, form.name) if form.example else ()))
    return files


def _check_language(answers: "Sequence[Answer]", form: Format) -> None:
    if form.language is None and not form.compiled:
        return
    from kernrec.compile.triton_version import has_triton

    for answer in answers:
        kernel = answer.best.kernel
        language = "cuda" if kernel.triton is None else "triton"
        best = f"the best config for {answer.problem.key} belongs to {kernel.name}"
        if language == "triton" and form.language != "triton":
            cure = "use --emit cuda, which chooses among CUDA C++ kernels"
            if form.language == "cuda":
                raise UsageError(f"{best}, a Triton kernel: use --emit triton")
            if not has_triton():
                raise UsageError(f"{best}, which needs Triton; install the extra `triton`, or {cure}")
        elif form.language == "triton" and language == "cuda":
            raise UsageError(f"{best}, a CUDA C++ kernel: use --emit cuda, or choose another kernel with --kernel")
