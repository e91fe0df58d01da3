"""The parent of the process that reads a stranger's file: starts it, waits, and says in one line how it ended."""

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from kernrec import paths
from kernrec.errors import UsageError
from kernrec.store.intake.limits import Limits
from kernrec.util.process import kill_group, own_group


def checked_rows(path: Path, folder: Path) -> dict[str, int]:
    """Read a stranger's database into `<table>.parquet` files in a folder.

    Args:
        path: of the file.
        folder: private to this program; only the child writes to it.

    Returns:
        How many rows each table has; every row was checked.

    Raises:
        UsageError: if the file cannot be read, or its rows cannot be taken.
    """
    path = path.absolute()
    try:
        size = path.stat().st_size
    except OSError:
        raise UsageError(f"there is no database at {path}") from None
    if path.is_dir():
        raise UsageError(f"{path} is a folder, not a database")
    return _read({"path": str(path)}, str(path), size, folder)


def checked_segments(files: Mapping[str, Sequence[Path]], folder: Path, title: str) -> dict[str, int]:
    """Read a stranger's Parquet files, as `checked_rows` reads a database.

    Args:
        files: by table; in a folder that nobody else writes to.
        folder: private to this program, for `<table>.parquet`.
        title: what messages call the files.
    """
    size = sum(file.stat().st_size for names in files.values() for file in names)
    segments = {table: [str(file.absolute()) for file in names] for table, names in files.items()}
    return _read({"path": title, "segments": segments}, title, size, folder)


def _read(request: dict[str, Any], title: str, size: int, folder: Path) -> dict[str, int]:
    """Start the child and wait for what it says."""
    limits = Limits.of(size)
    request |= {"folder": str(folder), "limits": limits.as_dict()}
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, [_root(), os.environ.get("PYTHONPATH")]))}
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as asked:
        asked.write(json.dumps(request).encode())
        asked.seek(0)
        process = subprocess.Popen(
            [sys.executable, "-m", "kernrec.store.intake.read_file"],
            stdin=asked,
            stdout=output,
            stderr=subprocess.DEVNULL,
            env=environment,
            **own_group(),
        )
        try:
            process.wait(limits.wall_s)
        except subprocess.TimeoutExpired:
            raise UsageError(f"{title} takes longer than a file of its size may ({limits.wall_s:.0f} s)") from None
        finally:
            kill_group(process)
            process.wait()
        output.seek(0)
        return _answer(title, process.returncode, output.read(2**20), limits)


def _answer(path: str, status: int, output: bytes, limits: Limits) -> dict[str, int]:
    try:
        done = json.loads(output.splitlines()[-1])
    except (ValueError, IndexError):
        done = {}
    if status == 0 and "rows" in done:
        return dict(done["rows"])
    if status == 0 and "refused" in done:
        raise UsageError(str(done["refused"]))
    if status == -getattr(signal, "SIGXCPU", 24):
        raise UsageError(f"{path} takes longer than a file of its size may ({limits.cpu_s:.0f} s of CPU time)")
    if status == -getattr(signal, "SIGXFSZ", 25):
        raise UsageError(f"{path} holds more than a file of its size may")
    how = f"signal {-status}" if status < 0 else f"exit status {status}"
    raise UsageError(f"{path} cannot be read: it makes its reader crash ({how}); nothing was taken")


def _root() -> str:
    """The folder that this package is in, for a child that is started from elsewhere."""
    return str(Path(paths.__file__).resolve().parent.parent)
