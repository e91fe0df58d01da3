"""Shrink the analytical model's lead over the recorded times of the same problem.

A problem's reference time comes from recordings: a backend's baseline, or a GPU model's times of Triton's configs.
If the analytical model predicts a faster kernel that was not measured, the kernel is fast or the prediction is wrong.
Two facts constrain the logarithm of the kernel's time:

    prediction      the analytical model's value, with the standard deviation of its error on such kernels (`own`)
    reference time  an independent kernel is about as fast as the best backend: the reference time, with its deviation
                    on this GPU and the deviation among such kernels (`AMONG_KERNELS`)

Weighting both by the inverse of the variance keeps this fraction of a lead:

    among**2 + yardstick**2  /  (own**2 + among**2 + yardstick**2)

A reference time learned on the GPU (deviation 2 to 4 %) keeps about half of a lead. A time transferred from other GPUs
(20 to 40 %) keeps nearly all. So does a time from single calls that took mostly host time
(`kernrec.model.vendor.recorded_set`; its deviation is about 1). A kernel slower than the reference time does not
change, because no error needs an explanation. The deviations were fitted at 0.1.0, by kind of kernel, data type and
architecture.
"""

from collections.abc import Sequence
from math import exp, hypot, inf, log, sqrt
from operator import attrgetter
from typing import TYPE_CHECKING

import numpy as np

from kernrec.gpu import GPU
from kernrec.model.prior.microarchitecture import LAUNCH_S, START_S
from kernrec.model.prior.power import RANDOM
from kernrec.model.prior.spread import INTERVAL, Estimate
from kernrec.op import Problem
from kernrec.op.equivalent import as_matmul
from kernrec.recommender.estimate.costs import LEARNED, PRIOR, TRANSFERRED, Costs
from kernrec.util.light_dataclass import dataclass
from kernrec.util.normal import DEVIATIONS

if TYPE_CHECKING:
    from kernrec.recommender.estimate.model_store import ModelStore

CERTAIN = 1.28
"""Standard deviations added to the expected cost of an unmeasured kernel when it is compared with a measured kernel. It
ranks first if it is faster with a probability of 90 %."""
AMONG_KERNELS = 0.10
"""Standard deviation of log(time of a kernel / time of the best backend) for kernels of independent authors. It is
estimated from Triton's best kernel and cuBLAS, on problems where Triton is faster (A100 .07 in bf16 and TF32, .08 in
f32, .24 in f16 with its odd sizes; H100 .05 to .18; RTX 3090 .07 to .11)."""
_WHOLE = {
    ("matmul", "16"): 0.15, ("matmul", "32"): 0.15, ("matmul", "8"): 0.42, ("attention", "16"): 0.40,
    ("conv2d", "32"): 0.50,
}  # fmt: skip
"""Root mean square of the logarithm of the analytical model's lead over the best recorded time, by op and bits of
arithmetic. It includes the model's error and the difference between kernels. Matmuls: A100 .08 to .19, RTX 3090 and
A6000 .08 to .15, L40S .19, H100 and H200 .08 to .17, B200 none leads; 8 bits .16 to .61; attention A100 .34, H200 .42;
f32 convolutions .39 to .86 (cuDNN has Winograd's). Architectures differ less than the recordings of one of them, so
they share a value."""
_UNMEASURED = log(INTERVAL) / DEVIATIONS
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
class Belief:
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

    def believed(self, costs: Costs) -> Costs:
        """Return the costs of an unmeasured kernel, with its lead shrunk.

        One factor raises all configs, because they share most of the error. The lower ends of the intervals follow from
        the reference time; the upper ends do not change.
        """
        return costs.raised(self.slower, exp(DEVIATIONS * self.deviation))


UNCHECKED = Belief(None, 0.0, 1.0, _UNMEASURED)
"""No shrinkage, for a kernel with measurements or a problem without recordings."""


def whole_deviation(problem: Problem) -> float:
    """Return the standard deviation of log(predicted / true) of a kernel's best config, for the analytical model."""
    return _WHOLE.get((as_matmul(problem).op, _BITS.get(problem.dtype, "")), _UNMEASURED)


