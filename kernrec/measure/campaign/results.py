"""Define a campaign's effort and budget, and its results during and after the campaign."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from statistics import median

from kernrec.errors import UsageError
from kernrec.measure.protocol import measure_config
from kernrec.measure.protocol.measure_config import FINALS
from kernrec.store import canonical_json
from kernrec.store.measurement import InputInfo, Measurement, Outcome, Tier


@dataclass(frozen=True)
class MeasuringEffort:
    """Effort for each problem."""

    configs: int | None
    """Maximum configs to screen; None: all."""
    finals: int
    """Number of configs to measure in the final tier."""
    drawn: bool = False
    """Whether to measure a random sample of the space, as a test set, instead of the most promising configs."""


EFFORTS = {
    "quick": MeasuringEffort(64, 0),
    "normal": MeasuringEffort(1024, FINALS),
    "exhaustive": MeasuringEffort(None, FINALS),
}


@dataclass(frozen=True)
class CampaignBudget:
    """Time and number of screened configs at which a campaign ends; None: no limit."""

    seconds: float | None = None
    """Seconds on the device's clock."""
    configs: int | None = None

    def check(self, with_energy: bool) -> None:
        """Raise `UsageError` if the time is too short for one measurement, which takes longer with energy."""
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
    """Amount that a campaign measures, and the origin to store in its rows."""

    session: str
    """Name that identifies the campaign in its rows."""
    effort: MeasuringEffort = EFFORTS["normal"]
    budget: CampaignBudget = field(default_factory=CampaignBudget)
    seed: int = 0
    measured_by: str | None = None
    protocol_version: int = measure_config.VERSION
    replayed: bool = False
    """Whether the device replays a recording."""
    inputs: InputInfo = field(default_factory=InputInfo)


@dataclass(frozen=True)
class Progress:
    """One step of a campaign: a measurement, or a note."""

    device: str
    target: str
    """Name of the problem."""
    tier: str
    done: int
    """Number of finished measurements of the problem in this tier."""
    total: int
    left_s: float | None = None
    """Remaining seconds of the budget; None without a budget."""
    measurement: Measurement | None = None
    """The measurement; None for a note."""
    note: str | None = None


@dataclass
class ProblemResult:
    """Results for one problem."""

    name: str
    problem: str
    """Key of the problem."""
    configs: int
    """Number of configs in the problem's plan."""
    measured: int = 0
    """Number of measurements by this campaign."""
    earlier: int = 0
    """Number of measurements by earlier campaigns."""
    best: Measurement | None = None
    """Measurement with the lowest latency, from any campaign."""
    lowest_energy: Measurement | None = None
    """Measurement with the lowest energy, from any campaign."""
    failures: dict[str, int] = field(default_factory=dict)
    """Number of failures in this campaign, by outcome."""
    examples: dict[str, str] = field(default_factory=dict)
    """Error text of one failure, by outcome."""

    def add_new(self, measurement: Measurement) -> None:
        """Count a measurement of this campaign."""
        self.measured += 1
        self._compare(measurement)
        if (outcome := measurement.outcome) != Outcome.OK:
            self.failures[outcome] = self.failures.get(outcome, 0) + 1
            self.examples.setdefault(outcome, measurement.error or "")

    def add_earlier(self, measurement: Measurement) -> None:
        """Count a measurement of an earlier campaign."""
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


def merged_results(results: Iterable[ProblemResult]) -> list[ProblemResult]:
    """Merge the results of visits to one result per problem; `earlier` is the count before the first visit."""
    merged: dict[tuple[str, str], ProblemResult] = {}
    for each in results:
        before = merged.setdefault((each.name, each.problem), each)
        if before is each:
            continue
        before.measured += each.measured
        before.configs += each.configs
        before.best, before.lowest_energy = (
            each.best or before.best,
            each.lowest_energy or before.lowest_energy,
        )  # A visit reads earlier rows.
        for outcome, count in each.failures.items():
            before.failures[outcome] = before.failures.get(outcome, 0) + count
            before.examples.setdefault(outcome, each.examples[outcome])
    return list(merged.values())


ConfigKey = tuple[str, str, str]
"""Kernel, its hash and the canonical text of the config."""


class ProblemHistory:
    """Measurements of one problem by config, including earlier campaigns."""

    def __init__(self) -> None:
        self._measurements: dict[ConfigKey, list[Measurement]] = {}
        self._length = 0

    def __len__(self) -> int:
        return self._length

    def add(self, measurement: Measurement) -> None:
        """Add a measurement."""
        identity = measurement.identity
        key = identity.kernel, identity.kernel_hash, canonical_json(dict(identity.config))
        self._measurements.setdefault(key, []).append(measurement)
        self._length += 1

    def has(self, key: ConfigKey) -> bool:
        """Return whether a config has any measurement."""
        return key in self._measurements

    def count(self, key: ConfigKey, *tiers: Tier) -> int:
        """Return the number of a config's valid measurements in these tiers, or in all tiers if none are named.

        Measurements of open blocks count only once another session has measured the config, too. Otherwise runs that
        are repeatedly cut short would make no progress.
        """
        measurements = self._measurements.get(key, ())
        alone = len({measurement.origin.session for measurement in measurements}) < 2
        return sum(
            (not tiers or measurement.protocol.tier in tiers) and not (alone and bool(measurement.origin.block_open))
            for measurement in measurements
        )

    def median(self, key: ConfigKey, cost: str, *tiers: Tier) -> float | None:
        """Return the median of a config's cost; None if the cost was not measured.

        Args:
            key: Key of the config.
            cost: `latency_s` or `energy_j`.
            tiers: Tiers that count; none: all.
        """
        values = [
            value
            for measurement in self._measurements.get(key, ())
            if measurement.outcome == Outcome.OK
            and (not tiers or measurement.protocol.tier in tiers)
            and (value := getattr(measurement, cost))
        ]
        return median(values) if values else None
