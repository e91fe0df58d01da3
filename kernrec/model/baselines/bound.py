"""Lower bound on the time of a backend's kernel on a GPU, and the features that all ops share.

The bound is the longest of math, DRAM and L2, plus the launch. A launch takes a fixed number of clocks: short matmuls
take equally many clocks, but different times, on all recorded GPUs. Arrays have N problems of one op, data type and
layout on one GPU.

An op is a module of `kernrec.model.baselines.features` with

    DIMS    the dimensions that its features use, in order; keys of `Problem.sizes`
    CASES   the problems that a recorded set may cover, by name: a function of the dimensions
    bound   (device, sizes (D, N), layout) -> `Bound`; features whose names begin with one of `RATIOS` mean the same on
            every GPU, and are the only inputs of trees for GPUs without recordings

With `PHYSICAL_POWER = True`, the trees of power correct `kernrec.model.baselines.bound` instead of the power limit.
With `SUSTAINED = True`, trees for GPUs without recordings correct a bound at the rate that a GPU sustains.

Features are the rows of one table: shares of the parts in the total, logarithms of the sizes and of the total, and the
columns of the op (`bound_of`, unless its module fills the table itself). All logarithms are computed in one NumPy call,
because a call takes as long as hundreds of numbers. Features that are equal for all problems, such as the data type,
are constants instead of rows.
"""

from collections.abc import Callable, Hashable, Mapping
from functools import cache, cached_property, lru_cache
from importlib import import_module
from typing import Any, Protocol

import numpy as np

from kernrec.gpu import GPU
from kernrec.model.analytical.launch_costs import NominalCosts
from kernrec.model.analytical.microarchitecture import l2_bytes_per_clk, microarchitecture
from kernrec.model.analytical.power import PowerModel
from kernrec.model.analytical.spread import Estimate
from kernrec.model.analytical.sustained_roof import arithmetic
from kernrec.op.dtype import ELEMENT_BYTES, FORMATS, activation_bytes, math_dtype, weight_bytes
from kernrec.util.engine import query
from kernrec.util.light_dataclass import dataclass

BESIDE_ARITHMETIC = {True: 1.59, False: 1.27}
"""Ratio of the energy of a matmul's core events to its arithmetic, on tensor cores (True) and outside (False): the
median over ten GPUs, for the best 8,192^3 kernel.
"""
_FLOPS = 2.0 * 8192.0**3


@lru_cache(maxsize=256)
def sustained_flops(gpu: GPU, dtype: str) -> float:
    """Return the FLOP/s of an 8,192^3 matmul whose core events take as much energy as in recorded matmuls."""
    power = PowerModel.for_gpu(gpu)
    peak, joules = arithmetic(gpu, power, dtype)
    seconds, core_j = _FLOPS / peak, _FLOPS * joules * BESIDE_ARITHMETIC[True]
    limited = power.apply_power_limit(NominalCosts(seconds, 0.0, 0.0, core_j, 0.0))
    return _FLOPS / float(limited.latency_s[0])


_BY_THE_CALL = ("f8e4m3",)
"""Types to which backends convert 16-bit activations in the call. For formats, the activations' type counts."""


@dataclass(frozen=True)
class Precision:
    """Data type of a matmul's operands."""

    a_bytes: float
    """Bytes of an activation element, as the matmul reads it."""
    b_bytes: float
    """Bytes of a weight element, including its share of the scales."""
    c_bytes: float
    """Bytes of a result element."""
    quantising_bytes: float
    """Bytes per activation element for quantization, which reads 16 bits and writes the result."""


def precision_of(dtype: str) -> Precision:
    """Return the precision of a data type."""
    a_bytes, result = activation_bytes(dtype), float(ELEMENT_BYTES.get(dtype, 2))
    quantised = dtype in _BY_THE_CALL or (dtype in FORMATS and FORMATS[dtype].activations != "bf16")
    return Precision(a_bytes, weight_bytes(dtype), max(result, 2.0), 2.0 + a_bytes if quantised else 0.0)


def rate_of(gpu: GPU, dtype: str) -> float:
    """Return the data sheet's FLOP/s for a backend in a data type; 0 if the GPU lacks this arithmetic."""
    rate = math_dtype(dtype)
    return gpu.peak_flops(rate, tensor=True) or gpu.peak_flops(rate)


