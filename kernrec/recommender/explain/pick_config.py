"""Select what to explain: a request's kernel over a range of power limits, and one config of the kernel."""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from kernrec.errors import NoKernelError, UsageError, unknown
from kernrec.gpu import find_gpu
from kernrec.recommender.candidates import CandidateSet
from kernrec.recommender.context import Context
from kernrec.recommender.infeasible import none_runs
from kernrec.recommender.rank import candidate_set
from kernrec.recommender.recommender import Recommender
from kernrec.recommender.request import Objective, Request, power_limits, sweep
from kernrec.recommender.result import Recommendation


def recommended(request: Request, context: Context) -> Recommendation:
    """Return the top recommendation for an op, the default config to explain. See `explainable` for errors."""
    answer = Recommender(context=context).answer(replace(request, query=replace(request.query, top=1)))
    if not answer.recommendations:
        raise NoKernelError(str(answer.no_kernel))
    return answer.best


def explainable(request: Request, context: Context, best: Recommendation | None = None) -> CandidateSet:
    """Return the candidates of a request's kernel at the requested clock and several power limits.

    The default power limit comes first, then the requested limit, then a range of limits.

    Args:
        request: request about an op or a kernel.
        context: databases and models.
        best: the `recommended` config of an op, which selects the kernel; None to compute it.

    Raises:
        UsageError: a name is unknown, or the objective is a Pareto front.
        KernrecError: nothing can run the problem, or there are no profiles to predict from.
    """
    gpu, query = find_gpu(request.gpu), request.query
    kernel = None if request.kernel is None else context.kernel(request.kernel)
    if kernel is None and best is None:
        best = recommended(request, context)
    problem = best.problem if best is not None else request.problem_of(kernel)
    tables, evidence = context.tables_and_evidence(problem, gpu, kernel)
    limit_w = query.power_limit_w
    limits = sweep(gpu, [*([] if limit_w is None else [limit_w]), *power_limits(gpu)])
    points = [point._replace(clock_hz=query.clock_hz) for point in limits]
    models, inputs = context.models, context.inputs
    candidates = candidate_set(tables, problem, points, evidence, models, whole_space=True, inputs=inputs)
    if not candidates.kernels:
        raise none_runs(candidates.considered[0])
    if best is None:
        return candidates
    names = [each.table.kernel.name for each in candidates.kernels]
    return candidates.only(names.index(best.kernel.name))


def point_number(candidates: CandidateSet, power_limit_w: float | None) -> int:
    """Return the index of the operating point with a power limit; None means the default limit."""
    if power_limit_w is None:
        return 0
    return [point.power_limit_w for point in candidates.points].index(power_limit_w)


def pick_config(candidates: CandidateSet, tunables: Mapping[str, int], objective: Objective, point: int) -> int:
    """Return the best candidate whose tunables have these values; raise `UsageError` if there is none.

    Args:
        candidates: a set of one kernel.
        tunables: values of some tunables.
        objective: `latency`, `energy` or `edp`.
        point: index of the operating point.
    """
    (kernel,) = candidates.kernels
    spec, columns, problem = kernel.table.kernel, kernel.table.space.columns, candidates.problem
    matches = np.ones(len(kernel.rows), dtype=bool)
    for name, value in tunables.items():
        if name not in columns:
            raise unknown(f"tunable of {spec.name}", name, columns)
        values = next(tunable.values for tunable in spec.tunables if tunable.name == name)
        if value not in values:
            raise UsageError(f"{spec.name}: {name} is {value}; expected {', '.join(map(str, values))}")
        matches &= columns[name][kernel.rows] == value
    among = np.flatnonzero(matches)
    if not len(among):
        wanted = ", ".join(f"{name}={value}" for name, value in tunables.items())
        reason = ""
        if len(tunables) == len(columns):
            misfit = spec.misfit(tunables, problem, candidates.gpu.limits)
            failed = kernel.prediction.measured[0].failed
            has_failed = any(kernel.table.space.config(int(row)) == tunables for row in failed)
            reason = f": it violates {misfit!r}" if misfit else ": it failed when it was measured" * has_failed
            row = int(kernel.table.space.find([tunables])[0])
            if not reason and row >= 0:
                too_large = kernel.table.too_large(kernel.prediction.on_problem, row)
                reason = f": {too_large}" if too_large else ""
        raise UsageError(
            f"no config of {spec.name} with {wanted} can run {problem.key} on {candidates.gpu.name}{reason}"
        )
    risk = 1.0 if candidates.risk is None else candidates.risk[among]
    latency, energy = risk * candidates.latency_s[point, among], risk * candidates.energy_j[point, among]
    return int(among[objective.value_of(latency, energy).argmin()])
