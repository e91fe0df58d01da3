"""Read recorded powers of real GPUs, with the rates of the events in the power model.

Each recording consists of loads with their power at a known core clock. The events per second follow from recorded
rates (FLOP/s, bytes/s, pipe activity), or from the problem and its time. The README of the
shared data folder describes the data.

A row that contradicts its GPU or other rows is marked with a doubt and has less weight in fits.
"""

import tomllib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import mean
from typing import Any

from evidence.recordings.files import named, recorded_dicts
from kernrec.gpu import find_gpu
from kernrec.model.analytical.power import PowerModel

_TABLES: Mapping[str, Any] = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
TF32_CYCLES = 0.279605 * 210e6
"""Core cycles of the recorded TF32 matmul on the RTX 3090. They were computed from the matmul's time under the limit of
100 W, where the GPU runs at its lowest clock."""
TF32_DRAM_BYTES = 41e9
"""DRAM traffic of the recorded TF32 matmul in bytes. The matmul takes equally long under limits of 300 and 450 W, so
DRAM must be the bottleneck, at 0.9 of 936 GB/s."""
MISREAD_M = (3, 17, 32, 64, 128, 192, 256, 257, 512, 513)
"""Values of m for which the recorded power of H200 GEMMs is wrong. The power is about half of the power for `m - 1` and
`m + 1`, at equal throughput."""
LIKE_CONSTANTS = ("a100-sxm4-40gb",)
"""GPUs on which FMAs of streamed data take as much energy as FMAs of constants. On GPUs with 128 lanes per SM,
streamed data takes 1.9 times as much. The factor 1.9 would raise the error of the A100's fit from 1.9 to 4.4 %."""
SHORT_S = 1e-4
"""Time in seconds below which the recorded power of matmuls with m > 256 is wrong. From k = 1024 to 16384, the
throughput of 1025 x 4096 x k hardly changes, but the recorded power rises from 230 to 690 W."""


@dataclass(frozen=True)
class Load:
    """Workload that ran on a GPU, with its recorded power."""

    recording: str
    gpu: str
    clock_hz: float
    power_w: float
    rates: Mapping[str, float]
    """Events per second, by name of the event in the power model."""
    limit_w: float | None = None
    """Power limit in watts. It is None if the load cannot reach the limit."""
    latency_s: float = 0.0
    """Time of one run in seconds, or 0 if it is unknown."""
    about: str = ""
    """Description of the load within its recording."""
    inputs: str = "random"
    """Kind of operand values: one of the power model's `INPUTS`."""
    weight: float = 1.0
    """Weight of the load in a fit. It is 1 if there is no doubt about the load."""
    doubt: str = ""
    """Description of a contradiction within the recording or with other recordings. It is empty if there is none."""


def moved(bytes_per_s: float) -> dict[str, float]:
    """Return the event rates of memory traffic that passes once through DRAM, L2 and L1."""
    return {"dram.bytes": bytes_per_s, "l2.sectors": bytes_per_s / 32, "l1.requests": bytes_per_s / 128}


def roofline(data: Path) -> Iterator[Load]:
    """Yield streams of increasing arithmetic intensity at the observed clocks, averaged over the GPUs of a node."""
    gpus = {"alex_a100_40": "a100-sxm4-40gb", "alex_a40": "a40", "genoa_l40": "l40", "h200": "h200-sxm"}
    # Two different GPUs are called L40 in the recording. One draws up to 359 W, so it must be an L40S.
    other = "file = 'genoa_l40' AND (max(power_w) OVER (PARTITION BY file, card)) > 330"
    columns = f"*, CASE WHEN {other} THEN 'l40s' ELSE {named('file', gpus)} END AS gpu"
    groups = defaultdict(list)
    for row in recorded_dicts(data / "power" / "roofline_load.parquet", columns=columns):
        groups[row["file"], row["gpu"] or "t4", row["flop_per_byte"]].append(row)
    for (file, gpu, intensity), group in groups.items():
        bytes_per_s, flops, mhz, power_w = (mean(r[c] for r in group) for c in ("gb_s", "gflop_s", "sm_mhz", "power_w"))
        rates = moved(bytes_per_s * 1e9) | {"issue.fma32": flops * 1e9 / 64}
        inputs, about = "zeros" if gpu in LIKE_CONSTANTS else "random", f"{file}, {intensity:g} FLOP/B"
        yield Load(f"roofline {gpu}", gpu, mhz * 1e6, power_w, rates, about=about, inputs=inputs)


def tabled(data: Path) -> Iterator[Load]:
    """Yield the loads of `power.toml`, whose columns are fields of a load, rates of events, and bytes per second."""
    for each in _TABLES["load"]:
        for row in recorded_dicts(data / each["file"], each.get("condition", "true"), each["columns"]):
            rates = {name: row.pop(name) for name in list(row) if "." in name}
            if "bytes_per_s" in row:
                rates = moved(row.pop("bytes_per_s")) | rates
            yield Load(rates=rates, **row)


