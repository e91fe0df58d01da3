"""Compile the replacements for the CUDA runtime (12 and 13), the driver and NVML, once per version.

The system's C++ compiler builds them in the cache folder on first use, without CUDA headers.
"""

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from kernrec import paths
from kernrec.errors import KernrecError

NATIVE = Path(__file__).resolve().parent / "native"
_DRIVER, _NVML, _RUNTIMES = "libcuda.so.1", "libnvidia-ml.so.1", (12, 13)
_DEFINED = re.compile(r"^API (?:[\w:]+[ *]+)+(\w+)\(", re.MULTILINE)
_FLAGS = ("-std=c++17", "-O2", "-fPIC", "-fvisibility=default", "-fno-strict-aliasing")
_LINKED = ("-shared", "-static-libstdc++", "-static-libgcc", "-pthread", "-ldl", "-Wl,-s")


def libraries() -> Path:
    """Return the folder with the libraries; compile them if it does not exist. Raises `KernrecError` if the system is
    not Linux, or has no C++ compiler.
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
        scratch, made = Path(name), Path(name, "libraries")
        made.mkdir()
        for kind in ("driver", "runtime"):
            (scratch / f"stubs_{kind}.cpp").write_text(_stubs(kind))
        runtime = [*sorted(NATIVE.glob("runtime_*.cpp")), scratch / "stubs_runtime.cpp"]
        driver = [*(NATIVE / f"{part}.cpp" for part in ("core", "program", "driver")), scratch / "stubs_driver.cpp"]
        shared = [*driver, *(source for source in runtime if not _by_version(source))]
        jobs = [(source, 0) for source in shared]
        jobs += [(source, version) for source in runtime if _by_version(source) for version in _RUNTIMES]

        def compiled(job: tuple[Path, int]) -> str:
            source, version = job
            target = scratch / f"{source.stem}-{version}.o"
            defined = [f"-DRUNTIME_MAJOR={version}"] if version else []
            _run([compiler, *_FLAGS, *defined, f"-I{NATIVE}", "-c", str(source), "-o", str(target)])
            return str(target)

        with ThreadPoolExecutor(os.cpu_count()) as pool:
            objects = dict(zip(jobs, pool.map(compiled, jobs), strict=True))
        linked = [objects[source, 0] for source in driver]
        _run([compiler, *linked, f"-Wl,-soname,{_DRIVER}", *_LINKED, "-o", str(made / _DRIVER)])
        nvml = [str(NATIVE / "nvml.cpp"), str(made / _DRIVER), f"-Wl,-soname,{_NVML}"]
        _run([compiler, *_FLAGS, *nvml, *_LINKED, "-o", str(made / _NVML)])
        # Programs compiled with a default stream per thread call functions with these suffixes.
        aliases = [f"-Wl,--defsym={call}{suffix}={call}" for call in _defined() for suffix in ("_ptsz", "_ptds")]
        for version in _RUNTIMES:
            library = f"libcudart.so.{version}"
            (exports := scratch / "exports").write_text(f"{library} {{ global: cuda*; __cuda*; local: *; }};")
            linked = [objects.get((source, version)) or objects[source, 0] for source in runtime]
            flags = [f"-Wl,-soname,{library}", f"-Wl,--version-script={exports}", *_LINKED]
            _run([compiler, *linked, *aliases, str(made / _DRIVER), *flags, "-o", str(made / library)])
        try:
            made.rename(folder)
        except OSError:
            if not (folder / _DRIVER).exists():  # Otherwise another process was faster.
                raise


def _by_version(source: Path) -> bool:
    return "RUNTIME_MAJOR" in source.read_text(encoding="utf-8")


def _defined() -> list[str]:
    files = NATIVE.glob("runtime_*.cpp")
    return [call for path in files for call in _DEFINED.findall(path.read_text(encoding="utf-8"))]


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
