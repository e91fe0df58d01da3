"""Hold the emulator's counts against what Nsight counted on a real card, config by config.

    python tools/compare_counters.py --sources FOLDER [--data ../shared/data] [--configs 40] [--seed 0] [--kernel NAME]

The recordings (`counters/*.parquet`, RTX 2080 Ti, made with the Kernel Tuning Toolkit) are of three kernels: a 15x15
convolution, point in polygon and a 3-D Coulomb sum. FOLDER holds their public sources, from HiPerCoRe/KTT:
`KernelTunerConvolution.cu`, `KernelTunerPnpoly.cu` and `CoulombSum3d.cu`, in any subfolder. A random sample of the
configs of each is compiled for sm_75 with the recorder's options, emulated on sampled blocks, and compared counter by
counter: the median of the relative error and its 90th percentile, the aims, and the configs that are furthest off.
Nothing is fitted. Registers, spills and unrolling are the compiler's, which is newer than the recorder's. Skips a
kernel whose source or recording is absent; exits 1 when an aim is missed, 2 where there is nothing to compare.

L2 read sectors are compared where the code fits the instruction cache: beyond it the recorded counter has
instructions, too, which every SM fetches through L2.

The recorder never wrote the constant memory of its kernels, so it is zero here as well: the divisions of point in
polygon are of zero by zero.
"""

import argparse
import random
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import duckdb
import numpy as np

from kernrec.compile.cache import CompileCache
from kernrec.compile.compiled import CompileJob
from kernrec.compile.nvrtc import compile_job
from kernrec.gpu import find_gpu, l1_bytes, occupancy
from kernrec.model.prior.dram_traffic import Footprint, sampled_dram_bytes
from kernrec.profile.emulated_launch import entry_name
from kernrec.profile.sample_profile import AXES, SAMPLING, sampled_counts
from kernrec.ptx import KernelLaunch, parse
from kernrec.ptx.analysis.lowering import lowered
from kernrec.ptx.execution.emulator import Lowering
from kernrec.ptx.ir.program import Function
from kernrec.recommender.estimate.sampled_launch import held_by_l1
from kernrec.store import ProfileTable

Row = Mapping[str, Any]
Array = np.ndarray

_SM, _GPU = 75, "rtx2080ti"
_BUDGET, _LEAST = 20_000_000, 0.05


@dataclass(frozen=True)
class RecordedKernel:
    """A kernel with recorded counters."""

    name: str
    """What this tool calls it."""
    source: str
    """Name of the file that holds its source."""
    tunables: tuple[str, ...]
    """Columns that the source sees as macros."""
    arguments: Callable[[], tuple[list[Any], dict[str, Array]]]
    """The arguments of its launch, and its buffers."""
    options: tuple[str, ...] = ()
    """Further options that the recorder compiled it with."""
    lowering: Lowering = lowered
    """The machine instructions of its basic blocks."""
    recording: str = ""
    """The beginning of its recording's name, if it is not its own."""
    chosen: Callable[[Row], bool] = lambda row: True
    """Which of the recorded configs are compared."""


def _convolution() -> tuple[list[Any], dict[str, Array]]:
    image, border = 4096, 14
    sizes = {"output": image**2, "input": (image + border) ** 2, "filter": (border + 1) ** 2}
    return list(sizes), {name: np.zeros(size, np.float32) for name, size in sizes.items()}


def _point_in_polygon() -> tuple[list[Any], dict[str, Array]]:
    points = 20_000_000
    buffers = {
        "bitmap": np.zeros(points, np.int32),
        "points": np.random.default_rng(0).random(2 * points, np.float32),
        "vertices": np.zeros(1200, np.float32),
    }
    return [*buffers, np.int32(points)], buffers


def _coulomb() -> tuple[list[Any], dict[str, Array]]:
    side, atoms = 256, 64
    buffers = {"atoms": np.zeros(4 * atoms, np.float32)}
    buffers |= {f"atoms_{name}": np.zeros(atoms, np.float32) for name in "xyzw"}
    buffers["energy"] = np.zeros(side**3, np.float32)
    names = list(buffers)
    return [*names[:5], np.int32(atoms), np.float32(0.5), np.int32(side), names[5]], buffers


