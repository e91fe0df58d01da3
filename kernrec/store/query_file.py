"""Cache everything that queries read from a database in a memory-mapped cache file.

Importing DuckDB and opening a database takes longer than the rest of a query. The cache file holds the measured costs
and failures for each GPU and problem, the static profiles, and the analyzed kernels.

An entry may be empty at first, because deriving all entries from 1,000,000 rows takes several seconds. The first query
that needs an empty entry derives it. The file is written again if the database has changed or the file is damaged. If
no file can be written, the entries stay in memory.

The cache file of the user's own database is called `NAME.query` and is beside the database. The cache files of all
other databases are in the cache folder.
"""

import json
import mmap
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import replace
from datetime import datetime
from functools import cache
from hashlib import blake2b, sha256
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from kernrec import paths
from kernrec.errors import UsageError
from kernrec.store import measurement_log
from kernrec.store.connection import is_open
from kernrec.store.marks import Mark, file_state, inode_of, is_own, mark_path, read_mark
from kernrec.store.measurement_log import RETRACTED, MeasurementLog
from kernrec.store.profiles import ProfileTable, arrays_of_tables, tables_of_arrays
from kernrec.util.array_file import mapped, pack, unpack
from kernrec.util.cache import CacheEntry
from kernrec.util.files import write_whole

if TYPE_CHECKING:
    from kernrec.store.queries import DatabaseQueries

    Opener = Callable[[Path], AbstractContextManager[DatabaseQueries]]

_FORM = 2
_TOGETHER = 20_000
"""Maximum number of rows of the entries that are filled together. Filling takes up to half a second."""
_TAIL = 8
"""Bytes at the end of the file that hold the length of the index."""
_INDEX = ("keys", "starts", "stops")
"""Arrays of the index: hashes of the entries' names (ascending), and the start and end of each entry in bytes."""
_TITLE = 21
"""Position of the database's title in an answer. The title is not stored, and `QueryFile.log` fills it in."""
_ANSWER, _FAILURE, _KERNEL = "SSSFffIITsfffffffsBBLSIffIf", "SSSSTB", "SSSs"
"""Types of the columns of an answer, a failure and a kernel. Each letter is a key of `_TYPES`."""
_TYPES: Mapping[str, set[type]] = {
    "S": {str}, "s": {str, type(None)}, "F": {float}, "f": {float, type(None)}, "I": {int}, "B": {bool}, "L": {list},
    "T": {str},
}  # fmt: skip
_FROM_JSON: Mapping[str, Callable[[Any], Any]] = {"T": datetime.fromisoformat, "L": tuple}

_Name = tuple[str, ...]
_Fill = Callable[["QueryFile | None", _Name | None], bytes | mmap.mmap]
_KERNELS, _ENDS, _NAMES = ("kernels",), ("ends",), ("names",)


