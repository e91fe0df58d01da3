"""Compile the replacements for `libcudart.so.12`, `libcudart.so.13` and `libcuda.so.1`, once per version.

The system's compiler builds them in the cache folder on first use. They need no CUDA headers.
"""

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from kernrec import paths
from kernrec.errors import KernrecError

NATIVE = Path(__file__).resolve().parent / "native"
_DRIVER, _RUNTIMES = "libcuda.so.1", (12, 13)
_DEFINED = re.compile(r"^API (?:[\w:]+[ *]+)+(\w+)\(", re.MULTILINE)
_FLAGS = ("-std=c++17", "-O2", "-fPIC", "-fvisibility=default", "-fno-strict-aliasing")
_LINKED = ("-shared", "-static-libstdc++", "-static-libgcc", "-pthread", "-ldl", "-Wl,-s")


def libraries() -> Path:
    """Return the folder with the libraries; compile them if it does not exist.

    Raises:
        KernrecError: The system is not Linux, or has no C++ compiler.
    """
    if not sys.platform.startswith("linux"):
        raise KernrecError("kernrec capture runs CUDA programs on Linux only")
    digest = hashlib.sha256()
    for path in sorted(NATIVE.iterdir()):
        digest.update(path.name.encode() + path.read_bytes())
    folder = paths.cache() / f"capture-{digest.hexdigest()[:16]}"
    if not (folder / _DRIVER).exists():
        compile_libraries(folder)
    return folder


def compile_libraries(folder: Path) -> None:
    """Compile the libraries into a new folder."""
    compiler = next(
        (name for name in (os.environ.get("CXX"), "c++", "g++", "clang++") if name and shutil.which(name)), None
    )
    if compiler is None:
        raise KernrecError("kernrec capture needs a C++ compiler to make its libraries: install g++, or set CXX")
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as name:
        made = Path(name, "libraries")
        made.mkdir()
        (stubs := Path(name, "stubs.cpp")).write_text(_stubs("driver"))
        shared = [str(NATIVE / file) for file in ("core.cpp", "program.cpp", "driver.cpp")]
        _run(
            [
                compiler,
                *_FLAGS,
                *shared,
                str(stubs),
                f"-I{NATIVE}",
                f"-Wl,-soname,{_DRIVER}",
                *_LINKED,
                "-o",
                str(made / _DRIVER),
            ]
        )
        for version in _RUNTIMES:
            library = f"libcudart.so.{version}"
            (stubs := Path(name, f"stubs{version}.cpp")).write_text(_stubs("runtime"))
            (exports := Path(name, "exports")).write_text(f"{library} {{ global: cuda*; __cuda*; local: *; }};")
            # Programs with a default stream per thread call functions with these suffixes.
            aliases = [
                f"-Wl,--defsym={name}{suffix}={name}" for name in _defined("runtime") for suffix in ("_ptsz", "_ptds")
            ]
            _run(
                [
                    compiler,
                    *_FLAGS,
                    f"-DKERNREC_RUNTIME={version}",
                    str(NATIVE / "runtime.cpp"),
                    str(stubs),
                    f"-I{NATIVE}",
                    *aliases,
                    str(made / _DRIVER),
                    f"-Wl,-soname,{library}",
                    f"-Wl,--version-script={exports}",
                    *_LINKED,
                    "-o",
                    str(made / library),
                ]
            )
        try:
            made.rename(folder)
        except OSError:
            if not (folder / _DRIVER).exists():  # otherwise another process was faster
                raise


def _defined(name: str) -> list[str]:
    return _DEFINED.findall((NATIVE / f"{name}.cpp").read_text(encoding="utf-8"))


def _stubs(name: str) -> str:
    """Return C++ stubs for all public functions; a stub reports its name and ends the program."""
    public = (NATIVE / f"{name}_calls.txt").read_text(encoding="utf-8").split()
    weak = '__attribute__((weak, visibility("default")))'
    return '#include "core.h"\n' + "".join(
        f'extern "C" {weak} void {call}() {{ capture::missing("{call}"); }}\n' for call in public
    )


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        errors = re.findall(r".*(?:error|undefined|multiple).*", done.stderr) or [f"exit {done.returncode}"]
        raise KernrecError(f"kernrec capture could not compile its libraries: {errors[0][:300]}")
