"""Load users' modules with Triton functions: import an installed module, or execute a file like an import.

Only worker processes use this module, because it runs user code. Without a GPU, a stand-in replaces Triton's driver:
packages look for a driver on import, and some disable Triton without one.
"""

import ast
import dataclasses
import importlib
import linecache
import re
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import lru_cache
from pathlib import Path
from types import ModuleType, NoneType
from typing import Any

from kernrec.compile.compiled import CompileError
from kernrec.compile.gpu_stand_in import stand_in_driver
from kernrec.errors import UsageError, unknown

_NO_VALUE = (
    ValueError, SyntaxError, TypeError, AttributeError, AssertionError, ImportError, MemoryError, RecursionError,
)  # fmt: skip
"""Errors of a text that is no constant. A layout checks its own arguments by assertions."""
_RELATIVE = re.compile(r"^\s*from\s+\.", re.MULTILINE)
"""Matches an import from a module's own package."""
_FUNCTION = re.compile(r"(?:(?P<module>[A-Za-z_][\w.]*)|(?P<file>/.*\.py)):(?P<name>[A-Za-z_]\w*)")
"""Matches a function of a module or file."""


def module_of(module: str, source: str, name: str, folder: Path | None) -> ModuleType:
    """Import the installed module `module`; if the name is empty, load the source like `load_module`."""
    if not module:
        return load_module(source, name, folder)
    with _without_gpu(True):
        return importlib.import_module(module)


@contextmanager
def _without_gpu(torch: bool) -> Iterator[None]:
    """While the `with` block runs, let Triton report a GPU if there is none; if `torch`, load torch and let it do the
    same.
    """
    if torch:
        with suppress(ImportError):
            importlib.import_module("torch")
    with stand_in_driver():
        yield


@lru_cache(maxsize=8)
def load_module(source: str, name: str, folder: Path | None) -> ModuleType:
    """Load the module of a Python source that was read from the file `name` in `folder`."""
    path = str((folder or Path(tempfile.gettempdir(), "kernrec")) / name)
    package, top = _package(folder) if folder is not None and _RELATIVE.search(source) else ("", folder)
    for place in (folder, top):
        if place is not None and str(place) not in sys.path:
            sys.path.insert(0, str(place))
    # Triton reads functions through `linecache`, so give it the text: the file may have changed.
    linecache.cache[path] = (len(source), None, source.splitlines(keepends=True), path)
    module = ModuleType(f"{package}.{Path(name).stem}" if package else Path(name).stem)
    module.__file__ = path
    module.__package__ = package
    if package:
        importlib.import_module(package)
    module.__loader__ = _Text(source)  # type: ignore[assignment]
    before = sys.modules.get(module.__name__)
    sys.modules[module.__name__] = module
    try:
        with _without_gpu("torch" in source):
            exec(compile(source, path, "exec"), module.__dict__)
    except BaseException:
        sys.modules.pop(module.__name__)
        if before is not None:
            sys.modules[module.__name__] = before
        raise
    return module


def _package(folder: Path) -> tuple[str, Path]:
    """Return (package name of a folder or empty, parent of the package's outermost folder)."""
    names: list[str] = []
    while (folder / "__init__.py").is_file():
        names.insert(0, folder.name)
        folder = folder.parent
    return ".".join(names), folder


class _Text:
    """Loader that holds its module's text, so that `inspect` accepts a module without a file."""

    def __init__(self, source: str) -> None:
        self._source = source

    def get_source(self, name: str) -> str:
        return self._source


def jit_function(module: ModuleType, name: str) -> Any:
    """Return the `@triton.jit` function `name` of a module, without its other decorators.

    Raises:
        CompileError: the module has no such function, or the function lacks `@triton.jit`.
    """
    from triton.runtime.jit import JITFunction

    file = Path(module.__file__ or "").name
    if name not in vars(module):
        functions = [k for k, value in vars(module).items() if hasattr(value, "fn") or isinstance(value, JITFunction)]
        raise CompileError(f"{file}: {unknown('Triton function', name, functions)}")
    function = vars(module)[name]
    for _ in range(16):  # unwrap autotune and heuristics
        if isinstance(function, JITFunction):
            return function
        function = getattr(function, "fn", None)
    raise CompileError(f"{file}: {name} is not a function with @triton.jit")


def type_text(value: Any) -> str:
    """Return the text that `python_value` reads as a type of Triton (`tl.bfloat16`) or a layout of Gluon."""
    import triton.language as tl

    if is_layout(value):
        texts = (f"{field.name}={type_text(getattr(value, field.name))}" for field in dataclasses.fields(value))
        return f"gl.{type(value).__name__}({', '.join(texts)})"
    if isinstance(value, list | tuple | int | str | NoneType):
        return repr(value)
    named = (name for name, other in vars(tl).items() if type(other) is type(value) and other == value)
    return f"tl.{next(named, getattr(value, 'name', value))}"


def is_layout(value: Any) -> bool:
    """Return whether a constant is a layout of Gluon, such as `BlockedLayout`."""
    return type(value).__module__.startswith("triton.experimental.gluon") and dataclasses.is_dataclass(value)


def python_value(text: str) -> Any:
    """Return the value of a constant from its text in a call or a spec.

    Args:
        text: A Python literal, a type of Triton (`tl.float16`), a layout of Gluon (`gl.BlockedLayout(...)` with
            keywords), or a function with `@triton.jit` (`package.module:function`, `/path/kernels.py:function`).

    Raises:
        UsageError: The text is none of these.
    """
    if match := _FUNCTION.fullmatch(text):
        file = Path(match["file"] or "")
        source = "" if match["module"] else file.read_text(encoding="utf-8")
        return jit_function(module_of(match["module"] or "", source, file.name, file.parent), match["name"])
    with suppress(*_NO_VALUE):
        if text.startswith("tl."):
            return getattr(importlib.import_module("triton.language"), text.removeprefix("tl."))
        return _literal(ast.parse(text, mode="eval").body)
    raise UsageError(
        f"{{ python = {text!r:.60} }}: expected a literal such as None, a type such as tl.float16, or module:function"
    )


def _literal(node: ast.expr) -> Any:
    """Return the value of a literal or a layout. Only classes of Gluon's layouts are called."""
    if not isinstance(node, ast.Call):
        return ast.literal_eval(node)
    prefix, _, name = ast.unparse(node.func).partition(".")
    kind = getattr(importlib.import_module("triton.experimental.gluon.language"), name)
    if prefix != "gl" or node.args or not (isinstance(kind, type) and name.endswith("Layout")):
        raise ValueError(f"{ast.unparse(node):.60} is not a tensor layout")
    return kind(**{str(keyword.arg): _literal(keyword.value) for keyword in node.keywords})
