"""Compile whole CUDA programs with nvcc, including host code.

NVRTC is faster, so nvcc only compiles what NVRTC cannot. Programs to run (`kernrec capture FILE.cu`) need nvcc.
"""

import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from functools import cache as once
from pathlib import Path
from typing import Any

from kernrec.compile.compiled import (
    Compiled,
    CompileError,
    CompileJob,
    FileRefusedError,
    NoCompilerError,
    first_error,
    target_name,
)
from kernrec.compile.includes import check_includes, quoted_names
from kernrec.errors import UsageError
from kernrec.util.process import kill_group, own_group, run_confined

_LIMIT_S = 120.0
_SYSTEM = ("/usr", "/lib", "/lib64", "/bin", "/etc/ld.so.cache", "/etc/alternatives")


@once
def find_nvcc() -> Path | None:
    """Return the path of nvcc from PATH, CUDA_HOME, CUDA_PATH or NVIDIA's wheels; None without nvcc or
    host compiler.
    """
    if shutil.which("cl" if sys.platform == "win32" else "g++") is None:
        return None
    return next((path for path in _candidates() if path.is_file()), None)


def _candidates() -> Iterator[Path]:
    name = "nvcc.exe" if sys.platform == "win32" else "nvcc"
    if path := shutil.which(name):
        yield Path(path)
    yield from (Path(os.environ[home], "bin", name) for home in ("CUDA_HOME", "CUDA_PATH") if os.environ.get(home))
    wheels = importlib.util.find_spec("nvidia")
    for folder in (wheels.submodule_search_locations or []) if wheels else []:
        for toolkit in (Path(folder, "cu13"), Path(folder, "cuda_nvcc")):
            if (toolkit / "include" / "cuda_runtime.h").is_file():
                yield toolkit / "bin" / name


def required_nvcc() -> Path:
    """Return the path of nvcc. Raises `NoCompilerError`, which names what to install, if there is none."""
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
        job: CUDA C++ with the headers of its folder inserted. Only headers of CUDA and of the system are read.

    Raises:
        CompileError: nvcc refuses the program.
        NoCompilerError: nvcc is not installed.
    """
    from kernrec.compile.assemble import assemble  # imported late: reads PTX with NumPy
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
        status, log = _run(command, Path(folder), (path.resolve().parents[1],))
        log = log.replace(f"{source}", job.name)
        if status:
            raise CompileError(first_error(log, job.name), log)
        text = ptx.read_text(encoding="utf-8").replace(f"{source}", job.name)
    assembled = assemble(text, job.sm, job.name)
    return Compiled(assembled.ptx, assembled.cubin, assembled.resources, _version(path), log + assembled.log)


def _run(command: Sequence[str | Path], folder: Path, toolkits: Sequence[Path]) -> tuple[int, str]:
    """Run a command that can read only toolkit and system and write one folder; return exit status and output."""

    def work() -> tuple[int, str]:
        process: subprocess.Popen[Any] = subprocess.Popen(
            list(map(str, command)),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "TMPDIR": str(folder)},
            **own_group(),
        )
        with process:
            try:
                output, errors = process.communicate(timeout=_LIMIT_S)
            except BaseException as error:
                kill_group(process)  # Compilers that nvcc started hold its pipes open.
                if isinstance(error, subprocess.TimeoutExpired):
                    raise CompileError(f"nvcc took longer than {_LIMIT_S:g} s", reason="timeout") from None
                raise
        return process.returncode, errors + output

    return run_confined(work, (*toolkits, *map(Path, _SYSTEM)), (folder, Path(os.devnull)))
