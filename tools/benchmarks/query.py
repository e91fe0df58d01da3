"""How long a recommendation takes, beside the public wheel `nvidia-matmul-heuristics` where it is installed.

cold       the whole process of `kernrec recommend --op matmul --gpu rtx4090 --shape m=4096,n=4096,k=4096 --json`, as an
           installed program runs: modules compiled, not for the first time. Median time and peak memory; `first` is the
           first time, which reads Parquet and TOML and fills the cache.
warm       `Recommender.recommend` on 200 shapes never asked before (median and 99th percentile), and on one asked again
measured   new shapes beside a database of 20,000 made-up measurements, 500 of each shape
learned    new shapes with a model in the path, trained here on made-up measurements (the prior's figures times a
           function of the config); cold too, with that database. `adapted`: shapes of which 60 configs were measured
           on that GPU, so that the model is adapted to them; `adapted again`: another query about the same shape

Exits 1 when an aim is missed. Aims are for the time that passes on a quiet machine; beside it stands the processor time
that was used, which tells a busy machine from slow code.
"""

import importlib
import importlib.util
import math
import multiprocessing
import random
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from front import Table

from kernrec.store.measurement import Measurement

from .cold import RUN, environment_in, peak_mb
from .timing import Seconds, at_rank, spent

AIMS = {
    "cold_s": 0.40, "learned_cold_s": 0.40, "memory_mb": 60.0, "warm_median_s": 1e-3, "warm_p99_s": 3e-3,
    "again_s": 50e-6, "learned_median_s": 1e-3, "measured_s": 20e-3, "adapted_s": 20e-3, "adapted_again_s": 1e-3,
}  # fmt: skip
"""Of matmul in f32 on the RTX 4090; `warm_*` hold for the other ops, too."""
_RANKS = {"median": 0.5, "p99": 0.99}
OTHERS = (
    ("conv2d", "rtx4090", "f32"), ("conv2d", "t4", "f32"), ("attention", "rtx4090", "f32"),
    ("attention", "h200", "f16"), ("attention decode", "h200", "f16"),
    ("matmul decode", "rtx4090", "f32"), ("matmul decode", "h200", "f16"),
)  # fmt: skip
COMMAND = ["recommend", "--op", "matmul", "--gpu", "rtx4090", "--shape", "m=4096,n=4096,k=4096", "--json"]
_USUAL = {"gpu": "rtx4090", "protocol_version": 1, "tier": "final", "session": "s", "measured_at": "2026-01-01"}

Shape = dict[str, int]


def run(repeats: int = 20) -> int:
    """Print each figure with its aim; `repeats`: cold processes."""
    table, missed = Table(), []

    def show(name: str, seen: Seconds, aim: float | None) -> None:
        late = aim is not None and seen.clock > aim
        missed.extend([name] * late)
        cells = {"passed": f"{seen.clock:.6g}", "cpu": f"{seen.cpu:.6g}", "aim": f"{aim:g}" if aim else "-"}
        table.row({"": name, **cells, "note": "MISSED" if late else "" if aim else "nothing cached"})

    with tempfile.TemporaryDirectory() as name:
        figures = cold(repeats, Path(name)) | warm("matmul", "rtx4090") | measured(40, 500)
        for figure, seen in (figures | learned(repeats, Path(name))).items():
            show(figure, seen, AIMS.get(figure))
    for op, gpu, dtype in OTHERS:
        other = warm(op, gpu, dtype)
        for figure in ("warm_median_s", "warm_p99_s"):
            show(f"{op} {dtype} on {gpu}: {figure}", other[figure], AIMS[figure])
    # In a process of its own: the wheel's library may crash when its interpreter ends.
    other_tool = multiprocessing.get_context("fork").Process(target=heuristics)
    other_tool.start()
    other_tool.join()
    return 1 if missed else 0


def cold(repeats: int, folder: Path) -> dict[str, Seconds]:
    """Median wall time of a whole process, that of the first, and the largest resident set of one with a cache."""
    first, times = _processes(repeats, folder, {})
    peak = peak_mb([RUN, *COMMAND], environment_in(folder))
    return {"first_s": first, "cold_s": at_rank(times), "memory_mb": Seconds(peak, peak)}


