"""Recommend one config for each of many shapes, in batches. Shapes with database rows are answered one by one."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from kernrec.errors import KernrecError, UsageError
from kernrec.gpu import find_gpu
from kernrec.op import Op, Problem, find_op
from kernrec.recommender.baselines import Baseline
from kernrec.recommender.candidates import CandidateSet
from kernrec.recommender.json_form import FormerNames
from kernrec.recommender.recommender import Recommender
from kernrec.recommender.request import Objective, Query
from kernrec.recommender.result import Answer, Recommendation
from kernrec.recommender.select import rows_of
from kernrec.recommender.tabular import arrow_table
from kernrec.util.light_dataclass import dataclass

_NOTHING = (float("nan"),) * 3


@dataclass(frozen=True, eq=False)
class ManyAnswers(FormerNames):
    """Top recommendation for each of N shapes, in arrays of shape (N,). Unknown numbers are NaN.

    If no kernel runs a shape, the costs are for the fastest backend.
    """

    problems: tuple[Problem, ...]
    kernels: tuple[str, ...]
    """Name of the recommended kernel for each shape, or empty if no kernel runs the shape."""
    configs: tuple[Mapping[str, int], ...]
    latency_s: np.ndarray
    """Latency in seconds: expected value, lower end and upper end of the 90 % interval, (N, 3)."""
    energy_j: np.ndarray
    """Energy in joules: expected value, lower end and upper end of the 90 % interval, (N, 3)."""
    power_limit_w: np.ndarray
    """Power limit in watts for which the costs were computed, (N,)."""
    sources: tuple[str, ...]
    """Source of the latency of each shape."""
    backends: tuple[str, ...]
    """Fastest backend for each shape that no kernel runs, or empty for all other shapes."""
    failures: Mapping[int, str]
    """Reason why nothing can run a shape, keyed by the index of the shape."""

    def __len__(self) -> int:
        return len(self.problems)

    def __repr__(self) -> str:
        of_op = self.problems[0].op if self.problems else "nothing"
        return f"<ManyAnswers: {len(self)} shapes of {of_op}, {len(self.failures)} impossible>"

    def to_arrow(self) -> Any:
        """Return a `pyarrow.Table` with a row for each shape and the column names of `Answer.to_arrow`.

        Raises:
            KernrecError: PyArrow is not installed.
        """
        return arrow_table(
            [
                {
                    "problem": problem.key,
                    "kernel": self.kernels[number],
                    "config": self.configs[number],
                    "power_limit_w": float(self.power_limit_w[number]),
                    "latency_s": float(self.latency_s[number, 0]),
                    "latency_interval_s": self.latency_s[number, 1:].tolist(),
                    "energy_j": float(self.energy_j[number, 0]),
                    "energy_interval_j": self.energy_j[number, 1:].tolist(),
                    "source": self.sources[number],
                }
                for number, problem in enumerate(self.problems)
            ]
        )


def answer_many(
    recommender: Recommender, op: str, gpu: str, dims: Mapping[str, Any], query: Query, **kind: str | None
) -> ManyAnswers:
    """Return the top recommendation for each of many shapes of an op.

    Args:
        dims: sizes keyed by dimension: one number for all shapes, or a sequence with one number per shape.
        query: query with the objective `latency`, `energy` or `edp`. Bounds and sweeps are refused.
        kind: keyword arguments `dtype` and `layout` for all shapes. The defaults are as in `Request`.
    """
    if query.objective is Objective.PARETO:
        raise UsageError("several shapes get one recommendation each: use the objective latency, energy or edp")
    if query.max_slowdown is not None or query.max_power_w is not None or query.clocks:
        raise UsageError("max_slowdown, max_power_w and a sweep over clocks only work for a single shape")
    problems = tuple(_problems(find_op(op), dims, kind))
    query = replace(query, top=1)
    rows, failed = {}, {}
    on_gpu = recommender.on(find_gpu(gpu), query.conditions)
    for problem, answer in on_gpu.answer_many(problems, query, kind.get("layout") is not None):
        rows[problem] = _best(answer, query) if isinstance(answer, CandidateSet) else _row(problem, answer)
        if isinstance(answer, KernrecError):
            failed[problem] = str(answer)
    columns: Sequence[Sequence[Any]] = [*zip(*map(rows.__getitem__, problems), strict=True)] or [()] * 8
    answered, names, configs, latencies, energies, limits, sources, backends = columns
    return ManyAnswers(
        problems=tuple(answered),
        kernels=tuple(names),
        configs=tuple(configs),
        latency_s=np.array(latencies, dtype=np.float64).reshape(-1, 3),
        energy_j=np.array(energies, dtype=np.float64).reshape(-1, 3),
        power_limit_w=np.array(limits, dtype=np.float64),
        sources=tuple(sources),
        backends=tuple(backends),
        failures={number: failed[problem] for number, problem in enumerate(problems) if problem in failed},
    )


def _best(candidates: CandidateSet, query: Query) -> tuple[Any, ...]:
    (((number, _, config, place, _, _, _, latency, energy, *_),), *_) = rows_of(candidates, query)
    table, point = candidates.ranked.kernels[number].table, candidates.points[place]
    costs = config, latency[:3], energy[:3], point.limit_w(candidates.gpu), str(latency[3])
    return candidates.problem, table.kernel.name, *costs, ""


def _row(problem: Problem, answer: Answer | KernrecError) -> tuple[Any, ...]:
    if isinstance(answer, KernrecError):
        return problem, "", {}, _NOTHING, _NOTHING, _NOTHING[0], "", ""
    first: Recommendation | Baseline = answer.recommendations[0] if answer.recommendations else answer.baselines[0]
    latency, energy = first.latency_s, first.energy_j
    costs = (latency.value, latency.low, latency.high), (energy.value, energy.low, energy.high) if energy else _NOTHING
    if isinstance(first, Recommendation):
        return answer.problem, first.kernel.name, first.config, *costs, first.power_limit_w, str(first.source), ""
    return answer.problem, "", {}, *costs, first.power_limit_w, first.source, first.backend


def _problems(op: Op, dims: Mapping[str, Any], kind: Mapping[str, str | None]) -> Iterator[Problem]:
    arrays = {name: np.asarray(values) for name, values in dims.items()}
    for name, values in arrays.items():
        if values.ndim > 1 or (values.dtype.kind not in "iu" and values.size):
            raise UsageError(f"dimension {name!r:.40}: expected whole numbers, one or a sequence of them")
    lengths = {name: len(values) for name, values in arrays.items() if values.ndim}
    if len(set(lengths.values())) > 1:
        shown = ", ".join(f"{name} has {length}" for name, length in lengths.items())
        raise UsageError(f"sequences of dimensions must have the same length, but {shown}")
    count = next(iter(lengths.values()), 1)
    columns = {name: np.broadcast_to(values, count).tolist() for name, values in arrays.items()}
    for number in range(count):
        yield op.problem(kind.get("dtype"), kind.get("layout"), **{name: c[number] for name, c in columns.items()})
