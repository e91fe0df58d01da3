"""Define `Measurement`: the outcome of one config of a kernel on one device.

Its fields are the columns of the table `measurement` (`db/schema`). Groups of them are base classes.
"""

import json
from collections.abc import Mapping
from dataclasses import fields
from datetime import datetime
from enum import StrEnum
from typing import Any

from kernrec.errors import UsageError, unknown
from kernrec.op import Problem
from kernrec.store.rows import canonical_json
from kernrec.util.light_dataclass import dataclass


@dataclass(frozen=True)
class LatencyReport:
    """Latency of one launch sequence in a burst of launches. All fields are None if nothing was timed."""

    latency_s: float | None = None
    latency_samples_s: tuple[float, ...] | None = None
    latency_n: int | None = None
    latency_mad_s: float | None = None
    """Median absolute deviation, in seconds."""
    latency_q10_s: float | None = None
    latency_q90_s: float | None = None
    latency_low_s: float | None = None
    """Lower end of the 90 % interval of the median, in seconds."""
    latency_high_s: float | None = None
    latency_outliers: int | None = None
    """Number of samples more than 5 median absolute deviations from the median."""
    latency_converged: bool | None = None
    """Whether the 90 % interval became as narrow as the protocol requires."""
    latency_window_s: float | None = None
    """Length of the time in which samples were taken, in seconds."""
    l2_policy: str | None = None
    """Treatment of the L2 cache between launches, such as `flushed`."""


@dataclass(frozen=True)
class EnergyReport:
    """Energy of one launch sequence under sustained load, idle power included. A field is None if it was not
    measured."""

    sustained_latency_s: float | None = None
    """Latency during the energy window, in seconds."""
    energy_j: float | None = None
    energy_low_j: float | None = None
    """Lower end of the 90 % interval, in joules."""
    energy_high_j: float | None = None
    power_w: float | None = None
    energy_method: str | None = None
    energy_ticks: int | None = None
    """Number of updates of the energy counter in the window."""
    energy_tick_s: float | None = None
    """Time between two updates of the energy counter, in seconds."""
    energy_counter_ratio: float | None = None
    """Energy according to the counter, divided by the integral of the power sensor's readings."""
    energy_window_s: float | None = None


@dataclass(frozen=True)
class GpuState:
    """State of the GPU while the config ran."""

    temperature_start_c: float | None = None
    temperature_end_c: float | None = None
    sm_clock_mean_hz: float | None = None
    sm_clock_min_hz: float | None = None
    memory_clock_hz: float | None = None
    event_reasons: Mapping[str, float] | None = None
    """Fraction of sensor readings in which each clock event reason of the driver was active."""


@dataclass(frozen=True)
class NumericCheck:
    """Result of comparing a kernel's output with the reference output."""

    numeric_error: float | None = None
    """Largest error of the output, relative to its RMS."""
    tolerance: float | None = None
    """Largest error that still counts as correct, or None if the outputs must be equal."""
    checked_against: str | None = None


@dataclass(frozen=True)
class DeviceReport(LatencyReport, EnergyReport, GpuState, NumericCheck):
    """Results that only the measuring process knows: costs, state of the GPU and numeric errors."""

    launches: int | None = None
    """Number of launches in the last measuring window."""
    input_footprint: float | None = None
    """Size of all inputs and outputs, divided by the size of the L2 cache."""

    def as_json(self) -> dict[str, Any]:
        """Return the columns that are not None, as JSON values keyed by column name."""
        values = {name: value for name, value in vars(self).items() if value is not None}
        for name in values.keys() & {"config", "event_reasons"}:
            values[name] = dict(values[name])
        if "problem" in values:
            values["problem"] = vars(values["problem"]) | {"dims": dict(values["problem"].dims)}
        if isinstance(values.get("measured_at"), datetime):
            values["measured_at"] = values["measured_at"].isoformat()
        return values

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> "DeviceReport":
        return cls(**{name: report_value(name, value) for name, value in values.items()})


def report_value(name: str, value: Any) -> Any:
    """Convert a column's value to the type of its field. Return a wrong value unchanged, for a later check."""
    if name == "latency_samples_s" and isinstance(value, list):
        return tuple(value)
    if name == "event_reasons" and isinstance(value, str):
        try:
            return json.loads(value)
        except ValueError:
            return value
    return value


NEWEST_PROTOCOL = 1
"""Newest supported version of the measuring protocol (docs/protocol.md), also in `db/schema/views.sql`."""


class Outcome(StrEnum):
    OK = "ok"
    COMPILE = "compile"
    CONSTRAINT = "constraint"
    """The config cannot be launched on this device or for this problem."""
    TIMEOUT = "timeout"
    CRASH = "crash"
    INCORRECT = "incorrect"
    """The result differs from the reference by more than rounding errors explain. The config is not timed."""
    QUARANTINED = "quarantined"
    """The GPU was disturbed during the measurement, so the result is not valid."""


class Tier(StrEnum):
    """Thoroughness of a measurement, in ascending order."""

    SCREEN = "screen"
    """Only latency."""
    COARSE = "coarse"
    """Latency, and energy over a short window."""
    FINAL = "final"
    """Latency and energy over long windows, in several interleaved rounds."""


