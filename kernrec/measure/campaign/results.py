"""How much to measure, and what came of it: the words in which a campaign is asked for and tells of itself."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from kernrec.measure.protocol.measure_config import FINALS


@dataclass(frozen=True)
class MeasuringEffort:
    """How thoroughly a problem is measured. configs: screened at most, None: all; finals: configs, 0: none.

    drawn: the configs are a random sample of the space, for a truth to hold predictions against, instead of those that
    are predicted to be the best.
    """

    configs: int | None
    finals: int
    drawn: bool = False


EFFORTS = {
    "quick": MeasuringEffort(64, 0),
    "normal": MeasuringEffort(1024, FINALS),
    "exhaustive": MeasuringEffort(None, FINALS),
}


@dataclass(frozen=True)
class CampaignBudget:
    """When to stop: seconds of the device's clock, or configs screened; None: when everything is done."""

    seconds: float | None = None
    configs: int | None = None


@dataclass(frozen=True)
class Progress:
    """One step of a campaign, for whoever shows it. row: what was just measured, None for a note.

    done, total: of the problem's measurements in this tier. left_s: of the budget, None without one in seconds.
    """

    device: str
    target: str
    tier: str
    done: int
    total: int
    left_s: float | None = None
    row: Mapping[str, Any] | None = None
    note: str | None = None


@dataclass
class ProblemResult:
    """What is known of one problem. configs: of its plan; measured: rows of this campaign; known: of earlier ones.

    best, frugal: the rows of least latency and energy, whoever measured them; failures and an example of each kind are
    of this campaign.
    """

    name: str
    problem: str
    configs: int
    measured: int = 0
    known: int = 0
    best: Mapping[str, Any] | None = None
    frugal: Mapping[str, Any] | None = None
    failures: dict[str, int] = field(default_factory=dict)
    examples: dict[str, str] = field(default_factory=dict)

    def take(self, row: Mapping[str, Any]) -> None:
        """Count a row of this campaign."""
        self.measured += 1
        self.compare(row)
        if (outcome := row["outcome"]) != "ok":
            self.failures[outcome] = self.failures.get(outcome, 0) + 1
            self.examples.setdefault(outcome, str(row.get("error") or ""))

    def remember(self, row: Mapping[str, Any]) -> None:
        """Count a row of an earlier campaign."""
        self.known += 1
        self.compare(row)

    def compare(self, row: Mapping[str, Any]) -> None:
        """See whether a row is better than the best so far."""
        if row["outcome"] != "ok":
            return
        if self.best is None or row["latency_s"] < self.best["latency_s"]:
            self.best = row
        if row.get("energy_j") and (self.frugal is None or row["energy_j"] < self.frugal["energy_j"]):
            self.frugal = row


UNCLOSED = "the run ended before the reference kernels were looked at again"
"""The remark of a row that ran well and whose block nobody closed: whether the card had drifted by then is not known.

It counts like any other in answers, and is measured again by the next run."""


class ProblemHistory:
    """The rows of one problem by kernel, its hash and the canonical text of the config, earlier campaigns' included."""

    def __init__(self) -> None:
        self._rows: dict[tuple[str, str, str], list[Mapping[str, Any]]] = {}
        self._length = 0

    def __len__(self) -> int:
        return self._length

    def add(self, key: tuple[str, str, str], row: Mapping[str, Any]) -> None:
        """One more row."""
        self._rows.setdefault(key, []).append(row)
        self._length += 1

    def has(self, key: tuple[str, str, str]) -> bool:
        """Whether there is any row of a config."""
        return key in self._rows

    def count(self, key: tuple[str, str, str], *tiers: str) -> int:
        """How many rows a config has, of these tiers or, without any, of all.

        Those of unclosed blocks count once another session has measured the config too: else runs that are cut short
        again and again would come no further.
        """
        rows = self._rows.get(key, ())
        alone = len({row["session"] for row in rows}) < 2
        return sum((not tiers or row["tier"] in tiers) and not (alone and row.get("error") == UNCLOSED) for row in rows)

    def median(self, key: tuple[str, str, str], cost: str, *tiers: str) -> float | None:
        """The median of a cost of a config, over rows of these tiers or, without any, of all; None where nothing tells
        it."""
        values = [
            row[cost]
            for row in self._rows.get(key, ())
            if row["outcome"] == "ok" and row.get(cost) and (not tiers or row["tier"] in tiers)
        ]
        return median(values) if values else None
