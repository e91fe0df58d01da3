"""Demand of a launch: the clock cycles and joules that a GPU needs per block and per iteration of each loop.

Clock cycles and joules are linear in the events (such as instructions) of a static profile. So both are computed once
per kernel and GPU. A prediction multiplies them by the launch's numbers of blocks and iterations.
"""

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kernrec.gpu import GPU
from kernrec.model.analytical.microarchitecture import microarchitecture
from kernrec.model.analytical.power import PowerModel
from kernrec.util.light_dataclass import dataclass

Array = NDArray[np.int64]
Floats = NDArray[np.float64]

PIPES = ("issue", "fma", "int", "special", "f64", "tensor", "LSU", "shared memory", "L1")
"""Pipes of an SM, in the order of the first rows of `Demand.rates`."""

# All compute capabilities in the catalog have these numbers of lanes per SM (CUDA C++ Programming Guide, "Throughput of
# Native Arithmetic Instructions").
_SPECIAL_LANES = 16  # Special functions, F2I, I2F, F2F and FRND (Nsight Compute's documentation: pipeline XU)
_CONVERT_LONG_LANES = 16  # Conversions from and to 64-bit types.
_PACKED_SINCE = {"i2f": 86, "cvt": 80}
"""Lowest compute capability (times ten) at which the integer pipe executes conversions from integer to f32 (`i2f`) and
from f32 to half precision (`cvt`). Nsight Compute documents the pipe only for `cvt` (instruction F2FP)."""
_MERGES_SINCE = 80
"""Lowest compute capability (times ten) at which several lanes increment the same word of shared memory with a single
instruction (ATOMS.POPC.INC). The instruction is assumed to take one wavefront."""
_FEW_F64_SHARE = 0.8
"""Fraction of the published rate that the f64 pipe reaches on SMs with two f64 lanes. On a Quadro RTX 8000, three of
four recorded kernels peak at 0.78 to 0.80 (`FP64A` in rtx8000_*_dvfs.parquet)."""
ISSUE_PER_CLK = 4 * 0.95
"""Warp instructions per clock that the four schedulers of an SM sustain together. On an RTX 2080 Ti, the kernel
`pnpoly` issues an instruction in up to 96 % of all clocks (`smsp__issue_active` of 3,815 recorded configs)."""
FLOATS_PER_CLK = 4 * 0.67
"""Warp instructions of f32 arithmetic per clock that an SM sustains. Conflicts between register banks limit the rate
(Jia et al., arXiv 1804.06826, section 3.1). The factor 0.67 was fitted to conv2d_f32_ansor.csv (RTX 3090)."""
WARP_CPI = 2.5
"""Clocks per instruction of a warp that is alone on its scheduler, used if the profile lacks the metric `chain`. An f32
addition takes 4 clocks if it depends on the previous instruction, and otherwise 1 or 2 (Abdelkhalik et al., arXiv
2208.11174). Values from 2.5 to 4 agree best with recordings, except for causal attention with few warps."""
_L1_SECTORS_PER_CLK = 2  # L1 receives 64 B per clock and SM from L2 (NVIDIA's architecture whitepapers since Volta).
_WAVEFRONT_BYTES = 128
_L1_BYTES_PER_CLK = 64
"""Bytes per clock that L1 returns to the lanes of an SM, even if several lanes read the same address. In recorded
matmuls without shared memory, a warp's load takes 2 clocks for 4 bytes per lane, and 8 clocks for 16 bytes per lane."""

_TENSOR_MEMORY_BYTES_PER_CLK = 512
"""Bytes per SM and clock that move between tensor memory and registers. No data sheet states the rate, so 4 bytes for
each of 128 lanes are assumed."""
_MOVES = ("tensor_memory.load_bytes", "tensor_memory.store_bytes")

_MEMORY = (
    "ld_shared", "st_shared", "ld_global", "st_global", "ld_local", "st_local", "cp_async", "atomic",
)  # fmt: skip
"""Instruction classes whose addresses pass through the load/store units."""

Count = Any

