"""The prediction of a stack carried to a power limit and a clock, on the model of the card that kernels stand on.

A stack's time and power are predicted at the card's default power limit and clock. Read as a launch, its time is that
of the parts which the roofline names, in proportion: arithmetic and L2 follow the core's clock, DRAM and the start of a
launch do not. Its energy is what the predicted power leaves for the core, or, where the default limit holds the card
back and power says no more than the limit, what the arithmetic takes. That launch goes through
`PowerModel.apply_power_limit` at both points, and the prediction changes by the ratio.
"""

from collections.abc import Iterable
from dataclasses import replace
from functools import lru_cache
from math import exp, hypot, inf, log
from typing import TYPE_CHECKING, Protocol

from kernrec.gpu import GPU
from kernrec.model.prior.launch_costs import OVERLAP, LimitedCosts, NominalCosts
from kernrec.model.prior.power import PowerModel
from kernrec.model.prior.sustained_roof import arithmetic, least_costs
from kernrec.op import Problem

if TYPE_CHECKING:
    from kernrec.model.vendor.model import StackPrediction
    from kernrec.model.vendor.predicted import Predicted

CAPPED = 0.95
"""Share of the power limit from which on a predicted power is taken to be held back by it: mean power of a loop that is
throttled stays a little below the limit."""
BESIDE_ARITHMETIC = {True: 1.67, False: 1.27}
"""Energy of a product's core events over that of its arithmetic alone, on tensor cores and outside of them: the median
of the best kernel for 8,192^3 on ten cards."""
REACHED = 0.9
"""Share of the arithmetic's rate at the clock held that a stack reaches at most: on recorded large products 0.79 of the
data sheet's (`TENSOR_SHARE`), at a clock that a limit holds back."""
EXTRAPOLATED = 0.6
"""Standard deviation of the error of a change of time or power, as a share of the logarithm of that change: the median
of nine changes of matmul_tf32_limits_rtx3090.csv from 400 W on, carried as a stack's line is; 0.65 in mean square."""
_WIDTH = 1.645
_ROUNDS = 40


class Point(Protocol):
    """A power limit (W) and a locked clock (Hz), each None for the card's default."""

    @property
    def power_limit_w(self) -> float | None: ...
    @property
    def clock_hz(self) -> float | None: ...


def at_point(
    prediction: "StackPrediction", gpu: GPU, point: Point, problem: Problem | None = None
) -> "StackPrediction":
    """A prediction at another power limit and clock; at the default ones it stays as it is, but never above the roof.

    Args:
        prediction: as `VendorModel.predict` has it, at the default power limit with the clock not locked.
        gpu: the card.
        point: the power limit and clock.
        problem: its arithmetic says what energy a part that is held back by the limit takes, and bounds the time.

    Raises:
        UsageError: the card does not accept this power limit or clock.
    """
    power = _power_of(gpu)
    limit_w = None if point.power_limit_w is None else float(point.power_limit_w)
    if limit_w not in (None, gpu.tdp_w) or point.clock_hz is not None:
        launch = _launch(prediction, gpu, power, problem)
        before, after = power.apply_power_limit(launch), power.apply_power_limit(launch, limit_w, point.clock_hz)
        slower = _ratio(before, after, "latency_s")
        drawn = prediction.power_w
        if drawn is not None:
            most = float(after.power_w[0]) if after.capped[0] else gpu.power_max_w
            drawn = _scaled(drawn, _ratio(before, after, "power_w"), 0.0, most)
        prediction = replace(prediction, latency_s=_scaled(prediction.latency_s, slower, EXTRAPOLATED), power_w=drawn)
    return _raised(prediction, 0.0 if problem is None else _roof_s(problem, gpu, limit_w, point.clock_hz))


def at_least_roof(predictions: "Iterable[StackPrediction]", gpu: GPU, problem: Problem) -> "list[StackPrediction]":
    """Predictions of one problem by `at_point` at the card's default limit and clock, in less time than one by one."""
    roof_s = _roof_s(problem, gpu, None, None)
    return [_raised(prediction, roof_s) for prediction in predictions]


def _raised(prediction: "StackPrediction", roof_s: float) -> "StackPrediction":
    """A prediction that takes at least as long as the roof."""
    if prediction.latency_s.value >= roof_s:
        return prediction
    return replace(prediction, latency_s=_scaled(prediction.latency_s, roof_s / prediction.latency_s.value, 1.0))


