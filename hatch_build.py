"""Compile the engine (`engine/`, C++17) during an installation or when a wheel is built.

The system's compiler compiles the engine, or the package `ziglang` if there is none. kernrec cannot answer without its
engine, so a failed compilation fails the build. The file name holds a hash of the sources: kernrec never loads an
outdated engine. From Python 3.12 on, one wheel per platform serves all versions of Python (not on Windows).

`build/engine` keeps object files, named by a hash of the preprocessed code. A build for another version of Python
compiles only the few files that depend on Python's headers.
"""

import hashlib
import importlib.util
import os
import re
import runpy
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

NAMES = Path("kernrec/util/engine_file.py")
_FLAGS = [
    *("-std=c++17", "-O2", "-ftree-vectorize", "-fvect-cost-model=dynamic", "-fvisibility=hidden"),
    *(() if sys.platform == "win32" else ("-fPIC",)),
    *("-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math", "-fno-strict-aliasing"),
]
"""Compiler options. The emulator must round like a GPU, so `-ffp-contract=off` prevents fused multiply-adds."""
_MARKERS = re.compile(rb"^(?:#(?: \d|line).*)?\n", re.MULTILINE)
"""Line markers and empty lines of preprocessed code, which may change without changing the object file."""
_OBJECTS_S = 14 * 86400.0
"""Seconds for which `build/engine` keeps an object file after its last use."""


class EngineBuildHook(BuildHookInterface[Any]):
    """Puts the engine into a wheel, or into the package folder of an editable installation."""

    PLUGIN_NAME = "custom"

    def dependencies(self) -> list[str]:
        """Return the packages that compiling needs: a compiler, if the system has none."""
        return [] if system_compiler() else ["ziglang"]

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile the engine. `version` is `editable` or `standard`."""
        if self.target_name != "wheel":
            return
        root = Path(self.root)
        names, package = runpy.run_path(str(root / NAMES), run_name="names"), root / "kernrec"
        name = names["file_name"](root)
        # If the checkout has an editable installation, the wheel contains the engine that this installation compiled.
        made = package / name
        if not made.exists():
            made = made if version == "editable" else Path(tempfile.mkdtemp()) / name
            if reason := compile_engine(root, names["sources"](root), made, stable_abi=names["STABLE_ABI"]):
                self.app.abort(f"kernrec's engine cannot be compiled: {reason}")
        if version == "editable":
            for other in package.glob(names["PATTERN"]):
                if other.name.split(".")[2:] == name.split(".")[2:] and other.name != name:
                    other.unlink(missing_ok=True)
        else:
            build_data["force_include"][str(made)] = f"kernrec/{name}"
            build_data["pure_python"] = False
            python = "cp312-abi3" if names["STABLE_ABI"] else "cp{0}{1}-cp{0}{1}".format(*sys.version_info)
            build_data["tag"] = f"{python}-{re.sub('[-.]', '_', sysconfig.get_platform())}"


def system_compiler() -> list[str] | None:
    """Return the command of the system's C++ compiler, or None. On Windows, it is None: `ziglang` compiles there."""
    if sys.platform == "win32":
        return None
    for name in (os.environ.get("CXX", ""), "c++", "g++", "clang++"):
        if name and shutil.which(name.split()[0]):
            return name.split()
    return None


def compile_engine(root: Path, sources: list[Path], target: Path, stable_abi: bool = False) -> str | None:
    """Compile the engine, several files at once. Return None, or the reason in one line if a compiler fails.

    Args:
        root: The checkout.
        sources: The engine's C++ files.
        target: File to write.
        stable_abi: Use only functions that every Python from 3.12 on has.
    """
    compiler = system_compiler()
    if compiler is None and importlib.util.find_spec("ziglang"):
        # Without `-mcpu`, zig compiles for the processor of this machine, and wheels would crash on others.
        compiler = [sys.executable, "-m", "ziglang", "c++", "-mcpu=baseline"]
    if compiler is None:
        return "no C++ compiler; set CXX, or install the package ziglang"
    if not (spec := importlib.util.find_spec("nanobind")) or spec.origin is None:
        return "the package nanobind is not installed"
    nanobind = Path(spec.origin).parent
    includes = [nanobind / "include", nanobind / "ext/robin_map/include", Path(sysconfig.get_paths()["include"])]
    flags = [*_FLAGS, *(f"-I{folder}" for folder in includes)]
    if stable_abi:
        flags.append("-DPy_LIMITED_API=0x030C0000")
    sanitizers = [f"-fsanitize={names}"] if (names := os.environ.get("KERNREC_SANITIZE")) else []
    flags += [*sanitizers, "-fno-omit-frame-pointer", "-fno-sanitize-recover=undefined"] if sanitizers else []
    files = [*(path for path in sources if path.suffix == ".cpp"), nanobind / "src/nb_combined.cpp"]
    objects: dict[Path, str] = {}
    version = subprocess.run([*compiler, "--version"], capture_output=True, text=True, check=False).stdout
    # Object files also depend on options in `CXX` and on the processor, which the compiler's version does not state.
    way = repr((compiler[1:], version, sysconfig.get_platform(), _FLAGS, sanitizers)).encode()
    with tempfile.TemporaryDirectory() as folder:
        kept = root / "build" / "engine" if os.access(root, os.W_OK) else Path(folder)
        kept.mkdir(parents=True, exist_ok=True)

        def run(arguments: list[str]) -> str | None:
            done = subprocess.run([*compiler, *arguments], capture_output=True, text=True, check=False, cwd=root)
            errors = [line for line in done.stderr.splitlines() if "error" in line] or [f"exit {done.returncode}"]
            return errors[0][:200] if done.returncode else None

        def compiled(path: Path) -> str | None:
            # `zig c++` does not know the suffix .ii. Errors name the original file, because `made` has line markers.
            made = Path(folder, f"{files.index(path)}.cpp")
            if reason := run([*flags, "-E", str(path), "-o", str(made)]):
                return reason
            code = _MARKERS.sub(b"", made.read_bytes())
            object_ = kept / f"{hashlib.sha256(way + code).hexdigest()[:32]}.o"
            objects[path] = str(object_)
            if object_.exists():
                object_.touch()
                return None
            reason = run([*flags, "-c", str(made), "-o", f"{made}.o"])
            if reason is None:
                shutil.copyfile(f"{made}.o", f"{object_}.{os.getpid()}")
                os.replace(f"{object_}.{os.getpid()}", object_)
            return reason

        with ThreadPoolExecutor(os.cpu_count()) as pool:
            longest_first = sorted(files, key=lambda path: path.stat().st_size, reverse=True)
            if reason := next(filter(None, pool.map(compiled, longest_first)), None):
                return reason
        links = ["-Wl,-s", *sanitizers]
        if sys.platform == "darwin":
            links = ["-undefined", "dynamic_lookup"]
        elif sys.platform == "win32":
            links = [f"-L{sys.base_prefix}/libs", f"-lpython{sys.version_info.major}{sys.version_info.minor}"]
        made = f"{folder}/engine"
        reason = run(["-shared", *links, "-o", made, *(objects[path] for path in files), "-pthread"])
        if reason is None:
            target.write_bytes(Path(made).read_bytes())
        for path in kept.iterdir():
            with suppress(FileNotFoundError):  # Another build may rename or delete the file now.
                if path.stat().st_mtime < time.time() - _OBJECTS_S:
                    path.unlink()
    return reason
