"""Store the limits that kernrec has set on a GPU, and the limits to restore, in a file that survives the process.

Each GPU has one file, which the process that set limits has locked. An entry in an unlocked file is from a killed
process, whose changes must be undone. An empty file means that no limit is set.
"""

import json
import os
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path

from kernrec import paths
from kernrec.util.file_lock import try_lock


@dataclass(frozen=True)
class LimitsEntry:
    """A GPU whose limits are set."""

    power_limit_w: float | None
    """Power limit in watts to restore; None if it was not changed."""
    sm_clock_hz: float | None
    """Locked clock in Hz; None if clocks were not locked. Clocks are unlocked at the end, because NVML does not report
    whether they were locked before."""


class LimitsJournal:
    """File of one GPU, open and locked.

    Raises:
        BlockingIOError: Another process holds the lock.
        OSError: The file cannot be opened.
    """

    def __init__(self, uuid: str) -> None:
        path = journal_path(uuid)
        path.parent.mkdir(parents=True, exist_ok=True)
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        if not try_lock(self._descriptor):
            os.close(self._descriptor)
            raise BlockingIOError(f"{path} is locked")

    def read(self) -> LimitsEntry | None:
        """Return the entry of this process or of a killed process."""
        return _entry(os.pread(self._descriptor, 4096, 0))

    def write(self, entry: LimitsEntry | None) -> None:
        """Write an entry to disk; None if no limit is set any more."""
        os.ftruncate(self._descriptor, 0)
        if entry is not None:
            os.pwrite(self._descriptor, json.dumps(asdict(entry)).encode(), 0)
        os.fsync(self._descriptor)

    def close(self) -> None:
        """Release the lock."""
        os.close(self._descriptor)


def journal_path(uuid: str) -> Path:
    """Return the path of a GPU's file, which may not exist."""
    return paths.state() / "limits" / f"{sha256(uuid.encode()).hexdigest()[:16]}.json"


def present_entry(uuid: str) -> LimitsEntry | None:
    """Return the limits that any process has set on a GPU, or None."""
    try:
        return _entry(journal_path(uuid).read_bytes())
    except OSError:
        return None


def _entry(text: bytes) -> LimitsEntry | None:
    """Parse an entry; return None for an incomplete one, whose writer ended before it set a limit."""
    try:
        return LimitsEntry(**json.loads(text)) if text else None
    except (ValueError, TypeError):
        return None
