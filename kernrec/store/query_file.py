"""Cache everything that queries read from a database in a memory-mapped file.

Importing DuckDB and opening a database takes longer than the rest of a query and doubles its memory. So the file holds
these entries by name:

    log, GPU, problem            answers and failures (`MeasurementLog`)
    profiles, kernel, hash, sm   static profiles by launch (`ProfileTable`)
    kernels                      the kernels that were analyzed

The file `NAME.query` is beside the user's own database; files of other databases are in the cache. The index at the end
names the state of the database from which the entries were derived. If the state differs or the file is damaged, the
file is written again; entries whose rows did not change are copied. So if a process is killed between a commit and this
file, the next query is slower, but no answer changes. If no file can be written, the entries stay in memory.
"""

import json
import mmap
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from datetime import datetime
from functools import cache
from hashlib import blake2b, sha256
from io import BytesIO
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np

from kernrec import paths
from kernrec.errors import UsageError
from kernrec.store import measurement_log
from kernrec.store.connection import is_open
from kernrec.store.marks import Mark, file_state, is_own, mark_path, read_mark
from kernrec.store.measurement_log import RETRACTED, MeasurementLog
from kernrec.store.profiles import ProfileTable, arrays_of_tables, tables_of_arrays
from kernrec.store.schema import with_derived
from kernrec.util.array_file import mapped, pack, unpack
from kernrec.util.atomic_write import write_whole
from kernrec.util.batches import batches
from kernrec.util.cache import CacheEntry

if TYPE_CHECKING:
    from kernrec.store.queries import DatabaseQueries

    Opener = Callable[[Path], AbstractContextManager[DatabaseQueries]]

_FORM = 1
"""Version of the format and of the entries."""
_TOGETHER = 200_000
"""Maximum rows combined in one statement, to limit memory."""
_TAIL = 8
"""Bytes at the end of the file that hold the length of the index."""
_INDEX = ("keys", "marks", "starts", "stops")
"""Arrays of the index: hashes of the names (ascending), hashes of the rows, and the bytes of the entries."""
_TITLE = 21
"""Position of the database's title in an answer; the reader fills it in."""
_ANSWER, _FAILURE, _KERNEL = "SSSFffIITsfffffffsBBLSIffIf", "SSSSTB", "SSSs"
"""Types of the columns of an answer, a failure and a kernel: keys of `_TYPES`."""
_TYPES: Mapping[str, set[type]] = {
    "S": {str}, "s": {str, type(None)}, "F": {float}, "f": {float, type(None)}, "I": {int}, "B": {bool}, "L": {list},
    "T": {str},
}  # fmt: skip
_FROM_JSON: Mapping[str, Callable[[Any], Any]] = {"T": datetime.fromisoformat, "L": tuple}


class QueryFile:
    """Content of a query file. Methods raise `ValueError` if an entry is damaged.

    Args:
        data: the content, mapped into memory.

    Raises:
        ValueError: the index is damaged.
    """

    def __init__(self, data: bytes | mmap.mmap) -> None:
        size = int.from_bytes(data[-_TAIL:], "little")
        facts, index = unpack(data[max(0, len(data) - _TAIL - size) : -_TAIL])
        self.made_of: list[str] = facts["made_of"]
        """Rule for combining rows, and state of the database (`_made_of`)."""
        self.measurements: int = facts["measurements"]
        """Number of measurements that nobody withdrew."""
        self.ends: list[str] = [end for end in facts["ends"] if end is not None]
        """Lowest and highest key of a measurement; empty if there is none."""
        self.left_out: int = facts["left_out"]
        """Number of impossible rows, which queries skip."""
        self._data, self._keys, *self._columns = (data, *(index[name] for name in _INDEX))

    def log(self, gpu: str, problem: str, title: str) -> MeasurementLog:
        """Return the answers and failures of a GPU and the problem with this key; `title` names the database."""
        if (entry := self._entry("log", gpu, problem)) is None:
            return MeasurementLog({}, {})
        answers, failures = entry[0]["answers"], entry[0]["failures"]
        if answers:
            answers[_TITLE] = [title]
        logs = {problem: _rows(answers, _ANSWER)}, {problem: _rows(failures, _FAILURE)}
        return MeasurementLog(*({key: rows for key, rows in log.items() if rows} for log in logs))

    def profiles(self, kernel: str, kernel_hash: str, sm: int) -> dict[int, ProfileTable]:
        """Return the profiles of a kernel's source on an architecture, by launch; empty if there are none."""
        entry = self._entry("profiles", kernel, kernel_hash, str(sm))
        return {} if entry is None else tables_of_arrays(*entry)

    def kernels(self) -> list[tuple[Any, ...]]:
        """Return the rows of `Database.kernels`."""
        entry = self._entry("kernels")
        return [] if entry is None else _rows(entry[0]["kernels"], _KERNEL)

    def contents(self) -> dict[int, tuple[int, bytes] | None]:
        """Return `content` of every entry by the hash of its name."""
        return {key: self.content(key) for key in self._keys.tolist()}

    def content(self, key: int) -> tuple[int, bytes] | None:
        """Return the mark and the bytes of an entry by the hash of its name; None if there is none."""
        place = int(self._keys.searchsorted(np.uint64(key)))
        if place == len(self._keys) or self._keys.item(place) != key:
            return None
        mark, start, stop = (column.item(place) for column in self._columns)
        return mark, self._data[start:stop]

    def _entry(self, *name: str) -> CacheEntry | None:
        if (content := self.content(_key(name))) is None:
            return None
        facts, arrays = unpack(content[1])
        return (facts, arrays) if facts["name"] == list(name) else None


