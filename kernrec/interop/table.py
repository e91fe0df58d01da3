"""Read tables of results: CSV or Parquet files with a row per measured config.

    block_size_x,block_size_y,time_ms,num_regs
    32,8,0.412,40

A column is a tunable of the kernel, or a quantity whose name ends in its unit: `time_ms`, `latency_s`, `energy_j`,
`power_w`, `power_limit_w`, `locked_sm_clock_mhz`. Other known columns are `outcome`, `error`, `device`, `timestamp`,
`num_regs` and `smem_bytes`. Without a column `outcome`, all configs ran successfully. Any other column is an error,
because it may be a tunable, and ignoring a tunable would merge different configs.
"""

import csv
import io
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from itertools import chain
from pathlib import Path
from typing import Any

from kernrec.errors import UsageError, cannot_be, nearest, unknown
from kernrec.interop.json_document import MOST_BYTES, TextFile, finite, numbered
from kernrec.interop.results import (
    ENERGIES,
    REGISTERS,
    SHARED_BYTES,
    ForeignResult,
    ForeignResults,
    MappedColumn,
    ReadOptions,
    config_of,
    latency_of,
    ran,
    text_of,
    time_of,
)
from kernrec.interop.tuner_results import INVALIDITIES, SECONDS, outcome_of
from kernrec.store.connection import one_line, parquet_rows
from kernrec.store.measurement import Outcome
from kernrec.store.reader import read_untrusted
from kernrec.util.files import open_input, scratch_folder

MOST_ROWS = 2_000_000


def csv_rows(text: str) -> tuple[list[str], Iterator[Mapping[str, str]]]:
    """Parse a CSV text. Return the column names and an iterator over rows, which map columns to values.

    Raises:
        ValueError: The text is not CSV, a row has the wrong number of values, or there are too many rows. Errors in
            rows are raised during iteration.
    """
    lines = csv.reader(io.StringIO(text, newline=""), strict=True)
    try:
        columns = [name.strip() for name in next(lines, [])]
    except csv.Error as error:
        raise ValueError(f"it is not CSV: {error}") from None
    if len(columns) < 2 or not all(columns):
        raise ValueError("it is not a table: its first line has to name at least two columns")

    def rows() -> Iterator[Mapping[str, str]]:
        count = 0
        try:
            for line in lines:
                if not line:
                    continue
                if len(line) != len(columns):
                    raise ValueError(f"line {lines.line_num} has {len(line)} values for {len(columns)} columns")
                count += 1
                if count > MOST_ROWS:
                    raise ValueError(f"it has more than {MOST_ROWS} rows")
                yield {name: value.strip() for name, value in zip(columns, line, strict=True)}
        except csv.Error as error:
            raise ValueError(f"line {lines.line_num}: {error}") from None

    return unlike(columns), rows()


def unlike(columns: list[str]) -> list[str]:
    """Return `columns`. Raise `ValueError` if two names differ only in case."""
    if len({name.casefold() for name in columns}) < len(columns):
        raise ValueError("it names a column twice")
    return columns


TOOL = "table"
_PARQUET = b"PAR1"
_TIMES = ("time", "latency", "runtime", "duration")
_TEXTS = {
    "device": ("device", "gpu", "device_name"),
    "outcome": ("outcome", "status", "invalidity"),
    "error": ("error",),
    "timestamp": ("timestamp", "measured_at"),
}
_LIMITS = ("power_limit_w", "locked_sm_clock_hz", "locked_memory_clock_hz")
_QUANTITIES: dict[str, tuple[str, float | None]] = {
    **{column: (text, None) for text, columns in _TEXTS.items() for column in columns},
    **{f"{time}_{unit}": ("latency_s", factor) for time in _TIMES for unit, factor in SECONDS.items()},
    **{name: (name, None) for name in (*REGISTERS, *SHARED_BYTES)},
    **{name: (name, 1.0) for name in (*chain(*ENERGIES), *_LIMITS)},
    **{f"{name}_mhz": (f"{name}_hz", 1e6) for name in ("locked_sm_clock", "locked_memory_clock")},
    "energy_j": ("energy", 1.0), "energy_mj": ("energy", 1e-3), "power_w": ("power", 1.0), "power_mw": ("power", 1e-3),
}  # fmt: skip
"""Quantity of each known column, and the factor to its SI unit or None."""
_NOT_RUN = ("", "none", "null")  # Outcomes of configs that were not run


