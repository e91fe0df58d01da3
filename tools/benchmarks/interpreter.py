"""Measure the speed of the PTX interpreter on one core, in million lane-instructions per second of processor time.

The kernels are a uniform `loop`, a `divergent` loop whose length differs between the threads of a warp, and the
library's `mma` on tensor cores. The interpreter runs without its counters of events.
"""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median

import numpy as np
from front import Table

from benchmarks.timing import spent
from kernrec.compile import compile_source
from kernrec.gpu import limits
from kernrec.kernel import Space, find_kernel
from kernrec.op import encode_elements, find_op, inputs
from kernrec.profile.emulated_launch import emulate_config
from kernrec.ptx import KernelLaunch, emulate, parse

_SM = 80
_LOOPS = Path(__file__).with_name("loops.cu")


def run(trips: int = 2000, rounds: int = 3) -> None:
    """Print a row for each kernel. `trips` is the number of trips of a loop."""
    module = parse(compile_source(_LOOPS.read_text(encoding="utf-8"), _SM, {}).ptx)
    work: dict[str, tuple[float, Callable[[], object]]] = {}
    for entry in ("loop", "divergent"):
        buffers = {"x": np.ones(256, np.float32), "y": np.zeros(1024, np.float32)}
        launch = KernelLaunch(entry, (4,), (256,), ["x", "y", np.int32(trips)], buffers)
        work[entry] = emulate(module, launch)["lanes"], partial(emulate, module, launch, count=False)
    kernel, problem = find_kernel("matmul_mma"), find_op("matmul").problem("f16", "nt", m=256, n=256, k=256)
    space = Space(kernel, _SM, limits(_SM), problem.dtype, problem.layout)
    config = space.config(int(space.at(problem).rows[0]))
    ptx = parse(compile_source(kernel.source, _SM, kernel.defines(config, problem.dtype, problem.layout)).ptx)
    outputs = {n: encode_elements(np.zeros(t.shape), t.dtype) for n, t in problem.tensors.items() if t.role == "output"}
    mma = partial(emulate_config, kernel, config, problem, _SM, ptx, {**inputs(problem), **outputs})
    work["mma"] = sum(counts["lanes"] for _, counts in mma()), lambda: list(mma())
    table = Table(f"one core, medians of {rounds} rounds")
    for name, (lanes, call) in work.items():
        seconds = median(spent(call) for _ in range(rounds))
        figures = {
            "lane-instructions": f"{lanes:.3g}",
            "s": f"{seconds:.3f}",
            "million/s": f"{lanes / seconds / 1e6:.0f}",
        }
        table.row({"kernel": name, **figures})
