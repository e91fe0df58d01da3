"""Transfer the prediction for a backend to another power limit or clock.

The predicted time is split in proportion to the parts of the roofline. Arithmetic and L2 follow the core clock. DRAM
and the start of a launch do not. `PowerModel.apply_power_limit` computes time and power of a launch with these parts at
both operating points. The prediction is multiplied by the ratios of both results.

All backends share one dynamic energy of the core for a problem: the median of their energies without static power and
DRAM. `_core_energy` keeps this median within limits.
"""

from collections.abc import Iterable
from dataclasses import replace
from functools import lru_cache
from math import exp, hypot, inf, log
from typing import TYPE_CHECKING, Protocol

import numpy as np

from kernrec.gpu import GPU
from kernrec.model.analytical.launch_costs import NominalCosts
from kernrec.model.analytical.microarchitecture import OVERLAP, l2_bytes_per_clk
from kernrec.model.analytical.power import PowerModel
from kernrec.model.analytical.spread import Estimate, Source
from kernrec.model.analytical.sustained_roof import arithmetic, ideal_launch
from kernrec.model.baselines.bound import BESIDE_ARITHMETIC, power_base
from kernrec.op import Problem
from kernrec.op.dtype import math_dtype, weight_bytes
from kernrec.util.light_dataclass import dataclass
from kernrec.util.normal import DEVIATIONS

if TYPE_CHECKING:
    from kernrec.model.baselines.bound import BaselinePrediction

CAPPED = 0.95
"""Fraction of the power limit above which a predicted power means that the limit slows the call down."""
REACHED = 0.9
"""Maximum fraction of the arithmetic rate at the actual clock that a backend is assumed to reach."""
EXTRAPOLATED = 0.6
"""Standard deviation of a transfer's error, as a fraction of the change in log(time). The value is the median
over nine changes of the power limit (matmul_tf32_limits_rtx3090.csv)."""
MODELLED = 1.35
"""Ratio of the upper end of a 90 % interval to a power that the power model predicts (`tools/evidence power`)."""
_ROUNDS = 40


class Point(Protocol):
    """Power limit in watts and locked clock in hertz. None means the GPU's default."""

    @property
    def power_limit_w(self) -> float | None: ...
    @property
    def clock_hz(self) -> float | None: ...


def at_point(
    predictions: "Iterable[BaselinePrediction]", gpu: GPU, point: Point, problem: Problem | None = None
) -> "list[BaselinePrediction]":
    """Transfer predictions for a problem to a power limit and clock. Raise `UsageError` if the GPU does not support
    them.

    Args:
        predictions: Predictions for the default power limit and an unlocked clock. Pass all predictions that will be
            compared, because all backends get the same estimate of the core's energy (`_core_energy`).
        point: Power limit and clock.
        problem: Problem of the predictions, or None if unknown. The problem determines the minimum time.
    """
    power, baselines = PowerModel.for_gpu(gpu), list(predictions)
    limit_w = None if point.power_limit_w is None else float(point.power_limit_w)
    elsewhere = limit_w not in (None, gpu.tdp_w) or point.clock_hz is not None
    core_j = _core_energy(baselines, gpu, power, problem) if baselines and elsewhere else 0.0
    baselines = [each if each.power_w is not None else _modelled(each, gpu, problem) for each in baselines]
    if elsewhere:
        baselines = [_transferred(each, core_j, gpu, limit_w, point.clock_hz) for each in baselines]
    least_s = 0.0 if problem is None else roof_s(problem, gpu, limit_w, point.clock_hz)
    return [_within(each, raised(each.latency_s, least_s), least_s) for each in baselines]


def _within(prediction: "BaselinePrediction", latency: Estimate, least_s: float) -> "BaselinePrediction":
    """Set a prediction's latency. Raise the lower end of the interval to `least_s`, the minimum time, if necessary."""
    if latency.low < (low := min(latency.value, least_s)):
        latency = replace(latency, low=low)
    return prediction if latency is prediction.latency_s else replace(prediction, latency_s=latency)


def recorded_within(prediction: "BaselinePrediction", gpu: GPU, problem: Problem) -> "BaselinePrediction":
    """Limit a recording's latency interval and power to possible values. Predict the power if it was not recorded."""
    prediction = _within(prediction, prediction.latency_s, roof_s(problem, gpu))
    if prediction.power_w is None:
        return _modelled(prediction, gpu, problem)
    return replace(prediction, power_w=_at_most(prediction.power_w, gpu.tdp_w))


