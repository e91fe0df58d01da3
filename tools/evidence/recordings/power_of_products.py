"""Read the recorded power of serving backends' matmuls as loads of the power model, and find contradictory readings.
The recorded power of a shape may be a third of a neighbor's, because some samples were taken before the GPU
reached full speed. `agreement` compares neighbors. Fits give contradictory readings less weight."""

import tomllib
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from itertools import chain, permutations
from pathlib import Path
from typing import Any

import numpy as np

from evidence.recordings import power as recordings
from evidence.recordings.files import NAMES
from evidence.recordings.matmul import columns_of, grouped
from evidence.recordings.power import DOUBTED, Load, gemm_rates, judged
from kernrec.gpu import GPU, find_gpu

Array = np.ndarray

REACHED = 0.93
"""Fraction of the tensor cores' rate that the fastest large matmuls reach at the actual clock."""
AGREES = 0.1
"""Standard deviation of log(power / power of a neighboring shape) in correct readings."""
MISREAD = 0.15
"""A reading counts as wrong if log(power of a neighbor of equal time / power) exceeds this value."""
BELOW, ALIKE, FEWEST = 0.2, 0.2, 20
"""Thresholds for doubting all powers of a backend, compared with another backend: minimum median of log(power of the
other backend / power), maximum logarithmic difference of the times, minimum number of shapes."""
HELD = 0.95
"""Fraction of the power limit above which the limit is assumed to slow down a load."""
SHORTEST_S = 3e-5
"""Minimum time in seconds of the matmuls to use. In loops of shorter matmuls, launch overhead is the bottleneck."""
CHOSEN = 150
"""Approximate number of matmuls per GPU, backend and data type, chosen at even intervals."""
LARGE = 2e11
"""Minimum number of multiplications of a matmul that fills a GPU."""
SUSTAINED_S = 0.2
"""Time in seconds of a run during which the power limit slows down almost all launches. On an H200, the matmuls of two
backends are a tenth slower in runs of 0.2 s than in runs of 20 ms. Longer runs are not slower."""
_TABLES: Mapping[str, Any] = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
_DTYPES: Mapping[str, tuple[str, float, float]] = _TABLES["dtypes"]
"""(Event, bytes per input element, events per operation), keyed by data type."""


@dataclass(frozen=True)
class Products:
    """Matmuls of one GPU, backend and data type, ordered by n, k and m. Arrays are (N,)."""

    system: str
    framework: str
    dtype: str
    shapes: Array
    """Sizes (m, n, k) of each matmul, (N, 3)."""
    latency_s: Array
    power_w: Array
    """Power in watts, or NaN if it was not recorded."""
    limit_w: Array

    @property
    def gpu(self) -> GPU:
        return find_gpu(NAMES["systems"][self.system])


@cache
def products(data: Path) -> tuple[Products, ...]:
    """Return the serving backends' matmuls on GPUs in the catalog, with one entry per GPU, backend and data type."""
    kind = ("system", "framework", "dtype")
    names = (*kind, "n", "k", "m", "latency_s", "power_w", "power_limit_w")
    condition = f"system IN {tuple(_TABLES['systems'])} AND dtype IN {tuple(_DTYPES)}"
    columns = columns_of(data / "library" / "serving_gemm.parquet", names, condition)
    sets = []
    for (system, framework, dtype), own in grouped(columns, *kind).items():
        shapes = np.column_stack([own[name] for name in "mnk"])
        sets.append(Products(system, framework, dtype, shapes, *(own[name] for name in names[6:])))
    return tuple(sets)


def agreement(these: Products) -> tuple[Array, Array]:
    """Return (weight of each power in a fit, whether the power is wrong), (N,) each. Each power is compared with the
    powers for the next smaller and larger m, at equal n and k and about equal time."""
    same = (these.shapes[1:, 1:] == these.shapes[:-1, 1:]).all(axis=1)
    same &= these.shapes[1:, 0] <= 1.3 * these.shapes[:-1, 0]
    same &= np.abs(np.log(these.latency_s[1:] / these.latency_s[:-1])) < 0.25
    higher = np.where(same, np.log(these.power_w[1:] / these.power_w[:-1]), np.nan)
    # The weight depends on the smaller of the differences to the next and to the previous reading.
    above = np.stack([np.append(higher, np.nan), np.append(np.nan, -higher)])
    off = np.where(np.isfinite(above), np.abs(above), np.inf).min(axis=0)
    off = np.where(np.isfinite(off), off, 0.0)
    highest = np.where(np.isfinite(above), above, 0.0).max(axis=0)
    return 1.0 / (1.0 + (np.maximum(off, highest) / AGREES) ** 2), highest > MISREAD


def below_others(sets: Collection[Products]) -> dict[tuple[str, str, str], str]:
    """Return the backends with doubtful power: (system, framework, dtype) -> other backend. Both backends take about
    equal time on some shapes, but the median of log(power of the other backend / power) exceeds `BELOW`."""
    doubtful = {}
    for these, other in permutations(sets, 2):
        if (other.system, other.dtype) != (these.system, these.dtype):
            continue
        place = {tuple(shape): i for i, shape in enumerate(these.shapes.tolist())}
        pairs = [(place[tuple(s)], j) for j, s in enumerate(other.shapes.tolist()) if tuple(s) in place]
        if pairs:
            i, j = np.array(pairs).T
            seconds = these.latency_s[i]
            alike = (np.abs(np.log(seconds / other.latency_s[j])) < ALIKE) & (seconds >= SHORTEST_S)
            alike &= (agreement(these)[0][i] > 0.5) & (agreement(other)[0][j] > 0.5)
            lower = np.log(other.power_w[j] / these.power_w[i])[alike]
            if len(lower) >= FEWEST and np.nanmedian(lower) > BELOW:
                doubtful[these.system, these.framework, these.dtype] = other.framework
    return doubtful


