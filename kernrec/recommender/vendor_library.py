"""The vendor library beside the choices: latency and power of a call, and whether to call it."""

from typing import Any

from kernrec.gpu import GPU, find_gpu
from kernrec.model.vendor.model import StackPrediction, VendorModel
from kernrec.op import Problem
from kernrec.util.light_dataclass import dataclass

NEARLY = 0.02
"""A smaller difference of latency counts as none."""


@dataclass(frozen=True)
class VendorEstimate:
    """Latency and power of a stack for a problem, beside the first choice of an answer."""

    library: str
    predicted: StackPrediction
    """At the GPU's default power limit, learned from recordings."""
    slowdown: float | None
    """Latency over that of the first choice, less 1; None where the choices are made for another power limit or
    clock."""
    energy_saved: float | None
    """Fraction of the first choice's energy; None where either is not known."""

    @property
    def faster(self) -> bool:
        """Whether the library is expected to be faster than the first choice."""
        return self.slowdown is not None and self.slowdown < -NEARLY

    @property
    def advised(self) -> bool:
        """Whether to call it: even at the upper end of its interval it is faster than the first choice's estimate."""
        latency = self.predicted.latency_s
        return self.faster and (1 + (self.slowdown or 0.0)) * latency.high / latency.value < 1

    @property
    def learned_on(self) -> str:
        """The cards whose latency was recorded, in words."""
        return ", ".join(_short_title(name) for name in self.predicted.gpus)

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON; keys carry their unit."""
        latency, power = self.predicted.latency_s, self.predicted.power_w
        return {
            "library": self.library,
            "latency_s": latency.value,
            "latency_interval_s": [latency.low, latency.high],
            "power_w": None if power is None else power.value,
            "power_interval_w": None if power is None else [power.low, power.high],
            "learned_on": list(self.predicted.gpus),
            "recorded_as": self.predicted.recorded_as,
            "transferred": latency.transferred,
            "power_transferred": power is not None and power.transferred,
            "slowdown": self.slowdown,
            "energy_saved": self.energy_saved,
            "faster": self.faster,
            "advised": self.advised,
        }


def _short_title(name: str) -> str:
    """`A100` for a catalog name of an A100: data-center cards are known by the first word of their title."""
    title = find_gpu(name).title.removeprefix("NVIDIA ")
    first = title.split(" ")[0].split("-")[0]
    return first if any(c.isdigit() for c in first) else title


def vendor_estimate(
    model: VendorModel, problem: Problem, gpu: GPU, first: tuple[float, float] | None
) -> VendorEstimate | None:
    """Latency and power of the op's fastest stack; None for a problem of a kind that nobody recorded.

    first: latency (s) and energy (J) of the first choice; None where they are not those at the default limit.
    """
    if not (predictions := model.predict(problem, gpu)):
        return None
    predicted = predictions[0]
    slowdown = energy_saved = None
    if first is not None:
        slowdown = predicted.latency_s.value / first[0] - 1
        if predicted.power_w is not None:
            energy_saved = 1 - predicted.latency_s.value * predicted.power_w.value / first[1]
    return VendorEstimate(predicted.stack, predicted, slowdown, energy_saved)
