"""How long a recommendation takes, beside the public wheel `nvidia-matmul-heuristics` where it is installed.

    python tools/bench_query.py [--repeats 20]

Cold: the whole process of `kernrec recommend --op matmul --gpu rtx4090 --shape m=4096,n=4096,k=4096 --json`, median
time and peak memory. Warm: `Recommender.recommend` on 200 shapes never asked before, and on one asked again. Measured:
new shapes beside a database of 20,000 made-up measurements, 500 of each shape. Exits 1 when an aim is missed.
"""

import argparse
import multiprocessing
import os
import random
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

AIMS = {
    "cold_s": 0.40,
    "memory_mb": 200.0,
    "warm_median_s": 1e-3,
    "warm_p99_s": 3e-3,
    "again_s": 50e-6,
    "measured_s": 20e-3,
}
COMMAND = [
    "-m",
    "kernrec",
    "recommend",
    "--op",
    "matmul",
    "--gpu",
    "rtx4090",
    "--shape",
    "m=4096,n=4096,k=4096",
    "--json",
]


def main() -> int:
    """Prints each figure with its aim."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--repeats", type=int, default=20, help="cold processes to run")
    repeats = parser.parse_args().repeats
    seen = cold(repeats) | warm("matmul", "rtx4090") | measured(40, 500)
    missed = [name for name, aim in AIMS.items() if seen[name] > aim]
    for name, aim in AIMS.items():
        print(f"{name:16} {seen[name]:12.6g}   aim {aim:g}{'   MISSED' if name in missed else ''}")
    for op, gpu in (("conv2d", "rtx4090"), ("conv2d", "t4")):
        other = warm(op, gpu)
        print(
            f"{op} on {gpu}: warm median {other['warm_median_s'] * 1e3:.3f} ms, p99 {other['warm_p99_s'] * 1e3:.3f} ms"
        )
    sys.stdout.flush()
    # In a process of its own: the wheel's library may crash when its interpreter ends.
    other_tool = multiprocessing.get_context("spawn").Process(target=heuristics)
    other_tool.start()
    other_tool.join()
    return 1 if missed else 0


def cold(repeats: int) -> dict[str, float]:
    """Median wall time of a whole process, and the largest resident set of all of them."""
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        subprocess.run([sys.executable, *COMMAND], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        times.append(time.perf_counter() - start)
    peak_kb = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    return {"cold_s": statistics.median(times), "memory_mb": peak_kb / 1024}


def shapes(op: str, count: int) -> list[dict[str, int]]:
    """Random problems of the sizes that networks have; the same in every run."""
    draw = random.Random(1)
    sizes = [64, 128, 256, 384, 512, 768, 1000, 1024, 2048, 3072, 4096, 6144, 8192, 14336]
    if op == "matmul":
        return [{name: draw.choice(sizes) + draw.choice([0, 0, 8, 1]) for name in "mnk"} for _ in range(count)]
    images = [7, 14, 28, 56, 112, 224]
    channels = [3, 32, 64, 128, 256, 512]
    found = []
    for _ in range(count):
        side, kernel = draw.choice(images), draw.choice([1, 3, 5])
        found.append(
            {"n": draw.randint(1, 32), "c": draw.choice(channels), "h": side, "w": side, "k": draw.choice(channels),
             "r": kernel, "s": kernel, "stride": draw.choice([1, 2]), "padding": kernel // 2}
        )  # fmt: skip
    return found


def warm(op: str, gpu: str) -> dict[str, float]:
    """Median and 99th percentile of a new shape, and the median of a known one."""
    from kernrec.recommender import Recommender

    recommender = Recommender([])
    problems = shapes(op, 220)
    for dims in problems[:20]:
        recommender.recommend(op, gpu, dims)
    new = sorted(_time(lambda dims=dims: recommender.recommend(op, gpu, dims)) for dims in problems[20:])  # type: ignore[misc]
    again = statistics.median(_time(lambda: recommender.recommend(op, gpu, problems[50])) for _ in range(1000))
    return {"warm_median_s": statistics.median(new), "warm_p99_s": new[int(len(new) * 0.99)], "again_s": again}


def measured(problems: int, configs: int) -> dict[str, float]:
    """Median time of a new shape that has `configs` measurements, in a database of as many for each of `problems`."""
    from kernrec.op import find_op
    from kernrec.recommender import Query, Recommender
    from kernrec.store import Database

    choices = Recommender([]).recommend(
        "matmul", "rtx4090", "m=2048,n=2048,k=2048", query=Query("latency", top=configs)
    )
    usual = {"gpu": "rtx4090", "protocol_version": 1, "tier": "final", "session": "s", "measured_at": "2026-01-01"}
    asked = shapes("matmul", problems)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "own.duckdb"
        with Database.open(path, read_only=False, create=True) as database:
            for dims in asked:
                database.add_measurements(
                    usual
                    | {"problem": find_op("matmul").problem(None, None, **dims), "outcome": "ok"}
                    | {"kernel": choice.kernel.name, "kernel_hash": choice.kernel.hash, "config": dict(choice.config)}
                    | {"latency_s": choice.latency_s.value, "energy_j": choice.energy_j.value}
                    for choice in choices.choices
                )
        recommender = Recommender([path])
        recommender.recommend("matmul", "rtx4090", asked[0])
        times = [_time(lambda dims=dims: recommender.recommend("matmul", "rtx4090", dims)) for dims in asked[1:]]  # type: ignore[misc]
    return {"measured_s": statistics.median(times)}


def _time(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def heuristics() -> None:
    """The public wheel: 8 results for the same matmul, on the same GPU."""
    try:
        import nvMatmulHeuristics
    except ImportError:
        print("nvidia-matmul-heuristics is not installed: not compared")
        return
    interface = nvMatmulHeuristics.NvMatmulHeuristicsInterface(
        nvMatmulHeuristics.NvMatmulHeuristicsTarget.CUTLASS, precision="SSS"
    )
    card = interface.createHardwareDescriptor()
    interface.setHardwarePredefinedGpu(card, nvMatmulHeuristics.NvMatmulHeuristicsNvidiaGpu.RTX_4090)
    layout = nvMatmulHeuristics.NvMatmulHeuristicsMatmulLayout.NN_ROW_MAJOR

    def ask(dims: dict[str, int]) -> object:
        return interface.get_with_mnk(dims["m"], dims["n"], dims["k"], layout, 8, card)

    problems = shapes("matmul", 220)
    for dims in problems[:20]:
        ask(dims)
    times = sorted(_time(lambda dims=dims: ask(dims)) for dims in problems[20:])  # type: ignore[misc]
    interface.destroyHardwareDescriptor(card)
    print(
        f"nvidia-matmul-heuristics, 8 results: median {statistics.median(times) * 1e3:.3f} ms,"
        f" p99 {times[int(len(times) * 0.99)] * 1e3:.3f} ms",
        flush=True,
    )


if __name__ == "__main__":
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    sys.exit(main())
