"""Define the command line with Typer, with one module per command.

Only results go to standard output. Notes, progress and errors go to standard error. The exit status is 2 for incorrect
usage, 1 for a failure, and 70 for an internal error.
"""

import gc
import os
import sys

_OBJECTS = 100_000
"""Number of new objects after which Python collects garbage. The default of 700 slows down imports."""


def main() -> None:
    # One thread is enough for a query, and each thread of OpenBLAS costs memory and time.
    """Run the `kernrec` command."""
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    gc.set_threshold(_OBJECTS)
    from kernrec.cli.app import run

    status = run(sys.argv[1:])
    # Skip garbage collection at exit to save time, except with Triton, which warns about objects that remain.
    if "triton" not in sys.modules:
        gc.freeze()
    sys.exit(status)
