"""Read and write places (shared folders or servers) and bundles that are folders or zip files."""

import io
import re
import zipfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Protocol

from kernrec.errors import KernrecError, UsageError, file_errors
from kernrec.util.files import open_input, write_whole

MANIFEST, INDEX = "manifest.json", "index.json"
BUNDLE = re.compile(r"[a-z0-9][a-z0-9-]{0,60}/\d{4}-\d\d-\d\d-([0-9a-f]{8})-[0-9a-f]{12}\.zip")
"""Matches the name of a bundle's file. Group 1 of a match is the first digits of the signer's key."""
WITHDRAWAL = re.compile(r"withdrawn/[0-9a-f]{64}\.json")
OLD = re.compile(r"manifests/[0-9a-f]{64}\.(?:json|sig)")
"""Matches the name of a manifest or signature that kernrec 0.1 wrote."""
_CHANGES = re.compile(r"manifest\.json|manifest\.sig|index\.json")
_PART = re.compile(r"segments/[0-9a-f]{64}\.parquet")
_NAME = re.compile("|".join(each.pattern for each in (_CHANGES, _PART, OLD, WITHDRAWAL, BUNDLE)))
MOST_NAMES = 20_000
"""Maximum number of files in a shared folder or server."""
_CHUNK = 2**20
_LARGEST_DIRECTORY = 2**22
"""Maximum size in bytes of the list of files in a zip file, enough for 40,000 files."""


class MissingFileError(UsageError):
    """The shared folder or server has no file with this name."""


class Place(Protocol):
    """A set of named files in a folder, zip file, bucket or web server."""

    @property
    def title(self) -> str:
        """Name of the shared folder or server, for messages."""

    def read(self, name: str, most: int) -> Iterator[bytes]:
        """Yield the content of a file in pieces. Raise `MissingFileError` if there is no such file, and `UsageError` if
        the file is larger than `most` bytes."""

    def write(self, name: str, source: Path) -> None:
        """Write the local file `source` atomically. Keep an existing file if `stays(name)` is True."""

    def names(self) -> list[str]:
        """Return the sorted names of all files, except names that `checked_name` refuses."""


def checked_name(name: str) -> str:
    """Return `name`. Raise `UsageError` if no file that is shared can have this name."""
    if not _NAME.fullmatch(name):
        raise UsageError(f"{name[:80]!r} is not the name of a file in a bundle")
    return name


def bundle_names(names: Iterable[str]) -> list[str]:
    """Sort names, and skip names that `checked_name` refuses. Raise `UsageError` if there are too many names."""
    chosen = sorted(name for name in names if _NAME.fullmatch(name))
    if len(chosen) > MOST_NAMES:
        raise UsageError(f"more than {MOST_NAMES} files are listed, more than any place has")
    return chosen


def writable_names(place: Place) -> list[str]:
    """Return the names of the files in `place`. Raise `UsageError` if kernrec 0.1 wrote the files."""
    names = place.names()
    if any(map(OLD.fullmatch, names)):
        raise UsageError(f"{place.title} is a remote of kernrec 0.1, which is read-only; push to a new place")
    return names


def stays(name: str) -> bool:
    """Return whether a file of this name never changes, because the name contains a hash of the content."""
    return not _CHANGES.fullmatch(name)


class Folder:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.title = str(path)

    def read(self, name: str, most: int) -> Iterator[bytes]:
        path = self.path / checked_name(name)
        with file_errors(path, "read"):
            if path.is_symlink() or not path.is_file():
                raise MissingFileError(f"{self.title} has no {name}")
            with open_input(path) as file:
                yield from bounded(file.read, most, f"{name} of {self.title}")

    def write(self, name: str, source: Path) -> None:
        path = self.path / checked_name(name)
        if stays(name) and path.exists():
            return
        with file_errors(path, "written"):
            path.parent.mkdir(parents=True, exist_ok=True)
            write_whole(path, source.read_bytes(), shared=True)

    def names(self) -> list[str]:
        with file_errors(self.path, "listed"):
            files = list(files_below(self.path))
        if linked := next((path for path in files if path.is_dir()), None):
            raise UsageError(f"{linked} is a link to a folder; put the folder itself there")
        return bundle_names(path.relative_to(self.path).as_posix() for path in files)


