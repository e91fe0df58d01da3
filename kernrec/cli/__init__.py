"""Command line, one file per command (Typer): renders, never computes.

Standard output carries the answer alone; notes, progress and errors go to standard error. Exit status 2 is
misuse, 1 is failure, 70 an internal error, of which a report is in the cache folder.
"""

import gc
import os
import sys

_QUERIES = frozenset({"recommend", "explain", "list", "--version"})
"""Commands that answer and end; others may run for hours."""
_OBJECTS = 100_000
"""New objects between two searches for reference cycles in a query, which makes few more in its fifth of a second;
with Python's default of 700 it is searched some ninety times."""


def main() -> None:
    """Entry point of the `kernrec` command."""
    # One thread is enough for a query and OpenBLAS takes memory and time for each it starts.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    if _QUERIES.intersection(sys.argv[1:2]):
        gc.set_threshold(_OBJECTS)
    from kernrec.cli.app import run

    status = run(sys.argv[1:])
    if "triton" not in sys.modules:  # which says at the end what of it is still there
        gc.freeze()  # what is alive ends with the process: Python would search it all for cycles twice more
    sys.exit(status)
