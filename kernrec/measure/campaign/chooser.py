"""The choice of what a campaign measures next, and of when enough is measured."""

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
    """Measurements that are not made again; on this machine the database has them."""


class Chooser:
    """Chooses what is measured next on one kind of GPU."""

    @property
    def needs_energy(self) -> bool:
        """Whether a GPU that measures no energy is of no use."""
        return False

    @property
    def recalled(self) -> Sequence[Problem]:
        """Problems whose earlier measurements `begin` wants."""
        return ()

    def begin(self, earlier: Iterable[Measurement]) -> None:
        """Take measurements of earlier campaigns into account."""

    def next(self, card: str = "", cards: Collection[str] = ("",)) -> Visit | None:
        """Return the next visit; None if enough is measured, or if nothing is left until a visit under way is done.

        Args:
            card: name of the GPU that makes the visit.
            cards: names of all GPUs of the kind.
        """
        raise NotImplementedError

    def learn(self, measurement: Measurement) -> None:
        """Take a new measurement into account, which is in the journal."""

    def done(self, visit: Visit, seconds: float, over: bool = True) -> None:
        """Take the end of a visit into account.

        Args:
            visit: the visit.
            seconds: its duration on the device's clock.
            over: whether it ended before its slice of time did.
        """

    def outcome(self) -> object:
        """Return what the measurements came to: `Refined`, `Searched`, or None if their rows are all there is."""
        return None
