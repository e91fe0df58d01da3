"""Where kernrec's files are: the data that ships with it, and the user's own database, settings and cache.

Nothing here creates a folder; whoever writes does, and says plainly when it cannot.
"""

import os
from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent
OWN = "own"
"""The name of the user's own database in answers."""
PULLED = "pulled"
"""The name of the database of pulled rows in answers."""


def shipped(name: str) -> Path:
    """A folder of data shipped with kernrec: `db/schema`, `db/prebuilt` or `datasets/workloads`.

    An installed wheel carries them under `kernrec/_data`; a checkout has them beside the package.
    """
    installed = _PACKAGE / "_data" / name
    return installed if installed.is_dir() else _PACKAGE.parent / name


def cache() -> Path:
    """The user's cache folder (`KERNREC_CACHE`, else `$XDG_CACHE_HOME/kernrec`, else `~/.cache/kernrec`)."""
    if chosen := os.environ.get("KERNREC_CACHE"):
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "kernrec"


def user_database() -> Path:
    """The user's own database (`KERNREC_DB`, else `$XDG_DATA_HOME/kernrec/kernrec.duckdb`); it may not exist."""
    if chosen := os.environ.get("KERNREC_DB"):
        return Path(chosen)
    data = os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share"
    return Path(data) / "kernrec" / "kernrec.duckdb"


def config() -> Path:
    """The user's settings: trusted keys, the own key (`KERNREC_CONFIG`, else `$XDG_CONFIG_HOME/kernrec`)."""
    if chosen := os.environ.get("KERNREC_CONFIG"):
        return Path(chosen)
    return Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "kernrec"


def state() -> Path:
    """Files that outlive a killed program (`KERNREC_STATE`, else `$XDG_STATE_HOME/kernrec`); it may not exist."""
    if chosen := os.environ.get("KERNREC_STATE"):
        return Path(chosen)
    return Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "kernrec"


def pulled() -> Path:
    """Return the database of the rows that were pulled, beside the user's own database; it may not exist."""
    own = user_database()
    return own.with_name(f"{own.stem}.pulled.duckdb")


def remotes() -> Path:
    """Return the folder of the rows that kernrec 0.1 pulled, each remote's in a folder; it may not exist."""
    return user_database().parent / "remotes"


def models() -> Path:
    """Where trained models are: beside the user's own database; the folder may not exist."""
    return user_database().parent / "models"


def query_log() -> Path | None:
    """The file that each query's problem is added to (`KERNREC_QUERY_LOG`); None: no log is kept."""
    chosen = os.environ.get("KERNREC_QUERY_LOG")
    return Path(chosen) if chosen else None
