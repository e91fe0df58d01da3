"""The demand of a launch on a GPU's pipes, as a linear function of its blocks and loop trips.

A static profile counts events per block and per trip of each loop; a GPU turns events into clocks of its pipes and into
joules. Both maps are linear, so they are applied once per kernel and GPU, to the profile's coefficients. A query then
only multiplies by its numbers of blocks and trips.
"""

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from kernrec.gpu import GPU
from kernrec.model.prior.microarchitecture import microarchitecture
from kernrec.model.prior.power import PowerModel
from kernrec.util.light_dataclass import dataclass

PIPES = ("issue", "fma", "int", "special", "f64", "tensor", "LSU", "shared memory", "L1")
"""SM-wide pipes whose clocks per block are added up, in the order of the demand's first rows."""

# Lanes per SM and clock of pipes that are the same for all catalogued compute capabilities
# (CUDA C++ Programming Guide, "Throughput of Native Arithmetic Instructions").
_SPECIAL_LANES = 16  # of special functions and of F2I, I2F, F2F and FRND (Nsight Compute's documentation: pipeline XU)
_CONVERT_LONG_LANES = 16  # from and to 64-bit types; where f64 arithmetic is slower, as slow as that, and in its pipe
_PACKED_SINCE = {"i2f": 86, "cvt": 80}
"""Compute capabilities from which ptxas converts integers to f32 by I2FP, and f32 to half precision by F2FP
(`tools/compare_conversions.py`). These go where additions of integers go, the second by Nsight Compute's documentation
(pipeline ALU), the first because its name and its rate are those of the second (assumption)."""
_FEW_F64_SHARE = 0.8
"""Share of the published rate that the two f64 lanes of an SM reach: an instruction of a warp takes 20 clocks, where
16 are published. On a Quadro RTX 8000 the pipe's activity ends at 0.78 to 0.80 in three of four recorded kernels
(`FP64A` of mixbench-cuda-ro, hotspot and binomialOptions in rtx8000_*_dvfs.parquet; 0.95 in mixbench-cuda-alt). No
recording tells it of SMs with more lanes, which are taken to reach theirs."""
ISSUE_PER_CLK = 4 * 0.95
"""Warp instructions per clock that the four schedulers of an SM sustain together: point in polygon issues one in up to
0.96 of all clocks on an RTX 2080 Ti (recorded counters, `smsp__issue_active` of 3,815 configs)."""
FLOATS_PER_CLK = 4 * 0.67
"""The same of f32 arithmetic: what feeds a multiply-add its three operands (two banks of registers, Jia et al., arXiv
1804.06826, section 3.1; constant memory) keeps unrolled arithmetic from issuing every clock. The share was fitted to
the anchor conv2d_f32_ansor.csv (RTX 3090), with pipes combined as `launch_time` combines them; the recorded convolution
on an A100 fits it, too."""
WARP_CPI = 2.5
"""Clocks per instruction of a warp that is alone on its scheduler, where a profile says nothing of it. An f32 addition
takes 4 clocks if it depends on the previous one, and 2 on the A100 if it does not (Abdelkhalik et al., arXiv
2208.11174, on dependent and independent instructions); on other GPUs a scheduler issues one per clock. The value for
unrolled arithmetic, which lies between, is an assumption: all anchors and both recorded convolutions fit values from
2.5 to 4 better than 1.6; causal attention with few warps does not."""
_L1_SECTORS_PER_CLK = 2  # 64 B per clock and SM from L2 into L1 (NVIDIA's architecture whitepapers since Volta)
_WAVEFRONT_BYTES = 128
_L1_BYTES_PER_CLK = 64
"""What L1 hands to the lanes of an SM, whether or not they ask for the same. Recorded matrix products without staging
in shared memory fix it: 2 clocks for a load of 4 bytes a lane, 8 for one of 16, on an RTX 2080 Ti, an RTX 3090 and an
A100 (gemm-* of the recorded spaces, 8 x 8 outputs a thread)."""

