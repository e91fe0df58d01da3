"""Demand of a launch on a GPU's pipes, as a linear function of its blocks and loop trips.

A static profile counts events per block and per trip of each loop. A GPU turns events into clocks of its pipes and into
joules. Both maps are linear, so they are applied once per kernel and GPU, to the profile's coefficients. A query then
only multiplies by its numbers of blocks and trips.
"""

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kernrec.gpu import GPU
from kernrec.model.analytical.microarchitecture import Microarchitecture, microarchitecture
from kernrec.model.analytical.power import PowerModel
from kernrec.util.engine import query
from kernrec.util.light_dataclass import dataclass

Array = NDArray[np.int64]
Floats = NDArray[np.float64]

PIPES = ("issue", "fma", "int", "special", "f64", "tensor", "LSU", "shared memory", "L1")
"""Pipes of an SM whose clocks per block add up, in the order of the demand's first rows."""

# Lanes per SM and clock of pipes that are equal for all catalogued compute capabilities (CUDA C++ Programming Guide,
# "Throughput of Native Arithmetic Instructions").
_SPECIAL_LANES = 16  # Special functions, F2I, I2F, F2F and FRND (Nsight Compute's documentation: pipeline XU)
# For 64-bit types. If f64 arithmetic is slower, conversions run at its rate in the f64 pipe.
_CONVERT_LONG_LANES = 16
_PACKED_SINCE = {"i2f": 86, "cvt": 80}
"""Minimum compute capabilities at which ptxas converts integers to f32 by I2FP, and f32 to half precision by F2FP
(nvdisasm). Both use the pipe of integer additions: F2FP by Nsight Compute's documentation (pipeline ALU), I2FP by
assumption, because its name and rate are like F2FP's.
"""
_MERGES_SINCE = 80
"""Minimum compute capability at which lanes that add one to the same word of shared memory are not serialized. ptxas
then generates ATOMS.POPC.INC, but ATOMS.ADD for sm_75. One wavefront per instruction is an assumption.
"""
_FEW_F64_SHARE = 0.8
"""Fraction of the published rate that the two f64 lanes of an SM reach: a warp instruction takes 20 clocks, not the
published 16. On a Quadro RTX 8000, the pipe's activity peaks at 0.78 to 0.80 in three of four recorded kernels
(`FP64A` of mixbench-cuda-ro, hotspot and binomialOptions in rtx8000_*_dvfs.parquet; 0.95 in mixbench-cuda-alt). SMs
with more lanes are assumed to reach their published rate, because no recording shows otherwise.
"""
ISSUE_PER_CLK = 4 * 0.95
"""Warp instructions per clock that the four schedulers of an SM sustain together. Point in polygon issues in up to 0.96
of all clocks on an RTX 2080 Ti (recorded counters, `smsp__issue_active` of 3,815 configs).
"""
FLOATS_PER_CLK = 4 * 0.67
"""Warp instructions of f32 arithmetic per clock that an SM sustains. Fetching the three operands of a multiply-add (two
register banks, Jia et al., arXiv 1804.06826, section 3.1; constant memory) keeps unrolled arithmetic from issuing every
clock. The fraction was fitted to the anchor conv2d_f32_ansor.csv (RTX 3090), with pipes combined as in `launch_time`.
It also fits the recorded convolution on an A100.
"""
WARP_CPI = 2.5
"""Clocks per instruction of a warp that is alone on its scheduler, if the profile does not state this. An f32 addition
takes 4 clocks if it depends on the previous instruction, and else 2 on the A100 (Abdelkhalik et al., arXiv
2208.11174, on dependent and independent instructions); on other GPUs a scheduler issues one per clock. The value for
unrolled arithmetic, which lies in between, is an assumption: all anchors and both recorded convolutions fit values from
2.5 to 4 better than 1.6; causal attention with few warps does not.
"""
_L1_SECTORS_PER_CLK = 2  # L1 receives 64 B per clock and SM from L2 (NVIDIA's architecture whitepapers since Volta).
_WAVEFRONT_BYTES = 128
_L1_BYTES_PER_CLK = 64
"""Bytes per clock from L1 to the lanes of an SM, even if lanes read the same address. Recorded matmuls without staging
in shared memory determine the rate: 2 clocks for a load of 4 bytes per lane, 8 for 16 bytes, on an RTX 2080 Ti, an RTX
3090 and an A100 (gemm-* of the recorded spaces, 8 x 8 outputs per thread).
"""

