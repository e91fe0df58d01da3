"""The remotes: databases that teams share, by name, in the order in which they answer.

Their rows answer once they were pulled (`kernrec.store.share.pull`), each remote's from a file of its own beside the
user's database; a query never asks the network.
"""

import re
from pathlib import Path

from kernrec import paths
from kernrec.errors import UsageError, unknown
from kernrec.store.keys import read_settings, write_settings
from kernrec.util.light_dataclass import dataclass

_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,40}")
_SETTINGS = "remotes.json"
_TAKEN = (paths.OWN, "shipped")


@dataclass(frozen=True)
class Remote:
    """A database that is shared."""

    name: str
    url: str
    """`s3://`, `gs://`, `hf://`, `https://`, or the absolute path of a folder."""

    @property
    def folder(self) -> Path:
        """The folder of what was pulled; it may not exist."""
        return paths.remotes() / self.name

    @property
    def pulled(self) -> Path:
        """The database of the rows that were pulled; it may not exist."""
        return self.folder / "rows.duckdb"


def remotes() -> list[Remote]:
    """All remotes, in order."""
    values = read_settings(_SETTINGS, list)
    if not all(isinstance(each, dict) and isinstance(each.get("url"), str) for each in values):
        raise UsageError(f"{paths.config() / _SETTINGS} is not a list of names and URLs")
    return [Remote(_checked(str(each.get("name"))), each["url"]) for each in values]


def remote_named(name: str) -> Remote:
    """The remote of this name; raises `UsageError` if there is none."""
    by_name = {remote.name: remote for remote in remotes()}
    if name not in by_name and "/" in name:
        raise UsageError(f"{name} is a place; `kernrec db remote add NAME {name}` gives it a name to pull it by")
    if name not in by_name:
        raise unknown("remote", name, by_name, "kernrec db remote list")
    return by_name[name]


def add_remote(remote: Remote) -> None:
    """Add a remote as the last one."""
    others = remotes()
    if _checked(remote.name) in [other.name for other in others]:
        raise UsageError(f"there is a remote {remote.name} already (`kernrec db remote list`)")
    _write([*others, remote])


def remove_remote(name: str) -> Remote:
    """Remove a remote, whose rows no longer answer then; what was pulled is deleted, the remote itself stays."""
    from shutil import rmtree

    gone = remote_named(name)
    _write([remote for remote in remotes() if remote.name != name])
    rmtree(gone.folder, ignore_errors=True)
    return gone


def pulled_databases() -> dict[Path, str]:
    """The files of rows that were pulled, in order, with the names of their remotes."""
    return {remote.pulled: remote.name for remote in remotes() if remote.pulled.exists()}


def _checked(name: str) -> str:
    if not _NAME.fullmatch(name) or name in _TAKEN:
        raise UsageError(
            f"{name[:60]!r} cannot be the name of a remote: lower-case letters, digits, '-' and '_' are expected"
        )
    return name


def _write(every: list[Remote]) -> None:
    write_settings(_SETTINGS, [{"name": remote.name, "url": remote.url} for remote in every])
