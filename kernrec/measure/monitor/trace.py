"""Traces of a GPU over time (power, energy, clocks, temperature and throttle reasons), their files and their summary.

A trace is a table with one row per sample and the fields of `TraceSample` as columns, in CSV or Parquet.
"""

import csv
import errno
import io
import math
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields
from itertools import pairwise
from pathlib import Path
from typing import Any, TextIO

from kernrec.errors import UsageError, cannot_be
from kernrec.util.input_file import open_input

_LARGEST_FILE = 1 << 30
_MOST_SAMPLES = 20_000_000
_LONGEST_LINE = 1 << 16
"""Characters of a line of CSV."""


@dataclass(frozen=True)
class TraceSample:
    """The sensors at one time; None for a sensor that the device does not have."""

    time_s: float
    """Seconds since the start."""
    power_w: float | None
    energy_j: float | None
    """The energy counter, from an arbitrary start."""
    sm_clock_hz: float | None
    memory_clock_hz: float | None
    temperature_c: float | None
    reasons: str
    """Throttle reasons, joined by `|`."""


COLUMNS = tuple(field.name for field in fields(TraceSample))


@dataclass(frozen=True)
class TraceSummary:
    """Summary of a trace, of the whole board, idle power included."""

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
    """Share of the samples by throttle reason."""

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON; keys carry their unit."""
        return dict(vars(self))


def summarize_trace(samples: Sequence[TraceSample]) -> TraceSummary:
    """The summary of a trace. Raises `UsageError` if it has no samples."""
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
    """(joules, source): the difference of the counter, else power integrated by trapezoids."""
    first, last = samples[0].energy_j, samples[-1].energy_j
    if first is not None and last is not None and last >= first:
        return last - first, "counter"
    if len(power) < 2:
        return None, "power"
    return sum((b - a) * (p + q) / 2 for (a, p), (b, q) in pairwise(power)), "power"


class TraceFile:
    """A trace file that is complete at the end of a `with` block; CSV or Parquet, by the suffix of its path.

    Until then the samples are in `.NAME.part` beside it, a CSV file that `read_trace` can read too: a monitor that is
    killed loses nothing. Raises `UsageError` at once if the file cannot be written, but at the end if the disk becomes
    full, because the monitored program must go on.
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
        """Add a sample and write it out."""
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
        if kind is None:  # else nothing was started
            try:
                if self.path.suffix == ".parquet":
                    _to_parquet(self.part, self.path)
                else:
                    self.part.replace(self.path)
            except OSError as error:
                raise self._failed(error) from None
        self.part.unlink(missing_ok=True)

    def _failed(self, error: OSError) -> UsageError:
        return UsageError(cannot_be("written", self.path, error))


def write_trace(path: Path, samples: Iterable[TraceSample]) -> None:
    """Write a whole trace. Raises `UsageError` if it cannot be written."""
    with TraceFile(path) as file:
        for sample in samples:
            file.add(sample)


def _to_parquet(table: Path, path: Path) -> None:
    import duckdb

    kinds = ", ".join(f"'{name}': '{'VARCHAR' if name == 'reasons' else 'DOUBLE'}'" for name in COLUMNS)
    whole = path.with_name(f".{path.name}.whole")

    def quoted(file: Path) -> str:
        return "'" + str(file).replace("'", "''") + "'"

    try:
        with duckdb.connect() as connection:
            connection.execute(
                f"COPY (SELECT * REPLACE (coalesce(reasons, '') AS reasons) FROM read_csv({quoted(table)}, header=true,"
                f" columns={{{kinds}}})) TO {quoted(whole)} (FORMAT parquet, COMPRESSION zstd)"
            )
        whole.replace(path)
    except duckdb.Error as error:
        raise UsageError(f"{path} cannot be written: {str(error).splitlines()[0]}") from None
    finally:
        whole.unlink(missing_ok=True)


def read_trace(path: Path) -> list[TraceSample]:
    """The samples in a CSV or Parquet file. Raises `UsageError`, which names the row, if the file is not a trace."""
    samples: list[TraceSample] = []
    try:
        if path.stat().st_size > _LARGEST_FILE:
            raise UsageError(f"{path} is larger than {_LARGEST_FILE} bytes")
        rows = _parquet_rows(path) if path.suffix == ".parquet" else _csv_rows(path)
        for number, row in enumerate(rows, 1):
            if number > _MOST_SAMPLES:
                raise UsageError(f"{path} has over {_MOST_SAMPLES} samples")
            samples.append(_sample(path, number, row))
            if number > 1 and samples[-1].time_s < samples[-2].time_s:
                raise UsageError(f"{path}, row {number}: time goes backwards")
    except OSError as error:
        raise UsageError(cannot_be("read", path, error)) from None
    except (UnicodeDecodeError, csv.Error):
        raise UsageError(f"{path} is not a trace: it is not a table of text") from None
    if not samples:
        raise UsageError(f"{path} has no samples")
    return samples


def _csv_rows(path: Path) -> Iterator[dict[str, Any]]:
    with io.TextIOWrapper(open_input(path), newline="", encoding="utf-8") as file:
        reader = csv.DictReader(_lines(file))
        _check_columns(path, reader.fieldnames or ())
        yield from reader


def _lines(file: TextIO) -> Iterator[str]:
    while line := file.readline(_LONGEST_LINE):
        if len(line) == _LONGEST_LINE:
            raise csv.Error
        yield line


def _parquet_rows(path: Path) -> Iterable[dict[str, Any]]:
    import duckdb

    try:
        with duckdb.connect() as connection:
            cursor = connection.execute("SELECT * FROM read_parquet($1)", [[str(path)]])
            names = [column[0] for column in cursor.description or ()]
            _check_columns(path, names)
            return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]
    except duckdb.Error:
        raise UsageError(f"{path} is not a Parquet file") from None


def _check_columns(path: Path, names: Sequence[str]) -> None:
    missing = [name for name in COLUMNS if name not in names]
    if missing:
        raise UsageError(f"{path} is not a trace: column {missing[0]} is missing")


def _sample(path: Path, number: int, row: dict[str, Any]) -> TraceSample:
    values: dict[str, Any] = {}
    for name in COLUMNS:
        cell = row[name]
        if name == "reasons":
            values[name] = "" if cell is None else str(cell)[:400]
            continue
        if cell in (None, ""):
            values[name] = None
            continue
        try:
            values[name] = float(cell)
        except (TypeError, ValueError):
            values[name] = math.nan
        if not math.isfinite(values[name]):
            raise UsageError(f"{path}, row {number}: {name} is {cell!r:.40}, expected a number")
    if values["time_s"] is None:
        raise UsageError(f"{path}, row {number}: time_s is missing")
    return TraceSample(**values)