_RTX_8000 = "quadro-rtx-8000"


def microbenchmarks(data: Path) -> Iterator[Load]:
    """Yield mixbench and shmembench on a Quadro RTX 8000 at ten clocks, with pipe activity from DCGM."""
    # The widest accesses reach 0.95 of the peak rate. Narrower accesses took 1.04 and 1.16 times as long.
    widths = {"benchmark_float": (1, 0.82), "benchmark_two_float": (2, 0.92), "benchmark_four_float": (4, 0.95)}
    for row in recorded_dicts(data / "power" / "rtx8000_microbenchmarks_dvfs.parquet"):
        name, rates = row["benchmark"].split("-")[0], _dcgm_rates(row)
        if name == "mixbench" and "int" in row["kernel"]:
            rates["issue.imad"] = rates.pop("issue.fma32")
        elif name == "shmembench" and row["DRAMA"] < 0.1:
            words, reached = widths[row["kernel"]]
            wavefronts = find_gpu(_RTX_8000).sms * row["core_frequency"] * 1e6 * reached
            rates |= {"issue.fma32": 0.0, "shared.wavefronts": wavefronts, "issue.other": wavefronts / words}
        elif name != "mixbench":
            continue
        yield _of_rtx_8000(name, row, rates)


def kernels(data: Path) -> Iterator[Load]:
    """Yield 20 kernels of benchmark suites on a Quadro RTX 8000. DCGM measured FMA, f64 and DRAM activity. Other rates
    follow from the PTX and are limited by the SM's issue rate."""
    for row in recorded_dicts(data / "power" / "rtx8000_kernels_dvfs.parquet"):
        rates = _dcgm_rates(row)
        counts = {name: sum(row[opcode] for opcode in opcodes.split()) for name, opcodes in _TABLES["opcodes"].items()}
        f64 = min(row["f64"], counts["arithmetic"])
        runs = max(
            rates["issue.fma32"] / max(counts["arithmetic"] - f64, 1.0), rates["issue.f64"] / f64 if f64 else 0.0
        )
        runs = min(runs, 4 * find_gpu(_RTX_8000).sms * row["core_frequency"] * 1e6 / sum(counts.values()))
        rates |= {name: count * runs for name, count in counts.items() if name != "arithmetic"}
        yield _of_rtx_8000("kernels", row, rates | {"shared.wavefronts": row["shared"] * runs})


def _dcgm_rates(row: Mapping[str, Any]) -> dict[str, float]:
    gpu = find_gpu(_RTX_8000)
    clocks = gpu.sms * row["core_frequency"] * 1e6
    issued = {"issue.fma32": 2 * clocks * row["FP32A"], "issue.f64": clocks / 16 * row["FP64A"]}
    return moved(row["DRAMA"] * gpu.memory_bandwidth) | issued


def _of_rtx_8000(name: str, row: Mapping[str, Any], rates: Mapping[str, float]) -> Load:
    about, seconds = f"{row['benchmark']} {row['kernel']} {row['argNo']}", row["time"] * 1e-3
    clock_hz, power_w = row["core_frequency"] * 1e6, row["average_power"]
    return Load(f"{name} RTX 8000", _RTX_8000, clock_hz, power_w, rates, latency_s=seconds, about=about)


