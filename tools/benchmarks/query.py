"""Time the answer for a new shape, compared with the wheel `nvidia-matmul-heuristics` and another version of kernrec.

All contestants answer the same new shapes, each in a new process per round. Times are milliseconds of processor time
per shape: the median over rounds of the median over shapes. `calls` counts the Python function calls of one answer.
"""

import importlib.metadata
import importlib.util
import json
from collections.abc import Mapping
from pathlib import Path
from statistics import median

from front import ROOT, Table

from benchmarks.timing import environment_in, matmuls, python, ratio

_KERNREC = """
import json, sys, time
from statistics import median
from kernrec.recommender import Objective, Query, Recommender
recommender, (cases, warm, shapes) = Recommender([]), json.loads(sys.argv[1])
def count(frame, event, argument):
    global calls
    calls += event == "call"
figures = {}
for name, (gpu, dtype, layout, objective) in cases.items():
    query, seconds, calls = Query(Objective(objective)), [], 0
    for dims in shapes[name]:
        sys.setprofile(count if len(seconds) == len(shapes[name]) - 1 else None)
        start = time.thread_time()
        recommender.recommend("matmul", gpu, dims, dtype, layout, query)
        seconds.append(time.thread_time() - start)
    sys.setprofile(None)
    figures[name] = median(seconds[warm:-1]), calls
print(json.dumps(figures))
"""
_WHEEL = """
import json, os, sys, time
from statistics import median
import nvMatmulHeuristics as wheel
models, layouts = wheel.NvMatmulHeuristicsNvidiaGpu, wheel.NvMatmulHeuristicsMatmulLayout
of_gpu = {"rtx4090": models.RTX_4090, "a100": models.A100_SXM_80GB, "h200": models.H200_SXM}
(cases, warm, shapes), figures, interfaces = json.loads(sys.argv[1]), {}, []
for name, (gpu, dtype, layout, _) in cases.items():
    precision, seconds = "SSS" if dtype == "f32" else "HSH", []
    interface = wheel.NvMatmulHeuristicsInterface(wheel.NvMatmulHeuristicsTarget.CUTLASS, precision=precision)
    hardware = interface.createHardwareDescriptor()
    interfaces.append((interface, hardware))  # The wheel's library may crash when it frees these.
    interface.setHardwarePredefinedGpu(hardware, of_gpu[gpu])
    by_layout = getattr(layouts, (layout or "nn").upper() + "_ROW_MAJOR")
    for dims in shapes[name]:
        start = time.thread_time()
        interface.get_with_mnk(dims["m"], dims["n"], dims["k"], by_layout, 8, hardware)
        seconds.append(time.thread_time() - start)
    figures[name] = median(seconds[warm:-1]), 0
print(json.dumps(figures), flush=True)
os._exit(0)
"""
CASES: Mapping[str, tuple[str, str, str | None, str]] = {
    "f32 rtx4090": ("rtx4090", "f32", None, "pareto"),
    "f16 a100": ("a100", "f16", None, "pareto"),
    "f16 nt h200 latency": ("h200", "f16", "nt", "latency"),
    "f16 nt h200 pareto": ("h200", "f16", "nt", "pareto"),
}
"""(GPU, data type, layout, objective), keyed by the name of a case."""
_WARM, _WHEEL_NAME = 15, "nvidia-matmul-heuristics"


def run(before: Path | None = None, shapes: int = 60, rounds: int = 5) -> None:
    """Print a row for each case. `before` is a checkout of another version."""
    contestants = {"kernrec": (_KERNREC, ROOT)}
    if before is not None:
        contestants["before"] = _KERNREC, before.resolve()
    if importlib.util.find_spec("nvMatmulHeuristics") is not None:
        contestants["wheel"] = _WHEEL, ROOT
        print(_WHEEL_NAME, importlib.metadata.version(_WHEEL_NAME))
    answers: dict[str, list[dict[str, tuple[float, int]]]] = {name: [] for name in contestants}
    for number in range(rounds):
        new = {case: matmuls(_WARM + shapes + 1, f"{case} {number}") for case in CASES}
        for name, (program, checkout) in contestants.items():
            environment = environment_in(Path.home(), checkout) | {"OPENBLAS_NUM_THREADS": "1"}
            text = python(program, json.dumps([CASES, _WARM, new]), environment=environment)
            answers[name].append(json.loads(text))
    table = Table()
    for case in CASES:
        times = {name: [figures[case][0] for figures in rounds_of] for name, rounds_of in answers.items()}
        cells: dict[str, object] = {f"{name} [ms]": f"{1e3 * median(each):.3f}" for name, each in times.items()}
        cells |= {f"{name} [calls]": answers[name][-1][case][1] for name in times if name != "wheel"}
        others = [name for name in times if name != "kernrec"]
        table.row({"": case, **cells, **{f"over {n}": ratio(times["kernrec"], times[n]) for n in others}})
