"""A bound on the time of a stack's kernel on a card, and what every op's features are made with.

Time is that of the longest of math, DRAM and L2, and of the launch, which takes a number of clocks: short products take
as many on all recorded cards, while their times differ by a factor of 1.8. Arrays have N problems of one op, data type
and layout on one GPU.

An op is a module of `kernrec.model.vendor.features` with

    DIMS    the dimensions that its features are made of, in order; keys of `Problem.sizes`
    CASES   which problems a recorded set may cover, by name: a function of the dimensions
    bound   (card, sizes by name (N,), layout) -> `Bound`; columns whose names begin with one of `RATIOS` mean the same
            on every card, and are all that trees for cards without recordings see

It may have `RECORDED`, its cases in words for who asks about another problem, and `PHYSICAL_POWER = True`: then the
trees of power correct `kernrec.model.vendor.power_base` instead of the limit.

The frame adds to its columns the shares of the parts in the total, logarithms of the sizes, and the data type. Of all
that are logarithms it takes them in one go: a call of NumPy costs as much as some hundred numbers.
"""

from collections.abc import Callable, Mapping
from dataclasses import field
from functools import cache, cached_property, lru_cache
from importlib import import_module
from typing import Any, Protocol

import numpy as np

from kernrec.gpu import GPU
from kernrec.model.prior.microarchitecture import l2_bytes_per_clk, microarchitecture
from kernrec.model.vendor.precision import Precision, precision_of, rate_of
from kernrec.op.dtype import math_dtype
from kernrec.util.light_dataclass import dataclass

Array = np.ndarray

OPS = ("matmul", "attention", "moe", "conv2d", "softmax", "layernorm", "elementwise")
"""Ops with a module of features."""
RATIOS = ("share.", "waves", "l2.", "full", "filled", "aligned", "time.", "dtype.", "shape.", "arch.")
"""Beginnings of the names of features that mean the same on every card."""
PARTS = ("math", "dram", "l2", "launch")
"""Keys of `Bound.parts`: the resources that a kernel keeps busy."""


@dataclass(frozen=True)
class Timing:
    """How a recorder timed a stack."""

    launch_clk: float
    """Clocks of an empty launch, as it was timed."""
    working_sets: float
    """How many copies of the weights the timed loop goes through; infinity where L2 was flushed before each launch."""
    alone: bool = False
    """Whether single calls were timed, each with the host's share of it (`kernrec.model.vendor.single_calls`)."""


GRAPH = Timing(3400.0, 10.0)
"""CUDA graphs of several launches, each with weights of its own. Both figures were fitted to the recordings of an A100,
an L40S and an H200 together; fitted to any two of them, they change by less than 6 %."""
FLUSHED = Timing(9000.0, np.inf)
"""One launch between two events, L2 flushed before it: 6.6 us, the shortest time of an A100, are in clocks."""
FLASH = Timing(15000.0, 1.0)
"""Attention in CUDA graphs: 7.2 us, the shortest time of an H200, and 13.6 us, that of an A100, in clocks."""

LEAST_SIZE = 0.5
"""Stands for a dimension of 0, such as the window of attention without one, where its logarithm is taken."""
LEAST_SHARE = 2.0**-40
"""Stands for a share of 0."""
TENSOR_SHARE, DRAM_SHARE = 0.79, 0.87
"""Share of the data sheet's rates that libraries reach; fitted as `GRAPH`."""
TILE_CLK = 2200.0
"""Clocks to fill a tile's pipeline and to write its results; fitted as `GRAPH`."""


@dataclass(frozen=True)
class Bound:
    """The bound of N problems; arrays (N,)."""

    total_s: Array
    """Seconds of a call."""
    parts: Mapping[str, Array]
    """Seconds that each of `PARTS` is busy, at the rates of the data sheet."""
    shares: Mapping[str, Array]
    """More times in seconds, whose shares of the total are features."""
    columns: Mapping[str, Array]
    """Further features, by name."""
    work_s: Array | None = None
    """Seconds of the card's work alone; of ops whose calls were timed one at a time."""
    logs: Mapping[str, Array] = field(default_factory=dict)
    """Figures whose logarithms are further features, by name."""
    constants: Mapping[str, float] = field(default_factory=dict)
    """Further features that all problems have in common, by name."""


class Features(Protocol):
    """A module of features."""

    DIMS: tuple[str, ...]
    CASES: Mapping[str, Callable[[Mapping[str, int]], bool]]

    def bound(self, card: "Card", sizes: Mapping[str, Array], layout: str) -> Bound:
        """The bound of N problems."""


@cache
def features_of(op: str) -> Features:
    """The module of an op's features, which is imported when it is first asked."""
    module: Any = import_module(f"kernrec.model.vendor.features.{op}")
    return module  # type: ignore[no-any-return]


def kind_of(op: str, dtype: str, sizes: Mapping[str, int]) -> str:
    """The word by which recordings of stacks are told apart: the dtype, of some ops with that of another tensor."""
    kind = getattr(features_of(op), "kind", None)
    return dtype if kind is None else str(kind(dtype, sizes))


def features(
    op: str, gpu: GPU, dtype: str, layout: str, dims: Mapping[str, Array], timing: Timing
) -> tuple[Bound, dict[str, Array]]:
    """(the bound, features by name, (N,) each) of problems of one op, dtype and layout, `dims` (N,) by name."""
    bound, names, table, _ = feature_table(op, gpu, dtype, layout, dims, timing)
    return bound, dict(zip(names, table, strict=True))