_TENSOR_MEMORY_BYTES_PER_CLK = 512
"""Bytes between tensor memory and registers per SM and clock: a word a lane. An assumption; no data sheet says it. What
tensor cores themselves read and write there does not bound them (products of 128 columns and more reach their peak:
"Dissecting Nvidia Blackwell", SemiAnalysis, March 2026)."""
_MOVES = ("tensor_memory.load_bytes", "tensor_memory.store_bytes")

_MEMORY = (
    "ld_shared", "st_shared", "ld_global", "st_global", "ld_local", "st_local", "cp_async", "atomic",
)  # fmt: skip
"""Instruction classes whose addresses go through the load/store units."""

Count = Any
"""A number, or an array of numbers."""

_SHARED_WAVEFRONTS = "shared.wavefronts"
_SHARED_BYTES = ("wgmma.shared_bytes", "tcgen05.shared_bytes", "bulk.shared_write_bytes")
"""What tensor cores read of shared memory by themselves and what copies in bulk write there: wavefronts of 128 bytes to
the power model, whose energy of a tensor operation was fitted beside them (tools/power_recordings.py, `gemm_rates`)."""

_EVENTS: Mapping[str, tuple[str, ...]] = {
    _SHARED_WAVEFRONTS: ("load_wavefronts", "store_wavefronts", "atomic_wavefronts"),
    "l1.requests": ("_requests",),
    "l2.sectors": ("_sectors",),
}
"""Memory event of the power model -> endings of the metrics that add up to it."""


QUANTITIES = (*PIPES, "port", "sectors", "barriers", "core_j", "between", "between_groups", "alone")
"""Rows of `Demand.rates`: clocks of each pipe, then `port`, sectors, barriers, joules, `between`, `between_groups` and
`alone`.

`port` is the clocks of shared memory and L1 together, which are one memory with one port (NVIDIA's architecture
whitepapers since Volta).

`alone` is the clocks that the warps of a block would take one after the other, each for itself, without waits for
memory and barriers: the latency of a chain of instructions. Profiles of sampled blocks have it as `chain`.

`between` is the clocks of float arithmetic between dependent tensor instructions, such as the softmax of attention: it
uses the results of one tensor instruction and computes the operands of the next. A warp executes these one after the
other, and the tensor core idles unless another warp of the same scheduler uses it. If the W warps of a scheduler are
out of phase, none of that time is lost; if they run in lockstep, as barriers and fair scheduling tend to make them, all
of it is lost. The prior takes a value between the two: the time of one warp is lost. (FlashAttention-3, arXiv
2407.08608, section 3.1, avoids this loss by making warps take turns.) Conversions do not count: they prepare operands,
which the compiler schedules ahead.
"""

ISSUE = QUANTITIES.index("issue")
"""Row of the issue slots: clocks of all four schedulers together."""
PORT = QUANTITIES.index("port")
"""Row of the port of shared memory and L1."""
SECTORS = QUANTITIES.index("sectors")
"""Row of the 32-byte sectors requested from L2."""
BARRIERS = QUANTITIES.index("barriers")
"""Row of the block-wide barriers."""
CORE_J = QUANTITIES.index("core_j")
"""Row of the joules of the core clock domain at nominal voltage."""
BETWEEN = QUANTITIES.index("between")
"""Row of the clocks of float arithmetic between dependent tensor instructions of warps."""
BETWEEN_GROUPS = QUANTITIES.index("between_groups")
"""Row of the same between products of warpgroups."""
ALONE = QUANTITIES.index("alone")
"""Row of the clocks of all warps one after the other."""


@dataclass(frozen=True)
class Demand:
    """The demand of one launch of C variants on one GPU."""

    terms: tuple[str, ...]
    """`block`, and a name for each loop."""
    rates: tuple[np.ndarray, ...]
    """For each term an array (`QUANTITIES`, C): each quantity per block (first term) or per trip of a loop."""

    @cached_property
    def grouped(self) -> bool:
        """Whether some variant has arithmetic between products of warpgroups."""
        return any(bool(rates[BETWEEN_GROUPS].any()) for rates in self.rates)


