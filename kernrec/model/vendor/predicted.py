"""Prediction of a backend: its latency and power for a problem."""

from collections.abc import Mapping

from kernrec.model.prior.spread import Estimate
from kernrec.util.light_dataclass import dataclass


@dataclass(frozen=True)
class BaselinePrediction:
    """Latency and power of a backend for a problem, at the GPU's default power limit and unlocked clock."""

    backend: str
    version: str | None
    """Recorded version on this GPU, or range of versions on other GPUs; None if not stated."""
    latency_s: Estimate
    power_w: Estimate | None
    """Power; None if it was not recorded. `at_point` then fills in a `predicted` power."""
    gpus: tuple[str, ...]
    """GPUs in the training data of the latency."""
    recorded_as: str | None
    """Recorded data type and layout, if they differ from the problem's."""
    busy: Mapping[str, float]
    """Seconds that `math`, `dram`, `l2` and `launch` are busy at the rates of the data sheet, possibly overlapping, for
    transfers to other power limits and clocks.
    """
