"""Define a device's report on one config: latency, energy, state of the GPU, numeric error.

The report is the part of a measurement that only the measuring process can know. It is a nested record whose leaf
fields are columns of a table. `columns_of` and `build` convert between records and columns.
"""

import json
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from datetime import datetime
from functools import cache
from typing import Any, TypeVar

from kernrec.util.light_dataclass import dataclass

_Record = TypeVar("_Record")


@dataclass(frozen=True)
class LatencyReport:
    """Latency of one launch sequence in a burst; all None if nothing was timed."""

    latency_s: float | None = None
    """Median."""
    latency_samples_s: tuple[float, ...] | None = None
    latency_n: int | None = None
    latency_mad_s: float | None = None
    """Median absolute deviation."""
    latency_q10_s: float | None = None
    latency_q90_s: float | None = None
    latency_low_s: float | None = None
    """Lower end of the 90 % interval of the median."""
    latency_high_s: float | None = None
    latency_outliers: int | None = None
    """Samples more than 5 MAD from the median."""
    latency_converged: bool | None = None
    """Whether the interval became as narrow as the protocol requires."""
    latency_window_s: float | None = None
    """Time over which samples were taken."""
    l2_policy: str | None = None
    """Treatment of the L2 cache between launches."""


@dataclass(frozen=True)
class EnergyReport:
    """Energy of one launch sequence under sustained load, idle power included; all None if it was not measured."""

    sustained_latency_s: float | None = None
    """Latency in the same window."""
    energy_j: float | None = None
    energy_low_j: float | None = None
    """Lower end of the 90 % interval."""
    energy_high_j: float | None = None
    power_w: float | None = None
    energy_method: str | None = None
    energy_ticks: int | None = None
    """Updates of the energy counter in the window."""
    energy_tick_s: float | None = None
    """Time between two updates of the energy counter."""
    energy_counter_ratio: float | None = None
    """Energy by the counter over the integral of the power sensor."""
    energy_window_s: float | None = None


@dataclass(frozen=True)
class CardState:
    """State of the GPU while the config ran."""

    temperature_start_c: float | None = None
    temperature_end_c: float | None = None
    sm_clock_mean_hz: float | None = None
    sm_clock_min_hz: float | None = None
    memory_clock_hz: float | None = None
    event_reasons: Mapping[str, float] | None = None
    """Fraction of the sensor readings with each clock event reason."""


@dataclass(frozen=True)
class NumericCheck:
    """Result of comparing the output with the reference."""

    numeric_error: float | None = None
    """Largest error, relative to the RMS of the output."""
    tolerance: float | None = None
    """Largest error that counts as correct; None if the outputs must be equal."""
    checked_against: str | None = None


@dataclass(frozen=True)
class DeviceReport:
    """The part of a measurement that only the measuring process can know."""

    latency: LatencyReport = LatencyReport()
    energy: EnergyReport = EnergyReport()
    state: CardState = CardState()
    check: NumericCheck = NumericCheck()
    launches: int | None = None
    """Number of launches in the last window, which is the energy window if energy was measured."""
    input_footprint: float | None = None
    """Bytes of inputs and outputs over bytes of L2."""

    def as_json(self) -> dict[str, Any]:
        """Return the columns that are not None, as values for JSON; `from_json` reads them."""
        return as_json(self)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> "DeviceReport":
        """Return the report from the result of `as_json`."""
        return build(cls, {name: report_value(name, value) for name, value in values.items()})


def report_value(name: str, value: Any) -> Any:
    """Convert a column's value to its type in a report, if possible; the database later refuses other values."""
    if name == "latency_samples_s" and isinstance(value, list):
        return tuple(value)
    if name == "event_reasons" and isinstance(value, str):
        try:
            return json.loads(value)
        except ValueError:
            return value
    return value


@cache
def _parts(owner: Any) -> Mapping[str, type]:
    return {item.name: item.type for item in fields(owner) if is_dataclass(item.type) and item.name != "problem"}  # type: ignore[misc]


@cache
def column_names(owner: Any) -> tuple[str, ...]:
    """Return the columns of a class, in the order of its fields."""
    parts = _parts(owner)
    names: list[str] = []
    for item in fields(owner):
        names += column_names(parts[item.name]) if item.name in parts else [item.name]
    return tuple(names)


def columns_of(record: Any) -> dict[str, Any]:
    """Return every column of a record by name."""
    parts = _parts(type(record))  # type: ignore[arg-type]  # mypy takes the class for an instance
    columns: dict[str, Any] = {}
    for name, value in vars(record).items():
        if name in parts:
            columns |= columns_of(value)
        else:
            columns[name] = value
    return columns


def build(owner: type[_Record], columns: Mapping[str, Any]) -> _Record:
    """Return a record from its columns; missing fields and parts get their defaults."""
    parts = _parts(owner)  # type: ignore[arg-type]
    arguments = {}
    for item in fields(owner):  # type: ignore[arg-type]  # of a dataclass
        if item.name not in parts:
            if item.name in columns:
                arguments[item.name] = columns[item.name]
        elif any(name in columns for name in column_names(parts[item.name])):
            arguments[item.name] = build(parts[item.name], columns)
    return owner(**arguments)


def as_json(record: Any) -> dict[str, Any]:
    """Return the columns of a record that are not None, as values for JSON."""
    values = {name: value for name, value in columns_of(record).items() if value is not None}
    for name in values.keys() & {"config", "event_reasons"}:
        values[name] = dict(values[name])
    if "problem" in values:
        values["problem"] = vars(values["problem"]) | {"dims": dict(values["problem"].dims)}
    if isinstance(values.get("measured_at"), datetime):
        values["measured_at"] = values["measured_at"].isoformat()
    return values
