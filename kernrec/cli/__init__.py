"""Define the command line (Typer), with one file per command. Commands print answers and compute nothing.

Standard output carries only the answer. Notes, progress and errors go to standard error. The exit status is 2 for
misuse, 1 for a failure and 70 for an internal error, which is reported in a file of the cache folder.
"""

import gc
import os
import sys

_QUERIES = frozenset({"recommend", "explain", "list", "--version"})
"""Commands that print an answer and end; other commands may run for hours."""
_OBJECTS = 100_000
"""New objects between two runs of the garbage collector. A query creates few reference cycles, but Python's default of
700 would start the collector about ninety times.
"""


def main() -> None:
    """Run the `kernrec` command."""
    # One thread is enough for a query, and each thread of OpenBLAS costs memory and time.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    if _QUERIES.intersection(sys.argv[1:2]):
        gc.set_threshold(_OBJECTS)
    from kernrec.cli.app import run

    status = run(sys.argv[1:])
    if "triton" not in sys.modules:  # keep the collector: Triton warns at exit about objects that are left
        gc.freeze()  # The process ends here, so skip Python's two garbage collections at exit.
    sys.exit(status)
