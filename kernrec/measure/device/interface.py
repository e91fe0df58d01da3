"""What the protocol needs of a device, and no more: `Device`, and `LoadedConfig`, a config ready to be launched.

A real card (cuda.py), a card whose answers are recorded (replay.py) and one that fails on demand (faulty.py) are
measured by the same protocol. The last two keep a clock of their own, which only moves when they are used, so a
campaign of an hour takes seconds there.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol

from kernrec.errors import KernrecError
from kernrec.kernel import Kernel, config_text
from kernrec.op import Problem


class MeasurementFailure(KernrecError):  # noqa: N818 - an outcome that is stored, as often as not of somebody else's making
    """A config that could not be measured: `outcome` is the column of the database, the message its error text.

    lost: the process it ran in cannot be used any more, as after an illegal access. columns: what was found all the
    same.
    """

    def __init__(
        self, outcome: str, message: str, lost: bool = False, columns: Mapping[str, Any] | None = None
    ) -> None:
        super().__init__(" ".join(message.split())[:500])
        self.outcome = outcome
        self.lost = lost
        self.columns = dict(columns or {})


@dataclass(frozen=True)
class ConfigUnderTest:
    """What to run: one config of a kernel on one problem. A recorded kernel is known by name alone."""

    kernel_name: str
    config: Mapping[str, int]
    problem: Problem
    kernel: Kernel | None = None


@dataclass(frozen=True)
class PreparedProblem:
    """What the configs of a problem have in common: what they find in memory, and what they have to leave there.

    kernel: the one whose spec declares the problem; None for an op's. folder: where the spec's files are. baseline: the
    config whose output is expected of all others, where neither an op nor the spec says what is right.
    """

    problem: Problem
    kernel: Kernel | None = None
    folder: Path | None = None
    baseline: Mapping[str, int] | None = None

    @property
    def reference(self) -> str:
        """What results are held against, as rows have it."""
        if self.kernel is None:
            return "reference of the op in float64"
        if self.baseline is None:
            return "reference of the spec"
        return "output of " + config_text(self.baseline)


@dataclass(frozen=True)
class CardSettings:
    """What somebody may change of a card while it is measured. None: not known, or as the card comes."""

    power_limit_w: float | None = None
    sm_clock_hz: float | None = None
    memory_clock_hz: float | None = None
    ecc: bool | None = None
    mig: bool | None = None
    persistence: bool | None = None


@dataclass(frozen=True)
class DeviceInfo:
    """What a device says of itself. gpu: its name in the catalog.

    energy: why its energy cannot be measured, in one line; None where it can. virtual: its clock is its own.
    """

    gpu: str
    name: str
    sm: int
    l2_bytes: int
    memory_bytes: int
    generation: str
    energy: str | None = None
    virtual: bool = False
    uuid_hash: str | None = None
    vbios: str | None = None
    driver: str | None = None
    cuda: str | None = None
    cupy: str | None = None
    nvml: str | None = None
    other_processes: int | None = None
    settings: CardSettings = field(default_factory=CardSettings)

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for the pipe between processes."""
        return asdict(self)

    def columns(self) -> dict[str, Any]:
        """What every row made on the device says of it."""
        settings = self.settings
        return {
            "gpu": self.gpu,
            "device": self.name,
            "device_uuid_hash": self.uuid_hash,
            "vbios": self.vbios,
            "driver": self.driver,
            "cuda": self.cuda,
            "cupy": self.cupy,
            "nvml": self.nvml,
            "power_limit_w": settings.power_limit_w,
            "locked_sm_clock_hz": settings.sm_clock_hz,
            "locked_memory_clock_hz": settings.memory_clock_hz,
            "ecc": settings.ecc,
            "mig": settings.mig,
            "persistence": settings.persistence,
            "other_processes": self.other_processes,
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "DeviceInfo":
        """What `as_dict` gave."""
        return cls(**{**values, "settings": CardSettings(**values["settings"])})


@dataclass(frozen=True)
class SensorReading:
    """One look at the sensors: time in seconds of the device's clock; None for what the card does not tell."""

    time_s: float
    energy_j: float | None
    power_w: float | None
    sm_clock_hz: float | None
    memory_clock_hz: float | None
    temperature_c: float | None
    reasons: frozenset[str] = frozenset()


@dataclass(frozen=True)
class OutputError:
    """How far outputs are from the reference: the largest error (correctness.py), and elements never written.

    tolerance: the largest error that is not wrong; reference: what outputs were held against.
    """

    largest: float
    unwritten: int
    tolerance: float
    reference: str


class LoadedConfig(Protocol):
    """A config with its code, inputs and outputs on the device. Launches are asynchronous but where they return times.

    One launch is the whole sequence that computes the problem, a second pass included.
    """

    footprint_bytes: int
    """Inputs and outputs of one launch."""
    renewed: bool
    """Whether each launch needs its inputs made anew, since it changes what its run time depends on.

    Then there is no running back to back, and no energy, for the copying would be measured with it.
    """

    def errors(self) -> OutputError | None:
        """Runs once over outputs of NaN and compares; None on a device that only has recorded times."""

    def times(self, launches: int) -> list[float]:
        """Seconds of each of some launches, L2 flushed before each."""

    def back_to_back(self, launches: int) -> float:
        """Mean seconds of launches queued as one, over rotating buffers that do not fit L2 together."""

    def submit(self, launches: int) -> None:
        """Queue launches over rotating buffers, one after the other."""

    def outstanding(self) -> int:
        """How many of the submitted launches have not finished."""

    def mark(self) -> None:
        """Note, in the queue, the time at which all that was submitted so far is done."""

    def between_marks(self) -> float:
        """Wait for all that was submitted; device seconds from the first mark to the last, which are then forgotten."""

    def close(self) -> None:
        """Free what it holds."""


class Device(Protocol):
    """A card to measure on. Whatever cannot be measured raises `MeasurementFailure`."""

    facts: DeviceInfo

    def settings(self) -> CardSettings:
        """The card's settings now."""

    def prepare(self, case: PreparedProblem) -> None:
        """Make the inputs and the reference of a problem for the `load`s to come; they replace the last problem's."""

    def load(self, subject: ConfigUnderTest) -> LoadedConfig:
        """A config of the prepared problem, ready to be launched; an op's problem is prepared if it is not."""

    def references(self) -> Mapping[str, LoadedConfig]:
        """Two kernels that never change, to tell a config from a card that drifts: `compute`- and `memory`-bound."""

    def sample(self) -> SensorReading:
        """Look at the sensors."""

    def sm_clock_hz(self) -> float | None:
        """The SM clock as a kernel sees it, after all that was submitted; None where that cannot be had."""

    def now(self) -> float:
        """Seconds of the device's clock, by which samples are stamped."""

    def rest(self, seconds: float) -> None:
        """Let time pass."""
