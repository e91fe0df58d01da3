"""Results of the engine's query functions for fixed inputs.

    python -m tests.engine.query_values > tests/engine/query_values.json

The file has the results of release 0.1.0, except predictions of baselines whose model was trained again since then.
"""

import json
from collections.abc import Iterator

import numpy as np

from kernrec import paths
from kernrec.gpu import find_gpu
from kernrec.model.analytical.demand import QUANTITIES, Demand
from kernrec.model.analytical.dram_traffic import TensorAccess
from kernrec.model.analytical.launch_time import LaunchWork, launch_time
from kernrec.model.analytical.power import PowerModel
from kernrec.model.baselines.bound import FLUSHED, GRAPH, Timing, features
from kernrec.model.baselines.model_file import load
from kernrec.model.learn.conformal import Extent
from kernrec.model.learn.features import matrix, names
from kernrec.model.learn.forest import Forest
from kernrec.model.learn.model import least_seconds
from kernrec.op import find_op
from tests.helpers.engine_objects import dram_bytes
from tests.helpers.simulated_groups import simulated_inputs

GPUS = ("t4", "a100-sxm4-80gb", "rtx4090", "h200-sxm", "b200")
CARDS = (
    ("p100", "f32", "nt"), ("a100", "f32", "nn"), ("rtx4090", "f32", "nt"), ("h200", "f16", "tn"),
    ("b200", "f8e4m3", "nt"), ("a100", "w4a16", "nn"),
)  # fmt: skip
OVERLAPPED, SHAPES = 8, ((16, 4096, 4096), (1000, 520, 264), (8192, 1, 77))


def launches(draw: np.random.Generator) -> Iterator[tuple[str, np.ndarray]]:
    for name in GPUS:
        gpu, loops = find_gpu(name), int(draw.integers(0, 3))
        rates = 10.0 ** draw.uniform(-1, 5, (loops + 1, len(QUANTITIES), 7))
        rates[:, draw.integers(4, len(QUANTITIES), 2)] = 0.0
        work = LaunchWork.empty(6, loops)
        work.variants[:] = draw.integers(0, 7, 6)
        work.rows[:] = np.ceil(10.0 ** draw.uniform(0, 5, work.rows.shape))
        work.rows[1:4] = draw.integers((1, 1, 0), (9, 17, 4), (6, 3)).T
        work.rows[OVERLAPPED] = np.where(draw.random(6) < 0.5, np.nan, draw.random(6))
        times = launch_time(gpu, Demand(tuple(rates)), work)
        yield f"launch {name}", np.concatenate([times.pipe_clk, times[1:-1]])
        model = PowerModel.for_gpu(gpu)
        core_s, dram_s = 10.0 ** draw.uniform(-7, -1, (2, 8))
        core_j, dram_j = core_s * model.tdp_w * draw.uniform(0, 5, 8), dram_s * model.tdp_w * draw.uniform(0, 0.5, 8)
        points = [(model.power_min_w, None), (model.tdp_w, 0.7 * model.boost_hz)]
        nominal = np.stack([core_s, dram_s, np.full(8, 5e-6), core_j, dram_j])
        yield f"power limit {name}", model.setting(points).costs(nominal)
    for steps in range(4):
        axes = {name: draw.choice(["m", "n", "k"], draw.integers(0, 4)).tolist() for name in "abc"}
        access = TensorAccess(draw.choice(["m", "n", "k"], steps).tolist(), axes, "cd", draw.choice(list("abcd"), 1))
        extents = [draw.integers(1, 200, 6) for _ in range(steps)]
        blocks, together = np.prod([np.ones(6), *extents], axis=0), draw.integers(1, 5000, 6).astype(np.float64)
        sizes = [*(10.0 ** draw.uniform(3, 9, 3)), 10.0 ** draw.uniform(3, 9, 6)]
        yield f"traffic {steps}", dram_bytes(access, extents, sizes, blocks, together, 4e7)


def models(draw: np.random.Generator) -> Iterator[tuple[str, np.ndarray]]:
    inputs = simulated_inputs(5, 3)
    for name in ("busy_s", "dram_s", "blocks", "pipe_s"):
        getattr(inputs, name)[..., draw.integers(0, 5)] = 0.0
        getattr(inputs, name)[..., draw.integers(0, 5)] = np.nan
    rows = matrix(inputs, names(("tile", "other")))
    yield "features", rows
    yield "least seconds", least_seconds(inputs)
    seen = draw.normal(size=(100, 6))
    seen[:, 2] = np.nan
    far = np.where(draw.random((9, 6)) < 0.2, np.nan, 3.0 * draw.normal(size=(9, 6))).astype(np.float32)
    yield "distance", Extent.of(seen.astype(np.float32), np.array([0, 0, 1, 1, 1, 3])).distance(far)
    splits = 16 * (2**5 - 1)
    column = draw.integers(0, 2 * 6, splits).astype(np.uint16)
    value = np.concatenate([draw.normal(size=splits), draw.exponential(size=splits + 16)]).astype(np.float32)
    yield "complete trees", Forest(6, 16, 5, column, value, 0.5).predict(far)


def backends() -> Iterator[tuple[str, np.ndarray]]:
    dims = {name: np.array(sizes) for name, sizes in zip("mnk", zip(*SHAPES, strict=True), strict=True)}
    dims["batch"] = np.array([1, 3, 1])
    for name, dtype, layout in CARDS:
        for timing in (GRAPH, FLUSHED, Timing(30000.0, 1.0, alone=True)):
            bound, columns = features("matmul", find_gpu(name), dtype, layout, dims, timing)
            yield f"bound {name} {dtype} {timing.launch_clk:g}", np.stack([bound.total_s, *columns.values()])
    model, op = load(paths.shipped("db/prebuilt") / "models" / "vendor" / "matmul.json"), find_op("matmul")
    for name, dtype in (("a100", "f16"), ("h200", "bf16"), ("rtx4090", "f32"), ("rtx3090", "bf16")):
        for m, n, k in SHAPES:
            every = model.on(find_gpu(name)).predict(op.problem(dtype, "nt", m=m, n=n, k=k))
            figures = [(each.latency_s.value, each.power_w.value if each.power_w else 0.0) for each in every]
            yield f"backends {name} {dtype} {m}", np.array(figures)


def values() -> dict[str, list[float]]:
    """Return about twelve numbers of each computed array by name, followed by the sum of absolute values."""
    results: dict[str, list[float]] = {}
    for name, result in (*launches(np.random.default_rng(1)), *models(np.random.default_rng(2)), *backends()):
        flat = np.nan_to_num(result.astype(np.float64).ravel(), nan=-1.0, posinf=1e300, neginf=-1e300)
        some = flat[:: max(1, len(flat) // 11)]
        results[name] = [*some.tolist(), float(np.abs(flat[np.abs(flat) < 1e200]).sum())]
    return results


if __name__ == "__main__":
    print("{\n" + ",\n".join(f"{json.dumps(name)}: {json.dumps(some)}" for name, some in values().items()) + "\n}")
