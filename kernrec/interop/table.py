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
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
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
    code_of,
    config_of,
    energy_of,
    latency_of,
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
    """Parse a CSV text. Return (column names, iterator over rows).

    A row maps each column to its value without surrounding spaces.

    Raises:
        ValueError: The text is not CSV, a row has another number of values than the header, or there are more than
            `MOST_ROWS` rows. Errors in rows are raised during iteration.
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
    """Return the column names unchanged. Raise `ValueError` if two names differ only in case."""
    if len({name.casefold() for name in columns}) < len(columns):
        raise ValueError("it names a column twice")
    return columns


TOOL = "table"
_PARQUET = b"PAR1"
_TIMES = ("time", "latency", "runtime", "duration")
_OTHER = {
    "device": ("device", "gpu", "device_name"),
    "outcome": ("outcome", "status", "invalidity"),
    "error": ("error",),
    "timestamp": ("timestamp", "measured_at"),
}
_LIMITS = {"power_limit_w": ("power_limit_w", 1.0)} | {
    f"{name}_{unit}": (f"{name}_hz", factor)
    for name in ("locked_sm_clock", "locked_memory_clock")
    for unit, factor in (("mhz", 1e6), ("hz", 1.0))
}
_ENERGY = {"energy_j": 1.0, "energy_mj": 1e-3}
_POWER = {"power_w": 1.0, "power_mw": 1e-3}
_NOT_RUN = ("", "none", "null")  # Outcomes of configs that never ran


def is_parquet(path: Path) -> bool:
    """Return whether a file starts with the signature of Parquet. Raise `UsageError` if the file cannot be read."""
    try:
        with open_input(path) as file:
            return file.read(len(_PARQUET)) == _PARQUET
    except OSError as error:
        raise UsageError(cannot_be("read", path, error)) from None


def read_csv_table(file: TextFile, options: ReadOptions) -> ForeignResults:
    """Read the results in a CSV file. For the errors that it raises, see `read_results.Format`."""
    columns, lines = csv_rows(file.text)
    return _results(columns, ({name: _plain(text) for name, text in line.items()} for line in lines), options)


def read_parquet_table(path: Path, options: ReadOptions) -> ForeignResults:
    """Read the results in a Parquet file. For the errors that it raises, see `read_results.Format`."""
    return _results(*_parquet(path), options)


def _results(columns: Sequence[str], rows: Iterable[Mapping[str, Any]], options: ReadOptions) -> ForeignResults:
    if not options.names:
        raise ValueError("it is a table; give --kernel and --spec, which name its tunables")
    columns, rows = _mapped(columns, rows, options.mapped)
    reader = _Reader(columns, options)
    read = numbered(rows, reader.result, "row")
    if len(reader.devices) > 1:
        raise ValueError(f"it has rows of {len(reader.devices)} devices; import each device separately")
    results = [result for result in read if result is not None]
    device = next(iter(reader.devices), None)
    return ForeignResults(TOOL, device, None, results, not_run=len(read) - len(results))


def _mapped(
    columns: Sequence[str], rows: Iterable[Mapping[str, Any]], mapped: Sequence[MappedColumn]
) -> tuple[list[str], Iterable[Mapping[str, Any]]]:
    for each in mapped:
        if each.column not in columns:
            raise ValueError(str(unknown("column", each.column, columns)))
    taken = {each.column for each in mapped}
    unmapped = [name for name in columns if name not in taken]

    def row_of(row: Mapping[str, Any]) -> dict[str, Any]:
        values = {name: row[name] for name in unmapped}
        for each in mapped:
            value = row[each.column]
            values[each.name] = (
                value if value is None or each.factor is None else finite(value, each.column) * each.factor
            )
        return values

    return unlike([*unmapped, *(each.name for each in mapped)]), map(row_of, rows)


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

    def __init__(self, columns: Collection[str], options: ReadOptions) -> None:
        """Determine the meaning of each column. Raise `ValueError` for unknown columns, or if no column is a time."""
        folded = {name.casefold(): name for name in columns}
        self.devices: set[str] = set()
        self._config = {c for c in columns if c.casefold() in {name.casefold() for name in options.names}}
        ignored = {name.casefold() for name in options.ignored}
        if missing := sorted(ignored - folded.keys()):
            raise ValueError(str(unknown("column", missing[0], columns)))
        self._time = self._time_column(folded)
        quantities = {self._time[0].casefold(), *REGISTERS, *SHARED_BYTES, *_LIMITS, *_ENERGY, *_POWER}
        quantities |= {name for names in (*_OTHER.values(), *ENERGIES) for name in names}
        self._column = {name: folded[name] for name in quantities & folded.keys() if folded[name] not in self._config}
        self._other = {
            what: next((folded[name] for name in names if name in self._column), None) for what, names in _OTHER.items()
        }
        strange = [c for c in columns if c not in self._config and c.casefold() not in quantities | ignored]
        if strange:
            close = nearest(strange[0], [*options.names, *quantities], 1)
            hint = f"; did you mean {close[0]}?" if close and len(strange) == 1 else ""
            listed = ", ".join(f"{name!r:.60}" for name in strange)
            stated = "column {} is neither a tunable of the spec nor a known quantity"
            if len(strange) > 1:
                stated = "columns {} are neither tunables of the spec nor known quantities"
            leaves = f"--map ignore={','.join(strange)} leaves {'it' if len(strange) == 1 else 'them'} out"
            raise ValueError(f"{stated.format(listed)}{hint} ({leaves})")

    @staticmethod
    def _time_column(folded: Mapping[str, str]) -> tuple[str, float]:
        """Return (name of the column that contains the times, length of its unit in seconds)."""
        times = [
            (name, SECONDS[unit])
            for key, name in folded.items()
            for what, _, unit in [key.rpartition("_")]
            if what in _TIMES and unit in SECONDS
        ]
        if len(times) == 1:
            return times[0]
        if times:
            listed = ", ".join(name for name, _ in times)
            raise ValueError(f"several columns are times ({listed}); skip the others with --map ignore=COLUMN")
        bare = next((name for key, name in folded.items() if key in _TIMES), None)
        raise ValueError(
            f"column {bare} has no unit; give --map 'latency_s={bare}*1e-3' if it is in ms"
            if bare
            else "no column is a time; name one such as time_ms, or give --map 'latency_s=COLUMN*FACTOR'"
        )

    def result(self, row: Mapping[str, Any]) -> ForeignResult | None:
        """Return the result in a row, or None if the config never ran."""
        config = config_of({name: row[name] for name in self._config}) if self._config else {}
        if not config:
            raise ValueError("it has no column of a tunable")
        outcome, error = self._outcome(row)
        if outcome is None:
            return None
        if (device := self._value(row, "device")) is not None:
            self.devices.add(text_of(device, "device"))
        stamp = self._value(row, "timestamp")
        fields: dict[str, Any] = {
            "measured_at": time_of(stamp.isoformat() if isinstance(stamp, datetime) else stamp),
            **self._limits(row),
        }
        if outcome != Outcome.OK:
            return ForeignResult(config, outcome, error, **fields)
        latency = latency_of(row[self._time[0]], self._time[1])
        named = {key: row[name] for key, name in self._column.items() if row[name] is not None}
        joules = {name: finite(named[name], name) for name, _ in ENERGIES if name in named}
        watts = {name: finite(named[name], name) for _, name in ENERGIES if name in named}
        for quantities, total, units in ((joules, "energy", _ENERGY), (watts, "power", _POWER)):
            for name, unit in units.items():
                if name in named:
                    quantities[total] = finite(named[name], name) * unit
        energy = energy_of(joules, watts, latency)
        if joules and not energy:
            name, value = next(iter(joules.items()))
            raise ValueError(f"{name} of {value:g} J in {latency:g} s is {value / latency:.3g} W, which no GPU draws")
        return ForeignResult(config, Outcome.OK, None, latency, (), **fields, **energy, **code_of(named))

    def _value(self, row: Mapping[str, Any], what: str) -> Any:
        name = self._other[what]
        return None if name is None else row[name]

    def _outcome(self, row: Mapping[str, Any]) -> tuple[Outcome | None, str | None]:
        if self._other["outcome"] is None:
            return Outcome.OK, None
        stated = str(self._value(row, "outcome") or "").strip()
        word = stated.lower()
        if word in _NOT_RUN:
            return None, None
        if word in (*Outcome, *INVALIDITIES):
            outcome = Outcome(word) if word in tuple(Outcome) else INVALIDITIES[word]
        else:
            outcome = outcome_of(stated)
        error = self._value(row, "error")
        return outcome, None if outcome == Outcome.OK else text_of(error if error else stated, "error")

    def _limits(self, row: Mapping[str, Any]) -> dict[str, float]:
        limits = {}
        for name, (column, factor) in _LIMITS.items():
            if name in self._column and (value := row[self._column[name]]) is not None:
                limits[column] = finite(value, name) * factor
                if limits[column] <= 0:
                    raise ValueError(f"{name} is {value}; expected a positive number")
        return limits