_TENSOR_MEMORY_BYTES_PER_CLK = 512
"""Bytes per SM and clock between tensor memory and registers: a word per lane. This is an assumption, because no data
sheet states it. The tensor cores' own accesses are not the bottleneck (matmuls of 128 columns and more reach their
peak: "Dissecting Nvidia Blackwell", SemiAnalysis, March 2026).
"""
_MOVES = ("tensor_memory.load_bytes", "tensor_memory.store_bytes")

_MEMORY = (
    "ld_shared", "st_shared", "ld_global", "st_global", "ld_local", "st_local", "cp_async", "atomic",
)  # fmt: skip
"""Instruction classes whose addresses use the load/store units."""

Count = Any
"""Number, or array of numbers."""

_SHARED_WAVEFRONTS = "shared.wavefronts"
_SHARED_BYTES = ("wgmma.shared_bytes", "tcgen05.shared_bytes", "bulk.shared_write_bytes")
"""Metrics of shared memory reads by tensor cores and writes of bulk copies. The power model counts them as wavefronts
of 128 bytes, because its energy of a tensor operation was fitted with them (`gemm_rates` of the tests' helpers).
"""

_EVENTS: Mapping[str, tuple[str, ...]] = {
    _SHARED_WAVEFRONTS: ("load_wavefronts", "store_wavefronts", "atomic_wavefronts"),
    "l1.requests": ("_requests",),
    "l2.sectors": ("_sectors",),
}
"""Suffixes of the metrics that add up to each memory event of the power model."""


QUANTITIES = (*PIPES, "port", "sectors", "barriers", "core_j", "between", "between_groups", "alone", "in_turn")
"""Rows of `Demand.rates`, starting with the clocks of each pipe.

`issue` is the clocks of the issue slots of all four schedulers together, `sectors` the 32-byte sectors requested from
L2, `barriers` the barriers of the whole block, and `core_j` the core clock domain's joules at nominal voltage.

`port` is the clocks of shared memory and L1 together, which are one memory with one port (NVIDIA's architecture
whitepapers since Volta).

`alone` is the clocks that the warps of a block would take one after the other, without waits for memory and barriers:
the latency of a chain of instructions. Profiles of sampled blocks call it `chain`.

`between` is the clocks of float arithmetic between dependent tensor instructions of warps (`between_groups`: of
warpgroups), such as the softmax of attention. It uses the results of one tensor instruction and computes the operands
of the next. A warp executes these one after the other, and the tensor core idles unless another warp of the same
scheduler uses it. If the W warps of a scheduler are out of phase, no time is lost. If they run in lockstep, as barriers
and fair scheduling encourage, all of it is lost. The model assumes a loss in between: the time of one warp.
(FlashAttention-3, arXiv 2407.08608, section 3.1, avoids the loss by making warps take turns.) Conversions do not count:
they prepare operands, which the compiler schedules ahead.

`in_turn` is the clocks of the pipes if the stretches of the code run one after another
(`kernrec.ptx.analysis.barrier_phases`); 0 if the profile has no stretches.
"""

ISSUE, PORT, SECTORS, BARRIERS, CORE_J, BETWEEN, BETWEEN_GROUPS, ALONE, IN_TURN = map(
    QUANTITIES.index,
    ("issue", "port", "sectors", "barriers", "core_j", "between", "between_groups", "alone", "in_turn"),
)
"""Row indices of the quantities after the pipes."""


@dataclass(frozen=True)
class Demand:
    """Demand of one launch of C variants on one GPU."""

    terms: tuple[str, ...]
    """Names of the terms: `block`, then each loop."""
    rates: tuple[Floats, ...]
    """Array (`QUANTITIES`, C) for each term: quantities per block (first term) or per trip of a loop."""

    @cached_property
    def grouped(self) -> bool:
        """Return whether any variant has arithmetic between matmuls of warpgroups."""
        return any(bool(rates[BETWEEN_GROUPS].any()) for rates in self.rates)

    @cached_property
    def stretched(self) -> bool:
        """Return whether any variant's profile has stretches."""
        return any(bool(rates[IN_TURN].any()) for rates in self.rates)

    @cached_property
    def by_variant(self) -> Floats:
        """Return `rates` as one array, (C, terms, quantities), without a last quantity that is always zero."""
        quantities = len(QUANTITIES) - (not self.stretched)
        by_variant = np.empty((self.rates[0].shape[1], len(self.rates), quantities))
        for term, rates in enumerate(self.rates):
            by_variant[:, term] = rates[:quantities].T
        return by_variant

    @cached_property
    def first_alike(self) -> Array:
        """Return the first variant with the same rates as each variant, (C,): many configs share code."""
        first: dict[bytes, int] = {}
        return np.array([first.setdefault(rates.tobytes(), number) for number, rates in enumerate(self.by_variant)])

    @cached_property
    def in_engine(self) -> Any:
        """Return the demand in the engine's form."""
        return query.Demand(self.by_variant, self.grouped, self.stretched)


