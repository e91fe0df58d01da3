"""Measuring at several power limits and locked clocks of one card, one after the other, where the user allows it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Generic, Protocol, TypeVar

from kernrec.errors import UsageError
from kernrec.recommender.estimate.operating_point import OperatingPoint


class MeasuredResult(Protocol):
    """The end of a measuring call."""

    @property
    def error(self) -> str | None:
        """The reason for an early end, in one line."""

    @property
    def stopped(self) -> bool:
        """Whether it was told to stop."""


Result = TypeVar("Result", bound=MeasuredResult)


@dataclass(frozen=True)
class ResultsAtLimits(Generic[Result]):
    """The result at each operating point."""

    results: tuple[tuple[OperatingPoint, Result], ...]

    @property
    def error(self) -> str | None:
        """The reason for the early end of the last one."""
        return self.results[-1][1].error

    @property
    def stopped(self) -> bool:
        """Whether the last one was told to stop."""
        return self.results[-1][1].stopped


def operating_points(limits_w: Sequence[float], clocks_hz: Sequence[float]) -> tuple[OperatingPoint, ...]:
    """Every pair of a power limit and a clock; without any of a kind, the card's own."""
    return tuple(OperatingPoint(*pair) for pair in product(limits_w or (None,), clocks_hz or (None,)))


def measure_at(
    points: Sequence[OperatingPoint], gpu: str, measure: Callable[[str, OperatingPoint], Result]
) -> ResultsAtLimits[Result]:
    """Measure at each operating point; the card is as before once this ends, in whichever way.

    Args:
        points: at least one; they are checked before anything is measured.
        gpu: names one card of this machine, as `--gpu` does.
        measure: measures on the card of this UUID, which is at this operating point.

    Raises:
        UsageError: several cards, or a limit or clock that the card does not accept.
    """
    from kernrec.measure.device.card_limits import check_limits, limits_set
    from kernrec.measure.device.nvml import choose_cards

    if gpu == "all":
        raise UsageError("--set-power-limit and --lock-clocks are for one card: name it with --gpu")
    (card,) = choose_cards(gpu)
    check_limits(card, points)
    results: list[tuple[OperatingPoint, Result]] = []
    for point in points:
        with limits_set(card, point):
            results.append((point, measure(card.uuid, point)))
        if results[-1][1].error is not None or results[-1][1].stopped:
            break
    return ResultsAtLimits(tuple(results))