def is_parquet(path: Path) -> bool:
    """Return whether a file is Parquet. Raise `UsageError` if the file cannot be read."""
    try:
        with open_input(path) as file:
            return file.read(len(_PARQUET)) == _PARQUET
    except OSError as error:
        raise UsageError(cannot_be("read", path, error)) from None


def read_csv_table(file: TextFile, options: ReadOptions) -> ForeignResults:
    columns, lines = csv_rows(file.text)
    return _results(columns, ({name: _plain(text) for name, text in line.items()} for line in lines), options)


def read_parquet_table(path: Path, options: ReadOptions) -> ForeignResults:
    return _results(*_parquet(path), options)


def _results(columns: Sequence[str], rows: Iterable[Mapping[str, Any]], options: ReadOptions) -> ForeignResults:
    if not options.names:
        raise ValueError("it is a table; give --kernel and --spec, which name its tunables")
    reader = _Reader(columns, options)
    read = numbered(rows, reader.result, "row")
    if len(reader.devices) > 1:
        raise ValueError(f"it has rows of {len(reader.devices)} devices; import each device separately")
    results = [result for result in read if result is not None]
    device = next(iter(reader.devices), None)
    return ForeignResults(TOOL, device, None, results, not_run=len(read) - len(results))


def _plain(text: str) -> object:
    if not text:
        return None
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return {"true": True, "false": False}.get(text.lower(), text)


def _parquet(path: Path) -> tuple[list[str], Iterable[Mapping[str, Any]]]:
    if path.stat().st_size > MOST_BYTES:
        raise UsageError(f"{path} is larger than {MOST_BYTES // 2**20} MiB; it is not read")
    with scratch_folder() as folder:
        read_untrusted("table", path, folder, most_rows=MOST_ROWS)
        with one_line(path), parquet_rows(folder / "table.parquet") as (connection, source):
            cursor = connection.execute(f"FROM {source}")
            columns = [column[0] for column in cursor.description or ()]
            rows = cursor.fetchall()
    return unlike(columns), (dict(zip(columns, row, strict=True)) for row in rows)


