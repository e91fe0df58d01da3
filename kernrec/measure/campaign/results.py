"""Define the effort and the budget of a campaign, and its reports and results."""

from dataclasses import dataclass, field
from statistics import median

from kernrec.errors import UsageError
from kernrec.measure.protocol import measure_config
from kernrec.measure.protocol.measure_config import FINALS
from kernrec.store.measurement import InputInfo, Measurement, Outcome, Tier


@dataclass(frozen=True)
class MeasuringEffort:
    """Number of configs to measure for each problem, and their selection."""

    configs: int | None
    """Maximum number of configs to screen, or None for all."""
    finals: int
    """Number of configs to measure in the final tier."""
    drawn: bool = False
    """Whether to measure a random sample for use as a test set, instead of the most promising configs."""


EFFORTS = {
    "quick": MeasuringEffort(64, 0),
    "normal": MeasuringEffort(1024, FINALS),
    "exhaustive": MeasuringEffort(None, FINALS),
}


@dataclass(frozen=True)
class CampaignBudget:
    """Time and number of screened configs at which a campaign ends. None means no limit."""

    seconds: float | None = None
    """Time in seconds, on the device's clock."""
    configs: int | None = None

    def check(self, with_energy: bool) -> None:
        """Raise `UsageError` if the time is too short for one measurement."""
        least_s = measure_config.LATENCY_CAP_S
        if with_energy:
            least_s += measure_config.SETTLE_S + min(coarse for coarse, _ in measure_config.WINDOWS_S.values())
        if self.seconds is not None and self.seconds < least_s:
            raise UsageError(
                f"a budget of {self.seconds:.3g} s is shorter than one measurement, which takes up to {least_s:.3g} s;"
                " give more, or a number such as 20configs"
            )


@dataclass(frozen=True)
class CampaignSettings:
    """Budget of a campaign, and the session, person and protocol version to store with each measurement."""

    session: str
    finals: int = 0
    """Number of configs per problem to measure in the final tier."""
    budget: CampaignBudget = field(default_factory=CampaignBudget)
    seed: int = 0
    measured_by: str | None = None
    protocol_version: int = measure_config.VERSION
    replayed: bool = False
    inputs: InputInfo = field(default_factory=InputInfo)


@dataclass(frozen=True)
class Progress:
    """Report of one step of a campaign: a measurement or a note."""

    device: str
    target: str
    tier: str
    done: int
    """Number of finished measurements of this problem and tier."""
    total: int
    left_s: float | None = None
    """Seconds left of the budget, or None if there is no time limit."""
    measurement: Measurement | None = None
    note: str | None = None


@dataclass
class ProblemResult:
    """Results of a campaign for one problem."""

    name: str
    problem: str
    """Key of the problem."""
    configs: int = 0
    """Number of planned configs."""
    measured: int = 0
    """Number of measurements by this campaign."""
    earlier: int = 0
    """Number of measurements by earlier campaigns."""
    best: Measurement | None = None
    """Measurement with the lowest latency, from this or an earlier campaign."""
    lowest_energy: Measurement | None = None
    """Measurement with the lowest energy, from this or an earlier campaign."""
    failures: dict[str, int] = field(default_factory=dict)
    """Number of failed measurements of this campaign, keyed by outcome."""
    examples: dict[str, str] = field(default_factory=dict)
    """Error text of one failed measurement, keyed by outcome."""

    def add_new(self, measurement: Measurement) -> None:
        self.measured += 1
        self._compare(measurement)
        if (outcome := measurement.outcome) != Outcome.OK:
            self.failures[outcome] = self.failures.get(outcome, 0) + 1
            self.examples.setdefault(outcome, measurement.error or "")

    def add_earlier(self, measurement: Measurement) -> None:
        self.earlier += 1
        self._compare(measurement)

    def _compare(self, measurement: Measurement) -> None:
        if measurement.outcome != Outcome.OK:
            return
        if self.best is None or (measurement.latency_s or 0.0) < (self.best.latency_s or 0.0):
            self.best = measurement
        if measurement.energy_j and (
            self.lowest_energy is None or measurement.energy_j < (self.lowest_energy.energy_j or 0.0)
        ):
            self.lowest_energy = measurement


ConfigKey = tuple[str, str, str]
"""Name of the kernel, hash of the kernel, and canonical text of the config."""


class ProblemHistory:
    """Measurements of one problem by this and earlier campaigns, grouped by config."""

    def __init__(self) -> None:
        self._measurements: dict[ConfigKey, list[Measurement]] = {}
        self._length = 0

    def __len__(self) -> int:
        return self._length

    def add(self, measurement: Measurement) -> None:
        self._measurements.setdefault(measurement.config_key, []).append(measurement)
        self._length += 1

    def has(self, key: ConfigKey) -> bool:
        return key in self._measurements

    def count(self, key: ConfigKey, *tiers: Tier) -> int:
        """Count a config's measurements in the given tiers, by default in all. Skip blocks that must be repeated."""
        measurements = self._measurements.get(key, ())
        # A block that never ended must be repeated, but only once, so that repeated kills do not prevent progress.
        alone = len({measurement.session for measurement in measurements}) < 2
        return sum(
            (not tiers or measurement.tier in tiers) and not (alone and bool(measurement.block_open))
            for measurement in measurements
        )

    def median(self, key: ConfigKey, cost: str, *tiers: Tier) -> float | None:
        """Return a config's median `latency_s` or `energy_j`, or None if unknown. `tiers` defaults to all tiers."""
        values = [
            value
            for measurement in self._measurements.get(key, ())
            if measurement.outcome == Outcome.OK
            and (not tiers or measurement.tier in tiers)
            and (value := getattr(measurement, cost))
        ]
        return median(values) if values else None
