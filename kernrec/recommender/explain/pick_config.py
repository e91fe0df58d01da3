"""Which config is explained: the kernel of a request, over a range of power limits, and one of its configs."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from kernrec.errors import UsageError, unknown
from kernrec.gpu import GPU, find_gpu
from kernrec.op import Problem, find_op
from kernrec.recommender.candidate_set import CandidateSet, candidate_set
from kernrec.recommender.context import Context
from kernrec.recommender.estimate.static_table import StaticTable
from kernrec.recommender.recommender import no_kernel_runs, none_runs, problem_of
from kernrec.recommender.request import Objective, Request
from kernrec.recommender.sweep import power_limits, sweep


def explainable(request: Request, context: Context) -> CandidateSet:
    """The candidates of the kernel that a request is about, at the default power limit, which comes first, the one that
    is asked for, and a range of them; all at the clock that is asked for.

    With an op it is the kernel whose best config is the best for the objective.

    Raises:
        UsageError: a name is unknown, or the objective is a Pareto front.
        KernrecError: nothing can run the problem, or there are no profiles to predict from.
    """
    gpu = find_gpu(request.gpu)
    if request.kernel is not None:
        kernel = context.kernel(request.kernel)
        problem = problem_of(kernel, request)
        candidates = _candidates([context.kernel_table(kernel, problem, gpu)], problem, gpu, request, context)
        if not candidates.kernels:
            raise none_runs(candidates.considered[0])
        return candidates
    problem = find_op(request.op or "").problem(request.dtype, request.layout, **request.dims)
    candidates = _candidates(context.tables(problem, gpu), problem, gpu, request, context)
    if not candidates.kernels:
        raise no_kernel_runs(candidates)
    point = point_number(candidates, request.query.power_limit_w)
    value = request.query.objective.value_of(candidates.latency_s[point], candidates.energy_j[point])
    return candidates.only(candidates.locate(int(value.argmin()))[0])


def _candidates(
    tables: Sequence[StaticTable], problem: Problem, gpu: GPU, request: Request, context: Context
) -> CandidateSet:
    """Every config of some kernels, over a range of power limits."""
    limit_w = request.query.power_limit_w
    limits = sweep(gpu, [*([] if limit_w is None else [limit_w]), *power_limits(gpu)])
    points = [replace(point, clock_hz=request.query.clock_hz) for point in limits]
    evidence = context.evidence(problem, gpu, [table.kernel for table in tables])
    return candidate_set(tables, problem, points, evidence, context.models, whole_space=True)


def point_number(candidates: CandidateSet, power_limit_w: float | None) -> int:
    """The number of the operating point with a power limit; None for the default one."""
    if power_limit_w is None:
        return 0
    return [point.power_limit_w for point in candidates.points].index(power_limit_w)


def pick_config(candidates: CandidateSet, tunables: Mapping[str, int], objective: Objective, point: int) -> int:
    """The best candidate among those whose tunables have these values; `UsageError` without any.

    Args:
        candidates: a set of one kernel.
        tunables: values of some tunables.
        objective: `latency`, `energy` or `edp`.
        point: number of the operating point.
    """
    (kernel,) = candidates.kernels
    spec, columns, problem = kernel.table.kernel, kernel.table.space.columns, candidates.problem
    matches = np.ones(len(kernel.rows), dtype=bool)
    for name, value in tunables.items():
        if name not in columns:
            raise unknown(f"tunable of {spec.name}", name, columns)
        values = next(tunable.values for tunable in spec.tunables if tunable.name == name)
        if value not in values:
            raise UsageError(f"{spec.name}: {name} is {value}, accepted are {', '.join(map(str, values))}")
        matches &= columns[name][kernel.rows] == value
    among = np.flatnonzero(matches)
    if not len(among):
        wanted = ", ".join(f"{name}={value}" for name, value in tunables.items())
        reason = ""
        if len(tunables) == len(columns):
            misfit = spec.misfit(tunables, problem, candidates.gpu.limits)
            failed = kernel.runnable.measured[0].failed
            has_failed = any(kernel.table.space.config(int(row)) == tunables for row in failed)
            reason = f": it does not keep {misfit!r}" if misfit else ": it failed when it was measured" * has_failed
        raise UsageError(
            f"no config of {spec.name} with {wanted} can run {problem.key} on {candidates.gpu.name}{reason}"
        )
    latency, energy = candidates.latency_s[point, among], candidates.energy_j[point, among]
    return int(among[objective.value_of(latency, energy).argmin()])