def demand(
    gpu: GPU, power: PowerModel, metrics: Sequence[str], terms: tuple[str, ...], coefficients: np.ndarray
) -> Demand:
    """The demand of static profiles on a GPU.

    A profile with L1 hits leaves those out of its sectors, and has the clocks that L1 needs for requests (the most
    words in one of its 32 banks) as `l1.wavefronts`. One of sampled blocks has the clocks that its requests take L1
    (`global.<buffer>.read_passes` and so on), the turns of atomic operations in the sectors of L2 (`..._turns`), each
    of which takes a slice a clock (histograms on seven cards took 0.54 ns for each addition to one address, see
    `histogram_one_bin` of the anchor textbook_rtx3060_rtx3070ti.csv), local memory that passes L1 (`local.l2_sectors`),
    and `chain`, the clocks of its warps. Where a profile lacks these, only the bytes between L2 and L1 count, atomic
    operations are sectors like others, and a warp takes `WARP_CPI` clocks an instruction.

    Args:
        gpu: the GPU.
        power: its power model.
        metrics: names of the profiles' metrics, as `kernrec.ptx.execution` counts them.
        terms: names of the profiles' terms.
        coefficients: events per block and per trip, (C, metrics, terms).
    """
    column = {metric: coefficients[:, i, :].T for i, metric in enumerate(metrics)}  # (T, C) each
    zeros = np.zeros((len(terms), len(coefficients)))

    def total(*names: str) -> np.ndarray:
        return sum((column[name] for name in names if name in column), zeros)

    def classes(*names: str) -> np.ndarray:
        return total(*(f"issue.{name}" for name in names))

    lanes = gpu.fma_per_clk_sm
    # PTX instructions that the assembler removes; profiles that count machine instructions have none.
    moved = classes("mov", "ld_const")
    integer = classes("alu", "wide64", "setp", "fcmp")
    figures = microarchitecture(gpu)

    def ending(*endings: str) -> np.ndarray:
        return total(*(m for m in metrics if m.startswith("global.") and m.endswith(endings)))

    sectors = ending("_sectors") + total("local.l2_sectors")
    turns = ending("atomic_turns")
    # A turn keeps a slice busy for a clock, in which it could have read so many sectors.
    at_l2 = sectors + np.maximum(turns * (figures.l2_bytes_per_clk_slice / 32.0) - ending("atomic_sectors"), 0.0)
    # Products of integers take the pipe of f32 arithmetic, and of its 128 lanes only half; additions, comparisons and
    # logic have a pipe of their own (Nsight Compute's documentation of the pipelines FMA, FMAHeavy and ALU).
    fma = classes("fma32", "f16") * (32 / lanes["f32"])
    products = classes("imad")
    multiplies = np.maximum(fma + products * (32 / lanes["f32"]), products * (32 / lanes["i32"]))
    floats = classes("fma32")
    issue = (total("issue") - moved - floats) / ISSUE_PER_CLK + floats / FLOATS_PER_CLK
    tensor = zeros
    for dtype, per_clk in gpu.tensor_fma_per_clk_sm.items():
        # A multiply-add is two operations. Some data sheets state tensor peaks at a lower clock, and `mma.sync`
        # does not reach the full rate on every generation; what warpgroups multiply, or blocks in tensor memory, both
        # counted twice, does.
        sustained = per_clk * gpu.tensor_clock_hz / gpu.boost_clock_hz
        grouped = total(f"wgmma.{dtype}", f"tcgen05.{dtype}")
        by_warps = (total(f"mma.{dtype}") - grouped) / figures.mma_sync_share
        tensor = tensor + (by_warps + grouped) / (2.0 * sustained)
    special = classes("mufu") * (32 / _SPECIAL_LANES)
    between = np.where(tensor > 0, fma + special, 0.0)
    multiplied = total(*(f"mma.{dtype}" for dtype in gpu.tensor_fma_per_clk_sm))
    by_groups = total(*(f"wgmma.{dtype}" for dtype in gpu.tensor_fma_per_clk_sm)) / np.maximum(multiplied, 1e-30)
    packed = [name for name, since in _PACKED_SINCE.items() if gpu.sm >= since]
    integer = integer + classes(*packed)
    special = special + classes("f2i", *(name for name in _PACKED_SINCE if name not in packed)) * (32 / _SPECIAL_LANES)
    # f64 arithmetic has a pipe of its own (Nsight Compute's documentation of the pipeline FP64).
    few = lanes["f64"] < _CONVERT_LONG_LANES
    doubles = classes("f64", *(("cvt64",) if few else ())) * (32 / (lanes["f64"] * (_FEW_F64_SHARE if few else 1.0)))
    if not few:
        special = special + classes("cvt64") * (32 / _CONVERT_LONG_LANES)
    loads, copies = classes("ld_global"), classes("cp_async")
    copied = ending("read_bytes") * (copies / np.maximum(loads + copies, 1e-30))
    # L1 finds a line a clock in the banks that are those of shared memory, and hands the lanes 64 bytes a clock.
    returned = np.maximum(
        ending("_passes") / figures.shared_wavefronts_per_clk, (ending("read_bytes") - copied) / _L1_BYTES_PER_CLK
    )
    wavefronts = total(*(f"shared.{what}_wavefronts" for what in ("load", "store", "atomic")))
    # Copies of threads write the wavefronts that are counted as stores, and nothing else. Tensor cores read by the same
    # port. On a B200, products of fewer than 128 columns are bound by it, at 128 bytes a clock ("Dissecting Nvidia
    # Blackwell", SemiAnalysis, March 2026, operands of both matrices in shared memory).
    multiplicands = total("wgmma.shared_bytes", "tcgen05.shared_bytes")
    shared = (wavefronts + multiplicands / _WAVEFRONT_BYTES) / figures.shared_wavefronts_per_clk
    l1 = np.maximum(sectors / _L1_SECTORS_PER_CLK + total("l1.wavefronts"), returned)
    pipes = (
        issue,
        multiplies,
        integer * (32 / lanes["i32_add"]),
        special,
        doubles,
        tensor,
        classes(*_MEMORY) * (32 / figures.lsu_lanes) + total(*_MOVES) / _TENSOR_MEMORY_BYTES_PER_CLK,
        shared,
        l1,
    )
    alone = total("chain") if "chain" in metrics else (total("issue") - moved) * WARP_CPI
    rows = (
        *pipes,
        np.maximum(shared + returned, l1),
        at_l2,
        total("barriers"),
        power.dynamic(events(column))[0] + zeros,
        between * (1.0 - by_groups),
        between * by_groups,
        alone,
    )
    rates = np.stack(rows, axis=1)
    return Demand(terms, tuple(map(np.ascontiguousarray, rates)))


