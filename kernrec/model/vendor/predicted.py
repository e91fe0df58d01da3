"""A predicted quantity of a stack with its interval, and all that is predicted of it."""

from collections.abc import Mapping

from kernrec.util.light_dataclass import dataclass


@dataclass(frozen=True)
class Predicted:
    """A quantity with its 90 % interval; seconds or watts."""

    value: float
    low: float
    high: float
    transferred: bool
    """Whether the card was not recorded."""


@dataclass(frozen=True)
class StackPrediction:
    """Latency and power of a stack for a problem, at the card's default power limit and unlocked clock."""

    stack: str
    version: str | None
    """As it was recorded, on this card or, from which version to which, on others; None if no version was stated."""
    latency_s: Predicted
    power_w: Predicted | None
    """None if nobody recorded power and `at_point` has not filled it in."""
    gpus: tuple[str, ...]
    """The cards that the latency was learned on."""
    recorded_as: str | None
    """Data type and layout that were recorded, where they are not the problem's."""
    busy: Mapping[str, float]
    """Seconds that `math`, `dram`, `l2` and the `launch` are busy at the rates of the data sheet; they overlap. Other
    power limits and clocks are reached by them."""
    power_predicted: bool = False
    """Whether nobody recorded power, so that it is the power model's."""
    derived: bool = False
    """Whether nobody recorded such a problem, so that the latency is that of `physics`."""