def serving_products(data: Path) -> Iterator[Load]:
    """Yield about `CHOSEN` matmuls with recorded power for each GPU, backend and data type. They are assumed to run at
    the highest clock unless they reach the power limit."""
    sets = [these for these in products(data) if np.isfinite(these.power_w).any()]
    below = below_others(sets)
    for these in sets:
        usual = np.flatnonzero((these.latency_s >= SHORTEST_S) & np.isfinite(these.power_w))
        if these.system == "h200_sxm" and these.dtype == "bfloat16":  # `library_gemms` handles these.
            continue
        weight, wrong = agreement(these)
        gpu, doubted = these.gpu, below.get((these.system, these.framework, these.dtype))
        for i in usual[:: max(len(usual) // CHOSEN, 1)]:
            shape, seconds = tuple(these.shapes[i].tolist()), float(these.latency_s[i])
            yield Load(
                f"{these.dtype} {gpu.name}, {these.framework}", gpu.name, gpu.boost_clock_hz, float(these.power_w[i]),
                rates_of(gpu, these.dtype, shape, seconds), float(these.limit_w[i]), seconds,
                " x ".join(map(str, shape)), weight=float(weight[i]) * (DOUBTED if doubted else 1.0),
                doubt=f"below {doubted}" if doubted else "below its neighbors" if wrong[i] else "",
            )  # fmt: skip


def held_products(data: Path) -> Iterator[Load]:
    """Yield large matmuls that run at the power limit, one for each GPU and data type. Their clock is computed from the
    assumption that the fastest tenth of the fastest backend's matmuls reaches `REACHED` of the tensor cores' rate."""
    fastest: dict[tuple[str, str], tuple[float, Products, int]] = {}
    for these in products(data):
        key = these.system, these.dtype
        if (
            list(key) in _TABLES["held"]
            and (fast := _fast(these))
            and (key not in fastest or fast[0] > fastest[key][0])
        ):
            fastest[key] = fast[0], these, fast[1]
    for (_, dtype), (rate, these, place) in fastest.items():
        load = _at_limit(these, place, rate, _DTYPES[dtype][0].removeprefix("mma."))
        yield replace(load, recording=f"held {dtype} {load.gpu}", clock_hz=min(load.clock_hz, these.gpu.boost_clock_hz))


def sustained_products(data: Path) -> Iterator[Load]:
    """Yield large matmuls of random numbers in runs of at least `SUSTAINED_S`, which are not used in any fit. The clock
    is computed as in `held_products`. The power is assumed to equal the limit."""
    for these in products(data):
        kind = _TABLES["random"].get(these.framework, {}).get(these.dtype)
        if kind is None or [these.system, these.framework, these.dtype] == _TABLES["slow"]:
            continue
        held, in_long_run = (
            these.power_w > HELD * these.limit_w,
            these.latency_s * _TABLES["launches"][these.framework] >= SUSTAINED_S,
        )
        if fast := _fast(these, np.where(np.isfinite(these.power_w), held, in_long_run)):
            load = _at_limit(these, fast[1], fast[0], kind)
            rates = dict(load.rates)
            rates[f"mma.{kind}"] = rates.pop(_DTYPES[these.dtype][0])
            yield replace(load, recording=f"{kind} {load.gpu}, {these.framework}", rates=rates)


def _fast(these: Products, among: Array | bool = True) -> tuple[float, int] | None:
    """Return (FLOP/s, index) of the large matmul at the 90th percentile of FLOP/s. `among` is a mask of matmuls, (N,).
    Return None if there are fewer than ten large matmuls."""
    products = these.shapes.astype(float).prod(axis=1)
    large = np.flatnonzero((products > LARGE) & (these.shapes.min(axis=1) >= 2048) & among)
    rate = 2.0 * products[large] / these.latency_s[large]
    place = np.argsort(rate)[int(0.9 * len(rate))] if len(large) >= 10 else None
    return None if place is None else (float(rate[place]), int(large[place]))


def _at_limit(these: Products, place: int, rate: float, kind: str) -> Load:
    """Return a matmul as a load at the power limit. Derive the clock from its FLOP/s, `rate`: a matmul is assumed to
    reach the fraction `REACHED` of the tensor cores' rate for the data type `kind`."""
    gpu, shape = these.gpu, these.shapes[place].tolist()
    clock_hz = rate / (2.0 * gpu.tensor_fma_per_clk_sm[kind] * gpu.sms * REACHED)
    rates = rates_of(gpu, these.dtype, shape, float(these.latency_s[place]), reads=3.0)
    return Load("", gpu.name, clock_hz, gpu.tdp_w, rates, about=" x ".join(map(str, shape)))


def rates_of(gpu: GPU, dtype: str, shape: Any, seconds: float, reads: float = 1.0) -> dict[str, float]:
    """Return the event rates of a serving backend's matmul. Data that fits in L2 causes no DRAM traffic."""
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
    """Return all loads to which the power model is fitted. Contradictory loads are marked with a doubt."""
    readers = (
        recordings.roofline, recordings.tabled, recordings.microbenchmarks, recordings.library_gemms,
        recordings.tf32_limits, serving_products, held_products, recordings.published_gemms,
    )  # fmt: skip
    return list(judged(chain.from_iterable(read(data) for read in readers)))
