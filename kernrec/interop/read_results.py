"""Any file of results: which format it is, is seen from its content."""

from pathlib import Path

from kernrec.errors import UsageError
from kernrec.interop.json_document import CutShort, decode, members, read_text
from kernrec.interop.kernel_tuner import read_cache
from kernrec.interop.results import ForeignResults
from kernrec.interop.t4 import read_document


def read_results(path: Path) -> ForeignResults:
    """The results in a T4 file or a Kernel Tuner cache, compressed by gzip or not.

    Raises `UsageError`, in one line that names the file, for anything else and for what is wrong in it.
    """
    text, whole = read_text(path)
    try:
        kind = _kind(text)
    except CutShort:
        raise UsageError(f"{path} is cut short before its first result") from None
    except ValueError as error:
        raise UsageError(f"{path} is not JSON: {error}") from None
    if kind == "cache":
        return read_cache(text, path)
    if kind is None:
        raise UsageError(f"{path} is JSON, but neither a T4 file, which has results, nor a Kernel Tuner cache")
    try:
        document, end = decode(text)
        if text[end:].strip():
            raise ValueError("something follows its end")
    except CutShort:
        raise UsageError(f"{path} is cut short; a T4 file has to be whole") from None
    except ValueError as error:
        raise UsageError(f"{path} is not JSON: {error}") from None
    if not whole:
        raise UsageError(f"{path} is cut short; a T4 file has to be whole")
    return read_document(document, path)


def _kind(text: str) -> str | None:
    """The first member of the document that tells what it is: `cache`, `results` or None."""
    at_member = members(text)
    try:
        name, at = next(at_member)
        while name not in ("cache", "results"):
            _, at = decode(text, at)
            name, at = at_member.send(at)
    except StopIteration:
        return None
    return name