def demand(gpu: GPU, power: PowerModel, metrics: Sequence[str], terms: tuple[str, ...], coefficients: Floats) -> Demand:
    """Return the demand of static profiles on a GPU.

    A profile with L1 hits excludes them from its sectors, and has the clocks that L1 needs for requests (the most words
    in one of its 32 banks) as `l1.wavefronts`. A profile of sampled blocks has more metrics: the clocks of its requests
    in L1 (`global.<buffer>.read_passes` and so on), the turns of atomic operations in the sectors of L2 (`..._turns`),
    local memory that bypasses L1 (`local.l2_sectors`), and `chain`, the clocks of its slowest warps. A turn occupies a
    slice for one clock (histograms on seven GPUs took 0.54 ns per addition to one address, see `histogram_one_bin` of
    the anchor textbook_rtx3060_rtx3070ti.csv). Without these metrics, only the bytes between L2 and L1 count, atomic
    operations are ordinary sectors, and a warp takes `WARP_CPI` clocks per instruction.

    Args:
        metrics: Names of the profiles' metrics, as `kernrec.ptx.execution` counts them.
        terms: Names of the profiles' terms.
        coefficients: Events per block and per trip, (C, metrics, terms).
    """
    columns = {metric: coefficients[:, i, :].T for i, metric in enumerate(metrics)}
    counts = _Counts(columns, np.zeros((coefficients.shape[2], len(coefficients))))
    figures, lanes = microarchitecture(gpu), gpu.fma_per_clk_sm
    fma = counts.classes("fma32", "f16") * (32 / lanes["f32"])
    functions = counts.classes("mufu") * (32 / _SPECIAL_LANES)
    integer, special, doubles = _conversions(gpu, counts, functions)
    tensor, by_groups = _tensor(gpu, counts)
    between = np.where(tensor > 0, fma + functions, 0.0)
    sectors = counts.ending("_sectors") + counts.total("local.l2_sectors")
    shared, port, l1 = _shared_and_l1(gpu, counts, sectors)
    moves = counts.total(*_MOVES) / _TENSOR_MEMORY_BYTES_PER_CLK
    rows = {
        "issue": _issue(counts),
        "fma": _products(lanes, counts, fma),
        "int": integer * (32 / lanes["i32_add"]),
        "special": special,
        "f64": doubles,
        "tensor": tensor,
        "LSU": counts.classes(*_MEMORY) * (32 / figures.lsu_lanes) + moves,
        "shared memory": shared,
        "L1": l1,
        "port": port,
        "sectors": _at_l2(figures, counts, sectors),
        "barriers": counts.total("barriers"),
        "core_j": power.dynamic(events(counts.column))[0] + counts.zeros,
        "between": between * (1.0 - by_groups),
        "between_groups": between * by_groups,
        "alone": counts.total("chain") if "chain" in metrics else (counts.total("issue") - counts.removed) * WARP_CPI,
    }
    rows["in_turn"] = _in_turn(gpu, counts, rows)
    rates = np.stack([rows[name] for name in QUANTITIES], axis=1)
    return Demand(terms, tuple(map(np.ascontiguousarray, rates)))


class _Counts:
    """Events per block and per trip by metric, arrays (terms, C), with sums over metrics. A missing metric is 0."""

    def __init__(self, column: Mapping[str, Floats], zeros: Floats) -> None:
        self.column = column
        self.zeros = zeros
        # The assembler removes these PTX instructions. Profiles that count machine instructions do not contain them.
        self.removed = self.classes("mov", "ld_const")

    @property
    def stretches(self) -> list["_Counts"]:
        """Return warp instructions of each stretch of the code."""
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
        """Return warp instructions of some classes."""
        return self.total(*(f"issue.{name}" for name in names))

    def ending(self, *endings: str) -> Floats:
        """Return events of accesses to all buffers in global memory, by suffix of the metrics."""
        return self.total(*(m for m in self.column if m.startswith("global.") and m.endswith(endings)))


