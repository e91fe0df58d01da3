"""Operating point of a GPU: power limit and core clock."""

from typing import NamedTuple

from kernrec.gpu import GPU


class OperatingPoint(NamedTuple):
    """Operating point of a GPU."""

    power_limit_w: float | None = None
    """Power limit in watts; None for the GPU's default, its TDP."""
    clock_hz: float | None = None
    """Locked core clock in Hz; None if the clock boosts as far as the power limit allows."""

    def limit_w(self, gpu: GPU) -> float:
        """Return the power limit in watts; the GPU's default if none is set."""
        return gpu.tdp_w if self.power_limit_w is None else self.power_limit_w

    def is_default(self, gpu: GPU) -> bool:
        """Return whether this is the default power limit without a locked clock, for which recordings are valid."""
        return self.clock_hz is None and self.limit_w(gpu) == gpu.tdp_w


DEFAULT_POINT = OperatingPoint()
