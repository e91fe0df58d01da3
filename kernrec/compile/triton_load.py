"""Load modules with Triton functions: import an installed module, or execute a file as if it were imported.

This runs user code, so only worker processes use this module. If there is no GPU, a simulated one replaces it while the
module loads, because some packages need a driver for importing.
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
"""Exceptions that show that a text is not a constant. Gluon's layouts raise `AssertionError`."""
_RELATIVE = re.compile(r"^\s*from\s+\.", re.MULTILINE)
_FUNCTION = re.compile(r"(?:(?P<module>[A-Za-z_][\w.]*)|(?P<file>/.*\.py)):(?P<name>[A-Za-z_]\w*)")
"""Matches the name of a function after its module or file: `package.module:function`."""


def module_of(module: str, source: str, name: str, folder: Path | None) -> ModuleType:
    """Import the installed module `module`, or load the source as a module if `module` is empty."""
    if not module:
        return load_module(source, name, folder)
    with _without_gpu(True):
        return importlib.import_module(module)


@contextmanager
def _without_gpu(torch: bool) -> Iterator[None]:
    """Let Triton code, and torch code if `torch` is true, run without a GPU in a `with` block."""
    if torch:
        with suppress(ImportError):
            importlib.import_module("torch")
    with stand_in_driver():
        yield


@lru_cache(maxsize=8)
def load_module(source: str, name: str, folder: Path | None) -> ModuleType:
    """Load the text of the file `name` in `folder` as a Python module."""
    path = str((folder or Path(tempfile.gettempdir(), "kernrec")) / name)
    package, top = _package(folder) if folder is not None and _RELATIVE.search(source) else ("", folder)
    for place in (folder, top):
        if place is not None and str(place) not in sys.path:
            sys.path.insert(0, str(place))
    # Triton reads the source code from `linecache`. The file may differ from `source`.
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
    """Return the name of the package in `folder`, and the folder that contains its outermost package.

    The name is empty if the folder is not a package.
    """
    names: list[str] = []
    while (folder / "__init__.py").is_file():
        names.insert(0, folder.name)
        folder = folder.parent
    return ".".join(names), folder


class _Text:
    """Module loader that lets `inspect` read the module's text without a file."""

    def __init__(self, source: str) -> None:
        self._source = source

    def get_source(self, name: str) -> str:
        return self._source


def jit_function(module: ModuleType, name: str) -> Any:
    """Return a module's `@triton.jit` function without further decorators. Raise `CompileError` if there is none."""
    from triton.runtime.jit import JITFunction

    file = Path(module.__file__ or "").name
    if name not in vars(module):
        functions = [k for k, value in vars(module).items() if hasattr(value, "fn") or isinstance(value, JITFunction)]
        raise CompileError(f"{file}: {unknown('Triton function', name, functions)}")
    function = vars(module)[name]
    for _ in range(16):  # Unwrap the decorators autotune and heuristics.
        if isinstance(function, JITFunction):
            return function
        function = getattr(function, "fn", None)
    raise CompileError(f"{file}: {name} is not a function with @triton.jit")


def type_text(value: Any) -> str:
    """Return a text from which `python_value` restores a Triton type or a Gluon layout."""
    import triton.language as tl

    if is_layout(value):
        texts = (f"{field.name}={type_text(getattr(value, field.name))}" for field in dataclasses.fields(value))
        return f"gl.{type(value).__name__}({', '.join(texts)})"
    if isinstance(value, list | tuple | int | str | NoneType):
        return repr(value)
    named = (name for name, other in vars(tl).items() if type(other) is type(value) and other == value)
    return f"tl.{next(named, getattr(value, 'name', value))}"


def is_layout(value: Any) -> bool:
    return type(value).__module__.startswith("triton.experimental.gluon") and dataclasses.is_dataclass(value)


def python_value(text: str) -> Any:
    """Return the value of a constant.

    Args:
        text: Python literal, Triton type (`tl.float16`), Gluon layout (`gl.BlockedLayout(...)` with keyword arguments),
            or `@triton.jit` function (`package.module:function` or `/path/kernels.py:function`).

    Raises:
        UsageError: the text has another form.
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
    """Return the value of a literal or a Gluon layout. Nothing but constructors of layouts is called."""
    if not isinstance(node, ast.Call):
        return ast.literal_eval(node)
    prefix, _, name = ast.unparse(node.func).partition(".")
    kind = getattr(importlib.import_module("triton.experimental.gluon.language"), name)
    if prefix != "gl" or node.args or not (isinstance(kind, type) and name.endswith("Layout")):
        raise ValueError(f"{ast.unparse(node):.60} is not a tensor layout")
    return kind(**{str(keyword.arg): _literal(keyword.value) for keyword in node.keywords})
