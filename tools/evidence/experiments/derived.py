"""Compare physics-based baselines (`kernrec.model.baselines.physics`) with DeepBench, and test random problems.

DeepBench has convolutions (cuDNN 7.6, with all filter sizes) and matmuls (cuBLAS) on a V100 and a P100, which were not
used in any fit. The test checks that random problems of all ops on random GPUs have a baseline that respects the memory
bandwidth, the roofline and the power limit.
"""

import random
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from front import DATA, Data
from random_queries import random_shape

from evidence.cases import Cases, joined, report
from evidence.metrics import agreement, coverage
from evidence.recordings.files import csv_dicts
from kernrec.errors import KernrecError, UsageError
from kernrec.gpu import GPU, all_gpus, find_gpu
from kernrec.model.baselines.bound import rate_of
from kernrec.model.baselines.operating_point import roofs_s
from kernrec.model.baselines.physics import FACTOR, derived
from kernrec.op import Problem, all_ops, find_op
from kernrec.recommender import Recommender
from kernrec.recommender.baselines import baselines_of
from kernrec.recommender.estimate.operating_point import DEFAULT_POINT
from kernrec.recommender.estimate.physics import fits


def run(data: Data = DATA, problems: int = 405) -> int:
    """Print the errors, and how many random problems have no baseline or an impossible one. Return 1 if any do."""
    parts = [case for read in (_convolutions, _products) for case in read(data / "library")]
    report("DeepBench, predicted over recorded times", joined(parts), ("kernel", "gpu"), agreement, coverage)
    missing = wrong = 0
    context = Recommender([]).context
    for problem, gpu in _random(problems):
        baselines = baselines_of(context, problem, gpu, DEFAULT_POINT)
        missing += not baselines
        (roof_s,) = roofs_s([problem], gpu)
        wrong += sum(
            baseline.latency_s < 0.999 * roof_s or (baseline.power_w or 0.0) > 1.001 * baseline.power_limit_w
            for baseline in baselines
        )
    print(f"{problems} random problems: {missing} without a baseline, {wrong} below their roof or above their limit")
    return int(missing + wrong > 0)


def _random(count: int) -> Iterator[tuple[Problem, GPU]]:
    draw = random.Random(49)
    while count:
        op, gpu = draw.choice(all_ops()), draw.choice(all_gpus())
        dtype = draw.choice(op.dtypes)
        layout = draw.choice(op.layouts)
        try:
            problem = op.problem(dtype, layout, **random_shape(draw, op, dtype, layout))
        except UsageError:
            continue
        if rate_of(gpu, dtype) and fits(problem, gpu):
            count -= 1
            yield problem, gpu


def _convolutions(library: Path) -> Iterator[Cases]:
    for row in csv_dicts(library / "deepbench_conv_v100_p100.csv"):
        sizes = {name: int(row[name]) for name in "nchwkrs"}
        if row["pad_h"] == row["pad_w"] and row["stride_h"] == row["stride_w"]:
            sizes |= {"stride": int(row["stride_h"]), "padding": int(row["pad_h"])}
            yield from _case("conv2d", row, "nchw", sizes)


def _products(library: Path) -> Iterator[Cases]:
    for row in csv_dicts(library / "deepbench_gemm_v100_p100.csv"):
        # cuBLAS is column-major. Compared with kernrec's matmul, the result and the operands are transposed, and the
        # operands are swapped.
        sizes = {"m": int(row["n_cublas"]), "n": int(row["m_cublas"]), "k": int(row["k"])}
        yield from _case("matmul", row, (row["op_b"] + row["op_a"]).lower(), sizes)


def _case(op: str, row: dict[str, str], layout: str, sizes: dict[str, int]) -> Iterator[Cases]:
    if row["dtype"] not in ("f32", "f16"):
        return
    try:
        problem = find_op(op).problem(row["dtype"], layout, **sizes)
    except KernrecError:
        return
    prediction = derived(problem, find_gpu(row["device"]))
    if prediction is not None:
        predicted, recorded = np.array([prediction.latency_s.value]), np.array([float(row["latency_s"])])
        more = {"low_s": predicted / FACTOR, "high_s": predicted * FACTOR}
        yield Cases.single(f"{op} {row['dtype']}", row["device"], problem.key, recorded, predicted, more)
