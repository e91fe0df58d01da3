"""A remote cache for Helion: what its autotuner chose, in a folder beside the user's database, or one of a team.

    HELION_AUTOTUNE_CACHE=RemoteAutotuneCache
    HELION_REMOTE_CACHE_BACKEND=kernrec.triton.helion_cache.FolderCache

Helion's keys are hashes of source, arguments, card and release, so that an entry answers for nothing else. An entry is
Helion's own: the config, the key, and no time. It is checked before Helion gets it, for anybody may write to the
folder. This module is imported by Helion alone.
"""

import json
import os
import re
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from helion.autotuner.remote_cache import RemoteCacheBackend

from kernrec import paths
from kernrec.errors import KernrecError
from kernrec.triton.helion_version import check_helion
from kernrec.util.atomic_write import write_whole
from kernrec.util.input_file import read_input

_KEY = re.compile(r"[0-9a-f]{64}")
_LARGEST = 1 << 20
_MOST_LISTED = 1000
_FIELDS = {"config", "key", "flat_config", "cute_structural_policy"}


class FolderCache(RemoteCacheBackend):  # type: ignore[misc]
    """The backend that Helion calls, one file an entry: in KERNREC_HELION, else `helion` beside the user's database."""

    def __init__(self) -> None:
        check_helion()
        self.folder = Path(os.environ.get("KERNREC_HELION") or paths.user_database().parent / "helion")

    def get(self, key: str) -> str | None:
        """The entry of a key; None where there is none, or one that is none of Helion's."""
        path = self._path(key)
        with suppress(OSError, ValueError, KernrecError):
            return checked_entry(read_input(path, _LARGEST).decode())
        return None

    def put(self, key: str, data: str) -> None:
        """Keeps an entry; raises `KernrecError` for one that is none of Helion's, and `OSError`."""
        path = self._path(key)
        try:
            entry = checked_entry(data)
        except ValueError as error:
            raise KernrecError(f"not an entry of Helion's cache: {error}") from None
        self.folder.mkdir(parents=True, exist_ok=True)
        write_whole(path, entry.encode())

    def list(self, max_results: int | None = None) -> Iterable[str]:
        """Entries, the newest first; with them a search can begin where others ended."""
        if not self.folder.is_dir():
            return []
        files = [path for path in self.folder.glob("*.json") if _KEY.fullmatch(path.stem)]
        files.sort(key=lambda path: path.stat().st_mtime, reverse=True)
        most = _MOST_LISTED if max_results is None else max(max_results, 0)
        entries = (self.get(path.stem) for path in files[:most])
        return [entry for entry in entries if entry is not None]

    def _path(self, key: str) -> Path:
        if not _KEY.fullmatch(key):
            raise KernrecError(f"{key!r:.80} is not a key of Helion's cache; 64 hex digits are expected")
        return self.folder / f"{key}.json"


def checked_entry(text: str) -> str:
    """An entry of Helion's cache as it is; raises `ValueError` for anything else."""
    if len(text) > _LARGEST:
        raise ValueError(f"it is longer than {_LARGEST} characters")
    try:
        entry = json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    if not isinstance(entry, dict) or not {"config", "key"} <= entry.keys() <= _FIELDS:
        raise ValueError(f"expected an object with {', '.join(sorted(_FIELDS))}")
    config = json.loads(entry["config"]) if isinstance(entry["config"], str) else None
    if not isinstance(config, dict):
        raise ValueError("its config is not an object")
    fields = entry["key"].get("fields") if isinstance(entry["key"], dict) else None
    if not isinstance(fields, dict) or not all(isinstance(value, str) for value in fields.values()):
        raise ValueError("its key has no fields")
    return text