Array = np.ndarray

OPS = ("matmul", "attention", "moe", "conv2d", "softmax", "layernorm", "elementwise")
"""Ops with a module of features."""
RATIOS = ("share.", "waves", "l2.", "full", "filled", "aligned", "time.", "dtype.", "shape.", "arch.")
"""Prefixes of the names of features with the same meaning on every GPU."""
PARTS = ("math", "dram", "l2", "launch")
"""Keys of `Bound.parts`: resources that a kernel keeps busy."""


@dataclass(frozen=True)
class Timing:
    """Method by which a recorder timed a backend."""

    launch_clk: float
    """Clocks of an empty launch with this timing."""
    working_sets: float
    """Number of copies of the weights in the timed loop; infinity if L2 was flushed before each launch."""
    sustained: bool = False
    """Whether the bound's arithmetic runs at the clock that large matmuls hold under the power limit
    (`kernrec.model.baselines.bound`), which transfers better to GPUs without recordings than the data sheet's clock.
    """
    alone: bool = False
    """Whether calls were timed one at a time, including the host's time (`kernrec.model.baselines.recorded_set`)."""


GRAPH = Timing(3400.0, 10.0)
"""CUDA graphs of several launches, each with its own weights. Both figures were fitted to the recordings of an A100, an
L40S and an H200 together. Fits to any two of them differ by less than 6 %.
"""
FLUSHED = Timing(9000.0, np.inf)
"""One launch between two events after L2 was flushed. The clocks are 6.6 us, the shortest time of an A100."""
FLASH = Timing(15000.0, 1.0)
"""Attention in CUDA graphs. The clocks are 7.2 us, the shortest time of an H200, and 13.6 us of an A100."""

TENSOR_SHARE, DRAM_SHARE = 0.79, 0.87
"""Fractions of the data sheet's tensor core and DRAM rates that libraries reach, fitted like `GRAPH`."""
REACHED = 0.97
"""Fraction of the sustained rate that libraries reach in bf16: 0.87 to 1.05 on eight GPUs, from an RTX 3090 to a B200.
They reach 0.65 to 1.02 of the data sheet's rate.
"""
TILE_CLK = 2200.0
"""Clocks to fill a tile's pipeline and to write its results, fitted like `GRAPH`."""


@dataclass(frozen=True)
class Bound:
    """Lower bound on the time of N problems; arrays (N,)."""

    total_s: Array
    """Seconds of a call."""
    parts: Mapping[str, Array]
    """Seconds that each resource of `PARTS` is busy at the rates of the data sheet."""
    names: tuple[str, ...]
    """Names of the features in `table`."""
    table: Array
    """Features of the problems, (F, N)."""
    constants: Mapping[str, float]
    """Features that all problems share, by name."""
    log_sizes: Array
    """Logarithms of the dimensions to base 2, in the order of `DIMS`, (D, N), part of the table."""
    work_s: Array | None = None
    """Seconds of the GPU's work only, for ops whose calls were timed one at a time."""

    def at(self, numbers: Array) -> "Bound":
        """Return the bound of some of the problems."""
        parts = {name: seconds.take(numbers) for name, seconds in self.parts.items()}
        work_s = None if self.work_s is None else self.work_s.take(numbers)
        table, log_sizes = self.table.take(numbers, axis=1), self.log_sizes.take(numbers, axis=1)
        return Bound(self.total_s.take(numbers), parts, self.names, table, self.constants, log_sizes, work_s)