class QueryFile:
    """Content of the cache file of a database. Methods raise `ValueError` if an entry is damaged.

    Args:
        data: Content of the file, mapped into memory.
        fill: Function that computes an empty entry. The function receives this object and the entry's name, and returns
            the content of a new cache file.

    Raises:
        ValueError: The index is damaged.
    """

    def __init__(self, data: bytes | mmap.mmap, fill: "_Fill | None" = None) -> None:
        self._fill = fill
        self._load(data)

    def _load(self, data: bytes | mmap.mmap) -> None:
        size = int.from_bytes(data[-_TAIL:], "little")
        self._entries_end = max(0, len(data) - _TAIL - size)
        self._facts, index = unpack(data[self._entries_end : -_TAIL])
        self.made_of: list[str] = self._facts["made_of"]
        """Texts that identify the inputs of the file. If `_made_of` now returns other texts, the file is outdated."""
        self.measurements: int = self._facts["measurements"]
        """Number of measurements in the database, except withdrawn measurements."""
        self.left_out: int = self._facts["left_out"]
        """Number of rows that queries skip because they have impossible values."""
        self._data, (self._keys, *self._bytes) = data, (index[name] for name in _INDEX)

    @property
    def ends(self) -> list[str]:
        """Lowest and highest measurement ID in the database, or empty if there are no measurements."""
        entry = self._entry(_ENDS)
        return [] if entry is None else [end for end in entry[0]["ends"] if end is not None]

    def log(self, gpu: str, problem: str, title: str) -> MeasurementLog:
        """Return the measured costs and the failures for one GPU and problem. `title` is the database's name in the
        result."""
        if (entry := self._entry(("log", gpu, problem))) is None:
            return MeasurementLog({}, {})
        answers, failures = entry[0]["answers"], entry[0]["failures"]
        if answers:
            answers[_TITLE] = [title]
        logs = {problem: _rows(answers, _ANSWER)}, {problem: _rows(failures, _FAILURE)}
        return MeasurementLog(*({key: rows for key, rows in log.items() if rows} for log in logs))

    def profiles(self, kernel: str, kernel_hash: str, sm: int) -> dict[int, ProfileTable]:
        """Return the static profiles of a kernel's source on one architecture, keyed by launch number."""
        entry = self._entry(("profiles", kernel, kernel_hash, str(sm)))
        return {} if entry is None else tables_of_arrays(*entry)

    def kernels(self) -> list[tuple[Any, ...]]:
        entry = self._entry(_KERNELS)
        return [] if entry is None else _rows(entry[0]["kernels"], _KERNEL)

    def row_counts(self) -> dict[_Name, int]:
        """Return the number of database rows that determine each entry, keyed by entry name."""
        entry = self._entry(_NAMES)
        return {} if entry is None else {tuple(name): count for name, count in entry[0]["counts"]}

    def content(self, name: _Name) -> bytes | None:
        """Return the bytes of an entry. Return `b""` if the entry is still empty, and None if there is no such
        entry."""
        key = _key(name)
        place = int(self._keys.searchsorted(np.uint64(key)))
        if place == len(self._keys) or self._keys.item(place) != key:
            return None
        start, stop = (column.item(place) for column in self._bytes)
        return self._data[start:stop]

    def with_entries(self, contents: Iterable[tuple[_Name, bytes]]) -> Iterator[bytes]:
        """Yield the bytes of a new cache file, which has the entries of this file and of `contents`."""
        starts, stops = (column.copy() for column in self._bytes)
        yield self._data[: (offset := self._entries_end)]
        for name, content in contents:
            place = self._keys.searchsorted(np.uint64(_key(name)))
            starts[place], stops[place] = offset, (offset := offset + len(content))
            yield content
        yield from _index(self._facts, self._keys, starts, stops)

    def _entry(self, name: _Name) -> CacheEntry | None:
        if (content := self.content(name)) == b"" and self._fill:
            self._load(self._fill(self, name))
            content = self.content(name)
        if not content:
            return None
        facts, arrays = unpack(content)
        return (facts, arrays) if facts["name"] == list(name) else None


def query_file(path: Path, open_database: "Opener", anew: bool = False) -> QueryFile:
    """Return the cache file of a database. Write the file again if it is outdated.

    Args:
        open_database: The function `Database.open`.
        anew: Whether to write the cache file again in any case, because it is damaged.

    Raises:
        UsageError: The database cannot be read.
    """

    def fill(file: QueryFile | None, name: _Name | None) -> bytes | mmap.mmap:
        return _filled(path, open_database, file, name)

    state, mark = file_state(path), read_mark(path)
    if state and not anew and mark.holds(state) and not is_open(path):
        old = _stored(path, mark, fill)
        if old and old.made_of == _made_of(path, mark):
            return old
    return QueryFile(fill(None, None), fill)


def write_cache(database: "DatabaseQueries", mark: Mark, create: bool) -> None:
    """Write the cache file of a changed database that is open for writing.

    Write nothing if the database is unchanged or has faulty rows, or if it has no cache file and `create` is False.
    """
    path = Path(database.path)
    # Only queries hide faulty rows, so the next query writes the cache file of a database with such rows.
    if file_state(path) == mark.state or mark.faults or not (create or _place(path, mark).exists()):
        return
    # Get the file's final state now. Once the database is closed, another process may change the file.
    database.query("CHECKPOINT db")
    mark = replace(mark, state=file_state(path))
    if inode_of(mark.state) == mark.writing:  # Another process may have replaced the file.
        file = QueryFile(b"".join(_empty(database, _made_of(path, mark))))
        entries = _derived(database, _together(file, None), _is_pulled(path))
        _write(path, mark, file.with_entries(entries))


