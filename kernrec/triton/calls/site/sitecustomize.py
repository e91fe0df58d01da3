"""Start a capture in a Python program as soon as it imports Triton or torch.

`kernrec capture` puts this folder on the module path of the captured command, so that Python loads this file at start.
This file then loads the environment's own `sitecustomize`. kernrec is imported only after Triton or torch.

`kernrec capture` also sets environment variables: KERNREC_CAPTURE (folder for call files), KERNREC_CAPTURE_GPU and
KERNREC_CAPTURE_PER_FUNCTION.
"""

import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

_HERE = str(Path(__file__).resolve().parent)
_WATCHED = ("triton", "torch")


class LibraryWatcher(importlib.abc.MetaPathFinder):
    """Import hook that starts the capture after the program imports Triton or torch."""

    def __init__(self) -> None:
        self._looking = False

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Return an import spec of Triton or torch that starts the capture, or None for other modules."""
        if name not in _WATCHED or self._looking:
            return None
        self._looking = True
        try:
            spec = importlib.util.find_spec(name)
        finally:
            self._looking = False
        if spec is None or spec.loader is None:
            return spec
        execute = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            execute(module)
            vars(spec)["_initializing"] = False  # `_loaded` needs a finished module.
            _loaded()

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def _loaded() -> None:
    try:
        from kernrec.triton.calls.hooks import library_loaded
    except ImportError as error:
        print(f"kernrec capture: {sys.executable} has no kernrec, install it there ({error})", file=sys.stderr)
        return
    library_loaded()


if os.environ.get("KERNREC_CAPTURE"):
    sys.meta_path.insert(0, LibraryWatcher())

_others = [folder for folder in sys.path if str(Path(folder or ".").resolve()) != _HERE]
_spec = importlib.machinery.PathFinder.find_spec("sitecustomize", _others)
if _spec is not None and _spec.loader is not None:
    _spec.loader.exec_module(importlib.util.module_from_spec(_spec))
