"""Query several databases as one."""

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from kernrec import paths
from kernrec.gpu.entry import code_sm
from kernrec.store.measurement_log import NO_EVIDENCE, Evidence, MeasurementLog, evidence
from kernrec.store.profiles import ProfileTable, shipped_profiles
from kernrec.store.query_file import QueryFile, query_file
from kernrec.store.rows import content_hash
from kernrec.util.human import counted

if TYPE_CHECKING:
    from kernrec.store.database import Database

_Read = TypeVar("_Read")


class Stack:
    """Read-only view of several databases. The files are closed between queries, so that other programs can write."""

    def __init__(self, databases: Sequence[Path | str] | None = None) -> None:
        """Create a view of the databases. Raise `UsageError` if a database cannot be read.

        Args:
            databases: Files of the databases. By default, the user's own database (`KERNREC_DB`) and the database of
                rows that were pulled from other people.
        """
        self.missing: Path | None = None
        """Path in `KERNREC_DB` if the file does not exist, else None."""
        self.notes: tuple[str, ...] = ()
        """One note for each database in which queries skip rows."""
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
        # Use a database only once, even if it is named twice or through a link.
        self._paths = list({os.path.realpath(path): Path(path) for path in databases}.values())
        self._read: tuple[tuple[int, int], ...] | None = None
        self._files: dict[Path, QueryFile] = {}
        self._logs: dict[tuple[str, str], list[MeasurementLog]] = {}
        self._refresh()  # Report unreadable files now, not in the middle of a query.

    @property
    def empty(self) -> bool:
        return not self._paths

    def databases(self) -> "Iterator[tuple[str, Database]]":
        """Open one database after another. Yield (title, connection), where the title is `own`, `pulled` or the
        path."""
        for path in self._paths:
            with _open(path) as database:
                yield self._titles[path], database

    def _refresh(self) -> None:
        if (version := self.version()) != self._read:
            self._logs.clear()
            self._files = {path: query_file(path, _open) for path in self._paths}
            notes = []
            for path, file in self._files.items():
                if file.left_out:
                    rows = counted(file.left_out, "impossible row")
                    notes.append(f"{path}: {rows} skipped (`kernrec db verify` lists them, --remove deletes them)")
            if self._all and not self._pulled and paths.remotes().is_dir():
                notes.append("what kernrec 0.1 pulled is not read: `kernrec db pull PLACE` pulls it again")
            self.notes = tuple(notes)
            self._read = version

    def _of_each(self, read: Callable[[Path, QueryFile], _Read]) -> "Iterator[_Read]":
        """Call `read` for the cache file of each database, and yield the results. Rewrite damaged files first."""
        for path, file in self._files.items():
            try:
                yield read(path, file)
            except (ValueError, LookupError, TypeError):
                self._files[path] = query_file(path, _open, anew=True)
                yield read(path, self._files[path])

    def profiles(self, kernel: str, kernel_hash: str, sm: int) -> dict[int, ProfileTable]:
        """Return the static profiles of a kernel's source on one architecture, keyed by launch number.

        Use the shipped profiles, or else the profiles of the first database that has some. If there are none, use the
        profiles of an architecture whose code also runs on this architecture (`code_sm`).
        """
        self._refresh()
        if shipped := shipped_profiles(kernel, kernel_hash, sm):
            return shipped
        for profiles in self._of_each(lambda _, file: file.profiles(kernel, kernel_hash, sm)):
            if profiles:
                return profiles
        return self.profiles(kernel, kernel_hash, code_sm(sm)) if code_sm(sm) != sm else {}

    def kernels(self) -> Iterator[tuple[Path, tuple[Any, ...]]]:
        """Yield each row of `Database.kernels` with the path of its database. Skip the database of `kernrec pull`."""
        self._refresh()
        for path, rows in self._of_each(lambda path, file: (path, [] if path == self._pulled else file.kernels())):
            for row in rows:
                yield path, row

    def evidence(self, gpu: str, op: str, kernels: Iterable[str], problem_key: str) -> Evidence:
        if not self._paths:
            return NO_EVIDENCE
        self._refresh()
        if (logs := self._logs.get((gpu, problem_key))) is None:
            logs = list(self._of_each(lambda path, file: file.log(gpu, problem_key, self._titles[path])))
            self._logs[gpu, problem_key] = logs
        return evidence(logs, kernels, problem_key)

    def measurements(self) -> int:
        """Return the number of measurements for training models. Pulled rows do not count."""
        self._refresh()
        return sum(file.measurements for path, file in self._files.items() if path != self._pulled)

    def mark(self) -> str:
        """Return a hash of the lowest and highest measurement ID, which distinguishes databases of equal size."""
        self._refresh()
        each_ends = self._of_each(lambda path, file: [] if path == self._pulled else file.ends)
        ends = [end for some in each_ends for end in some]
        return content_hash([min(ends), max(ends)]) if ends else ""

    def version(self) -> tuple[tuple[int, int], ...]:
        """Return the modification time and size of each file. Cached answers are outdated if a value changes."""
        return tuple([_written(path) for path in self._paths]) if self._paths else ()


def _open(path: Path) -> "Database":
    from kernrec.store.database import Database  # Import late, because most queries read only cache files.

    return Database.open(path)


def _written(path: Path) -> tuple[int, int]:
    try:
        seen = path.stat()
    except OSError:
        return (0, 0)  # Opening the database will report the error.
    return seen.st_mtime_ns, seen.st_size


def pulled_database() -> Path | None:
    """Return the database of rows that were pulled from other people, or None if it does not exist."""
    return path if (path := paths.pulled()).exists() else None