_SHARED_WAVEFRONTS = "shared.wavefronts"
_SHARED_BYTES = ("wgmma.shared_bytes", "tcgen05.shared_bytes", "bulk.shared_write_bytes")
"""Metrics of the bytes that tensor cores and bulk copies move through shared memory."""

_EVENTS: Mapping[str, tuple[str, ...]] = {
    _SHARED_WAVEFRONTS: ("load_wavefronts", "store_wavefronts", "atomic_wavefronts"),
    "l1.requests": ("_requests",),
    "l2.sectors": ("_sectors",),
}
"""Memory events of the power model. An event's count is the sum of the metrics that end with the event's suffixes."""
_LOCAL_IN_L1 = ("local.read_sectors", "local.write_sectors")
"""Metrics of local memory that the event `l2.sectors` does not count. The event counts `local.l2_sectors` instead."""


QUANTITIES = (*PIPES, "port", "sectors", "barriers", "core_j", "between", "between_groups", "alone", "in_turn")
"""Names of the rows of `Demand.rates`. The first rows are the busy clock cycles of each pipe.

- `port`: Busy clock cycles of the port that shared memory and L1 have in common (NVIDIA's whitepapers since Volta).
- `sectors`: Number of 32-byte sectors that are requested from L2.
- `barriers`: Number of barriers at which all warps of the block wait.
- `core_j`: Dynamic energy of the core in joules at nominal voltage.
- `between`: Clocks of the float arithmetic that warps do between their tensor instructions, such as the softmax of
  attention. The tensor core idles during this arithmetic unless another warp uses the tensor core (FlashAttention-3,
  arXiv 2407.08608, section 3.1).
- `between_groups`: Clocks of the float arithmetic that warpgroups do between their tensor instructions.
- `alone`: Sum of the clocks that each warp of a block needs by itself, without waits for memory and barriers.
- `in_turn`: Clocks of the pipes if parts of the code do not overlap. The value is 0 if the profile does not count each
  part separately (metrics `stretch.*` of `kernrec.profile.sample_profile`).
"""

PORT, SECTORS, BARRIERS, CORE_J, BETWEEN_GROUPS, ALONE, IN_TURN = map(
    QUANTITIES.index, ("port", "sectors", "barriers", "core_j", "between_groups", "alone", "in_turn")
)


@dataclass(frozen=True)
class Demand:
    """Clock cycles and joules that C code variants of a kernel need on one GPU. A code variant is the compiled code of
    one or more configs."""

    rates: tuple[Floats, ...]
    """Arrays of shape (quantities, C): one array for a block, then one array for an iteration of each loop."""

    @cached_property
    def by_variant(self) -> Floats:
        """Return `rates` as one array of shape (C, 1 + loops, quantities)."""
        return np.ascontiguousarray(np.transpose(self.rates, (2, 0, 1)))

    @cached_property
    def first_alike(self) -> Array:
        """Return, for each code variant, the index of the first code variant with equal rates."""
        first: dict[bytes, int] = {}
        return np.array([first.setdefault(rates.tobytes(), number) for number, rates in enumerate(self.by_variant)])


