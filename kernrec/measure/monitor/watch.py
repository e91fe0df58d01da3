"""Watching a GPU while something else runs: samples at a stated period, from NVML or from a recorded trace.

    start --- sample --- sample --- ... --- sample --- the command has ended
          |<- period ->|

Reading costs the GPU nothing and the CPU some 0.1 ms a sample. What is read is of the whole board: other processes and
idle power count too. Settings of the card are never touched.
"""

import os
import select
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Protocol

from kernrec.errors import KernrecError, UsageError
from kernrec.measure.monitor.trace import TraceSample

_NOT_FOUND, _NOT_EXECUTABLE = 127, 126
_LOOK_S = 0.2  # so often it is looked whether somebody asked to stop
_POLL_S = 0.02  # where the end of a process has to be looked for

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
    """What can be sampled."""

    def read(self, time_s: float) -> TraceSample:
        """The state of the device now, stamped `time_s`."""


class NvmlReader:
    """Reads one GPU of this machine through NVML. Raises `KernrecError` where there is none.

    device: `auto`, the first that `CUDA_VISIBLE_DEVICES` leaves; a number, as `nvidia-smi` counts; or the start of a
    UUID. notes: what the reader of its numbers has to know, one line each.
    """

    def __init__(self, device: str = "auto") -> None:
        try:
            import pynvml
        except ImportError:
            raise KernrecError("watching a GPU needs NVML: pip install '.[measure]'") from None
        self._nvml = pynvml
        self.notes: list[str] = []
        try:
            pynvml.nvmlInit()
            self._handle = self._find(device, pynvml.nvmlDeviceGetCount())
            self.name = _text(pynvml.nvmlDeviceGetName(self._handle))
        except pynvml.NVMLError as error:
            raise KernrecError(f"no NVIDIA GPU can be watched here: {error}") from None
        mig = self._ask_raw("nvmlDeviceGetMigMode", self._handle)
        if mig and mig[0]:
            self.notes.append("MIG is on: power and energy are the whole card's, of all its slices")
        running = self._ask_raw("nvmlDeviceGetComputeRunningProcesses", self._handle) or ()
        if others := len({process.pid for process in running} - {os.getpid()}):
            self.notes.append(f"{others} other processes use this GPU already; their energy counts too")

    def _find(self, device: str, count: int) -> Any:
        """The handle of the GPU that is meant."""
        nvml = self._nvml
        if not count:
            raise KernrecError("no NVIDIA GPU can be watched here: the driver knows none")
        wanted, of = device, count
        if device == "auto":
            named = [name.strip() for name in os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")]
            of = len(named) if "CUDA_VISIBLE_DEVICES" in os.environ else count
            wanted = named[0] if named[0] not in ("", "-1") else "0"
            if of > 1:
                self.notes.append(f"one of {of} GPUs that the command can use is watched; --device names another")
        if wanted.startswith("MIG-"):
            slice_ = nvml.nvmlDeviceGetHandleByUUID(wanted)
            return nvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(slice_)
        if wanted.startswith("GPU-"):
            for index in range(count):
                handle = nvml.nvmlDeviceGetHandleByIndex(index)
                if _text(nvml.nvmlDeviceGetUUID(handle)).startswith(wanted):
                    return handle
        elif wanted.isdecimal() and int(wanted) < count:
            return nvml.nvmlDeviceGetHandleByIndex(int(wanted))
        raise UsageError(f"GPU {wanted} is not there; this machine has {count}, numbered from 0")

    def read(self, time_s: float) -> TraceSample:
        """The state of the GPU now."""
        nvml, handle = self._nvml, self._handle
        reasons = self._ask("nvmlDeviceGetCurrentClocksEventReasons", handle)
        if reasons is None:  # the name it had before driver 535
            reasons = self._ask("nvmlDeviceGetCurrentClocksThrottleReasons", handle)
        return TraceSample(
            time_s=time_s,
            power_w=_scaled(self._ask("nvmlDeviceGetPowerUsage", handle), 1e-3),
            energy_j=_scaled(self._ask("nvmlDeviceGetTotalEnergyConsumption", handle), 1e-3),
            sm_clock_hz=_scaled(self._ask("nvmlDeviceGetClockInfo", handle, nvml.NVML_CLOCK_SM), 1e6),
            memory_clock_hz=_scaled(self._ask("nvmlDeviceGetClockInfo", handle, nvml.NVML_CLOCK_MEM), 1e6),
            temperature_c=_scaled(self._ask("nvmlDeviceGetTemperature", handle, nvml.NVML_TEMPERATURE_GPU), 1.0),
            reasons=reason_names(reasons or 0),
        )

    def _ask_raw(self, function: str, *arguments: Any) -> Any:
        """What NVML says; None where this GPU or driver does not."""
        call = getattr(self._nvml, function, None)
        if call is None:
            return None
        try:
            return call(*arguments)
        except self._nvml.NVMLError:
            return None

    def _ask(self, function: str, *arguments: Any) -> float | None:
        found = self._ask_raw(function, *arguments)
        return None if found is None else float(found)


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value


def reason_names(bits: float) -> str:
    """NVML's bits as names joined by `|`."""
    return "|".join(name for bit, name in REASONS.items() if int(bits) & bit)


def _scaled(value: float | None, scale: float) -> float | None:
    return None if value is None else value * scale


Ended = Callable[[float], bool]
"""Waits at most so many seconds for the end of something, and says whether it has come."""
Show = Callable[[TraceSample], None]


def watch(reader: Reader, period_s: float, begin: Callable[[], Ended], show: Show) -> None:
    """Shows a sample, begins something, shows one every `period_s` until that has ended, and one more."""
    start = time.monotonic()
    show(reader.read(0.0))
    ended = begin()
    due = time.monotonic() + period_s
    while not ended(min(max(due - time.monotonic(), 0.0), _LOOK_S)):
        if time.monotonic() >= due:
            due = max(due + period_s, time.monotonic())
            show(reader.read(time.monotonic() - start))
    show(reader.read(time.monotonic() - start))


def watch_command(command: Sequence[str], reader: Reader, period_s: float, show: Show) -> int:
    """Runs a command and watches until it ends; its exit status, 128 plus the signal for one that a signal ended.

    Ctrl-C goes to the command, as without us, and what asks us to end is passed on to it. What it leaves running is
    not waited for. Raises `KernrecError` where it cannot be started.
    """
    client: subprocess.Popen[bytes] | None = None
    asked: list[int] = []

    def pass_on(number: int, frame: object) -> None:
        asked.append(number)
        if client is not None:
            client.send_signal(number)

    def begin() -> Ended:
        nonlocal client
        try:
            client = subprocess.Popen(list(command), preexec_fn=restore)
        except OSError as error:
            failure = KernrecError(f"{command[0]} cannot be run: {error.strerror or error}")
            failure.exit_status = _NOT_FOUND if isinstance(error, FileNotFoundError) else _NOT_EXECUTABLE
            raise failure from None
        for number in asked:  # while it was being started
            client.send_signal(number)
        return _ending(client.pid, lambda: client.poll() is not None)

    quiet = dict.fromkeys((signal.SIGINT, signal.SIGQUIT), signal.SIG_IGN)  # the terminal sends them to the command too
    with _handled({**quiet, signal.SIGTERM: pass_on, signal.SIGHUP: pass_on}) as restore:
        try:
            watch(reader, period_s, begin, show)
        finally:
            status = client.wait() if client is not None else 0
    return status if status >= 0 else 128 - status


def watch_process(pid: int, reader: Reader, period_s: float, show: Show) -> None:
    """Watches until the process `pid` has ended, or somebody asks to stop. Raises `UsageError` where there is none."""
    if not alive(pid):
        raise UsageError(f"there is no process {pid}")
    asked: list[int] = []
    ended = _ending(pid, lambda: not alive(pid))
    stop = dict.fromkeys((signal.SIGINT, signal.SIGTERM, signal.SIGHUP), lambda number, frame: asked.append(number))
    with _handled(stop):
        watch(reader, period_s, lambda: lambda seconds: bool(asked) or ended(seconds), show)


@contextmanager
def _handled(handlers: dict[signal.Signals, Any]) -> Iterator[Callable[[], None]]:
    """Handles signals; gives what a child calls to have them as they were. Those that are ignored stay so."""
    before = {number: signal.getsignal(number) for number in handlers}
    taken = {number: handler for number, handler in before.items() if handler is not signal.SIG_IGN}

    def restore() -> None:
        for number in taken:
            signal.signal(number, signal.SIG_DFL)

    for number in taken:
        signal.signal(number, handlers[number])
    try:
        yield restore
    finally:
        for number, handler in taken.items():
            signal.signal(number, handler)


def _ending(pid: int, gone: Callable[[], bool]) -> Ended:
    """Tells the end of a process at once where the system can (Linux, `pidfd_open`), else within 20 ms."""
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


def alive(pid: int) -> bool:
    """Whether there is such a process."""
    if pid <= 0:
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