def feature_table(
    op: str, gpu: GPU, dtype: str, layout: str, dims: Mapping[str, Array], timing: Timing
) -> tuple[Bound, tuple[str, ...], Array, Array]:
    """(the bound, the names of F features, their values (F, N), logarithms of the dimensions (N, D)) of problems as for
    `features`."""
    module = features_of(op)
    sizes = {name: np.asarray(dims[name], dtype=float) for name in module.DIMS}
    card = _card(gpu, dtype, timing)
    bound = module.bound(card, sizes, layout)
    shares, count = len(bound.shares), len(bound.total_s)
    logs = np.concatenate([*bound.shares.values(), *sizes.values(), bound.total_s, *bound.logs.values()])
    logs = logs.reshape(-1, count)
    of_shares, of_sizes = logs[:shares], logs[shares : shares + len(sizes)]
    of_shares /= bound.total_s
    np.maximum(of_shares, LEAST_SHARE, out=of_shares)
    np.maximum(of_sizes, LEAST_SIZE, out=of_sizes)
    logs[shares + len(sizes)] *= 1e6
    np.log2(logs, out=logs)
    constants = [
        *bound.constants.values(),
        card.precision.b_bytes,
        float(dtype == "f8block"),
        float(gpu.peak_flops(dtype, tensor=True) > 0),
    ]
    columns = np.concatenate([*bound.columns.values(), np.repeat(constants, count)]).reshape(-1, count)
    names = (*_log_names(op, *bound.shares), *bound.logs, *bound.columns, *bound.constants, *_TYPES)
    return bound, names, np.concatenate([logs, columns]), np.ascontiguousarray(of_sizes.T)


_TYPES = ("dtype.bytes", "dtype.block", "dtype.tensor")


@cache
def _log_names(op: str, *shares: str) -> tuple[str, ...]:
    return (*(f"share.{name}" for name in shares), *(f"log.{name}" for name in features_of(op).DIMS), "log.total")


@lru_cache(maxsize=64)
def _card(gpu: GPU, dtype: str, timing: Timing) -> "Card":
    tensor = gpu.peak_flops(math_dtype(dtype), tensor=True) > 0
    return Card(gpu, precision_of(dtype), rate_of(gpu, dtype), tensor, timing)


def has_physical_power(op: str) -> bool:
    """Whether trees of power correct the model of power rather than the power limit."""
    return bool(getattr(features_of(op), "PHYSICAL_POWER", False))


def used(bound: Bound, latency_s: Array) -> dict[str, Array]:
    """Features of power, (N,) each: the logarithm of the share of `latency_s` (N,) that each part is busy."""
    return {f"share.used.{name}": _log_share(seconds, latency_s) for name, seconds in bound.parts.items()}


def _log_share(part_s: Array, total_s: Array) -> Array:
    """The logarithm of a share, which may be 0."""
    return np.asarray(np.log2(np.maximum(part_s / total_s, LEAST_SHARE)))


@dataclass(frozen=True)
class Card:
    """A GPU as one dtype sees it."""

    gpu: GPU
    precision: Precision
    peak_flops: float
    tensor: bool
    """Whether tensor cores compute in it."""
    timing: Timing

    @property
    def element_bytes(self) -> float:
        """Bytes of an element of the weights."""
        return self.precision.b_bytes

    @property
    def flops(self) -> float:
        """FLOP/s that a library reaches."""
        return self.peak_flops * TENSOR_SHARE

    @cached_property
    def l2(self) -> float:
        """Bytes/s of L2."""
        return l2_bytes_per_clk(self.gpu) * self.gpu.boost_clock_hz

    def seconds(self, clocks: float) -> float:
        """The time of a number of clocks."""
        return clocks / self.gpu.boost_clock_hz

    def memory_s(self, moved: Array, reused: Array) -> Array:
        """Time of DRAM and L2 for `moved` bytes, of which `reused` stay in L2 where all copies of them fit."""
        resident = np.minimum(np.maximum(2.0 - self.timing.working_sets * reused / self.gpu.l2_bytes, 0.0), 1.0)
        return np.asarray(np.maximum((moved - resident * reused) / self._dram, moved / self.l2))

    @cached_property
    def _dram(self) -> float:
        """Bytes/s of DRAM that a library reaches."""
        return self.gpu.memory_bandwidth * min(DRAM_SHARE, microarchitecture(self.gpu).dram_efficiency)

    def total(self, math_s: Array, memory_s: Array) -> Array:
        """The time of a launch: the two overlap."""
        return np.asarray(self.seconds(self.timing.launch_clk) + (math_s**4 + memory_s**4) ** 0.25)

    def parts(self, flops: Array, moved: Array) -> dict[str, Array]:
        """`Bound.parts` of a kernel that computes `flops` and moves bytes once, at the rates of the data sheet."""
        launch_s = np.full(len(moved), self.seconds(self.timing.launch_clk))
        dram_s, l2_s = moved / self.gpu.memory_bandwidth, moved / self.l2
        return {"math": flops / self.peak_flops, "dram": dram_s, "l2": l2_s, "launch": launch_s}
