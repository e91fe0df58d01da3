"""A stack of databases that answers as one: those given in their order, and what ships with kernrec last."""

import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from kernrec import paths
from kernrec.store.database import Database, Measured
from kernrec.store.profiles import ProfileTable, shipped_profiles


class Stack:
    """Read-only view over `databases`; None stands for the user's own (`KERNREC_DB`), if there is one.

    A file is open only while it is asked, so that a collector can write to it between two questions. Raises
    `UsageError` where a database that was asked for cannot be read.
    """

    def __init__(self, databases: Sequence[Path | str] | None = None) -> None:
        if databases is None:
            own = paths.user_database()
            databases = [own] if own.exists() or "KERNREC_DB" in os.environ else []
        self._paths = [Path(path) for path in databases]
        for _ in self._databases():
            pass  # a file that cannot be read says so now, not in the middle of an answer

    def _databases(self) -> Iterator[Database]:
        for path in self._paths:
            with Database.open(path) as database:
                yield database

    def profiles(self, kernel: str, kernel_hash: str, sm: int) -> dict[int, ProfileTable]:
        """The static profiles of a kernel's source by launch, from the first database that has them; else empty."""
        for database in self._databases():
            if found := database.profiles(kernel, kernel_hash, sm):
                return found
        return shipped_profiles(kernel, kernel_hash, sm)

    def measured(self, gpu: str, kernels: Iterable[str], problem_key: str) -> list[Measured]:
        """What was measured, fastest first; each config, power limit and clock from the first database that has it."""
        names = list(kernels)
        found: dict[tuple[object, ...], Measured] = {}
        for database in self._databases():
            for row in database.measured(gpu, names, problem_key):
                config = tuple(sorted(row.config.items()))
                what = (row.kernel, row.kernel_hash, config, row.power_limit_w, row.locked_sm_clock_hz)
                found.setdefault(what, row)
        return sorted(found.values(), key=lambda row: row.latency_s)

    def measured_problems(self, gpu: str) -> frozenset[str]:
        """The keys of all problems with a good measurement on `gpu`: whether to ask `measured` at all."""
        return frozenset[str]().union(*(database.measured_problems(gpu) for database in self._databases()))
