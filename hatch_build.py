"""Compiles the prior's core when kernrec is installed or its wheel is made, where a C compiler and Cython are at hand.

Where that fails, `kernrec.model.prior.compiled` takes the same source as plain Python. A wheel
with the core is for one platform and Python; KERNREC_CORE=python in the environment makes one for all of them.

The file is named for the source that it was made of, so that no other source is taken for it.
"""

import os
import runpy
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

FOLDER = Path("kernrec/model/prior")
MODULE = "kernrec.model.prior._core"


class CoreBuildHook(BuildHookInterface[Any]):
    """Puts the compiled core beside its source: in a wheel, or in the checkout of an editable installation."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compiles; `version` is `editable` or `standard`."""
        if self.target_name != "wheel" or os.environ.get("KERNREC_CORE") == "python":
            return
        prior = Path(self.root) / FOLDER
        names = runpy.run_path(str(prior / "compiled.py"), run_name="names")
        name = names["file_name"](prior)
        folder = prior if version == "editable" else Path(tempfile.mkdtemp())
        if not (folder / name).exists() and (reason := compile_core(prior, folder / name)):
            self.app.display_warning(f"the core is not compiled ({reason}); kernrec runs it as Python")
            return
        if version == "editable":
            for other in prior.glob(names["COMPILED"]):
                if other.name.split(".")[1] != name.split(".")[1]:
                    other.unlink(missing_ok=True)
        else:
            build_data["force_include"][str(folder / name)] = str(FOLDER / name)
            build_data["pure_python"] = False
            build_data["infer_tag"] = True


def compile_core(prior: Path, target: Path) -> str | None:
    """Compiles the core of a checkout; why it cannot be, in one line, or None."""
    with tempfile.TemporaryDirectory() as name:
        # In a process of its own: compilers and setuptools print, and end a process as they like.
        done = subprocess.run(
            [sys.executable, __file__, str(prior.absolute()), name],
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


def _compile(prior: Path, folder: Path) -> None:
    """Compiles the core into a folder."""
    from Cython.Build import cythonize
    from setuptools import Distribution, Extension

    # Cython reads functions of single numbers from `elementwise.pxd` where Python imports those of arrays.
    source = (prior / "core.py").read_text(encoding="utf-8")
    imported = "from kernrec.model.prior.elementwise import"
    assert imported in source
    package = folder.joinpath(*FOLDER.parts)
    package.mkdir(parents=True)
    for parent in (package, *package.relative_to(folder).parents):
        (folder / parent / "__init__.py").touch()
    (folder / "__init__.py").unlink()
    (package / "_core.py").write_text(
        source.replace(imported, imported.replace("kernrec", "cython.cimports.kernrec", 1)), encoding="utf-8"
    )
    (package / "_core.pxd").write_bytes((prior / "core.pxd").read_bytes())
    (package / "elementwise.pxd").write_bytes((prior / "elementwise.pxd").read_bytes())
    # Contracted to fused multiply-adds, the same operations would round otherwise than NumPy's.
    flags = [] if sys.platform == "win32" else ["-O2", "-ffp-contract=off", "-fno-math-errno", "-g0"]
    links = ["-s"] if sys.platform == "linux" else []
    extension = Extension(MODULE, [str(FOLDER / "_core.py")], extra_compile_args=flags, extra_link_args=links)
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
    os.chdir(sys.argv[2])
    _compile(Path(sys.argv[1]), Path(sys.argv[2]))
