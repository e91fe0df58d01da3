"""Files of strangers, read in this process by the code that a process of its own runs otherwise: it starts at once."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any
from unittest.mock import patch

from kernrec.errors import UsageError
from kernrec.store.reader import READER, Limits


def read_here(
    task: str, request: Mapping[str, Any], title: str, size: int, folder: Path, reader: str = READER
) -> dict[str, Any]:
    """The answer of `kernrec.store.reader.read_apart`."""
    request = {"task": task, "title": title, "folder": str(folder), **request}
    done = import_module(reader).answer(request, Limits.of(size))
    if "refused" in done:
        raise UsageError(done["refused"])
    return dict(done["found"] or {})


@contextmanager
def reading_here() -> Iterator[None]:
    """While the context lasts, no process is started to read databases and segments."""
    with patch("kernrec.store.reader.read_apart", read_here):
        yield
