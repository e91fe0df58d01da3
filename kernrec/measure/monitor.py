"""Watching a GPU while something else runs: samples at a stated period, from NVML or from a recorded trace.

    start --- sample --- sample --- ... --- sample --- the command has ended
          |<- period ->|

Reading costs the GPU nothing and the CPU some 0.1 ms a sample. What is read is of the whole board: other processes and
idle power count too. Settings of the card are never touched.
"""

import os
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from kernrec.errors import KernrecError, UsageError
from kernrec.measure.trace import Sample

_NOT_FOUND, _NOT_EXECUTABLE = 127, 126

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

    def read(self, time_s: float) -> Sample:
        """The state of the device now, stamped `time_s`."""


class NvmlReader:
    """Reads one GPU of this machine through NVML. Raises `KernrecError` where there is none."""

    def __init__(self, device: int = 0) -> None:
        try:
            import pynvml
        except ImportError:
            raise KernrecError("watching a GPU needs NVML: pip install 'kernrec[measure]'") from None
        self._nvml = pynvml
        try:
            pynvml.nvmlInit()
            count = pynvml.nvmlDeviceGetCount()
            if not 0 <= device < count:
                raise UsageError(f"GPU {device} is not there; this machine has {count}, numbered from 0")
            self._handle = pynvml.nvmlDeviceGetHandleByIndex(device)
            name = pynvml.nvmlDeviceGetName(self._handle)
        except pynvml.NVMLError as error:
            raise KernrecError(f"no NVIDIA GPU can be watched here: {error}") from None
        self.name = name.decode() if isinstance(name, bytes) else str(name)

    def read(self, time_s: float) -> Sample:
        """The state of the GPU now."""
        nvml, handle = self._nvml, self._handle
        reasons = self._ask("nvmlDeviceGetCurrentClocksEventReasons", handle)
        if reasons is None:  # the name it had before driver 535
            reasons = self._ask("nvmlDeviceGetCurrentClocksThrottleReasons", handle)
        return Sample(
            time_s=time_s,
            power_w=_scaled(self._ask("nvmlDeviceGetPowerUsage", handle), 1e-3),
            energy_j=_scaled(self._ask("nvmlDeviceGetTotalEnergyConsumption", handle), 1e-3),
            sm_clock_hz=_scaled(self._ask("nvmlDeviceGetClockInfo", handle, nvml.NVML_CLOCK_SM), 1e6),
            memory_clock_hz=_scaled(self._ask("nvmlDeviceGetClockInfo", handle, nvml.NVML_CLOCK_MEM), 1e6),
            temperature_c=_scaled(self._ask("nvmlDeviceGetTemperature", handle, nvml.NVML_TEMPERATURE_GPU), 1.0),
            reasons=reason_names(reasons or 0),
        )

    def _ask(self, function: str, *arguments: Any) -> float | None:
        """What NVML says; None where this GPU or driver does not."""
        call = getattr(self._nvml, function, None)
        if call is None:
            return None
        try:
            return float(call(*arguments))
        except self._nvml.NVMLError:
            return None


def reason_names(bits: float) -> str:
    """NVML's bits as names joined by `|`."""
    return "|".join(name for bit, name in REASONS.items() if int(bits) & bit)


def _scaled(value: float | None, scale: float) -> float | None:
    return None if value is None else value * scale


def watch(
    reader: Reader, period_s: float, running: Callable[[], bool], show: Callable[[Sample], None] | None = None
) -> list[Sample]:
    """Samples every `period_s` for as long as something is `running`, one before and one after."""
    start = time.monotonic()
    samples = [reader.read(0.0)]
    due = start + period_s
    while running():
        left = due - time.monotonic()
        if left > 0:
            # In short steps: a command that ends early is not to be waited for.
            time.sleep(min(left, 0.02))
            continue
        due = max(due + period_s, time.monotonic())
        samples.append(reader.read(time.monotonic() - start))
        if show is not None:
            show(samples[-1])
    samples.append(reader.read(time.monotonic() - start))
    return samples


def watch_command(
    command: Sequence[str], reader: Reader, period_s: float, show: Callable[[Sample], None] | None = None
) -> tuple[list[Sample], int]:
    """Runs a command and watches; (samples, exit status), 128 plus the signal for one that a signal ended.

    Ctrl-C goes to the command, as without us; its trace is kept. Raises `KernrecError` where it cannot be started.
    """
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        # The command has to get the signal that is ignored here.
        child = subprocess.Popen(list(command), preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL))
    except OSError as error:
        signal.signal(signal.SIGINT, before)
        failure = KernrecError(f"{command[0]} cannot be run: {error.strerror or error}")
        failure.exit_status = _NOT_FOUND if isinstance(error, FileNotFoundError) else _NOT_EXECUTABLE
        raise failure from None
    try:
        samples = watch(reader, period_s, lambda: child.poll() is None, show)
    finally:
        signal.signal(signal.SIGINT, before)
        status = child.wait()
    return samples, status if status >= 0 else 128 - status


def watch_process(
    pid: int, reader: Reader, period_s: float, show: Callable[[Sample], None] | None = None
) -> list[Sample]:
    """Watches until the process `pid` has ended, or Ctrl-C. Raises `UsageError` where there is none."""
    if not alive(pid):
        raise UsageError(f"there is no process {pid}")
    stopped = False

    def stop(*_: object) -> None:
        nonlocal stopped
        stopped = True

    before = signal.signal(signal.SIGINT, stop)
    try:
        return watch(reader, period_s, lambda: not stopped and alive(pid), show)
    finally:
        signal.signal(signal.SIGINT, before)


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
