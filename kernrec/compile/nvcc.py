"""Compile whole CUDA programs with nvcc, and check which files a source may include.

NVRTC is faster, so nvcc only compiles sources that NVRTC cannot, and programs for `kernrec capture FILE.cu`.

A compiler quotes lines of included files in messages, so a source from somebody else could reveal any file. kernrec
therefore refuses an `#include` of a path or a macro. Headers in the source's folder are already inserted
(`kernrec.kernel.source_files`). Like the preprocessor, kernrec recognizes directives with trigraphs, joined lines,
blanks or comments. It also searches comments and strings, because they could hide a directive.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from functools import cache as once
from pathlib import Path

from kernrec.compile.compiled import (
    DEVICE_LAUNCH,
    RELOCATABLE,
    Compiled,
    CompileError,
    CompileJob,
    FileRefusedError,
    NoCompilerError,
    first_error,
    target_name,
    wheel_folders,
)
from kernrec.errors import UsageError
from kernrec.util.process import run_confined, run_in_group

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
    """Raise `UsageError` if a source may open files other than headers that it includes as `<name>`.

    Args:
        source: CUDA C++ or PTX.
        name: name of the source in messages.
        headers: CUDA headers that the source may also include as `"name"`.
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
        raise UsageError(f"{name}: {match[0]} is not allowed: write #include with the name of a file")


def quoted_names(source: str) -> frozenset[str]:
    return frozenset(re.findall(rf'include\s*"({_NAME})"', source, re.ASCII))


def _directives(text: str) -> Iterator[tuple[str, int]]:
    """Yield each directive that reads a file, with the position of its operand, in linear time."""
    ends = [match.end() for match in re.finditer(r"\*/", text)]
    after: dict[int, int] = {}  # Maps the end of a comment to the next position that is neither blank nor comment.

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


_LIMIT_S = 120.0
_SYSTEM = ("/usr", "/lib", "/lib64", "/bin", "/etc/ld.so.cache", "/etc/alternatives")


@once
def find_nvcc() -> Path | None:
    """Return the path of nvcc. Return None if nvcc or a host compiler is missing."""
    if shutil.which("cl" if sys.platform == "win32" else "g++") is None:
        return None
    return next((path for path in _candidates() if path.is_file()), None)


def _candidates() -> Iterator[Path]:
    name = "nvcc.exe" if sys.platform == "win32" else "nvcc"
    if path := shutil.which(name):
        yield Path(path)
    yield from (Path(os.environ[home], "bin", name) for home in ("CUDA_HOME", "CUDA_PATH") if os.environ.get(home))
    for toolkit in wheel_folders("cu13", "cuda_nvcc"):
        if (toolkit / "include" / "cuda_runtime.h").is_file():
            yield toolkit / "bin" / name


def required_nvcc() -> Path:
    """Return the path of nvcc. Raise `NoCompilerError` if nvcc is missing."""
    if (path := find_nvcc()) is None:
        missing = "a host compiler (g++) and nvcc are" if shutil.which("g++") is None else "nvcc is"
        raise NoCompilerError(
            f"{missing} needed, and not in PATH, CUDA_HOME or the wheels: pip install '.[cuda-programs]'"
        )
    return path


def nvcc_version() -> str:
    """Return the compiler's name and version, such as `nvcc 13.5`."""
    return _version(required_nvcc())


@once
def _version(path: Path) -> str:
    printed = subprocess.run([path, "--version"], capture_output=True, text=True, check=False).stdout
    return f"nvcc {printed.partition('release ')[2].partition(',')[0]}"


def compile_program(job: CompileJob) -> Compiled:
    """Compile a CUDA program with its host code to PTX and machine code.

    Args:
        job: CUDA C++ with the headers of its own folder inserted. nvcc can only read headers of CUDA and of the system.

    Raises:
        CompileError: nvcc refuses the program.
        NoCompilerError: nvcc is not installed.
    """
    from kernrec.compile.assemble import assemble  # Import late, because the import loads NumPy.
    from kernrec.kernel.cuda_program import DEVICE_HEADER, TOOLKIT_HEADER

    path = required_nvcc()
    quoted = quoted_names(job.source)
    headers = frozenset(name for name in quoted if TOOLKIT_HEADER.match(name) or DEVICE_HEADER.match(name))
    try:
        check_includes(job.source, job.name, headers)
    except UsageError as error:
        raise FileRefusedError(str(error)) from None
    options = [f"-arch={target_name(job.source, job.sm).replace('sm', 'compute')}", *job.language, *job.options]
    with tempfile.TemporaryDirectory(prefix="kernrec-") as folder:
        source, ptx = Path(folder, Path(job.name).name), Path(folder, "program.ptx")
        source.write_text(job.source, encoding="utf-8")
        command: list[str | Path] = [path, "-ptx", "-lineinfo", *options, *job.macros, source, "-o", ptx]
        status, log = _run(command, Path(folder))
        if status and DEVICE_LAUNCH.search(log):
            status, log = _run([*command, RELOCATABLE], Path(folder))
        log = log.replace(f"{source}", job.name)
        if status:
            raise CompileError(first_error(log, job.name), log)
        text = ptx.read_text(encoding="utf-8").replace(f"{source}", job.name)
    assembled = assemble(text, job.sm, job.name)
    return Compiled(assembled.ptx, assembled.cubin, assembled.resources, _version(path), log + assembled.log)


def _run(command: Sequence[str | Path], folder: Path) -> tuple[int, str]:
    """Run a command that can read only its toolkit and the system, and write only to `folder`.

    Return the exit status and the output.
    """

    def work() -> tuple[int, str]:
        try:
            done = run_in_group(list(map(str, command)), b"", _LIMIT_S, {**os.environ, "TMPDIR": str(folder)})
        except subprocess.TimeoutExpired:
            raise CompileError(f"nvcc took longer than {_LIMIT_S:g} s", reason="timeout") from None
        return done.returncode, (done.stderr + done.stdout).decode(errors="replace")

    return run_confined(work, (Path(command[0]).resolve().parents[1], *map(Path, _SYSTEM)), (folder, Path(os.devnull)))
