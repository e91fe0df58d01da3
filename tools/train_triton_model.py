"""Train the shipped model of `matmul_triton` from recordings of TorchInductor's Triton template.

The recordings measured the template of August 2024, compiled by an older Triton, on GPUs with unknown clocks. A
recorded row is used for the config of `matmul_triton` (`kernrec/kernel/library`) that has the same tiles, stages and
warps, in the layout that the strides imply. Rows of other configs, matrices that are not dense, and problems for which
no profile of `matmul_triton` ships are excluded.

The model corrects the analytical model. To calibrate the intervals, the tool holds out problems and GPUs in turn. It
writes the model card and the trees (`kernrec.model.learn.model_file`). Run it again after every change of the
analytical model or of the kernel's profiles. It takes a few minutes on one core.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import numpy as np
from evidence.cases import ordered
from evidence.recordings.files import AbsentError, named, recorded_dicts
from front import DATA, ROOT, Data, script

from kernrec.gpu import find_gpu
from kernrec.kernel import find_kernel
from kernrec.model.analytical.calibration import analytical_fingerprint
from kernrec.model.learn.features import OTHER_ROWS, ROW_KINDS, ModelInputs
from kernrec.model.learn.model_file import save
from kernrec.op import Problem, problem_from_key
from kernrec.recommender.estimate.static_table import StaticTable
from kernrec.store import Stack
from kernrec.training.boosting import TrainingSettings
from kernrec.training.dataset import Dataset, RowGroup
from kernrec.training.load_measurements import profiled_inputs, provenance_of_rows
from kernrec.training.train_model import train

FILES = {"a100-sxm4-80gb": "inductor_mm_a100.parquet", "h100-sxm-96gb": "inductor_mm_h100.parquet"}
"""Recorded file of each GPU. The A100 is assumed to be the model with the nearest bandwidth. The H100 reaches 2.40
TB/s, like H100s with HBM2e in PyTorch's published benchmarks. Its power limit is unknown, but above 500 W."""
RECORDED = "TorchInductor's Triton template of August 2024, with an older Triton, at unknown clocks"
COLUMNS = ("block_m", "block_n", "block_k", "num_stages", "num_warps")
KERNEL = find_kernel("matmul_triton")
FEWEST = 10
"""Minimum number of profiled configs of a problem, or half of the runnable configs if half is less."""


@dataclass
class RecordedProblem:
    """Problem on a GPU. `times` has the recorded times in seconds, keyed by the config's values of `COLUMNS`."""

    gpu: str
    problem: Problem
    times: dict[tuple[int, ...], float] = field(default_factory=dict)

    def profiled(self) -> tuple[StaticTable, ModelInputs, list[dict[str, int]], np.ndarray] | None:
        """Return (profiles, model inputs, configs, times) of the configs with profiles, or None if none has one."""
        problem = self.problem
        if problem.dtype not in KERNEL.dtypes or problem.layout not in KERNEL.layouts:
            return None
        if (table := _table(self.gpu, problem.dtype, problem.layout)) is None:
            return None
        configs = map(table.space.config, range(len(table.space)))
        recorded = [(c, s) for c in configs if (s := self.times.get(tuple(c[name] for name in COLUMNS))) is not None]
        inputs, usable = profiled_inputs(table, problem, [config for config, _ in recorded])
        chosen = [recorded[i] for i in usable.tolist()]
        return table, inputs, [config for config, _ in chosen], np.array([seconds for _, seconds in chosen])


