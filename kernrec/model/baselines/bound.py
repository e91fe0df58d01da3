"""Lower bound on the time of a backend's kernel on a GPU, and the features that all ops share.

The bound is the longest of the times for arithmetic, DRAM and L2, plus the time of a launch. A launch is assumed to
take equally many clocks on every GPU, as short matmuls do in the recordings. Arrays have one entry for each of N
problems, which have the same op, data type and layout.

Each op has a module in `kernrec.model.baselines.features`, which defines

    DIMS    names of the dimensions that the features use, in order (keys of `Problem.sizes`)
    CASES   predicates on a problem's dimensions, keyed by case; each recorded set covers the problems of one case
    bound   a function (device, sizes (D, N), layout) -> `Bound`

and may set these flags to True:

    PHYSICAL_POWER       the trees for power predict a factor on the power model (`PowerBase`), not on the power limit
    SUSTAINED            the trees for GPUs without recordings correct a bound at `sustained_flops`
    SUSTAINED_SIBLINGS   like SUSTAINED, but only for GPUs of an architecture with recordings
"""

from collections.abc import Callable, Mapping
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
"""Dynamic energy of the core divided by the energy of the arithmetic, in large matmuls with tensor cores (True) and
without tensor cores (False). The values are medians of ten GPUs."""
_FLOPS = 2.0 * 8192.0**3


@lru_cache(maxsize=256)
def sustained_flops(gpu: GPU, dtype: str) -> float:
    """Return the FLOP/s that a GPU sustains in an 8,192 x 8,192 x 8,192 matmul at its default power limit."""
    power = PowerModel.for_gpu(gpu)
    peak, joules = arithmetic(gpu, power, dtype)
    seconds, core_j = _FLOPS / peak, _FLOPS * joules * BESIDE_ARITHMETIC[True]
    limited = power.apply_power_limit(NominalCosts(seconds, 0.0, 0.0, core_j, 0.0))
    return _FLOPS / float(limited.latency_s[0])


_BY_THE_CALL = ("f8e4m3",)
"""Data types (not in `FORMATS`) for which a backend quantizes the activations in every call."""


@dataclass(frozen=True)
class Precision:
    """Bytes per element of a matmul's operands and result."""

    a_bytes: float
    """Bytes per activation, after any quantization."""
    b_bytes: float
    """Bytes per weight, including scales."""
    c_bytes: float
    quantising_bytes: float
    """Bytes that quantization reads and writes per activation."""


def precision_of(dtype: str) -> Precision:
    """Return the element sizes of a matmul in a data type."""
    a_bytes, result = activation_bytes(dtype), float(ELEMENT_BYTES.get(dtype, 2))
    quantised = dtype in _BY_THE_CALL or (dtype in FORMATS and FORMATS[dtype].activations != "bf16")
    return Precision(a_bytes, weight_bytes(dtype), max(result, 2.0), 2.0 + a_bytes if quantised else 0.0)


def rate_of(gpu: GPU, dtype: str) -> float:
    """Return the FLOP/s in a data type according to the data sheet, or 0 if the GPU has no such arithmetic."""
    rate = math_dtype(dtype)
    return gpu.peak_flops(rate, tensor=True) or gpu.peak_flops(rate)


Array = np.ndarray

OPS = ("matmul", "attention", "moe", "conv2d", "softmax", "layernorm", "elementwise")
"""Ops that have a module of features."""
RATIOS = ("share.", "waves", "l2.", "full", "filled", "aligned", "time.", "dtype.", "shape.", "arch.")
"""Prefixes of the names of features that mean the same on every GPU. Trees for GPUs without recordings use only
features with these prefixes."""
PARTS = ("math", "dram", "l2", "launch")
"""Resources that a kernel keeps busy."""


@dataclass(frozen=True)
class Timing:
    """Method by which a recorder timed a backend."""

    launch_clk: float
    """Clocks of an empty launch with this timing."""
    working_sets: float
    """Number of copies of the weights that the timed loop reads in turn. Infinity means that no call finds its weights
    in L2, because L2 is flushed between calls."""
    sustained: bool = False
    """Whether the bound assumes the clock that large matmuls sustain under the power limit."""
    alone: bool = False
    """Whether calls were timed one at a time, so that times include the host's time."""


GRAPH = Timing(3400.0, 10.0)
"""Timing of launches in a CUDA graph, each with its own weights. Fitted to recordings of A100, L40S and H200."""
FLUSHED = Timing(9000.0, np.inf)
"""Timing of one launch between two events after a flush of L2. The shortest time on an A100 is 6.6 us."""
FLASH = Timing(15000.0, 1.0)
"""Timing of attention in CUDA graphs, from the shortest recorded times (7.2 us on an H200, 13.6 us on an A100)."""