ZERO_BY_ZERO = {"alu": 8, "setp": 2, "fcmp": 2, "mufu": 1, "move": 5, "branch": 6}
"""What the assembler's function for operands that are not normal executes for 0/0, with its call: ptxas 13, sm_75."""
_INSTRUCTION_CACHE = 48 * 1024
"""Bytes of machine code up to which the recorded convolutions read no more from L2 than their data: the median of
1,320 configs is 1.00 to 1.04 times the distinct sectors of a block up to 52 KiB of executed code, 1.5 at 60 to 80."""
_DRAM_SECTORS = ("dram__sectors_read.sum", "dram__sectors_write.sum")


def _dividing_zeros(function: Function) -> list[dict[str, int]]:
    """`lowered` for a kernel all whose IEEE divisions are of zero by zero."""
    costs = lowered(function)
    for block, cost in zip(function.blocks, costs, strict=True):
        divisions = sum(ins.name == "div.rn.f32" for ins in block.instructions)
        for name, count in ZERO_BY_ZERO.items():
            cost[name] = cost.get(name, 0) + divisions * count
    return costs


_COULOMB = (
    "WORK_GROUP_SIZE_X", "WORK_GROUP_SIZE_Y", "INNER_UNROLL_FACTOR", "Z_ITERATIONS", "USE_SOA", "VECTOR_SIZE",
)  # fmt: skip
KERNELS = (
    RecordedKernel(
        "convolution",
        "KernelTunerConvolution.cu",
        (
            "BLOCK_SIZE_X", "BLOCK_SIZE_Y", "TILE_SIZE_X", "TILE_SIZE_Y", "PADDING", "IMAGE_WIDTH", "IMAGE_HEIGHT",
            "HFS", "READ_ONLY",
        ),
        _convolution,
    ),
    RecordedKernel(
        "pnpoly",
        "KernelTunerPnpoly.cu",
        ("VERTICES", "BLOCK_SIZE_X", "TILE_SIZE", "BETWEEN_METHOD", "USE_METHOD"),
        _point_in_polygon,
        lowering=_dividing_zeros,
    ),
    RecordedKernel(
        "coulomb",
        "CoulombSum3d.cu",
        _COULOMB,
        _coulomb,
        ("--use_fast_math",),
        chosen=lambda row: row["INNER_UNROLL_FACTOR"] == 0,
    ),
    # The loop over an array of sums is not unrolled in full: what the assembler makes of it depends on its version.
    RecordedKernel(
        "coulomb-array",
        "CoulombSum3d.cu",
        _COULOMB,
        _coulomb,
        ("--use_fast_math",),
        recording="coulomb",
        chosen=lambda row: row["INNER_UNROLL_FACTOR"] > 0,
    ),
)  # fmt: skip


@dataclass(frozen=True)
class Counter:
    """What the card counted, and what stands for it here."""

    name: str
    """What this tool calls it."""
    recorded: tuple[str, ...]
    """Columns of the recording, to be added up."""
    counted: Callable[[Row], float]
    """The same of a whole launch from its counts."""
    aim: tuple[float, float] | None = None
    """Median of the relative error and its 90th percentile that are aimed at; None: it is only printed."""
    of: tuple[str, ...] = ()
    """Columns of a whole of which this is a part: where it is less than a twentieth, errors are relative to that."""
    compared: Callable[[Row], bool] = lambda counts: True
    """Of which configs, by their counts."""


def _global(ending: str) -> Callable[[Row], float]:
    return lambda counts: sum(v for m, v in counts.items() if m.startswith("global.") and m.endswith(ending))


def _named(*metrics: str) -> Callable[[Row], float]:
    return lambda counts: sum(counts.get(metric, 0.0) for metric in metrics)


def _lanes(*classes: str) -> Callable[[Row], float]:
    return _named(*(f"lanes.{name}" for name in classes))


