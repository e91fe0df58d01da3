"""Places among choices that admit what cannot be told apart.

Measured choices whose 90 % intervals overlap that of the best of them share its place: which of them came first was
noise. Predictions are never tied like this, or all of them would be: the spread of a prediction is mostly common to all
configs of a kernel. They keep the place that their expected cost gives them, marked as approximate.
"""

from collections.abc import Sequence
from itertools import pairwise

from kernrec.util.light_dataclass import dataclass

Interval = tuple[float, float]


@dataclass(frozen=True)
class Place:
    """number: from 1; equal for choices that cannot be told apart. exact: measured in all that the objective counts.

    ambiguous: its intervals overlap those of the choice before or after it (a tied choice: of those it is tied with).
    """

    number: int
    exact: bool
    ambiguous: bool

    def __str__(self) -> str:
        if not self.exact:
            return f"~{self.number}"
        return f"{self.number}=" if self.ambiguous else str(self.number)


def places(intervals: Sequence[Sequence[Interval]], exact: Sequence[bool]) -> list[Place]:
    """The place of each choice, best first.

    intervals: of each choice, one for each cost that the objective counts; two choices overlap where all of theirs do.
    exact: whether all those costs were measured.
    """
    numbers: list[int] = []
    leader: int | None = None  # the best of the current tie; a chain of neighbors could drift any distance from it
    tied = set()
    for i, interval in enumerate(intervals):
        numbers.append(i + 1)
        if exact[i]:
            if leader is not None and _overlap(intervals[leader], interval):
                numbers[i] = numbers[leader]
                tied.add(numbers[leader])
            else:
                leader = i
    follows = [False, *(_overlap(*pair) for pair in pairwise(intervals)), False]
    return [
        Place(number, exact[i], number in tied if exact[i] else follows[i] or follows[i + 1])
        for i, number in enumerate(numbers)
    ]


def _overlap(a: Sequence[Interval], b: Sequence[Interval]) -> bool:
    for (low, high), (other_low, other_high) in zip(a, b, strict=True):
        if low > other_high or other_low > high:
            return False
    return True