def demand(
    gpu: GPU,
    power: PowerModel,
    metrics: Sequence[str],
    coefficients: Floats,
    bf16: bool = False,
) -> Demand:
    """Compute the clock cycles and joules that a kernel's code variants need on a GPU, from their static profiles.

    Only profiles from emulated blocks (`kernrec.profile.sample_profile`) contain these metrics:

    - `global.<buffer>.read_passes`, `write_passes` and `atomic_passes`: clocks of L1 for the requests of each kind.
    - `global.<buffer>.atomic_turns`: clocks for which atomic operations occupy an L2 slice (0.54 ns per addition to one
      address on seven GPUs: `histogram_one_bin` in textbook_rtx3060_rtx3070ti.csv).
    - `local.l2_sectors`: sectors of local memory that bypass L1.
    - `chain`: clocks of a block's slowest warp, multiplied by the number of warps.

    Args:
        metrics: Names of the profiles' metrics, as `kernrec.ptx.execution` counts them.
        coefficients: Events of C variants, array of shape (C, metrics, 1 + loops): events per block, then events per
            trip of each loop.
        bf16: Whether half-precision arithmetic has the rate of bf16. Profiles do not distinguish bf16 and f16.
    """
    columns = {metric: coefficients[:, i, :].T for i, metric in enumerate(metrics)}
    counts = _Counts(columns, np.zeros((coefficients.shape[2], len(coefficients))))
    figures, lanes = microarchitecture(gpu), gpu.fma_per_clk_sm
    if bf16:
        lanes = {**lanes, "f16": min(lanes["f16"], lanes.get("bf16", lanes["f16"]))}
    fma = _float_clk(lanes, counts)
    functions = counts.classes("mufu") * (32 / _SPECIAL_LANES)
    integer, special, doubles = _pipes_with_conversions(gpu, counts, functions)
    tensor, by_groups = _tensor_clk(gpu, counts)
    between = np.where(tensor > 0, fma + functions, 0.0)
    sectors = counts.ending("_sectors") + counts.total("local.l2_sectors")
    shared, port, l1 = _shared_and_l1(gpu, counts, sectors)
    moves = counts.total(*_MOVES) / _TENSOR_MEMORY_BYTES_PER_CLK
    # Atomic operations occupy an L2 slice, so convert their clocks to the number of sectors that they displace.
    turns = counts.ending("atomic_turns") * (figures.l2_bytes_per_clk_slice / 32.0)
    rows = {
        "issue": _issue(counts),
        "fma": _f32_pipe_clk(lanes, counts, fma),
        "int": integer * (32 / lanes["i32_add"]),
        "special": special,
        "f64": doubles,
        "tensor": tensor,
        "LSU": counts.classes(*_MEMORY) * (32 / figures.lsu_lanes) + moves,
        "shared memory": shared,
        "L1": l1,
        "port": port,
        "sectors": sectors + np.maximum(turns - counts.ending("atomic_sectors"), 0.0),
        "barriers": counts.total("barriers"),
        "core_j": power.dynamic(events(counts.column))[0] + counts.zeros,
        "between": between * (1.0 - by_groups),
        "between_groups": between * by_groups,
        "alone": counts.total("chain") if "chain" in metrics else (counts.total("issue") - counts.removed) * WARP_CPI,
    }
    rows["in_turn"] = _in_turn_clk(gpu, counts, rows)
    rates = np.stack([rows[name] for name in QUANTITIES], axis=1)
    return Demand(tuple(map(np.ascontiguousarray, rates)))


class _Counts:
    """Events of C variants, keyed by metric: arrays of shape (1 + loops, C). Missing metrics count as 0."""

    def __init__(self, column: Mapping[str, Floats], zeros: Floats) -> None:
        self.column = column
        self.zeros = zeros
        # The assembler removes `mov` and `ld_const` instructions, so they take no time.
        self.removed = self.classes("mov", "ld_const")

    @property
    def stretches(self) -> list["_Counts"]:
        """Return separate counts of warp instructions for each consecutive part of the code."""
        by_number: dict[str, dict[str, Floats]] = {}
        for metric, column in self.column.items():
            if metric.startswith("stretch."):
                _, number, name = metric.split(".")
                by_number.setdefault(number, {})[f"issue.{name}"] = column
        return [
            _Counts({**columns, "issue": sum(columns.values(), self.zeros)}, self.zeros)
            for columns in by_number.values()
        ]

    def total(self, *names: str) -> Floats:
        return sum((self.column[name] for name in names if name in self.column), self.zeros)

    def classes(self, *names: str) -> Floats:
        return self.total(*(f"issue.{name}" for name in names))

    def ending(self, *endings: str) -> Floats:
        return self.total(*(m for m in self.column if m.startswith("global.") and m.endswith(endings)))


