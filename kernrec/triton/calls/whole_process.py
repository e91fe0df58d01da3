"""Capture all launches of a process, from its import of Triton to its end, as `kernrec capture` does."""

import atexit
import os
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from kernrec.compile.gpu_stand_in import loaded_torch, torch_without_gpu
from kernrec.errors import KernrecError
from kernrec.triton.calls.call_writer import PER_FUNCTION
from kernrec.triton.calls.hooks import Captured, capture

FOLDER_VARIABLE = "KERNREC_CAPTURE"
GPU_VARIABLE = "KERNREC_CAPTURE_GPU"
COUNT_VARIABLE = "KERNREC_CAPTURE_PER_FUNCTION"
REFUSED_VARIABLE = "KERNREC_CAPTURE_REFUSED"
SITE = Path(__file__).resolve().parent / "site"
"""Folder to put first on the module path of a captured process."""

_stack = ExitStack()
_running: list[Captured] = []
_torch_shows_gpu = False
_starting = False


def library_loaded() -> None:
    """Start a capture that lasts until the process ends; if it runs, let torch show the simulated GPU.

    A program may import torch or Triton first, and torch may import Triton.
    """
    global _torch_shows_gpu
    if _starting or (not _running and not _started()):
        return
    (captured,) = _running
    if captured.card is not None and not _torch_shows_gpu and loaded_torch() is not None:
        _torch_shows_gpu = True
        _stack.enter_context(torch_without_gpu(captured.card))


def _started() -> bool:
    """Start the capture, and return whether it runs."""
    global _starting, _torch_shows_gpu
    count = os.environ.get(COUNT_VARIABLE, "")
    _torch_shows_gpu = loaded_torch() is not None  # The capture replaces the functions of a loaded torch.
    _starting = True
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
        return False
    finally:
        _starting = False
    _running.append(captured)
    atexit.register(_end, captured)
    return True


def _end(captured: Any) -> None:
    for name, count in captured.left_out.items():
        print(f"kernrec: {name}: {count} further launches were not written", file=sys.stderr)
    if captured.refused and (file := os.environ.get(REFUSED_VARIABLE)):
        with Path(file).open("a", encoding="utf-8") as refused:
            refused.writelines(f"{name}: {reason}\n" for name, reason in captured.refused.items())
