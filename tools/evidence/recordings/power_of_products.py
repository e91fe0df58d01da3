"""Recorded power of serving stacks' matrix products, as loads of the power model, and which readings contradict others.

Power under a loop of one product is a mean over samples, some of them taken before the loop runs at full speed: of
neighboring shapes that take the same time one may be stated to draw a third of the other. `agreement` finds these
readings by their neighbors; they weigh less in fits and are counted by name where the tools print the recordings.
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from evidence.recordings import power as recordings
from evidence.recordings.files import parquet_dicts
from evidence.recordings.power import Load, gemm_rates
from evidence.recordings.power_doubts import DOUBTED, judged
from kernrec.gpu import GPU, find_gpu

Array = np.ndarray

REACHED = 0.93
"""Share of the tensor cores' rate at the clock held that the fastest large products reach."""
AGREES = 0.1
"""Standard deviation of the logarithm of power between neighboring shapes that is taken for honest scatter."""
MISREAD = 0.15
"""A reading is called misread where it is this much (logarithm) below one of a neighbor that takes the same time."""
BELOW, ALIKE, FEWEST = 0.2, 0.2, 20
"""A stack's power is doubted where it is this much (logarithm) below another's, in times that differ by no more than
this, in so many shapes at least."""
SLOW = ("b200_sxm", "TRTLLM", "fp8")
"""Products that do not reach `REACHED` of the rate: SGLang's take two thirds of their time on the same card, with a
conversion beside them."""
HELD = 0.95
"""Share of its limit from which on a load is taken to be held back."""
SHORTEST_S = 3e-5
"""Products that take less are left out: their loops are bound by the launches between them."""
CHOSEN = 150
"""Products of each card, stack and data type, evenly chosen."""
LARGE = 2e11
"""Multiplications of a product from which on it fills a card."""
SUSTAINED_S = 0.2
"""Runs that last as long are held back by the limit from beginning to end: on an H200 the products of two stacks lose a
tenth from runs of 20 ms to runs of 0.2 s, and nothing beyond."""
LAUNCHES = {"TRTLLM": 12, "SGLang": 72}
"""Launches of a product in a run of aiconfigurator's collectors where no power is measured (a second otherwise), of
those that multiply random numbers: three warm-up rounds twice and six timed ones, of one product whose weights exceed
L2 and of six. vLLM's layers keep weights that nobody wrote (`collector/vllm/collect_gemm.py`), in bf16 and fp8: on an
A100 its products run as ones of zeros do, at 0.95 of the peak rate where the other stacks reach 0.85."""
RANDOM_TYPES = {("TRTLLM", "bfloat16"): "bf16", ("TRTLLM", "fp8"): "fp8", ("SGLang", "bfloat16"): "f16"}
"""What the collectors multiply: SGLang's is f16 in fact; its products in fp8 have a conversion beside them, and those
of TensorRT-LLM in int8 (`sq`) are timed in one launch."""

_GPUS = {
    "h200_sxm": "h200-sxm", "b200_sxm": "b200", "gb200": "gb200", "a100_sxm": "a100-sxm4-80gb", "l40s": "l40s",
}  # fmt: skip
_DTYPES: Mapping[str, tuple[str, float, float]] = {
    "bfloat16": ("mma.bf16", 2.0, 1.0), "fp8": ("mma.fp8", 1.0, 1.0), "sq": ("mma.i8", 1.0, 1.0),
    "nvfp4": ("mma.fp8", 0.5, 0.5),
}  # fmt: skip
"""Event, bytes of an input element, and operations that count as one of the event: fp4 is taken for half of fp8. In
fp8_block the instructions that scale partial sums would have to be known."""
_HELD = (
    ("h200_sxm", "bfloat16"), ("h200_sxm", "fp8"), ("b200_sxm", "bfloat16"), ("b200_sxm", "fp8"),
    ("gb200", "bfloat16"), ("gb200", "fp8"), ("l40s", "bfloat16"), ("l40s", "fp8"), ("l40s", "sq"),
)  # fmt: skip
"""Cards and data types whose large products the power limit holds back: where power was recorded it is the limit's, and
an L40S, which reaches 0.93 of its peak in 8-bit integers at least, does not come near it in bf16 and fp8."""


@dataclass(frozen=True)
class Products:
    """The products of one card, stack and data type, ordered by n, k, m; arrays (N,)."""

    system: str
    framework: str
    dtype: str
    shapes: Array
    """m, n, k; (N, 3)."""
    latency_s: Array
    power_w: Array
    """NaN where it was not recorded."""
    limit_w: Array

    @property
    def gpu(self) -> GPU:
        """The card."""
        return find_gpu(_GPUS[self.system])

    @property
    def products(self) -> Array:
        """Multiplications of each."""
        return np.asarray(self.shapes.astype(float).prod(axis=1))


