"""Outcomes of emulated runs on disk: a kernel that did not change costs nothing in the next run of the tests.

The key of a run holds all that its outcome depends on: the sources of the emulator, the PTX, the launches with their
arguments, and every byte of the tensors. `KERNREC_TEST_CACHE` names the folder, by default one in the user's cache;
with `off` every run is executed. A file that cannot be read counts as absent.
"""

import ast
import os
import shutil
import zipfile
import zlib
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import cache
from hashlib import sha256
from io import BytesIO
from pathlib import Path

import numpy as np

import kernrec
from kernrec import paths
from kernrec.ptx import EmulationError
from kernrec.util import engine_file
from kernrec.util.atomic_write import write_whole

_PACKAGE = Path(kernrec.__file__).parent
_LAUNCHING = ("emulated_launch", "tensor_values")
"""Modules of `kernrec.profile` that turn a config's launches into the emulator's."""
_OLD_EMULATORS = 3
"""Emulators whose outcomes stay beside those of the present one."""
_ERROR = "error of the emulator"

Tensors = dict[str, np.ndarray]


@cache
def emulator_hash() -> str:
    """Return a hash of the code that decides how a run comes out, without docstrings and comments of Python code.

    The engine's file is named for its C++ sources.
    """
    launching = (_PACKAGE / "profile" / f"{name}.py" for name in _LAUNCHING)
    digest, engine = sha256(), engine_file.find()
    for path in sorted([*(_PACKAGE / "ptx").rglob("*.py"), *launching]):
        digest.update(f"{path.relative_to(_PACKAGE)}\n{_code(path.read_text(encoding='utf-8'))}\n".encode())
    return sha256(f"{digest.hexdigest()} {engine and engine.name}".encode()).hexdigest()


def _code(source: str) -> str:
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
            node.body = [
                each for each in node.body if not (isinstance(each, ast.Expr) and isinstance(each.value, ast.Constant))
            ]
    return ast.dump(tree)


def run_key(tensors: Mapping[str, np.ndarray], *parts: object) -> str:
    """The key of a run; `parts`: what it depends on beside the emulator and the tensors it begins with."""
    digest = sha256(repr((np.__version__, parts)).encode())
    for name, tensor in sorted(tensors.items()):
        digest.update(repr((name, tensor.dtype, tensor.shape)).encode() + np.ascontiguousarray(tensor).tobytes())
    return digest.hexdigest()


def cached_run(key: str, execute: Callable[[], Tensors]) -> Tensors:
    """The outputs of a run, executed unless its outcome is cached.

    Raises:
        EmulationError: the run ends in this error.
    """
    if (outputs := read(key)) is not None:
        if _ERROR not in outputs:
            return outputs
        raise EmulationError(str(outputs[_ERROR]))
    try:
        outputs = execute()
    except EmulationError as error:
        write(key, {_ERROR: np.array(str(error))})
        raise
    write(key, outputs)
    return outputs


def read(key: str) -> Tensors | None:
    """A cached outcome."""
    with suppress(OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile, zlib.error):
        if (folder := _folder()) is not None:
            with np.load(folder / f"{key}.npz") as file:
                return dict(file)
    return None


def write(key: str, outcome: Tensors) -> None:
    """Keep an outcome, where outcomes are cached."""
    data = BytesIO()
    np.savez_compressed(data, **outcome)  # type: ignore[arg-type]
    with suppress(OSError):
        if (folder := _folder()) is not None:
            write_whole(folder / f"{key}.npz", data.getvalue())


def _folder() -> Path | None:
    """The folder of outcomes of the present emulator, which exists; None: nothing is cached."""
    chosen = os.environ.get("KERNREC_TEST_CACHE")
    if chosen == "off":
        return None
    return _prepared(Path(chosen) if chosen else paths.cache() / "runs-of-tests", emulator_hash()[:16])


@cache
def _prepared(root: Path, emulator: str) -> Path:
    """Makes the folder of an emulator, and deletes those of emulators used longest ago."""
    folder = root / emulator
    with suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
        os.utime(folder)
        others = sorted((f for f in root.iterdir() if f != folder), key=lambda f: f.stat().st_mtime, reverse=True)
        for other in others[_OLD_EMULATORS:]:
            shutil.rmtree(other, ignore_errors=True)
    return folder