def beliefs(problem: Problem, latency_s: Sequence[float], reference: ReferenceTime | None) -> list[Belief]:
    """Return the shrinkage for kernels whose best configs are predicted to take `latency_s`."""
    whole = whole_deviation(problem)
    if reference is None:
        return [Belief(None, 0.0, 1.0, whole)] * len(latency_s)
    own = sqrt(max(whole * whole - AMONG_KERNELS * AMONG_KERNELS, 0.25 * whole * whole))
    room = hypot(AMONG_KERNELS, reference.deviation)
    share = room * room / (own * own + room * room)
    deviation = own * sqrt(share)
    return [Belief(reference, max(log(reference.latency_s / best_s), 0.0), share, deviation) for best_s in latency_s]


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
    from kernrec.model.vendor.operating_point import roofs_s

    first, *others = problems
    baselines = model.fastest(first, gpu, others)
    if any(latency.transferred for _, latency, _ in baselines):
        roofs_s([first, *others], gpu)


def fastest(references: Sequence[ReferenceTime]) -> ReferenceTime | None:
    """Return the fastest reference time learned on the GPU, or else the fastest transferred reference time.

    Times that are nearly equal are averaged, the more certain ones with more weight. So a lead does not change when
    another reference becomes the fastest by a little.
    """
    learned = [each for each in references if not each.transferred]
    alike = learned or references
    if len(alike) < 2:
        return alike[0] if alike else None
    first = min(alike, key=attrgetter("latency_s"))
    lags, weights = [], []
    for each in alike:
        lags.append(log(each.latency_s / first.latency_s))
        weights.append(exp(-0.5 * (lags[-1] / AMONG_KERNELS) ** 2) / (AMONG_KERNELS**2 + each.deviation**2))
    total, lag, variance = sum(weights), 0.0, 0.0
    for each, own_lag, weight in zip(alike, lags, weights, strict=True):
        lag += weight / total * own_lag
        variance += weight / total * each.deviation**2
    name = alike[weights.index(max(weights))].name
    return ReferenceTime(name, first.latency_s * exp(lag), sqrt(variance), first.transferred)


def without_slow(references: Sequence[ReferenceTime], problem: Problem, gpu: GPU) -> list[ReferenceTime]:
    """Return the reference times of Triton kernels, or the physical baseline if it is certainly faster than all.

    If no backend was recorded on the problem, libraries may have kernels that Triton's template lacks, such as
    kernels for f32 matmuls of few rows.
    """
    from kernrec.model.vendor.physics import derived

    by_physics = derived(as_matmul(problem), gpu) if references else None
    if by_physics is None or by_physics.latency_s.high >= min(each.latency_s for each in references):
        return list(references)
    latency = by_physics.latency_s
    deviation = log(latency.high / latency.low) / (2.0 * DEVIATIONS)
    return [ReferenceTime(by_physics.backend, latency.value, deviation, True)]


def learned_reference(name: str, latency_s: float, best: Estimate) -> ReferenceTime:
    """Return the fastest config of a kernel by a model of the GPU as a reference time.

    Args:
        name: name of the kernel.
        latency_s: latency of its fastest config at the default operating point.
        best: latency of this config at the requested operating point, whose interval is as wide.
    """
    return ReferenceTime(name, latency_s, log(best.high / best.low) / (2.0 * DEVIATIONS), False)


def unsure(deviation: float) -> float:
    """Return the risk factor for the costs of an unmeasured config.

    Args:
        deviation: standard deviation of the logarithm of the kernel's time.
    """
    return exp(CERTAIN * deviation)


def risk(kinds: np.ndarray, deviation: float, of_card: bool, measured: bool) -> np.ndarray:
    """Return the factors that multiply estimates in comparisons with measured configs, (K,).

    Args:
        kinds: (interval, source) pairs of latencies, as `costs.kinds_of` returns them.
        deviation: standard deviation of the logarithm of the kernel's time.
        of_card: whether a model learned the kernel on this GPU, so that its estimates carry no risk factor.
        measured: whether any of its configs was measured, so that predictions are scaled to measurements.
    """
    below, above, source, _ = kinds
    if not measured and (of_card or not ((source == LEARNED) | (source == TRANSFERRED)).any()):
        factors = np.where(source == LEARNED, 1.0, unsure(deviation))
        return np.asarray(factors)
    own = np.minimum(np.log(above * below) / (2.0 * DEVIATIONS), deviation)
    if not measured:
        # The analytical model's interval covers one kernel. Compared with kernels of other authors, their differences
        # add to its error.
        own[source == PRIOR] = deviation
    return np.asarray(np.exp(CERTAIN * own))
