"""Compare the fastest baseline with recordings that no baseline model was trained on, and count missing baselines.

DeepBench's convolutions and matmuls (cuDNN 7.6 and cuBLAS, V100 and P100), and the fp8 matmuls of an H20 and an H800
(zksainx/pipeweave), are predicted from other GPUs or from physics. The last line counts problems without any
baseline, among random sizes of all ops on random GPUs that support the data type.
"""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
from front import DATA, Data, Table

from evidence.recordings.files import AbsentError, recorded_dicts
from kernrec.errors import KernrecError
from kernrec.gpu import all_gpus, find_gpu
from kernrec.model.baselines.bound import rate_of
from kernrec.op import Problem, all_ops, find_op
from kernrec.recommender.baselines import baselines_of
from kernrec.recommender.context import Context
from kernrec.recommender.estimate.operating_point import OperatingPoint

Row = tuple[str, str, Problem, float]
"""Name of the set, GPU, problem, and recorded seconds."""
_LONG_S = 2e-5
"""Shorter times consist mostly of the launch, which the recorders timed differently."""


def run(data: Data = DATA, problems: int = 300) -> None:
    """Print a row for each set and GPU, with at most `problems` problems per set and GPU."""
    context, point, table = Context([]), OperatingPoint(), Table()
    rows: dict[tuple[str, str], list[tuple[Problem, float]]] = {}
    try:
        for name, gpu, problem, seconds in _recorded(data):
            rows.setdefault((name, gpu), []).append((problem, seconds))
    except AbsentError as error:
        print(f"skipped: {error}")
    for (name, gpu), cases in rows.items():
        chosen = np.random.default_rng(0).permutation(len(cases))[:problems]
        log, inside, sources = [], [], set()
        for problem, seconds in (cases[place] for place in chosen):
            if baselines := baselines_of(context.on(find_gpu(gpu)), problem, point):
                best = baselines[0]
                log.append(np.log(best.latency_s.value / seconds))
                inside.append(best.latency_s.low <= seconds <= best.latency_s.high)
                sources.add(best.source)
        errors = np.abs(np.expm1(log))
        cells = {"set": name, "GPU": gpu, "problems": len(chosen), "with a baseline": len(log)}
        cells |= {"error": f"{np.median(errors):.1%}", "ratio": f"{np.exp(np.median(log)):.2f}"}
        table.row(cells | {"inside": f"{np.mean(inside):.0%}", "source": ", ".join(sorted(sources))})
    missing, count = _missing(context, point, problems)
    print(f"without a baseline: {missing} of {count} random problems")


def _recorded(data: Path) -> Iterator[Row]:
    conv, matmul, dtypes = find_op("conv2d"), find_op("matmul"), "dtype IN ('f32', 'f16')"
    condition = f"{dtypes} AND latency_s IS NOT NULL AND stride_h = stride_w AND pad_h = pad_w"
    columns = "device, latency_s, dtype, n, c, h, w, k, r, s, stride_h AS stride, pad_h AS padding"
    for row in recorded_dicts(data / "library" / "deepbench_conv_v100_p100.csv", condition, columns):
        gpu, seconds, dtype = row.pop("device"), row.pop("latency_s"), row.pop("dtype")
        yield f"DeepBench conv2d {dtype}", gpu, conv.problem(dtype, "nchw", **row), seconds
    # A column-major matmul is a row-major matmul with swapped operands and a transposed result.
    columns = "device, latency_s, dtype, lower(op_b || op_a) AS layout, n_cublas AS m, m_cublas AS n, k"
    condition = f"{dtypes} AND latency_s >= {_LONG_S}"
    for row in recorded_dicts(data / "library" / "deepbench_gemm_v100_p100.csv", condition, columns):
        gpu, seconds, dtype, layout = (row.pop(name) for name in ("device", "latency_s", "dtype", "layout"))
        yield f"DeepBench matmul {dtype}", gpu, matmul.problem(dtype, layout, **row), seconds
    columns = "if(gpu = 'h800', 'h800-sxm', gpu) AS gpu, latency_s, m, n, k"
    for row in recorded_dicts(data / "library" / "gemm_fp8_hopper.parquet", f"latency_s >= {_LONG_S}", columns):
        gpu, seconds = row.pop("gpu"), row.pop("latency_s")
        yield "fp8 matmul, one kernel", gpu, matmul.problem("f8e4m3", "nt", **row), seconds


def _missing(context: Context, point: OperatingPoint, count: int) -> tuple[int, int]:
    """Return (number of random problems without a baseline, number of problems)."""
    draw, missing, counted = np.random.default_rng(1), 0, 0
    every, devices = list(all_ops()), list(all_gpus())
    while counted < count:
        op, gpu = every[draw.integers(len(every))], devices[draw.integers(len(devices))]
        dtype, layout = op.dtypes[draw.integers(len(op.dtypes))], op.layouts[draw.integers(len(op.layouts))]
        try:
            sizes = {dim.name: int(2 ** draw.integers(4, 11)) for dim in op.dims if dim.default is None}
            problem = op.problem(dtype, layout, **sizes)
            if not rate_of(gpu, dtype):
                continue
            missing += not baselines_of(context.on(gpu), problem, point)
        except KernrecError:  # The sizes are invalid, or the problem does not fit in the memory.
            continue
        counted += 1
    return missing, counted
