"""Read untrusted files in a separate process with resource limits.

A malformed file can crash DuckDB, and its rows may be false. So a child process (`kernrec.store.intake.read_file`)
checks every row. If the child crashes, hangs or exhausts its memory, the user gets a one-line error. A mark
(`kernrec.store.marks`) records a successful check, so that kernrec need not repeat it.
"""

import json
import math
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from kernrec.errors import UsageError
from kernrec.util.files import check_input, scratch_folder
from kernrec.util.light_dataclass import dataclass

READER = "kernrec.store.intake.read_file"
"""Module that the child process runs."""


@dataclass(frozen=True)
class Limits:
    """Resource limits of a process that reads a file. A larger file has higher limits."""

    cpu_s: float
    wall_s: float
    database_bytes: int
    """Memory limit of DuckDB in bytes. Above the limit, DuckDB uses temporary files."""
    address_bytes: int
    """Maximum address space of the process in bytes."""
    file_bytes: int
    """Maximum size in bytes of a file that the process writes."""
    rows: int
    """Maximum number of rows in one table."""
    threads: int = 1
    """Number of DuckDB's threads, which share the limit of CPU time."""

    @classmethod
    def of(cls, size: int) -> "Limits":
        """Return the limits for a file of `size` bytes."""
        cpu_s = 20 + 1.5 * size / 2**20
        return cls(
            cpu_s=cpu_s,
            wall_s=60 + 10 * cpu_s,  # Other processes may be using the CPU.
            database_bytes=min(2**30, 2**28 + 4 * size),
            address_bytes=2**32,
            file_bytes=2**26 + 16 * size,
            rows=1000 + size // 8,
            # Use one thread per 16 MiB of rows. With fewer rows, starting a thread takes longer than it saves.
            threads=max(1, min(8, os.cpu_count() or 1, size // 2**24)),
        )

    def apply(self) -> None:
        from kernrec.util.process import limit_resources

        cpu_s = math.ceil(self.cpu_s)
        limit_resources(CPU=(cpu_s, cpu_s + 1), AS=(self.address_bytes,) * 2, FSIZE=(self.file_bytes,) * 2, CORE=(0, 0))


def serve_request(answer: Callable[[Mapping[str, Any], Limits], dict[str, Any]]) -> int:
    """Answer one request in a child process, and return the exit status.

    `answer` receives the request from standard input, and the limits. The result is printed as JSON.
    """
    from kernrec.util.process import end_with_parent

    request = json.loads(sys.stdin.read())
    limits = Limits(**request["limits"])
    limits.apply()
    end_with_parent()
    print(json.dumps(answer(request, limits)))
    return 0


def read_apart(
    task: str, request: Mapping[str, Any], title: str, size: int, folder: Path, reader: str = READER
) -> dict[str, Any]:
    """Run a task of a reader module in a child process, and return its answer.

    Args:
        request: Arguments of the task.
        title: Name of the file, for messages.
        size: Size of the file in bytes, which determines the resource limits.
        folder: Private folder to which only the child process writes.

    Raises:
        UsageError: The reader refuses the file, or the child process ends without an answer.
    """
    import signal  # Import late, because most queries start no child process.
    import subprocess
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
            raise UsageError(
                f"reading {title} took over {limits.wall_s:.0f} s, more than a file of its size should"
            ) from None
        finally:
            kill_group(process)
            process.wait()
        output.seek(0)
        lines = output.read(2**27).splitlines()
    status = process.returncode
    try:
        answer = json.loads(lines[-1])
    except (ValueError, IndexError):
        answer = {}
    if status == 0 and "found" in answer:
        return dict(answer["found"] or {})
    if status == 0 and "refused" in answer:
        raise UsageError(str(answer["refused"]))
    if status == -getattr(signal, "SIGXCPU", 24):
        raise UsageError(
            f"reading {title} took over {limits.cpu_s:.0f} s of CPU time, more than a file of its size should"
        )
    if status == -getattr(signal, "SIGXFSZ", 25):
        raise UsageError(f"{title} contains more than a file of its size should")
    how = f"signal {-status}" if status < 0 else f"exit status {status}"
    raise UsageError(f"{title} cannot be read: it crashed the reader ({how})")


def read_untrusted(task: str, path: Path, folder: Path | None = None, **request: object) -> dict[str, Any]:
    """Run a task of `intake.read_file` on a file in a child process, and return its result.

    Args:
        folder: Private folder for the task's files. By default, a folder that is deleted at the end.
        request: Arguments of the task.

    Raises:
        UsageError: The file cannot be read, or the task refuses it.
    """
    path = path.absolute()
    if path.is_dir():
        raise UsageError(f"{path} is a folder, not a database")
    check_input(path)
    check_input(Path(f"{path}.wal"))
    try:
        size = path.stat().st_size
    except OSError:
        raise UsageError(f"there is no database at {path}") from None
    with nullcontext(folder) if folder else scratch_folder() as place:
        return read_apart(task, {"path": str(path), **request}, str(path), size, place)


def checked_segments(groups: Sequence[Mapping[str, Sequence[Path]]], folder: Path, title: str) -> list[dict[str, Any]]:
    """Check groups of untrusted Parquet files, and return the result of `FileReader.read_segments`.

    Args:
        groups: For each group, the paths of its files, keyed by table name. Other users must not be able to change the
            files.
        folder: Folder for the checked rows, to which only this user can write.
        title: Name of the files, for messages.

    Raises:
        UsageError: A file cannot be read, or a row is refused.
    """
    every = {file for files in groups for names in files.values() for file in names}
    size = sum(file.stat().st_size for file in every)
    named = [{table: [str(file.absolute()) for file in names] for table, names in files.items()} for files in groups]
    return list(read_apart("segments", {"groups": named}, title, size, folder)["groups"])