TENSOR_SHARE, DRAM_SHARE = 0.79, 0.87
"""Fractions of the data sheet's tensor core rate and DRAM bandwidth that libraries reach, fitted like `GRAPH`."""
REACHED = 0.97
"""Fraction of `sustained_flops` that libraries reach in bf16. On eight GPUs, it is 0.87 to 1.05."""
TILE_CLK = 2200.0
"""Clocks to fill the pipeline of a tile and to write the tile's results, fitted like `GRAPH`."""


@dataclass(frozen=True)
class Bound:
    """Lower bound on the time of N problems, and their features. Arrays are (N,) unless stated otherwise."""

    total_s: Array
    """Lower bound on the seconds of a call."""
    parts: Mapping[str, Array]
    """Seconds that each resource in `PARTS` is busy at the data sheet's rates."""
    names: tuple[str, ...]
    """Names of the features in `table`."""
    table: Array
    """Features, (F, N)."""
    constants: Mapping[str, float]
    """Features that are equal for all problems, keyed by name."""
    log_sizes: range
    """Rows of `table` with the base-2 logarithms of the sizes in `Features.DIMS`."""
    work_s: Array | None = None
    """Seconds of GPU work without the host's time. None if calls were timed in a stream or a CUDA graph."""

    @classmethod
    def of(cls, in_engine: Any) -> "Bound":
        """Convert the engine's form of a bound."""
        *parts, total_s, work_s = in_engine.work
        sizes = range(in_engine.first_size, in_engine.first_size + in_engine.sizes)
        busy = dict(zip(PARTS, parts, strict=True))
        return cls(total_s, busy, in_engine.names, in_engine.table, in_engine.constants, sizes, work_s)

    @property
    def in_engine(self) -> Any:
        """Return the engine's form of this bound."""
        work_s = np.full(len(self.total_s), np.nan) if self.work_s is None else self.work_s
        work = np.array([*(self.parts[name] for name in PARTS), self.total_s, work_s])
        sizes = self.log_sizes
        return query.Bound(self.names, self.constants, work, self.table, sizes.start, len(sizes))

    def at(self, numbers: Array) -> "Bound":
        """Return the bound of some problems. `numbers` contains their indices."""
        parts = {name: seconds.take(numbers) for name, seconds in self.parts.items()}
        work_s = None if self.work_s is None else self.work_s.take(numbers)
        table = self.table.take(numbers, axis=1)
        return Bound(self.total_s.take(numbers), parts, self.names, table, self.constants, self.log_sizes, work_s)


def bound_of(
    device: "Device", dims: tuple[str, ...], sizes: Array, total_s: Array, parts: Mapping[str, Array],
    shares: Mapping[str, Array], columns: Mapping[str, Array], work_s: Array | None = None,
) -> Bound:  # fmt: skip
    """Create a bound with its table of features. `total_s`, `parts` and `work_s` are fields of `Bound`.

    Args:
        sizes: Sizes of the problems, (D, N), in the order of `dims`.
        shares: Seconds, (N,) each. The ratio of each time to `total_s` becomes a feature.
        columns: Further features, (N,) each.
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
    rows = range(len(shares), of_total)
    return Bound(total_s, parts, (*logged, *columns), table, device.constants, rows, work_s)


class Features(Protocol):
    """Interface of the modules in `kernrec.model.baselines.features`."""

    DIMS: tuple[str, ...]
    CASES: Mapping[str, Callable[[Mapping[str, int]], bool]]

    def bound(self, device: "Device", sizes: Array, layout: str) -> Bound:
        """Return the lower bound and the features of N problems. `sizes` has the shape (D, N)."""


@cache
def features_of(op: str) -> Features:
    """Return the module with an op's features, imported on first use."""
    rows = op in ("elementwise", "layernorm", "softmax")
    module: Any = import_module(f"kernrec.model.baselines.features.{'rows' if rows else op}")
    return module.OPS[op] if rows else module  # type: ignore[no-any-return]


def kind_of(op: str, dtype: str, sizes: Mapping[str, int]) -> str:
    """Return a problem's data type, such as `bf16`, or `bf16, kv f8e4m3` if keys and values have another data type."""
    kind = getattr(features_of(op), "kind", None)
    return dtype if kind is None else str(kind(dtype, sizes))


def features(
    op: str, gpu: GPU, dtype: str, layout: str, dims: Mapping[str, Array], timing: Timing
) -> tuple[Bound, dict[str, Array]]:
    """Return (lower bound, features) of N problems. The features are arrays of shape (N,), keyed by name. `dims`
    contains the problems' sizes in the same form, keyed by dimension."""
    module = features_of(op)
    sizes = np.array([dims[name] for name in module.DIMS], dtype=float)
    bound = module.bound(device_of(gpu, dtype, timing), sizes, layout)
    constants = {name: np.full(len(bound.total_s), value) for name, value in bound.constants.items()}
    return bound, dict(zip(bound.names, bound.table, strict=True)) | constants


@lru_cache(maxsize=64)
def device_of(gpu: GPU, dtype: str, timing: Timing) -> "Device":
    """Return the rates of a GPU for a data type."""
    tensor = gpu.peak_flops(math_dtype(dtype), tensor=True) > 0
    peak = rate_of(gpu, dtype)
    if timing.sustained and tensor:
        peak = sustained_flops(gpu, dtype) * (REACHED / TENSOR_SHARE)
    return Device(gpu, dtype, precision_of(dtype), peak, tensor, timing)