_THREAD = "smsp__sass_thread_inst_executed_op_"
_MEMORY = (
    "ld_shared", "st_shared", "ld_global", "st_global", "ld_local", "st_local", "load_const", "cp_async", "atomic",
)  # fmt: skip
_CLASSES = tuple(f"{_THREAD}{name}_pred_on.sum" for name in ("fp32", "integer", "control", "memory", "misc"))
COUNTERS = (
    Counter("registers", ("registers",), _named("registers")),
    Counter(
        "global load requests",
        ("l1tex__t_requests_pipe_lsu_mem_global_op_ld.sum",),
        _global(".read_requests"),
        (0.0, 0.01),
    ),
    Counter(
        "shared load wavefronts",
        ("l1tex__data_pipe_lsu_wavefronts_mem_shared_op_ld.sum",),
        _named("shared.load_wavefronts"),
        (0.0, 0.01),
    ),
    Counter(
        "shared store wavefronts",
        ("l1tex__data_pipe_lsu_wavefronts_mem_shared_op_st.sum",),
        _named("shared.store_wavefronts"),
        (0.0, 0.01),
    ),
    Counter("warp instructions", ("smsp__inst_executed.sum",), _named("issue"), (0.03, 0.08)),
    Counter("f32 instructions", (f"{_THREAD}fp32_pred_on.sum",), _lanes("fma32", "fcmp", "mufu"), (0.0, 0.01)),
    Counter(
        "integer instructions, moves, conversions",
        (f"{_THREAD}integer_pred_on.sum", f"{_THREAD}misc_pred_on.sum", f"{_THREAD}conversion_pred_on.sum"),
        _lanes("alu", "imad", "wide64", "setp", "move", "cvt", "i2f", "f2i", "cvt64", "other", "shfl"),
        (0.1, 0.1),
        _CLASSES,
    ),
    Counter("control instructions", (f"{_THREAD}control_pred_on.sum",), _lanes("branch", "bar"), (0.1, 0.1), _CLASSES),
    Counter("memory instructions", (f"{_THREAD}memory_pred_on.sum",), _lanes(*_MEMORY), (0.1, 0.1), _CLASSES),
    Counter("local load sectors", ("l1tex__t_sectors_pipe_lsu_mem_local_op_ld.sum",), _named("local.read_sectors")),
    Counter(
        "L2 read sectors",
        ("lts__t_sectors_op_read.sum",),
        _named("l2_read_sectors"),
        (0.1, 0.25),
        compared=lambda counts: counts["code_bytes"] <= _INSTRUCTION_CACHE,
    ),
    Counter("L2 write sectors", ("lts__t_sectors_op_write.sum",), _global(".write_sectors"), (0.1, 0.25)),
    Counter("DRAM sectors", _DRAM_SECTORS, _named("dram_sectors"), (0.15, 0.15)),
)


@dataclass(frozen=True)
class Comparison:
    """One config: what was recorded and what was counted, by name of the counter."""

    config: str
    """The config in short."""
    recorded: Mapping[str, float]
    """By name of the counter."""
    least: Mapping[str, float]
    """By name of the counter: what errors are relative to, if it was recorded less often than that."""
    counted: Mapping[str, float]
    """By name of the counter, without those that are not compared in this config."""

    def ratio(self, name: str) -> float:
        """Counted over recorded; 1 where both are nothing."""
        recorded, counted = self.recorded[name], self.counted[name]
        base = max(recorded, self.least[name])
        return 1.0 + (counted - recorded) / base if base else 1.0 if not counted else float("inf")


@dataclass(frozen=True)
class Score:
    """How far off one counter is over some configs."""

    median: float
    """Of the relative error."""
    high: float
    """Its 90th percentile."""
    ratio: float
    """Median of counted over recorded."""
    worst: tuple[Comparison, ...]
    """The configs furthest off, worst first."""


