"""Record a GPU's sensors at a fixed period while another program runs.

All values are for the whole board, including other processes and idle power.
"""

import csv
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from kernrec.errors import KernrecError, UsageError, cannot_be, file_errors
from kernrec.measure.device.interface import SensorReading
from kernrec.measure.device.nvml import NoGPUError, gpu_of_slice, is_named, local_gpus, sensors
from kernrec.measure.protocol.energy_counter import reason_shares


@dataclass(frozen=True)
class TraceSummary:
    """Summary of a list of samples. Energy and power are for the whole board, including idle power."""

    duration_s: float
    samples: int
    energy_j: float | None
    energy_from: str
    """Source of `energy_j`: `counter` for the energy counter, or `power` if power samples were integrated."""
    mean_power_w: float | None
    max_power_w: float | None
    mean_sm_clock_hz: float | None
    min_sm_clock_hz: float | None
    max_temperature_c: float | None
    throttled: dict[str, float]
    """Fraction of the samples with each clock event reason, such as `SwPowerCap`."""


def summarize_trace(samples: Sequence[SensorReading]) -> TraceSummary:
    """Return the summary of samples. Raise `UsageError` if there are none."""
    if not samples:
        raise UsageError("the trace has no samples")
    duration = samples[-1].time_s - samples[0].time_s
    power = [(s.time_s, s.power_w) for s in samples if s.power_w is not None]
    clocks = [s.sm_clock_hz for s in samples if s.sm_clock_hz is not None]
    temperatures = [s.temperature_c for s in samples if s.temperature_c is not None]
    energy, source = _energy(samples, power)
    mean = energy / duration if energy is not None and duration > 0 else None
    return TraceSummary(
        duration_s=duration,
        samples=len(samples),
        energy_j=energy,
        energy_from=source,
        mean_power_w=mean if mean is not None else (power[0][1] if power else None),
        max_power_w=max((w for _, w in power), default=None),
        mean_sm_clock_hz=sum(clocks) / len(clocks) if clocks else None,
        min_sm_clock_hz=min(clocks, default=None),
        max_temperature_c=max(temperatures, default=None),
        throttled=reason_shares(sample.reasons for sample in samples),
    )


def _energy(samples: Sequence[SensorReading], power: Sequence[tuple[float, float]]) -> tuple[float | None, str]:
    first, last = samples[0].energy_j, samples[-1].energy_j
    if first is not None and last is not None and last >= first:
        return last - first, "counter"
    if len(power) < 2:
        return None, "power"
    return sum((b - a) * (p + q) / 2 for (a, p), (b, q) in pairwise(power)), "power"


class TraceFile:
    """CSV file for samples. Its columns are the fields of `SensorReading`.

    If the file cannot be created, raise `UsageError` at once. If writing fails later, raise `UsageError` at the end of
    the `with` block, so that the monitored program can continue.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._full: OSError | None = None
        with file_errors(path, "written"):
            self._file = path.open("w", newline="", encoding="utf-8")
            self._writer = csv.writer(self._file)
            self._writer.writerow(SensorReading._fields)

    def __enter__(self) -> "TraceFile":
        return self

    def add(self, sample: SensorReading) -> None:
        if self._full is None:
            try:
                self._writer.writerow((*sample[:-1], "|".join(sorted(sample.reasons))))
                self._file.flush()
            except OSError as error:
                self._full = error

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        with suppress(OSError):
            self._file.close()
            if kind is not None:  # The command could not be started, so delete the trace.
                self.path.unlink()
        if self._full is not None:
            raise UsageError(cannot_be("written", self.path, self._full)) from None


_NOT_FOUND, _NOT_EXECUTABLE = 127, 126  # exit statuses of a shell that cannot start the command


class NvmlReader:
    def __init__(self) -> None:
        """Find the first GPU that `CUDA_VISIBLE_DEVICES` allows. Raise `KernrecError` if there is none."""
        self.notes: list[str] = []
        """Notes for the user about the values, one line each."""
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
        present = local_gpus()
        named = os.environ.get("CUDA_VISIBLE_DEVICES")
        visible = [each.uuid for each in present] if named is None else [name.strip() for name in named.split(",")]
        if len(visible) > 1:
            self.notes.append(
                f"only the first of the {len(visible)} GPUs that the command can use is monitored;"
                " CUDA_VISIBLE_DEVICES chooses another"
            )
        first = visible[0] if visible[0] not in ("", "-1") else "0"
        if first.startswith("MIG-"):
            return gpu_of_slice(first)
        for each in present:
            if is_named(first, each):
                return each.uuid
        raise UsageError(f"there is no GPU {first}; this machine has {len(present)}, numbered from 0")

    def read(self, time_s: float) -> SensorReading:
        return self._sensors.read(time_s, mean_power=True)


ShowSample = Callable[[SensorReading], None]


def watch_command(command: Sequence[str], reader: NvmlReader, period_s: float, show: ShowSample) -> int:
    """Run a command, and read the sensors until the command ends.

    The command receives Ctrl-C and other signals that ask the monitor to end. Its child processes may continue.

    Args:
        period_s: Seconds between two readings.
        show: Function to call with each reading.

    Returns:
        The command's exit status, or 128 plus the number of the signal that ended it.

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

    # Ignore SIGINT and SIGQUIT, because the terminal also sends them to the command. Do not use SIG_IGN, because the
    # command would inherit it.
    handlers: dict[signal.Signals, Any] = dict.fromkeys(_signals("SIGINT", "SIGQUIT"), lambda *_: None)
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
            for number in received:  # Pass on signals that arrived while the command was starting.
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


@contextmanager
def _handled(handlers: Mapping[signal.Signals, Any]) -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in handlers}
    replaced = {number: handler for number, handler in before.items() if handler is not signal.SIG_IGN}
    for number in replaced:
        signal.signal(number, handlers[number])
    try:
        yield
    finally:
        for number, handler in replaced.items():
            signal.signal(number, handler)