@dataclass(frozen=True)
class ProblemRecord:
    """A row of the table `problem`. It can be read without the definition of its op."""

    key: str
    """Canonical name of the problem, such as `matmul[m=1,n=2,k=3]f32,nn`."""
    op: str
    dims: Mapping[str, int]
    dtype: str
    layout: str

    @classmethod
    def of(cls, problem: Problem) -> "ProblemRecord":
        return cls(**problem.as_dict())


@dataclass(frozen=True)
class CodeInfo:
    """Properties of the compiled code that ran, and the compiler that produced it."""

    cubin_hash: str | None = None
    compiler: str | None = None
    compiler_flags: str | None = None
    registers: int | None = None
    smem_bytes: int | None = None
    """Static and dynamic shared memory per block, in bytes."""
    spill_bytes: int | None = None


@dataclass(frozen=True)
class InputInfo:
    """Description of the values in the input tensors."""

    input_generator: str | None = None
    input_seed: int | None = None
    input_distribution: str | None = None


Limits = tuple[float | None, float | None, float | None, bool]
"""Power limit in W, locked core and memory clock in Hz (None if not set), and whether MIG divides the GPU."""


@dataclass(frozen=True)
class GpuSettings:
    """Settings of a GPU that another program may change during a campaign. None means unknown or default."""

    power_limit_w: float | None = None
    """Power limit in watts, or None for the default. `locked_sm_clock_hz` and `locked_memory_clock_hz` are None if the
    clock was not locked."""
    locked_sm_clock_hz: float | None = None
    locked_memory_clock_hz: float | None = None
    ecc: bool | None = None
    mig: bool | None = None
    persistence: bool | None = None


@dataclass(frozen=True)
class MeasuredDevice(GpuSettings):
    """GPU, software and settings with which a config was measured."""

    device: str | None = None
    """Name of the GPU according to the driver."""
    device_uuid_hash: str | None = None
    vbios: str | None = None
    driver: str | None = None
    cuda: str | None = None
    cupy: str | None = None
    nvml: str | None = None
    other_processes: int | None = None
    idle_w: float | None = None
    """Power of the idle GPU with a CUDA context, in watts."""

    @property
    def limits(self) -> Limits:
        return self.power_limit_w, self.locked_sm_clock_hz, self.locked_memory_clock_hz, bool(self.mig)


@dataclass(frozen=True, kw_only=True)
class Measurement(DeviceReport, MeasuredDevice, InputInfo, CodeInfo):
    """One row of the measurement log."""

    gpu: str
    """Name of the GPU in the GPU catalog."""
    kernel: str
    kernel_hash: str
    config: Mapping[str, Any]
    problem: ProblemRecord
    outcome: Outcome
    error: str | None = None
    protocol_version: int
    """Version of kernrec's protocol, or 0 if another program measured."""
    tier: Tier
    selection_probability: float | None = None
    """Probability with which the config was selected for this tier, or None if it was not selected at random."""
    session: str
    measured_at: datetime
    """Time in UTC without a time zone."""
    measured_by: str | None = None
    """Program that measured."""
    block: int | None = None
    """Number of the block in the session. A block lies between two runs of the reference kernels."""
    position: int | None = None
    reference_age_s: float | None = None
    """Seconds since the last run of the reference kernels."""
    reference_latency: float | None = None
    """Latency of the reference kernels, relative to the start of the session."""
    reference_energy: float | None = None
    """Energy of the reference kernels, relative to the start of the session."""
    block_open: bool | None = None
    """True if the session ended before the block's second reference run, so that drift is unknown. Else None."""
    replayed: bool | None = None
    """True if the row comes from replaying a recording, else None."""

    @property
    def config_key(self) -> tuple[str, str, str]:
        """Kernel, hash of the kernel, and canonical text of the config."""
        return self.kernel, self.kernel_hash, canonical_json(dict(self.config))

    def columns(self) -> dict[str, Any]:
        """Return the values of all columns, keyed by column name."""
        return dict(vars(self))

    @classmethod
    def from_columns(cls, columns: Mapping[str, Any]) -> "Measurement":
        """Build a measurement from values keyed by column name, like the result of `columns`. Absent columns are None.

        `problem` may also be a `Problem` or the result of `Problem.as_dict`. Raise `UsageError` if a column is unknown.
        `config` and `problem` are required and must have the right type. The database checks other values later.
        """
        if unknown_names := columns.keys() - set(_NAMES):
            raise unknown("column of measurement", sorted(unknown_names)[0], list(_NAMES))
        values: dict[str, Any] = dict.fromkeys(_REQUIRED)
        values |= {name: _value(name, value) for name, value in columns.items()}
        if not isinstance(values.get("config"), Mapping) or not isinstance(values.get("problem"), ProblemRecord):
            raise UsageError("a measurement needs `config` (the tunables' values) and `problem` (a Problem)")
        return cls(**values)


_NAMES = tuple(item.name for item in fields(Measurement))
_REQUIRED = (
    "gpu", "kernel", "kernel_hash", "config", "problem", "protocol_version", "tier", "session", "measured_at", "outcome"
)  # fmt: skip
_FROM_TEXT: dict[str, Any] = {"outcome": Outcome, "tier": Tier, "measured_at": datetime.fromisoformat}


def _value(name: str, value: Any) -> Any:
    if name == "problem":
        if isinstance(value, Problem):
            return ProblemRecord.of(value)
        return ProblemRecord(**value) if isinstance(value, Mapping) else value
    if name in _FROM_TEXT and isinstance(value, str):
        try:
            return _FROM_TEXT[name](value)
        except ValueError:
            return value
    return report_value(name, value)
