"""Disk cache of emulated runs, keyed by the emulator's sources, the PTX, the launches and the tensors' bytes.
`KERNREC_TEST_CACHE` names the folder (default: in the user's cache). `off` disables it."""

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
from kernrec.util.files import write_whole

_PACKAGE = Path(kernrec.__file__).parent
_LAUNCHING = ("emulated_launch", "tensor_values")
"""Modules of `kernrec.profile` that convert a config's launches for the emulator."""
_OLD_EMULATORS = 3
"""Number of older emulators whose outcomes are kept."""
_ERROR = "error of the emulator"

Tensors = dict[str, np.ndarray]


@cache
def emulator_hash() -> str:
    """Return a hash of the code that determines an outcome. The engine's file name has the hash of the C++ code."""
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
    """Return a hash of all inputs of a run except the emulator."""
    digest = sha256(repr((np.__version__, parts)).encode())
    for name, tensor in sorted(tensors.items()):
        digest.update(repr((name, tensor.dtype, tensor.shape)).encode() + np.ascontiguousarray(tensor).tobytes())
    return digest.hexdigest()


def cached_run(key: str, execute: Callable[[], Tensors]) -> Tensors:
    """Return the outputs of a run from the cache, or execute it. Raises `EmulationError` if it failed."""
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
    with suppress(OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile, zlib.error):
        if (folder := _folder()) is not None:
            with np.load(folder / f"{key}.npz") as file:
                return dict(file)
    return None


def write(key: str, outcome: Tensors) -> None:
    data = BytesIO()
    np.savez_compressed(data, **outcome)  # type: ignore[arg-type]
    with suppress(OSError):
        if (folder := _folder()) is not None:
            write_whole(folder / f"{key}.npz", data.getvalue())


def _folder() -> Path | None:
    """Return the existing folder for the current emulator's outcomes, or None if caching is disabled."""
    chosen = os.environ.get("KERNREC_TEST_CACHE")
    if chosen == "off":
        return None
    return _prepared(Path(chosen) if chosen else paths.cache() / "runs-of-tests", emulator_hash()[:16])


@cache
def _prepared(root: Path, emulator: str) -> Path:
    """Create the folder of an emulator, and delete the least recently used folders of old emulators."""
    folder = root / emulator
    with suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
        os.utime(folder)
        others = sorted((f for f in root.iterdir() if f != folder), key=lambda f: f.stat().st_mtime, reverse=True)
        for other in others[_OLD_EMULATORS:]:
            shutil.rmtree(other, ignore_errors=True)
    return folder
