"""Define the interface between protocol and device: `Device`, and `LoadedConfig`, a config ready to be launched.

The same protocol measures real GPUs (cuda.py) and simulated GPUs with recorded times (replay.py). A simulated GPU has
its own clock, which advances only with use, so that a campaign of an hour takes seconds.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from kernrec.errors import KernrecError
from kernrec.kernel import Kernel, config_text
from kernrec.op import Problem
from kernrec.store.measurement import DeviceReport, MeasuredDevice, Outcome


class MeasurementFailure(KernrecError):  # noqa: N818 - a stored outcome, not a defect of this program
    """Error for a config that could not be measured; the message is the row's error text."""

    def __init__(self, outcome: Outcome, message: str, lost: bool = False, report: DeviceReport | None = None) -> None:
        """Create a failure.

        Args:
            outcome: Outcome of the measurement.
            message: Reason, cut to 500 characters.
            lost: Whether the process is no longer usable, for example after an illegal access.
            report: Measurements before the failure.
        """
        super().__init__(" ".join(message.split())[:500])
        self.outcome = outcome
        self.lost = lost
        self.report = report or DeviceReport()


@dataclass(frozen=True)
class ConfigUnderTest:
    """A config of a kernel to run on a problem."""

    kernel_name: str
    config: Mapping[str, int]
    problem: Problem
    kernel: Kernel | None = None
    """Kernel; None for a recorded kernel whose source is unknown."""


@dataclass(frozen=True)
class PreparedProblem:
    """A problem, the data that determines the initial memory contents, and the expected results."""

    problem: Problem
    kernel: Kernel | None = None
    """Kernel whose spec declares the problem; None for the problem of an op."""
    folder: Path | None = None
    """Folder of the files that the spec names."""
    baseline: Mapping[str, int] | None = None
    """Config whose output all other configs must reproduce, if neither an op nor the spec defines the result."""

    @property
    def reference(self) -> str:
        """Return the name of the results' reference, as stored in rows."""
        if self.kernel is None:
            return "reference of the op in float64"
        if self.baseline is None:
            return "reference of the spec"
        return "output of " + config_text(self.baseline)


@dataclass(frozen=True)
class GpuSettings:
    """Settings of a GPU that another program may change during a campaign; None if unknown or default."""

    power_limit_w: float | None = None
    sm_clock_hz: float | None = None
    memory_clock_hz: float | None = None
    ecc: bool | None = None
    mig: bool | None = None
    persistence: bool | None = None


@dataclass(frozen=True)
class DeviceInfo:
    """Name, software and settings of a device."""

    gpu: str
    """Name in the GPU catalog."""
    name: str
    """Name given by the driver."""
    sm: int
    """Compute capability: 90 for 9.0."""
    l2_bytes: int
    memory_bytes: int
    generation: str
    energy: str | None = None
    """Reason why energy cannot be measured, in one line; None if it can."""
    virtual: bool = False
    """Whether the device has its own clock."""
    uuid_hash: str | None = None
    vbios: str | None = None
    driver: str | None = None
    cuda: str | None = None
    cupy: str | None = None
    nvml: str | None = None
    other_processes: int | None = None
    settings: GpuSettings = field(default_factory=GpuSettings)

    def as_dict(self) -> dict[str, Any]:
        """Return plain values that can be sent between processes; `from_dict` reads them."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "DeviceInfo":
        """Return the device info from the result of `as_dict`."""
        return cls(**{**values, "settings": GpuSettings(**values["settings"])})

    def measured_device(self, idle_w: float | None = None) -> MeasuredDevice:
        """Return the device's columns of a row; `idle_w` is the idle power in watts, if measured."""
        settings = self.settings
        return MeasuredDevice(
            device=self.name,
            device_uuid_hash=self.uuid_hash,
            vbios=self.vbios,
            driver=self.driver,
            cuda=self.cuda,
            cupy=self.cupy,
            nvml=self.nvml,
            power_limit_w=settings.power_limit_w,
            locked_sm_clock_hz=settings.sm_clock_hz,
            locked_memory_clock_hz=settings.memory_clock_hz,
            ecc=settings.ecc,
            mig=settings.mig,
            persistence=settings.persistence,
            other_processes=self.other_processes,
            idle_w=idle_w,
        )


class SensorReading(NamedTuple):
    """One reading of all sensors; None for a sensor that the GPU lacks."""

    time_s: float
    """Time on the device's clock."""
    energy_j: float | None
    """Energy counter in joules, from an arbitrary start."""
    power_w: float | None
    sm_clock_hz: float | None
    memory_clock_hz: float | None
    temperature_c: float | None
    reasons: frozenset[str] = frozenset()
    """Clock event reasons, such as `SwPowerCap`."""


@dataclass(frozen=True)
class OutputError:
    """Error of a config's outputs against the reference (correctness.py)."""

    largest: float
    """Largest error of any element."""
    unwritten: int
    """Number of elements that were not written or are NaN."""
    tolerance: float
    """Largest error that counts as correct."""
    reference: str
    """Source of the expected outputs, as stored in rows."""


class LoadedConfig(Protocol):
    """A config with its code, inputs and outputs on the device.

    A launch is the whole sequence of kernels that computes the problem, including a second pass. Launches are
    asynchronous, except in methods that return times.
    """

    footprint_bytes: int
    """Bytes of inputs and outputs of one launch."""
    renewed: bool
    """Whether each launch needs fresh inputs, because it changes data that affect its run time.

    Configs with fresh inputs are not timed back to back and have no energy, because both would include the copying.
    """

    def errors(self) -> OutputError | None:
        """Run once with outputs preset to NaN, and compare; return None on a device with only recorded times."""

    def times(self, launches: int) -> list[float]:
        """Return the seconds of each of several launches, with L2 flushed before each."""

    def back_to_back(self, launches: int) -> float:
        """Return the mean seconds of launches in one queued batch, over rotating buffers that together exceed L2."""

    def submit(self, launches: int) -> None:
        """Queue launches over rotating buffers, one after the other."""

    def outstanding(self) -> int:
        """Return the number of submitted launches that have not finished."""

    def mark(self) -> None:
        """Queue a time stamp after all submitted launches."""

    def between_marks(self) -> float:
        """Wait for all submitted launches; return the seconds between the first and last time stamps, and delete the
        stamps."""

    def close(self) -> None:
        """Free the config's memory."""


class Device(Protocol):
    """A GPU to measure on. Methods raise `MeasurementFailure` if a measurement is impossible."""

    info: DeviceInfo

    def settings(self) -> GpuSettings:
        """Return the GPU's present settings."""

    def prepare(self, prepared: PreparedProblem) -> None:
        """Create a problem's inputs and reference for later calls of `load`, and delete those of the previous
        problem."""

    def load(self, subject: ConfigUnderTest) -> LoadedConfig:
        """Return a config of the prepared problem, ready to be launched; prepare the problem of an op if needed."""

    def references(self) -> Mapping[str, LoadedConfig]:
        """Return the `compute`- and `memory`-bound reference kernels, which distinguish slow configs from a slow
        GPU."""

    def read_sensors(self) -> SensorReading:
        """Read all sensors."""

    def sm_clock_hz(self) -> float | None:
        """Return the SM clock that a kernel measures after all submitted launches; None if unavailable."""

    def now(self) -> float:
        """Return the seconds on the device's clock, the clock of `SensorReading.time_s`."""

    def rest(self, seconds: float) -> None:
        """Let time pass."""
