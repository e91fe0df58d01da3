"""Provide the shipped recording for replay in a fresh clone: every config of a convolution on one GPU.

The recording is of Kernel Tuner's 2-D convolution (f32, 15 x 15 filter, 4096 x 4096 outputs) on an RTX A4000. kernrec
does not ship the kernel's source, so its configs have no profiles. They can be replayed, searched and refined, but not
predicted, explained or learned from.
"""

import os
from hashlib import sha256
from pathlib import Path
from typing import Any

from kernrec import paths
from kernrec.errors import UsageError, cannot_be

NAME = "convolution-rtx-a4000"
KERNEL = "convolution"
GPU = "rtx-a4000"
SHAPE: dict[str, Any] = {"n": 1, "c": 1, "h": 4110, "w": 4110, "k": 1, "r": 15, "s": 15}
SOURCE = "AutoTuningAssociation/benchmark_hub, MIT, December 2023"
DESCRIPTION = f"the recorded space that ships: a convolution on an RTX A4000, 4,362 configs ({SOURCE})"


def shipped_file() -> Path:
    """Return the path of the shipped results, a T4 file."""
    return paths.shipped("db/prebuilt") / "replay" / f"{NAME}.t4.json.gz"


def shipped_recording() -> Path:
    """Return the path of a database with the shipped recording in the cache, which is created atomically on first use.

    Raises:
        UsageError: There is no cache folder.
    """
    from kernrec.interop.import_results import import_results
    from kernrec.op import find_op
    from kernrec.store import Database

    file = shipped_file()
    path = paths.cache() / "replay" / f"{NAME}.{sha256(file.read_bytes()).hexdigest()[:16]}.duckdb"
    if path.exists():
        return path
    temporary = path.with_name(f"{path.stem}.{os.getpid()}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with Database.open(temporary, read_only=False, create=True) as database:
            import_results(database, file, find_op("conv2d").problem(**SHAPE), GPU, KERNEL)
        os.replace(temporary, path)
    except OSError as error:
        raise UsageError(f"{cannot_be('written', path, error)}; name a recording with --replay") from None
    finally:
        temporary.unlink(missing_ok=True)
    return path


def replayed_database() -> Path:
    """Return the default database for replayed rows, which are never stored with the user's measurements."""
    return paths.cache() / "replay" / "replayed.duckdb"
