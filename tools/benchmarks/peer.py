"""How long a new shape takes beside the public wheel `nvidia-matmul-heuristics`, and beside another version of kernrec.

    python tools/bench.py peer [--before ../other-checkout] [--shapes 60] [--rounds 5]

Each contestant is a process of its own. They answer the same shapes in turn, so that what else the machine does slows
all alike: kernrec as it is installed, kernrec with KERNREC_CORE=python, the other checkout, and the wheel where it is
installed. Figures are processor time of a shape: the median over shapes in each round, and of these the median over
rounds; beside it the ratios to the wheel and to the other version, medians of the rounds, too.
"""

import importlib.metadata
import importlib.util
import json
import os
import random
import statistics
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

from front import ROOT, Table

from .query import shapes

_KERNREC = """
import json, sys, time
from kernrec.recommender import Objective, Query, Recommender
recommender, cases = Recommender([]), json.loads(sys.stdin.readline())
for line in sys.stdin:
    case, dims = json.loads(line)
    gpu, dtype, layout, objective = cases[case]
    query = Query(Objective(objective))
    start = time.thread_time()
    recommender.recommend("matmul", gpu, dims, dtype, layout, query)
    print(time.thread_time() - start, flush=True)
"""
_WHEEL = """
import json, sys, time
import nvMatmulHeuristics as wheel
targets, cards = {}, wheel.NvMatmulHeuristicsNvidiaGpu
of_gpu = {"rtx4090": cards.RTX_4090, "a100": cards.A100_SXM_80GB, "h200": cards.H200_SXM}
layouts = wheel.NvMatmulHeuristicsMatmulLayout
cases = json.loads(sys.stdin.readline())
for name, (gpu, dtype, layout, _) in cases.items():
    precision = "SSS" if dtype == "f32" else "HSH"
    interface = wheel.NvMatmulHeuristicsInterface(wheel.NvMatmulHeuristicsTarget.CUTLASS, precision=precision)
    card = interface.createHardwareDescriptor()
    interface.setHardwarePredefinedGpu(card, of_gpu[gpu])
    targets[name] = interface, card, getattr(layouts, (layout or "nn").upper() + "_ROW_MAJOR")
for line in sys.stdin:
    case, dims = json.loads(line)
    interface, card, layout = targets[case]
    start = time.thread_time()
    interface.get_with_mnk(dims["m"], dims["n"], dims["k"], layout, 8, card)
    print(time.thread_time() - start, flush=True)
"""
CASES: Mapping[str, tuple[str, str, str | None, str]] = {
    "f32 rtx4090": ("rtx4090", "f32", None, "pareto"),
    "f16 a100": ("a100", "f16", None, "pareto"),
    "f16 nt h200 latency": ("h200", "f16", "nt", "latency"),
    "f16 nt h200 pareto": ("h200", "f16", "nt", "pareto"),
}
"""GPU, data type, layout and objective."""
_WARM = 15
PEER = "nvidia-matmul-heuristics"


class _Contestant:
    """A process that answers shapes, and times each answer."""

    def __init__(self, stack: ExitStack, program: str, tree: Path, **variables: str) -> None:
        environment = os.environ | {"PYTHONPATH": str(tree), "OPENBLAS_NUM_THREADS": "1"} | variables
        command = [sys.executable, "-c", program]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        self._process = stack.enter_context(subprocess.Popen(command, env=environment, cwd=tree, text=True, **pipes))  # type: ignore[call-overload]
        stack.callback(self._process.kill)  # the wheel's library may crash when its interpreter ends
        self._say(CASES)

    def _say(self, message: object) -> None:
        self._process.stdin.write(json.dumps(message) + "\n")
        self._process.stdin.flush()

    def seconds(self, case: str, dims: Mapping[str, int]) -> float:
        """The processor time of an answer."""
        self._say([case, dims])
        return float(self._process.stdout.readline())


def run(before: Path | None = None, shapes_a_round: int = 60, rounds: int = 5) -> None:
    """Print the table; before: a checkout of another version."""
    table = Table()
    with ExitStack() as stack:
        contestants = {
            "compiled": _Contestant(stack, _KERNREC, ROOT),
            "python": _Contestant(stack, _KERNREC, ROOT, KERNREC_CORE="python"),
        }
        if before is not None:
            contestants["before"] = _Contestant(stack, _KERNREC, before.resolve())
        if importlib.util.find_spec("nvMatmulHeuristics") is not None:
            contestants["peer"] = _Contestant(stack, _WHEEL, ROOT)
            print(PEER, importlib.metadata.version(PEER))
        for case in CASES:
            table.row({"": case, **_figures(contestants, case, shapes_a_round, rounds)})


def _figures(contestants: Mapping[str, _Contestant], case: str, count: int, rounds: int) -> dict[str, str]:
    """Milliseconds of each contestant, and ratios."""
    draw = random.Random(case)  # other shapes in each case, for models remember what they predicted
    problems = shapes("matmul", _WARM + count * rounds)
    for dims in problems[:_WARM]:
        for contestant in contestants.values():
            contestant.seconds(case, dims)
    medians: dict[str, list[float]] = {name: [] for name in contestants}
    for number in range(rounds):
        times: dict[str, list[float]] = {name: [] for name in contestants}
        for dims in problems[_WARM + number * count : _WARM + (number + 1) * count]:
            # Of sizes that were drawn before others of the same kind are new.
            new = {name: size + 8 * draw.randrange(64) for name, size in dims.items()}
            for name in draw.sample(list(contestants), len(contestants)):
                times[name].append(contestants[name].seconds(case, new))
        for name, seconds in times.items():
            medians[name].append(statistics.median(seconds))
    cells = {f"{name} ms": f"{1e3 * statistics.median(each):.3f}" for name, each in medians.items()}
    for other in ("peer", "before"):
        for name in ("compiled", "python", "before"):
            if other in medians and name in medians and name != other:
                cells[f"{name}/{other}"] = f"{_ratio(medians[name], medians[other]):.2f}"
    return cells


def _ratio(numerators: Sequence[float], denominators: Sequence[float]) -> float:
    return statistics.median([a / b for a, b in zip(numerators, denominators, strict=True)])
