"""Compute how much of the standard workloads is measured or recorded on each GPU. Replayed recordings are skipped."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kernrec.gpu.find import catalog_gpu
from kernrec.measure.problems import select_layers
from kernrec.op import Problem
from kernrec.store import Stack
from kernrec.store.recorded import contents, has_recorded, recorded_baselines
from kernrec.store.schema import with_derived


@dataclass
class OpCoverage:
    """Number of measurements and of published times for an op on a GPU."""

    layers: int
    """Number of layers of the op in the standard workloads."""
    measured: int = 0
    recorded: int = 0
    """Number of layers with a shipped, published time of a backend such as vLLM or cuBLAS."""
    configs: int = 0
    """Number of measured combinations of config, problem and operating point."""
    energies: int = 0
    """Number of combinations in `configs` with a measured energy."""


@dataclass(frozen=True)
class GpuCoverage:
    """Coverage of a GPU that has at least one measurement or recording."""

    gpu: str
    arch: str
    """Architecture of the GPU. Empty if the GPU is not in the catalog."""
    ops: Mapping[str, OpCoverage]
    """Coverage, keyed by op. Ops that are not in the standard workloads come last and have no layers."""
    last_measured: str
    """Day of the last measurement. Empty if there is none."""


_Layers = Mapping[str, Sequence[tuple[Problem, ...]]]
"""Layers of the standard workloads, keyed by op. A layer is a tuple of problems that differ only in dtype."""


def _standard_layers() -> _Layers:
    layers: dict[str, dict[str, tuple[Problem, ...]]] = defaultdict(dict)
    for problem in (layer.problem for layer in select_layers("all", None, None, None, None) or ()):
        definition = problem.definition
        dtypes = ("f16", "bf16") if problem.dtype in ("f16", "bf16") else (problem.dtype,)
        same = (definition.problem(each, problem.layout, **problem.dim) for each in dtypes if each in definition.dtypes)
        key = problem.key.replace("]bf16,", "]f16,")
        if key not in layers[problem.op]:
            layers[problem.op][key] = tuple(same)
    return {op: list(problems.values()) for op, problems in layers.items()}


_MEASURED = """
    SELECT gpu, op, list(DISTINCT problem.key), count(*), count(energy_j), strftime(max(measured_at), '%Y-%m-%d')
    FROM answer JOIN db.problem AS problem USING (problem_id) WHERE NOT coalesce(replayed, false)
    GROUP BY ALL ORDER BY ALL
"""


def gpus_coverage(stack: Stack) -> list[GpuCoverage]:
    """Return the coverage of each GPU with measurements or recordings. GPUs with the most measured layers come
    first."""
    layers = _standard_layers()
    rows: dict[str, list[tuple[Any, ...]]] = defaultdict(list)
    for _, database in stack.databases():
        for gpu, *row in database.query(with_derived("answer", _MEASURED)):
            rows[gpu].append(tuple(row))
    recorded = {gpu for about in contents().values() for gpu in about["gpus"]}
    covered = [_of_gpu(gpu, rows.get(gpu, ()), layers) for gpu in sorted({*rows, *recorded})]
    return sorted(covered, key=lambda each: (-sum(op.measured for op in each.ops.values()), each.gpu))


def _of_gpu(name: str, rows: Sequence[tuple[Any, ...]], layers: _Layers) -> GpuCoverage:
    """Return the coverage of a GPU. Each row is (op, keys of problems, configs, energies, last day)."""
    measured = {key for _, keys, *_ in rows for key in keys}
    gpu = catalog_gpu(name)
    ops = {}
    for op, problems in layers.items():
        there = gpu is not None and has_recorded(op, gpu)
        ops[op] = OpCoverage(
            len(problems),
            sum(any(each.key in measured for each in same) for same in problems),
            sum(any(recorded_baselines(each, gpu) for each in same) for same in problems) if there and gpu else 0,
        )
    for op, _, configs, energies, _ in rows:
        of_op = ops.setdefault(op, OpCoverage(0))
        of_op.configs += configs
        of_op.energies += energies
    return GpuCoverage(name, gpu.arch if gpu else "", ops, max((row[-1] for row in rows), default=""))
