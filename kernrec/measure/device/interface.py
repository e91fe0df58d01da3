"""Define the interface of a device that the measuring protocol uses.

The same protocol measures real GPUs (cuda.py), and simulated GPUs that have a simulated clock (simulated.py).
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from kernrec.errors import KernrecError
from kernrec.kernel import Kernel, config_text
from kernrec.op import Problem
from kernrec.store.measurement import DeviceReport, GpuSettings, MeasuredDevice, Outcome


class MeasurementFailure(KernrecError):  # noqa: N818 - a stored outcome, not a defect of this program
    """Failure to measure a config. The message is stored in the database."""

    def __init__(self, outcome: Outcome, message: str, lost: bool = False, report: DeviceReport | None = None) -> None:
        """Create a failure. If `lost` is True, the process can no longer use the device."""
        super().__init__(" ".join(message.split())[:500])
        self.outcome = outcome
        self.lost = lost
        self.report = report or DeviceReport()


@dataclass(frozen=True)
class ConfigUnderTest:
    """A config of a kernel, and the problem on which to measure it."""

    kernel_name: str
    config: Mapping[str, int]
    problem: Problem
    kernel: Kernel | None = None
    """Kernel, or None for a recorded kernel whose source is unknown."""


@dataclass(frozen=True)
class PreparedProblem:
    """A problem with everything that determines its inputs and its expected outputs."""

    problem: Problem
    kernel: Kernel | None = None
    """Kernel whose own spec defines the problem, or None if an op of kernrec defines it."""
    folder: Path | None = None
    """Folder of the files that the kernel's spec names."""
    baseline: Mapping[str, int] | None = None
    """Config that computes the expected output, or None if there is a reference implementation."""

    @property
    def reference(self) -> str:
        """Description of the source of the expected outputs."""
        if self.kernel is None:
            return "reference of the op in float64"
        if self.baseline is None:
            return "reference of the spec"
        return "output of " + config_text(self.baseline)


@dataclass(frozen=True)
class DeviceInfo:
    gpu: str
    """Name in the GPU catalog."""
    name: str
    """Name that the driver reports."""
    sm: int
    """Compute capability, such as 90 for 9.0."""
    l2_bytes: int
    memory_bytes: int
    generation: str
    energy: str | None = None
    """Reason why energy cannot be measured, or None if it can."""
    virtual: bool = False
    """Whether the device is simulated and has its own clock."""
    uuid_hash: str | None = None
    vbios: str | None = None
    driver: str | None = None
    cuda: str | None = None
    cupy: str | None = None
    nvml: str | None = None
    other_processes: int | None = None
    settings: GpuSettings = field(default_factory=GpuSettings)

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "DeviceInfo":
        return cls(**{**values, "settings": GpuSettings(**values["settings"])})

    def measured_device(self, idle_w: float | None = None) -> MeasuredDevice:
        """Return the row columns that describe the device. `idle_w` is the idle power in watts, or None."""
        same = ("vbios", "driver", "cuda", "cupy", "nvml", "other_processes")
        return MeasuredDevice(
            device=self.name,
            device_uuid_hash=self.uuid_hash,
            idle_w=idle_w,
            **{name: getattr(self, name) for name in same},
            **vars(self.settings),
        )


class SensorReading(NamedTuple):
    """One reading of all sensors. The value of a sensor that the GPU lacks is None."""

    time_s: float
    """Time of the reading in seconds, on the device's clock."""
    energy_j: float | None
    """Energy counter in joules, with an arbitrary start."""
    power_w: float | None
    sm_clock_hz: float | None
    memory_clock_hz: float | None
    temperature_c: float | None
    reasons: frozenset[str] = frozenset()
    """Clock event reasons that NVML reports, such as `SwPowerCap`."""


@dataclass(frozen=True)
class OutputError:
    largest: float
    unwritten: int
    """Number of output elements that were not written or are not finite."""
    tolerance: float
    """Largest error that counts as correct."""
    reference: str
    """Description of the source of the expected outputs."""


class LoadedConfig(Protocol):
    """A config whose code, inputs and outputs are on the device.

    A launch is the complete sequence of kernels that computes the problem. Only methods that return times or errors
    wait for it to finish.
    """

    footprint_bytes: int
    """Size of the inputs and outputs of one launch, in bytes."""
    renewed: bool
    """Whether a launch changes data that affect the time of the next launch. If so, inputs are renewed before each
    launch, and energy is not measured."""

    def errors(self) -> OutputError | None:
        """Launch once, and compare the outputs with the expected outputs. Return None for a replayed recording."""

    def times(self, launches: int) -> list[float]:
        """Launch several times, and return the seconds of each launch. L2 is flushed before each launch."""

    def back_to_back(self, launches: int) -> float:
        """Return the mean seconds per launch without gaps between launches.

        Successive launches use different copies of the buffers, which together exceed L2.
        """

    def submit(self, launches: int) -> None:
        """Queue launches, which use the copies of the buffers in turn."""

    def outstanding(self) -> int:
        """Return the number of queued launches that have not finished."""

    def mark(self) -> None:
        """Queue a time stamp after all launches queued so far."""

    def between_marks(self) -> float:
        """Wait for queued launches. Return the seconds from the first to the last time stamp, and delete the time
        stamps."""

    def close(self) -> None:
        """Free the config's memory."""


class Device(Protocol):
    """A GPU to measure on. Methods raise `MeasurementFailure` if a measurement is impossible."""

    info: DeviceInfo

    def settings(self) -> GpuSettings:
        """Return the GPU's current settings."""

    def prepare(self, prepared: PreparedProblem) -> None:
        """Create the inputs and expected outputs of a problem, and delete the data of the previous problem."""

    def load(self, subject: ConfigUnderTest) -> LoadedConfig:
        """Load a config, and prepare its problem if needed. Callers must prepare problems that a spec defines."""

    def references(self) -> Mapping[str, LoadedConfig]:
        """Load the two reference kernels: `compute`, limited by arithmetic, and `memory`, limited by DRAM."""

    def read_sensors(self) -> SensorReading:
        """Read all sensors."""

    def sm_clock_hz(self) -> float | None:
        """Measure the SM clock in Hz after all queued launches. Return None if that is impossible."""

    def now(self) -> float:
        """Return the time in seconds on the device's clock, as in `SensorReading.time_s`."""

    def rest(self, seconds: float) -> None:
        """Wait for some seconds on the device's clock."""
