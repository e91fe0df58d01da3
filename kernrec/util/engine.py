"""Load the compiled engine (`engine/`)."""

import importlib.util
import os
from fnmatch import fnmatch
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kernrec.errors import KernrecError
from kernrec.util.engine_file import PACKAGE, PATTERN, find

if TYPE_CHECKING:
    query: Any

_REMEDY = "install kernrec again (`pip install .` in a checkout) to compile it"


@cache
def module() -> Any:
    """Return `kernrec._engine`. Raise `KernrecError` if it is missing, or was compiled from other sources."""
    if (path := _find_quickly()) is None:
        other = any(PACKAGE.glob(PATTERN))
        raise KernrecError(f"kernrec's engine is {'of another version' if other else 'not compiled'}: {_REMEDY}")
    spec = importlib.util.spec_from_file_location("kernrec._engine", path)
    assert spec is not None
    assert spec.loader is not None
    try:
        engine = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(engine)
    except ImportError as error:
        raise KernrecError(f"kernrec's engine cannot be loaded ({error!s:.120}): {_REMEDY}") from None
    return engine


def _find_quickly() -> Path | None:
    """Return the result of `find`, cached until a C++ file or compiled engine changes in size or modification time."""
    from kernrec.util.cache import cached

    folders = [folder for folder, _, _ in os.walk(PACKAGE.parent / "engine")]
    if not folders:
        return find()
    entries = [entry for folder in folders for entry in os.scandir(folder)]
    engines = [entry for entry in os.scandir(PACKAGE) if fnmatch(entry.name, PATTERN)]
    states = sorted((entry.path, entry.stat().st_mtime_ns, entry.stat().st_size) for entry in (*entries, *engines))
    facts, _ = cached("engine", repr(states).encode(), lambda: ({"name": path.name if (path := find()) else ""}, {}))
    name = facts["name"]
    # Return only the name of a file in the package, because somebody may have changed the cache.
    return PACKAGE / name if name in [entry.name for entry in engines] else None


def state() -> str:
    """Return one line about the compiler that built the engine, or the reason why the engine is missing."""
    try:
        version = module().COMPILER
        return f"compiled by {'GCC ' * version[0].isdigit()}{version}"
    except KernrecError as error:
        return str(error)


def __getattr__(name: str) -> Any:
    """Load the engine when a module first imports `query`."""
    if name == "query":
        return module().query
    raise AttributeError(name)
