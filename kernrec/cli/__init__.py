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
    from kernrec.cli.app import run

    status = run(sys.argv[1:])
    caller = sys._getframe(1)
    # If the caller may catch `SystemExit`, the process may go on, and end with another status.
    if caller.f_globals.get("__name__") == "__main__" and not caller.f_code.co_exceptiontable:
        atexit.register(_end, status)
    sys.exit(status)


def _end(status: int) -> None:
    """End the process without deleting its objects. Call the functions of `atexit` that were registered earlier."""
    atexit.unregister(_end)
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)