class _Reader:
    """Converter of a table's rows to results."""

    def __init__(self, columns: Sequence[str], options: ReadOptions) -> None:
        """Determine the meaning of each column. Raise `ValueError` for a column without a known meaning."""
        for each in options.mapped:
            if each.column not in columns:
                raise ValueError(str(unknown("column", each.column, columns)))
        taken = {each.column for each in options.mapped}
        cells = [MappedColumn(name, name) for name in columns if name not in taken] + [*options.mapped]
        unlike([each.name for each in cells])
        tunables, ignored = ({name.casefold() for name in names} for names in (options.names, options.ignored))
        if missing := sorted(ignored - {each.name.casefold() for each in cells}):
            raise ValueError(str(unknown("column", missing[0], columns)))
        self.devices: set[str] = set()
        self._config = [each for each in cells if each.name.casefold() in tunables]
        others = [each for each in cells if each.name.casefold() not in tunables | ignored]
        _check_times(others)
        if strange := [each.name for each in others if each.name.casefold() not in _QUANTITIES]:
            close = nearest(strange[0], [*options.names, *_QUANTITIES], 1)
            hint = f"; did you mean {close[0]}?" if close and len(strange) == 1 else ""
            listed = ", ".join(f"{name!r:.60}" for name in strange)
            stated = "column {} is neither a tunable of the spec nor a known quantity"
            if len(strange) > 1:
                stated = "columns {} are neither tunables of the spec nor known quantities"
            leaves = f"--map ignore={','.join(strange)} leaves {'it' if len(strange) == 1 else 'them'} out"
            raise ValueError(f"{stated.format(listed)}{hint} ({leaves})")
        meanings = [(each, *_QUANTITIES[each.name.casefold()]) for each in others]
        present = {each.name.casefold(): each.column for each in others}
        # If several columns have the same meaning, use the column that comes first in `_TEXTS`.
        self._texts = {text: present[name] for text, names in _TEXTS.items() for name in names[::-1] if name in present}
        self._numbers = [entry for entry in meanings if entry[1] not in _TEXTS]
        names_of: dict[str, str] = {}
        for each, quantity, _ in self._numbers:
            if (first := names_of.setdefault(quantity, each.name)) != each.name:
                raise ValueError(
                    f"columns {first} and {each.name} state one quantity; skip one with --map ignore=COLUMN"
                )

    def result(self, row: Mapping[str, Any]) -> ForeignResult | None:
        """Return the result in a row, or None if the config never ran."""
        if not self._config:
            raise ValueError("it has no column of a tunable")
        config = config_of({each.name: _cell(row, each) for each in self._config})
        texts = {quantity: row[column] for quantity, column in self._texts.items()}
        outcome, error = _outcome(texts)
        if outcome is None:
            return None
        if (device := texts.get("device")) is not None:
            self.devices.add(text_of(device, "device"))
        stamp = texts.get("timestamp")
        fields: dict[str, Any] = {"measured_at": time_of(stamp.isoformat() if isinstance(stamp, datetime) else stamp)}
        values: dict[str, Any] = {}
        for each, quantity, factor in self._numbers:
            if (value := _cell(row, each)) is None or (outcome != Outcome.OK and quantity not in _LIMITS):
                continue
            values[quantity] = value if factor is None else finite(value, each.name) * factor
            if quantity in _LIMITS and values[quantity] <= 0:
                raise ValueError(f"{each.name} is {value}; expected a positive number")
        fields |= {name: values.pop(name) for name in _LIMITS if name in values}
        if outcome != Outcome.OK:
            return ForeignResult(config, outcome, error, **fields)
        latency = latency_of(values.pop("latency_s", None), 1.0)
        result = ran(config, latency, values, **fields)
        if result.energy_j is None and (stated := [name for name, _ in ENERGIES if name in values]):
            joules = values[stated[0]]
            raise ValueError(
                f"{stated[0]} of {joules:g} J in {latency:g} s is {joules / latency:.3g} W, which no GPU draws"
            )
        return result


def _cell(row: Mapping[str, Any], cell: MappedColumn) -> Any:
    value = row[cell.column]
    return value if value is None or cell.factor is None else finite(value, cell.column) * cell.factor


def _check_times(cells: Sequence[MappedColumn]) -> None:
    """Raise `ValueError` unless exactly one column is a time with a unit."""
    names = [each.name for each in cells]
    times = [name for name in names if _QUANTITIES.get(name.casefold(), ("",))[0] == "latency_s"]
    if len(times) > 1:
        raise ValueError(f"several columns are times ({', '.join(times)}); skip the others with --map ignore=COLUMN")
    if not times and (bare := next((name for name in names if name.casefold() in _TIMES), None)):
        raise ValueError(f"column {bare} has no unit; give --map 'latency_s={bare}*1e-3' if it is in ms")
    if not times:
        raise ValueError("no column is a time; name one such as time_ms, or give --map 'latency_s=COLUMN*FACTOR'")


def _outcome(texts: Mapping[str, Any]) -> tuple[Outcome | None, str | None]:
    """Return (outcome, error) of a row. The outcome is None if the config never ran."""
    if "outcome" not in texts:
        return Outcome.OK, None
    stated = str(texts["outcome"] or "").strip()
    word = stated.lower()
    if word in _NOT_RUN:
        return None, None
    outcome = Outcome(word) if word in tuple(Outcome) else INVALIDITIES.get(word) or outcome_of(stated)
    return outcome, None if outcome == Outcome.OK else text_of(texts.get("error") or stated, "error")
