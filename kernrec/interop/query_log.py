"""Log the recommender's queries as JSON lines, which can be read as a workload (`workload_files`)."""

import json
import os
from pathlib import Path

from kernrec.errors import UsageError, cannot_be
from kernrec.op import Problem


def append_query(path: Path, problem: Problem) -> None:
    """Append a query to a log, which is created if necessary. Raises `UsageError` if it cannot be written."""
    line = {"op": problem.op, "shape": problem.dim, "dtype": problem.dtype, "layout": problem.layout}
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            os.write(descriptor, json.dumps(line).encode() + b"\n")  # Use one write, so that programs do not mix lines.
        finally:
            os.close(descriptor)
    except OSError as error:
        raise UsageError(cannot_be("written", f"the query log {path}", error)) from None