class ZipFile:
    """A bundle in a zip file. `title` is the name of the zip file in messages."""

    def __init__(self, path: Path, title: str = "") -> None:
        self.path = path
        self.title = title or str(path)
        self._archive: zipfile.ZipFile | None = None

    def read(self, name: str, most: int) -> Iterator[bytes]:
        archive = self._opened()
        try:
            with archive.open(checked_name(name)) as file:
                yield from bounded(file.read, most, f"{name} of {self.title}")
        except KeyError:
            raise MissingFileError(f"{self.title} has no {name}") from None
        except UsageError:
            raise
        except Exception as error:  # Each decompressor raises its own errors for damaged data.
            raise UsageError(f"{name} of {self.title} cannot be read: {error}") from None

    def write(self, name: str, source: Path) -> None:
        """Add a file to the archive. The manifest comes last and completes the zip file."""
        # Use a fixed time instead of the clock, so that equal bundles have equal bytes.
        entry = zipfile.ZipInfo(checked_name(name), (1980, 1, 1, 0, 0, 0))
        self._archive = None
        with file_errors(self.path, "written"), zipfile.ZipFile(self.path, "a", zipfile.ZIP_STORED) as archive:
            if name not in archive.namelist():
                archive.writestr(entry, source.read_bytes())

    def names(self) -> list[str]:
        return bundle_names(self._opened().namelist())

    def _opened(self) -> zipfile.ZipFile:
        if self._archive is None:
            try:
                self._archive = zipfile.ZipFile(_Bounded(open_input(self.path).detach()))
            except FileNotFoundError:
                raise UsageError(f"there is no {self.title}") from None
            except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError) as error:
                raise UsageError(f"{self.title} is not a bundle: {error}") from None
        return self._archive


class _Bounded(io.BufferedReader):
    """Open file that limits the bytes per read, because an untrusted zip file can state any length."""

    def read(self, size: int | None = -1) -> bytes:
        piece = b""
        if size is None or size <= _LARGEST_DIRECTORY:
            piece = super().read(_LARGEST_DIRECTORY + 1 if size is None or size < 0 else size)
        if len(piece) > _LARGEST_DIRECTORY or (size or 0) > _LARGEST_DIRECTORY:
            raise zipfile.BadZipFile(f"its list of files is longer than {_LARGEST_DIRECTORY} bytes")
        return piece


def files_below(folder: Path) -> Iterator[Path]:
    """Yield the files in a folder and in its direct subfolders. Links to folders are not followed."""
    for path in sorted(folder.iterdir()):
        if path.is_symlink() or not path.is_dir():
            yield path
        else:
            yield from (file for file in sorted(path.iterdir()) if file.is_symlink() or not file.is_dir())


def place_at(path: Path) -> Folder | ZipFile:
    """Return the folder or zip file at a path. If nothing exists there, `.zip` at the end of the path means a zip
    file."""
    if path.is_dir() or (not path.exists() and path.suffix != ".zip"):
        return Folder(path)
    return ZipFile(path)


def bounded(read: Callable[[int], bytes], most: int, title: str, stated: int | None = None) -> Iterator[bytes]:
    """Yield the pieces of a file that `read` returns.

    Args:
        most: Maximum size in bytes. Raise `UsageError` if the file is larger.
        title: Name of the file, for messages.
        stated: Size in bytes according to a server, or None. Raise an error if the size of the file is different.
    """
    limit, received = most if stated is None else stated, 0
    if limit > most:
        raise UsageError(f"{title} is larger than {most} bytes")
    while piece := read(_CHUNK):
        received += len(piece)
        if received > limit:
            raise UsageError(f"{title} is larger than {limit} bytes")
        yield piece
    if stated is not None and received < stated:
        raise KernrecError(f"{title} was cut short by its server")
