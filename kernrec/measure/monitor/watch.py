"""Record a GPU's sensors while another program runs: samples at a fixed period, from NVML.

    start --- sample --- sample --- ... --- sample --- the command has ended
          |<- period ->|

Reading does not slow the GPU, and takes about 0.1 ms of CPU time per sample. Values are for the whole board, including
other processes and idle power. The GPU's settings do not change.
"""

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Protocol

from kernrec.errors import KernrecError, UsageError, cannot_be
from kernrec.measure.device.nvml import NoGPUError, cards, gpu_of_slice, is_named, sensors
from kernrec.measure.monitor.trace import TraceSample

_NOT_FOUND, _NOT_EXECUTABLE = 127, 126  # Exit statuses as in a shell.


class Reader(Protocol):
    """A device that can be sampled."""

    def read(self, time_s: float) -> TraceSample:
        """Return the present state of the device, with the time stamp `time_s`."""


class NvmlReader:
    """Reader of one GPU of this machine through NVML."""

    def __init__(self) -> None:
        """Find the first GPU that `CUDA_VISIBLE_DEVICES` shows; raise `KernrecError` if there is none."""
        self.notes: list[str] = []
        """One-line notes on the values for the user."""
        try:
            self._sensors = sensors(self._find())
        except NoGPUError as error:
            raise KernrecError(f"no NVIDIA GPU can be monitored here: {str(error).split(';')[0]}") from None
        self.name = self._sensors.name
        if self._sensors.mig:
            self.notes.append("MIG is on: power and energy are of the whole GPU, with all its slices")
        if others := self._sensors.others:
            self.notes.append(f"{others} other processes use this GPU already; their energy counts too")

    def _find(self) -> str:
        """Return the UUID of the GPU."""
        present = cards()
        named = os.environ.get("CUDA_VISIBLE_DEVICES")
        visible = [card.uuid for card in present] if named is None else [name.strip() for name in named.split(",")]
        if len(visible) > 1:
            self.notes.append(
                f"only the first of the {len(visible)} GPUs that the command can use is monitored;"
                " CUDA_VISIBLE_DEVICES chooses another"
            )
        first = visible[0] if visible[0] not in ("", "-1") else "0"
        if first.startswith("MIG-"):
            return gpu_of_slice(first)
        for card in present:
            if is_named(first, card):
                return card.uuid
        raise UsageError(f"there is no GPU {first}; this machine has {len(present)}, numbered from 0")

    def read(self, time_s: float) -> TraceSample:
        sensed = self._sensors
        return TraceSample(
            time_s=time_s,
            power_w=sensed.mean_power_w(),
            energy_j=sensed.energy_j(),
            sm_clock_hz=sensed.sm_clock_hz(),
            memory_clock_hz=sensed.memory_clock_hz(),
            temperature_c=sensed.temperature_c(),
            reasons="|".join(sorted(sensed.reasons())),
        )


ShowSample = Callable[[TraceSample], None]


def watch_command(command: Sequence[str], reader: Reader, period_s: float, show: ShowSample) -> int:
    """Run a command and record samples until it ends.

    Ctrl-C reaches the command as without a monitor. Other signals that ask the monitor to end are forwarded to the
    command. The monitor does not wait for processes that the command leaves running.

    Returns:
        The command's exit status; 128 plus the signal if a signal ended it.

    Raises:
        KernrecError: The command cannot be started.
    """
    process: subprocess.Popen[bytes] | None = None
    received: list[int] = []
    start_s = time.monotonic()

    def pass_on(number: int, frame: object) -> None:
        received.append(number)
        if process is not None:
            process.send_signal(number)

    def take_sample() -> None:
        show(reader.read(time.monotonic() - start_s))

    # The terminal sends the first two signals to the command, too. Install handlers instead of ignoring the signals,
    # because the command would inherit ignored signals, but not handlers.
    handlers: dict[signal.Signals, Any] = dict.fromkeys(_signals("SIGINT", "SIGQUIT"), _do_nothing)
    handlers |= dict.fromkeys(_signals("SIGTERM", "SIGHUP"), pass_on)
    with _handled(handlers):
        take_sample()
        try:
            process = subprocess.Popen(list(command))
        except OSError as error:
            failure = KernrecError(cannot_be("run", command[0], error))
            failure.exit_status = _NOT_FOUND if isinstance(error, FileNotFoundError) else _NOT_EXECUTABLE
            raise failure from None
        try:
            for number in received:  # The signal arrived while the command started.
                process.send_signal(number)
            due_s = time.monotonic() + period_s
            while not _has_ended(process, due_s - time.monotonic()):
                if time.monotonic() >= due_s:
                    due_s = max(due_s + period_s, time.monotonic())
                    take_sample()
            take_sample()
        finally:
            status = process.wait()
    return status if status >= 0 else 128 - status


def _has_ended(process: "subprocess.Popen[bytes]", most_s: float) -> bool:
    with suppress(subprocess.TimeoutExpired):
        process.wait(max(most_s, 0.0))
    return process.returncode is not None


def _signals(*names: str) -> list[signal.Signals]:
    return [getattr(signal, name) for name in names if hasattr(signal, name)]


def _do_nothing(number: int, frame: object) -> None:
    pass


@contextmanager
def _handled(handlers: Mapping[signal.Signals, Any]) -> Iterator[None]:
    """Handle signals during a `with` block; ignored signals stay ignored."""
    before = {number: signal.getsignal(number) for number in handlers}
    replaced = {number: handler for number, handler in before.items() if handler is not signal.SIG_IGN}
    for number in replaced:
        signal.signal(number, handlers[number])
    try:
        yield
    finally:
        for number, handler in replaced.items():
            signal.signal(number, handler)
