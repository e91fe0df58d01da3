"""Command line, one file per command (Typer): renders, never computes.

Standard output carries the answer alone; notes, progress and errors go to standard error. Exit status 2 is
misuse, 1 is failure, 70 an internal error, of which a report is in the cache folder.
"""

import os
import sys


def main() -> None:
    """Entry point of the `kernrec` command."""
    # One thread is enough for a query and OpenBLAS takes memory and time for each it starts.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    from kernrec.cli.app import run

    sys.exit(run(sys.argv[1:]))