def _in_turn_clk(gpu: GPU, counts: _Counts, rows: Mapping[str, Floats]) -> Floats:
    if not (stretches := counts.stretches):
        return counts.zeros
    shared = {kind: counts.total(f"shared.{kind}_wavefronts") for kind in _SHARED_KINDS}
    wavefront_clk = rows["shared memory"] / np.maximum(sum(shared.values()), _LEAST)
    clocks = {**rows, **{kind: wavefronts * wavefront_clk for kind, wavefronts in shared.items()}}
    clocks["L1"] = rows["port"] - rows["shared memory"]
    uses = [_use(gpu, stretch) for stretch in stretches]
    total = {pipe: np.maximum(sum(use[pipe] for use in uses), _LEAST) for pipe in uses[0]}
    clk = counts.zeros
    for use in uses:
        # Divide each pipe's clocks among the parts of the code in proportion to the parts' instructions.
        own = {pipe: clocks[pipe] * (used / total[pipe]) for pipe, used in use.items()}
        port = sum((own.pop(part) for part in ("L1", *_SHARED_KINDS)), counts.zeros)
        clk = clk + smooth_max(np.stack([*own.values(), port]))
    # In kernels with tensor cores or asynchronous copies, consecutive parts of the code overlap. No recording shows by
    # how much, so assume that the parts take no extra time.
    ahead = (rows["tensor"] + counts.classes("cp_async") + counts.total("bulk.shared_write_bytes")).any(axis=0)
    return np.where(ahead, 0.0, clk)


_SHARED_KINDS = {"load": "ld_shared", "store": "st_shared", "atomic": "atomic"}
_LEAST = 1e-30


def _use(gpu: GPU, stretch: _Counts) -> dict[str, Floats]:
    lanes = gpu.fma_per_clk_sm
    integer, special, doubles = _pipes_with_conversions(gpu, stretch, stretch.classes("mufu") * (32 / _SPECIAL_LANES))
    return {
        "issue": _issue(stretch),
        "fma": _f32_pipe_clk(lanes, stretch, _float_clk(lanes, stretch)),
        "int": integer,
        "special": special,
        "f64": doubles,
        "tensor": stretch.classes("mma"),
        "LSU": stretch.classes(*_MEMORY),
        "L1": stretch.classes("ld_global", "st_global", "ld_local", "st_local", "cp_async"),
    } | {kind: stretch.classes(name) for kind, name in _SHARED_KINDS.items()}


def smooth_max(clk: Floats) -> Floats:
    """Return a smooth maximum over the first axis."""
    peak = np.maximum(clk.max(axis=0), _LEAST)
    share = clk / peak
    for _ in range(3):
        share *= share
    total: Floats = peak * np.sqrt(np.sqrt(np.sqrt(share.sum(axis=0))))
    return total


def _issue(counts: _Counts) -> Floats:
    floats = counts.classes("fma32")
    return (counts.total("issue") - counts.removed - floats) / ISSUE_PER_CLK + floats / FLOATS_PER_CLK


def _float_clk(lanes: Mapping[str, float], counts: _Counts) -> Floats:
    # A half-precision instruction computes on two numbers per lane.
    return counts.classes("fma32") * (32 / lanes["f32"]) + counts.classes("f16") * (64 / lanes["f16"])


def _f32_pipe_clk(lanes: Mapping[str, float], counts: _Counts, fma: Floats) -> Floats:
    # Integer multiplications use half of the f32 pipe's lanes (Nsight Compute's documentation of the pipeline
    # FMAHeavy).
    products = counts.classes("imad")
    return np.maximum(fma + products * (32 / lanes["f32"]), products * (32 / lanes["i32"]))


def _pipes_with_conversions(gpu: GPU, counts: _Counts, functions: Floats) -> tuple[Floats, Floats, Floats]:
    """Add type conversions to the clocks of special functions (`functions`) and to other instructions. Return (integer
    instructions, clocks of the special-function pipe, clocks of the f64 pipe)."""
    packed = [name for name, since in _PACKED_SINCE.items() if gpu.sm >= since]
    integer = counts.classes("alu", "wide64", "setp", "fcmp") + counts.classes(*packed)
    converted = counts.classes("f2i", *(name for name in _PACKED_SINCE if name not in packed))
    special = functions + converted * (32 / _SPECIAL_LANES)
    # f64 arithmetic has its own pipe (Nsight Compute's documentation of the pipeline FP64).
    lanes = gpu.fma_per_clk_sm["f64"]
    if lanes < _CONVERT_LONG_LANES:  # The few f64 lanes also limit conversions from and to 64-bit types.
        return integer, special, counts.classes("f64", "cvt64") * (32 / (lanes * _FEW_F64_SHARE))
    special = special + counts.classes("cvt64") * (32 / _CONVERT_LONG_LANES)
    return integer, special, counts.classes("f64") * (32 / lanes)


