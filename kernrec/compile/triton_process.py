"""A process of its own for what loads a user's Triton source: asked in JSON, and killed with all that it started."""

import json
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

from kernrec.errors import KernrecError, UsageError
from kernrec.util.process import kill_group, own_group


def answer_of(
    module: str,
    request: str,
    about: str,
    *,
    work: str = "loads it",
    limit_s: float | None = None,
    environment: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """The last line that `python -m module` prints, as JSON; standard input is `request`.

    Args:
        module: to run.
        request: JSON text.
        about: the function that messages name.
        work: what the process does with it, for the message where it dies.
        limit_s: how long it may take, seconds; None: as long as it likes.
        environment: of the process; None: that of this one.

    Raises:
        UsageError: it took too long.
        KernrecError: it died.
    """
    pipe = subprocess.PIPE
    command = [sys.executable, "-m", module]
    process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, env=environment, **own_group())
    try:
        output, errors = process.communicate(request.encode(), timeout=limit_s)
    except subprocess.TimeoutExpired:
        raise UsageError(f"{about}: the process that {work} took longer than {limit_s:g} s") from None
    finally:
        kill_group(process)
        process.wait()
    try:
        return dict(json.loads(output.splitlines()[-1]))
    except (ValueError, IndexError):
        reason = (errors.decode(errors="replace").strip().splitlines() or [f"exit status {process.returncode}"])[-1]
        raise KernrecError(f"{about}: the process that {work} died: {reason:.200}") from None
