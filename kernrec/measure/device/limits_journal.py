"""The limits that kernrec has set on a card and those to put back, in a file that outlives the process that wrote it.

There is one file for each card. The process that has set limits holds its lock; an entry without that lock is of a
process that was killed, whose changes have yet to be undone. An empty file says that nothing is set.
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
    """One card whose limits are set."""

    power_limit_w: float | None
    """The limit that it had before; None where the limit was not changed."""
    sm_clock_hz: float | None
    """The clock that it is locked to now; None where clocks were not locked. Unlocking restores them: NVML does not
    tell whether somebody had locked them before."""


class LimitsJournal:
    """The file of one card, open and locked.

    Raises:
        BlockingIOError: another process holds the lock.
        OSError: the file cannot be opened.
    """

    def __init__(self, uuid: str) -> None:
        path = journal_path(uuid)
        path.parent.mkdir(parents=True, exist_ok=True)
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        if not try_lock(self._descriptor):
            os.close(self._descriptor)
            raise BlockingIOError(f"{path} is locked")

    def read(self) -> LimitsEntry | None:
        """The entry that a killed process left, or this one wrote."""
        return _entry(os.pread(self._descriptor, 4096, 0))

    def write(self, entry: LimitsEntry | None) -> None:
        """Put an entry on the disk; None: nothing is set any more."""
        os.ftruncate(self._descriptor, 0)
        if entry is not None:
            os.pwrite(self._descriptor, json.dumps(asdict(entry)).encode(), 0)
        os.fsync(self._descriptor)

    def close(self) -> None:
        """Release the lock."""
        os.close(self._descriptor)


def journal_path(uuid: str) -> Path:
    """The file of a card; it may not exist."""
    return paths.state() / "limits" / f"{sha256(uuid.encode()).hexdigest()[:16]}.json"


def present_entry(uuid: str) -> LimitsEntry | None:
    """The limits that are set on a card now, by whichever process; None without any."""
    try:
        return _entry(journal_path(uuid).read_bytes())
    except OSError:
        return None


def _entry(text: bytes) -> LimitsEntry | None:
    """An entry that is not whole was being written before anything was set."""
    try:
        return LimitsEntry(**json.loads(text)) if text else None
    except (ValueError, TypeError):
        return None
