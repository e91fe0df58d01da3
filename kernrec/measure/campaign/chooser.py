"""Choose what a campaign measures next, and when enough is measured."""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from kernrec.measure.campaign.plan import PlannedProblem
from kernrec.op import Problem
from kernrec.store.measurement import Measurement


@dataclass(frozen=True)
class Visit:
    """Measurements of one problem that a GPU makes before it takes the next visit."""

    planned: PlannedProblem
    earlier: tuple[Measurement, ...] = ()
    """Measurements that are not repeated; on this machine the database has them."""


class Chooser:
    """Chooses what to measure next on one GPU model."""

    @property
    def needs_energy(self) -> bool:
        """Whether a GPU that measures no energy is of no use."""
        return False

    @property
    def recalled(self) -> Sequence[Problem]:
        """Problems whose earlier measurements `begin` needs."""
        return ()

    def begin(self, earlier: Iterable[Measurement]) -> None:
        """Learn from measurements of earlier campaigns."""

    def next(self, card: str = "", cards: Collection[str] = ("",)) -> Visit | None:
        """Return the next visit; None if enough is measured, or if nothing is left until a visit under way is done.

        Args:
            card: Name of the GPU that makes the visit.
            cards: Names of all GPUs of the model.
        """
        raise NotImplementedError

    def learn(self, measurement: Measurement) -> None:
        """Learn from a new measurement, which is in the journal."""

    def done(self, visit: Visit, seconds: float, over: bool = True) -> None:
        """Learn that a visit has ended.

        Args:
            visit: The visit.
            seconds: Its duration on the device's clock.
            over: Whether it ended before its slice of time did.
        """

    def outcome(self) -> object:
        """Return the result: `Refined`, `Searched`, or None if it has only rows."""
        return None