def _in_turn(gpu: GPU, counts: _Counts, rows: Mapping[str, Floats]) -> Floats:
    """Return the clocks of the pipes over all stretches of the code, if each stretch begins when its predecessor
    ends.

    Each pipe's clocks are split by the instructions that use the pipe; memory's clocks by kind of load or store. The
    result is 0 for code that copies ahead or multiplies matrices: its stretches are meant to overlap, and no recording
    shows how much they overlap.
    """
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
        own = {pipe: clocks[pipe] * (used / total[pipe]) for pipe, used in use.items()}
        port = sum((own.pop(part) for part in ("L1", *_SHARED_KINDS)), counts.zeros)
        clk = clk + smooth_max(np.stack([*own.values(), port]))
    ahead = (rows["tensor"] + counts.classes("cp_async") + counts.total("bulk.shared_write_bytes")).any(axis=0)
    return np.where(ahead, 0.0, clk)


_SHARED_KINDS = {"load": "ld_shared", "store": "st_shared", "atomic": "atomic"}
_LEAST = 1e-30


def _use(gpu: GPU, stretch: _Counts) -> dict[str, Floats]:
    """Return a stretch's work for each pipe in arbitrary units, because only its share of all stretches counts."""
    lanes = gpu.fma_per_clk_sm
    integer, special, doubles = _conversions(gpu, stretch, stretch.classes("mufu") * (32 / _SPECIAL_LANES))
    return {
        "issue": _issue(stretch),
        "fma": _products(lanes, stretch, stretch.classes("fma32", "f16") * (32 / lanes["f32"])),
        "int": integer,
        "special": special,
        "f64": doubles,
        "tensor": stretch.classes("mma"),
        "LSU": stretch.classes(*_MEMORY),
        "L1": stretch.classes("ld_global", "st_global", "ld_local", "st_local", "cp_async"),
    } | {kind: stretch.classes(name) for kind, name in _SHARED_KINDS.items()}


def smooth_max(clk: Floats) -> Floats:
    """Return the smooth maximum over the first axis: two pipes of equal time take 1.09 times the time of one."""
    peak = np.maximum(clk.max(axis=0), _LEAST)
    share = clk / peak
    for _ in range(3):
        share *= share
    total: Floats = peak * np.sqrt(np.sqrt(np.sqrt(share.sum(axis=0))))
    return total


def _issue(counts: _Counts) -> Floats:
    floats = counts.classes("fma32")
    return (counts.total("issue") - counts.removed - floats) / ISSUE_PER_CLK + floats / FLOATS_PER_CLK


def _products(lanes: Mapping[str, float], counts: _Counts, fma: Floats) -> Floats:
    """Return the clocks of the f32 pipe. Integer multiplications also use half of its 128 lanes; integer additions,
    comparisons and logic have a separate pipe (Nsight Compute's documentation of the pipelines FMA, FMAHeavy and ALU).
    """
    products = counts.classes("imad")
    return np.maximum(fma + products * (32 / lanes["f32"]), products * (32 / lanes["i32"]))


def _conversions(gpu: GPU, counts: _Counts, functions: Floats) -> tuple[Floats, Floats, Floats]:
    """Return instructions of the integer pipe, clocks of special functions and clocks of f64, including conversions.

    Args:
        functions: Clocks of the special functions without conversions.
    """
    packed = [name for name, since in _PACKED_SINCE.items() if gpu.sm >= since]
    integer = counts.classes("alu", "wide64", "setp", "fcmp") + counts.classes(*packed)
    converted = counts.classes("f2i", *(name for name in _PACKED_SINCE if name not in packed))
    special = functions + converted * (32 / _SPECIAL_LANES)
    # f64 arithmetic has a separate pipe (Nsight Compute's documentation of the pipeline FP64).
    lanes = gpu.fma_per_clk_sm["f64"]
    if lanes < _CONVERT_LONG_LANES:
        return integer, special, counts.classes("f64", "cvt64") * (32 / (lanes * _FEW_F64_SHARE))
    special = special + counts.classes("cvt64") * (32 / _CONVERT_LONG_LANES)
    return integer, special, counts.classes("f64") * (32 / lanes)