@cache
def products(data: Path) -> tuple[Products, ...]:
    """The serving stacks' products of the cards in the catalog, by card, stack and data type."""
    rows: dict[tuple[str, str, str], list[dict[str, Any]]] = {}
    for row in parquet_dicts(data / "library" / "serving_gemm.parquet"):
        if row["system"] in _GPUS and row["dtype"] in _DTYPES:
            rows.setdefault((row["system"], row["framework"], row["dtype"]), []).append(row)
    sets = []
    for (system, framework, dtype), own in sorted(rows.items()):
        own.sort(key=lambda row: (row["n"], row["k"], row["m"]))
        shapes = np.array([[row["m"], row["n"], row["k"]] for row in own])
        figures = [
            np.array([np.nan if row[name] is None else row[name] for row in own], dtype=float)
            for name in ("latency_s", "power_w", "power_limit_w")
        ]
        sets.append(Products(system, framework, dtype, shapes, *figures))
    return tuple(sets)


def agreement(these: Products) -> tuple[Array, Array]:
    """(weight, whether it was misread) of each power, (N,): by how well it agrees with those of the next smaller and
    larger m of the same n and k that take about the same time."""
    same = (these.shapes[1:, 1:] == these.shapes[:-1, 1:]).all(axis=1)
    same &= these.shapes[1:, 0] <= 1.3 * these.shapes[:-1, 0]
    same &= np.abs(np.log(these.latency_s[1:] / these.latency_s[:-1])) < 0.25
    higher = np.where(same, np.log(these.power_w[1:] / these.power_w[:-1]), np.nan)
    # How far the next and the one before lie above each; the nearer of the two says how sure the reading is.
    above = np.stack([np.append(higher, np.nan), np.append(np.nan, -higher)])
    off = np.where(np.isfinite(above), np.abs(above), np.inf).min(axis=0)
    off = np.where(np.isfinite(off), off, 0.0)
    highest = np.where(np.isfinite(above), above, 0.0).max(axis=0)
    return 1.0 / (1.0 + (np.maximum(off, highest) / AGREES) ** 2), highest > MISREAD


def below_others(sets: Collection[Products]) -> dict[tuple[str, str, str], str]:
    """(system, framework, dtype) of the sets whose power is far below that of another stack -> that stack: for the same
    shapes in about the same time the median is less by more than `BELOW`."""
    doubtful = {}
    for these in sets:
        own = {tuple(shape): i for i, shape in enumerate(these.shapes.tolist())}
        for other in sets:
            if (other.system, other.dtype) != (these.system, these.dtype) or other is these:
                continue
            pairs = [(own[tuple(s)], j) for j, s in enumerate(other.shapes.tolist()) if tuple(s) in own]
            if not pairs:
                continue
            i, j = np.array(pairs).T
            alike = np.abs(np.log(these.latency_s[i] / other.latency_s[j])) < ALIKE
            alike &= (
                (these.latency_s[i] >= SHORTEST_S) & (agreement(these)[0][i] > 0.5) & (agreement(other)[0][j] > 0.5)
            )
            lower = np.log(other.power_w[j] / these.power_w[i])[alike]
            if len(lower) >= FEWEST and np.nanmedian(lower) > BELOW:
                doubtful[these.system, these.framework, these.dtype] = other.framework
    return doubtful


