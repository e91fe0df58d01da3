"""Collect a CUDA file's compiler flags from the command line and from a `compile_commands.json`."""

import json
import re
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import field
from pathlib import Path

from kernrec.errors import UsageError
from kernrec.util.light_dataclass import dataclass

_DATABASE = "compile_commands.json"
_STANDARD = re.compile(r"--?std=((?:c|gnu)\+\+\d\w)")
_FAST_MATH = re.compile(r"--?use_fast_math")
OPTION = re.compile(rf"{_STANDARD.pattern}|{_FAST_MATH.pattern}")
"""An option of NVRTC and nvcc that changes the code."""
_LARGEST = 64 << 20


@dataclass(frozen=True)
class CompileFlags:
    """Macros, options of NVRTC and nvcc, and folders with headers."""

    defines: dict[str, str] = field(default_factory=dict)
    options: tuple[str, ...] = ()
    """`-std=c++20` and `-use_fast_math`."""
    include: tuple[str, ...] = ()
    note: str = ""
    """Origin of flags that the user did not pass; empty if there are none."""


def compile_flags(source: Path, stated: Iterable[str], include: Iterable[Path]) -> CompileFlags:
    """Return the flags of a CUDA file: the user's, then those of its `compile_commands.json`.

    Args:
        source: The file.
        stated: Macros `NAME=VALUE`, and options such as `-std=c++20`.
        include: Folders with headers.

    Raises:
        UsageError: A macro or option is malformed.
    """
    defines, options = {}, []
    for text in stated:
        if OPTION.fullmatch(text):
            options.append(text)
            continue
        name, _, value = text.partition("=")
        if not (name.isidentifier() and name.isascii()):
            raise UsageError(f"-D {text!r:.60}: expected NAME=VALUE")
        defines[name] = value or "1"
    folders = [str(folder.absolute()) for folder in include]
    database = next((each / _DATABASE for each in source.absolute().parents if (each / _DATABASE).is_file()), None)
    listed = _listed(database, source) if database is not None else None
    if listed is None:
        return CompileFlags(defines, _once(options), tuple(folders))
    flags = CompileFlags(
        listed.defines | defines,
        _once([*options, *listed.options]),
        (*folders, *listed.include),
    )
    used = any((listed.defines, listed.options, listed.include))
    return CompileFlags(flags.defines, flags.options, flags.include, f"flags of {_DATABASE}" if used else "")


def _once(options: Sequence[str]) -> tuple[str, ...]:
    """Keep at most one `-std` and one fast-math option, in a spelling that both NVRTC and nvcc accept."""
    standard = next((f"-std={match[1]}" for each in options if (match := _STANDARD.fullmatch(each))), None)
    fast = any(_FAST_MATH.fullmatch(each) for each in options)
    return (*([standard] if standard else []), *(["-use_fast_math"] if fast else []))


def _listed(database: Path, source: Path) -> CompileFlags | None:
    """Return the flags that a compilation database has for a file; None if it cannot be read or lacks the file."""
    try:
        if database.stat().st_size > _LARGEST:
            return None
        entries = json.loads(database.read_text(encoding="utf-8"))
        for entry in entries:
            folder = Path(entry["directory"])
            if (folder / entry["file"]).resolve() == source.resolve():
                words = entry.get("arguments") or shlex.split(entry["command"])
                return _flags_of([str(word) for word in words], folder)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None
    return None


def _flags_of(words: Sequence[str], folder: Path) -> CompileFlags:
    defines: dict[str, str] = {}
    options, include = [], []
    for word, following in zip(words, [*words[1:], ""], strict=True):
        if OPTION.fullmatch(word):
            options.append(word)
        elif word.startswith("-D"):
            name, _, value = (word[2:] or following).partition("=")
            if name.isidentifier() and name.isascii() and value.replace("\t", " ").isprintable():
                defines[name] = value or "1"
        elif word.startswith("-I"):
            path = folder / (word[2:] or following)
            is_toolkit = (path / "cuda_runtime.h").is_file()  # Skip the toolkit: compilers find it.
            if str(path).isprintable() and not is_toolkit:
                include.append(str(path))
    return CompileFlags(defines, tuple(options), tuple(include))
