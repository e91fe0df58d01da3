"""Define the interface that chooses a campaign's next measurements and its end."""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from kernrec.measure.campaign.plan import PlannedProblem
from kernrec.op import Problem
from kernrec.store.measurement import Measurement


@dataclass(frozen=True)
class Visit:
    """Batch of measurements of one problem that a GPU makes without interruption."""

    planned: PlannedProblem
    earlier: tuple[Measurement, ...] = ()
    """Measurements that are not repeated; empty on this machine, where they are in the database."""


class Chooser:
    """Chooser of the next measurements on one GPU model."""

    @property
    def needs_energy(self) -> bool:
        """Return whether a GPU must be able to measure energy."""
        return False

    @property
    def recalled(self) -> Sequence[Problem]:
        """Return the problems whose earlier measurements `begin` needs."""
        return ()

    def begin(self, earlier: Iterable[Measurement]) -> None:
        """Learn from measurements of earlier campaigns."""

    def next(self, card: str = "", cards: Collection[str] = ("",)) -> Visit | None:
        """Return the next visit; None if enough is measured, or if the choice depends on a visit in progress.

        Args:
            card: Name of the GPU that makes the visit.
            cards: Names of all GPUs of the model.
        """
        raise NotImplementedError

    def learn(self, measurement: Measurement) -> None:
        """Learn from a new measurement, which the journal already has."""

    def done(self, visit: Visit, seconds: float, over: bool = True) -> None:
        """Learn that a visit has ended.

        Args:
            visit: The visit.
            seconds: Duration on the device's clock.
            over: Whether the visit was completed within its time slice.
        """

    def outcome(self) -> object:
        """Return the result: `Refined`, `Searched`, or None if rows are the only result."""
        return None
