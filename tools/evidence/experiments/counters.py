"""Compare the emulator's counts with Nsight's counts on a real GPU, config by config.

The recordings (`counters/*.parquet`, RTX 2080 Ti, Kernel Tuning Toolkit) contain a 15x15 convolution, point in polygon
and a 3-D Coulomb sum from HiPerCoRe/KTT (`--sources`). A random sample of configs is compiled with the recorder's
options and a newer compiler, and a sample of the blocks is emulated. L2 read sectors are compared only if the code fits
in the instruction cache, because the counter includes fetches. The recorder never initialized constant memory, so point
in polygon divides zero by zero. The exit status is 1 if an error (median, 90th percentile) misses its aim.
"""

import random
import tomllib
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from front import DATA, Data, Sources, Table

from evidence.predicted import ZERO_BY_ZERO
from evidence.recordings.files import AbsentError, recorded_dicts
from kernrec.compile.compiled import CompileCache, CompileJob
from kernrec.compile.nvrtc import compile_job
from kernrec.gpu import find_gpu, l1_bytes, occupancy
from kernrec.model.analytical.dram_traffic import sampled_dram_bytes
from kernrec.profile.launch_profile import entry_name
from kernrec.profile.sample_profile import AXES, SAMPLING, sampled_counts
from kernrec.ptx import KernelLaunch, parse
from kernrec.ptx.analysis.lowering import lowered
from kernrec.ptx.ir.program import Function
from kernrec.recommender.estimate.sampled_launch import footprints, held_by_l1
from kernrec.store import ProfileTable

Row = Mapping[str, Any]
_GPU = find_gpu("rtx2080ti")
_BUDGET, _LEAST = 20_000_000, 0.05
_INSTRUCTION_CACHE = 48 * 1024
"""Maximum size in bytes of machine code for which L2 sectors are compared. 1,320 convolutions of up to 52 KiB read 1.00
to 1.04 times a block's distinct sectors. Convolutions of at least 60 KiB read 1.5 times these sectors."""


_TABLES = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
COUNTERS: Mapping[str, Row] = _TABLES["counter"]
KERNELS: Mapping[str, Row] = _TABLES["kernel"]
_KINDS = ("fp32", "integer", "control", "memory", "misc")
_CLASSES = [f"smsp__sass_thread_inst_executed_op_{kind}_pred_on.sum" for kind in _KINDS]


def run(
    data: Data = DATA, sources: Sources = None, configs: int = 40, seed: int = 0, processes: int = 2,
    kernel: Annotated[list[str] | None, typer.Option()] = None,
) -> int:  # fmt: skip
    """Compare a random sample of at most `configs` configs of each kernel, and print the tables."""
    missed = []
    recorded = [f'"{column}" IS NOT NULL' for counter in COUNTERS.values() for column in counter["recorded"]]
    for name in kernel or KERNELS:
        chosen = KERNELS[name]
        recording = data / "counters" / f"{chosen['recording']}-{_GPU.name}.parquet"
        source = next(iter(sorted(sources.rglob(chosen["source"]))), None) if sources else None
        if source is None or not recording.is_file():
            print(f"skipped {name}: no {recording if source else chosen['source'] + ' in --sources'}")
            continue
        order = ", ".join(f'"{tunable}"' for tunable in chosen["tunables"])
        condition = " AND ".join(["outcome = 'Ok'", chosen.get("condition", "true"), *recorded])
        rows = recorded_dicts(recording, f"{condition} ORDER BY {order}")
        sample = random.Random(seed).sample(rows, min(configs, len(rows)))
        with ProcessPoolExecutor(processes) as pool:
            missed.append(_report(name, list(pool.map(partial(_compared, chosen, source.read_text()), sample))))
    if not missed:
        raise AbsentError("nothing to compare")
    return int(any(missed))


def _report(kernel: str, compared: Sequence[Mapping[str, float]]) -> bool:
    """Print the table of a kernel, and return whether an error misses its aim."""
    table, missed = Table(f"\n{kernel}: {len(compared)} configs"), False
    for name, counter in COUNTERS.items():
        ratios = np.array([ratio for each in compared if (ratio := each.get(name)) is not None])
        if len(ratios):
            off, aims = np.abs(ratios - 1.0), counter.get("aim")
            figures = float(np.median(off)), float(np.quantile(off, 0.9, method="higher"))
            # Allow 0.1 % for rounding.
            late = aims is not None and any(figure > aim + 1e-3 for figure, aim in zip(figures, aims, strict=True))
            aim = "" if aims is None else f"{aims[0]:.0%} and {aims[1]:.0%}" + ", missed" * late
            cells: dict[str, object] = {"counter": name, "median": f"{figures[0]:.2%}", "p90": f"{figures[1]:.2%}"}
            table.row({**cells, "counted/recorded": f"{np.median(ratios):.3f}", "aim": aim})
            missed |= late
    return missed


