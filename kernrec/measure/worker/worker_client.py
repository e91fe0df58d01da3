"""Send a campaign's requests to the worker process with time limits, and start a new process after a crash.

The worker has its own process group, so that Ctrl-C does not reach it, and all its child processes can be killed.
"""

import json
import os
import queue
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, BinaryIO

from kernrec.errors import KernrecError
from kernrec.measure.device.interface import MeasurementFailure
from kernrec.store.measurement import DeviceReport, Outcome
from kernrec.util.process import kill_group, module_command, module_environment, own_group

START_LIMIT_S = 120.0
"""Maximum seconds for starting Python and creating a CUDA context, which is slow on a busy machine."""
_KILL_LIMIT_S = 30.0
_SLICE_S = 0.2
"""Seconds between two checks whether the campaign must stop."""


class Stopped(Exception):  # noqa: N818 - no error: the campaign was told to stop
    """The caller stopped the campaign while the worker was busy. The worker has been killed."""


class WorkerClient:
    """Client of a worker process. The process starts at the first request."""

    def __init__(self, opening: Mapping[str, Any], stopping: Callable[[], bool] = lambda: False) -> None:
        """Create a client without starting the process. The worker is killed as soon as `stopping` returns True."""
        self._opening = dict(opening)
        self.stopping = stopping
        self._process: subprocess.Popen[bytes] | None = None
        self._stderr: BinaryIO | None = None
        self._lines: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self.info: dict[str, Any] = {}
        """Description of the device, from the answer to the `open` request."""
        self.device_s = 0.0
        """Total duration of all requests in seconds, on the device's own clock."""

    @property
    def alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Start a worker process and open the device in it. Raise `KernrecError` if that fails."""
        self._start_process()
        try:
            self.info = self._request({"do": "open", **self._opening}, START_LIMIT_S)
        except MeasurementFailure as failure:
            self.stop()
            raise KernrecError(f"the device cannot be opened: {failure}") from None

    def _start_process(self) -> None:
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the process
        environment = module_environment() | {"PYTHONUNBUFFERED": "1", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
        if self._opening.get("uuid"):
            environment["CUDA_VISIBLE_DEVICES"] = self._opening["uuid"]
        # Remove kernrec's limit of one thread, because the worker needs all cores to compute references.
        environment.pop("OPENBLAS_NUM_THREADS", None)
        self._process = subprocess.Popen(
            module_command("kernrec.measure.worker.worker"),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
            env=environment,
            **own_group(),
        )
        assert self._process.stdout is not None
        self._lines = queue.SimpleQueue()
        threading.Thread(target=_read_lines, args=(self._process.stdout, self._lines), daemon=True).start()

    def request(self, limit_s: float, do: str, **items: Any) -> Any:
        """Send a request to the worker, and return its answer. If the process has ended, start a new one first.

        Args:
            limit_s: Time limit in seconds, after which the worker is killed.
            do: Kind of the request (worker.py).

        Raises:
            MeasurementFailure: The request failed, exceeded the time limit or ended the process.
            Stopped: The campaign was stopped before the answer arrived.
        """
        if not self.alive:
            self.stop()  # The worker has ended since the last request. Clean up.
            self.start()
        return self._request({"do": do, **items}, limit_s)

    def stop(self) -> None:
        """Kill the worker process and its children. Unfinished work is lost."""
        process, self._process = self._process, None
        if process is None:
            return
        kill_group(process)
        with suppress(subprocess.TimeoutExpired):  # A process that hangs in the driver may not die.
            process.wait(_KILL_LIMIT_S)
        for stream in (process.stdin, self._stderr):  # The thread that reads standard output closes it.
            with suppress(OSError):
                if stream is not None:
                    stream.close()

    def _request(self, request: Mapping[str, Any], limit_s: float) -> Any:
        answer = json.loads(self._exchange(json.dumps(request).encode() + b"\n", limit_s))
        self.device_s += answer.get("device_s", 0.0)
        if "ok" in answer:
            return answer["ok"]
        if answer["lost"]:
            self.stop()
        report = DeviceReport.from_json(answer.get("report") or {})
        raise MeasurementFailure(Outcome(answer["failure"]), answer["error"], answer["lost"], report)

    def _exchange(self, request: bytes, limit_s: float) -> bytes:
        """Send a request line, and return the answer line. Raise an error if the worker ends or is too slow."""
        process = self._process
        assert process is not None
        assert process.stdin is not None
        try:
            process.stdin.write(request)
            process.stdin.flush()
            line = self._next_line(time.monotonic() + limit_s, limit_s)
        except OSError:  # The worker has ended: POSIX reports a broken pipe, Windows an invalid argument.
            line = None
        if line is None:
            raise self._died(process)
        return line

    def _next_line(self, deadline: float, limit_s: float) -> bytes | None:
        """Return the worker's next line, or None if it has ended. Raise `MeasurementFailure` at the deadline."""
        while True:
            left = deadline - time.monotonic()
            if left <= 0.0:
                self.stop()
                raise MeasurementFailure(Outcome.TIMEOUT, f"no answer within {limit_s:.3g} s", lost=True)
            if self.stopping():
                self.stop()
                raise Stopped
            with suppress(queue.Empty):
                return self._lines.get(timeout=min(left, _SLICE_S))

    def _died(self, process: "subprocess.Popen[bytes]") -> MeasurementFailure:
        with suppress(subprocess.TimeoutExpired):
            process.wait(5.0)
        code = process.poll()
        assert self._stderr is not None
        self._stderr.seek(0)
        text = self._stderr.read().decode(errors="replace")
        last_line = [line.strip() for line in text.splitlines() if line.strip()][-1:]
        self.stop()
        if code is not None and code < 0:
            how = f"was killed by {signal.Signals(-code).name}"
        else:
            how = f"ended with exit status {code}"
        return MeasurementFailure(Outcome.CRASH, ": ".join([f"the measuring process {how}", *last_line]), lost=True)


def _read_lines(stream: BinaryIO, lines: "queue.SimpleQueue[bytes | None]") -> None:
    """Put all complete lines of a stream into a queue, and None at the end. Bypass the stream's own buffer, which could
    block at exit."""
    buffer = b""
    with stream:
        while piece := os.read(stream.fileno(), 1 << 16):
            *whole, buffer = (buffer + piece).split(b"\n")
            for line in whole:
                lines.put(line)
    lines.put(None)
