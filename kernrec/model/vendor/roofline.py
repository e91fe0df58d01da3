"""A bound on the time of a vendor library, and the features of a problem from which its model learns the rest.

A library picks a tile, and how often to split the reduction, by its heuristic; here the best of a few is taken. Time is
that of the longest of: tiles in waves over the SMs, DRAM and L2. Launches, and the start and end of a tile, take
a number of clocks: short products take as many on all three recorded cards, while their times differ by a factor of
1.8. Arrays have N problems of one op, dtype and layout on one GPU.
"""

from collections.abc import Mapping

import numpy as np

from kernrec.gpu import GPU
from kernrec.model.prior.microarchitecture import l2_bytes_per_clk, microarchitecture
from kernrec.op.dtype import ELEMENT_BYTES
from kernrec.util.light_dataclass import dataclass

Array = np.ndarray


@dataclass(frozen=True)
class Timing:
    """How a recorder timed the library."""

    launch_clk: float
    """Clocks of an empty launch, as it was timed."""
    working_sets: float
    """How many copies of the weights the timed loop goes through; infinity where L2 was flushed before each launch."""


GRAPH = Timing(3400.0, 10.0)
"""CUDA graphs of several launches, each with weights of its own. Both figures were fitted to the recordings of an A100,
an L40S and an H200 together; fitted to any two of them, they change by less than 6 %."""
FLUSHED = Timing(9000.0, np.inf)
"""One launch between two events, L2 flushed before it: what 6.6 us, the shortest time of an A100, are in clocks."""
FLASH = Timing(15000.0, 1.0)
"""Attention in CUDA graphs: 7.2 us, the shortest time of an H200, and 13.6 us, that of an A100, in clocks."""

_TILE_CLK = 2200.0
"""Clocks to fill a tile's pipeline and to write its results; fitted as `GRAPH`."""
_TENSOR_SHARE, _DRAM_SHARE = 0.79, 0.87
"""Share of the data sheet's rates that libraries reach; fitted as `GRAPH`."""
_SMALL_TILE = 0.25
"""The rate of a tile is that of 128 x 128, times the ratio of their areas to this power."""
_TILES = np.array([
    (rows, columns, split)
    for rows, columns in ((256, 128), (128, 256), (128, 128), (64, 128), (128, 64), (64, 64), (32, 128), (32, 64),
                          (64, 32), (16, 128), (16, 64))
    for split in (1, 2, 4, 8, 16)
], dtype=float)  # fmt: skip
_LEAST_SPLIT = 256
"""A part of a split reduction has at least this many elements."""
_WAVES = ((256, 128), (128, 256), (128, 128), (64, 128), (128, 64), (64, 64))
_QUERY_TILE = 128

DIMS: Mapping[str, tuple[str, ...]] = {
    "matmul": ("m", "n", "k"),
    "attention": ("batch", "heads", "kv_heads", "queries", "keys", "head_dim"),
}
"""The dimensions that features are made of, by op; those in which a vendor library's model can be asked."""


def features(
    op: str, gpu: GPU, dtype: str, layout: str, dims: Mapping[str, Array], timing: Timing
) -> tuple[Array, dict[str, Array]]:
    """(seconds of the roofline (N,), features by name, (N,) each) of problems of one dtype and layout.

    `op` is `matmul` or `attention`; `dims` has the dimensions that `DIMS` names, arrays (N,).
    """
    sizes = {name: np.asarray(dims[name], dtype=float) for name in DIMS[op]}
    card = _Card(gpu, ELEMENT_BYTES[dtype], rate_of(gpu, dtype), timing)
    times, columns = (_matmul if op == "matmul" else _attention)(card, sizes)
    total = times.pop("total")
    columns |= {f"share.{name}": np.log2(part / total) for name, part in times.items()}
    columns |= {f"log.{name}": np.log2(size) for name, size in sizes.items()}
    columns["log.total"] = np.log2(total * 1e6)
    columns["dtype.bytes"] = np.full(len(total), float(ELEMENT_BYTES[dtype]))
    columns["dtype.tensor"] = np.full(len(total), float(gpu.peak_flops(dtype, tensor=True) > 0))
    for place, letter in enumerate(layout[:2] if op == "matmul" else ""):
        columns[f"layout.{'ab'[place]}"] = np.full(len(total), float(letter == "t"))
    return total, columns


def rate_of(gpu: GPU, dtype: str) -> float:
    """FLOP/s of a library in a data type, at the data sheet's rate; 0: the card has no arithmetic in it."""
    return gpu.peak_flops(dtype, tensor=True) or gpu.peak_flops(dtype)


@dataclass(frozen=True)
class _Card:
    """A GPU as one dtype sees it."""

    gpu: GPU
    element_bytes: int
    peak_flops: float
    timing: Timing

    @property
    def flops(self) -> float:
        """FLOP/s that a library reaches."""
        return self.peak_flops * _TENSOR_SHARE

    @property
    def l2(self) -> float:
        """Bytes/s of L2."""
        return l2_bytes_per_clk(self.gpu) * self.gpu.boost_clock_hz

    def seconds(self, clocks: float) -> float:
        """The time of a number of clocks."""
        return clocks / self.gpu.boost_clock_hz

    def memory_s(self, moved: Array, reused: Array) -> Array:
        """Time of DRAM and L2 for `moved` bytes, of which `reused` stay in L2 where all copies of them fit."""
        resident = np.clip(2.0 - self.timing.working_sets * reused / self.gpu.l2_bytes, 0.0, 1.0)
        share = min(_DRAM_SHARE, microarchitecture(self.gpu).dram_efficiency)
        return np.asarray(
            np.maximum((moved - resident * reused) / (self.gpu.memory_bandwidth * share), moved / self.l2)
        )

    def total(self, math_s: Array, memory_s: Array) -> Array:
        """The time of a launch: the two overlap."""
        return np.asarray(self.seconds(self.timing.launch_clk) + (math_s**4 + memory_s**4) ** 0.25)


