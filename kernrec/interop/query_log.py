"""Log the recommender's queries as JSON lines, which can be read as a workload (`workload_files`)."""

import json
import os
from pathlib import Path

from kernrec.errors import UsageError, cannot_be
from kernrec.op import Problem


def append_query(path: Path, problem: Problem) -> None:
    """Append a line to a log, created if necessary; raise `UsageError` if it cannot be written."""
    line = {"op": problem.op, "shape": problem.dim, "dtype": problem.dtype, "layout": problem.layout}
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            os.write(descriptor, json.dumps(line).encode() + b"\n")  # one write: lines of several programs do not mix
        finally:
            os.close(descriptor)
    except OSError as error:
        raise UsageError(cannot_be("written", f"the query log {path}", error)) from None
