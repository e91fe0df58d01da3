"""Find the config of a kernel that a profiler recorded, by grid, block and shared memory of its launch."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

from kernrec.errors import UsageError
from kernrec.gpu import GPU
from kernrec.interop.results import ForeignResult
from kernrec.kernel import Kernel, Space, bind_launches
from kernrec.op import Problem
from kernrec.util.human import config_text

_MOST_CONFIGS = 50_000
"""Maximum number of configs to compare; each takes 30 us."""

_ROUNDED = 1e-3
"""Relative tolerance of shared memory: profilers print kilobytes with two decimals."""

_Launch = tuple[tuple[int, ...], tuple[int, ...]]


def match_launches(results: Sequence[ForeignResult], kernel: Kernel, problem: Problem, gpu: GPU) -> list[ForeignResult]:
    """Replace each result's launch by the config of the kernel with this launch.

    Args:
        results: results with launches.
        kernel: the kernel that ran.
        problem: the measured problem.
        gpu: the measured GPU.

    Raises:
        UsageError: no config or several configs have this launch.
    """
    space = Space.of(kernel, problem, gpu)
    valid = space.at(problem).valid.nonzero()[0]
    if len(valid) > _MOST_CONFIGS:
        raise UsageError(
            f"{kernel.name} has {len(valid)} configs; kernrec matches launches against at most {_MOST_CONFIGS}"
        )
    configs: dict[_Launch, list[tuple[int, dict[str, int]]]] = defaultdict(list)
    for row in valid.tolist():
        config = space.config(row)
        launches = bind_launches(kernel, config, problem, gpu.sm)
        if len(launches) == 1:  # The profiler's time covers one launch.
            configs[launches[0].grid, launches[0].block].append((launches[0].shared_bytes, config))
    return [replace(result, config=_only(result, configs, kernel, gpu)) for result in results]


def _only(
    result: ForeignResult, configs: dict[_Launch, list[tuple[int, dict[str, int]]]], kernel: Kernel, gpu: GPU
) -> dict[str, int]:
    assert result.launch is not None
    grid, block, stated = result.launch
    launched = [
        config
        for shared, config in configs.get((grid, block), [])
        if stated is None or abs(shared - stated) <= _ROUNDED * stated
    ]
    shown = f"a grid of {'x'.join(map(str, grid))} blocks of {'x'.join(map(str, block))} threads"
    if not launched:
        raise UsageError(f"no config of {kernel.name} launches {shown} on {gpu.name} for this problem; another shape?")
    if len(launched) > 1:
        differing = [t.name for t in kernel.tunables if len({config[t.name] for config in launched}) > 1]
        raise UsageError(
            f"{len(launched)} configs of {kernel.name} launch {shown} ({config_text(launched[0])}, ...);"
            f" give {', '.join(differing)} one value in the spec, and import one profile per value"
        )
    return launched[0]