def _matmul(card: _Card, sizes: Mapping[str, Array]) -> tuple[dict[str, Array], dict[str, Array]]:
    m, n, k = (sizes[name] for name in "mnk")
    gpu = card.gpu
    weights, moved = card.element_bytes * n * k, card.element_bytes * (m * k + n * k + m * n)
    math_s, memory_s = _tiles_s(card, m, n, k), card.memory_s(moved, weights)
    times = {
        "total": card.total(math_s, memory_s),
        "tiles": math_s,
        "memory": memory_s,
        "flops": 2 * m * n * k / card.peak_flops,
        "dram": moved / gpu.memory_bandwidth,
    }
    columns = {
        "l2.moved": np.log2(moved / gpu.l2_bytes),
        "l2.weights": np.log2(weights / gpu.l2_bytes),
        "l2.result": np.log2(card.element_bytes * m * n / gpu.l2_bytes),
        "waves": np.log2(np.ceil(m / 128) * np.ceil(n / 128) / gpu.sms),
        "log.mn": np.log2(m * n),
    }
    for rows, across in _WAVES:
        tiles = np.ceil(m / rows) * np.ceil(n / across)
        columns[f"waves.{rows}x{across}"] = np.log2(tiles / gpu.sms)
        columns[f"full.{rows}x{across}"] = tiles / (np.ceil(tiles / gpu.sms) * gpu.sms)
    for side in (128, 64):
        columns[f"filled.{side}"] = m * n / (np.ceil(m / side) * np.ceil(n / side) * side * side)
    for name, size, most in (("m", m, 256), ("n", n, 64), ("k", k, 64)):
        columns[f"aligned.{name}"] = np.log2(np.gcd(size.astype(np.int64), most))
    return times, columns | {"rest.m": m % 128, "rest.n": n % 128}


def _tiles_s(card: _Card, m: Array, n: Array, k: Array) -> Array:
    """Time of the tiles in waves over the SMs, with the best tile and split of the reduction."""
    rows, across, split = _TILES.T
    m, n, k = m[:, None], n[:, None], k[:, None]
    sms = card.gpu.sms
    depth = np.ceil(k / split / 32) * 32
    rate = card.flops / sms * np.minimum(1.0, (rows * across / 128**2) ** _SMALL_TILE)
    shared = 2.0 if card.gpu.sm >= 90 else 1.0  # clusters: a tile that is read once goes to two blocks
    read_s = (rows + across) * depth * card.element_bytes / (card.l2 / sms * shared)
    tile_s = np.maximum(2 * rows * across * depth / rate, read_s) + card.seconds(_TILE_CLK)
    joined_s = np.where(split == 1, 0.0, 8 * m * n * split / card.l2 + card.seconds(_TILE_CLK))
    total = np.ceil(np.ceil(m / rows) * np.ceil(n / across) * split / sms) * tile_s + joined_s
    return np.asarray(np.where((split == 1) | (k >= _LEAST_SPLIT * split), total, np.inf).min(axis=1))


def _attention(card: _Card, sizes: Mapping[str, Array]) -> tuple[dict[str, Array], dict[str, Array]]:
    """Causal, as recorded: of a prompt half of the keys are masked; one query sees all."""
    batch, heads, kv_heads, queries, keys, head_dim = (sizes[name] for name in DIMS["attention"])
    gpu = card.gpu
    pairs = queries * keys - queries * (queries - 1) / 2
    flops = 4 * batch * heads * pairs * head_dim
    cached = 2 * card.element_bytes * batch * kv_heads * keys * head_dim
    moved = cached + 2 * card.element_bytes * batch * heads * queries * head_dim
    group = heads / kv_heads
    # With one query the heads of a group are the rows of a tile, and keys are split over the SMs.
    blocks = np.where(queries > 1, batch * heads * np.ceil(queries / _QUERY_TILE), batch * kv_heads)
    rows = np.where(queries > 1, np.minimum(queries, _QUERY_TILE), group)
    block_s = flops / blocks * (np.maximum(rows, 64) / rows) / (card.flops / gpu.sms) + card.seconds(_TILE_CLK)
    waves = np.where(queries > 1, np.ceil(blocks / gpu.sms), np.maximum(blocks / gpu.sms, 1 / gpu.sms))
    math_s, memory_s = waves * block_s, card.memory_s(moved, cached)
    times = {
        "total": card.total(math_s, memory_s),
        "tiles": math_s,
        "memory": memory_s,
        "flops": flops / card.peak_flops,
        "dram": moved / gpu.memory_bandwidth,
    }
    columns = {
        "l2.moved": np.log2(moved / gpu.l2_bytes),
        "l2.cached": np.log2(cached / gpu.l2_bytes),
        "waves": np.log2(blocks / gpu.sms),
        "full": blocks / (np.ceil(blocks / gpu.sms) * gpu.sms),
        "group": np.log2(group),
        "log.heads in batch": np.log2(batch * heads),
        "log.cached heads": np.log2(batch * kv_heads),
        "per key": np.log2(batch * kv_heads * keys / gpu.sms),
        "rest.queries": queries % _QUERY_TILE,
    }
    return times, columns