def _tensor_clk(gpu: GPU, counts: _Counts) -> tuple[Floats, Floats]:
    """Return (clock cycles of the tensor cores, fraction of the operations in warpgroup instructions)."""
    clk, share = counts.zeros, microarchitecture(gpu).mma_sync_share
    for dtype, per_clk in gpu.tensor_fma_per_clk_sm.items():
        # Data sheets may state the tensor peak at a lower clock than the boost clock.
        sustained = per_clk * gpu.tensor_clock_hz / gpu.boost_clock_hz
        grouped = counts.total(f"wgmma.{dtype}", f"tcgen05.{dtype}")
        # The metric `mma` also counts the operations of `wgmma` and `tcgen05`, which reach the peak. On some GPUs,
        # `mma.sync` reaches only a fraction (`share`) of the peak.
        by_warps = (counts.total(f"mma.{dtype}") - grouped) / share
        clk = clk + (by_warps + grouped) / (2.0 * sustained)  # A multiply-add is two operations.
    multiplied = counts.total(*(f"mma.{dtype}" for dtype in gpu.tensor_fma_per_clk_sm))
    by_groups = counts.total(*(f"wgmma.{dtype}" for dtype in gpu.tensor_fma_per_clk_sm))
    return clk, by_groups / np.maximum(multiplied, 1e-30)


def _shared_and_l1(gpu: GPU, counts: _Counts, sectors: Floats) -> tuple[Floats, Floats, Floats]:
    """Return the busy clock cycles of shared memory, of the port that it shares with L1, and of L1."""
    figures = microarchitecture(gpu)
    loads, copies = counts.classes("ld_global"), counts.classes("cp_async")
    copied = counts.ending("read_bytes") * (copies / np.maximum(loads + copies, 1e-30))
    # L1 looks up one line at a time, and returns 64 bytes per clock.
    returned = np.maximum(
        counts.ending("_passes") / figures.l1_lines_per_clk, (counts.ending("read_bytes") - copied) / _L1_BYTES_PER_CLK
    )
    wavefronts = counts.total(*(f"shared.{what}_wavefronts" for what in ("load", "store", "atomic")))
    if gpu.sm < _MERGES_SINCE:
        wavefronts = wavefronts + counts.total("shared.atomic_repeats")
    # The count of store wavefronts includes asynchronous copies by threads. Tensor cores read their operands through
    # the same port, which moves 128 bytes per clock. On a B200, the port limits matmuls of fewer than 128 columns if
    # both operands are in shared memory ("Dissecting Nvidia Blackwell", SemiAnalysis, March 2026).
    multiplicands = counts.total("wgmma.shared_bytes", "tcgen05.shared_bytes")
    shared = (wavefronts + multiplicands / _WAVEFRONT_BYTES) / figures.shared_wavefronts_per_clk
    l1 = np.maximum(sectors / _L1_SECTORS_PER_CLK + counts.total("l1.wavefronts"), returned)
    return shared, np.maximum(shared + returned, l1), l1


def events(counts: Mapping[str, Count]) -> dict[str, Count]:
    """Convert a profile's counts, keyed by metric, to counts of the power model's events, keyed by event."""
    totals: dict[str, Count] = {m: count for m, count in counts.items() if m.startswith(("issue.", "mma."))}
    for event, endings in _EVENTS.items():
        parts = [c for metric, c in counts.items() if metric.endswith(endings) and metric not in _LOCAL_IN_L1]
        if parts:
            totals[event] = sum(parts[1:], parts[0])
    # Count one wavefront for each 128 bytes of operands of tensor cores, as when their energies were fitted.
    if moved := [counts[metric] for metric in _SHARED_BYTES if metric in counts]:
        totals[_SHARED_WAVEFRONTS] = totals.get(_SHARED_WAVEFRONTS, 0.0) + sum(moved[1:], moved[0]) / _WAVEFRONT_BYTES
    return totals
