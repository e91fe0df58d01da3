"""Files of strangers are read by a process of its own, with limits.

    parent: a request -> child (`kernrec.store.intake.read_file`): open, check every row -> parent: its answer

A malformed file can crash DuckDB, and its rows may be false. A file that makes DuckDB crash, hang or take all memory
costs the child, and its user one line.

A query opens its database in its own process. So the file is first checked by a child; once is enough, because a mark
(`kernrec.store.marks`) identifies the content that passed. A file that kernrec itself wrote and closed gets the mark at
once.
"""

import json
import math
import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from kernrec.errors import UsageError
from kernrec.store.marks import Faults
from kernrec.util.input_file import check_input
from kernrec.util.light_dataclass import dataclass
from kernrec.util.scratch import scratch_folder

READER = "kernrec.store.intake.read_file"
"""The module that reads databases and segments."""


@dataclass(frozen=True)
class Limits:
    """Limits of the process that reads a file, in proportion to the file."""

    cpu_s: float
    wall_s: float
    database_bytes: int
    """Memory that DuckDB uses before it goes to temporary files."""
    address_bytes: int
    """Address space of the process."""
    file_bytes: int
    """The largest file that it may write."""
    rows: int
    """Rows of one table. A key is a hash, so a row cannot take less than the 8 bytes of one."""
    threads: int = 1
    """That DuckDB works with; the CPU time is that of all."""

    @classmethod
    def of(cls, size: int) -> "Limits":
        """The limits for a file of `size` bytes.

        Checking 30,000 rows of 9.7 MB took 1.7 s of CPU time, 0.2 s per MiB (`tools/bench.py store`).
        """
        cpu_s = 20 + 1.5 * size / 2**20
        return cls(
            cpu_s=cpu_s,
            wall_s=60 + 10 * cpu_s,  # other processes may have the processor
            database_bytes=min(2**30, 2**28 + 4 * size),
            address_bytes=2**32,
            file_bytes=2**26 + 16 * size,
            rows=1000 + size // 8,
            # A thread pays for 16 MiB of rows.
            threads=max(1, min(8, os.cpu_count() or 1, size // 2**24)),
        )

    def apply(self) -> None:
        """Limit this process; on Windows only the time is limited, by the parent."""
        if sys.platform == "win32":
            return
        import resource

        cpu_s = math.ceil(self.cpu_s)
        for name, soft in (
            ("RLIMIT_CPU", cpu_s),
            ("RLIMIT_AS", self.address_bytes),
            ("RLIMIT_FSIZE", self.file_bytes),
            ("RLIMIT_CORE", 0),
        ):
            if (limit := getattr(resource, name, None)) is None:
                continue
            _, hard = resource.getrlimit(limit)
            allowed = soft if hard == resource.RLIM_INFINITY else min(soft, hard)
            with suppress(ValueError, OSError):  # macOS knows the address space but does not limit it
                resource.setrlimit(limit, (allowed, hard))


def read_apart(
    task: str, request: Mapping[str, Any], title: str, size: int, folder: Path, reader: str = READER
) -> dict[str, Any]:
    """Have a child do a task of a module, the reader; its answer.

    Args:
        task: one of the reader's.
        request: the task's arguments.
        title: name of the file in messages.
        size: its bytes, in proportion to which the child is limited.
        folder: private to this program; only the child writes to it.
        reader: the module.

    Raises:
        UsageError: if the file is refused, or its reader ends without an answer.
    """
    import subprocess  # what a query of a checked file need not wait for
    import tempfile

    from kernrec.util.process import kill_group, module_command, module_environment, own_group

    limits = Limits.of(size)
    whole = {"task": task, "title": title, "folder": str(folder), "limits": vars(limits), **request}
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as question:
        question.write(json.dumps(whole).encode())
        question.seek(0)
        process = subprocess.Popen(
            module_command(reader),
            stdin=question,
            stdout=output,
            stderr=subprocess.DEVNULL,
            env=module_environment(),
            **own_group(),
        )
        try:
            process.wait(limits.wall_s)
        except subprocess.TimeoutExpired:
            raise UsageError(f"{title} takes longer than a file of its size should ({limits.wall_s:.0f} s)") from None
        finally:
            kill_group(process)
            process.wait()
        output.seek(0)
        return _answer(title, process.returncode, output.read(2**27), limits)


def _answer(title: str, status: int, output: bytes, limits: Limits) -> dict[str, Any]:
    import signal

    try:
        done = json.loads(output.splitlines()[-1])
    except (ValueError, IndexError):
        done = {}
    if status == 0 and "found" in done:
        return dict(done["found"] or {})
    if status == 0 and "refused" in done:
        raise UsageError(str(done["refused"]))
    if status == -getattr(signal, "SIGXCPU", 24):
        raise UsageError(f"{title} takes longer than a file of its size should ({limits.cpu_s:.0f} s of CPU time)")
    if status == -getattr(signal, "SIGXFSZ", 25):
        raise UsageError(f"{title} contains more than a file of its size should")
    how = f"signal {-status}" if status < 0 else f"exit status {status}"
    raise UsageError(f"{title} cannot be read: it crashed the reader ({how})")


def check_database(path: Path, rows: bool, state: str) -> None:
    """Raise `UsageError` if a database should not be opened by this process.

    Args:
        path: of the file.
        rows: whether a row that cannot be is reason enough.
        state: of the file (`marks.file_state`); another one in its place is refused.
    """
    with scratch_folder() as folder:
        _read_file("check", path, folder, rows=rows, state=state)


def find_faults(path: Path, state: str) -> Faults:
    """Find the rows of the user's own database that cannot be; the file is not changed.

    Raises:
        UsageError: if the file cannot be read.
    """
    with scratch_folder() as folder:
        faults: Faults = _read_file("faults", path, folder, state=state)
    return faults


def checked_database(path: Path, folder: Path) -> dict[str, int]:
    """Read a stranger's database; the rows, every one checked, are in the folder as `exchange.add_rows` takes them.

    The folder is private to this program. Returns how many rows each table has.

    Raises:
        UsageError: if the file cannot be read, or its rows cannot be taken.
    """
    if path.is_dir():
        raise UsageError(f"{path.absolute()} is a folder, not a database")
    return _read_file("database", path, folder)


def checked_table(path: Path, folder: Path, most_rows: int) -> Path:
    """Read a stranger's Parquet file of any columns and at most `most_rows`; returns a plain file of it in a folder."""
    _read_file("table", path, folder, most_rows=most_rows)
    return folder / "table.parquet"


def checked_segments(groups: Sequence[Mapping[str, Sequence[Path]]], folder: Path, title: str) -> list[dict[str, Any]]:
    """Read groups of untrusted Parquet files by table, as `checked_database` reads a database.

    Args:
        groups: by table, the files of each group; nobody else writes to their folders.
        folder: for the checked rows; nobody else writes to it.
        title: name of the files in messages.

    Returns:
        What `read_file.read_segments` returns; `exchange.SOURCES` has the groups of each measurement.
    """
    return list(_read_segments("segments", groups, folder, title)["groups"])


def check_own_segments(files: Mapping[str, Sequence[Path]], title: str) -> None:
    """Refuse Parquet files that others would refuse; this program has written them just now, so their keys are right.

    The arguments are those of `checked_segments`.
    """
    with scratch_folder() as folder:
        _read_segments("own segments", [files], folder, title)


def _read_file(task: str, path: Path, folder: Path, **request: object) -> dict[str, Any]:
    path = path.absolute()
    check_input(path)
    check_input(Path(f"{path}.wal"))
    try:
        size = path.stat().st_size
    except OSError:
        raise UsageError(f"there is no database at {path}") from None
    return read_apart(task, {"path": str(path), **request}, str(path), size, folder)


def _read_segments(
    task: str, groups: Sequence[Mapping[str, Sequence[Path]]], folder: Path, title: str
) -> dict[str, Any]:
    every = {file for files in groups for names in files.values() for file in names}
    size = sum(file.stat().st_size for file in every)
    named = [{table: [str(file.absolute()) for file in names] for table, names in files.items()} for files in groups]
    return read_apart(task, {"groups": named}, title, size, folder)
