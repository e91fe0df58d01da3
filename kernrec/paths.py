"""Locate kernrec's files: shipped data, and the user's database, settings and cache.

These functions only return paths. The code that writes a file creates the folder.
"""

import os
from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent
OWN = "own"
"""Name under which answers list the user's own database."""
PULLED = "pulled"
"""Name under which answers list the database of rows pulled from remotes."""


def shipped(name: str) -> Path:
    """Return the path of a folder of shipped data: `db/schema`, `db/prebuilt` or `datasets/workloads`.

    In an installed wheel, these folders are in `kernrec/_data`. In a checkout, they are next to the package.
    """
    installed = _PACKAGE / "_data" / name
    return installed if installed.is_dir() else _PACKAGE.parent / name


def cache() -> Path:
    """Return the path of the user's cache folder.

    It is `KERNREC_CACHE` if set, else `$XDG_CACHE_HOME/kernrec`, else `~/.cache/kernrec`.
    """
    if chosen := os.environ.get("KERNREC_CACHE"):
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "kernrec"


def user_database() -> Path:
    """Return the path of the user's own database, which may not exist.

    It is `KERNREC_DB` if set, else `$XDG_DATA_HOME/kernrec/kernrec.duckdb` (`XDG_DATA_HOME` is `~/.local/share` by
    default).
    """
    if chosen := os.environ.get("KERNREC_DB"):
        return Path(chosen)
    data = os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share"
    return Path(data) / "kernrec" / "kernrec.duckdb"


def config() -> Path:
    """Return the path of the folder of the user's settings, such as keys.

    It is `KERNREC_CONFIG` if set, else `$XDG_CONFIG_HOME/kernrec` (`XDG_CONFIG_HOME` is `~/.config` by default).
    """
    if chosen := os.environ.get("KERNREC_CONFIG"):
        return Path(chosen)
    return Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "kernrec"


def state() -> Path:
    """Return the path of the folder for state that must survive if kernrec is killed. The folder may not exist.

    It is `KERNREC_STATE` if set, else `$XDG_STATE_HOME/kernrec` (`XDG_STATE_HOME` is `~/.local/state` by default).
    """
    if chosen := os.environ.get("KERNREC_STATE"):
        return Path(chosen)
    return Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "kernrec"


def pulled() -> Path:
    """Return the path of the database of pulled rows, next to the user's own database. It may not exist."""
    own = user_database()
    return own.with_name(f"{own.stem}.pulled.duckdb")


def remotes() -> Path:
    """Return the path of the folder of rows that kernrec 0.1 pulled, with a subfolder per remote. It may not exist."""
    return user_database().parent / "remotes"


def models() -> Path:
    """Return the path of the folder of trained models, next to the user's own database. It may not exist."""
    return user_database().parent / "models"


def query_log() -> Path | None:
    """Return the path of the log of queried problems (`KERNREC_QUERY_LOG`), or None if it is not set."""
    chosen = os.environ.get("KERNREC_QUERY_LOG")
    return Path(chosen) if chosen else None
