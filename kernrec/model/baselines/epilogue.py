"""Baselines of matvecs, and of matmuls with bias, activation or padded rows, derived from those of plain matmuls.

Backends are assumed to fuse a bias and an activation into the matmul's kernel. The analytical model predicts the
additional time. The lower end of an interval assumes that the matmul hides the additional time. The upper end assumes a
second kernel that reads and writes the result once more.
"""

from dataclasses import replace
from functools import lru_cache
from itertools import product

from kernrec.gpu import GPU
from kernrec.model.analytical.launch_time import epilogue
from kernrec.model.analytical.power import PowerModel
from kernrec.model.analytical.spread import Estimate
from kernrec.op import Problem
from kernrec.op.equivalent import as_matmul
from kernrec.op.problem import ANY_LAYOUT, LARGEST

_FUSED = {"bias": 0, "activation": 0}


def as_recorded(problem: Problem) -> Problem:
    """Return the similar problem that was recorded: a matmul without bias and activation."""
    problem = as_matmul(problem)
    if not has_epilogue(problem):
        return problem
    return problem.definition.problem(problem.dtype, problem.layout, **problem.dim | _FUSED)


def with_epilogue(latency: Estimate, problem: Problem, gpu: GPU) -> Estimate:
    """Add the time of a problem's bias and activation to a latency without them."""
    fused_s, apart_s = _seconds(problem, gpu)
    if not fused_s:
        return latency
    return replace(latency, value=latency.value + fused_s, high=latency.high + fused_s + apart_s)


def has_epilogue(problem: Problem) -> bool:
    return problem.layout != ANY_LAYOUT and any(map(problem.sizes.get, _FUSED))


@lru_cache(maxsize=256)
def _seconds(problem: Problem, gpu: GPU) -> tuple[float, float]:
    """Return (seconds that a fused bias and activation add, further seconds if a separate kernel computes them)."""
    if not has_epilogue(problem):
        return 0.0, 0.0
    power = PowerModel.for_gpu(gpu)
    core_s, moved = 0.0, 0.0
    # Recorded times already include the conversion of 8-bit results, so subtract its cost.
    for each, sign in ((problem, 1.0), (as_recorded(problem), -1.0)):
        cost = epilogue(gpu, power, each)
        if cost is not None:
            core_s, moved = core_s + sign * cost[0], moved + sign * cost[2]
    apart_s = 2.0 * problem.tensors["c"].bytes / gpu.memory_bandwidth if problem.sizes["activation"] else 0.0
    return max(core_s, 0.0) + max(moved, 0.0) / gpu.memory_bandwidth, apart_s


_MULTIPLES = (8, 64)
"""Padding makes rows a multiple of 8 elements (16 bytes in 16-bit types) or of 64 elements (a tile)."""


@lru_cache(maxsize=256)
def padded(problem: Problem) -> tuple[Problem, ...]:
    """Return the matmuls that a backend could run for a matmul with unaligned rows: with and without padding. Return an
    empty tuple if all rows are aligned."""
    sizes = problem.dim
    unaligned = [name for name in _contiguous(problem) if sizes[name] % _MULTIPLES[0]]
    if not unaligned:
        return ()
    return tuple(
        problem.definition.problem(problem.dtype, problem.layout, **sizes | dict(zip(unaligned, changed, strict=True)))
        for changed in product(*(_multiples(sizes[name]) for name in unaligned))
    )


def _multiples(size: int) -> set[int]:
    return {padded for step in (1, *_MULTIPLES) if (padded := -(-size // step) * step) <= LARGEST}


def _contiguous(problem: Problem) -> tuple[str, ...]:
    # Also check the layout, because a spec may declare its own op with the name `matmul`.
    if problem.op != "matmul" or problem.layout == ANY_LAYOUT:
        return ()
    a, b = tuple(problem.layout)
    return tuple(dict.fromkeys(("k" if a == "n" else "m", "n" if b == "n" else "k", "n")))