def _modelled(prediction: "BaselinePrediction", gpu: GPU, problem: Problem | None) -> "BaselinePrediction":
    busy, base, seconds = prediction.busy, power_base(gpu), prediction.latency_s.value
    if not busy and problem is not None:
        busy = {"math": 0.0, "dram": problem.bytes / gpu.memory_bandwidth}
    joules = base.math_w * busy.get("math", 0.0) + base.dram_w * min(busy.get("dram", 0.0), seconds)
    watts = min(base.running_w + joules / seconds, gpu.tdp_w)
    low, high = watts / MODELLED, min(watts * MODELLED, gpu.tdp_w)
    return replace(prediction, power_w=Estimate(watts, low, high, Source.PREDICTED))


def raised(latency: Estimate, least_s: float) -> Estimate:
    """Raise a latency to the minimum time `least_s` if it is below."""
    return latency if latency.value >= least_s else _scaled(latency, least_s / latency.value, 1.0)


def roof_s(problem: Problem, gpu: GPU, limit_w: float | None = None, clock_hz: float | None = None) -> float:
    """Return the minimum time in seconds that any backend needs for a problem. The minimum is 0 if all bytes fit in L2,
    and the op has no minimum number of operations."""
    setting = PowerModel.for_gpu(gpu).setting(((limit_w, clock_hz),))  # Check the limit and clock of every problem.
    costs = ideal_launch(gpu, problem.op, problem.dtype).costs(problem)
    seconds: float = setting.latency_s(costs) if any(costs) else 0.0
    return seconds


def _scaled(quantity: Estimate, factor: float, unsure: float) -> Estimate:
    value, wider = quantity.value * factor, DEVIATIONS * unsure * abs(log(factor))
    down, up = (hypot(log(quantity.value / quantity.low), wider), hypot(log(quantity.high / quantity.value), wider))
    return replace(quantity, value=value, low=value * exp(-down), high=value * exp(up))


def _transferred(
    prediction: "BaselinePrediction", core_j: float, gpu: GPU, limit_w: float | None, clock_hz: float | None
) -> "BaselinePrediction":
    power = PowerModel.for_gpu(gpu)
    launch = _launch(prediction, core_j, gpu, power)
    before, after = power.apply_power_limit(launch), power.apply_power_limit(launch, limit_w, clock_hz)
    slower = _scaled(prediction.latency_s, float(after.latency_s[0] / before.latency_s[0]), EXTRAPOLATED)
    assert prediction.power_w is not None
    drawn = _scaled(prediction.power_w, float(after.power_w[0] / before.power_w[0]), 0.0)
    return replace(prediction, latency_s=slower, power_w=_at_most(drawn, gpu.tdp_w if limit_w is None else limit_w))


def _at_most(quantity: Estimate, most: float) -> Estimate:
    if quantity.high <= most:
        return quantity
    value = min(quantity.value, most)
    return replace(quantity, value=value, low=min(quantity.low * value / quantity.value, value), high=most)


def _launch(prediction: "BaselinePrediction", core_j: float, gpu: GPU, power: PowerModel) -> NominalCosts:
    busy, latency_s = prediction.busy, prediction.latency_s.value
    core_s, dram_s = max(busy["math"], busy["l2"]), busy["dram"]
    fixed_s = min(busy["launch"], 0.9 * latency_s)
    dram_j = _dram_energy(prediction, gpu, power)
    clock_hz = _clock_at_limit(power, core_j, dram_j, latency_s)
    # Scale the core and DRAM times so that the launch takes the predicted time at the actual clock.
    slowed = core_s * power.boost_hz / clock_hz
    together = (slowed**OVERLAP + dram_s**OVERLAP) ** (1.0 / OVERLAP)
    scale = (latency_s - fixed_s) / together if together else 1.0
    return NominalCosts(core_s * scale, dram_s * scale, fixed_s, core_j, dram_j)


def _core_energy(
    predictions: "Iterable[BaselinePrediction]", gpu: GPU, power: PowerModel, problem: Problem | None
) -> float:
    """Return the dynamic energy of the core (GPU without DRAM) for a problem, in joules at nominal voltage."""
    left_j, most_j, held, math_s = [], inf, False, 0.0
    for each in predictions:
        math_s, latency_s = max(math_s, each.busy["math"]), each.latency_s.value
        # Below `least_hz`, the arithmetic would take longer than the call. At `least_hz`, idle power is lowest, so the
        # core's work gets the largest possible part of the energy.
        core_s = max(each.busy["math"], each.busy["l2"])
        least_hz = min(power.boost_hz * core_s / (REACHED * latency_s), power.running_hz)
        most_j = min(most_j, _core_energy_in_call(each, gpu.tdp_w, least_hz, gpu))
        if each.power_w is not None:
            left_j.append(_core_energy_in_call(each, each.power_w.value, power.running_hz, gpu))
            held = held or each.power_w.value >= CAPPED * gpu.tdp_w
    if left_j and not held:
        return min(_median(left_j), most_j)
    # No backend's power is known, or a power limit slows down a backend: assume at least the energy of the arithmetic.
    dtype = "f16" if problem is None else problem.dtype
    peak, joules = arithmetic(gpu, power, dtype)
    flops = math_s * peak if problem is None else problem.flops
    taken_j = flops * joules * BESIDE_ARITHMETIC[gpu.peak_flops(dtype, tensor=True) > 0]
    return min(max(taken_j, _median(left_j) if left_j else 0.0), most_j)


