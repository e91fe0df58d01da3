"""Define `Measurement`: the outcome of one config of a kernel on one device.

Its fields are the columns of the table `measurement` (`db/schema`).
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
    """Latency of one computation of the problem. All fields are None if nothing was timed."""

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
    """Whether the 90 % interval became narrow enough."""
    latency_window_s: float | None = None
    l2_policy: str | None = None
    """Treatment of the L2 cache between launches, such as `flushed`."""


@dataclass(frozen=True)
class EnergyReport:
    """Energy of one computation of the problem, including idle power. A field is None if it was not measured."""

    sustained_latency_s: float | None = None
    """Latency in seconds while energy was measured."""
    energy_j: float | None = None
    energy_low_j: float | None = None
    """Lower end of the 90 % interval, in joules."""
    energy_high_j: float | None = None
    power_w: float | None = None
    energy_method: str | None = None
    energy_ticks: int | None = None
    """Number of updates of the energy counter."""
    energy_tick_s: float | None = None
    """Seconds between two updates of the energy counter."""
    energy_counter_ratio: float | None = None
    """Energy from the counter, divided by energy from the power sensor."""
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
    """Fraction of sensor readings with each clock event reason, such as `SwPowerCap`."""


@dataclass(frozen=True)
class NumericCheck:
    """Comparison of a kernel's output with the reference output."""

    numeric_error: float | None = None
    """Largest error of the output, relative to its RMS."""
    tolerance: float | None = None
    """Largest error that counts as correct, or None if the outputs must be equal."""
    checked_against: str | None = None


@dataclass(frozen=True)
class DeviceReport(LatencyReport, EnergyReport, GpuState, NumericCheck):
    """Everything that the measuring process reports: costs, state of the GPU and numeric errors."""

    launches: int | None = None
    """Number of launches in the last timed window."""
    input_footprint: float | None = None
    """Size of all inputs and outputs, divided by the size of the L2 cache."""

    def as_json(self) -> dict[str, Any]:
        """Return the columns that are not None, keyed by column name."""
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
    """Convert a column's value to the type of its field. Return a value of a wrong type unchanged."""
    if name == "latency_samples_s" and isinstance(value, list):
        return tuple(value)
    if name == "event_reasons" and isinstance(value, str):
        try:
            return json.loads(value)
        except ValueError:
            return value
    return value


NEWEST_PROTOCOL = 1
"""Newest supported version of the measuring protocol (docs/protocol.md). `db/schema/views.sql` repeats the number."""


class Outcome(StrEnum):
    OK = "ok"
    COMPILE = "compile"
    CONSTRAINT = "constraint"
    """The config cannot be launched on this device or for this problem."""
    TIMEOUT = "timeout"
    CRASH = "crash"
    INCORRECT = "incorrect"
    """The result is wrong. The config is not timed."""
    QUARANTINED = "quarantined"
    """The GPU was disturbed during the measurement, so the result is not valid."""


class Tier(StrEnum):
    """Effort for a measurement, lowest first."""

    SCREEN = "screen"
    """Latency only."""
    COARSE = "coarse"
    """Latency, and energy over a few seconds."""
    FINAL = "final"
    """Latency and energy over a longer time, repeated several times."""


@dataclass(frozen=True)
class ProblemRecord:
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
    """The compiled code that ran, and its compiler."""

    cubin_hash: str | None = None
    compiler: str | None = None
    compiler_flags: str | None = None
    registers: int | None = None
    smem_bytes: int | None = None
    """Static and dynamic shared memory per block, in bytes."""
    spill_bytes: int | None = None


@dataclass(frozen=True)
class InputInfo:
    input_generator: str | None = None
    input_seed: int | None = None
    input_distribution: str | None = None


Limits = tuple[float | None, float | None, float | None, bool]
"""(Power limit in W, core clock in Hz, memory clock in Hz, whether MIG is enabled). Clocks that are not locked are
None."""


@dataclass(frozen=True)
class GpuSettings:
    """Settings of a GPU that another program may change. None means unknown or default."""

    power_limit_w: float | None = None
    """Power limit in watts."""
    locked_sm_clock_hz: float | None = None
    locked_memory_clock_hz: float | None = None
    ecc: bool | None = None
    mig: bool | None = None
    persistence: bool | None = None


@dataclass(frozen=True)
class MeasuredDevice(GpuSettings):
    device: str | None = None
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
    """Probability with which the config was selected, or None if it was not selected at random."""
    session: str
    measured_at: datetime
    """Time in UTC, without a time zone."""
    measured_by: str | None = None
    block: int | None = None
    """Number of the block in the session. The reference kernels run between blocks."""
    position: int | None = None
    reference_age_s: float | None = None
    """Seconds since the last run of the reference kernels."""
    reference_latency: float | None = None
    """Latency of the reference kernels, relative to the start of the session."""
    reference_energy: float | None = None
    """Energy of the reference kernels, relative to the start of the session."""
    block_open: bool | None = None
    """True if the session ended within the block, so that drift is unknown. Otherwise None."""
    replayed: bool | None = None
    """True if the row comes from a replayed recording, else None."""

    @property
    def config_key(self) -> tuple[str, str, str]:
        """Kernel, hash of the kernel, and canonical text of the config."""
        return self.kernel, self.kernel_hash, canonical_json(dict(self.config))

    def columns(self) -> dict[str, Any]:
        """Return the values of all columns, keyed by column name."""
        return dict(vars(self))

    @classmethod
    def from_columns(cls, columns: Mapping[str, Any]) -> "Measurement":
        """Build a measurement from the result of `columns`. Absent columns are None.

        `problem` may also be a `Problem` or the result of `Problem.as_dict`. Raise `UsageError` if a column is unknown,
        or if `config` or `problem` is missing. The database checks other values later.
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
