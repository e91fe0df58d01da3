"""Store and summarize traces of a GPU: power, energy, clocks, temperature and throttle reasons over time.

A trace is a table with one row per sample and the fields of `TraceSample` as columns, in CSV.
"""

import csv
import errno
import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, fields
from itertools import pairwise
from pathlib import Path
from typing import Any

from kernrec.errors import UsageError, cannot_be


@dataclass(frozen=True)
class TraceSample:
    """Sensor values at one time; None for a sensor that the device lacks."""

    time_s: float
    """Seconds since the start."""
    power_w: float | None
    energy_j: float | None
    """Energy counter in joules, from an arbitrary start."""
    sm_clock_hz: float | None
    memory_clock_hz: float | None
    temperature_c: float | None
    reasons: str
    """Throttle reasons, joined by `|`."""


COLUMNS = tuple(field.name for field in fields(TraceSample))


@dataclass(frozen=True)
class TraceSummary:
    """Summary of a trace of the whole board, including idle power."""

    duration_s: float
    samples: int
    energy_j: float | None
    energy_from: str
    """`counter`, or `power` if the energy is integrated from power samples."""
    mean_power_w: float | None
    max_power_w: float | None
    mean_sm_clock_hz: float | None
    min_sm_clock_hz: float | None
    max_temperature_c: float | None
    throttled: dict[str, float]
    """Fraction of the samples by throttle reason."""

    def as_dict(self) -> dict[str, Any]:
        """Return plain values for JSON; keys contain their unit."""
        return dict(vars(self))


def summarize_trace(samples: Sequence[TraceSample]) -> TraceSummary:
    """Return the summary of a trace; raise `UsageError` if it has no samples."""
    if not samples:
        raise UsageError("the trace has no samples")
    duration = samples[-1].time_s - samples[0].time_s
    power = [(s.time_s, s.power_w) for s in samples if s.power_w is not None]
    clocks = [s.sm_clock_hz for s in samples if s.sm_clock_hz is not None]
    temperatures = [s.temperature_c for s in samples if s.temperature_c is not None]
    energy, source = _energy(samples, power)
    mean = energy / duration if energy is not None and duration > 0 else None
    throttled: dict[str, float] = {}
    for sample in samples:
        for reason in filter(None, sample.reasons.split("|")):
            throttled[reason] = throttled.get(reason, 0.0) + 1.0 / len(samples)
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
        throttled=dict(sorted(throttled.items(), key=lambda item: -item[1])),
    )


def _energy(samples: Sequence[TraceSample], power: Sequence[tuple[float, float]]) -> tuple[float | None, str]:
    """Return (joules, source): the difference of the counter, else power integrated by trapezoids."""
    first, last = samples[0].energy_j, samples[-1].energy_j
    if first is not None and last is not None and last >= first:
        return last - first, "counter"
    if len(power) < 2:
        return None, "power"
    return sum((b - a) * (p + q) / 2 for (a, p), (b, q) in pairwise(power)), "power"


class TraceFile:
    """A CSV file of a trace that is complete at the end of a `with` block.

    Until then, samples are in `.NAME.part` beside the file, so a killed monitor loses nothing. If the file cannot be
    created, `UsageError` is raised at once. If the disk is full, it is raised at the end, because the monitored program
    must continue.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.part = path.with_name(f".{path.name}.part")
        self._full: OSError | None = None
        try:
            if path.is_dir():
                raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
            self._file = self.part.open("w", newline="", encoding="utf-8")
            self._writer = csv.writer(self._file)
            self._writer.writerow(COLUMNS)
        except OSError as error:
            raise self._failed(error) from None

    def __enter__(self) -> "TraceFile":
        return self

    def add(self, sample: TraceSample) -> None:
        """Write a sample to the file."""
        if self._full is None:
            try:
                self._writer.writerow(["" if value is None else value for value in vars(sample).values()])
                self._file.flush()
            except OSError as error:
                self._full = error

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        with suppress(OSError):
            self._file.close()
        if self._full is not None:
            raise self._failed(self._full) from None
        if kind is None:  # Otherwise the command was not started.
            try:
                self.part.replace(self.path)
            except OSError as error:
                raise self._failed(error) from None
        self.part.unlink(missing_ok=True)

    def _failed(self, error: OSError) -> UsageError:
        return UsageError(cannot_be("written", self.path, error))
