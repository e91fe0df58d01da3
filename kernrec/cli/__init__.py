"""Define the command line with Typer, with one module per command.

Only results go to standard output. Notes, progress and errors go to standard error. The exit status is 2 for incorrect
usage, 1 for a failure, and 70 for an internal error.
"""

import atexit
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
    statuses: list[int] = []
    atexit.register(_end, statuses)
    from kernrec.cli.app import run

    statuses.append(run(sys.argv[1:]))
    sys.exit(statuses[0])


def _end(statuses: list[int]) -> None:
    """End the process without deleting its objects. `statuses` is empty if the command has crashed."""
    if statuses:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(statuses[0])