def score(comparisons: Sequence[Comparison], name: str, worst: int = 1) -> Score:
    """How far off the counter `name` is, with the `worst` configs; all zero where no config compares it."""
    comparisons = [comparison for comparison in comparisons if name in comparison.counted]
    if not comparisons:
        return Score(0.0, 0.0, 1.0, ())
    ratios = np.array([comparison.ratio(name) for comparison in comparisons])
    errors = np.abs(ratios - 1.0)
    order = np.argsort(-errors, kind="stable")[:worst]
    return Score(
        float(np.median(errors)),
        float(np.quantile(errors, 0.9, method="higher")),
        float(np.median(ratios)),
        tuple(comparisons[i] for i in order),
    )


def read_rows(path: Path, columns: Sequence[str]) -> list[dict[str, Any]]:
    """The recorded configs that ran and were profiled."""
    with duckdb.connect() as connection:
        cursor = connection.execute("FROM read_parquet(?) WHERE outcome = 'Ok'", [str(path)])
        names = [column[0] for column in cursor.description or ()]
        rows = [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]
    return [row for row in rows if all(row[column] is not None for column in columns)]


def compare(kernel: RecordedKernel, source: str, row: Row) -> Comparison:
    """One recorded config against its emulation."""
    config = {name: int(row[name]) for name in kernel.tunables}
    compiled = compile_job(CompileJob(source, _SM, config, kernel.source, kernel.options), CompileCache.default())
    module = parse(compiled.ptx)
    entry = entry_name(module.functions, str(row["kernel"]))
    grid, block = ([int(row[f"{extent}_{axis}"]) for axis in AXES] for extent in ("grid", "block"))
    launch = KernelLaunch(entry, grid, block, *kernel.arguments())
    options = replace(SAMPLING, budget=_BUDGET, lanes_by_class=True, lowering=kernel.lowering)
    per_block = sampled_counts(module, launch, options)
    blocks = grid[0] * grid[1] * grid[2]
    counts = {metric: value * blocks for metric, value in per_block.items()}
    resources = compiled.resources[entry]
    counts["registers"] = resources.registers
    threads = block[0] * block[1] * block[2]
    held = occupancy(find_gpu(_GPU).limits, threads, resources.registers, resources.static_smem_bytes)
    counts["code_bytes"] = len(compiled.cubin)  # the file has little else
    counts["dram_sectors"] = _dram_sectors(per_block, launch, int(held.blocks))
    resident = max(min(int(held.blocks), -(-blocks // find_gpu(_GPU).sms)), 1)
    past_l1 = 1.0 - _held_by_l1(per_block, resident, resources.static_smem_bytes)
    counts["l2_read_sectors"] = _global(".read_sectors")(counts) * past_l1
    return Comparison(
        " ".join(f"{name}={value}" for name, value in config.items()),
        {counter.name: float(sum(row[column] for column in counter.recorded)) for counter in COUNTERS},
        {counter.name: _LEAST * sum(float(row[column]) for column in counter.of) for counter in COUNTERS},
        {counter.name: float(counter.counted(counts)) for counter in COUNTERS if counter.compared(counts)},
    )


def _held_by_l1(per_block: Row, resident: int, shared_bytes: int) -> float:
    """The share of the sectors that loads request which L1 answers, as the prior predicts it."""
    none, metrics = np.zeros(1, np.int64), tuple(per_block)
    counts = np.array([[[per_block[metric]] for metric in metrics]])
    table = ProfileTable(0, "", ("",), none, none, none, none, metrics, ("block",), counts)
    cache = l1_bytes(find_gpu(_GPU).limits, np.array([resident]), np.array([shared_bytes])) / resident
    return float(held_by_l1(table, cache)[0][0])


def _dram_sectors(per_block: Row, launch: KernelLaunch, resident: int) -> float:
    """Sectors between L2 and DRAM, as the prior predicts them."""
    gpu = find_gpu(_GPU)
    footprints = []
    for written, what in ((False, "read"), (True, "write")):
        for name, array in launch.buffers.items():
            metric = f"touch.{name}.{what}"
            if metric in per_block:
                x, y, z = (np.float64(per_block.get(f"{metric}.{axis}", 0.0)) for axis in AXES)
                own = np.float64(32.0 * per_block[metric])
                footprints.append(Footprint(own, (x, y, z), np.float64(array.nbytes), written))
    x, y, z = (np.float64(extent) for extent in launch.grid)
    moved = sampled_dram_bytes((x, y, z), footprints, np.float64(max(resident, 1) * gpu.sms), float(gpu.l2_bytes))
    return float(moved) / 32.0


def report(kernel: str, comparisons: Sequence[Comparison], worst: int) -> Iterator[str]:
    """The table of one kernel, and the configs that are furthest off in the counters that miss their aim."""
    yield f"{kernel}: {len(comparisons)} configs"
    yield f"  {'counter':40} {'median':>8} {'p90':>8} {'counted/recorded':>17}   aim"
    missed = []
    for counter in COUNTERS:
        if not any(c.recorded[counter.name] for c in comparisons if counter.name in c.counted):
            continue
        result = score(comparisons, counter.name, worst)
        aim = "" if counter.aim is None else f"{counter.aim[0]:.0%} and {counter.aim[1]:.0%}"
        if misses(counter, result):
            missed.append((counter, result))
            aim += ", missed"
        yield f"  {counter.name:40} {result.median:8.2%} {result.high:8.2%} {result.ratio:17.3f}   {aim}"
    for counter, result in missed:
        for comparison in result.worst:
            yield f"  {counter.name}: {comparison.ratio(counter.name):.3f} of the recorded: {comparison.config}"


def misses(counter: Counter, result: Score) -> bool:
    """Whether a counter misses its aim; counts are compared to one in a thousand."""
    return counter.aim is not None and (result.median > counter.aim[0] + 1e-3 or result.high > counter.aim[1] + 1e-3)


def main() -> int:
    """Prints the comparison; 1 when an aim is missed, 2 where there is nothing to compare."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--sources", type=Path, required=True, help="folder with the kernels' sources")
    parser.add_argument("--data", type=Path, default=Path("../shared/data"), help="folder of recorded data")
    parser.add_argument("--configs", type=int, default=40, help="configs of each kernel")
    parser.add_argument("--seed", type=int, default=0, help="of the sample")
    parser.add_argument("--kernel", choices=[kernel.name for kernel in KERNELS], action="append")
    parser.add_argument("--worst", type=int, default=1, help="configs to print of each counter that misses its aim")
    parser.add_argument("--processes", type=int, default=2)
    arguments = parser.parse_args()
    done = missed = 0
    for kernel in KERNELS:
        if arguments.kernel and kernel.name not in arguments.kernel:
            continue
        recording = arguments.data / "counters" / f"{kernel.recording or kernel.name}-{_GPU}.parquet"
        source = next(iter(sorted(arguments.sources.rglob(kernel.source))), None)
        if source is None or not recording.is_file():
            print(f"{kernel.name}: skipped, {recording if source else kernel.source} is absent", file=sys.stderr)
            continue
        comparisons = list(sampled(kernel, source.read_text(), recording, arguments))
        for line in report(kernel.name, comparisons, arguments.worst):
            print(line, flush=True)
        missed += any(misses(counter, score(comparisons, counter.name)) for counter in COUNTERS)
        done += 1
    return (1 if missed else 0) if done else 2


def sampled(kernel: RecordedKernel, source: str, recording: Path, options: argparse.Namespace) -> Iterator[Comparison]:
    """The comparisons of a random sample of the recorded configs, in parallel."""
    rows = read_rows(recording, [column for counter in COUNTERS for column in counter.recorded])
    rows = [row for row in rows if kernel.chosen(row)]
    rows.sort(key=lambda row: tuple(row[name] for name in kernel.tunables))
    chosen = random.Random(options.seed).sample(rows, min(options.configs, len(rows)))
    with ProcessPoolExecutor(options.processes) as pool:
        yield from pool.map(_compare_named, [kernel.name] * len(chosen), [source] * len(chosen), chosen)


def _compare_named(name: str, source: str, row: Row) -> Comparison:
    return compare(next(kernel for kernel in KERNELS if kernel.name == name), source, row)


if __name__ == "__main__":
    sys.exit(main())
