"""Finding what is to be explained: a kernel for an op or by name, ranked on a problem, and one of its configs."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from kernrec.errors import KernrecError, UsageError, unknown
from kernrec.gpu import GPU
from kernrec.kernel import Kernel, Space, able_kernels
from kernrec.op import Problem, find_op
from kernrec.recommender.estimate.model_store import Trained
from kernrec.recommender.infeasible import why_not
from kernrec.recommender.kernel_advice import find_own_kernel, profiles_of
from kernrec.recommender.power_sweep import Ranked, power_limits
from kernrec.store import Stack

OBJECTIVES = ("latency", "energy", "edp")


def ranked_for_op(
    op: str,
    gpu: GPU,
    shape: Mapping[str, int],
    dtype: str | None,
    layout: str | None,
    power_limit_w: float | None,
    objective: str,
    databases: Sequence[Path] | None = None,
) -> Ranked:
    """The kernel of an op whose best config is the best for the objective, ranked on the problem."""
    problem = find_op(op).problem(dtype, layout, **shape)
    found, failures = [], []
    kernels = able_kernels(problem.op, problem.dtype, problem.layout, gpu.sm)
    for kernel in kernels:
        try:
            found.append(rank(kernel, problem, gpu, power_limit_w, databases))
        except KernrecError as error:
            failures.append(error)
    if not found:
        spaces = (Space(kernel, gpu.sm, gpu.limits, problem.dtype, problem.layout) for kernel in kernels)
        if any(len(space) and len(space.at(problem).rows) for space in spaces):
            raise failures[0]
        raise KernrecError(
            f"no config of any kernel can run {problem.key} on {gpu.name}{why_not(kernels, problem, gpu)}"
        )
    return min(found, key=lambda ranked: float(cost(ranked, objective)[limit_of(ranked, power_limit_w)].min()))


def ranked_for_kernel(
    name: str,
    gpu: GPU,
    shape: Mapping[str, int],
    dtype: str | None,
    layout: str | None,
    power_limit_w: float | None,
    databases: Sequence[Path] | None = None,
) -> Ranked:
    """A kernel of the user's or the library's, ranked on a problem."""
    kernel = find_own_kernel(name, databases)
    problem = kernel.definition.problem(dtype or kernel.dtypes[0], layout or kernel.layouts[0], **shape)
    return rank(kernel, problem, gpu, power_limit_w, databases)


def rank(
    kernel: Kernel, problem: Problem, gpu: GPU, power_limit_w: float | None, databases: Sequence[Path] | None
) -> Ranked:
    """All configs of a kernel on a problem under a range of power limits, the one given among them."""
    given = [] if power_limit_w is None else [power_limit_w]
    profiles = profiles_of(kernel, problem, gpu, databases)
    evidence = Stack(databases).evidence(gpu.name, problem.op, [kernel.name], problem.key)
    trained = Trained.beside(databases)
    return Ranked(kernel, problem, gpu, profiles, [*given, *power_limits(gpu)], evidence, trained)


def limit_of(ranked: Ranked, power_limit_w: float | None) -> int:
    """The number of a power limit of `ranked`; None: of the default one."""
    return 0 if power_limit_w is None else ranked.limits.index(power_limit_w)


def cost(ranked: Ranked, objective: str) -> np.ndarray:
    """What an objective minimises, (limits, C)."""
    return cost_of(ranked.latency_s, ranked.energy_j, objective)


def cost_of(latency_s: np.ndarray, energy_j: np.ndarray, objective: str) -> np.ndarray:
    """What an objective minimises, of these costs."""
    if objective not in OBJECTIVES:
        raise unknown("objective", objective, OBJECTIVES)
    if objective == "latency":
        return latency_s
    return energy_j * (latency_s if objective == "edp" else 1.0)


def choose(ranked: Ranked, given: Mapping[str, int], objective: str, limit: int) -> int:
    """The best candidate among those whose tunables have the `given` values; raises `UsageError` without any."""
    columns = ranked.group.space.columns
    matches = np.ones(len(ranked.rows), dtype=bool)
    for name, value in given.items():
        if name not in columns:
            raise unknown(f"tunable of {ranked.kernel.name}", name, columns)
        values = next(tunable.values for tunable in ranked.kernel.tunables if tunable.name == name)
        if value not in values:
            raise UsageError(f"{ranked.kernel.name}: {name} is {value}, accepted are {', '.join(map(str, values))}")
        matches &= columns[name][ranked.rows] == value
    among = np.flatnonzero(matches)
    if not len(among):
        wanted = ", ".join(f"{name}={value}" for name, value in given.items())
        why = ""
        if len(given) == len(columns):
            misfit = ranked.kernel.misfit(given, ranked.problem, ranked.gpu.limits)
            failed = (ranked.group.space.config(int(row)) == given for row in ranked.known.failed)
            why = f": it does not keep {misfit!r}" if misfit else ": it failed when it was measured" * any(failed)
        raise UsageError(
            f"no config of {ranked.kernel.name} with {wanted} can run {ranked.problem.key} on {ranked.gpu.name}{why}"
        )
    return int(among[cost(ranked, objective)[limit, among].argmin()])
