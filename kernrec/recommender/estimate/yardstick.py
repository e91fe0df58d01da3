"""How far a lead of the prior over what was recorded of the same problem is believed.

The yardstick of a problem is what somebody recorded of it: the line of a stack, or Triton's configs by a model that
learned this card. The prior says of a kernel that nobody ran that it takes a certain time; where that is less than the
yardstick's, it may be so, or the prior may err. Two things are known of the logarithm of the kernel's time:

    the prior       its prediction, with the deviation of its error on such kernels (`own`)
    the yardstick   a kernel of another hand is about as fast as the best of stacks: the yardstick, with its own
                    deviation on this card, and that of such kernels among each other (`AMONG_KERNELS`)

Each counts by the inverse of its variance, so of a lead the share

    among**2 + yardstick**2  /  (own**2 + among**2 + yardstick**2)

is believed. A yardstick that was learned on the card (2 to 4 %) leaves about half of it; one that was transferred from
other cards (20 to 40 %) nearly all, as does one from calls that were timed alone and took little but the host's time
(`kernrec.model.vendor.single_calls`: its deviation is about 1). A kernel that is slower than the yardstick is left as
it is: that needs no error to be explained. The deviations were fitted at 0.1.0, by kind of kernel, data type
and architecture.
"""

from collections.abc import Sequence
from math import exp, hypot, inf, log, sqrt
from typing import TYPE_CHECKING

import numpy as np

from kernrec.gpu import GPU
from kernrec.model.prior.constants import LAUNCH_S, START_S
from kernrec.model.prior.power import RANDOM
from kernrec.model.prior.spread import INTERVAL
from kernrec.op import Problem
from kernrec.op.equivalent import as_matmul
from kernrec.recommender.estimate.costs import Costs
from kernrec.recommender.estimate.estimates import PRIOR, Estimates
from kernrec.util.light_dataclass import dataclass
from kernrec.util.normal import DEVIATIONS

if TYPE_CHECKING:
    from kernrec.recommender.estimate.model_store import ModelStore

CERTAIN = 1.28
"""So many deviations above its expected cost a kernel that nobody ran counts beside one that somebody ran: it comes
first where it is the faster one with nine chances in ten."""
AMONG_KERNELS = 0.10
"""Standard deviation of log(time of a kernel / best of stacks) among kernels of different hands that were all measured:
Triton's best beside cuBLAS where it is the faster one (A100 .07 in bf16 and TF32, .08 in f32, .24 in f16 with its odd
sizes; H100 .05 to .18; RTX 3090 .07 to .11)."""
_WHOLE = {
    ("matmul", "16"): 0.15, ("matmul", "32"): 0.15, ("matmul", "8"): 0.42, ("attention", "16"): 0.40,
    ("conv2d", "32"): 0.50,
}  # fmt: skip
"""Root mean square of the logarithm of the prior's lead over the best recorded, where it has one, by op and bits of
arithmetic: what the prior errs and what kernels differ. Products: A100 .08 to .19, RTX 3090 and A6000 .08 to .15, L40S
.19, H100 and H200 .08 to .17, B200 none leads; 8 bits .16 to .61; attention A100 .34, H200 .42; f32 convolutions .39 to
.86 (cuDNN has Winograd's). Architectures differ less than the recordings of one of them, so they share a figure."""
_UNMEASURED = log(INTERVAL) / DEVIATIONS
"""Of kernels without recordings to compare with: the deviation behind the prior's interval."""
_BITS = {"f16": "16", "bf16": "16", "tf32": "16", "f32": "32", "f8e4m3": "8", "f8e5m2": "8", "i8": "8", "u8": "8"}
_START_S = START_S + LAUNCH_S


@dataclass(frozen=True)
class Yardstick:
    """Recorded times of a problem on a card, or of others like it."""

    name: str
    """A stack or a kernel."""
    latency_s: float
    deviation: float
    """Standard deviation of the logarithm of the time."""
    transferred: bool
    """Whether nobody recorded this card."""


@dataclass(frozen=True)
class Belief:
    """A kernel's predicted lead over the yardstick, and what is believed of it."""

    yardstick: Yardstick | None
    lead: float
    """log(time of the yardstick / predicted time of the kernel's best config); 0 where it is not faster."""
    share: float
    """The share of it that is believed."""
    deviation: float
    """Standard deviation of the logarithm of the kernel's time then."""

    @property
    def slower(self) -> float:
        """The factor by which the kernel's times are raised."""
        return exp(self.lead * (1.0 - self.share))

    def interval(self, predicted: float, factor: float) -> tuple[float, float, float]:
        """(value, lower, upper end of the 90 % interval) of a cost that the prior predicts within `factor`.

        The lower end of a cost that is raised is what the yardstick lets be believed; the upper end stays the prior's.
        """
        if self.slower == 1.0:
            return predicted, predicted / factor, predicted * factor
        value, wide = predicted * self.slower, exp(DEVIATIONS * self.deviation)
        return value, value / wide, max(predicted * factor, value * wide)

    @classmethod
    def of(cls, problem: Problem, latency_s: float, yardstick: Yardstick | None) -> "Belief":
        """The belief about a kernel whose best config is predicted to take `latency_s`."""
        whole = whole_deviation(problem)
        if yardstick is None:
            return cls(None, 0.0, 1.0, whole)
        own = sqrt(max(whole * whole - AMONG_KERNELS * AMONG_KERNELS, 0.25 * whole * whole))
        room = hypot(AMONG_KERNELS, yardstick.deviation)
        share = room * room / (own * own + room * room)
        return cls(yardstick, max(log(yardstick.latency_s / latency_s), 0.0), share, own * sqrt(share))