def bound_of(
    device: "Device", dims: tuple[str, ...], sizes: Array, total_s: Array, parts: Mapping[str, Array],
    shares: Mapping[str, Array], columns: Mapping[str, Array], work_s: Array | None = None,
) -> Bound:  # fmt: skip
    """Return the bound with its table of features.

    Args:
        dims: Names of the dimensions.
        sizes: Sizes, (D, N).
        shares: Times in seconds, whose shares of the total are features.
        columns: Further features, by name.
    """
    table = np.concatenate([*shares.values(), *sizes, total_s, *columns.values()]).reshape(-1, len(total_s))
    of_total = len(shares) + len(sizes)
    of_shares, of_sizes, logs = table[: len(shares)], table[len(shares) : of_total], table[: of_total + 1]
    of_shares /= total_s
    np.maximum(of_shares, query.LEAST_SHARE, out=of_shares)
    np.maximum(of_sizes, query.LEAST_SIZE, out=of_sizes)
    table[of_total] *= 1e6
    np.log2(logs, out=logs)
    logged = (*(f"share.{name}" for name in shares), *(f"log.{name}" for name in dims), "log.total")
    return Bound(total_s, parts, (*logged, *columns), table, device.constants, of_sizes, work_s)


class Features(Protocol):
    """Module of features."""

    DIMS: tuple[str, ...]
    CASES: Mapping[str, Callable[[Mapping[str, int]], bool]]

    def bound(self, device: "Device", sizes: Array, layout: str) -> Bound:
        """Return the bound of N problems."""


@cache
def features_of(op: str) -> Features:
    """Return the module of an op's features, or the entry of a row operator, imported on first use."""
    rows = op in ("elementwise", "layernorm", "softmax")
    module: Any = import_module(f"kernrec.model.baselines.features.{'rows' if rows else op}")
    return module.OPS[op] if rows else module  # type: ignore[no-any-return]


def kind_of(op: str, dtype: str, sizes: Mapping[str, int]) -> str:
    """Return the key that distinguishes recordings of backends: the dtype, for some ops with another tensor's dtype."""
    kind = _kind_function(op)
    return dtype if kind is None else kind(dtype, sizes)


@cache
def _kind_function(op: str) -> Callable[[str, Mapping[str, int]], str] | None:
    return getattr(features_of(op), "kind", None)


def features(
    op: str, gpu: GPU, dtype: str, layout: str, dims: Mapping[str, Array], timing: Timing
) -> tuple[Bound, dict[str, Array]]:
    """Return the bound and features by name, (N,) each, of problems of one op, dtype and layout.

    Args:
        dims: Dimensions by name, (N,) each.
    """
    module = features_of(op)
    sizes = np.array([dims[name] for name in module.DIMS], dtype=float)
    bound = module.bound(device_of(gpu, dtype, timing), sizes, layout)
    constants = {name: np.full(len(bound.total_s), value) for name, value in bound.constants.items()}
    return bound, dict(zip(bound.names, bound.table, strict=True)) | constants


@lru_cache(maxsize=64)
def device_of(gpu: GPU, dtype: str, timing: Timing) -> "Device":
    """Return the GPU's rates for problems in a data type, recorded with this kind of timing."""
    tensor = gpu.peak_flops(math_dtype(dtype), tensor=True) > 0
    peak = rate_of(gpu, dtype)
    if timing.sustained and tensor:
        peak = sustained_flops(gpu, dtype) * (REACHED / TENSOR_SHARE)
    return Device(gpu, dtype, precision_of(dtype), peak, tensor, timing)


def has_physical_power(op: str) -> bool:
    """Return whether the power trees correct a physical power model, rather than scaling the power limit."""
    return bool(getattr(features_of(op), "PHYSICAL_POWER", False))


def used(bound: Bound, latency_s: Array) -> dict[str, Array]:
    """Return the power features, (N,) each: the log of the fraction of `latency_s` (N,) that each part is busy."""
    return {f"share.used.{name}": _log_share(seconds, latency_s) for name, seconds in bound.parts.items()}


def _log_share(part_s: Array, total_s: Array) -> Array:
    return np.asarray(np.log2(np.maximum(part_s / total_s, query.LEAST_SHARE)))