def _tensor(gpu: GPU, counts: _Counts) -> tuple[Floats, Floats]:
    """Return the clocks of the tensor cores, and the fraction of the matmuls that warpgroups compute."""
    clk, share = counts.zeros, microarchitecture(gpu).mma_sync_share
    for dtype, per_clk in gpu.tensor_fma_per_clk_sm.items():
        # A multiply-add is two operations. Some data sheets state tensor peaks at a lower clock. `mma.sync` does not
        # reach the full rate on every generation. Warpgroup instructions and tensor memory do;
        # profiles count their operations under `mma`, too.
        sustained = per_clk * gpu.tensor_clock_hz / gpu.boost_clock_hz
        grouped = counts.total(f"wgmma.{dtype}", f"tcgen05.{dtype}")
        by_warps = (counts.total(f"mma.{dtype}") - grouped) / share
        clk = clk + (by_warps + grouped) / (2.0 * sustained)
    multiplied = counts.total(*(f"mma.{dtype}" for dtype in gpu.tensor_fma_per_clk_sm))
    by_groups = counts.total(*(f"wgmma.{dtype}" for dtype in gpu.tensor_fma_per_clk_sm))
    return clk, by_groups / np.maximum(multiplied, 1e-30)


def _at_l2(figures: Microarchitecture, counts: _Counts, sectors: Floats) -> Floats:
    """Return the sectors of L2, including turns of atomic operations. A turn occupies an L2 slice for a clock, in
    which the slice could have read sectors.
    """
    turns = counts.ending("atomic_turns") * (figures.l2_bytes_per_clk_slice / 32.0)
    return sectors + np.maximum(turns - counts.ending("atomic_sectors"), 0.0)


def _shared_and_l1(gpu: GPU, counts: _Counts, sectors: Floats) -> tuple[Floats, Floats, Floats]:
    """Return the clocks of shared memory, of the port that it shares with L1, and of L1."""
    figures = microarchitecture(gpu)
    loads, copies = counts.classes("ld_global"), counts.classes("cp_async")
    copied = counts.ending("read_bytes") * (copies / np.maximum(loads + copies, 1e-30))
    # L1 looks up a line per clock in the banks of shared memory, and returns 64 bytes per clock to the lanes.
    returned = np.maximum(
        counts.ending("_passes") / figures.shared_wavefronts_per_clk,
        (counts.ending("read_bytes") - copied) / _L1_BYTES_PER_CLK,
    )
    wavefronts = counts.total(*(f"shared.{what}_wavefronts" for what in ("load", "store", "atomic")))
    if gpu.sm < _MERGES_SINCE:
        wavefronts = wavefronts + counts.total("shared.atomic_repeats")
    # Copies by threads write only the wavefronts that profiles count as stores. Tensor cores read through the
    # same port. On a B200, it limits matmuls of fewer than 128 columns, at 128 bytes a clock ("Dissecting Nvidia
    # Blackwell", SemiAnalysis, March 2026, operands of both matrices in shared memory).
    multiplicands = counts.total("wgmma.shared_bytes", "tcgen05.shared_bytes")
    shared = (wavefronts + multiplicands / _WAVEFRONT_BYTES) / figures.shared_wavefronts_per_clk
    l1 = np.maximum(sectors / _L1_SECTORS_PER_CLK + counts.total("l1.wavefronts"), returned)
    return shared, np.maximum(shared + returned, l1), l1


def events(counts: Mapping[str, Count]) -> dict[str, Count]:
    """Return the events of the power model from counts by metric: numbers or arrays."""
    totals: dict[str, Count] = {m: count for m, count in counts.items() if m.startswith(("issue.", "mma."))}
    for event, endings in _EVENTS.items():
        parts = [count for metric, count in counts.items() if metric.endswith(endings)]
        if parts:
            totals[event] = sum(parts[1:], parts[0])
    if moved := [counts[metric] for metric in _SHARED_BYTES if metric in counts]:
        totals[_SHARED_WAVEFRONTS] = totals.get(_SHARED_WAVEFRONTS, 0.0) + sum(moved[1:], moved[0]) / _WAVEFRONT_BYTES
    return totals