def wrong_entries(path: Path, open_database: "Opener") -> int:
    """Count the wrong entries in the cache file of a database. Delete the cache file if there are any."""
    mark = read_mark(path)
    stored = _stored(path, mark)
    if stored is None or not mark.holds(file_state(path)) or stored.made_of != _made_of(path, mark):
        return 0  # Queries do not use a missing or outdated cache file.
    with open_database(path) as database:
        true = QueryFile(b"".join(_empty(database, stored.made_of)))
        filled = {name: content for name in true.row_counts() if (content := stored.content(name))}
        wrong = sum(content != filled[name] for name, content in _derived(database, filled, _is_pulled(path)))
    wrong += sum(stored.content(name) != true.content(name) for name in (_KERNELS, _NAMES))
    wrong += stored._facts != true._facts or len(stored._keys) != len(true._keys)
    if wrong:
        _place(path, mark).unlink(missing_ok=True)
    return wrong


def _place(path: Path, mark: Mark) -> Path:
    return Path(f"{os.path.realpath(path)}.query") if is_own(path, mark) else mark_path(path).with_suffix(".query")


def _is_pulled(path: Path | str) -> bool:
    return os.path.realpath(path) == os.path.realpath(paths.pulled())


def _stored(path: Path, mark: Mark, fill: _Fill | None = None) -> QueryFile | None:
    try:
        return QueryFile(mapped(_place(path, mark)), fill)
    except (OSError, ValueError, KeyError, TypeError, UsageError):
        return None


def _made_of(path: Path, mark: Mark) -> list[str]:
    """Return texts that identify the inputs of a cache file: the SQL queries, and the owner, state and faulty rows of
    the database."""
    own, faults = is_own(path, mark), json.dumps(mark.faults, sort_keys=True)
    return [_rule(), str(_is_pulled(path)), str(own), mark.state, sha256(faults.encode()).hexdigest()]


@cache
def _rule() -> str:
    queries = f"{_FORM} {measurement_log.ANSWERS}{measurement_log.FAILURES}{measurement_log.SIGNERS}".encode()
    return sha256(queries + (paths.shipped("db/schema") / "views.sql").read_bytes()).hexdigest()


_LOGS = """
    SELECT 'log', gpu, key, rows
    FROM (SELECT gpu, problem_id, count(*) AS rows FROM db.measurement GROUP BY ALL)
    JOIN db.problem AS problem USING (problem_id) ORDER BY ALL
"""
_PROFILES = "SELECT 'profiles', kernel, kernel_hash, sm::VARCHAR, count(*) FROM db.profile GROUP BY ALL ORDER BY ALL"
_MEASUREMENTS = f"SELECT count(*), ({RETRACTED}) FROM db.measurement"
_ENDS_PER_ROW = 10
"""Number of measurements that count as one row in `_together`, because comparing keys is fast."""


def _filled(path: Path, open_database: "Opener", old: QueryFile | None, name: _Name | None) -> bytes | mmap.mmap:
    """Write the cache file of a database with the entry `name` filled in, and return the file's content."""
    opened = is_open(path)
    with open_database(path) as database:
        mark = database.mark or read_mark(path)
        made_of = _made_of(path, mark)
        file = old if old and old.made_of == made_of else QueryFile(b"".join(_empty(database, made_of)))
        entries = list(_derived(database, _together(file, name), _is_pulled(path)))
    if not opened:  # This process has the database open and may still change it, so write no file.
        with suppress(OSError, ValueError):  # The disk may be full, or the folder not writable.
            return mapped(_write(path, mark, file.with_entries(entries)))
    return b"".join(file.with_entries(entries))


def _write(path: Path, mark: Mark, parts: Iterator[bytes]) -> Path:
    mode = path.stat().st_mode & 0o666  # Everybody who can read the database may read its cache file.
    write_whole(place := _place(path, mark), lambda output: output.writelines(parts), shared=True, mode=mode)
    return place


