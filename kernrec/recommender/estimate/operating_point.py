"""Operating points of a GPU (a power limit with a core clock), and other conditions of a launch."""

from typing import NamedTuple

from kernrec.gpu import GPU
from kernrec.model.analytical.power import RANDOM


class OperatingPoint(NamedTuple):
    """Power limit and core clock of a GPU."""

    power_limit_w: float | None = None
    """Power limit in watts. None means the GPU's default limit, which is its TDP."""
    clock_hz: float | None = None
    """Locked core clock in Hz. None means that the clock is not locked."""

    def limit_w(self, gpu: GPU) -> float:
        """Return the power limit in watts. Without a limit, return the GPU's default."""
        return gpu.tdp_w if self.power_limit_w is None else self.power_limit_w

    def is_default(self, gpu: GPU) -> bool:
        """Return whether the power limit is the default and the clock is not locked."""
        return self.clock_hz is None and self.limit_w(gpu) == gpu.tdp_w


DEFAULT_POINT = OperatingPoint()

COLD, WARM = "cold", "warm"
"""States of L2 when a launch starts. A cold L2 has none of the launch's data, and a warm L2 as much as fits."""
CACHES = (COLD, WARM)


class Conditions(NamedTuple):
    """Kind of input data, and state of L2 when a launch starts. Both change the cost of a launch."""

    inputs: str = RANDOM
    """Kind of input data, from `kernrec.model.analytical.power.INPUTS`. Input data affect the power draw."""
    l2: str = COLD


MEASURED_CONDITIONS = Conditions()
