"""Limits of the process that reads a stranger's file, in proportion to the file."""

import math
import os
import sys
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Limits:
    """What reading a file may take."""

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

        Checking 30,000 rows of 9.7 MB took 1.7 s of CPU time, 0.2 s per MiB (`tools/bench_store.py`).
        """
        cpu_s = 20 + 1.5 * size / 2**20
        return cls(
            cpu_s=cpu_s,
            wall_s=60 + 10 * cpu_s,  # other processes may have the processor
            database_bytes=min(2**30, 2**28 + 4 * size),
            address_bytes=2**32,
            file_bytes=2**26 + 16 * size,
            rows=1000 + size // 8,
            threads=threads_for(size),
        )

    def as_dict(self) -> dict[str, Any]:
        """The limits as JSON can hold them."""
        return asdict(self)

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
            try:
                resource.setrlimit(limit, (allowed, hard))
            except (ValueError, OSError):
                continue  # macOS knows the address space but does not limit it


def threads_for(size: int) -> int:
    """Threads that pay for `size` bytes of rows: one for each 16 MiB, up to eight or the processors."""
    return max(1, min(8, os.cpu_count() or 1, size // 2**24))
