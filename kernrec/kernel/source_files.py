"""Read a kernel's source files and compiler flags, and hash the kernel."""

import hashlib
import io
import json
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field
from functools import cache
from itertools import islice, takewhile
from pathlib import Path
from typing import Any

from kernrec.errors import UsageError, cannot_be
from kernrec.util.files import open_input, read_input
from kernrec.util.light_dataclass import dataclass

_INCLUDE = re.compile(
    r'^[ \t]*#[ \t]*include[ \t]*["<]([\w./+-]+)[">][ \t]*(?://[^\n]*|/\*(?:(?!\*/)[^\n])*\*/[ \t]*)?$', re.MULTILINE
)
_MOST_FILES = 256
_MOST_SEARCHED_FOLDERS = 4_000
_PROJECT_MARKS = (".git", ".hg")
"""Folders of version control, which mark the root of a project."""
_LAUNCHES = re.compile(r"<<<|\bmain\s*\(")
_REPAIRS = (
    (re.compile(r"<<[ \t]+<(?![<=])"), "<<<"),
    (re.compile(r">>[ \t]+>(?=\s*\()"), ">>>"),
    (re.compile(r"\\[ \t]+(?=\r?\n)"), r"\\"),
)
"""Replacements for text that only nvcc accepts, such as blanks in `f<< <1, 32> >>()` and after a backslash."""


def read_source(path: Path, include: Sequence[str] = (), instance: str | None = None, whole: bool = False) -> str:
    """Return the device code of a source file with its headers inserted.

    Headers are searched in the file's folder, its parent, and the folders `include`. `instance` is the launched
    instance of a template, such as `scale<float, 4>`. If `whole` is true, host code is kept.

    Raises:
        KernrecError: the source has host code, and tree-sitter is not installed.
    """
    from kernrec.kernel.cuda_program import device_code  # Import late: a query reads cached sources.

    text = whole_source(path, include)
    return text if whole else device_code(text, instance).text


def whole_source(path: Path, include: Sequence[str] = ()) -> str:
    """Return a source with its host code, and with each of its own headers inserted once."""
    return "".join(text for text, _, _ in _pieces(path, include))


def line_origins(path: Path, include: Sequence[str] = ()) -> list[tuple[str, int]]:
    """Return the file and line number of each line of `whole_source`."""
    origins: list[tuple[str, int]] = []
    begins = True
    for text, file, first in _pieces(path, include):
        lines = text.count("\n")
        origins += [(file, first + number) for number in range(0 if begins else 1, lines + 1)]
        if not text:
            continue
        begins = text.endswith("\n")
        if begins:  # The text after the last line break belongs to the next piece.
            origins.pop()
    return origins


def _pieces(path: Path, include: Sequence[str]) -> list[tuple[str, str, int]]:
    """Return a source with inserted headers as pieces of text, each with its file and first line number."""
    parent = path.absolute().parent.parent
    roots = [path.parent, parent, *(path.parent / folder for folder in include)]
    pieces: list[tuple[str, str, int]] = []
    _inline(path, roots, set(), pieces)
    return pieces


def _inline(
    path: Path, roots: Sequence[Path], seen: set[Path], pieces: list[tuple[str, str, int]], host_code: bool = False
) -> None:
    """Append the pieces of a file and of its headers to `pieces`. Skip headers in `seen`."""
    from kernrec.kernel.cuda_program import DEVICE_HEADER, TOOLKIT_HEADER

    place = f"{path.parent.name}/{path.name}" if path.parent.name else path.name
    text, start, line = _read_program(path, place), 0, 1  # Raise an error if the path cannot be resolved.
    seen.add(path.resolve())
    if len(seen) > _MOST_FILES:
        raise UsageError(f"{place}: more than {_MOST_FILES} headers are included")

    @cache
    def readable() -> list[Path]:
        return [each.resolve() for each in (path.parent, *roots, _project_root(path.parent)) if each is not None]

    def header_of(include: re.Match[str]) -> Path | None:
        quoted = '"' in include[0]
        folders = (path.parent, *roots) if quoted else roots[2:]
        header = next((folder / include[1] for folder in folders if (folder / include[1]).is_file()), None)
        if header is None:
            name = include[1]
            is_own = "." in name and not (TOOLKIT_HEADER.match(name) or DEVICE_HEADER.match(name))
            header = _project_header(roots[0], name) if is_own and ".." not in name else None
            if header is None and quoted and is_own and not host_code:
                raise UsageError(
                    f"{place}: includes {name!r}, which is neither in its folder nor in the folder above; name its"
                    " folder with --include"
                )
            return header
        if not any(header.resolve().is_relative_to(folder) for folder in readable()):
            raise UsageError(
                f"{place}: {include[1]!r} is in a folder that kernrec does not read; name it with --include"
            )
        return header

    host_code = host_code or _LAUNCHES.search(text) is not None
    for include in _INCLUDE.finditer(text):
        if (header := header_of(include)) is None:
            continue
        pieces.append((text[start : include.start()], path.name, line))
        line += text.count("\n", start, include.end())
        start = include.end()
        if header.resolve() not in seen:
            _inline(header, roots, seen, pieces, host_code)
    pieces.append((text[start:], path.name, line))


def _read_program(path: Path, place: str) -> str:
    text = read_text(path, place, errors="replace").removeprefix("\ufeff")
    for pattern, repaired in _REPAIRS:
        text = pattern.sub(repaired, text)
    return text


def _project_root(folder: Path) -> Path | None:
    """Return the root folder of a project, at most four folders up, but never the home folder or `/`."""
    near = [folder.absolute(), *folder.absolute().parents][:5]
    inner = takewhile(lambda base: base not in (Path.home(), Path(base.anchor)), near)
    return next((base for base in inner if any((base / mark).exists() for mark in _PROJECT_MARKS)), None)