def recorded_groups(data: Path, gpu: str) -> tuple[int, list[RowGroup]]:
    """Return the number of recorded problems of a GPU, and the rows of each problem with at least `FEWEST` profiled
    configs."""
    problems, groups = read_problems(data, gpu), []
    for recorded in problems:
        if (profiled := recorded.profiled()) is not None:
            problem, (table, inputs, configs, seconds) = recorded.problem, profiled
            if len(configs) >= max(1, min(FEWEST, len(table.runnable(table.space.at(problem))) // 2)):
                unknown = np.full(len(configs), np.nan)
                kernel = KERNEL.op, KERNEL.name, KERNEL.hash
                groups.append(RowGroup(gpu, problem.key, *kernel, inputs, seconds, unknown))
    return len(problems), groups


def rows_of(problem: Problem) -> str:
    """Classify a problem by the alignment of its matrices' rows. Layout `tt` has its own classes."""
    assert KERNEL.listed is not None
    names = KERNEL.namespace(next(iter(KERNEL.listed.by_config.values())), problem, 80)
    kind = OTHER_ROWS if names["ragged"] else ROW_KINDS[0 if names["whole"] else 8]
    return f"{kind}, tt" if problem.layout == "tt" else kind


def sampled_problems(
    data: Path, gpu: str, count: int
) -> Iterator[tuple[Problem, StaticTable, list[dict[str, int]], np.ndarray]]:
    """Yield `count` problems of a GPU per data type, each with profiles, profiled configs (at least `FEWEST`), and
    times in seconds. The sample depends only on the problems."""
    taken: Counter[str] = Counter()
    problems = read_problems(data, gpu)
    for recorded in (problems[i] for i in ordered([each.problem.key for each in problems])):
        dtype = recorded.problem.dtype
        if taken[dtype] < count and (profiled := recorded.profiled()) and len(profiled[2]) >= FEWEST:
            taken[dtype] += 1
            table, _, configs, seconds = profiled
            yield recorded.problem, table, configs, seconds


def read_problems(data: Path, gpu: str) -> list[RecordedProblem]:
    """Return the recorded problems of a GPU whose matrices are dense, ordered by data type, sizes and layout."""
    layout = " || ".join(
        f"CASE ({side}_stride_0, {side}_stride_1) WHEN ({columns}, 1) THEN 'n' WHEN (1, {rows}) THEN 't' END"
        for side, rows, columns in (("a", "m", "k"), ("b", "k", "n"))
    )
    dtype = f"if(tf32, 'tf32', {named('dtype', 'torch_dtypes')})"
    columns = f"{dtype} AS kernel_dtype, m, n, k, {layout} AS layout, {', '.join(COLUMNS)}, latency_s"
    condition = "implementation = 'triton' AND failures = 0 AND layout IS NOT NULL"
    by_key: dict[tuple[str, int, int, int, str], RecordedProblem] = {}
    for dtype, m, n, k, layout, *config, seconds in map(
        dict.values, recorded_dicts(data / "triton" / FILES[gpu], condition, columns)
    ):
        if (key := (dtype, m, n, k, layout)) not in by_key:
            by_key[key] = RecordedProblem(gpu, KERNEL.definition.problem(dtype, layout, m=m, n=n, k=k))
        by_key[key].times[tuple(config)] = seconds
    return [by_key[key] for key in sorted(by_key)]


@cache
def _table(gpu: str, dtype: str, layout: str) -> StaticTable | None:
    gpu_of_file, problem = find_gpu(gpu), KERNEL.definition.problem(dtype, layout, m=64, n=64, k=64)
    profiles = Stack([]).profiles(KERNEL.name, KERNEL.hash, gpu_of_file.sm)
    table = StaticTable.of(KERNEL, problem, gpu_of_file, profiles) if profiles else None
    return table if table is not None and table.unprofiled < len(table.space.variants.keys) else None


SHAPE = TrainingSettings(rounds=150, depth=5, rate=0.06, threads=1)
"""Settings of the trees for unrecorded GPUs. More or deeper trees rank worse on other GPUs."""
SETTINGS = TrainingSettings(rounds=300, depth=8, rate=0.1, child_weight=10.0, threads=1, shape=SHAPE)
"""Settings of the trees for recorded GPUs. They were chosen by top-1 efficiency and error on held-out problems, and by
the time of a query."""


def run(data: Data = DATA, out: Path = ROOT / "db" / "prebuilt" / "models") -> None:
    """Train and write the model."""
    groups: list[RowGroup] = []
    left_out = {}
    for gpu in FILES:
        problems, of_gpu = recorded_groups(data, gpu)
        left_out[gpu] = problems - len(of_gpu)
        print(f"{gpu}: {sum(map(len, of_gpu))} configs of {len(of_gpu)} problems, {left_out[gpu]} left out")
        groups += of_gpu
    if not groups:
        raise AbsentError("no problem has profiles: run tools/build_database.py matmul_triton")
    rows = Dataset(tuple(groups))
    model = train(rows, SETTINGS)
    counts = Counter(problem_from_key(group.problem).dtype for group in groups)
    training = provenance_of_rows(rows) | {
        "problems": len({group.problem for group in groups}),
        "measurements": 0,
        "mark": "",
        "prior": {"probe": analytical_fingerprint(), "calibrations": {}},
        "recorded": RECORDED,
        "source": "collected for PyTorch's AutoHeuristic (AlnisM/autoheuristic-datasets)",
        "caveats": [
            "an older Triton compiled the recorded kernels; the features are those of matmul_triton by today's Triton",
            "the variants of the A100 and H100 and their clocks are unknown",
            "data types: " + ", ".join(f"{count} problems in {dtype}" for dtype, count in sorted(counts.items())),
            "left out: configs and kinds of matrices without profiles, and matrices that are not dense",
        ],
        "problems_left_out": left_out,
    }
    path = save(model, out, KERNEL.name, training)
    for name, score in model.scores.items():
        print(f"{name}: {score if isinstance(score, str) else f'{score:.4g}'}")
    print(f"{path}: {sum(f.stat().st_size for f in out.glob(f'{KERNEL.name}.*')) / 1e6:.2f} MB")


if __name__ == "__main__":
    script(run)
