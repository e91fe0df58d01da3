"""The form in which the prior's arithmetic runs: compiled where there is a core of its source, else as plain Python.

The compiled file is named for the source that it was made of. Of another version of kernrec, or of a source that was
edited since, there is none of the expected name; what there is beside it is not loaded, and a line says so.
`hatch_build.py` runs this file for its names, without the package.
"""

import hashlib
import importlib
import importlib.machinery
import importlib.util
import os
import sys
from functools import cache
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent
SOURCES = ("core.py", "core.pxd", "elementwise.pxd")
COMPILED = "_core.*"
"""Compiled cores, of any source and for any Python."""
CHOICE = "KERNREC_CORE"
"""Set to `python`, this variable of the environment has kernrec run the core as Python, and build none."""
_MODULE = "kernrec.model.prior._core"
_REMEDY = "install kernrec again to build it"


def source_hash(folder: Path) -> str:
    """A hash of the core's sources in a folder."""
    digest = hashlib.sha256()
    for name in SOURCES:
        content = (folder / name).read_bytes().replace(b"\r\n", b"\n")
        digest.update(b"%d\n" % len(content) + content)
    return digest.hexdigest()[:16]


def file_name(folder: Path = FOLDER) -> str:
    """The name of the compiled core of the sources in a folder, for the Python that runs."""
    return COMPILED.replace("*", source_hash(folder) + importlib.machinery.EXTENSION_SUFFIXES[0])


class Core:
    """The functions of `core.py` in the form that runs."""

    def __init__(self, module: Any, compiled: bool, state: str, warning: str | None = None) -> None:
        self.launch_times = module.launch_times
        self.dram_traffic = module.dram_traffic
        self.limited_costs = module.limited_costs
        self.go_down = module.go_down
        self.compiled = compiled
        self.state = state
        """The form, and why, in a line."""
        self.warning = warning

    def launches(self, column: Any) -> Any:
        """An array over launches as the core takes it: as Python with an axis in front of the launches."""
        return column if self.compiled else column[..., None, :]


@cache
def core() -> Core:
    """The core that runs; a compiled core of other source is named on standard error."""
    chosen = choose(FOLDER, os.environ.get(CHOICE))
    if chosen.warning:
        print(f"kernrec: {chosen.warning}", file=sys.stderr)
    return chosen


def choose(folder: Path, choice: str | None) -> Core:
    """The core of a folder; choice: `python`, or None for the compiled one where there is one."""
    plain = importlib.import_module("kernrec.model.prior.core")
    if choice == "python":
        return Core(plain, False, f"Python ({CHOICE} is set)")
    path = folder / file_name(folder)
    if path.exists():
        try:
            loader = importlib.machinery.ExtensionFileLoader(_MODULE, str(path))
            spec = importlib.util.spec_from_file_location(_MODULE, path, loader=loader)
            assert spec is not None
            module = importlib.util.module_from_spec(spec)
            loader.exec_module(module)
        except ImportError as error:
            reason = f"the compiled core cannot be loaded ({error!s:.120}) and is not used: {_REMEDY}"
            return Core(plain, False, "Python (the compiled core cannot be loaded)", reason)
        return Core(module, True, "compiled")
    suffix = importlib.machinery.EXTENSION_SUFFIXES[0]
    if any(other.name.endswith(suffix) for other in folder.glob(COMPILED)):
        reason = f"the compiled core in {folder} is of other source than core.py there and is not used: {_REMEDY}"
        return Core(plain, False, "Python (the compiled core is of other source)", reason)
    return Core(plain, False, f"Python (no compiled core; with a C compiler, {_REMEDY})")
