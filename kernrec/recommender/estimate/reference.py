"""Find the reference time of a problem, which corrects optimistic predictions of the analytical model.

The reference time is the shortest time of all baselines, and of Triton kernels with models that were trained on this
GPU. A kernel's predicted lead is log(reference time / predicted time). The lead is large if the kernel is fast, or if
the prediction is optimistic. So the engine (`shrinkage_of`) multiplies the lead by the fraction

    (among**2 + reference**2) / (own**2 + among**2 + reference**2)

    own         standard deviation of the analytical model's error for the op and data type
    reference   standard deviation of the reference time on this GPU
    among       standard deviation among kernels of independent authors (`kAmongKernels`)

A fraction of 1 keeps the predicted time, and 0 replaces it by the reference time. The fraction is about 0.5 for a
reference time from this GPU (standard deviation 2 to 4 %), and nearly 1 if it is from other GPUs (20 to 40 %).
"""

from collections.abc import Sequence
from math import exp, inf, log
from typing import TYPE_CHECKING

from kernrec.gpu import GPU
from kernrec.model.analytical.microarchitecture import LAUNCH_S, START_S
from kernrec.model.analytical.spread import INTERVAL
from kernrec.model.baselines.epilogue import as_recorded
from kernrec.model.baselines.operating_point import raised, roof_s
from kernrec.op import Problem
from kernrec.op.equivalent import as_matmul
from kernrec.util.light_dataclass import dataclass
from kernrec.util.normal import DEVIATIONS

if TYPE_CHECKING:
    from kernrec.recommender.estimate.space import Space

_WHOLE = {
    ("matmul", "16"): 0.15, ("matmul", "32"): 0.15, ("matmul", "8"): 0.42, ("attention", "16"): 0.40,
    ("conv2d", "32"): 0.50,
}  # fmt: skip
"""Standard deviation of log(best recorded time / best predicted time), keyed by op and bits per number.

The values of single GPUs have these ranges:

    matmul         0.08 to 0.19 (A100, RTX 3090, A6000, L40S, H100, H200)
    matmul, 8 bits 0.16 to 0.61
    attention      0.34 (A100) and 0.42 (H200)
    conv2d, f32    0.39 to 0.86, because cuDNN uses Winograd's algorithm

Matmuls on B200 are left out, because no predicted time is below the recorded time. All architectures share a value,
because values differ more within an architecture than between architectures.
"""
UNMEASURED = log(INTERVAL) / DEVIATIONS
"""Standard deviation of the analytical model's error that is assumed for kernels without recordings."""
_BITS = {"f16": "16", "bf16": "16", "tf32": "16", "f32": "32", "f8e4m3": "8", "f8e5m2": "8", "i8": "8", "u8": "8"}
_START_S = START_S + LAUNCH_S


@dataclass(frozen=True)
class ReferenceTime:
    """Time of the fastest library or Triton kernel for a problem."""

    name: str
    latency_s: float
    deviation: float
    """Standard deviation of the logarithm of the time."""
    transferred: bool
    """Whether the time comes from other GPUs or from a physical model, not from recordings on this GPU."""


@dataclass(frozen=True)
class Shrinkage:
    """Correction of a kernel's predicted times towards the reference time. See the description of the module."""

    reference: ReferenceTime | None
    lead: float
    """log(reference time / predicted time) for the kernel's best config, or 0 if the config is not faster."""
    share: float
    deviation: float
    """Standard deviation of the logarithm of the kernel's time after shrinkage."""

    @property
    def slower(self) -> float:
        """Factor, at least 1, by which to multiply the kernel's predicted times."""
        return exp(self.lead * (1.0 - self.share))


def whole_deviation(problem: Problem) -> float:
    """Return the standard deviation of the analytical model's logarithmic error for the best config of a kernel."""
    return _WHOLE.get((as_matmul(problem).op, _BITS.get(problem.dtype, "")), UNMEASURED)


def reference_of(space: "Space", problem: Problem) -> ReferenceTime | None:
    """Return the fastest baseline at the default power limit and clock, or None if there is no baseline.

    Baselines from recordings on this GPU take precedence.
    """
    if (model := space.vendor_model(problem)) is None:
        return None
    best, first = None, (True, inf)
    for backend, latency, launch_s in model.fastest(problem):
        if transferred := latency.transferred:  # A time from other GPUs may be too short for this GPU.
            latency = raised(latency, roof_s(problem, model.gpu))
        # Replace the launch overhead in the recording by the overhead that the analytical model assumes.
        started_s = max(latency.value - launch_s, 0.25 * latency.value) + _START_S
        if (transferred, started_s) < first:
            best, first = (backend, latency), (transferred, started_s)
    if best is None:
        return None
    (backend, latency), (transferred, started_s) = best, first
    return ReferenceTime(backend, started_s, log(latency.high / latency.low) / (2.0 * DEVIATIONS), transferred)


def predict_references(space: "Space", problems: Sequence[Problem]) -> None:
    """Predict the baselines of several problems in one batch, so that `reference_of` is fast."""
    if (model := space.vendor_model(problems[0])) is not None:
        model.time(map(as_recorded, problems))


def derived_reference(problem: Problem, gpu: GPU) -> tuple[ReferenceTime, float] | None:
    """Return the time in seconds that a physical model predicts for a library, and the upper end of its interval.

    Return None if the model does not apply to the problem.
    """
    from kernrec.model.baselines.physics import derived

    if (by_physics := derived(as_matmul(problem), gpu)) is None:
        return None
    latency = by_physics.latency_s
    deviation = log(latency.high / latency.low) / (2.0 * DEVIATIONS)
    return ReferenceTime(by_physics.backend, latency.value, deviation, True), latency.high