UNCHECKED = Belief(None, 0.0, 1.0, _UNMEASURED)
"""Of a kernel with measurements, or of a problem of which nothing was recorded."""


def whole_deviation(problem: Problem) -> float:
    """Standard deviation of log(predicted / true) of the best config of a kernel, from the prior alone."""
    return _WHOLE.get((as_matmul(problem).op, _BITS.get(problem.dtype, "")), _UNMEASURED)


def believed(costs: Costs, belief: Belief) -> Costs:
    """The costs of a kernel that nobody ran, its lead cut to what is believed.

    All configs are raised by one factor, for most of an error is common to them.
    """
    if belief.slower == 1.0:
        return costs
    slower, wide = belief.slower, exp(DEVIATIONS * belief.deviation)
    return Costs(costs.latency.raised(slower, wide), costs.energy.raised(slower, wide), costs.power_w)


def yardstick_of(problem: Problem, gpu: GPU, models: "ModelStore | None", inputs: str = RANDOM) -> Yardstick | None:
    """The fastest line of a stack at the card's default power limit and clock; None where there is none.

    Args:
        problem: of an op.
        gpu: the card.
        models: where the models of stacks are.
        inputs: stacks were recorded with random ones; None is the answer for others.
    """
    if models is None or inputs != RANDOM or (model := models.vendor_model(as_matmul(problem).op)) is None:
        return None
    best, first = None, (True, inf)
    for stack, latency, launch_s in model.fastest(problem, gpu):
        if latency.transferred:  # those recorded on the card are under its roof
            latency = model.at_least_roof(latency, problem, gpu)
        # As if its kernel were started as ours are: how its recorder did it is no figure of a kernel.
        started_s = max(latency.value - launch_s, 0.25 * latency.value) + _START_S
        if (latency.transferred, started_s) < first:
            best, first = (stack, latency), (latency.transferred, started_s)
    if best is None:
        return None
    (stack, latency), (transferred, started_s) = best, first
    return Yardstick(stack, started_s, log(latency.high / latency.low) / (2.0 * DEVIATIONS), transferred)


def predict_yardsticks(
    problems: Sequence[Problem], gpu: GPU, models: "ModelStore | None", inputs: str = RANDOM
) -> None:
    """Predicts the lines of several problems of an op for `yardstick_of` to tell: one by one takes far longer."""
    if models is None or inputs != RANDOM or (model := models.vendor_model(as_matmul(problems[0]).op)) is None:
        return
    from kernrec.model.vendor.operating_point import roofs_s

    first, *others = problems
    lines = model.fastest(first, gpu, others)
    if any(latency.transferred for _, latency, _ in lines):
        roofs_s([first, *others], gpu)


def fastest(yardsticks: Sequence[Yardstick]) -> Yardstick | None:
    """The fastest of those that were learned on the card; of none, the fastest of those transferred to it."""
    return min(yardsticks, key=lambda each: (each.transferred, each.latency_s), default=None)


def learned_yardstick(name: str, latency: Estimates) -> Yardstick:
    """The fastest config of a kernel by a model that learned the card; latency: at one operating point, (C,)."""
    best = int(latency.value.argmin())
    deviation = log(latency.high[best] / latency.low[best]) / (2.0 * DEVIATIONS)
    return Yardstick(name, float(latency.value[best]), deviation, False)


def unsure(deviation: float) -> float:
    """The factor by which the costs of a config count more than expected that nobody ran, of a kernel whose time has
    an error of this deviation."""
    return exp(CERTAIN * deviation)


def caution(latency: Estimates, deviation: float, of_card: bool, measured: bool) -> np.ndarray:
    """The factor by which the costs of C candidates count more than expected beside what somebody ran, (C,).

    Args:
        latency: at one operating point.
        deviation: of the logarithm of the kernel's time.
        of_card: whether a model learned the kernel on the card: then its estimates are no mere predictions.
        measured: whether some of its configs were measured: then predictions stand on their scale.
    """
    if not measured and (of_card or not latency.has_learned):
        factor = unsure(deviation)
        return latency.by_kind(np.array((factor, 1.0, factor)).take(latency.kinds.source))
    own = np.minimum(np.log(latency.high / latency.low) / (2.0 * DEVIATIONS), deviation)
    if not measured:
        # The prior's interval is that of a kernel's own time. Beside kernels of other hands it errs as these differ.
        own = np.where(latency.source == PRIOR, deviation, own)
    return np.asarray(np.exp(CERTAIN * own))