def _processes(repeats: int, folder: Path, extra: Mapping[str, str]) -> tuple[Seconds, list[Seconds]]:
    """(time of the first process, of `repeats` others), the user's database and cache aside."""
    environment = {**environment_in(folder), **extra}
    command = [sys.executable, "-m", "kernrec", *COMMAND]
    ask = partial(subprocess.run, command, check=True, capture_output=True, env=environment)
    return spent(ask), [spent(ask) for _ in range(repeats)]


def shapes(op: str, count: int) -> list[Shape]:
    """Random problems of the sizes that networks have; the same in every run."""
    draw = random.Random(1)
    return [_SHAPES[op](draw) for _ in range(count)]


_SIZES = (64, 128, 256, 384, 512, 768, 1000, 1024, 2048, 3072, 4096, 6144, 8192, 14336)


def _matmul(draw: random.Random) -> Shape:
    return {name: draw.choice(_SIZES) + draw.choice([0, 0, 8, 1]) for name in "mnk"}


def _matmul_decode(draw: random.Random) -> Shape:
    return {"m": draw.randint(1, 32), "n": draw.choice(_SIZES) + draw.choice([0, 8]), "k": draw.choice(_SIZES)}


def _conv2d(draw: random.Random) -> Shape:
    side, kernel = draw.choice([7, 14, 28, 56, 112, 224]), draw.choice([1, 3, 5])
    channels = [3, 32, 64, 128, 256, 512]
    return {
        "n": draw.randint(1, 32), "c": draw.choice(channels), "h": side, "w": side, "k": draw.choice(channels),
        "r": kernel, "s": kernel, "stride": draw.choice([1, 2]), "padding": kernel // 2,
    }  # fmt: skip


