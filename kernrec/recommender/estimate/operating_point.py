"""How a GPU is run: its power limit and its core clock."""

from typing import NamedTuple

from kernrec.gpu import GPU


class OperatingPoint(NamedTuple):
    """How the GPU runs."""

    power_limit_w: float | None = None
    """Power limit; None for the GPU's default, its TDP."""
    clock_hz: float | None = None
    """Locked core clock; None where the clock is not locked: it boosts as far as the power limit lets it."""

    def limit_w(self, gpu: GPU) -> float:
        """The power limit in watts, the default one included."""
        return gpu.tdp_w if self.power_limit_w is None else self.power_limit_w

    def is_default(self, gpu: GPU) -> bool:
        """Whether it is the GPU's default power limit with the clock not locked, where recordings hold."""
        return self.clock_hz is None and self.limit_w(gpu) == gpu.tdp_w


DEFAULT_POINT = OperatingPoint()