@lru_cache(maxsize=4096)
def _roof_s(problem: Problem, gpu: GPU, limit_w: float | None, clock_hz: float | None) -> float:
    """The least time of a problem, the same for all stacks; 0 where its arithmetic has no roof."""
    power = _power_of(gpu)
    least = least_costs(problem, gpu, power)
    return 0.0 if least is None else float(power.apply_power_limit(least, limit_w, clock_hz).latency_s[0])


@lru_cache(maxsize=16)
def _power_of(gpu: GPU) -> PowerModel:
    """With the tables of clocks that it makes once."""
    return PowerModel.for_gpu(gpu)


def _ratio(before: LimitedCosts, after: LimitedCosts, name: str) -> float:
    return float(getattr(after, name)[0] / getattr(before, name)[0])


def _scaled(quantity: "Predicted", factor: float, unsure: float, most: float = inf) -> "Predicted":
    """A quantity times a factor, whose logarithm has an error of this standard deviation as a share of it."""
    value, wider = min(quantity.value * factor, most), _WIDTH * unsure * abs(log(factor))
    down, up = (hypot(log(quantity.value / quantity.low), wider), hypot(log(quantity.high / quantity.value), wider))
    return replace(quantity, value=value, low=value * exp(-down), high=max(min(value * exp(up), most), value))


def _launch(prediction: "StackPrediction", gpu: GPU, power: PowerModel, problem: Problem | None) -> NominalCosts:
    """The launch that takes the predicted time and power at the default point."""
    busy, latency_s = prediction.busy, prediction.latency_s.value
    core_s, dram_s = max(busy["math"], busy["l2"]), busy["dram"]
    fixed_s = min(busy["launch"], 0.9 * latency_s)
    dram_j = dram_s * gpu.memory_bandwidth * power.event_j("dram.bytes")
    running_w = _without_core(power, power.running_hz)
    drawn_w = prediction.power_w.value if prediction.power_w is not None else 0.0
    volts = float(power.voltage(power.running_hz)) ** 2
    core_j = max((drawn_w - running_w) * latency_s - dram_j, 0.0) / volts
    clock_hz = power.running_hz
    if drawn_w >= CAPPED * gpu.tdp_w or not drawn_w:
        core_j = max(core_j, _core_energy(busy["math"], gpu, power, problem))
        clock_hz = _held_clock(power, core_j, dram_j, latency_s)
        # The clock was not so low that the arithmetic would not have fitted into the time: then it took less energy.
        least_hz = min(power.boost_hz * core_s / (REACHED * latency_s), power.running_hz)
        if clock_hz < least_hz:
            clock_hz = least_hz
            volts = float(power.voltage(clock_hz)) ** 2
            core_j = max((power.tdp_w - _without_core(power, clock_hz)) * latency_s - dram_j, 0.0) / volts
    # The parts in proportion, so that together they take the predicted time at that clock.
    slowed = core_s * power.boost_hz / clock_hz
    together = (slowed**OVERLAP + dram_s**OVERLAP) ** (1.0 / OVERLAP)
    scale = (latency_s - fixed_s) / together if together else 1.0
    return NominalCosts(core_s * scale, dram_s * scale, fixed_s, core_j, dram_j)


def _core_energy(math_s: float, gpu: GPU, power: PowerModel, problem: Problem | None) -> float:
    """Joules of the core's events at nominal voltage, as from the arithmetic."""
    dtype = "f16" if problem is None else problem.dtype
    peak, joules = arithmetic(gpu, power, dtype)
    flops = math_s * peak if problem is None else problem.flops
    return flops * joules * BESIDE_ARITHMETIC[gpu.peak_flops(dtype, tensor=True) > 0]


def _without_core(power: PowerModel, clock_hz: float) -> float:
    """Watts at a clock before any event."""
    return float(power.power_at(clock_hz, {}))


def _held_clock(power: PowerModel, core_j: float, dram_j: float, latency_s: float) -> float:
    """The clock at which a launch of these energies and this time draws the default limit, or the highest."""
    low, high = power.minimum_hz, power.running_hz

    def drawn_w(clock_hz: float) -> float:
        volts = float(power.voltage(clock_hz)) ** 2
        return _without_core(power, clock_hz) + (core_j * volts + dram_j) / latency_s

    if drawn_w(high) <= power.tdp_w:
        return high
    for _ in range(_ROUNDS):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if drawn_w(middle) <= power.tdp_w else (low, middle)
    return low
