"""Shrink the analytical model's lead over the recorded times of the same problem.

A problem's reference time comes from recordings: a backend's baseline, or a GPU model's times of Triton's configs.
If the analytical model predicts a faster kernel that was not measured, the kernel is fast or the prediction is wrong.
Two facts constrain the logarithm of the kernel's time:

    prediction      the analytical model's value, with the standard deviation of its error on such kernels (`own`)
    reference time  an independent kernel is about as fast as the best backend: the reference time, with its deviation
                    on this GPU and the deviation among such kernels (`kAmongKernels`)

Weighting both by the inverse of the variance keeps this fraction of a lead:

    among**2 + reference**2  /  (own**2 + among**2 + reference**2)

A reference time learned on the GPU (deviation 2 to 4 %) keeps about half of a lead. A time transferred from other GPUs
(20 to 40 %) keeps nearly all. So does a time from single calls that took mostly host time
(`kernrec.model.baselines.recorded_set`; its deviation is about 1). A kernel slower than the reference time does not
change, because no error needs an explanation. The engine computes the shrinkage (`shrinkage_of`). The deviations were
fitted at 0.1.0, by kind of kernel, data type and architecture.
"""

from collections.abc import Sequence
from math import exp, inf, log
from typing import TYPE_CHECKING

from kernrec.gpu import GPU
from kernrec.model.analytical.microarchitecture import LAUNCH_S, START_S
from kernrec.model.analytical.power import RANDOM
from kernrec.model.analytical.spread import INTERVAL
from kernrec.op import Problem
from kernrec.op.equivalent import as_matmul
from kernrec.util.light_dataclass import dataclass
from kernrec.util.normal import DEVIATIONS

if TYPE_CHECKING:
    from kernrec.recommender.estimate.model_store import ModelStore

_WHOLE = {
    ("matmul", "16"): 0.15, ("matmul", "32"): 0.15, ("matmul", "8"): 0.42, ("attention", "16"): 0.40,
    ("conv2d", "32"): 0.50,
}  # fmt: skip
"""Root mean square of the logarithm of the analytical model's lead over the best recorded time, by op and bits of
arithmetic. It includes the model's error and the difference between kernels. Matmuls: A100 .08 to .19, RTX 3090 and
A6000 .08 to .15, L40S .19, H100 and H200 .08 to .17, B200 none leads; 8 bits .16 to .61; attention A100 .34, H200 .42;
f32 convolutions .39 to .86 (cuDNN has Winograd's). Architectures differ less than the recordings of one of them, so
they share a value."""
UNMEASURED = log(INTERVAL) / DEVIATIONS
"""Standard deviation used for kernels without recordings."""
_BITS = {"f16": "16", "bf16": "16", "tf32": "16", "f32": "32", "f8e4m3": "8", "f8e5m2": "8", "i8": "8", "u8": "8"}
_START_S = START_S + LAUNCH_S


@dataclass(frozen=True)
class ReferenceTime:
    """Reference time of a problem, from recordings on a GPU or on similar GPUs."""

    name: str
    """Name of a backend or kernel."""
    latency_s: float
    deviation: float
    """Standard deviation of the logarithm of the time."""
    transferred: bool
    """Whether this GPU was not recorded."""


@dataclass(frozen=True)
class Shrinkage:
    """Predicted lead of a kernel over the reference time, and its shrinkage."""

    reference: ReferenceTime | None
    lead: float
    """log(reference time / predicted time of the kernel's best config); 0 if it is not faster."""
    share: float
    """Fraction of the lead that is kept."""
    deviation: float
    """Standard deviation of the logarithm of the kernel's time after shrinkage."""

    @property
    def slower(self) -> float:
        """Factor that raises the kernel's times."""
        return exp(self.lead * (1.0 - self.share))


def whole_deviation(problem: Problem) -> float:
    """Return the standard deviation of log(predicted / true) of a kernel's best config, for the analytical model."""
    return _WHOLE.get((as_matmul(problem).op, _BITS.get(problem.dtype, "")), UNMEASURED)


def reference_of(problem: Problem, gpu: GPU, models: "ModelStore | None", inputs: str = RANDOM) -> ReferenceTime | None:
    """Return the fastest baseline at the GPU's default power limit and clock; None if there is none.

    Args:
        problem: problem of an op.
        gpu: the GPU.
        models: store with the models of backends.
        inputs: input data; the result is None unless random, because backends were recorded with random data.
    """
    if models is None or inputs != RANDOM or (model := models.vendor_model(as_matmul(problem).op)) is None:
        return None
    best, first = None, (True, inf)
    for backend, latency, launch_s in model.fastest(problem, gpu):
        if latency.transferred:  # Recordings on this GPU already respect its roof.
            latency = model.at_least_roof(latency, problem, gpu)
        # Replace the recorder's launch overhead with ours, because it does not belong to the kernel.
        started_s = max(latency.value - launch_s, 0.25 * latency.value) + _START_S
        if (latency.transferred, started_s) < first:
            best, first = (backend, latency), (latency.transferred, started_s)
    if best is None:
        return None
    (backend, latency), (transferred, started_s) = best, first
    return ReferenceTime(backend, started_s, log(latency.high / latency.low) / (2.0 * DEVIATIONS), transferred)


def predict_references(
    problems: Sequence[Problem], gpu: GPU, models: "ModelStore | None", inputs: str = RANDOM
) -> None:
    """Predict the baselines of several problems in one batch, so that later calls of `reference_of` are fast."""
    if models is None or inputs != RANDOM or (model := models.vendor_model(as_matmul(problems[0]).op)) is None:
        return
    from kernrec.model.baselines.operating_point import roofs_s

    first, *others = problems
    baselines = model.fastest(first, gpu, others)
    if any(latency.transferred for _, latency, _ in baselines):
        roofs_s([first, *others], gpu)


def derived_reference(problem: Problem, gpu: GPU) -> tuple[ReferenceTime, float] | None:
    """Return the time of a library that physics predicts, and the upper end of its interval in seconds.

    If no backend was recorded on a problem, libraries may have kernels that Triton's template lacks, such as kernels
    for f32 matmuls of few rows.
    """
    from kernrec.model.baselines.physics import derived

    if (by_physics := derived(as_matmul(problem), gpu)) is None:
        return None
    latency = by_physics.latency_s
    deviation = log(latency.high / latency.low) / (2.0 * DEVIATIONS)
    return ReferenceTime(by_physics.backend, latency.value, deviation, True), latency.high
