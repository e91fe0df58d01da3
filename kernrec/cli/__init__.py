"""Define the command line with Typer, with one module per command.

Only results go to standard output. Notes, progress and errors go to standard error. The exit status is 2 for incorrect
usage, 1 for a failure, and 70 for an internal error.
"""

import atexit
import gc
import os
import sys
from typing import NoReturn

_OBJECTS = 200_000
"""Number of new objects after which Python collects garbage. The default of 700 slows down imports."""


def main() -> NoReturn:
    """Run the `kernrec` command, and raise `SystemExit`."""
    sys.exit(_status())


def command() -> NoReturn:
    """Run the `kernrec` command, then end the process without deleting its objects, to save time."""
    status = _status()
    atexit.register(_end, status)
    sys.exit(status)


def _status() -> int:
    # One thread is enough for a query, and each thread of OpenBLAS costs memory and time.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    gc.set_threshold(_OBJECTS)
    from kernrec.cli.app import run

    return run(sys.argv[1:])


def _end(status: int) -> None:
    """Run the functions that were registered with `atexit` earlier, then end the process at once."""
    atexit.unregister(_end)
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)
