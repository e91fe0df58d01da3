"""Places that files of bundles and of remotes are in: a folder or a zip file; object stores are in object_store.py.

Names are of the closed form of `checked_name`; nothing that a stranger wrote is ever used as a path.
"""

import re
import zipfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Protocol

from kernrec.errors import UsageError, file_errors
from kernrec.util.atomic_write import write_whole

MANIFEST, INDEX = "manifest.json", "index.json"
_CHANGES = re.compile(r"manifest\.json|manifest\.sig|index\.json")
_NAME = re.compile(
    rf"{_CHANGES.pattern}|segments/[0-9a-f]{{64}}\.parquet|models/[0-9a-f]{{64}}|manifests/[0-9a-f]{{64}}\.(?:json|sig)"
)
_CHUNK = 2**20


class Place(Protocol):
    """Where files are, by name. A file appears whole or not at all."""

    @property
    def title(self) -> str:
        """Its name in messages."""

    def read(self, name: str, most: int) -> Iterator[bytes]:
        """The pieces of a file of at most `most` bytes; raises `UsageError` if there is none or it is larger."""

    def write(self, name: str, source: Path) -> None:
        """Put a file there, whole or not at all; a segment that is there already stays."""

    def names(self, under: str = "") -> list[str]:
        """The names of the files there that a bundle or remote can have and that begin with `under`, sorted."""


def checked_name(name: str) -> str:
    """`name` if it is one that a bundle or remote can have; else `UsageError`."""
    if not _NAME.fullmatch(name):
        raise UsageError(f"{name[:80]!r} is not the name of a file in a bundle")
    return name


def bundle_names(names: Iterable[str], under: str) -> list[str]:
    """Those of `names` that a bundle or remote can have and that begin with `under`, sorted."""
    return sorted(name for name in names if name.startswith(under) and _NAME.fullmatch(name))


def stays(name: str) -> bool:
    """Whether a file never changes once it is there, because its content is in its name."""
    return not _CHANGES.fullmatch(name)


class Folder:
    """A bundle as a folder."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.title = str(path)

    def read(self, name: str, most: int) -> Iterator[bytes]:
        """See `Place.read`."""
        path = self.path / checked_name(name)
        with file_errors(path, "read"):
            if path.is_symlink() or not path.is_file():
                raise UsageError(f"{self.title} has no {name}")
            with path.open("rb") as file:
                yield from pieces(file, most, f"{name} of {self.title}")

    def write(self, name: str, source: Path) -> None:
        """See `Place.write`."""
        path = self.path / checked_name(name)
        if stays(name) and path.exists():
            return
        with file_errors(path, "written"):
            path.parent.mkdir(parents=True, exist_ok=True)
            write_whole(path, source.read_bytes(), shared=True)

    def names(self, under: str = "") -> list[str]:
        """See `Place.names`."""
        files = (path for folder in ("", "manifests", "models", "segments") for path in (self.path / folder).glob("*"))
        return bundle_names((path.relative_to(self.path).as_posix() for path in files if path.is_file()), under)


class ZipFile:
    """A bundle as a zip file; files in it are stored, because Parquet is compressed already."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.title = str(path)

    def read(self, name: str, most: int) -> Iterator[bytes]:
        """See `Place.read`."""
        with self._opened() as archive:
            try:
                with archive.open(checked_name(name)) as file:
                    yield from pieces(file, most, f"{name} of {self.title}")
            except KeyError:
                raise UsageError(f"{self.title} has no {name}") from None
            except (zipfile.BadZipFile, NotImplementedError, RuntimeError, OSError, EOFError, ValueError) as error:
                raise UsageError(f"{name} of {self.title} cannot be read: {error}") from None

    def write(self, name: str, source: Path) -> None:
        """See `Place.write`; the file is complete once the manifest, the last, is written."""
        entry = zipfile.ZipInfo(checked_name(name), (1980, 1, 1, 0, 0, 0))  # no clock: equal bundles have equal bytes
        with file_errors(self.path, "written"), zipfile.ZipFile(self.path, "a", zipfile.ZIP_STORED) as archive:
            if name not in archive.namelist():
                archive.writestr(entry, source.read_bytes())

    def names(self, under: str = "") -> list[str]:
        """See `Place.names`."""
        with self._opened() as archive:
            return bundle_names(archive.namelist(), under)

    @contextmanager
    def _opened(self) -> Iterator[zipfile.ZipFile]:
        try:
            archive = zipfile.ZipFile(self.path)
        except FileNotFoundError:
            raise UsageError(f"there is no {self.title}") from None
        except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError) as error:
            raise UsageError(f"{self.title} is not a bundle: {error}") from None
        with archive:
            yield archive


def place_at(path: Path) -> Folder | ZipFile:
    """The folder or zip file at a path; one that does not exist is a zip file if its name ends so."""
    if path.is_dir() or (not path.exists() and path.suffix != ".zip"):
        return Folder(path)
    return ZipFile(path)


def pieces(file: IO[bytes], most: int, title: str) -> Iterator[bytes]:
    """The content of an open file in pieces; raises `UsageError` once it is larger than `most` bytes."""
    size = 0
    while piece := file.read(_CHUNK):
        size += len(piece)
        if size > most:
            raise UsageError(f"{title} is larger than {most} bytes")
        yield piece
