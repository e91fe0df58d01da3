"""A predicted quantity of a stack, with its interval."""

from kernrec.util.light_dataclass import dataclass


@dataclass(frozen=True)
class Predicted:
    """A quantity with its 90 % interval; seconds or watts."""

    value: float
    low: float
    high: float
    transferred: bool
    """Whether the card was not recorded."""
