"""Read files of the only folder that tools may access."""

from pathlib import Path

from kernrec.errors import UsageError
from kernrec.gpu.card_file import read_card
from kernrec.kernel.source_files import read_text


class Folder:
    """Folder that tools may read; None to forbid files. Raises `UsageError` if the folder does not exist."""

    def __init__(self, path: Path | None) -> None:
        self._path = None if path is None else path.resolve()
        if self._path is not None and not self._path.is_dir():
            raise UsageError(f"--folder {str(path)!r:.80}: there is no such folder")

    def text(self, name: str) -> str:
        """Return the text of a file by its path inside the folder. Raises `UsageError` if the file is unreadable or
        outside, even through a link.
        """
        return read_text(self._inside(name), name)

    def cards(self, gpus: str) -> str:
        """Replace GPU files of the folder by their GPUs' names in a comma-separated list. Raises `UsageError` if a file
        is outside the folder, or describes an impossible GPU.
        """
        parts = (part.strip() for part in gpus.split(","))
        return ",".join(self._card(part) if part.lower().endswith(".toml") else part for part in parts)

    def _card(self, name: str) -> str:
        path = self._inside(name)
        try:
            return read_card(path).name
        except UsageError as error:  # The message would reveal the folder's path on this machine.
            raise UsageError(str(error).replace(str(path), name)) from None

    def _inside(self, name: str) -> Path:
        if self._path is None:
            raise UsageError(f"file {name!r:.60}: the server was started without --folder, so it reads no files")
        if "\0" in name:
            raise UsageError("the file name contains a NUL byte")
        path = (self._path / name).resolve()
        if not path.is_relative_to(self._path):
            raise UsageError(f"file {name!r:.60} is outside the folder that this server reads")
        if not path.is_file():
            raise UsageError(f"file {name!r:.60}: there is no such file in the folder that this server reads")
        return path
