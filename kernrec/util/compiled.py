"""The form in which the arithmetic of a query runs: compiled where there is a core of its source, else as plain Python.

A room whose loops are worth compiling has them in `core.py`, with their types in `core.pxd`; `hatch_build.py` compiles
every such room. The compiled file is named for the source that it was made of. Of another version of kernrec, or of a
source that was edited since, there is none of the expected name; what there is beside it is not loaded, and a line says
so. `hatch_build.py` runs this file for its names, without the package.
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

PACKAGE = Path(__file__).parents[1]
SOURCE, TYPES = "core.py", "*.pxd"
COMPILED = "_core.*"
"""Compiled cores, of any source and for any Python."""
CHOICE = "KERNREC_CORE"
"""Set to `python`, this variable of the environment has kernrec run its cores as Python, and build none."""
_REMEDY = "install kernrec again to build it"
_warned: list[str] = []


def rooms(package: Path = PACKAGE) -> list[Path]:
    """The folders of a package that have a core, in alphabetical order."""
    return sorted(path.parent for path in package.rglob("core.pxd"))


def sources(room: Path) -> list[Path]:
    """The files that the compiled core of a room is made of."""
    return [room / SOURCE, *sorted(room.glob(TYPES))]


def file_name(room: Path) -> str:
    """The name of the compiled core of the sources in a room, for the Python that runs."""
    digest = hashlib.sha256()
    for path in sources(room):
        content = path.read_bytes().replace(b"\r\n", b"\n")
        digest.update(b"%d\n" % len(content) + content)
    return COMPILED.replace("*", digest.hexdigest()[:16] + importlib.machinery.EXTENSION_SUFFIXES[0])


class Core:
    """The functions of a room's `core.py` in the form that runs."""

    def __init__(self, functions: Any, compiled: bool, state: str, warning: str | None = None) -> None:
        self.functions = functions
        self.compiled = compiled
        self.state = state
        """The form, and why, in a line."""
        self.warning = warning

    def rows(self, column: Any) -> Any:
        """An array over rows as the core takes it: as Python with an axis in front of the rows."""
        return column if self.compiled else column[..., None, :]

    def table(self, table: Any) -> Any:
        """An array over pairs of rows, (..., N, T), as the core takes it: as Python with two axes in front of them."""
        return table if self.compiled else table[..., None, None, :, :]


@cache
def core(room: str) -> Core:
    """The core of a room, such as `kernrec.kernel`; a compiled core of other source is named on standard error."""
    chosen = choose(room, PACKAGE.joinpath(*room.split(".")[1:]), os.environ.get(CHOICE))
    if chosen.warning and not _warned:  # one line, also where all are of another version
        _warned.append(chosen.warning)
        print(f"kernrec: {chosen.warning}", file=sys.stderr)
    return chosen


def choose(room: str, folder: Path, choice: str | None) -> Core:
    """The core of a room, compiled in a folder; choice: `python`, or None for the compiled one where there is one."""
    if choice == "python":
        return Core(importlib.import_module(f"{room}.core"), False, f"Python ({CHOICE} is set)")
    path = folder / file_name(folder)
    if path.exists():
        try:
            loader = importlib.machinery.ExtensionFileLoader(f"{room}._core", str(path))
            spec = importlib.util.spec_from_file_location(f"{room}._core", path, loader=loader)
            assert spec is not None
            module = importlib.util.module_from_spec(spec)
            loader.exec_module(module)
        except ImportError as error:
            state = "Python (the compiled core cannot be loaded)"
            reason = f"the compiled core cannot be loaded ({error!s:.120}) and is not used: {_REMEDY}"
        else:
            return Core(module, True, "compiled")
    else:
        suffix = importlib.machinery.EXTENSION_SUFFIXES[0]
        if any(other.name.endswith(suffix) for other in folder.glob(COMPILED)):
            state = "Python (the compiled core is of other source)"
            reason = f"the compiled core in {folder} is of other source than core.py there and is not used: {_REMEDY}"
        else:
            state, reason = f"Python (no compiled core; with a C compiler, {_REMEDY})", None
    return Core(importlib.import_module(f"{room}.core"), False, state, reason)


def state() -> str:
    """The forms of all cores, in a line."""
    states: dict[str, list[str]] = {}
    for room in rooms():
        name = "/".join(room.relative_to(PACKAGE).parts)
        states.setdefault(core("kernrec." + name.replace("/", ".")).state, []).append(name)
    if len(states) == 1:
        return next(iter(states))
    return "; ".join(f"{', '.join(names)}: {state}" for state, names in states.items())