@dataclass(frozen=True)
class Device:
    """Rates of a GPU for problems of one dtype."""

    gpu: GPU
    dtype: str
    precision: Precision
    peak_flops: float
    tensor: bool
    """Whether tensor cores support the dtype."""
    timing: Timing

    @property
    def element_bytes(self) -> float:
        """Return the size in bytes of an element of the weights."""
        return self.precision.b_bytes

    @property
    def flops(self) -> float:
        """Return the FLOP/s that a library reaches."""
        return self.peak_flops * TENSOR_SHARE

    def once(self, name: Hashable, make: "Callable[[Device], Any]") -> Any:
        """Return the result of `make`, cached for this GPU under `name`."""
        if (made := self._once.get(name)) is None:
            made = self._once[name] = make(self)
        return made

    @cached_property
    def _once(self) -> dict[Hashable, Any]:
        return {}

    @cached_property
    def constants(self) -> dict[str, float]:
        """Return the features of the data type."""
        tensor = self.gpu.peak_flops(self.dtype, tensor=True) > 0
        block = self.dtype == "f8block"
        return {"dtype.bytes": self.precision.b_bytes, "dtype.block": float(block), "dtype.tensor": float(tensor)}

    @cached_property
    def l2(self) -> float:
        """Return the bytes/s of L2."""
        return l2_bytes_per_clk(self.gpu) * self.gpu.boost_clock_hz

    def seconds(self, clocks: float) -> float:
        """Return the time of a number of clocks in seconds."""
        return clocks / self.gpu.boost_clock_hz

    @cached_property
    def launch_s(self) -> float:
        """Return the seconds of an empty launch."""
        return self.seconds(self.timing.launch_clk)

    @cached_property
    def dram(self) -> float:
        """Return the bytes/s of DRAM that a library reaches."""
        return self.gpu.memory_bandwidth * min(DRAM_SHARE, microarchitecture(self.gpu).dram_efficiency)

    def parts(self, flops: Array, moved: Array) -> dict[str, Array]:
        """Return the `Bound.parts` of a kernel with `flops` operations and `moved` bytes, at data-sheet rates."""
        launch_s = np.full(len(moved), self.launch_s)
        dram_s, l2_s = moved / self.gpu.memory_bandwidth, moved / self.l2
        return {"math": flops / self.peak_flops, "dram": dram_s, "l2": l2_s, "launch": launch_s}


@dataclass(frozen=True)
class BaselinePrediction:
    """Latency and power of a backend for a problem, at the GPU's default power limit and unlocked clock."""

    backend: str
    version: str | None
    """Recorded version on this GPU, or range of versions on other GPUs; None if not stated."""
    latency_s: Estimate
    power_w: Estimate | None
    """Power; None if it was not recorded. `at_point` then fills in a `predicted` power."""
    gpus: tuple[str, ...]
    """GPUs in the training data of the latency."""
    recorded_as: str | None
    """Recorded data type and layout, if they differ from the problem's."""
    busy: Mapping[str, float]
    """Seconds that `math`, `dram`, `l2` and `launch` are busy at the rates of the data sheet, possibly overlapping, for
    transfers to other power limits and clocks.
    """


@dataclass(frozen=True)
class PowerBase:
    """Power figures of a GPU in watts."""

    running_w: float
    """Power before any event, at the clock of a load without a power limit."""
    math_w: float
    """Additional power of tensor cores at the data sheet's rate, equal in every data type."""
    dram_w: float
    """Additional power at the data sheet's bandwidth, including L2 and L1. Without L2 and L1, power on an H200,
    predicted from recordings of Blackwell, is too low for DRAM-bound matmuls.
    """

    def watts(self, bound: Bound, latency_s: Array, most_w: float) -> Array:
        """Return the power, at most `most_w`, if problems take `latency_s`; the last axis is the problem."""
        events_j = self.math_w * bound.parts["math"] + self.dram_w * bound.parts["dram"]
        return np.asarray(np.minimum(self.running_w + events_j / latency_s, most_w))


@lru_cache(maxsize=64)
def power_base(gpu: GPU) -> PowerBase:
    """Return the figures of a GPU by the power model."""
    power = PowerModel.for_gpu(gpu)
    peak, joules = arithmetic(gpu, power, "bf16" if gpu.peak_flops("bf16", tensor=True) else "f16")
    beside = BESIDE_ARITHMETIC[gpu.peak_flops("f16", tensor=True) > 0]
    byte_j = power.event_j("dram.bytes") + power.event_j("l2.sectors") / 32 + power.event_j("l1.requests") / 128
    dram_w = gpu.memory_bandwidth * byte_j
    return PowerBase(float(power.power_at(power.running_hz, {})), beside * peak * joules, dram_w)
