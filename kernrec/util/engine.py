"""Load the compiled engine (`engine/`)."""

import importlib.util
from functools import cache
from typing import TYPE_CHECKING, Any

from kernrec.errors import KernrecError
from kernrec.util.engine_file import PACKAGE, PATTERN, find

if TYPE_CHECKING:
    query: Any

_REMEDY = "install kernrec again (`pip install .` in a checkout) to compile it"


@cache
def module() -> Any:
    """Return the module `kernrec._engine`. Raise `KernrecError` if it is missing or outdated."""
    if (path := find()) is None:
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


def state() -> str:
    """Return the compiler that built the engine, or the reason why the engine is missing."""
    try:
        version = module().COMPILER
        return f"compiled by {'GCC ' * version[0].isdigit()}{version}"
    except KernrecError as error:
        return str(error)


def __getattr__(name: str) -> Any:
    """Load the engine when another module first uses `engine.query`."""
    if name == "query":
        return module().query
    raise AttributeError(name)
