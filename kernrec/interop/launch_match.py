"""The config of a kernel that a profiler saw: the one whose launch has the grid, block and shared memory that ran."""

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
"""Whose launches are computed, some 30 us each."""

_ROUNDED = 1e-3
"""Relative: profilers print thousands of bytes with two decimals."""

_Launch = tuple[tuple[int, ...], tuple[int, ...]]


def match_launches(results: Sequence[ForeignResult], kernel: Kernel, problem: Problem, gpu: GPU) -> list[ForeignResult]:
    """The results with the configs of the kernel that launch as they did.

    Args:
        results: with launches.
        kernel: whose function it is.
        problem: that was measured.
        gpu: that was measured.

    Raises:
        UsageError: no config launches so, or several do.
    """
    space = Space.of(kernel, problem, gpu)
    valid = space.at(problem).valid.nonzero()[0]
    if len(valid) > _MOST_CONFIGS:
        raise UsageError(f"{kernel.name} has {len(valid)} configs; launches are looked up among {_MOST_CONFIGS}")
    configs: dict[_Launch, list[tuple[int, dict[str, int]]]] = defaultdict(list)
    for row in valid.tolist():
        config = space.config(row)
        launches = bind_launches(kernel, config, problem, gpu.sm)
        if len(launches) == 1:  # the profiler's time is that of one launch
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
            f"{len(launched)} configs of {kernel.name} launch {shown} ({config_text(launched[0])}, ...):"
            f" fix {', '.join(differing)} in the spec, one profile for each value"
        )
    return launched[0]
