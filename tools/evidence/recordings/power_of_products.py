"""Read the recorded power of serving backends' matmuls as loads of the power model, and find contradictory readings.

The power of a loop is a mean over samples, some of which were taken before the loop ran at full speed. So of two
neighboring shapes with equal times, one may have a third of the other's power. `agreement` finds such readings by
comparing neighbors, and fits give them less weight.
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
from evidence.recordings.power import DOUBTED, Load, gemm_rates, judged
from kernrec.gpu import GPU, find_gpu

Array = np.ndarray

REACHED = 0.93
"""Fraction of the tensor cores' rate at the actual clock that the fastest large matmuls reach."""
AGREES = 0.1
"""Normal scatter: standard deviation of log power between neighboring shapes."""
MISREAD = 0.15
"""Minimum drop in log power, compared with a neighbor of equal time, that marks a reading as misread."""
BELOW, ALIKE, FEWEST = 0.2, 0.2, 20
"""Thresholds of a doubtful backend: minimum drop in log power from another backend, maximum logarithmic difference
of the compared times, and minimum number of shapes with such a drop."""
SLOW = ("b200_sxm", "TRTLLM", "fp8")
"""Matmuls that stay below `REACHED` of the rate: on the same GPU, SGLang takes two thirds of the time, including a
conversion."""
HELD = 0.95
"""Fraction of the power limit above which the limit is assumed to slow a load down."""
SHORTEST_S = 3e-5
"""Minimum seconds of the matmuls to use; launch overhead bounds the loops of shorter matmuls."""
CHOSEN = 150
"""Number of matmuls per GPU, backend and data type, evenly chosen."""
LARGE = 2e11
"""Minimum multiplications of a matmul that fills a GPU."""
SUSTAINED_S = 0.2
"""Seconds of a run that the power limit slows down from start to end. On an H200, matmuls of two backends lose a
tenth from runs of 20 ms to runs of 0.2 s, and nothing more in longer runs."""
LAUNCHES = {"TRTLLM": 12, "SGLang": 72}
"""Launches of a matmul in one run of aiconfigurator's collectors without power measurement (with it, a run takes a
second), for backends that multiply random numbers. A run has two times three warm-up rounds and six timed rounds.
TRTLLM uses one matmul whose weights exceed L2, and SGLang six. vLLM's layers keep uninitialized weights in bf16 and fp8
(`collector/vllm/collect_gemm.py`). On an A100, its matmuls run like those of zeros, at 0.95 of the peak rate, while
other backends reach 0.85."""
RANDOM_TYPES = {("TRTLLM", "bfloat16"): "bf16", ("TRTLLM", "fp8"): "fp8", ("SGLang", "bfloat16"): "f16"}
"""Data type that each collector actually multiplies; SGLang's bfloat16 is f16. Left out are SGLang's fp8 matmuls, which
include a conversion, and TensorRT-LLM's int8 matmuls (`sq`), which are timed in one launch."""

_GPUS = {
    "h200_sxm": "h200-sxm", "b200_sxm": "b200", "gb200": "gb200", "a100_sxm": "a100-sxm4-80gb", "l40s": "l40s",
}  # fmt: skip
_DTYPES: Mapping[str, tuple[str, float, float]] = {
    "bfloat16": ("mma.bf16", 2.0, 1.0), "fp8": ("mma.fp8", 1.0, 1.0), "sq": ("mma.i8", 1.0, 1.0),
    "nvfp4": ("mma.fp8", 0.5, 0.5),
}  # fmt: skip
"""Maps a data type to (event, bytes per input element, events per operation); fp4 counts as half of fp8. fp8_block
is missing, because its instructions that scale partial sums are unknown."""
_HELD = (
    ("h200_sxm", "bfloat16"), ("h200_sxm", "fp8"), ("b200_sxm", "bfloat16"), ("b200_sxm", "fp8"),
    ("gb200", "bfloat16"), ("gb200", "fp8"), ("l40s", "bfloat16"), ("l40s", "fp8"), ("l40s", "sq"),
)  # fmt: skip
"""(GPU, data type) pairs whose large matmuls run at the power limit, so that recorded power equals the limit. An
L40S reaches at least 0.93 of its peak in 8-bit integers, but much less in bf16 and fp8."""


