"""Locate kernrec's files: shipped data, and the user's database, settings and cache.

These functions create no folders; the code that writes a file does.
"""

import os
from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent
OWN = "own"
"""Name of the user's own database in answers."""
PULLED = "pulled"
"""Name of the database of pulled rows in answers."""


def shipped(name: str) -> Path:
    """Return a folder of shipped data: `db/schema`, `db/prebuilt` or `datasets/workloads`.

    An installed wheel has these folders in `kernrec/_data`, and a checkout next to the package.
    """
    installed = _PACKAGE / "_data" / name
    return installed if installed.is_dir() else _PACKAGE.parent / name


def cache() -> Path:
    """Return the user's cache folder (`KERNREC_CACHE`, else `$XDG_CACHE_HOME/kernrec`, else `~/.cache/kernrec`)."""
    if chosen := os.environ.get("KERNREC_CACHE"):
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "kernrec"


def user_database() -> Path:
    """Return the user's own database (`KERNREC_DB`, else `$XDG_DATA_HOME/kernrec/kernrec.duckdb`); it may not exist."""
    if chosen := os.environ.get("KERNREC_DB"):
        return Path(chosen)
    data = os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share"
    return Path(data) / "kernrec" / "kernrec.duckdb"


def config() -> Path:
    """Return the folder of the user's settings, such as keys (`KERNREC_CONFIG`, else `$XDG_CONFIG_HOME/kernrec`)."""
    if chosen := os.environ.get("KERNREC_CONFIG"):
        return Path(chosen)
    return Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "kernrec"


def state() -> Path:
    """Return the folder of files that outlive a killed program (`KERNREC_STATE`, else `$XDG_STATE_HOME/kernrec`); it
    may not exist.
    """
    if chosen := os.environ.get("KERNREC_STATE"):
        return Path(chosen)
    return Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "kernrec"


def pulled() -> Path:
    """Return the database of pulled rows, next to the user's own database; it may not exist."""
    own = user_database()
    return own.with_name(f"{own.stem}.pulled.duckdb")


def remotes() -> Path:
    """Return the folder of rows that kernrec 0.1 pulled, with one folder per remote; it may not exist."""
    return user_database().parent / "remotes"


def models() -> Path:
    """Return the folder of trained models, next to the user's own database; it may not exist."""
    return user_database().parent / "models"


def query_log() -> Path | None:
    """Return the file that logs each query's problem (`KERNREC_QUERY_LOG`); None without a log."""
    chosen = os.environ.get("KERNREC_QUERY_LOG")
    return Path(chosen) if chosen else None
