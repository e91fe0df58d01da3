"""What one launch asks of a GPU's pipes, as a linear function of its blocks and trips.

A static profile counts events; a GPU turns events into clocks of its pipes and joules. Both maps are linear, so
they are applied once per kernel and GPU, to the coefficients; a query then only multiplies by its totals.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from kernrec.gpu import GPU
from kernrec.model.prior.microarchitecture import microarchitecture
from kernrec.model.prior.power import PowerModel

PIPES = ("issue", "fma", "int", "special", "tensor", "LSU", "shared memory", "L1")
"""SM-wide pipes whose clocks per block are summed up; the order of the demand's rows."""

# Lanes per SM and clock of pipes that do not differ between the catalogued compute capabilities
# (CUDA C++ Programming Guide, "Throughput of Native Arithmetic Instructions").
_SPECIAL_LANES = 16
_CONVERT_LANES = 64
ISSUE_PER_CLK = 4 * 0.73
"""Warp instructions that an SM's four schedulers sustain together: register-bank and operand stalls keep unrolled
arithmetic from issuing every clock (share fitted to the anchor conv2d_f32_ansor.csv, RTX 3090, with pipes joined as
`model.prior` joins them)."""
# 128 B per clock and SM from shared memory, 64 B per clock and SM from L2 into L1 (whitepapers since Volta).
_L1_SECTORS_PER_CLK = 2

_MEMORY = (
    "ld_shared", "st_shared", "ld_global", "st_global", "ld_local", "st_local", "cp_async", "atomic",
)  # fmt: skip
"""Classes of instructions whose addresses go through the load/store units."""

Count = Any
"""A number, or an array of numbers."""

_EVENTS: Mapping[str, tuple[str, ...]] = {
    "shared.wavefronts": ("load_wavefronts", "store_wavefronts", "atomic_wavefronts"),
    "l1.requests": ("_requests",),
    "l2.sectors": ("_sectors",),
}
"""Memory events of the power model, by the endings of the metrics that add up to them."""


QUANTITIES = (*PIPES, "sectors", "barriers", "core_j", "between")
"""Rows of `Demand.rates`: clocks of each pipe, 32-byte sectors asked of L2, block-wide barriers, joules of the core
clock domain at nominal voltage, and clocks of float arithmetic between tensor instructions.

`between`: what a loop computes in floats beside its tensor instructions, as the softmax of attention, takes what they
gave and gives what the next ones take. A warp does one after the other; only another warp of its scheduler can use the
tensor core meanwhile. Of W warps there, none of that time is lost where they keep out of each other's way, and all of
it where they run in step, as barriers and fair scheduling tend to have them; with one warp's the prior lies between
the two. (FlashAttention-3, arXiv 2407.08608, section 3.1, gains what is lost by making warps take turns.) Conversions
do not count: they prepare operands, which the compiler does ahead.
"""

ISSUE, SECTORS, BARRIERS, CORE_J, BETWEEN = (
    QUANTITIES.index(name) for name in ("issue", "sectors", "barriers", "core_j", "between")
)


@dataclass(frozen=True)
class Demand:
    """Demand of one launch for C codes on one GPU.

    rates: a (quantities, C) array a term, each quantity per block (first term) or per trip of a loop.
    """

    terms: tuple[str, ...]
    rates: tuple[np.ndarray, ...]


def demand(
    gpu: GPU, power: PowerModel, metrics: Sequence[str], terms: tuple[str, ...], coefficients: np.ndarray
) -> Demand:
    """The demand of profiles `coefficients` (C, metrics, terms) on `gpu`; metric names as in `ptx.counts`.

    A profile that tells what L1 answers leaves that out of its sectors, and gives the clocks that requests take of L1,
    the most words that share one of its 32 banks, as `l1.wavefronts`.
    """
    column = {metric: coefficients[:, i, :].T for i, metric in enumerate(metrics)}  # (T, C) each
    nothing = np.zeros((len(terms), len(coefficients)))

    def total(*names: str) -> np.ndarray:
        return sum((column[name] for name in names if name in column), nothing)

    def classes(*names: str) -> np.ndarray:
        return total(*(f"issue.{name}" for name in names))

    lanes = gpu.fma_per_clk_sm
    moved = classes("mov", "ld_const")  # register moves of PTX that the assembler removes
    integer = classes("alu", "imad", "wide64", "setp")
    sectors = total(*(m for m in metrics if m.startswith("global.") and m.endswith("_sectors")))
    fma = classes("fma32", "f16") * (32 / lanes["f32"])
    tensor = nothing
    for dtype, per_clk in gpu.tensor_fma_per_clk_sm.items():
        # Two operations to a multiply-add. Some data sheets state tensor peaks at a lower clock, and `mma.sync`
        # does not reach the full rate on every generation.
        reached = per_clk * microarchitecture(gpu).mma_sync_share * gpu.tensor_clock_hz / gpu.boost_clock_hz
        tensor = tensor + total(f"mma.{dtype}") / (2.0 * reached)
    special = classes("mufu") * (32 / _SPECIAL_LANES)
    between = np.where(tensor > 0, fma + special, 0.0)
    special = special + classes("cvt") * (32 / _CONVERT_LANES)
    if "f64" in lanes:
        special = special + classes("f64") * (32 / lanes["f64"])
    pipes = (
        (total("issue") - moved) / ISSUE_PER_CLK,
        # Where integer and float share the lanes, an integer instruction takes a float slot of its half.
        fma + (integer * (32 / 128) if lanes["f32"] == 128 else 0.0),
        integer * (32 / lanes["i32_add"]),
        special,
        tensor,
        classes(*_MEMORY) * (32 / microarchitecture(gpu).lsu_lanes),
        total(*(f"shared.{what}_wavefronts" for what in ("load", "store", "atomic"))),
        sectors / _L1_SECTORS_PER_CLK + total("l1.wavefronts"),
    )
    rows = (*pipes, sectors, total("barriers"), power.dynamic(events(column))[0] + nothing, between)
    rates = np.stack(rows, axis=1)
    return Demand(terms, tuple(map(np.ascontiguousarray, rates)))


def side_by_side(demands: Sequence[Demand]) -> tuple[Demand, list[int]]:
    """Several launches' demands as one, their codes one after the other, and where each begins.

    Terms go by their place: block first, then each launch's loops; what a launch lacks is zero.
    """
    most = max((demand.terms for demand in demands), key=len)
    padded = [
        (*demand.rates, *[np.zeros_like(demand.rates[0])] * (len(most) - len(demand.terms))) for demand in demands
    ]
    starts = np.cumsum([0, *(demand.rates[0].shape[1] for demand in demands[:-1])]).tolist()
    return Demand(most, tuple(np.concatenate(parts, axis=1) for parts in zip(*padded, strict=True))), starts


def events(counts: Mapping[str, Count]) -> dict[str, Count]:
    """The events that the power model knows, from counts by metric of `ptx.counts`; numbers or arrays."""
    known: dict[str, Count] = {m: count for m, count in counts.items() if m.startswith(("issue.", "mma."))}
    for event, endings in _EVENTS.items():
        found = [count for metric, count in counts.items() if metric.endswith(endings)]
        if found:
            known[event] = sum(found[1:], found[0])
    return known
