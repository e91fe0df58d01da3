"""Runs a program with the stand-ins for CUDA's libraries, and serves its calls."""

import os
import socket
import subprocess
import tempfile
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

from kernrec.capture.native_library import libraries
from kernrec.capture.recorded_calls import Recorder
from kernrec.capture.session import Session
from kernrec.errors import UsageError, cannot_be
from kernrec.gpu import GPU

SOCKET_VARIABLE = "KERNREC_CAPTURE_SOCKET"
BUDGET = 2_000_000_000


def run_program(
    command: Sequence[str], gpu: GPU, recorder: Recorder, environment: Mapping[str, str], budget: int = BUDGET
) -> int:
    """Run a program and return its exit status.

    Args:
        command: The program and its arguments.
        gpu: The GPU that it sees.
        recorder: Where its launches go.
        environment: Of the program.
        budget: PTX instructions that a batch of thread blocks may execute.
    """
    with tempfile.TemporaryDirectory(prefix="kernrec-") as folder, socket.socket(socket.AF_UNIX) as listener:
        path = str(Path(folder, "socket"))
        listener.bind(path)
        listener.listen()
        threading.Thread(target=_accept, args=(listener, gpu, recorder, budget), daemon=True).start()
        libraries_first = os.pathsep.join(filter(None, [str(libraries()), environment.get("LD_LIBRARY_PATH")]))
        variables = {**environment, SOCKET_VARIABLE: path, "LD_LIBRARY_PATH": libraries_first}
        try:
            return subprocess.run(list(command), env=variables, check=False).returncode
        except OSError as error:
            raise UsageError(cannot_be("run", command[0], error)) from None


def _accept(listener: socket.socket, gpu: GPU, recorder: Recorder, budget: int) -> None:
    while True:
        try:
            connection, _ = listener.accept()
        except OSError:
            return
        threading.Thread(target=Session(connection, gpu, recorder, budget).serve, daemon=True).start()
