"""Compiles the cores when kernrec is installed or its wheel is made, where a C compiler and Cython are at hand.

A room that has a `core.pxd` has a core. Where compiling fails, `kernrec.util.compiled` takes the same source as plain
Python. A wheel with compiled cores is for one platform and Python; KERNREC_CORE=python in the environment makes one for
all of them.

A file is named for the source that it was made of, so that no other source is taken for it.
"""

import os
import runpy
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

NAMES = Path("kernrec/util/compiled.py")


class CoreBuildHook(BuildHookInterface[Any]):
    """Puts compiled cores beside their sources: in a wheel, or in the checkout of an editable installation."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compiles; `version` is `editable` or `standard`."""
        if self.target_name != "wheel" or os.environ.get("KERNREC_CORE") == "python":
            return
        root = Path(self.root)
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
