"""Write captured launches as call files: one TOML file for each distinct launch, with .npy files next to it.

The name of a call file depends only on its content, so that several processes can write to one folder. Existing files
are never overwritten, because the user may have edited them.
"""

import hashlib
import io
import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from kernrec.errors import UsageError, cannot_be
from kernrec.kernel.triton_function import item_names
from kernrec.triton.calls.launch_record import LaunchRecord
from kernrec.util.files import write_whole

PER_FUNCTION = 50
"""Default maximum number of call files per function. A growing sequence would otherwise add a file for each length."""


class CallWriter:
    """Writer of call files for launches of Triton functions.

    Args:
        folder: Folder for the call files. It is created when the first call file is written.
        about: Text of the comment at the top of each call file.
        per_function: Maximum number of call files per function.
    """

    def __init__(self, folder: Path, about: str, per_function: int = PER_FUNCTION) -> None:
        self.folder, self._about, self._per_function = folder, about, per_function
        self.files: list[Path] = []
        """Call files in the order of their first launch, including older files."""
        self.left_out: Counter[str] = Counter()
        """Number of launches of each function that exceeded the limit."""
        self._seen: set[str] = set()
        self._of_function: Counter[str] = Counter()

    def add(self, record: LaunchRecord) -> Path | None:
        """Write a launch to a new call file, and return its path. Return None if the function has too many call files.

        Raises:
            UsageError: The folder cannot be written.
        """
        contents = {name: _npy(array) for name, array in record.contents.items()}
        key = _key(record, contents)
        path = self.folder / f"{record.name}-{key}.toml"
        if key in self._seen:
            return path
        if self._of_function[record.target] >= self._per_function:
            self.left_out[record.target] += 1
            return None
        self._seen.add(key)
        self._of_function[record.target] += 1
        self.files.append(path)
        if not path.exists():
            self._write(path, record, contents)
        return path

    def _write(self, path: Path, record: LaunchRecord, contents: Mapping[str, bytes]) -> None:
        files = {name: f"{name}-{_digest(content)}.npy" for name, content in contents.items()}
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            for name, content in contents.items():
                if not (file := self.folder / files[name]).exists():
                    write_whole(file, content)
            if (generated := record.generated) is not None:
                source = generated.read_bytes()
                file = self.folder / f"{record.name}-{_digest(source)}.py"
                if not file.exists():
                    write_whole(file, source)
                record = replace(record, target=f"{file.name}:{record.name}")
            write_whole(path, call_text(record, files, self._about).encode())
        except OSError as error:
            raise UsageError(cannot_be("written", self.folder, error)) from None


def _npy(array: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, array, allow_pickle=False)
    return buffer.getvalue()


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:10]


def _key(record: LaunchRecord, contents: Mapping[str, bytes]) -> str:
    """Return a hash of a launch without its float arguments, which affect neither code nor addresses."""
    arguments = {name: "float" if type(value) is float else value for name, value in record.arguments.items()}
    digests = {name: _digest(content) for name, content in contents.items()}
    return _digest(json.dumps([record.target, arguments, record.configs, digests], sort_keys=True).encode())


def call_text(record: LaunchRecord, files: Mapping[str, str], about: str) -> str:
    """Return the text of a call file. `files` has the .npy file of each parameter, and `about` is the first comment."""
    lines = [f"# {record.name}, {about}"]
    lines += [f"# left out: {note}" for note in record.notes]
    lines.append(f"function = {_value(record.target)}")
    grids = [config["grid"] for config in record.configs]
    same = all(grid == grids[0] for grid in grids)
    if same:
        lines.append(f"grid = {_value(grids[0])}")
    tables = [{k: v for k, v in config.items() if not (same and k == "grid")} for config in record.configs]
    if any(tables):
        lines += ["configs = [", *(f"    {_value(table)}," for table in tables), "]"]
    lines += ["", "[arguments]"]
    lines += [f"{name} = {_value(_with_file(name, value, files))}" for name, value in record.arguments.items()]
    return "\n".join(lines) + "\n"


def _with_file(name: str, value: Any, files: Mapping[str, str]) -> Any:
    if isinstance(value, list):
        return [_with_file(*item, files) for item in zip(item_names(name, len(value)), value, strict=True)]
    if isinstance(value, Mapping) and "items" in value:
        return {**value, "items": _with_file(name, value["items"], files)}
    return {**value, "values": files[name]} if name in files else value


def _value(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{key} = {_value(item)}" for key, item in value.items()) + " }"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_value, value)) + "]"
    if isinstance(value, float):
        return repr(value)
    return json.dumps(value, ensure_ascii=True)
