"""Report an unexpected exception in a file instead of a traceback on the terminal."""

import os
import platform
import traceback
from collections.abc import Sequence
from datetime import UTC, datetime

from kernrec import paths
from kernrec.util.files import write_whole
from kernrec.version import __version__

EXIT_STATUS = 70
"""Exit status of an internal error: EX_SOFTWARE of sysexits.h."""


def crash_report(error: Exception, arguments: Sequence[str]) -> str:
    """Write a report of an exception that no command handles, and return the line to show the user."""
    now = datetime.now(UTC)
    folder = paths.cache() / "crashes"
    file = folder / f"{now:%Y%m%dT%H%M%S}-{os.getpid()}.txt"
    report = [
        f"kernrec {__version__}, Python {platform.python_version()}, {platform.platform()}",
        f"{now:%Y-%m-%d %H:%M:%S} UTC",
        f"arguments: {list(arguments)}",
        "",
        "".join(traceback.format_exception(error)),
    ]
    message = " ".join(str(error).split())
    summary = f"internal error in kernrec {__version__}: {type(error).__name__}" + (message and f": {message[:200]}")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_whole(file, "\n".join(report).encode(errors="backslashreplace"))
    except OSError:
        return f"{summary}; KERNREC_DEBUG=1 shows where"
    return f"{summary}; details are in {file}, please report them"
