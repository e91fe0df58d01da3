"""What others recorded of Triton's matrix product, as problems with the times of its configs and as training data.

The recordings (`triton/` of the shared data) are of TorchInductor's template of August 2024, compiled by an older
Triton, on cards whose clocks nobody stated. A row is taken for the config of `matmul_triton` (`kernrec/kernel/library`)
with the same tiles, stages and warps, at the layout that the strides tell. Left out: rows of other configs, matrices
that are not dense, and problems whose rows are no multiples of 16, for which `matmul_triton` has no code.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from kernrec.gpu import find_gpu
from kernrec.kernel import Kernel, find_kernel
from kernrec.op import Problem
from kernrec.recommender.estimate.static_table import StaticTable
from kernrec.store import Stack
from kernrec.store.connection import parquet_rows
from kernrec.training.dataset import RowGroup
from kernrec.training.load_measurements import profiled_inputs

FILES = {"a100-sxm4-80gb": "inductor_mm_a100.parquet", "h100-sxm-96gb": "inductor_mm_h100.parquet"}
"""By catalog name. The A100 is the one nearest to the bandwidth that its recording reaches. The H100 reaches 2.40 TB/s,
more than an H100 PCIe and less than an H100 SXM has; PyTorch's developers publish benchmarks of H100s with 2.4 TB/s of
HBM2e. Its power limit is not known: theirs is 500 W, with which the prior finds large products slower than recorded."""
RECORDED = "TorchInductor's Triton template of August 2024, by an older Triton, at clocks that nobody stated"
DTYPES = {("float16", False): "f16", ("bfloat16", False): "bf16", ("float32", True): "tf32", ("float32", False): "f32"}
COLUMNS = ("block_m", "block_n", "block_k", "num_stages", "num_warps")

Config = tuple[int, ...]


@dataclass
class RecordedProblem:
    """A problem on a card with the recorded seconds of its configs."""

    gpu: str
    """Catalog name."""
    problem: Problem
    times: dict[Config, float] = field(default_factory=dict)
    """By the values of `COLUMNS`."""


def read_problems(data: Path, gpu: str) -> list[RecordedProblem]:
    """The problems of dense matrices that a card's recording has, in order of dtype, dimensions and layout.

    Args:
        data: the shared data folder.
        gpu: one of `FILES`.
    """
    op = find_kernel("matmul_triton").definition
    by_key: dict[tuple[str, int, int, int, str], RecordedProblem] = {}
    for row in _rows(data / "triton" / FILES[gpu]):
        dtype = DTYPES[row["dtype"], bool(row["tf32"])]
        m, n, k = row["m"], row["n"], row["k"]
        a = _letter((row["a_stride_0"], row["a_stride_1"]), (m, k))
        b = _letter((row["b_stride_0"], row["b_stride_1"]), (k, n))
        if row["failures"] or a + b not in op.layouts:
            continue
        key = dtype, m, n, k, a + b
        if key not in by_key:
            by_key[key] = RecordedProblem(gpu, op.problem(dtype, a + b, m=m, n=n, k=k))
        by_key[key].times[tuple(row[name] for name in COLUMNS)] = row["latency_s"]
    return [by_key[key] for key in sorted(by_key)]


def _rows(path: Path) -> list[dict[str, Any]]:
    with parquet_rows(path) as (connection, source):
        result = connection.execute(f"SELECT * FROM {source} WHERE implementation = 'triton'")
        names = [column[0] for column in result.description or []]
        return [dict(zip(names, values, strict=True)) for values in result.fetchall()]


def _letter(strides: tuple[int, int], shape: tuple[int, int]) -> str:
    """`n` of a dense row-major matrix, `t` of a transposed one; empty for another."""
    if strides == (shape[1], 1):
        return "n"
    return "t" if strides == (1, shape[0]) else ""


class RecordedRows:
    """Turns recorded problems into training data; profiles are read once."""

    def __init__(self, kernel: Kernel | None = None) -> None:
        self.kernel = kernel or find_kernel("matmul_triton")
        self._stack = Stack([])
        self._tables: dict[tuple[str, str, str], StaticTable | None] = {}

    def group(self, recorded: RecordedProblem, fewest: int = 1) -> RowGroup | None:
        """The recorded rows with profiles, in the order of the space; None where there are fewer than `fewest`."""
        table = self._table(recorded)
        if table is None:
            return None
        known = [c for c in map(table.space.config, range(len(table.space))) if _key(c) in recorded.times]
        inputs, usable = profiled_inputs(table, recorded.problem, known)
        if len(usable) < fewest:
            return None
        latency = np.array([recorded.times[_key(known[i])] for i in usable.tolist()])
        kernel = self.kernel
        unknown = np.full(len(usable), np.nan)
        return RowGroup(
            recorded.gpu, recorded.problem.key, kernel.op, kernel.name, kernel.hash, inputs, latency, unknown
        )

    def _table(self, recorded: RecordedProblem) -> StaticTable | None:
        problem, kernel = recorded.problem, self.kernel
        if problem.dtype not in kernel.dtypes or problem.layout not in kernel.layouts:
            return None
        key = recorded.gpu, problem.dtype, problem.layout
        if key not in self._tables:
            gpu = find_gpu(recorded.gpu)
            profiles = self._stack.profiles(kernel.name, kernel.hash, gpu.sm)
            table = StaticTable.of(kernel, problem, gpu, profiles) if profiles else None
            covered = table is not None and table.coverage.unprofiled < len(table.space.variants.keys)
            self._tables[key] = table if covered else None
        return self._tables[key]


def config_of(group: RowGroup, row: int) -> Config:
    """The values of `COLUMNS` of a row of training data."""
    return tuple(int(group.inputs.tunables[name][row]) for name in COLUMNS)


def _key(config: dict[str, int]) -> Config:
    return tuple(config[name] for name in COLUMNS)