def serving_products(data: Path) -> Iterator[Load]:
    """Products with power, at the highest clock unless the limit is reached, `CHOSEN` of each card, stack and type."""
    sets = [these for these in products(data) if np.isfinite(these.power_w).any()]
    below = below_others(sets)
    for these in sets:
        usual = np.flatnonzero((these.latency_s >= SHORTEST_S) & np.isfinite(these.power_w))
        if these.system == "h200_sxm" and these.dtype == "bfloat16":  # all of it is in `library_gemms`
            continue
        weight, wrong = agreement(these)
        gpu, doubted = these.gpu, below.get((these.system, these.framework, these.dtype))
        share = DOUBTED if doubted else 1.0
        doubts = np.where(wrong, "below its neighbors", "")
        if doubted:
            doubts[:] = f"below {doubted}"
        for i in usual[:: max(len(usual) // CHOSEN, 1)]:
            shape = tuple(int(size) for size in these.shapes[i])
            yield Load(
                f"{these.dtype} {gpu.name}, {these.framework}", gpu.name, gpu.boost_clock_hz, float(these.power_w[i]),
                rates_of(gpu, these.dtype, shape, float(these.latency_s[i])), float(these.limit_w[i]),
                float(these.latency_s[i]), " x ".join(map(str, shape)), weight=float(weight[i]) * share,
                doubt=str(doubts[i]),
            )  # fmt: skip


def held_products(data: Path) -> Iterator[Load]:
    """Large products that run at the power limit: the clock is the one at which `REACHED` of the rate is what the
    fastest tenth of them do (of the stack that is fastest)."""
    fastest: dict[tuple[str, str], tuple[float, Products, int]] = {}
    for these in products(data):
        large = np.flatnonzero((these.products > LARGE) & (these.shapes.min(axis=1) >= 2048))
        if (these.system, these.dtype) not in _HELD or len(large) < 10:
            continue
        rate = 2.0 * these.products[large] / these.latency_s[large]
        place = int(large[np.argsort(rate)[int(0.9 * len(rate))]])
        done = 2.0 * float(these.products[place]) / float(these.latency_s[place])
        key = these.system, these.dtype
        if key not in fastest or done > fastest[key][0]:
            fastest[key] = done, these, place
    for (_, dtype), (done, these, place) in fastest.items():
        gpu = these.gpu
        event = _DTYPES[dtype][0].removeprefix("mma.")
        clock_hz = done / (2.0 * gpu.tensor_fma_per_clk_sm[event] * gpu.sms * REACHED)
        shape = tuple(int(size) for size in these.shapes[place])
        rates = rates_of(gpu, dtype, shape, float(these.latency_s[place]), reads=3.0)
        yield Load(
            f"held {dtype} {gpu.name}", gpu.name, min(clock_hz, gpu.boost_clock_hz), gpu.tdp_w, rates,
            about=" x ".join(map(str, shape)),
        )  # fmt: skip


def sustained_products(data: Path) -> Iterator[Load]:
    """Large products of random numbers in runs of `SUSTAINED_S` and more, in no fit: the clock is found as that of
    `held_products`. Where power was recorded it is the limit's."""
    for these in products(data):
        kind = RANDOM_TYPES.get((these.framework, these.dtype))
        if kind is None or (these.system, these.framework, these.dtype) == SLOW:
            continue
        gpu, measured = these.gpu, np.isfinite(these.power_w)
        long = np.where(
            measured,
            these.power_w > HELD * these.limit_w,
            these.latency_s * LAUNCHES[these.framework] >= SUSTAINED_S,
        )
        large = np.flatnonzero((these.products > LARGE) & (these.shapes.min(axis=1) >= 2048) & long)
        if len(large) < 10:
            continue
        rate = 2.0 * these.products[large] / these.latency_s[large]
        place = int(large[np.argsort(rate)[int(0.9 * len(rate))]])
        seconds, shape = float(these.latency_s[place]), tuple(int(size) for size in these.shapes[place])
        clock_hz = (
            2.0 * float(these.products[place]) / seconds / (2.0 * gpu.tensor_fma_per_clk_sm[kind] * gpu.sms * REACHED)
        )
        rates = rates_of(gpu, these.dtype, shape, seconds, reads=3.0)
        rates[f"mma.{kind}"] = rates.pop(_DTYPES[these.dtype][0])
        about = " x ".join(map(str, shape))
        yield Load(f"{kind} {gpu.name}, {these.framework}", gpu.name, clock_hz, gpu.tdp_w, rates, about=about)


def rates_of(gpu: GPU, dtype: str, shape: Any, seconds: float, reads: float = 1.0) -> dict[str, float]:
    """The rates of a product of a serving stack in a data type; what fits L2 is not read from DRAM in a loop."""
    event, width, counts = _DTYPES[dtype]
    usual = gemm_rates(shape, seconds, sharing=2.0 if shape[0] > 128 else 1.0, reads=reads)
    m, n, k = shape
    moved = width * (m * k + n * k) + 2.0 * m * n
    resident = moved < 0.5 * gpu.l2_bytes
    return {
        event: usual["mma.bf16"] * counts,
        "dram.bytes": 0.0 if resident else reads * moved / seconds,
        "l2.sectors": usual["l2.sectors"] * width / 2.0,
        "shared.wavefronts": usual["shared.wavefronts"] * width / 2.0,
    }


def all_loads(data: Path) -> list[Load]:
    """Every recording that the coefficients are fitted to, with doubts where rows contradict themselves or others."""
    readers = (
        recordings.roofline, recordings.fma, recordings.vector_add, recordings.clock_and_cap,
        recordings.microbenchmarks, recordings.library_gemms, recordings.tf32_limits, serving_products, held_products,
    )  # fmt: skip
    return list(judged([*chain.from_iterable(read(data) for read in readers), *recordings.published_gemms()]))