def used(bound: Bound, latency_s: Array) -> dict[str, Array]:
    """Return log2(busy time / latency) of each resource. Trees use these features to predict power, but not time."""
    return {
        f"share.used.{name}": np.log2(np.maximum(seconds / latency_s, query.LEAST_SHARE))
        for name, seconds in bound.parts.items()
    }


@dataclass(frozen=True)
class Device:
    """Rates of a GPU for problems of one data type."""

    gpu: GPU
    dtype: str
    precision: Precision
    peak_flops: float
    tensor: bool
    """Whether the GPU's tensor cores support the data type."""
    timing: Timing

    @property
    def element_bytes(self) -> float:
        return self.precision.b_bytes

    @property
    def flops(self) -> float:
        """Return the FLOP/s that a library reaches on tensor cores."""
        return self.peak_flops * TENSOR_SHARE

    @cached_property
    def products(self) -> dict[str, Any]:
        """Return a cache for `features.matmul`, which stores an object of the engine for each layout."""
        return {}

    @cached_property
    def constants(self) -> dict[str, float]:
        """Return the features that are equal for all problems."""
        tensor = self.gpu.peak_flops(self.dtype, tensor=True) > 0
        block = self.dtype == "f8block"
        return {"dtype.bytes": self.precision.b_bytes, "dtype.block": float(block), "dtype.tensor": float(tensor)}

    @cached_property
    def l2(self) -> float:
        """Return the bandwidth of L2 in bytes/s."""
        return l2_bytes_per_clk(self.gpu) * self.gpu.boost_clock_hz

    def seconds(self, clocks: float) -> float:
        """Convert clocks to seconds at the boost clock."""
        return clocks / self.gpu.boost_clock_hz

    @cached_property
    def launch_s(self) -> float:
        return self.seconds(self.timing.launch_clk)

    @cached_property
    def dram(self) -> float:
        """Return the DRAM bandwidth that a library reaches, in bytes/s."""
        return self.gpu.memory_bandwidth * min(DRAM_SHARE, microarchitecture(self.gpu).dram_efficiency)

    def parts(self, flops: Array, moved: Array) -> dict[str, Array]:
        """Return the seconds that each resource in `PARTS` is busy at the data sheet's rates, (N,) each. `flops` and
        `moved` are the operations and bytes of N problems."""
        launch_s = np.full(len(moved), self.launch_s)
        dram_s, l2_s = moved / self.gpu.memory_bandwidth, moved / self.l2
        return {"math": flops / self.peak_flops, "dram": dram_s, "l2": l2_s, "launch": launch_s}


@dataclass(frozen=True)
class BaselinePrediction:
    """Predicted latency and power of a backend at the GPU's default power limit with an unlocked clock."""

    backend: str
    version: str | None
    """Version that was recorded on this GPU, or else the range of versions on other GPUs. None if unknown."""
    latency_s: Estimate
    power_w: Estimate | None
    """Power in watts, or None if `operating_point.at_point` must still compute it."""
    gpus: tuple[str, ...]
    """GPUs on whose recordings the trees for latency were trained."""
    recorded_as: str | None
    """Data type and layout of the recordings, or None if the problem has this data type and layout."""
    busy: Mapping[str, float]
    """Seconds that `math`, `dram`, `l2` and `launch` are busy at the data sheet's rates. The times may overlap."""


@dataclass(frozen=True)
class PowerBase:
    """Parts of a GPU's power in watts."""

    running_w: float
    """Power without arithmetic and memory traffic."""
    math_w: float
    """Additional power of tensor cores at the data sheet's rate."""
    dram_w: float
    """Additional power at the data sheet's DRAM bandwidth, including L2 and L1."""

    def watts(self, bound: Bound, latency_s: Array, most_w: float) -> Array:
        """Return the power of N problems in watts, at most `most_w`."""
        events_j = self.math_w * bound.parts["math"] + self.dram_w * bound.parts["dram"]
        return np.asarray(np.minimum(self.running_w + events_j / latency_s, most_w))


@lru_cache(maxsize=64)
def power_base(gpu: GPU) -> PowerBase:
    """Return the parts of a GPU's power according to the analytical power model."""
    power = PowerModel.for_gpu(gpu)
    peak, joules = arithmetic(gpu, power, "bf16" if gpu.peak_flops("bf16", tensor=True) else "f16")
    beside = BESIDE_ARITHMETIC[gpu.peak_flops("f16", tensor=True) > 0]
    byte_j = power.event_j("dram.bytes") + power.event_j("l2.sectors") / 32 + power.event_j("l1.requests") / 128
    dram_w = gpu.memory_bandwidth * byte_j
    return PowerBase(float(power.power_at(power.running_hz, {})), beside * peak * joules, dram_w)
