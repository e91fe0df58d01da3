"""Recording a GPU's sensors while another program runs: samples at a fixed period, from NVML.

    start --- sample --- sample --- ... --- sample --- the command has ended
          |<- period ->|

Reading costs the GPU nothing and the CPU about 0.1 ms per sample. The values are of the whole board: other processes
and idle power are included. Settings of the card are not changed.
"""

import os
import select
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Protocol

from kernrec.errors import KernrecError, UsageError, cannot_be
from kernrec.measure.device.nvml import NoGPUError, NvmlSensors, library
from kernrec.measure.monitor.trace import TraceSample
from kernrec.util.process import is_alive

_NOT_FOUND, _NOT_EXECUTABLE = 127, 126  # exit statuses of a shell
_CHECK_S = 0.2
"""How often it is checked whether the monitor was asked to stop."""
_POLL_S = 0.02
"""How often it is checked whether a process has ended, on systems that cannot report it."""

REASONS = {
    0x01: "idle",
    0x02: "application clocks",
    0x04: "power cap",
    0x08: "hardware slowdown",
    0x10: "sync boost",
    0x20: "software thermal",
    0x40: "hardware thermal",
    0x80: "power brake",
    0x100: "display clocks",
}
"""Names of NVML's clock event reasons (nvml.h, `nvmlClocksEventReason*`)."""


class Reader(Protocol):
    """A device that can be sampled."""

    def read(self, time_s: float) -> TraceSample:
        """The present state of the device, with the time stamp `time_s`."""