def _median(values: list[float]) -> float:
    ordered, half = sorted(values), len(values) // 2
    return ordered[half] if len(values) % 2 else (ordered[half - 1] + ordered[half]) / 2


def _core_energy_in_call(prediction: "BaselinePrediction", drawn_w: float, clock_hz: float, gpu: GPU) -> float:
    """Return the core's dynamic energy, in joules at nominal voltage, of a call that draws `drawn_w` watts in total."""
    power = PowerModel.for_gpu(gpu)
    core_w = drawn_w - _without_core(power, clock_hz)
    core_j = core_w * prediction.latency_s.value - _dram_energy(prediction, gpu, power)
    return max(core_j, 0.0) / float(power.voltage(clock_hz)) ** 2


def _dram_energy(prediction: "BaselinePrediction", gpu: GPU, power: PowerModel) -> float:
    return prediction.busy["dram"] * gpu.memory_bandwidth * power.event_j("dram.bytes")


def _without_core(power: PowerModel, clock_hz: float) -> float:
    return float(power.power_at(clock_hz, {}))


def _clock_at_limit(power: PowerModel, core_j: float, dram_j: float, latency_s: float) -> float:
    """Return the clock in hertz at which a launch draws the default power limit, or the highest clock if it draws
    less."""
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


Array = np.ndarray

LEEWAY = 1.05
"""Factor by which a recording may be faster than `least_s`, because clocks and timers are inexact. A faster recording
must have timed another problem, so it is neither shipped nor used for training."""
WINOGRAD = 4.0
"""Factor by which Winograd's F(4x4, 3x3) reduces multiplications (Lavin and Gray, arXiv 1509.09308). FFT saves less."""
_FEWER = ("winograd", "fft", "gcgemm")
"""Parts of the names of cuDNN kernels that need fewer multiplications than a direct convolution."""


@dataclass(frozen=True)
class Rates:
    """Highest rates of a GPU for problems in one data type."""

    flops: float
    """FLOP/s at the boost clock, on the fastest pipes for the data type."""
    dram: float
    """Bytes/s that the memory's pins transfer."""
    l2: float
    """Bytes/s of L2."""
    l2_bytes: float


@lru_cache(maxsize=256)
def rates_of(gpu: GPU, dtype: str) -> Rates:
    math = math_dtype(dtype)
    tensor = gpu.peak_flops(math, tensor=True) * gpu.boost_clock_hz / gpu.tensor_clock_hz
    flops = max(tensor, gpu.peak_flops(math))
    return Rates(flops, gpu.memory_bandwidth, l2_bytes_per_clk(gpu) * gpu.boost_clock_hz, gpu.l2_bytes)


def least_s(flops: float | Array, moved: float | Array, rates: Rates) -> Array:
    """Return the minimum seconds of a repeated call with `flops` operations and `moved` compulsory bytes."""
    # L2 is assumed to keep as much data of the previous call as fits.
    memory_s = np.maximum(np.divide(moved, rates.l2), np.subtract(moved, rates.l2_bytes) / rates.dram)
    return np.asarray(np.maximum(np.divide(flops, rates.flops) if rates.flops else 0.0, memory_s))


def work_of(problem: Problem, kernel: str | None = None) -> tuple[float, float]:
    """Return (minimum number of operations, compulsory bytes) of a problem. `kernel` names the kernels that ran, or is
    None."""
    if problem.op == "moe" and problem.sizes["routing"]:
        return _uneven(problem)
    # Some kernels of cuDNN need fewer multiplications than others.
    fewer = problem.op == "conv2d" and (kernel is None or any(name in kernel for name in _FEWER))
    return problem.flops / (WINOGRAD if fewer else 1.0), float(problem.bytes)


def _uneven(problem: Problem) -> tuple[float, float]:
    from kernrec.model.baselines.features.moe import active_experts

    sizes = problem.sizes
    of_expert = (2 + sizes["gated"]) * sizes["hidden"] * sizes["columns"] * weight_bytes(problem.dtype)
    # Count only the weights that the busiest GPU is expected to read.
    return float(problem.flops), active_experts(sizes) * of_expert + 4.0 * sizes["tokens"] * sizes["hidden"]