def _project_header(folder: Path, name: str) -> Path | None:
    if (root := _project_root(folder)) is None:
        return None
    near = [folder.absolute(), *folder.absolute().parents]
    for base in near[: near.index(root) + 1]:
        for pattern in ("", "*/", "*/*/"):
            folders = [base] if not pattern else islice(base.glob(pattern), _MOST_SEARCHED_FOLDERS)
            headers = [each / name for each in folders if (each / name).is_file()]
            headers = [each for each in headers if each.resolve().is_relative_to(root.resolve())]
            if headers:
                return headers[0] if len({_read_program(each, name) for each in headers}) == 1 else None
    return None


def fingerprint(data: dict[str, Any], folder: Path, place: str) -> None:
    """Add digests of tensor files to the spec `data`, so that the kernel's hash depends on the tensors' values."""
    problem = data.get("problem")
    tensors = problem.get("tensors") if isinstance(problem, dict) else None
    for name, tensor in tensors.items() if isinstance(tensors, dict) else ():
        for key, digest in (("values", "digest"), ("reference", "reference_digest")):
            file = tensor.get(key) if isinstance(tensor, dict) else None
            if isinstance(file, str) and (file.endswith(".npy") or file.startswith("raw ")):
                try:
                    with open_input(folder / file.removeprefix("raw ")) as opened:
                        digested = hashlib.file_digest(opened, "sha256").hexdigest()
                except OSError as error:
                    there = f"{place}: [problem]: tensors.{name}: {file}"
                    raise UsageError(cannot_be("read", there, error)) from None
                tensor[digest] = digested[:16]


def read_text(path: Path, place: str, most_bytes: int = 1 << 20, errors: str = "strict") -> str:
    """Return the text of a file of at most `most_bytes` bytes.

    Args:
        place: name of the file in messages.
        errors: handling of bytes that are not UTF-8, as in `bytes.decode`.
    """
    try:
        text = io.TextIOWrapper(io.BytesIO(read_input(path, most_bytes, place)), encoding="utf-8", errors=errors).read()
    except OSError as error:
        raise UsageError(cannot_be("read", place, error)) from None
    except UnicodeDecodeError:
        raise UsageError(f"{place}: not UTF-8 text") from None
    if "\0" in text:
        raise UsageError(f"{place}: not text: it contains a NUL byte")
    return text


def kernel_hash(data: Mapping[str, Any], source: str) -> str:
    """Return a hash (16 hex digits) of a kernel's spec and source.

    Descriptions in the spec do not affect it. A Triton cache key in the spec replaces the source.
    """
    spec = {key: value for key, value in data.items() if key != "description"}
    spec["tunables"] = [
        [name, {key: value for key, value in table.items() if key != "meaning"}]
        for name, table in data.get("tunables", {}).items()
    ]
    function = spec.get("triton")
    keyed = isinstance(function, dict) and function.get("key")
    canonical = json.dumps([spec, "" if keyed else source], sort_keys=True, default=str)
    return hashlib.sha256(canonical.encode()).hexdigest()[:16]


def read_toml(path: Path, place: str) -> dict[str, Any]:
    import tomllib

    try:
        return tomllib.loads(read_text(path, place))
    # `tomllib` raises TOMLDecodeError, and also ValueError for an integer with thousands of digits.
    except ValueError as error:
        raise UsageError(f"{place}: not TOML: {error}") from None
    except RecursionError:
        raise UsageError(f"{place}: not TOML: nested too deeply") from None


_DATABASE = "compile_commands.json"
_STANDARD = re.compile(r"--?std=((?:c|gnu)\+\+\d\w)")
_FAST_MATH = re.compile(r"--?use_fast_math")
OPTION = re.compile(rf"{_STANDARD.pattern}|{_FAST_MATH.pattern}")
"""Matches compiler options that change the generated code."""
_LARGEST = 64 << 20


@dataclass(frozen=True)
class CompileFlags:
    """Macros, options and header folders for compiling a source."""

    defines: dict[str, str] = field(default_factory=dict)
    options: tuple[str, ...] = ()
    """Options such as `-std=c++20` and `-use_fast_math`."""
    include: tuple[str, ...] = ()
    note: str = ""
    """Note on flags that the user did not state. It may be empty."""


def compile_flags(source: Path, stated: Iterable[str], include: Iterable[Path]) -> CompileFlags:
    """Return the compiler flags of a CUDA file: the user's flags, then the file's flags in `compile_commands.json`.

    Raises:
        UsageError: a macro or option is malformed.
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
    note = f"flags of {_DATABASE}" if any((listed.defines, listed.options, listed.include)) else ""
    all_options = _once([*options, *listed.options])
    return CompileFlags(listed.defines | defines, all_options, (*folders, *listed.include), note)


def _once(options: Sequence[str]) -> tuple[str, ...]:
    """Keep at most one `-std` and one fast-math option, in a spelling that NVRTC and nvcc accept."""
    standard = next((f"-std={match[1]}" for each in options if (match := _STANDARD.fullmatch(each))), None)
    fast = any(_FAST_MATH.fullmatch(each) for each in options)
    return (*([standard] if standard else []), *(["-use_fast_math"] if fast else []))


def _listed(database: Path, source: Path) -> CompileFlags | None:
    """Return the flags of a source in a `compile_commands.json`, or None."""
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
            # Skip folders of the CUDA toolkit, because compilers find them.
            is_toolkit = (path / "cuda_runtime.h").is_file()
            if str(path).isprintable() and not is_toolkit:
                include.append(str(path))
    return CompileFlags(defines, tuple(options), tuple(include))
