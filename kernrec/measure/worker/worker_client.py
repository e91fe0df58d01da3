"""The parent's end of the measuring process: requests with a time limit, and a new process when one is lost.

The child leads a process group of its own, so that Ctrl-C at the terminal does not reach it and a kill reaches all that
it may have started.
"""

import json
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from kernrec.errors import KernrecError
from kernrec.measure.device.interface import MeasurementFailure

START_LIMIT_S = 120.0
"""To start an interpreter and make a CUDA context on a busy machine."""
_KILL_LIMIT_S = 30.0
_SLICE_S = 0.2
"""How often a wait looks whether the campaign was told to stop."""


class Stopped(Exception):  # noqa: N818 - no error: the campaign was told to stop
    """The campaign was told to stop while the child was busy; the child is gone."""


class WorkerClient:
    """A worker process, started when first asked. `opening` is the request that opens its device.

    stopping: asked while waiting for an answer; once true, the child is killed and `Stopped` raised.
    """

    def __init__(self, opening: Mapping[str, Any], stopping: Callable[[], bool] = lambda: False) -> None:
        self._opening = dict(opening)
        self._stopping = stopping
        self._process: subprocess.Popen[bytes] | None = None
        self._said: Any = None
        self._buffer = b""
        self.facts: dict[str, Any] = {}
        self.device_s = 0.0
        """Seconds of the device's own clock that all requests took together."""
        self.starts = 0

    @property
    def alive(self) -> bool:
        """Whether a process is there that can be asked."""
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int | None:
        """Of the process, for whoever wants to see how it is killed."""
        return self._process.pid if self._process else None

    def remember(self, **items: Any) -> None:
        """Add to what a new process is told when it opens the device."""
        self._opening |= items

    def start(self) -> None:
        """Start a process and open the device in it. Raises `KernrecError` when that fails."""
        self._said = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the process
        environment = os.environ | {"PYTHONUNBUFFERED": "1", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
        if self._opening.get("uuid"):
            environment["CUDA_VISIBLE_DEVICES"] = self._opening["uuid"]
        environment.pop("OPENBLAS_NUM_THREADS", None)  # a query needs one thread; a reference needs all there are
        self._process = subprocess.Popen(
            [sys.executable, "-m", "kernrec.measure.worker.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._said,
            env=environment,
            start_new_session=True,
        )
        self._buffer = b""
        self.starts += 1
        try:
            self.facts = self._ask({"do": "open", **self._opening}, START_LIMIT_S)
        except MeasurementFailure as failure:
            self.stop()
            raise KernrecError(f"the device cannot be opened: {failure}") from None

    def ask(self, limit_s: float, do: str, **items: Any) -> Any:
        """The answer to a request. Raises `MeasurementFailure` for one that failed, timed out or ended the process.

        After a failure that the process did not survive, `alive` is false: `start` makes a new one.
        """
        if not self.alive:
            self.stop()  # one that died unasked
            self.start()
        return self._ask({"do": do, **items}, limit_s)

    def stop(self) -> None:
        """Kill the process and all it started; what it was doing is lost."""
        process, self._process = self._process, None
        if process is None:
            return
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        with suppress(subprocess.TimeoutExpired):  # one that hangs in the driver may not even heed this
            process.wait(_KILL_LIMIT_S)
        for stream in (process.stdin, process.stdout, self._said):
            with suppress(OSError):
                if stream is not None:
                    stream.close()

    def _ask(self, request: Mapping[str, Any], limit_s: float) -> Any:
        process = self._process
        assert process is not None
        assert process.stdin is not None
        try:
            process.stdin.write(json.dumps(request).encode() + b"\n")
            process.stdin.flush()
            line = self._line(process, time.monotonic() + limit_s)
        except BrokenPipeError:
            line = None
        if line is None:
            raise self._died(process)
        answer = json.loads(line)
        self.device_s += answer.get("device_s", 0.0)
        if "ok" in answer:
            return answer["ok"]
        if answer["lost"]:
            self.stop()
        raise MeasurementFailure(answer["failure"], answer["error"], answer["lost"], answer.get("columns"))

    def _line(self, process: "subprocess.Popen[bytes]", deadline: float) -> bytes | None:
        """The next line; None if the worker is gone. Raises `MeasurementFailure` at the deadline, or `Stopped`."""
        assert process.stdout is not None
        started = time.monotonic()
        with selectors.DefaultSelector() as selector:
            selector.register(process.stdout, selectors.EVENT_READ)
            while b"\n" not in self._buffer:
                left = deadline - time.monotonic()
                if left <= 0.0:
                    self.stop()
                    raise MeasurementFailure("timeout", f"no answer within {deadline - started:.3g} s", lost=True)
                if self._stopping():
                    self.stop()
                    raise Stopped
                if selector.select(min(left, _SLICE_S)):
                    piece = os.read(process.stdout.fileno(), 1 << 16)
                    if not piece:
                        return None
                    self._buffer += piece
        line, _, self._buffer = self._buffer.partition(b"\n")
        return line

    def _died(self, process: "subprocess.Popen[bytes]") -> MeasurementFailure:
        with suppress(subprocess.TimeoutExpired):
            process.wait(5.0)
        code = process.poll()
        self._said.seek(0)
        last = [line.strip() for line in self._said.read().decode(errors="replace").splitlines() if line.strip()][-1:]
        self.stop()
        if code is not None and code < 0:
            how = f"was killed by {signal.Signals(-code).name}"
        else:
            how = f"ended with exit status {code}"
        return MeasurementFailure("crash", ": ".join([f"the measuring process {how}", *last]), lost=True)