def side_by_side(demands: Sequence[Demand]) -> tuple[Demand, list[int]]:
    """Concatenate the demands of several launches along their variants.

    Terms are matched by position: block first, then each launch's loops; missing loops are zero.

    Returns:
        The demand of all variants, and where those of each launch begin.
    """
    most = max((demand.terms for demand in demands), key=len)
    padded = [
        (*demand.rates, *[np.zeros_like(demand.rates[0])] * (len(most) - len(demand.terms))) for demand in demands
    ]
    starts = np.cumsum([0, *(demand.rates[0].shape[1] for demand in demands[:-1])]).tolist()
    return Demand(most, tuple(np.concatenate(parts, axis=1) for parts in zip(*padded, strict=True))), starts


def events(counts: Mapping[str, Count]) -> dict[str, Count]:
    """The events of the power model, from counts by metric; numbers or arrays."""
    totals: dict[str, Count] = {m: count for m, count in counts.items() if m.startswith(("issue.", "mma."))}
    for event, endings in _EVENTS.items():
        parts = [count for metric, count in counts.items() if metric.endswith(endings)]
        if parts:
            totals[event] = sum(parts[1:], parts[0])
    if moved := [counts[metric] for metric in _SHARED_BYTES if metric in counts]:
        totals[_SHARED_WAVEFRONTS] = totals.get(_SHARED_WAVEFRONTS, 0.0) + sum(moved[1:], moved[0]) / _WAVEFRONT_BYTES
    return totals
