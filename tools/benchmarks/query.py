"""Time the answer for a new shape, compared with the wheel `nvidia-matmul-heuristics` and another version of kernrec.

    python tools/bench.py query [--before ../other-checkout] [--shapes 60] [--rounds 5]

All contestants answer the same new shapes in turn, in separate processes. Times are milliseconds of processor time per
shape: the median over rounds of the median over shapes. `calls` counts Python function calls in one more answer.
"""

import importlib.metadata
import importlib.util
import json
import random
import subprocess
import sys
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from statistics import median

from front import ROOT, Table

from benchmarks.shapes import matmuls
from benchmarks.timing import environment_in, ratio

_KERNREC = """
import json, sys, time
from kernrec.recommender import Objective, Query, Recommender
recommender, cases = Recommender([]), json.loads(sys.stdin.readline())
def count(frame, event, argument):
    global calls
    calls += event == "call"
for line in sys.stdin:
    case, dims, counted = json.loads(line)
    gpu, dtype, layout, objective = cases[case]
    query, calls = Query(Objective(objective)), 0
    sys.setprofile(count if counted else None)
    start = time.thread_time()
    recommender.recommend("matmul", gpu, dims, dtype, layout, query)
    seconds = time.thread_time() - start
    sys.setprofile(None)
    print(calls if counted else seconds, flush=True)
"""
_WHEEL = """
import json, sys, time
import nvMatmulHeuristics as wheel
targets, models = {}, wheel.NvMatmulHeuristicsNvidiaGpu
of_gpu = {"rtx4090": models.RTX_4090, "a100": models.A100_SXM_80GB, "h200": models.H200_SXM}
layouts = wheel.NvMatmulHeuristicsMatmulLayout
cases = json.loads(sys.stdin.readline())
for name, (gpu, dtype, layout, _) in cases.items():
    precision = "SSS" if dtype == "f32" else "HSH"
    interface = wheel.NvMatmulHeuristicsInterface(wheel.NvMatmulHeuristicsTarget.CUTLASS, precision=precision)
    hardware = interface.createHardwareDescriptor()
    interface.setHardwarePredefinedGpu(hardware, of_gpu[gpu])
    targets[name] = interface, hardware, getattr(layouts, (layout or "nn").upper() + "_ROW_MAJOR")
for line in sys.stdin:
    case, dims, _ = json.loads(line)
    interface, hardware, layout = targets[case]
    start = time.thread_time()
    interface.get_with_mnk(dims["m"], dims["n"], dims["k"], layout, 8, hardware)
    print(time.thread_time() - start, flush=True)
"""
CASES: Mapping[str, tuple[str, str, str | None, str]] = {
    "f32 rtx4090": ("rtx4090", "f32", None, "pareto"),
    "f16 a100": ("a100", "f16", None, "pareto"),
    "f16 nt h200 latency": ("h200", "f16", "nt", "latency"),
    "f16 nt h200 pareto": ("h200", "f16", "nt", "pareto"),
}
"""(GPU, data type, layout, objective), keyed by the name of a case."""
_WARM, _WHEEL_NAME = 15, "nvidia-matmul-heuristics"


class _Contestant:
    """Process of one contestant. It answers shapes and times each answer."""

    def __init__(self, stack: ExitStack, program: str, checkout: Path) -> None:
        environment = environment_in(Path.home(), checkout) | {"OPENBLAS_NUM_THREADS": "1"}
        command, pipe = [sys.executable, "-c", program], subprocess.PIPE
        self._process = stack.enter_context(
            subprocess.Popen(command, env=environment, cwd=checkout, text=True, stdin=pipe, stdout=pipe)
        )
        stack.callback(self._process.kill)  # The wheel's library may crash at a regular exit.
        self._send(CASES)

    def _send(self, message: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(message) + "\n")
        self._process.stdin.flush()

    def figure(self, case: str, dims: Mapping[str, int], counted: bool = False) -> float:
        """Return the processor time of an answer in seconds or, if `counted`, the number of Python function calls."""
        self._send([case, dims, counted])
        assert self._process.stdout is not None
        return float(self._process.stdout.readline())


def run(before: Path | None = None, shapes: int = 60, rounds: int = 5) -> None:
    """Print a row for each case. `before` is a checkout of another version."""
    table = Table()
    with ExitStack() as stack:
        contestants = {"kernrec": _Contestant(stack, _KERNREC, ROOT)}
        if before is not None:
            contestants["before"] = _Contestant(stack, _KERNREC, before.resolve())
        if importlib.util.find_spec("nvMatmulHeuristics") is not None:
            contestants["wheel"] = _Contestant(stack, _WHEEL, ROOT)
            print(_WHEEL_NAME, importlib.metadata.version(_WHEEL_NAME))
        for case in CASES:
            times: dict[str, list[float]] = {name: [] for name in contestants}
            for number in range(rounds):
                for name, seconds in _round(contestants, case, shapes, number).items():
                    times[name].append(seconds)
            cells = {f"{name} [ms]": f"{1e3 * median(each):.3f}" for name, each in times.items()}
            new = {name: size + 8 for name, size in matmuls(1, rounds)[0].items()}
            calls = {name: int(contestants[name].figure(case, new, True)) for name in times if name != "wheel"}
            cells |= {f"{name} [calls]": str(each) for name, each in calls.items()}
            others = [name for name in times if name != "kernrec"]
            table.row({"": case, **cells, **{f"over {n}": ratio(times["kernrec"], times[n]) for n in others}})


def _round(contestants: Mapping[str, _Contestant], case: str, count: int, number: int) -> dict[str, float]:
    times: dict[str, list[float]] = {name: [] for name in contestants}
    # Use new sizes, because a contestant may have cached its answers.
    draw = random.Random(f"{case} {number}")
    for dims in matmuls(_WARM + count, number):
        new = {name: size + 8 * draw.randrange(64) for name, size in dims.items()}
        for name in draw.sample(list(contestants), len(contestants)):
            times[name].append(contestants[name].figure(case, new))
    return {name: median(seconds[_WARM:]) for name, seconds in times.items()}
