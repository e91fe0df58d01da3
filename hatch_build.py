"""Compiles the engine (`engine/`, C++17) when kernrec is installed or its wheel is made.

The system's compiler compiles it, or else the package `ziglang`. Without an engine kernrec answers nothing, so the
build fails if it cannot be compiled. The engine's file is named for the sources that it was made from, so that an
engine of other sources is never loaded.
"""

import importlib.util
import os
import runpy
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

NAMES = Path("kernrec/util/engine_file.py")
_FLAGS = [
    *("-std=c++17", "-O2", "-ftree-vectorize", "-fvect-cost-model=dynamic", "-fvisibility=hidden"),
    *(() if sys.platform == "win32" else ("-fPIC",)),
    *("-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math", "-fno-strict-aliasing"),
]
"""Contracted to fused multiply-adds, the same operations would round otherwise than the hardware's."""


class EngineBuildHook(BuildHookInterface[Any]):
    """Puts the engine into a wheel, or into the package folder of an editable installation."""

    PLUGIN_NAME = "custom"

    def dependencies(self) -> list[str]:
        """Return the packages that compiling needs: a compiler, if the system has none."""
        return [] if system_compiler() else ["ziglang"]

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile the engine; `version` is `editable` or `standard`."""
        if self.target_name != "wheel":
            return
        root = Path(self.root)
        names, package = runpy.run_path(str(root / NAMES), run_name="names"), root / "kernrec"
        name = names["file_name"](root)
        # A wheel of a checkout takes the engine that its editable installation has.
        made = package / name
        if not made.exists():
            made = made if version == "editable" else Path(tempfile.mkdtemp()) / name
            if reason := compile_engine(root, names["sources"](root), made):
                self.app.abort(f"kernrec's engine cannot be compiled: {reason}")
        if version == "editable":
            for other in package.glob(names["PATTERN"]):
                if other.name.split(".")[2:] == name.split(".")[2:] and other.name != name:
                    other.unlink(missing_ok=True)
        else:
            build_data["force_include"][str(made)] = f"kernrec/{name}"
            build_data["pure_python"] = False
            build_data["infer_tag"] = True


def system_compiler() -> list[str] | None:
    """Return the command of the C++ compiler of the system, or None; on Windows `ziglang` compiles."""
    if sys.platform == "win32":
        return None
    for name in (os.environ.get("CXX", ""), "c++", "g++", "clang++"):
        if name and shutil.which(name.split()[0]):
            return name.split()
    return None


def compile_engine(root: Path, sources: list[Path], target: Path) -> str | None:
    """Compile the engine, several files at once; return why it cannot be, in one line, or None."""
    compiler = system_compiler()
    if compiler is None and importlib.util.find_spec("ziglang"):
        compiler = [sys.executable, "-m", "ziglang", "c++"]
    if compiler is None:
        return "no C++ compiler; set CXX, or install the package ziglang"
    if not (spec := importlib.util.find_spec("nanobind")) or spec.origin is None:
        return "the package nanobind is not installed"
    nanobind = Path(spec.origin).parent
    includes = [nanobind / "include", nanobind / "ext/robin_map/include", Path(sysconfig.get_paths()["include"])]
    flags = [*_FLAGS, *(f"-I{folder}" for folder in includes)]
    files = [*(path for path in sources if path.suffix == ".cpp"), nanobind / "src/nb_combined.cpp"]
    with tempfile.TemporaryDirectory() as folder:
        objects = {path: f"{folder}/{number}.o" for number, path in enumerate(files)}

        def run(arguments: list[str]) -> str | None:
            done = subprocess.run([*compiler, *arguments], capture_output=True, text=True, check=False, cwd=root)
            errors = [line for line in done.stderr.splitlines() if "error" in line] or [f"exit {done.returncode}"]
            return errors[0][:200] if done.returncode else None

        def compiled(path: Path) -> str | None:
            return run([*flags, "-c", str(path), "-o", objects[path]])

        with ThreadPoolExecutor(os.cpu_count()) as pool:
            if reason := next(filter(None, pool.map(compiled, files)), None):
                return reason
        links = ["-Wl,-s"]
        if sys.platform == "darwin":
            links = ["-undefined", "dynamic_lookup"]
        elif sys.platform == "win32":
            links = [f"-L{sys.base_prefix}/libs", f"-lpython{sys.version_info.major}{sys.version_info.minor}"]
        made = f"{folder}/engine"
        reason = run(["-shared", *links, "-o", made, *objects.values(), "-pthread"])
        if reason is None:
            target.write_bytes(Path(made).read_bytes())
    return reason
