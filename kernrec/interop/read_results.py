"""Reading any file of results; its format is detected from its content."""

from pathlib import Path

from kernrec.errors import UsageError
from kernrec.interop.json_document import CutShort, decode, members, read_text, whole_document
from kernrec.interop.kernel_tuner import read_cache
from kernrec.interop.results import ForeignResults
from kernrec.interop.t4 import read_document
from kernrec.interop.table import TableOptions, is_parquet, read_table
from kernrec.interop.triton_autotune import MEMBER, read_autotune


def read_results(path: Path, table: TableOptions | None = None) -> ForeignResults:
    """The results in a T4 file, a Kernel Tuner cache or Triton's autotune cache, which may be compressed by gzip, or in
    a table.

    Args:
        path: of the file.
        table: how a CSV or Parquet file is read; None where the tunables are unknown, and no table can be read.

    Raises:
        UsageError: in one line that names the file, for any other file and for errors in it.
    """
    if is_parquet(path) or path.name.endswith((".csv", ".csv.gz")):
        if table is None:
            raise UsageError(f"{path} is a table; --kernel and --spec say which of its columns are tunables")
        return read_table(path, table)
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
        raise UsageError(
            f"{path} is JSON, but neither a T4 file, which has results, nor a cache of Kernel Tuner or Triton"
        )
    title = "a T4 file" if kind == "results" else "an autotune cache"
    try:
        document = whole_document(text, infinity=kind == MEMBER)
    except CutShort:
        raise UsageError(f"{path} is cut short; {title} must be complete") from None
    except ValueError as error:
        raise UsageError(f"{path} is not JSON: {error}") from None
    if not whole:
        raise UsageError(f"{path} is cut short; {title} must be complete")
    return read_document(document, path) if kind == "results" else read_autotune(document, path)


_KINDS = ("cache", "results", MEMBER)


def _kind(text: str) -> str | None:
    """The first member of the document that identifies its format, one of `_KINDS`; None without any."""
    next_member = members(text)
    try:
        name, position = next(next_member)
        while name not in _KINDS:
            _, position = decode(text, position)
            name, position = next_member.send(position)
    except StopIteration:
        return None
    return name