def _empty(database: "DatabaseQueries", made_of: list[str]) -> Iterator[bytes]:
    """Yield a new cache file in pieces. Only the entries `_KERNELS` and `_NAMES` have content."""
    ((measurements, retracted),) = database.query(_MEASUREMENTS)
    counts: list[tuple[Sequence[str], int]] = [(_ENDS, measurements // _ENDS_PER_ROW)]
    counts += [(name, count) for query in (_LOGS, _PROFILES) for *name, count in database.query(query)]
    facts = {"made_of": made_of, "measurements": measurements - retracted, "left_out": database.left_out}
    keys = np.array(sorted(map(_key, (_KERNELS, _NAMES, *(name for name, _ in counts)))), np.uint64)
    nowhere = np.zeros(len(keys), np.uint64)
    file = QueryFile(b"".join(_index(facts, keys, nowhere, nowhere)))
    kernels = pack({"name": _KERNELS, "kernels": _columns(database.kernels())}, {})
    yield from file.with_entries([(_KERNELS, kernels), (_NAMES, pack({"name": _NAMES, "counts": counts}, {}))])


def _index(facts: Mapping[str, Any], *arrays: np.ndarray) -> Iterator[bytes]:
    index = pack(facts, dict(zip(_INDEX, arrays, strict=True)))
    yield index + len(index).to_bytes(_TAIL, "little")


def _together(file: QueryFile, name: _Name | None) -> list[_Name]:
    """Return `name` and the names of further empty entries, which have at most `_TOGETHER` rows together."""
    counts = file.row_counts()
    rows = counts.get(name, 0) if name else 0
    names = [name] if name in counts else []
    # Entries for the same GPU come first.
    for other in sorted(counts, key=lambda other: name is not None and other[:2] != name[:2]):
        if other != name and rows + counts[other] <= _TOGETHER and file.content(other) == b"":
            names.append(other)
            rows += counts[other]
    return names


def _derived(database: "DatabaseQueries", names: Iterable[_Name], signed: bool) -> Iterator[tuple[_Name, bytes]]:
    for (kind, gpu), group in groupby(sorted(names), lambda name: (name[0], name[1] if name[0] == "log" else "")):
        some = list(group)
        if kind == "log":
            log = database.log(gpu, [problem for *_, problem in some], signed=signed)
            for name in some:
                columns = {part: _columns(lines.get(name[-1], [])) for part, lines in vars(log).items()}
                yield name, pack({"name": name, **columns}, {})
        for name in some if kind == "profiles" else ():
            facts, arrays = arrays_of_tables(database.profiles(name[1], name[2], int(name[3])))
            yield name, pack({"name": name, **facts}, arrays)
        if kind == "ends":
            (ends,) = database.query("SELECT min(measurement_id), max(measurement_id) FROM db.measurement")
            yield _ENDS, pack({"name": _ENDS, "ends": ends}, {})


def _key(name: Sequence[str]) -> int:
    return int.from_bytes(blake2b("\0".join(name).encode("utf-8", "surrogatepass"), digest_size=8).digest(), "little")


def _columns(rows: Sequence[tuple[Any, ...]]) -> list[list[Any]]:
    """Convert rows to columns of JSON values. A column of equal values only contains the first value."""
    columns: list[list[Any]] = []
    for column in zip(*rows, strict=True):
        first = column[0]
        same = all(value == first and type(value) is type(first) for value in column)
        chosen = [first] if same and columns else column
        columns.append([value.isoformat() if isinstance(value, datetime) else value for value in chosen])
    return columns


def _rows(columns: Sequence[Sequence[Any]], types: str) -> list[tuple[Any, ...]]:
    """Convert the result of `_columns` back to rows. Raise `ValueError` if a value has the wrong type."""
    if not columns:
        return []
    if len(columns) != len(types):
        raise ValueError("columns are missing")
    count, whole = len(columns[0]), []
    for column, kind in zip(columns, types, strict=True):
        if len(column) not in (1, count) or not set(map(type, column)) <= _TYPES[kind]:
            raise ValueError("not the columns of a query file")
        values = list(map(_FROM_JSON[kind], column) if kind in _FROM_JSON else column)
        whole.append(values if len(values) == count else values * count)
    return list(zip(*whole, strict=True))