def _attention(draw: random.Random) -> Shape:
    heads, queries = draw.choice([8, 12, 16, 32, 40]), draw.randint(64, 8192)
    return {
        "batch": draw.randint(1, 8), "heads": heads, "kv_heads": draw.choice([heads, heads // 4]), "queries": queries,
        "keys": queries + draw.choice([0, 0, 77, 1024]), "head_dim": draw.choice([64, 80, 128]),
        "causal": draw.choice([0, 1]),
    }  # fmt: skip


_SHAPES: Mapping[str, Callable[[random.Random], Shape]] = {
    "matmul": _matmul, "matmul decode": _matmul_decode, "conv2d": _conv2d, "attention": _attention,
    "attention decode": lambda draw: _attention(draw) | {"queries": 1},
}  # fmt: skip


def warm(op: str, gpu: str, dtype: str = "f32", database: Path | None = None) -> dict[str, Seconds]:
    """Median and 99th percentile of a new shape, and the median of one asked again."""
    from kernrec.recommender import Recommender

    recommender = Recommender([] if database is None else [database])
    name, layout = op.split()[0], "nt" if op == "matmul decode" else None

    def ask(dims: Shape) -> object:
        return recommender.recommend(name, gpu, dims, dtype, layout)

    problems = shapes(op, 220)
    for dims in problems[:20]:
        ask(dims)
    # A shape that was drawn twice is not new the second time.
    new_shapes = list({tuple(dims.items()): dims for dims in problems[20:] if dims not in problems[:20]}.values())
    new = [spent(partial(ask, dims)) for dims in new_shapes]
    again = [spent(partial(ask, new_shapes[0])) for _ in range(1000)]
    return {f"warm_{name}_s": at_rank(new, rank) for name, rank in _RANKS.items()} | {"again_s": at_rank(again)}


def measured(problems: int, configs: int) -> dict[str, Seconds]:
    """Median time of a new shape that has `configs` measurements, in a database of as many for each of `problems`."""
    from kernrec.recommender import Recommender

    first, *new_shapes = shapes("matmul", problems)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "own.duckdb"
        _made_up(path, [first, *new_shapes], configs, lambda numbers: 1.0)
        ask = partial(Recommender([path]).recommend, "matmul", "rtx4090")
        ask(first)
        return {"measured_s": at_rank([spent(partial(ask, dims)) for dims in new_shapes])}


def _made_up(path: Path, problems: Sequence[Shape], configs: int, factor: Callable[[Sequence[int]], float]) -> None:
    """Write a database of measurements that nobody made: the prior's figures of fast configs, times a factor."""
    from kernrec.op import find_op
    from kernrec.recommender import Objective, Query, Recommender
    from kernrec.store import Database

    recommender, query = Recommender([]), Query(Objective.LATENCY, top=configs)
    with Database.open(path, read_only=False, create=True) as database:
        for dims in problems:
            rows: list[dict[str, Any]] = []
            for choice in recommender.recommend("matmul", "rtx4090", dims, query=query).choices:
                times = factor(list(choice.config.values()))
                kernel = {"kernel": choice.kernel.name, "kernel_hash": choice.kernel.hash}
                costs = {"latency_s": choice.latency_s.value * times, "energy_j": choice.energy_j.value * times}
                problem = find_op("matmul").problem(None, None, **dims)
                rows.append(
                    _USUAL | kernel | costs | {"problem": problem, "outcome": "ok", "config": dict(choice.config)}
                )
            database.add_measurements(map(Measurement.from_columns, rows))


def learned(repeats: int, folder: Path) -> dict[str, Seconds]:
    """Times with a model in the path: warm on new shapes, cold, and on shapes with measurements of their own."""
    if importlib.util.find_spec("xgboost") is None:
        print("xgboost is not installed: nothing learned")
        return {}
    from kernrec.recommender import Objective, Query, Recommender

    path = folder / "own" / "own.duckdb"
    new_shapes = shapes("matmul", 240)[220:]
    _made_up(path, new_shapes, 60, lambda numbers: math.exp(0.3 * math.sin(sum(numbers))))
    # In a process of its own, for XGBoost would stay in this one.
    train = [sys.executable, "-m", "kernrec", "train", "--op", "matmul", "--db", str(path)]
    subprocess.run(train, check=True, capture_output=True)
    print("learned: a model of made-up measurements, 60 configs of each of 20 shapes")
    recommender = Recommender([path])
    best = recommender.recommend("matmul", "rtx4090", shapes("matmul", 1)[0]).best
    if best.source != "learned":
        raise SystemExit(f"the model is not in the path: source {best.source}")
    ask = partial(recommender.recommend, "matmul", "rtx4090")
    ask(new_shapes[0])
    times, again = (
        [spent(partial(ask, dims, query=query)) for dims in new_shapes[-10:]]
        for query in (Query(), Query(Objective.ENERGY))
    )
    return {
        "learned_median_s": warm("matmul", "rtx4090", database=path)["warm_median_s"],
        "adapted_s": at_rank(times),
        "adapted_again_s": at_rank(again),
        "learned_cold_s": at_rank(_processes(repeats, folder, {"KERNREC_DB": str(path)})[1]),
    }


def heuristics() -> None:
    """The public wheel: 8 results for the same matmul, on the same GPU."""
    try:
        wheel = importlib.import_module("nvMatmulHeuristics")
    except ImportError:
        print("nvidia-matmul-heuristics is not installed: not compared")
        return
    interface = wheel.NvMatmulHeuristicsInterface(wheel.NvMatmulHeuristicsTarget.CUTLASS, precision="SSS")
    card = interface.createHardwareDescriptor()
    interface.setHardwarePredefinedGpu(card, wheel.NvMatmulHeuristicsNvidiaGpu.RTX_4090)
    layout = wheel.NvMatmulHeuristicsMatmulLayout.NN_ROW_MAJOR
    problems = shapes("matmul", 220)
    calls = [partial(interface.get_with_mnk, d["m"], d["n"], d["k"], layout, 8, card) for d in problems]
    for ask in calls[:20]:
        ask()
    times = [spent(ask) for ask in calls[20:]]
    interface.destroyHardwareDescriptor(card)
    median, high = (at_rank(times, rank).clock * 1e3 for rank in _RANKS.values())
    print(f"nvidia-matmul-heuristics, 8 results: median {median:.3f} ms, p99 {high:.3f} ms", flush=True)
