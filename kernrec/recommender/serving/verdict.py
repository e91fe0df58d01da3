"""Derive the advice on a missing file from the gain that its configs promise."""

from collections.abc import Sequence
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kernrec.recommender.serving.compared import Comparison

NOTHING = 1.03
"""Maximum gain that counts as no gain: users measured -3 to +3 % noise between equal configs (vLLM's issue 44688)."""
LITTLE = 1.05
"""If the upper end of the gain is below this value, the advice is to leave the file out."""


class Verdict(StrEnum):
    """Possible advice on a tuned file."""

    SHIPPED = "shipped"
    NOT_USED = "another kernel"
    WRITE = "worth it"
    MEASURE = "perhaps: measure"
    LEAVE = "nothing: leave it"
    UNKNOWN = "not predicted"


def worth(made: "Comparison") -> Verdict:
    """Return whether the best config is worth it for a number of tokens, judged by the interval of its gain."""
    low, high = made.interval
    if low > 1.0 and made.ratio > NOTHING:
        return Verdict.WRITE
    return Verdict.LEAVE if high < LITTLE else Verdict.MEASURE


def verdict_of(missing: bool, taken: str, made: "Sequence[Comparison]") -> Verdict:
    """Return the advice on a file, for all numbers of tokens together.

    Args:
        missing: whether the engine lacks the file.
        taken: other kernel that the engine runs; empty for none.
        made: the comparisons.
    """
    if not missing:
        return Verdict.SHIPPED
    if taken:
        return Verdict.NOT_USED
    verdicts = {worth(comparison) for comparison in made}
    order = (Verdict.WRITE, Verdict.MEASURE, Verdict.LEAVE)
    return next((verdict for verdict in order if verdict in verdicts), Verdict.UNKNOWN)
