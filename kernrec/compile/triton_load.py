"""Load users' modules with Triton functions: import an installed module, or execute a file like an import.

Only worker processes use this module, because it runs user code. Without a GPU, a stand-in replaces Triton's driver:
packages look for a driver on import, and some disable Triton without one.
"""

import ast
import importlib
import linecache
import re
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import lru_cache
from pathlib import Path
from types import ModuleType
from typing import Any

from kernrec.compile.compiled import CompileError
from kernrec.compile.triton_stand_in import stand_in_driver
from kernrec.errors import UsageError, unknown

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
    """Return one of Triton's types as text that `python_value` reads: `tl.bfloat16`."""
    import triton.language as tl

    named = (name for name, other in vars(tl).items() if type(other) is type(value) and other == value)
    return f"tl.{next(named, getattr(value, 'name', value))}"


def python_value(text: str) -> Any:
    """Return the value of a constant in a call or spec.

    Args:
        text: a Python literal, one of Triton's types (`tl.float16`), or a function with `@triton.jit`
            (`package.module:function`, `/path/kernels.py:function`).

    Raises:
        UsageError: the text has another form.
    """
    if match := _FUNCTION.fullmatch(text):
        file = Path(match["file"] or "")
        source = "" if match["module"] else file.read_text(encoding="utf-8")
        return jit_function(module_of(match["module"] or "", source, file.name, file.parent), match["name"])
    if text.startswith("tl."):
        import triton.language

        if (value := getattr(triton.language, text.removeprefix("tl."), None)) is not None:
            return value
    else:
        try:
            return ast.literal_eval(text)
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            pass
    raise UsageError(
        f"{{ python = {text!r:.60} }}: expected a literal such as None, a type such as tl.float16, or module:function"
    )
