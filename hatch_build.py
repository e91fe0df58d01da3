"""Compiles the engine and the cores when kernrec is installed or its wheel is made, if a compiler is available.

The engine (`engine/`, C++17) is compiled by the system's compiler, or else by the package `ziglang`. Without it,
`kernrec.ptx` runs PTX as Python.

A room that has a `core.pxd` has a core. Where compiling fails, `kernrec.util.compiled` takes the same source as plain
Python. A wheel with compiled cores is for one platform and Python; KERNREC_CORE=python in the environment makes one for
all of them.

A file is named for the source that it was made of, so that no other source is taken for it.
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

NAMES = Path("kernrec/util/compiled.py")
ENGINE_NAMES = Path("kernrec/util/engine_file.py")
_FLAGS = [
    *("-std=c++17", "-O2", "-ftree-vectorize", "-fvect-cost-model=dynamic", "-fPIC", "-fvisibility=hidden"),
    *("-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math", "-fno-strict-aliasing"),
]
"""Contracted to fused multiply-adds, the same operations would round otherwise than the hardware's."""


class CoreBuildHook(BuildHookInterface[Any]):
    """Puts compiled cores beside their sources: in a wheel, or in the checkout of an editable installation."""

    PLUGIN_NAME = "custom"

    def dependencies(self) -> list[str]:
        """Return the packages that compiling needs: a compiler, if the system has none."""
        return [] if system_compiler() or sys.platform == "win32" else ["ziglang"]

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compiles; `version` is `editable` or `standard`."""
        if self.target_name != "wheel" or os.environ.get("KERNREC_CORE") == "python":
            return
        root = Path(self.root)
        self._engine(root, version, build_data)
        names = runpy.run_path(str(root / NAMES), run_name="names")
        for room in names["rooms"](root / "kernrec"):
            name, place = names["file_name"](room), room.relative_to(root)
            folder = room if version == "editable" else Path(tempfile.mkdtemp())
            if not (folder / name).exists() and (reason := compile_core(root, place, folder / name)):
                self.app.display_warning(
                    f"the core of {place.as_posix()} is not compiled ({reason}); it runs as Python"
                )
                continue
            if version == "editable":
                for other in room.glob(names["COMPILED"]):
                    if other.name.split(".")[1] != name.split(".")[1]:
                        other.unlink(missing_ok=True)
            else:
                build_data["force_include"][str(folder / name)] = (place / name).as_posix()
                build_data["pure_python"] = False
                build_data["infer_tag"] = True

    def _engine(self, root: Path, version: str, build_data: dict[str, Any]) -> None:
        """Compile the engine into the wheel, or into the package folder of an editable installation."""
        names, package = runpy.run_path(str(root / ENGINE_NAMES), run_name="names"), root / "kernrec"
        name = names["file_name"](root)
        # A wheel of a checkout takes the engine that its editable installation has.
        made = package / name
        if not made.exists():
            made = made if version == "editable" else Path(tempfile.mkdtemp()) / name
            if reason := compile_engine(root, names["sources"](root), made):
                self.app.display_warning(f"the engine is not compiled ({reason}); PTX runs as Python")
                return
        if version == "editable":
            for other in package.glob(names["PATTERN"]):
                if other.name.split(".")[2:] == name.split(".")[2:] and other.name != name:
                    other.unlink(missing_ok=True)
        else:
            build_data["force_include"][str(made)] = f"kernrec/{name}"
            build_data["pure_python"] = False
            build_data["infer_tag"] = True


def system_compiler() -> list[str] | None:
    """Return the command of the C++ compiler of the system, or None."""
    for name in (os.environ.get("CXX", ""), "c++", "g++", "clang++"):
        if name and shutil.which(name.split()[0]):
            return name.split()
    return None


def compile_engine(root: Path, sources: list[Path], target: Path) -> str | None:
    """Compile the engine, several files at once; return why it cannot be, in one line, or None."""
    if sys.platform == "win32":
        return "no compiler is set up for Windows yet"
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

        def run(arguments: list[str]) -> str | None:
            done = subprocess.run([*compiler, *arguments], capture_output=True, text=True, check=False, cwd=root)
            errors = [line for line in done.stderr.splitlines() if "error" in line] or [f"exit {done.returncode}"]
            return errors[0][:200] if done.returncode else None

        def compiled(path: Path) -> str | None:
            return run([*flags, "-c", str(path), "-o", f"{folder}/{path.stem}.o"])

        with ThreadPoolExecutor(os.cpu_count()) as pool:
            if reason := next(filter(None, pool.map(compiled, files)), None):
                return reason
        links = ["-undefined", "dynamic_lookup"] if sys.platform == "darwin" else ["-Wl,-s"]
        made = f"{folder}/engine"
        reason = run(["-shared", *links, "-o", made, *(f"{folder}/{path.stem}.o" for path in files), "-pthread"])
        if reason is None:
            target.write_bytes(Path(made).read_bytes())
    return reason


def compile_core(root: Path, room: Path, target: Path) -> str | None:
    """Compiles the core of a room of a checkout; why it cannot be, in one line, or None."""
    with tempfile.TemporaryDirectory() as name:
        # In a process of its own: compilers and setuptools print, and end a process as they like.
        done = subprocess.run(
            [sys.executable, __file__, str(root.absolute()), str(room), name],
            capture_output=True,
            text=True,
            check=False,
            cwd=name,
        )
        made = [path for path in Path(name).glob("built/**/_core.*") if path.suffix in (".so", ".pyd")]
        if done.returncode or not made:
            lines = (done.stderr or done.stdout).strip().splitlines() or ["no file was made"]
            return lines[-1][:200]
        target.write_bytes(made[0].read_bytes())
    return None


def _compile(root: Path, room: Path, folder: Path) -> None:
    """Compiles the core of a room into a folder."""
    from Cython.Build import cythonize
    from setuptools import Distribution, Extension

    package = folder / room
    package.mkdir(parents=True)
    for parent in (package, *package.relative_to(folder).parents):
        (folder / parent / "__init__.py").touch()
    (folder / "__init__.py").unlink()
    source, module = (root / room / "core.py").read_text(encoding="utf-8"), ".".join(room.parts)
    for types in (root / room).glob("*.pxd"):
        if types.stem == "core":
            (package / "_core.pxd").write_bytes(types.read_bytes())
            continue
        # Cython reads functions of single numbers from this file where Python imports those of arrays.
        imported = f"from {module}.{types.stem} import"
        assert imported in source
        source = source.replace(imported, imported.replace("kernrec", "cython.cimports.kernrec", 1))
        (package / types.name).write_bytes(types.read_bytes())
    (package / "_core.py").write_text(source, encoding="utf-8")
    # Contracted to fused multiply-adds, the same operations would round otherwise than NumPy's; integers wrap too.
    flags = ["-O3", "-ffp-contract=off", "-fno-math-errno", "-fwrapv", "-g0"] if sys.platform != "win32" else []
    links = ["-s"] if sys.platform == "linux" else []
    extension = Extension(f"{module}._core", [str(room / "_core.py")], extra_compile_args=flags, extra_link_args=links)
    directives = {
        "boundscheck": False, "wraparound": False, "cdivision": True, "initializedcheck": False, "infer_types": True,
        "annotation_typing": False, "language_level": 3,
    }  # fmt: skip
    modules = cythonize([extension], compiler_directives=directives, quiet=True)
    build = Distribution({"name": "core", "ext_modules": modules}).get_command_obj("build_ext")
    build.build_lib = str(folder / "built")
    build.ensure_finalized()
    build.run()


if __name__ == "__main__":
    os.chdir(sys.argv[3])
    _compile(Path(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3]))
