"""Capture all launches of a process, from its import of Triton to its end, as `kernrec capture` does."""

import atexit
import os
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from kernrec.compile.torch_stand_in import on_cpu, torch_without_gpu
from kernrec.errors import KernrecError
from kernrec.triton.calls.call_writer import PER_FUNCTION
from kernrec.triton.calls.hooks import Captured, capture

FOLDER_VARIABLE = "KERNREC_CAPTURE"
GPU_VARIABLE = "KERNREC_CAPTURE_GPU"
COUNT_VARIABLE = "KERNREC_CAPTURE_PER_FUNCTION"
SITE = Path(__file__).resolve().parent / "site"
"""Folder to put first on the module path of a captured process."""

_stack = ExitStack()
_running: list[Captured] = []


def triton_loaded() -> None:
    """Start a capture that lasts until the process ends, and then reports the launches that it skipped."""
    if _running:
        return
    count = os.environ.get(COUNT_VARIABLE, "")
    try:
        captured = _stack.enter_context(
            capture(
                os.environ[FOLDER_VARIABLE],
                os.environ.get(GPU_VARIABLE) or "a100",
                int(count) if count.isdecimal() else PER_FUNCTION,
            )
        )
    except KernrecError as error:
        print(f"kernrec capture: {error}", file=sys.stderr)
        return
    _running.append(captured)
    atexit.register(_end, captured)
    torch_loaded()


def torch_loaded() -> None:
    """Simulate a GPU for torch if the capture is active."""
    for captured in _running:
        if captured.card is not None and "torch" in sys.modules:
            _stack.enter_context(torch_without_gpu(captured.card))
            _stack.enter_context(on_cpu())


def _end(captured: Any) -> None:
    for name, count in captured.left_out.items():
        print(f"kernrec: {name}: {count} further launches were not written", file=sys.stderr)
