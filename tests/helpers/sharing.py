"""Simulated users who share measurements. Each has a separate database, key and settings."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np

from kernrec import paths
from kernrec.op import find_op
from kernrec.store import Database, ProfileRow
from kernrec.store.intake import checked_rows
from kernrec.store.keys import Signer, key_file, make_own_key
from kernrec.store.measurement import Measurement
from kernrec.store.share.bundle import Bundle, take_groups
from kernrec.store.share.outgoing import PRIVATE, Selection
from kernrec.store.share.pull import PullReport, pull
from kernrec.store.share.push import push
from kernrec.store.share.servers import place_of
from kernrec.store.share.withdraw import withdraw_there
from kernrec.util.files import scratch_folder
from tests.helpers.command import environment

PROBLEM = find_op("matmul").problem(m=64, n=32, k=16)
GPU, KERNEL, HASH = "h200-sxm", "matmul_simt", "0123456789abcdef"
UUID_HASH = "00112233aabbccdd"
_CACHE = str(paths.cache().parent)


USUAL: dict[str, object] = {
    "gpu": GPU, "kernel": KERNEL, "kernel_hash": HASH, "config": {"block_m": 64}, "problem": PROBLEM,
    "protocol_version": 1, "tier": "final", "session": "monday", "measured_at": "2026-03-01T12:00:00",
    "latency_s": 1e-3, "outcome": "ok",
}  # fmt: skip
"""Columns of a valid measurement."""


def measurement(**inputs: object) -> Measurement:
    """Return a valid measurement with some columns replaced."""
    return Measurement.from_columns(USUAL | {"block": 0, "device_uuid_hash": UUID_HASH} | inputs)


def profile_row(**inputs: Any) -> ProfileRow:
    """Return a valid profile with some columns replaced."""
    usual: dict[str, Any] = {
        "kernel": KERNEL, "kernel_hash": HASH, "variant_key": "c0", "sm": 89, "launch": 0, "entry": KERNEL,
        "variant": {"block_m": 64, "dtype": "f32"}, "registers": 64, "spill_bytes": 0, "stack_bytes": 0,
        "static_smem_bytes": 4096, "ptx_hash": "p0", "compiler": "nvrtc 13.5",
        "metrics": ("issue.fma32", "issue.ld_shared"), "terms": ("block", "k_tiles"),
        "counts": np.array([[1.0, 2.0], [3.0, 4.5]]),
    }  # fmt: skip
    return ProfileRow(**usual | inputs)


def store_measurements(path: Path, rows: Iterable[Measurement]) -> Path:
    """Add measurements to a database file, and return its path. Create the file if necessary."""
    with Database.open(path, read_only=False, create=True) as database:
        database.add_measurements(rows)
    return path


def measured_rows(path: Path, **equal: object) -> list[dict[str, object]]:
    """Return the measurements whose columns have the given values. Return none if the database file does not exist."""
    if not path.exists():
        return []
    with Database.open(path) as database:
        return database.rows("measurement", **equal)


def add(database: Database, *rows: Mapping[str, object]) -> list[str]:
    """Add measurements, given as columns, to a database. Return their keys."""
    return database.add_measurements(map(Measurement.from_columns, rows))


def measurements(session: str, count: int, **inputs: object) -> list[Measurement]:
    """Return `count` measurements of one session, each of a different config."""
    return [measurement(session=session, position=i, config={"block_m": i + 1}, **inputs) for i in range(count)]


def key_of(person: str) -> str:
    return (person.encode().hex() * 64)[:64]


def merge_signed(database: Database, people: Mapping[str, Sequence[Measurement]]) -> None:
    """Merge rows as if each person had signed theirs."""
    for person, rows in people.items():
        with Database.memory() as theirs:
            theirs.add_measurements(rows)
            with scratch_folder() as folder:
                for table in ("config", "problem", "measurement"):
                    file, _ = theirs.export(f"FROM db.{table}", folder)
                    file.rename(folder / f"{table}.parquet")
                database.add_from(folder, signer=key_of(person))


@dataclass(frozen=True)
class Person:
    """A simulated user, whose files are all in the folder `home`."""

    home: Path

    @property
    def variables(self) -> dict[str, str]:
        return {
            "HOME": str(self.home),
            "XDG_DATA_HOME": str(self.home / "data"),
            "XDG_CONFIG_HOME": str(self.home / "config"),
            # All persons share the test user's cache, so that checks and derived data are reused.
            "XDG_CACHE_HOME": _CACHE,
        }

    @property
    def database(self) -> Path:
        return self.home / "data" / "kernrec" / "kernrec.duckdb"

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """Run this process with the person's environment inside the context."""
        with patch.dict(os.environ, self.variables):
            os.environ.pop("KERNREC_DB", None)
            yield

    def key(self) -> str:
        """Return the person's public key. Create the key if necessary."""
        with self.at_work():
            return make_own_key()

    def measure(self, rows: Sequence[Measurement]) -> None:
        store_measurements(self.database, rows)

    def push(self, url: object, selection: Selection | None = None) -> int:
        self.key()
        with self.at_work():
            signer = Signer.of(key_file())
            left = push(place_of(str(url)), self.database, selection or Selection(), signer, agree=lambda *_: True)
        return left[0] if left else 0

    def pull(self, url: object, *, untrusted: bool = True) -> PullReport:
        with self.at_work():
            return pull(place_of(str(url)), untrusted=untrusted)

    def pulled(self) -> list[dict[str, object]]:
        with self.at_work():
            return measured_rows(paths.pulled())

    def withdraw(self, url: object, condition: str, reason: str = "a broken fan") -> int:
        """Withdraw the person's pushed measurements, also in their own database. Return the number of measurements."""
        with self.at_work():
            own = self.database if self.database.exists() else None
            signer = Signer.of(key_file())
            return withdraw_there(place_of(str(url)), condition, signer, reason, agree=lambda _: True, own=own)

    def start(self, *arguments: str) -> "subprocess.Popen[bytes]":
        return subprocess.Popen(
            [sys.executable, "-m", "kernrec", *arguments],
            env=environment(**self.variables),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )


def sessions(rows: Sequence[dict[str, object]]) -> list[tuple[object, object]]:
    """Return the sorted (session, position) pairs, which identify measurements in these tests."""
    return sorted((str(row["session"]), row["position"]) for row in rows)


def merge(database: Database, other: Path, note: Callable[[str], object] = str) -> int:
    """Add the rows of a database file to an open database, like `merge_file`. Return the number of new rows."""
    with checked_rows(other, database.path, note) as checked:
        return database.add_from(checked, signer="")


def import_bundle(database: Database, bundle: Bundle) -> int:
    """Add the rows of a bundle to an open database, like `import_to`. Return the number of new rows."""
    with scratch_folder() as checked:
        take_groups([bundle], checked, bundle.place.title)
        return database.add_from(checked, apart_from=PRIVATE, signer=bundle.manifest.owner)