class NvmlReader:
    """Reads one GPU of this machine through NVML."""

    def __init__(self) -> None:
        """Find the first GPU that `CUDA_VISIBLE_DEVICES` shows; raises `KernrecError` if there is none."""
        self.notes: list[str] = []
        """Remarks about the values for the user, one line each."""
        try:
            nvml = library()
        except NoGPUError as error:
            raise KernrecError(f"no NVIDIA GPU can be monitored here: {str(error).split(';')[0]}") from None
        try:
            self._sensors = NvmlSensors(self._find(nvml))
        except nvml.NVMLError as error:
            raise KernrecError(f"no NVIDIA GPU can be monitored here: {error}") from None
        self.name = self._sensors.name
        if self._sensors.mig:
            self.notes.append("MIG is on: power and energy are the whole card's, of all its slices")
        if others := self._sensors.others:
            self.notes.append(f"{others} other processes use this GPU already; their energy counts too")

    def _find(self, nvml: Any) -> Any:
        count = nvml.nvmlDeviceGetCount()
        if not count:
            raise KernrecError("no NVIDIA GPU can be monitored here: the driver finds none")
        visible = [name.strip() for name in os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")]
        usable = len(visible) if "CUDA_VISIBLE_DEVICES" in os.environ else count
        wanted = visible[0] if visible[0] not in ("", "-1") else "0"
        if usable > 1:
            self.notes.append(
                f"only the first of the {usable} GPUs that the command can use is monitored; CUDA_VISIBLE_DEVICES"
                " chooses another"
            )
        if wanted.startswith("MIG-"):
            return nvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(nvml.nvmlDeviceGetHandleByUUID(wanted))
        if wanted.startswith("GPU-"):
            for index in range(count):
                handle = nvml.nvmlDeviceGetHandleByIndex(index)
                if NvmlSensors(handle).uuid.startswith(wanted):
                    return handle
        elif wanted.isdecimal() and int(wanted) < count:
            return nvml.nvmlDeviceGetHandleByIndex(int(wanted))
        raise UsageError(f"there is no GPU {wanted}; this machine has {count}, numbered from 0")

    def read(self, time_s: float) -> TraceSample:
        sensors = self._sensors
        return TraceSample(
            time_s=time_s,
            power_w=sensors.mean_power_w(),
            energy_j=sensors.energy_j(),
            sm_clock_hz=sensors.sm_clock_hz(),
            memory_clock_hz=sensors.memory_clock_hz(),
            temperature_c=sensors.temperature_c(),
            reasons=reason_names(sensors.reason_bits()),
        )


def reason_names(bits: int) -> str:
    """The names of NVML's reason bits, joined by `|`."""
    return "|".join(name for bit, name in REASONS.items() if bits & bit)


WaitForEnd = Callable[[float], bool]
"""Waits at most so many seconds for the end of something, and returns whether it has ended."""
ShowSample = Callable[[TraceSample], None]


def record_samples(reader: Reader, period_s: float, begin: Callable[[], WaitForEnd], show: ShowSample) -> None:
    """Take a sample, call `begin`, take a sample every `period_s` until its wait has ended, and one more."""
    start = time.monotonic()
    show(reader.read(0.0))
    ended = begin()
    due = time.monotonic() + period_s
    while not ended(min(max(due - time.monotonic(), 0.0), _CHECK_S)):
        if time.monotonic() >= due:
            due = max(due + period_s, time.monotonic())
            show(reader.read(time.monotonic() - start))
    show(reader.read(time.monotonic() - start))


def watch_command(command: Sequence[str], reader: Reader, period_s: float, show: ShowSample) -> int:
    """Run a command and record samples until it ends.

    Ctrl-C reaches the command as without a monitor, and other signals that ask the monitor to end are passed on to the
    command. Processes that the command leaves running are not waited for.

    Returns:
        The command's exit status; 128 plus the signal if a signal ended it.

    Raises:
        KernrecError: if the command cannot be started.
    """
    process: subprocess.Popen[bytes] | None = None
    received: list[int] = []

    def pass_on(number: int, frame: object) -> None:
        received.append(number)
        if process is not None:
            process.send_signal(number)

    def begin() -> WaitForEnd:
        nonlocal process
        try:
            process = subprocess.Popen(list(command))
        except OSError as error:
            failure = KernrecError(cannot_be("run", command[0], error))
            failure.exit_status = _NOT_FOUND if isinstance(error, FileNotFoundError) else _NOT_EXECUTABLE
            raise failure from None
        for number in received:  # while it was being started
            process.send_signal(number)
        running = process
        return _end_of(running.pid, lambda: running.poll() is not None)

    # The terminal sends the first two to the command too. They get a handler, for a command would inherit signals that
    # are ignored, but not handlers.
    handlers: dict[signal.Signals, Any] = dict.fromkeys(_signals("SIGINT", "SIGQUIT"), _do_nothing)
    handlers |= dict.fromkeys(_signals("SIGTERM", "SIGHUP"), pass_on)
    with _handled(handlers):
        try:
            record_samples(reader, period_s, begin, show)
        finally:
            status = process.wait() if process is not None else 0
    return status if status >= 0 else 128 - status


def watch_process(pid: int, reader: Reader, period_s: float, show: ShowSample) -> None:
    """Record samples until a process has ended, or a signal asks the monitor to end. `UsageError` for no process."""
    if not is_alive(pid):
        raise UsageError(f"there is no process {pid}")
    received: list[int] = []
    ended = _end_of(pid, lambda: not is_alive(pid))

    def stop(number: int, frame: object) -> None:
        received.append(number)

    with _handled(dict.fromkeys(_signals("SIGINT", "SIGTERM", "SIGHUP"), stop)):
        record_samples(reader, period_s, lambda: lambda seconds: bool(received) or ended(seconds), show)


def _signals(*names: str) -> list[signal.Signals]:
    return [getattr(signal, name) for name in names if hasattr(signal, name)]


def _do_nothing(number: int, frame: object) -> None:
    pass


@contextmanager
def _handled(handlers: Mapping[signal.Signals, Any]) -> Iterator[None]:
    """Handle signals for a while; those that are ignored stay ignored."""
    before = {number: signal.getsignal(number) for number in handlers}
    replaced = {number: handler for number, handler in before.items() if handler is not signal.SIG_IGN}
    for number in replaced:
        signal.signal(number, handlers[number])
    try:
        yield
    finally:
        for number, handler in replaced.items():
            signal.signal(number, handler)


def _end_of(pid: int, gone: Callable[[], bool]) -> WaitForEnd:
    """Wait for the end of a process: it is noticed at once if the system can (Linux, `pidfd_open`), else in 20 ms."""
    handle = None
    with suppress(AttributeError, OSError):
        handle = os.pidfd_open(pid)

    def ended(seconds: float) -> bool:
        if handle is not None:
            return bool(select.select([handle], [], [], seconds)[0])
        if not gone():
            time.sleep(min(seconds, _POLL_S))
        return gone()

    return ended