@dataclass(frozen=True)
class Products:
    """Matmuls of one GPU, backend and data type, ordered by n, k, m; arrays (N,)."""

    system: str
    framework: str
    dtype: str
    shapes: Array
    """m, n, k; (N, 3)."""
    latency_s: Array
    power_w: Array
    """Power in watts; NaN if it was not recorded."""
    limit_w: Array

    @property
    def gpu(self) -> GPU:
        """Name of the GPU."""
        return find_gpu(_GPUS[self.system])

    @property
    def products(self) -> Array:
        """Multiplications of each matmul."""
        return np.asarray(self.shapes.astype(float).prod(axis=1))


@cache
def products(data: Path) -> tuple[Products, ...]:
    """Return the serving backends' matmuls on GPUs of the catalog, by GPU, backend and data type."""
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
    """Return (weight, whether misread) of each power, (N,). Both follow from neighbors: the next smaller and larger
    m with the same n, k and about the same time."""
    same = (these.shapes[1:, 1:] == these.shapes[:-1, 1:]).all(axis=1)
    same &= these.shapes[1:, 0] <= 1.3 * these.shapes[:-1, 0]
    same &= np.abs(np.log(these.latency_s[1:] / these.latency_s[:-1])) < 0.25
    higher = np.where(same, np.log(these.power_w[1:] / these.power_w[:-1]), np.nan)
    # Compute how far the next and the previous reading exceed each reading. The smaller distance determines the weight.
    above = np.stack([np.append(higher, np.nan), np.append(np.nan, -higher)])
    off = np.where(np.isfinite(above), np.abs(above), np.inf).min(axis=0)
    off = np.where(np.isfinite(off), off, 0.0)
    highest = np.where(np.isfinite(above), above, 0.0).max(axis=0)
    return 1.0 / (1.0 + (np.maximum(off, highest) / AGREES) ** 2), highest > MISREAD


def below_others(sets: Collection[Products]) -> dict[tuple[str, str, str], str]:
    """Map each (system, framework, dtype) with doubtful power to the backend that it is compared with. Power is
    doubtful if its median, over shapes of about equal time, is lower by more than `BELOW`."""
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
    """Return `CHOSEN` matmuls with power per GPU, backend and type, at the highest clock or at the power limit."""
    sets = [these for these in products(data) if np.isfinite(these.power_w).any()]
    below = below_others(sets)
    for these in sets:
        usual = np.flatnonzero((these.latency_s >= SHORTEST_S) & np.isfinite(these.power_w))
        if these.system == "h200_sxm" and these.dtype == "bfloat16":  # `library_gemms` already has these
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
    """Return large matmuls that run at the power limit. Their clock is computed from the assumption that the fastest
    tenth of the fastest backend's matmuls reach `REACHED` of the tensor cores' rate."""
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
    """Return large matmuls of random numbers in runs of at least `SUSTAINED_S`, which no fit uses. The clock is
    computed as in `held_products`; recorded power equals the limit."""
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
    """Return the event rates of a serving backend's matmul; data that fits in L2 is loaded from DRAM only once."""
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
    """Return every recording that the coefficients are fitted to, with doubts for contradictory rows."""
    readers = (
        recordings.roofline, recordings.fma, recordings.vector_add, recordings.clock_and_cap,
        recordings.microbenchmarks, recordings.library_gemms, recordings.tf32_limits, serving_products, held_products,
    )  # fmt: skip
    return list(judged([*chain.from_iterable(read(data) for read in readers), *recordings.published_gemms()]))
