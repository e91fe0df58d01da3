"""What a campaign on a cluster measures: problems planned for each kind of GPU, and visits chosen as it runs."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from kernrec.cluster.messages import CardIdentity
from kernrec.measure.campaign.plan import PlannedProblem
from kernrec.store.measurement import Measurement


@dataclass(frozen=True)
class CampaignVisit:
    """What one card measures of a problem; others may help."""

    planned: PlannedProblem
    part: str = ""
    """Tells it from other visits of the problem that are under way."""

    @property
    def key(self) -> str:
        """Names it among those under way on its kind of GPU."""
        return self.planned.problem.key + self.part


class Visits(Protocol):
    """Chooses what to measure while a campaign runs."""

    recalls: bool
    """Whether the rows of a problem count for later visits of it, and those that the database has."""

    def next(self, gpu: str, card: str, cards: Mapping[str, CardIdentity]) -> CampaignVisit | None:
        """A visit for a card that has nothing to do; None: none, at least until one that is under way is done.

        Args:
            gpu: its kind.
            card: its name.
            cards: those of its kind that are there, with it.

        Raises:
            KernrecError: a kind of GPU for which nothing can be planned.
        """

    def learn(self, gpu: str, measurement: Measurement) -> None:
        """A measurement on a card of this kind is in the journal."""

    def done(self, gpu: str, visit: str, seconds: float) -> None:
        """A visit, by its key, is over; seconds: that cards took for it, by their clocks."""


@dataclass(frozen=True)
class CampaignPlan:
    """What is measured on each kind of GPU."""

    problems_on: Callable[[str], Sequence[PlannedProblem]]
    """The problems on a kind, planned when the first card of that kind comes."""
    database: Path
    resume: bool = True
    """Whether to skip what the database already has."""
    configs: int | None = None
    """Configs to screen on each kind in all; None: as planned."""
    visits: Visits | None = None
    """Chooses more problems as cards have nothing to do; None: there are no more."""
    needs_energy: bool = False
    """Whether a card that measures no energy is left out."""
