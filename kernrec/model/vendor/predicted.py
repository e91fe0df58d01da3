"""Predicted quantities of a backend with their intervals."""

from collections.abc import Mapping

from kernrec.util.light_dataclass import dataclass


@dataclass(frozen=True)
class Predicted:
    """Quantity with its 90 % interval, in seconds or watts."""

    value: float
    low: float
    high: float
    transferred: bool
    """Whether the GPU was not recorded."""


@dataclass(frozen=True)
class StackPrediction:
    """Latency and power of a backend for a problem, at the GPU's default power limit and unlocked clock."""

    stack: str
    version: str | None
    """Recorded version on this GPU, or range of versions on other GPUs; None if not stated."""
    latency_s: Predicted
    power_w: Predicted | None
    """Power; None if it was not recorded and `at_point` has not filled it in."""
    gpus: tuple[str, ...]
    """GPUs in the training data of the latency."""
    recorded_as: str | None
    """Recorded data type and layout, if they differ from the problem's."""
    busy: Mapping[str, float]
    """Seconds that `math`, `dram`, `l2` and `launch` are busy at the rates of the data sheet, possibly overlapping, for
    transfers to other power limits and clocks.
    """
    power_predicted: bool = False
    """Whether the power is from the power model, because it was not recorded."""
    derived: bool = False
    """Whether the latency is from `physics`, because no similar problem was recorded."""
