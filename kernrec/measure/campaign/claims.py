"""Claims on problems, so that several processes that refine one database do not measure the same problem at once.

A claim is a lock on one byte of a file beside the database (`<database>.claims`), which ends with the process.
"""

import os
import zlib
from pathlib import Path
from types import TracebackType

from kernrec.errors import UsageError, cannot_be
from kernrec.util.file_lock import try_lock_byte, unlock_byte


class Claims:
    """The claims of this process on problems of one database."""

    def __init__(self, database: Path) -> None:
        """Open the file of claims. Raises `UsageError` where it cannot be written."""
        self._path = database.with_name(f"{database.name}.claims")
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._file = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as error:
            raise UsageError(cannot_be("written", self._path, error)) from None
        self._held: int | None = None

    def claim(self, problem: str) -> bool:
        """Claim a problem by its key, in place of the one claimed before; False if another process has it."""
        self.release()
        byte = zlib.crc32(problem.encode())
        if not try_lock_byte(self._file, byte):
            return False
        self._held = byte
        return True

    def release(self) -> None:
        """Give up the claim, if there is one."""
        if self._held is not None:
            unlock_byte(self._file, self._held)
            self._held = None

    def __enter__(self) -> "Claims":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()
        os.close(self._file)
        self._path.unlink(missing_ok=True)