def query_file(path: Path, open_database: "Opener", anew: bool = False) -> QueryFile:
    """Return everything that a query reads from a database; use its query file if it matches the database's state.

    Args:
        path: of the database.
        open_database: `Database.open`, which is called only if the file does not fit.
        anew: whether to write the file again in any case, because it is damaged.

    Raises:
        UsageError: the database cannot be read.
    """
    state, mark, opened = file_state(path), read_mark(path), is_open(path)
    old = _stored(path, mark) if state else None
    if old and not anew and mark.holds(state) and not opened and old.made_of == _made_of(path, mark):
        return old
    with open_database(path) as database:
        mark = database.mark or mark
        made_of = _made_of(path, mark)
        if not opened:  # Otherwise the program that has the database open may still change it.
            with suppress(OSError, ValueError):  # The disk is full, or the folder cannot be written to.
                mode = path.stat().st_mode & 0o666  # readable by whoever can read the database
                place = _place(path, mark)
                write_whole(place, lambda file: _write(file, database, made_of, old), shared=True, mode=mode)
                return QueryFile(mapped(place))
        return _derived(database, made_of, old)


def renew(path: Path, open_database: "Opener", create: bool = False) -> None:
    """Rewrite a database's query file after rows were added or removed. If this fails, the next query is slower.

    Args:
        path: of the database.
        open_database: `Database.open`.
        create: whether to write the file even if no query has created one.
    """
    with suppress(UsageError, OSError):
        if (create or _place(path, Mark("", True)).exists()) and not is_open(path):
            query_file(path, open_database)


def wrong_entries(path: Path, open_database: "Opener") -> int:
    """Return the number of entries in the query file that differ from the database; if any differ, delete the file.

    Args:
        path: of the database.
        open_database: `Database.open`.
    """
    mark = read_mark(path)
    stored = _stored(path, mark)
    if stored is None or not mark.holds(file_state(path)) or stored.made_of != _made_of(path, mark):
        return 0  # no query uses this file
    with open_database(path) as database:
        true = _derived(database, stored.made_of, None)
    first, second = true.contents(), stored.contents()
    wrong = sum(first.get(key) != second.get(key) for key in first.keys() | second.keys())
    wrong += (true.measurements, true.ends, true.left_out) != (stored.measurements, stored.ends, stored.left_out)
    if wrong:
        _place(path, mark).unlink(missing_ok=True)
    return wrong


def _place(path: Path, mark: Mark) -> Path:
    return Path(f"{os.path.realpath(path)}.query") if is_own(path, mark) else mark_path(path).with_suffix(".query")


def _is_pulled(path: Path) -> bool:
    return os.path.realpath(path) == os.path.realpath(paths.pulled())


def _stored(path: Path, mark: Mark) -> QueryFile | None:
    try:
        return QueryFile(mapped(_place(path, mark)))
    except (OSError, ValueError, KeyError, TypeError, UsageError):
        return None


def _made_of(path: Path, mark: Mark) -> list[str]:
    """Return everything that entries depend on: the rule, whether rows are signed, and the state of the database."""
    own, faults = is_own(path, mark), json.dumps(mark.faults, sort_keys=True)
    return [_rule(), str(_is_pulled(path)), str(own), mark.state, sha256(faults.encode()).hexdigest()]


@cache
def _rule() -> str:
    """Return a hash of the queries that combine rows."""
    queries = f"{_FORM} {measurement_log.ANSWERS}{measurement_log.FAILURES}{measurement_log.SIGNERS}".encode()
    return sha256(queries + (paths.shipped("db/schema") / "views.sql").read_bytes()).hexdigest()


# ---- writing ---------------------------------------------------------------------------------------------------------