def _compared(kernel: Row, source: str, row: Row) -> dict[str, float]:
    counts, ratios = _counted(kernel, source, row), {}
    for title, counter in COUNTERS.items():
        recorded = float(sum(row[column] for column in counter["recorded"]))
        whole = sum(float(row[column]) for column in _CLASSES) if counter.get("whole") else 0.0
        base = max(recorded, _LEAST * whole)
        if base and not (counter.get("cached") and counts["code_bytes"] > _INSTRUCTION_CACHE):
            ratios[title] = 1.0 + (_sum(counts, counter["counted"]) - recorded) / base
    return ratios


def _sum(counts: Row, metrics: Sequence[str]) -> float:
    return float(sum(count for name, count in counts.items() if any(fnmatchcase(name, each) for each in metrics)))


def _counted(kernel: Row, source: str, row: Row) -> dict[str, float]:
    config = {name: int(row[name]) for name in kernel["tunables"]}
    job = CompileJob(source, _GPU.sm, config, kernel["source"], tuple(kernel.get("options", ())))
    compiled = compile_job(job, CompileCache.default())
    module = parse(compiled.ptx)
    entry = entry_name(module.functions, str(row["kernel"]))
    grid, block = ([int(row[f"{extent}_{axis}"]) for axis in AXES] for extent in ("grid", "block"))
    buffers = {name: np.zeros(size, np.float32) for name, size in kernel["buffers"].items()}
    for name in kernel.get("random", ()):
        buffers[name] = np.random.default_rng(0).random(len(buffers[name]), np.float32)
    kinds: Mapping[type, Any] = {str: str, int: np.int32, float: np.float32}
    launch = KernelLaunch(entry, grid, block, [kinds[type(each)](each) for each in kernel["arguments"]], buffers)
    lowering = _dividing_zeros if kernel.get("divides_zeros") else lowered
    per_block = sampled_counts(
        module, launch, replace(SAMPLING, budget=_BUDGET, lanes_by_class=True, lowering=lowering)
    )
    blocks, threads, resources = int(np.prod(grid)), int(np.prod(block)), compiled.resources[entry]
    counts: dict[str, float] = {metric: value * blocks for metric, value in per_block.items()}
    held = int(occupancy(_GPU.limits, threads, resources.registers, resources.static_smem_bytes).blocks)
    counts["registers"] = resources.registers
    counts["code_bytes"] = len(compiled.cubin)  # This includes small headers.
    in_l1, counts["dram_sectors"] = _cached(per_block, launch, held, resources.static_smem_bytes)
    counts["l2_read_sectors"] = _sum(counts, ["global.*.read_sectors"]) * (1.0 - in_l1)
    return counts


def _dividing_zeros(function: Function) -> list[dict[str, int]]:
    """Lower a function to machine instructions, assuming that every IEEE division computes 0/0."""
    costs = [dict(cost) for cost in lowered(function)]  # Copy, because `lowered` caches its result.
    for block, cost in zip(function.blocks, costs, strict=True):
        divisions = sum(ins.name == "div.rn.f32" for ins in block.instructions)
        for name, count in ZERO_BY_ZERO.items():
            cost[name] = cost.get(name, 0) + divisions * count
    return costs


def _cached(per_block: Row, launch: KernelLaunch, held: int, shared_bytes: int) -> tuple[float, float]:
    """Return (fraction of the requested sectors that hit in L1, sectors that move between L2 and DRAM). An SM holds
    `held` blocks."""
    none, metrics = np.zeros(1, np.int64), tuple(per_block)
    counts = np.array([[[per_block[metric]] for metric in metrics]])
    table = ProfileTable(0, "", ("",), none, none, none, none, metrics, ("block",), counts)
    resident = np.array([max(min(held, -(-int(np.prod(launch.grid)) // _GPU.sms)), 1)])
    cache = l1_bytes(_GPU.limits, resident, np.array([shared_bytes])) / resident
    touched = footprints(
        table, none, {name: float(array.nbytes) for name, array in launch.buffers.items()}, frozenset()
    )
    x, y, z = (np.float64(extent) for extent in launch.grid)
    moved = sampled_dram_bytes((x, y, z), touched, np.float64(max(held, 1) * _GPU.sms), float(_GPU.l2_bytes))
    return float(held_by_l1(table, cache)[0][0]), float(np.ravel(moved)[0]) / 32.0