def gemm_rates(
    shape: tuple[int, int, int], seconds: float, sharing: float = 1.0, reads: float = 1.0
) -> dict[str, float]:
    """Return the event rates of a library's bf16 matmul with 128 x 256 tiles and 64 rows per warpgroup. `sharing`
    blocks share one read of a tile from L2. Each tensor passes between L2 and DRAM `reads` times."""
    m, n, k = shape
    rows_done = -(-m // 64) * 64
    tile_m = min(128, rows_done)
    tile_n = min(256, n) if tile_m == 128 else min(128, n)
    products = float(m) * n * k
    done = float(rows_done) * n * k
    counts = {
        "mma.bf16": 2 * products,
        "dram.bytes": reads * 2.0 * (m * k + n * k + m * n),
        "l2.sectors": 2 * products * (1 / min(m, tile_m) + 1 / tile_n) / 32 / sharing,
        "shared.wavefronts": 2 * done * (1 / 64 + 1 / tile_m + 2 / tile_n) / 128,
    }
    return {name: count / seconds for name, count in counts.items()}


def library_gemms(data: Path, wrong: bool = False) -> Iterator[Load]:
    """Yield a serving backend's bf16 matmuls on an H200, at the highest clock unless the limit is reached. If `wrong`,
    yield the rows with wrong power instead (`MISREAD_M` and `SHORT_S`)."""
    condition = f"(m IN {MISREAD_M} OR (m > 256 AND latency_s < {SHORT_S})) = {wrong}"
    columns = "m, n, k, power AS power_w, power_limit AS limit_w, latency_s"
    for row in recorded_dicts(data / "library" / "gemm_h200_power.parquet", condition, columns):
        shape = m, n, k = row.pop("m"), row.pop("n"), row.pop("k")
        rates = gemm_rates(shape, row["latency_s"], sharing=2.0 if m > 128 else 1.0)
        yield Load("GEMM H200", "h200-sxm", 1.98e9, rates=rates, about=f"{m} x {n} x {k}", **row)


def tf32_limits(data: Path) -> Iterator[Load]:
    """Yield a TF32 matmul of 8192 x 8192 x 8192 on an RTX 3090 under power limits. The clock is the lowest at 100 W,
    follows from the time at 200 W, and is unknown (0) above 200 W, where DRAM is the bottleneck."""
    columns = f"""power_limit_w::DOUBLE AS limit_w, power_w::DOUBLE AS power_w, latency_s, m::DOUBLE ** 3 AS products,
        if(limit_w < 300, greatest({TF32_CYCLES} / latency_s, 210e6), 0.0) AS clock_hz,
        stages || ' stages, ' || power_limit_w || ' W' AS about"""
    for row in recorded_dicts(data / "anchors" / "matmul_tf32_limits_rtx3090.csv", columns=columns):
        counts = tf32_counts(row.pop("products"))
        rates = {name: count / row["latency_s"] for name, count in counts.items()}
        yield Load("TF32 RTX 3090", "rtx3090", rates=rates, **row)


def tf32_counts(products: float) -> dict[str, float]:
    """Return the event counts of the recorded TF32 matmul with `products` multiplications. Its tiles are 64 x 64 x 32,
    the part of a warp is 32 x 32, and the instructions are 16 x 8 x 8."""
    return {
        "mma.tf32": 2 * products,
        "issue.mma": products / 1024,
        "issue.other": products / 1024,
        "shared.wavefronts": products * (8 / 32 + 8 / 64) / 128,
        "l2.sectors": products * (8 / 64) / 32,
        "dram.bytes": TF32_DRAM_BYTES * products / 8192**3,
    }


def published_gemms(_data: Path) -> Iterator[Load]:
    """Yield large bf16 matmuls that ran at the GPU's power limit. The clock follows from their throughput."""
    for each in _TABLES["gemm"]:
        rates = gemm_rates((8192, 8192, 8192), 2 * 8192**3 / each["flops"], reads=3.0)
        yield Load(f"bf16 GEMM {each['gpu']}", each["gpu"], each["clock_hz"], each["power_w"], rates)


DOUBTED = 0.1
"""Weight of a doubtful load in a fit."""
FALLS = 0.1
"""Minimum relative drop of power at a higher clock, for the same work, that marks a load as doubtful."""
ABOVE = 0.05
"""Fraction by which valid readings may exceed a GPU's limit, bandwidth or clock."""


def judged(loads: Iterable[Load]) -> Iterator[Load]:
    """Yield all loads. A load that contradicts its GPU or its sweep gets a `doubt` and the weight `DOUBTED`."""
    every = list(loads)
    sweeps: dict[tuple[str, str], list[Load]] = defaultdict(list)
    for load in every:
        if load.latency_s and load.about and not load.limit_w:
            sweeps[load.recording, load.about].append(load)
    falls = set()
    for sweep in sweeps.values():
        highest_w = 0.0
        for load in sorted(sweep, key=lambda load: load.clock_hz):
            falls |= {id(load)} if load.power_w < (1 - FALLS) * highest_w else set()
            highest_w = max(highest_w, load.power_w)
    for load in every:
        doubt = "less power at a higher clock" if id(load) in falls else contradiction(load)
        yield replace(load, doubt=doubt, weight=load.weight * DOUBTED) if doubt and not load.doubt else load


def contradiction(load: Load) -> str:
    """Return why a load is impossible on its GPU, or an empty text if the load is possible."""
    gpu = find_gpu(load.gpu)
    model = PowerModel.for_gpu(gpu)
    if load.clock_hz and not model.minimum_hz * (1 - ABOVE) <= load.clock_hz <= model.maximum_hz * (1 + ABOVE):
        return "a clock that the GPU does not have"
    if load.rates.get("dram.bytes", 0.0) > gpu.memory_bandwidth * (1 + ABOVE):
        return "more bandwidth than the GPU has"
    peak = gpu.fma_per_clk_sm["f32"] / 32 * gpu.sms * load.clock_hz
    if load.clock_hz and load.rates.get("issue.fma32", 0.0) > peak * (1 + ABOVE):
        return "more FMA than that clock allows"
    # Even a valid load may exceed the power limit if the clock cannot fall further.
    if load.limit_w and load.power_w > load.limit_w * (1 + ABOVE) and load.clock_hz > model.minimum_hz:
        return "more power than the limit"
    return ""