_MARKED_LOGS = """
    SELECT gpu, problem.key, count(*), hash(sum(mark), (SELECT sum(hash(scale)) FROM db.card_scale AS scale))
    FROM (
        SELECT gpu, problem_id, hash(sourced_rows) AS mark FROM sourced_rows
        UNION ALL SELECT gpu, problem_id, hash(measurement_id, signer) FROM db.merged
    ) JOIN db.problem AS problem USING (problem_id) GROUP BY ALL ORDER BY ALL
"""
"""SQL for GPU, problem, number of rows, and a hash of everything that the answers depend on."""
_MARKED_PROFILES = """
    SELECT kernel, kernel_hash, sm, hash(sum(hash(profile, row_id IS NULL)))
    FROM db.profile AS profile LEFT JOIN (SELECT DISTINCT row_id FROM db.merged_row) ON row_id = profile_id GROUP BY ALL
"""
_FACTS = f"SELECT count(*) - ({RETRACTED}), min(measurement_id), max(measurement_id) FROM db.measurement"


def _derived(database: "DatabaseQueries", made_of: list[str], old: QueryFile | None) -> QueryFile:
    file = BytesIO()
    _write(file, database, made_of, old)
    return QueryFile(file.getvalue())


def _write(file: BinaryIO, database: "DatabaseQueries", made_of: list[str], old: QueryFile | None) -> None:
    if old and old.made_of[:2] != made_of[:2]:
        old = None
    rows, offset = [], 0
    for key, mark, content in _entries(database, _is_pulled(Path(database.path)), old):
        file.write(content)
        rows.append((key, mark, offset, offset := offset + len(content)))
    table = np.array(sorted(rows), dtype=np.uint64).reshape(-1, 4)
    ((measurements, *ends),) = database.query(_FACTS)
    facts = {"made_of": made_of, "measurements": measurements, "ends": ends, "left_out": database.left_out}
    index = pack(facts, dict(zip(_INDEX, table.T, strict=True)))
    file.write(index + len(index).to_bytes(_TAIL, "little"))


def _entries(database: "DatabaseQueries", signed: bool, old: QueryFile | None) -> Iterator[tuple[int, int, bytes]]:
    """Yield key, mark and content of each entry; copy an old entry with the same mark."""
    kernels = {"kernels": _columns(database.kernels())}
    yield _key(("kernels",)), 0, pack({"name": ["kernels"], **kernels}, {})
    name: tuple[str, ...]
    for kernel, kernel_hash, sm, mark in database.query(_MARKED_PROFILES):
        name = "profiles", kernel, kernel_hash, str(sm)
        if (content := _copied(old, name, mark)) is None:
            facts, arrays = arrays_of_tables(database.profiles(kernel, kernel_hash, sm))
            content = pack({"name": name, **facts}, arrays)
        yield _key(name), mark, content
    for gpu, rows in groupby(database.query(with_derived("sourced_rows", _MARKED_LOGS)), lambda row: row[0]):
        new = []
        for row in rows:
            name = "log", gpu, row[1]
            if (content := _copied(old, name, row[3])) is None:
                new.append(row)
            else:
                yield _key(name), row[3], content
        for some in batches(new, lambda row: row[2], _TOGETHER):
            log = database.log(gpu, [row[1] for row in some], signed=signed)
            for _, problem, _, mark in some:
                name = "log", gpu, problem
                columns = {part: _columns(lines.get(problem, [])) for part, lines in vars(log).items()}
                yield _key(name), mark, pack({"name": name, **columns}, {})


def _copied(old: QueryFile | None, name: tuple[str, ...], mark: int) -> bytes | None:
    """Return an entry of an old file if it has this mark and is not damaged."""
    with suppress(ValueError):
        if old and (entry := old.content(_key(name))) is not None and entry[0] == mark:
            return entry[1] if unpack(entry[1])[0]["name"] == list(name) else None
    return None


def _key(name: Sequence[str]) -> int:
    return int.from_bytes(blake2b("\0".join(name).encode("utf-8", "surrogatepass"), digest_size=8).digest(), "little")


def _columns(rows: Sequence[tuple[Any, ...]]) -> list[list[Any]]:
    """Convert rows to columns of JSON values. A column of several equal values is stored as its first value."""
    columns: list[list[Any]] = []
    for column in zip(*rows, strict=True):
        first = column[0]
        same = all(value == first and type(value) is type(first) for value in column)
        chosen = [first] if same and columns else column
        columns.append([value.isoformat() if isinstance(value, datetime) else value for value in chosen])
    return columns


def _rows(columns: Sequence[Sequence[Any]], types: str) -> list[tuple[Any, ...]]:
    """Return the rows of `_columns`. Raises `ValueError` for other columns."""
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
