"""Several databases that are queried as one: first the user's own, then pulled rows, then shipped data."""

import os
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING

from kernrec import paths
from kernrec.gpu.entry import code_sm
from kernrec.store.measurement_log import DatabaseContents, Evidence, MeasurementLog, evidence
from kernrec.store.profiles import ProfileTable, shipped_profiles
from kernrec.store.rows import content_hash
from kernrec.util.human import counted

if TYPE_CHECKING:
    from kernrec.store.database import Database


class Stack:
    """Read-only view of several databases.

    A file is open only while it is read, so that a collector can write to it between two queries.
    """

    def __init__(self, databases: Sequence[Path | str] | None = None, keep_open: bool = False) -> None:
        """Check that the databases can be read.

        Args:
            databases: Their files; None: the user's own (`KERNREC_DB`) if it exists, then pulled rows.
            keep_open: Whether files stay open, for a program that ends after one query.

        Raises:
            UsageError: A database cannot be read.
        """
        self.missing: Path | None = None
        """The user's own database where `KERNREC_DB` names one that does not exist yet."""
        self.notes: tuple[str, ...] = ()
        """A line for each file of which rows are left out."""
        self._pulled: Path | None = None
        self._all = databases is None
        self._titles = {Path(path): str(path) for path in databases or ()}
        if databases is None:
            own = paths.user_database()
            self._titles = {own: paths.OWN} if own.exists() else {}
            if not own.exists() and os.environ.get("KERNREC_DB"):
                self.missing = own
            self._pulled = pulled_database()
            if self._pulled:
                self._titles[self._pulled] = paths.PULLED
            databases = list(self._titles)
        # A database that is named twice, even by a link, counts once.
        self._paths = list({os.path.realpath(path): Path(path) for path in databases}.values())
        self._read: tuple[tuple[int, int], ...] | None = None
        self._logs: dict[tuple[str, str], list[MeasurementLog]] = {}
        self._queries: Counter[tuple[str, str]] = Counter()
        self._contents: list[DatabaseContents] = []
        self._problems: dict[str, list[str]] = {}
        self._open: dict[Path, Database] | None = {} if keep_open else None
        self._refresh()  # report unreadable files now, not in the middle of a query

    def databases(self) -> "Iterator[tuple[str, Database]]":
        """Yield each database with its title (`own`, `pulled`, or the file); it is open until the next one is taken."""
        for path in self._paths:
            with self._database(path) as database:
                yield self._titles[path], database

    def _databases(self) -> "Iterator[Database]":
        return (database for _, database in self.databases())

    def _database(self, path: Path) -> "AbstractContextManager[Database]":
        from kernrec.store.database import Database

        if self._open is None:
            return Database.open(path)
        if path not in self._open:
            self._open[path] = Database.open(path)
        return nullcontext(self._open[path])

    def _refresh(self) -> None:
        if (version := self.version()) != self._read:
            self._logs.clear()
            self._contents, notes = [], []
            for database in self._databases():
                self._contents.append(database.contents())
                if database.left_out:
                    rows = counted(database.left_out, "impossible row")
                    notes.append(
                        f"{database.path}: {rows} skipped (`kernrec db verify` lists them, --remove deletes them)"
                    )
            if self._all and not self._pulled and paths.remotes().is_dir():
                notes.append("what kernrec 0.1 pulled is not read: `kernrec db pull PLACE` pulls it again")
            self.notes = tuple(notes)
            self._problems = _by_op(self._contents)
            self._read = version

    def profiles(self, kernel: str, kernel_hash: str, sm: int) -> dict[int, ProfileTable]:
        """Return the static profiles of a kernel's source by launch, or an empty mapping.

        Shipped profiles come first, then those of the first database that has some. An architecture without profiles
        uses those of the architecture whose code it runs (`code_sm`).
        """
        self._refresh()
        if shipped := shipped_profiles(kernel, kernel_hash, sm):
            return shipped
        for path, contents in zip(self._paths, self._contents, strict=True):
            if (kernel, kernel_hash, sm) in contents.profiled:
                with self._database(path) as database:
                    if profiles := database.profiles(kernel, kernel_hash, sm):
                        return profiles
        return self.profiles(kernel, kernel_hash, code_sm(sm)) if code_sm(sm) != sm else {}

    def evidence(self, gpu: str, op: str, kernels: Iterable[str], problem_key: str) -> Evidence:
        """Return the evidence of all databases about a GPU and problem: measurements of these kernels, failures, faster
        others.

        For each config, power limit and clock, the first database that has it counts. The log of a problem is read
        once, until a file changes. Reading also fetches the op's next problems: the square of the number of queries
        about the op so far. So one query reads one problem, and a thousand queries open the files a few times.
        """
        if not self._paths:
            return Evidence()
        self._refresh()
        keys = self._problems.get(op, [])
        place = bisect_left(keys, problem_key)
        if keys[place : place + 1] != [problem_key]:
            return Evidence()
        self._queries[gpu, op] += 1
        if (gpu, problem_key) not in self._logs:
            unread = (key for key in chain(keys[place:], keys[:place]) if (gpu, key) not in self._logs)
            ahead = list(islice(unread, self._queries[gpu, op] ** 2))
            logs = [
                database.log(gpu, ahead, title=self._titles[path], signed=path == self._pulled)
                for path, database in zip(self._paths, self._databases(), strict=True)
            ]
            self._logs |= {(gpu, key): logs for key in ahead}
        return evidence(self._logs[gpu, problem_key], kernels, problem_key)

    def measured_problems(self, gpu: str) -> frozenset[str]:
        """Return the keys of all problems with a successful measurement on a GPU."""
        return frozenset[str]().union(*(database.measured_problems(gpu) for database in self._databases()))

    def measurements(self) -> int:
        """Return the number of rows in the logs of all databases, without pulled rows, which train no model."""
        self._refresh()
        measured = zip(self._paths, self._contents, strict=True)
        return sum(contents.measurements for path, contents in measured if path != self._pulled)

    def mark(self) -> str:
        """Return a hash of the least and the greatest measurement key, which distinguishes logs of the same length."""
        own = (database for path, database in zip(self._paths, self._databases(), strict=True) if path != self._pulled)
        query = "SELECT min(measurement_id), max(measurement_id) FROM db.measurement HAVING count(*) > 0"
        ends = [end for database in own for row in database.query(query) for end in row]
        return content_hash([min(ends), max(ends)]) if ends else ""

    def version(self) -> tuple[tuple[int, int], ...]:
        """Return modification time and size of each file; cached answers are outdated when it changes."""
        return tuple([_written(path) for path in self._paths]) if self._paths else ()

    def files(self) -> list[tuple[str, int, int]]:
        """Return each file that answers are made of, with its modification time and size."""
        return [(os.path.realpath(path), *_written(path)) for path in self._paths]


def _by_op(every: Iterable[DatabaseContents]) -> dict[str, list[str]]:
    by_op: dict[str, set[str]] = {}
    for contents in every:
        for op, key in contents.problems:
            by_op.setdefault(op, set()).add(key)
    return {op: sorted(keys) for op, keys in by_op.items()}


def _written(path: Path) -> tuple[int, int]:
    try:
        seen = path.stat()
    except OSError:
        return (0, 0)  # the next attempt to open it reports the error
    return seen.st_mtime_ns, seen.st_size


def pulled_database() -> Path | None:
    """Return the database of pulled rows, or None."""
    return path if (path := paths.pulled()).exists() else None
