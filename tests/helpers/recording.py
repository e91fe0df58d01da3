"""Databases of made-up measurements: a recording to replay, and rows near the analytical model's predictions."""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import numpy as np

from kernrec.gpu import find_gpu
from kernrec.kernel import Kernel
from kernrec.op import Problem, find_op
from kernrec.recommender import Objective, Query, Recommendation, Recommender
from kernrec.recommender.estimate.space import predict
from kernrec.store.measurement import Measurement
from tests.helpers.sharing import store_measurements

BEST = {"x": 77, "y": 1}


def make_recording(path: Path, configs: int = 200, gpu: str = "rtx3090", energy: bool = True, size: int = 1024) -> Path:
    """Write a database of noisy matmul measurements with m = n = k = `size`. The fastest config has x = 77."""
    draw = np.random.default_rng(5)
    problem = find_op("matmul").problem(m=size, n=size, k=size)
    rows = []
    for x in range(configs):
        row = {
            "gpu": gpu, "kernel": "recorded", "kernel_hash": "0123456789abcdef", "config": {"x": x, "y": x % 4},
            "problem": problem, "protocol_version": 1, "tier": "final", "session": "then",
            "measured_at": "2026-01-01T00:00:00",
        }  # fmt: skip
        if x % 10 == 9:
            rows.append(row | {"outcome": "constraint", "error": "too many threads"})
            continue
        seconds = 1e-3 * (1.0 + abs(x - BEST["x"]) / 50.0)
        samples = seconds * (1.0 + 0.003 * np.abs(draw.standard_normal(32)))
        power_w = 200.0 + 0.5 * (x % 600)  # stay within the power that a board can draw
        row |= {"outcome": "ok", "latency_s": float(np.median(samples)), "latency_samples_s": samples.tolist()}
        if energy:
            row |= {"power_w": power_w, "energy_j": power_w * float(np.median(samples))}
        rows.append(row)
    return store_rows(path, rows)  # the file may already contain other GPUs


def row_of(gpu: str, kernel: Kernel, config: Mapping[str, object], problem: Problem) -> dict[str, object]:
    """Return the columns of a measurement of a config, without its costs."""
    return {
        "gpu": gpu, "kernel": kernel.name, "kernel_hash": kernel.hash, "config": dict(config), "problem": problem,
        "protocol_version": 1, "tier": "final", "session": "monday", "measured_at": "2026-03-01T12:00:00",
        "outcome": "ok",
    }  # fmt: skip


def store_rows(path: Path, rows: Iterable[Mapping[str, object]]) -> Path:
    """Add measurements, given as columns, to a database, and return its path. Create the database if necessary."""
    return store_measurements(path, map(Measurement.from_columns, rows))


def measured_row(gpu: str, recommendation: Recommendation, problem: Problem, factor: float = 1.0) -> dict[str, object]:
    """Return the columns of a measurement: `factor` times the predicted latency, at the predicted power."""
    latency_s, power_w = recommendation.latency_s.value * factor, recommendation.power_w
    return row_of(gpu, recommendation.kernel, recommendation.config, problem) | {
        "latency_s": latency_s, "latency_low_s": latency_s * 0.98, "latency_high_s": latency_s * 1.03,
        "energy_j": latency_s * power_w, "power_w": power_w, "device": find_gpu(gpu).title,
    }  # fmt: skip


def simulated_rows(
    gpu: str, problems: int, *, step: int, configs: int, factor: float = 1.3
) -> Iterator[dict[str, object]]:
    """Yield rows of matmul_simt on a GPU that takes `factor` times the predicted latency, with 2 % noise.

    The first problem has m = `step`, and m grows by `step` per problem.
    """
    recommender, draw = Recommender([]), np.random.default_rng(0)
    for number in range(problems):
        problem = find_op("matmul").problem(m=step * (number + 1), n=512, k=256)
        (table,) = (t for t in recommender.context.on(find_gpu(gpu)).tables(problem) if t.kernel.name == "matmul_simt")
        problem_space = table.space.at(problem)
        rows = np.sort(draw.choice(table.runnable(problem_space), configs, replace=False))
        limited = predict(table, problem_space, rows)
        for row, latency, power in zip(rows, limited.latency_s, limited.power_w, strict=True):
            took = float(latency * factor * np.exp(draw.normal(0, 0.02)))
            costs = {"latency_s": took, "energy_j": took * float(power)}
            yield row_of(gpu, table.kernel, table.space.config(int(row)), problem) | costs


def make_measured_database(path: Path, problems: int = 12, configs: int = 12, factor: float = 1.3) -> None:
    """Store `configs` matmul configs per shape on an RTX 4090: `factor` times the predicted latency, with 2 % noise."""
    draw = np.random.default_rng(0)
    query = Query(Objective.LATENCY, top=configs)
    recommender = Recommender([], triton=False)  # omit Triton kernels, which are estimated differently
    rows = []
    for number in range(problems):
        shape = {"m": 256 * (number + 1), "n": 512, "k": 256}
        answer = recommender.recommend("matmul", "rtx4090", shape, query=query)
        for recommendation in answer.recommendations:
            latency_s = recommendation.latency_s.value * factor * float(np.exp(draw.normal(0, 0.02)))
            row = row_of(answer.gpu.name, recommendation.kernel, recommendation.config, answer.problem)
            costs = {"latency_s": latency_s, "energy_j": latency_s * recommendation.power_w}
            rows.append(row | costs | {"device": answer.gpu.title, "session": "simulated"})
    store_rows(path, rows)
